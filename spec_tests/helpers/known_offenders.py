"""The offenders of each gate that are known and still to be mended, in `spec_tests/architecture/known_offenders.json`.

A gate fails on an offender that the list lacks, and on a listed one that offends no more: the lists only shrink.
`python -m spec_tests.helpers.known_offenders` takes the mended ones off and never adds one.
"""

import json
from importlib import import_module

from spec_tests.helpers.paths import SPEC_TESTS

LISTS = SPEC_TESTS / "architecture" / "known_offenders.json"
GATES = {
    "circles": "test_import_circles",
    "needless lazy imports": "test_import_circles",
    "long functions": "test_sizes",
    "long files": "test_sizes",
    "names defined twice": "test_definitions",
    "modules that differ by suffix": "test_definitions",
    "words": "test_vocabulary",
    "class names": "test_vocabulary",
    "phrases": "test_vocabulary",
    "docstring openings": "test_docstrings",
}
"""Gate -> the module with its function, `find_long_files` for "long files"."""


def known(gate: str) -> set[str]:
    """Return the listed offenders of a gate."""
    lists = json.loads(LISTS.read_text(encoding="utf-8")) if LISTS.exists() else {}
    return set(lists.get(gate, []))


def check(gate: str, found: set[str]) -> None:
    """Fail unless the offenders that were found are the listed ones."""
    listed = known(gate)
    assert sorted(found - listed) == [], f"new {gate}"
    assert sorted(listed - found) == [], "mended: run python -m spec_tests.helpers.known_offenders"


def find(gate: str) -> set[str]:
    """Return the offenders of a gate in the code as it is."""
    module = import_module(f"spec_tests.architecture.{GATES[gate]}")
    found: set[str] = getattr(module, f"find_{gate.replace(' ', '_')}")()
    return found


def main() -> None:
    """Take what was mended off the lists."""
    lists = {gate: rows for gate in GATES if (rows := sorted(known(gate) & find(gate)))}
    LISTS.write_text(json.dumps(lists, indent=1) + "\n", encoding="utf-8")
    print(*(f"{gate}: {len(rows)} left" for gate, rows in lists.items()), sep="\n")


if __name__ == "__main__":
    main()
