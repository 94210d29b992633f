"""The mutants can be made and name tests that there are; the machine that runs them catches bugs
and nothing else."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from spec_tests.helpers.paths import ROOT
from spec_tests.mutants.mutant import DoesNotApply, Edit, Mutant
from spec_tests.mutants.run import CANARY, NoProof, Workshop, broken_rules
from spec_tests.mutants.table import LAYERS, MUTANTS

QUICK = ["chunk-for-div", "slice-text-stop-for-length", "usage-is-damage"]


def changed_files(mutant: Mutant) -> dict[str, str]:
    """The text of every file that the mutant changes."""
    texts: dict[str, str] = {}
    for edit in mutant.edits:
        text = texts.get(edit.path) or (ROOT / "shardvar" / edit.path).read_text(encoding="utf-8")
        assert text.count(edit.old) == 1, (
            f"{edit.path} has {text.count(edit.old)} times, not once: {edit.old}"
        )
        texts[edit.path] = text.replace(edit.old, edit.new)
    return texts


@pytest.mark.parametrize("mutant", [*MUTANTS, CANARY], ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_made_and_names_tests_that_there_are(mutant: Mutant) -> None:
    """Its text stands in the code once, and what becomes of it is another program, but for the
    canary."""
    for path, text in changed_files(mutant).items():
        whole = ast.parse((ROOT / "shardvar" / path).read_text(encoding="utf-8"))
        assert (ast.dump(ast.parse(text)) == ast.dump(whole)) == (mutant is CANARY)
    assert mutant.arguments()
    for argument in mutant.arguments():
        assert Path(argument.partition("::")[0]).is_file(), argument
    assert mutant.bug.endswith(".") and len(mutant.bug) < 130


def test_there_are_mutants_of_every_layer_each_with_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 32
    assert all(len(layer.MUTANTS) >= 8 for layer in LAYERS)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    yield Workshop(tmp_path_factory.mktemp("mutants").resolve()).open()


def test_quick_mutants_are_caught(workshop: Workshop) -> None:
    """The others are caught too: ``make mutants``."""
    quick = [mutant for mutant in MUTANTS if mutant.name in QUICK]
    seen = [workshop.look(mutant, with_rules=False) for mutant in quick]
    assert [(bool(each.tests), each.rules) for each in seen] == [(True, None)] * len(QUICK)
    assert workshop.control(seen) == []


def test_the_kit_sees_a_mutant_too(workshop: Workshop) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "chunk-for-div")
    assert any("DIV" in rule for rule in broken_rules(workshop.make(mutant), "1"))


def test_what_is_no_mutant_survives(workshop: Workshop) -> None:
    seen = workshop.look(CANARY, with_rules=True)
    assert seen.tests == () and seen.rules == ()


def test_what_does_not_import_proves_nothing(workshop: Workshop) -> None:
    """Every test fails on it, and none of them because it looks at what is wrong."""
    edits = (Edit("layout/partition.py", "def div(", "raise RuntimeError\n\n\ndef div("),)
    with pytest.raises(NoProof):
        workshop.look(Mutant("broken", "It is no program.", edits, "slice_text"), with_rules=False)


def test_a_mutant_that_does_not_apply_is_an_error(workshop: Workshop) -> None:
    for old in ("no such text", "return"):
        with pytest.raises(DoesNotApply):
            workshop.make(
                Mutant(
                    f"stale-{len(old)}", "It is stale.", (Edit("layout/partition.py", old, ""),), ""
                )
            )
