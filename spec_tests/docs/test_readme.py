"""A test that the README shows the whole command line; test_documents.py runs its commands."""

from shardvar.cli.options import COMMANDS
from spec_tests.helpers import paths
from spec_tests.helpers.documents import blocks, commands

ROOT = paths.ROOT
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_shows_every_verb_that_looks_at_a_checkpoint() -> None:
    told = [
        command.split()
        for block in blocks(README, "console")
        for command, _ in commands(block.body)
    ]
    others = {"apply", "completion", "delta", "formats", "maps", "vectors"}
    assert {words[1] for words in told if words[0] == "shardvar"} == set(COMMANDS) - others
