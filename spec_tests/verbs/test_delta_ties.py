"""Ties in deltas: what is stored once in the new checkpoint is compared and stored once in the delta,
and once in the result, if its format can."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import CheckpointError, ShardvarError
from shardvar.planning.index import find_ties
from shardvar.wire.digests import digest_of_all
from spec_tests.helpers.damage import flip
from spec_tests.helpers.delta_page import result_of, rewrite_delta, stored, tensors_of
from spec_tests.helpers.metadata_saves import save_with
from spec_tests.helpers.thoroughness import stride

KEYS = ("a", "b", "c", "d")


def ties_of(path: Path) -> dict[str, str]:
    with sv.open_checkpoint(path) as reader:
        return find_ties(reader.entries())


def groups(tensors: dict[str, Any], ties: dict[str, str]) -> set[frozenset[str]]:
    """The keys that share their bytes."""
    found: dict[str, set[str]] = {}
    for key in tensors:
        found.setdefault(ties.get(key, key), set()).add(key)
    return {frozenset(each) for each in found.values()}


@st.composite
def versions(draw: st.DrawFn) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Checkpoints in a row: tensors change, are added and removed, and are tied to one before."""
    found = []
    for _ in range(draw(st.integers(2, 4))):
        tensors: dict[str, Any] = {}
        ties: dict[str, str] = {}
        for key in draw(st.lists(st.sampled_from(KEYS), unique=True, min_size=1)):
            firsts = [each for each in tensors if each not in ties]
            if firsts and draw(st.booleans()):
                ties[key] = draw(st.sampled_from(firsts))
                tensors[key] = tensors[ties[key]]
            else:
                # Long enough that its frames are smaller than it.
                array = np.zeros(draw(st.sampled_from([60, 60, 60, 3])), np.int16)
                array[draw(st.integers(0, 2)) :: 40] = draw(st.integers(0, 2))
                tensors[key] = array
        found.append((tensors, ties))
    return found


STEPS = [np.eye(1, 60, at, np.int16)[0] for at in range(4)]


def written(path: Path, chain: Any, is_untied: bool = False) -> list[Path]:
    """Save checkpoints in a row, and return the deltas between them. The base may have all its
    tensors by themselves."""
    for number, (tensors, ties) in enumerate(chain):
        save_with(path / f"v{number}", tensors, {} if is_untied and not number else ties)
        if number:
            report = sv.delta(path / f"v{number - 1}", path / f"v{number}", path / f"d{number}")
            found = {each.key: each.tie for each in report.tensors if each.tie}
            assert found == ties_of(path / f"v{number}")
            assert sv.verify(path / f"d{number}").ok
    return [path / f"d{number}" for number in range(1, len(chain))]


APART, TOGETHER = ({"a": STEPS[0], "b": STEPS[1]}, {}), ({"a": STEPS[2], "b": STEPS[2]}, {"b": "a"})


@settings(deadline=None, max_examples=150 // stride(6))
@given(versions(), st.booleans())
@example([APART, TOGETHER], False)
@example([TOGETHER, APART], False)
def test_the_result_has_the_ties_of_the_new_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, chain: Any, is_untied: bool
) -> None:
    path = tmp_path_factory.mktemp("t")
    deltas = written(path, chain, is_untied)
    found, (tensors, ties) = chain[0][0], chain[-1]
    # By the page.
    for each in deltas:
        found = {
            key: np.frombuffer(data, dtype).reshape(shape)
            for key, (dtype, shape, data) in result_of(found, *stored(each)).items()
        }
    assert tensors_of(found) == tensors_of(tensors)
    # By shardvar, one after the other and joined.
    sv.compact_deltas(deltas, path / "j")
    assert sv.verify(path / "j").ok
    for given_ in (deltas, path / "j"):
        # In a format without ties, each has its own bytes, and the report says so.
        for out, is_tied in (("c", True), ("e.npz", False)):
            report = sv.apply(path / "v0", given_, path / out, force=True)
            assert tensors_of(sv.load(path / out)) == tensors_of(tensors)
            told = ties_of(path / out) if is_tied else dict(report.untied)
            assert groups(tensors, told) == groups(tensors, ties)
            assert not (is_tied and report.untied)


def lie_about(deltas: list[Path], number: int, key: str, digest: str) -> None:
    """Let a delta give another digest of a tensor of its result, and the next one of its base."""
    for each, name in (
        (deltas[number], "result"),
        *((d, "base") for d in deltas[number + 1 :][:1]),
    ):

        def change(_tensors: Any, mark: Any, rows: Any, name: str = name) -> None:
            if key in rows:
                rows[key][name] = digest
            stated = {k: row[name] for k, row in rows.items() if row[name] is not None}
            mark[name] = digest_of_all(stated)

        rewrite_delta(each, change)


def outcome(act: Callable[[], Path]) -> Any:
    """The tensors of the checkpoint that is written, or the class of the error."""
    try:
        return tensors_of(sv.load(act()))
    except ShardvarError as error:
        return type(error)


@settings(deadline=None, max_examples=100 // stride(5))
@given(versions(), st.data())
def test_deltas_that_lie_are_not_joined_to_one_that_lies(
    tmp_path_factory: pytest.TempPathFactory, chain: Any, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("t")
    deltas = written(path, chain)
    number = data.draw(st.integers(0, len(deltas) - 1))
    key = data.draw(st.sampled_from([*chain[number + 1][0]]))
    what = data.draw(st.sampled_from(["digest", "digest", "mark", "tensor", "file"]))
    if what == "digest":
        lie_about(deltas, number, key, "ab" * 32)
    elif what == "mark":
        name = data.draw(st.sampled_from(["base", "result"]))
        rewrite_delta(deltas[number], lambda _, mark, __: mark.update({name: "0" * 64}))
    elif what == "tensor":
        place = data.draw(st.integers(0, 500))

        def change(tensors: Any, _mark: Any, _rows: Any) -> None:
            array = tensors[[*tensors][place % len(tensors)]].copy()
            octets = array.reshape(-1).view(np.uint8)
            octets[place % len(octets)] ^= 1
            tensors[[*tensors][place % len(tensors)]] = array

        rewrite_delta(deltas[number], change)
    else:
        [file] = path.glob(f"d{number + 1}.svdata*")
        flip(file, data.draw(st.integers(0, file.stat().st_size - 1)))
    there = {each.name for each in path.iterdir()}
    applied = outcome(lambda: path / sv.apply(path / "v0", deltas, path / "c").path)
    left = {each.name for each in path.iterdir()}
    assert isinstance(applied, dict) or left == there
    try:
        sv.compact_deltas(deltas, path / "j")
    except ShardvarError as error:
        # What only the join reads, ``verify`` calls damaged.
        assert type(error) is applied or not all(sv.verify(each).ok for each in deltas)
        assert {each.name for each in path.iterdir()} == left
    else:
        assert sv.verify(path / "j").ok
        again = outcome(lambda: path / sv.apply(path / "v0", path / "j", path / "e").path)
        assert again == applied


def test_the_result_has_the_nested_values_of_the_new_checkpoint(tmp_path: Path) -> None:
    tensors = {"model.0.a": np.zeros(90), "model.0.b": np.zeros(90)}
    paths = {"model.0.a": ("model", 0, "a"), "model.0.b": ("model", 0, "b")}
    for number in range(3):
        tensors["model.0.a"][number] = 1
        save_with(tmp_path / f"v{number}", tensors, paths=paths, form="torch")
        if number:
            sv.delta(tmp_path / f"v{number - 1}", tmp_path / f"v{number}", tmp_path / f"d{number}")
    deltas = [tmp_path / "d1", tmp_path / "d2"]
    sv.compact_deltas(deltas, tmp_path / "j")
    for number, each in enumerate((deltas, tmp_path / "j")):
        sv.apply(tmp_path / "v0", each, tmp_path / f"c{number}")
        with sv.open_checkpoint(tmp_path / f"c{number}") as reader:
            assert reader.format == "torch" and reader.metadata.paths == paths


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    """Two steps with a tied output layer, as a, b and the delta d."""
    old = np.arange(3 << 19, dtype=np.float32)
    new = old.copy()
    new[[5, 1 << 20]] = -1
    for name, array, step in (("a", old, 1), ("b", new, 2)):
        tensors = {"embed": array, "head": array, "step": np.int64(step)}
        save_with(tmp_path / name, tensors, {"head": "embed"})
    sv.delta(tmp_path / "a", tmp_path / "b", tmp_path / "d")
    return tmp_path


def test_a_tied_tensor_is_compared_and_stored_once(tied: Path) -> None:
    nbytes: list[int] = []
    report = sv.delta(tied / "a", tied / "b", tied / "e", progress=nbytes.append)
    assert sum(nbytes) == 2 * ((3 << 21) + 8)
    by_key = {each.key: each for each in report.tensors}
    assert by_key["head"].stored_nbytes == 0 and by_key["embed"].stored_nbytes > 0
    assert (by_key["head"].kind, by_key["head"].tie) == ("changed", "embed")
    with sv.open_checkpoint(tied / "e") as reader:
        assert {*reader} == {"table", "changed/embed", "whole/step"}
    result = sv.apply(tied / "a", tied / "d", tied / "c")
    assert result.nbytes == (3 << 21) + 8 and ties_of(tied / "c") == {"head": "embed"}
    # Its digests are the ones of any other copy.
    assert sv.digest(tied / "c").checkpoint == report.result


def test_pytorch_shares_the_storage_of_the_result(tied: Path) -> None:
    for name in "ab":
        sv.reshard(tied / name, tied / f"{name}.pt")
    report = sv.delta(tied / "a.pt", tied / "b.pt", tied / "e")
    assert {each.key: each.tie for each in report.tensors if each.tie} == {"head": "embed"}
    sv.apply(tied / "a.pt", tied / "e", tied / "c.pt")
    assert ties_of(tied / "c.pt") == {"head": "embed"}
    assert sv.diff(tied / "b.pt", tied / "c.pt").equal and sv.verify(tied / "c.pt").ok


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows["head"].update(tie=1),
        lambda rows: rows["embed"].update(tie="head"),
        lambda rows: rows["head"].pop("tie"),
        lambda rows: rows["embed"].update(kind="whole"),
        lambda rows: rows["head"].update(path=["layers", True]),
    ],
)
def test_a_tie_that_cannot_be_is_refused(tied: Path, change: Any) -> None:
    rewrite_delta(tied / "d", lambda _tensors, _mark, rows: change(rows))
    assert not sv.verify(tied / "d").ok
    with pytest.raises(CheckpointError):
        sv.apply(tied / "a", tied / "d", tied / "c")
    assert not [*tied.glob("c.*")]
