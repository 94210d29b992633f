"""Files that somebody made to harm whoever reads them: the bytes of each, and what it is there to
catch.

``python -m spec_tests.hostile.make`` writes the directories beside this file, and README.md; a test
holds that it would write the same again. Nothing here comes out of a compressor, whose bytes change
from release to release.
"""

import shutil
from pathlib import Path

from spec_tests.hostile.deltas import delta_cases
from spec_tests.hostile.evidence import CASES

HERE = Path(__file__).parent
DELTAS = HERE / "deltas"
DELTA_CASES = [*delta_cases()]
"""Deltas, which are applied to the base beside them and not read as checkpoints."""


def readme() -> str:
    """The list of all cases."""
    rows = [f"| {case.name} | {case.error} | {case.why} |" for case in CASES]
    lines = [
        "# Hostile files",
        "",
        "Each directory is a checkpoint that somebody made to harm whoever reads it, or that was "
        "harmed itself. The",
        "error is the class that every verb gives for it; the bug is what a reader that is not "
        "careful has.",
        "`make.py` writes them all, and this page; `spec_tests/formats/test_hostile_files.py` "
        "holds the verbs to it,",
        "in bounded memory and time. More of this kind stands under `spec_tests/golden/`.",
        "",
        "| directory | error | the bug that it is there to catch |",
        "|---|---|---|",
    ]
    lines += rows
    lines += [
        "",
        "## Deltas",
        "",
        "Each directory has a base, `base`, and a delta, `d`. The error is the class that `apply` "
        "gives;",
        "`spec_tests/verbs/test_hostile_deltas.py` holds `apply`, `verify` and the checker of "
        "docs/delta.md to it.",
        "",
        "| delta | error | the bug that it is there to catch |",
        "|---|---|---|",
    ]
    rows = [f"| deltas/{case.name} | {case.error} | {case.why} |" for case in DELTA_CASES]
    return "\n".join([*lines, *rows, ""])


def main() -> None:
    for path in HERE.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    of_deltas = [(DELTAS / case.name, case) for case in DELTA_CASES]
    for folder, case in [*((HERE / case.name, case) for case in CASES), *of_deltas]:
        for name, octets in case.files.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_bytes(octets)
    (HERE / "README.md").write_text(readme(), encoding="utf-8")


if __name__ == "__main__":
    main()
