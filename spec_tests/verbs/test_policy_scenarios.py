"""RFC 001's usage scenarios run as docs/policies.md has them, and do what they are for."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.formats.protocol import WrappedSource
from shardvar.verbs.locate import find_checkpoint
from shardvar.verbs.reader import Reader
from spec_tests.helpers import paths

PAGE = paths.DOCS / "policies.md"


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The names that the page's code defines, and where it wrote its checkpoints."""
    if not PAGE.exists():
        pytest.skip("the page stands in the tree, not in the wheel")
    directory = tmp_path_factory.mktemp("scenarios")
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 6
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        for block in blocks:
            exec(block, names)
    return directory, names


def files_of(path: Path) -> list[set[str]]:
    """The keys in each file."""
    with sv.open_checkpoint(path) as reader:
        entries = reader.entries()
        files: list[set[str]] = [set() for _ in reader.index.files]
        for row, file in enumerate(entries.file.tolist()):
            files[file].add(entries.slices.key(row).partition("/.")[0])
        return files


def test_each_model_gets_its_own_file(scenarios: tuple[Path, dict[str, Any]]) -> None:
    """RFC 001, Model Separation: "Each model gets its own shard"."""
    assert files_of(scenarios[0] / "separated")[:2] == [{"one/x"}, {"two/x"}]


def test_restoring_what_is_important_reads_its_file_and_no_other(
    scenarios: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 001, Importance: "sharding important tensors separately so that they are loaded more
    quickly"."""
    found = find_checkpoint(scenarios[0] / "important")
    source = found.open()
    read: dict[int, int] = {}

    class Counting(WrappedSource):
        """The source, and how many bytes of each of its files were read."""

        inner = source

        def read_span(self, file: int, start: int, buffer: memoryview) -> None:
            read[file] = read.get(file, 0) + len(buffer)
            source.read_span(file, start, buffer)

    with Reader(found.path, found.format.name, Counting()) as reader:
        x = reader.read("x/.ATTRIBUTES/VARIABLE_VALUE")
        [file] = reader.find("x/.ATTRIBUTES/VARIABLE_VALUE").file.tolist()
    np.testing.assert_array_equal(x, np.ones(1000, np.float32))
    assert read == {file: 4000}
    assert files_of(scenarios[0] / "important")[file] == {"x"}


def test_values_that_a_callback_changes_are_those_that_are_stored(
    scenarios: tuple[Path, dict[str, Any]],
) -> None:
    """RFC 001, Normalize: "Note that not only can the sharding callback rearrange tensors, but also
    modify tensors."

    The same in a reshard, where tensors are read from the source as the callback asks for them.
    """
    directory, names = scenarios
    report = sv.reshard(
        directory / "normalized", directory / "again", policy=names["NormalizePolicy"](-1.0, 1.0)
    )
    assert sv.load(directory / "again")["x"].tolist() == [0.5, 0.75, 1.0]
    assert sv.load(directory / "again")["step"] == 7
    assert sv.verify(directory / "again").ok and report.num_empty_files == 1


def test_all_in_one_is_one_file(scenarios: tuple[Path, dict[str, Any]]) -> None:
    """RFC 001, All In One: "What if I actually want every tensor in a single shard?" """
    assert files_of(scenarios[0] / "together")[0] >= {"one/x", "two/x"}


@pytest.mark.parametrize("name", ["by_hand", "composed"])
def test_composition_cuts_within_the_files_of_the_outer_policy(
    name: str, scenarios: tuple[Path, dict[str, Any]]
) -> None:
    """RFC 001, Composition: "first separates tensors by the model they belong to, then shards
    those"."""
    models = [{key.partition("/")[0] for key in keys} for keys in files_of(scenarios[0] / name)]
    assert all(len(model) == 1 for model in models)
    restored = sv.Checkpoint(first=scenarios[1]["MyModel"](), second=scenarios[1]["MyModel"]())
    restored.read(scenarios[0] / name).assert_consumed()
