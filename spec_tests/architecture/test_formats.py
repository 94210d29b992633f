"""A format of the table has what a format needs: a golden checkpoint, hostile files, a page, and measured speed.

The contract suite, ``formats/test_format_contract.py``, holds each format of the table by itself.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("benchmarks", reason="the benchmarks stand in the tree, not in the wheel")

from benchmarks.formats import is_written  # after the skip
from benchmarks.results import read_groups
from shardvar.formats.table import format_names
from spec_tests.helpers.paths import DOCS, GOLDEN
from spec_tests.hostile.case import CASES
from spec_tests.hostile.evidence import EVIDENCE


def missing(name: str) -> Iterator[str]:
    """Yield what the format of this name lacks, and the file to edit."""
    evidence = EVIDENCE.get(name)
    if evidence is None:
        yield ("no row EVIDENCE in a module of spec_tests/hostile, so no contract test reads it")
    else:
        if not golden_files(GOLDEN / evidence.golden):
            yield (
                "no golden checkpoint: put one that another program wrote at "
                f"spec_tests/golden/{evidence.golden}"
            )
        if not any(case.name.startswith(evidence.cases) for case in CASES):
            yield "no hostile file: add directories and their rows to spec_tests/hostile/README.md"
        if not is_written(name) and evidence.make is None:
            yield "no `make` in its row, so reading it is not measured"
    if f"| `{name}` |" not in (DOCS / "formats.md").read_text(encoding="utf-8"):
        yield "no row in docs/formats.md"
    for verb in ("load", "save") if is_written(name) else ("load",):
        if name != "shardvar" and f"{verb} {name}" not in measured():
            yield f"no figure of {verb} in docs/performance.md: run python -m benchmarks --write formats"


def golden_files(path: Path) -> list[Path]:
    """Return the files of a checkpoint, by the name of its file or folder or by its prefix."""
    return [
        each
        for each in path.parent.glob(f"{path.name}*")
        if each.name[len(path.name) :][:1] in ("", ".", "-")
    ]


@cache
def measured() -> frozenset[str]:
    """Return "verb name" of every figure of the formats."""
    figures = read_groups(DOCS / "performance.json")["formats"].figures
    return frozenset(
        f"{figure.subject.split()[0]} {figure.subject.split()[-1]}" for figure in figures
    )


def test_every_format_has_what_a_format_needs() -> None:
    lacking = [f"{name}: {what}" for name in format_names() for what in missing(name)]
    assert not lacking, "\n".join(["", *lacking])


def test_there_is_evidence_of_formats_that_are_in_the_table_only() -> None:
    assert EVIDENCE.keys() <= {*format_names()}
    assert all(row.make is None for name, row in EVIDENCE.items() if is_written(name))


def test_a_format_that_has_nothing_lacks_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above is worth what `missing` sees."""
    monkeypatch.setattr(
        "spec_tests.architecture.test_formats.is_written", lambda name: name == "written"
    )
    for name, files in (
        ("written", ["EVIDENCE", "docs/formats.md", "load in docs", "save in docs"]),
        ("read", ["EVIDENCE", "docs/formats.md", "load in docs"]),
    ):
        found = list(missing(name))
        assert len(found) == len(files) and all(
            file in what for file, what in zip(files, found, strict=True)
        )
