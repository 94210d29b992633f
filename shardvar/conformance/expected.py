"""Expected failures: a text file, one rule a line, each with its reason; ``#`` begins a comment.

R-INIT-5: the framework ignores the offset of a partition, tracked upstream
R-DAMAGE-1-flip sometimes: no checksums, and what lies where differs from run to run
"""

from collections.abc import Collection
from dataclasses import dataclass

from shardvar.errors import ArgumentError

SOMETIMES = "sometimes"


@dataclass(frozen=True, slots=True)
class Expected:
    """A failure that was declared."""

    reason: str
    """Why the rule is broken."""
    sometimes: bool = False
    """Whether a case that breaks it is found in some runs and not in others, so that neither is a surprise."""


def read_expected(text: str, known: Collection[str]) -> dict[str, Expected]:
    """The declarations by rule; ``ArgumentError`` for a line without a reason, a rule that is none or comes twice.

    >>> read_expected("# upstream\\nR-DIV-1: our own rule\\n", {"R-DIV-1"})
    {'R-DIV-1': Expected(reason='our own rule', sometimes=False)}
    """
    expected: dict[str, Expected] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        head, _, reason = (part.strip() for part in content.partition(":"))
        rule, _, word = head.partition(" ")
        if word.strip() not in ("", SOMETIMES):
            raise ArgumentError(
                f"Line {number} has {word!r} after the rule.", "Write: RULE: reason, or RULE sometimes: reason"
            )
        if not reason:
            raise ArgumentError(f"Line {number} gives no reason: {line.strip()!r}.", "Write: RULE: reason")
        if rule not in known:
            raise ArgumentError(f"Line {number} names the rule {rule!r}, which is none.", "See the report for the ids.")
        if rule in expected:
            raise ArgumentError(f"Line {number} names the rule {rule} a second time.", "Keep one of the lines.")
        expected[rule] = Expected(reason, bool(word))
    return expected
