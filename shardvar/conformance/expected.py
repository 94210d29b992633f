"""Expected failures: a text file, one rule a line, each with its reason; ``#`` begins a comment.

R-INIT-5: the framework ignores the offset of a partition, tracked upstream
"""

from collections.abc import Collection

from shardvar.errors import ArgumentError


def read_expected(text: str, known: Collection[str]) -> dict[str, str]:
    """The reasons by rule; ``ArgumentError`` for a line without a reason, an unknown rule, or a rule that comes twice.

    >>> read_expected("# upstream\\nR-DIV-1: our own rule\\n", {"R-DIV-1"})
    {'R-DIV-1': 'our own rule'}
    """
    expected: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        rule, _, reason = (part.strip() for part in content.partition(":"))
        if not reason:
            raise ArgumentError(f"Line {number} gives no reason: {line.strip()!r}.", "Write: RULE: reason")
        if rule not in known:
            raise ArgumentError(f"Line {number} names the rule {rule!r}, which is none.", "See the report for the ids.")
        if rule in expected:
            raise ArgumentError(f"Line {number} names the rule {rule} a second time.", "Keep one of the lines.")
        expected[rule] = reason
    return expected
