"""Tests that docs/cli.md and the README cover the whole command line; test_documents.py runs their
commands."""

from shardvar.cli.parser import COMMANDS, parse_arguments
from spec_tests.helpers import paths
from spec_tests.helpers.documents import blocks, commands

ROOT = paths.ROOT
README = (ROOT / "README.md").read_text(encoding="utf-8")
CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def test_the_readme_shows_every_verb_that_looks_at_a_checkpoint() -> None:
    told = [
        command.split()
        for block in blocks(README, "console")
        for command, _ in commands(block.body)
    ]
    others = {"completion", "formats", "vectors"}
    assert {words[1] for words in told if words[0] == "shardvar"} == set(COMMANDS) - others


def test_every_option_is_documented() -> None:
    import argparse

    from shardvar.cli.parser import make_parser

    actions = next(a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    for verb, parser in actions.choices.items():
        assert f"shardvar {verb} " in CLI
        for action in parser._actions:
            assert all(
                option in CLI for option in action.option_strings if option not in ("-h", "--help")
            )


def test_every_key_of_json_is_documented() -> None:
    """The page names the keys that ``test_json_has_the_keys_that_docs_describe`` finds in printed
    JSON."""
    from shardvar.cli.tensors import Slice
    from shardvar.verbs.compare.comparison import (
        DiffReport,
        TensorDifference,
        Unreadable,
        ValueDifference,
    )
    from shardvar.verbs.compare.stats import Statistics
    from shardvar.verbs.problems import Damage
    from shardvar.verbs.reports import VerifyReport, WriteReport

    names = set(Statistics().to_json()) | {
        "error",
        "cause",
        "remedy",
        "stats",
        "stats_error",
        "fault",
        "checkpoints",
    }
    names |= {
        "full_shape",
        "verified",
        "values",
        "writer",
        "metadata",
        "tensors",
        "files",
        "dtype",
        "num_files",
        "equal",
    }
    for kind in (
        *(
            DiffReport,
            TensorDifference,
            Unreadable,
            ValueDifference,
            WriteReport,
            Damage,
            VerifyReport,
            Slice,
        ),
    ):
        names |= set(kind.__dataclass_fields__)
    names.remove("damage")  # its fields are in the JSON
    names.remove("planned")  # a field for pictures, which no JSON has
    assert sorted(name for name in names if f"`{name}`" not in CLI) == []


def test_the_examples_of_the_page_parse() -> None:
    (usage,) = [block for block in blocks(CLI, "") if block.body.startswith("shardvar inspect")]
    assert {line.split()[1] for line in usage.body.splitlines() if line.startswith("shardvar")} == {
        *COMMANDS,
        "--version",
    }
    assert parse_arguments(["show", "model", "key", "-1"]).index == "-1"
