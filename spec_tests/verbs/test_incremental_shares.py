"""Incremental saves by several processes: each piece that lies unchanged in the base is referred to,
whoever held it before, and everything else is written."""

import hashlib
import os
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
)
from shardvar.planning.index import EntryTable, concatenate_entries
from shardvar.testing.arrays import tilings
from shardvar.verbs.together import share_hashes
from shardvar.wire.crc import CRC32C
from spec_tests.helpers.damage import flip
from spec_tests.helpers.incremental_stage import are_equal, assert_whole, strays
from spec_tests.helpers.shared_saves import (
    given_as,
    save_all,
    save_one,
    shard_of,
)
from spec_tests.helpers.thoroughness import stride

LEAF = 1 << 20
MAKING = ("array", "columns", "lazy", "rows")


def entries_of(path: Path) -> tuple[EntryTable, list[str]]:
    """All entries of a checkpoint, and the names of its files."""
    with sv.open_checkpoint(path) as reader:
        return concatenate_entries(list(reader.index.scan())), list(reader.index.files)


def own_size(path: Path) -> int:
    """The elements of the slices that lie in the checkpoint's own files."""
    entries, files = entries_of(path)
    own = [name.startswith(f"{path.name}.svdata") for name in files]
    sizes = [entries.slices.region(row).size for row in range(len(entries))]
    return sum(
        size for size, file in zip(sizes, entries.file.tolist(), strict=True) if size and own[file]
    )


def octets_of(array: Any) -> bytes:
    return repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()


def regions_of(path: Path) -> set[tuple[str, str, tuple[int, ...], sv.Region]]:
    """The slices of a checkpoint."""
    slices = entries_of(path)[0].slices
    return {
        (each.key, each.dtype, each.full_shape, each.region)
        for each in (slices[row] for row in range(len(slices)))
    }


def assert_digests_are_of_the_payloads(path: Path) -> None:
    """By hashlib, of every slice that has one."""
    entries, files = entries_of(path)
    for row in range(len(entries)):
        digest = b"" if entries.digests is None else entries.digests[row].tobytes()
        if digest.strip(b"\0"):
            start, nbytes = int(entries.start[row]), int(entries.slices.nbytes[row])
            with (path.parent / files[entries.file[row]]).open("rb") as file:
                file.seek(start)
                data = file.read(nbytes)
            leaves = [
                hashlib.sha256(data[at : at + LEAF]).digest() for at in range(0, nbytes, LEAF)
            ]
            assert digest == hashlib.sha256(b"".join(leaves)).digest()


def changed_at(array: Any, at: int) -> Any:
    """Return an array with another element at a place."""
    changed = array.copy()
    if array.dtype.kind == "O":
        changed.flat[at] += b"x"
    else:
        changed.reshape(-1).view(np.uint8)[at * array.itemsize] ^= 1
    return changed


DTYPES = ("float32", "int8", "complex128", "bfloat16", "int4")


@st.composite
def trainings(draw: st.DrawFn) -> list[tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]]:
    """Draw steps of a training: the tensors of each, what each process holds of them, and options;
    some tensors change between two steps, some are cut in another way."""
    import ml_dtypes

    shapes = st.lists(st.integers(0, 6), max_size=3).map(tuple)
    tensors: dict[str, Any] = {"words": np.array([b"a", b""], object)}
    for key in "uvw":
        dtype = draw(st.sampled_from(DTYPES))
        kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
        tensors[key] = np.arange(np.prod(shape := draw(shapes))).astype(kind).reshape(shape)
    cuts: dict[str, list[sv.Region]] = {}
    steps = []
    for number in range(draw(st.integers(2, 4))):
        count = draw(st.integers(1, 3))
        shares: list[dict[str, Any]] = [{} for _ in range(count)]
        for key, array in tensors.items():
            if number and array.size and draw(st.booleans()):
                tensors = {**tensors, key: changed_at(array, draw(st.integers(0, array.size - 1)))}
            if key not in cuts or draw(st.integers(0, 2)) == 0:
                is_whole = key == "words" or draw(st.booleans())
                whole = [sv.Region.whole(array.shape)]
                cuts[key] = whole if is_whole else draw(tilings(array.shape))
            made = draw(st.sampled_from(MAKING))
            for part in cuts[key]:
                for process in draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=2)):
                    shard = given_as(shard_of(tensors[key], part), made)
                    shares[process].setdefault(key, []).append(shard)
        steps.append((tensors, shares, {"digest": draw(st.booleans())}))
    return steps


@settings(deadline=None, max_examples=30 // stride(3))
@given(steps=trainings())
def test_a_chain_of_saves_has_what_whole_saves_have_and_writes_what_has_changed(
    steps: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("run")
    before: dict[str, Any] | None = None
    for number, (tensors, shares, options) in enumerate(steps):
        path, older = place / f"step-{number}", place / f"step-{number - 1}"
        base = {} if before is None else {"base": older}
        save_all(path, shares, str(number), **options, **base)
        assert are_equal(sv.load(path), tensors)
        assert sv.verify(path).ok
        assert_digests_are_of_the_payloads(path)
        if options["digest"]:
            with sv.open_checkpoint(path) as reader:
                assert dict(reader.digests) == dict(sv.digest(path).tensors)
        if before is not None:
            known, changed = regions_of(older), 0
            for key, dtype, full, region in regions_of(path):
                new, old = tensors[key][region.slices], before[key]
                is_same = (key, dtype, full, region) in known and octets_of(
                    old[region.slices]
                ) == octets_of(new)
                changed += 0 if is_same else new.size
            assert own_size(path) == changed
        before = tensors
    model = {f"step-{number}": step[0] for number, step in enumerate(steps)}
    sv.reshard(place / f"step-{len(steps) - 1}", place / "whole")
    for number in range(len(steps) - 1):
        sv.remove(place / f"step-{number}")
        del model[f"step-{number}"]
        assert_whole(place, {**model, "whole": steps[-1][0]})
    assert strays(place) == set()
    sv.remove(place / f"step-{len(steps) - 1}")
    assert_whole(place, {"whole": steps[-1][0]})
    assert strays(place) == set()


def rows(array: Any, count: int) -> list[dict[str, Any]]:
    """What each of several processes holds of rows."""
    return [
        {"w": sv.LocalShard(array[start:stop], (start, 0), array.shape)}
        for start, stop in sv.div(len(array), count)
    ]


TABLE = np.arange(64, dtype=np.float32).reshape(16, 4)


def test_fewer_processes_refer_to_the_slices_of_many_and_more_write_theirs(tmp_path: Path) -> None:
    """A region that slices of the base tile is cut into them."""
    save_all(tmp_path / "a", rows(TABLE, 8), "1")
    save_all(tmp_path / "b", rows(TABLE, 2), "2", base=tmp_path / "a")
    assert own_size(tmp_path / "b") == 0
    changed = TABLE.copy()
    changed[5] = 0
    save_all(tmp_path / "c", rows(changed, 1), "3", base=tmp_path / "b")
    assert own_size(tmp_path / "c") == 2 * 4
    save_all(tmp_path / "d", rows(changed, 16), "4", base=tmp_path / "c")
    assert own_size(tmp_path / "d") == TABLE.size
    assert_whole(
        tmp_path, {"a": {"w": TABLE}, "b": {"w": TABLE}, "c": {"w": changed}, "d": {"w": changed}}
    )


@pytest.mark.parametrize("made", MAKING)
def test_pieces_of_many_leaves_and_runs_are_compared_whole(made: str, tmp_path: Path) -> None:
    """However their values are there, and wherever the element is that changes."""
    table = np.arange(5 * 231_000, dtype=np.float32).reshape(5, 231_000)
    changed = table.copy()
    changed[3, 230_999] = 0

    def shares(array: Any) -> list[dict[str, Any]]:
        return [{"w": given_as(each["w"], made)} for each in rows(array, 2)]

    save_all(tmp_path / "0", shares(table), "0")
    for number, array in enumerate((table, changed, changed, table), start=1):
        save_all(tmp_path / f"{number}", shares(array), "1", base=tmp_path / f"{number - 1}")
        assert_digests_are_of_the_payloads(tmp_path / f"{number}")
        assert are_equal(sv.load(tmp_path / f"{number}"), {"w": array})
    written = [own_size(tmp_path / f"{number}") for number in range(1, 5)]
    assert written == [0, 2 * 231_000, 0, 2 * 231_000]


def test_a_base_with_digests_is_not_read_and_one_without_is(tmp_path: Path) -> None:
    save_all(tmp_path / "a", rows(TABLE, 2), "1")
    sv.save(tmp_path / "whole", {"w": TABLE}, digest=True)
    read = share_hashes.open_native
    for target, base, count, expected in (
        ("b", "a", 2, 2),
        ("c", "b", 2, 0),
        ("d", "whole", 1, 0),
    ):
        with mock.patch.object(share_hashes, "open_native", wraps=read) as opened:
            save_all(tmp_path / target, rows(TABLE, count), target, base=tmp_path / base)
        assert opened.call_count == expected
        assert own_size(tmp_path / target) == 0


def test_equal_checksums_are_not_enough(tmp_path: Path) -> None:
    """Other bytes of the same CRC32C are written, whether the base has digests or not."""
    same = np.zeros((2, 64), np.uint8)
    # A multiple of the polynomial, whose bits go through the register from the lowest one on.
    bits = f"{0x11EDC6F41:033b}"
    other = same.copy()
    other[0, :5] = np.frombuffer(int(bits[::-1], 2).to_bytes(5, "little"), np.uint8)
    assert CRC32C.compute(same.data.cast("B")) == CRC32C.compute(other.data.cast("B"))
    save_all(tmp_path / "a", rows(same, 2), "1")
    save_all(tmp_path / "b", rows(same, 2), "2", base=tmp_path / "a")
    for base in "ab":
        save_all(tmp_path / "c", rows(other, 2), base, base=tmp_path / base)
        assert are_equal(sv.load(tmp_path / "c"), {"w": other})
        assert own_size(tmp_path / "c") == 64


def test_a_digest_that_lies_is_not_believed_without_the_checksums(tmp_path: Path) -> None:
    save_all(tmp_path / "a", rows(TABLE, 2), "1")
    lie = np.full((2, 32), 7, np.uint8)
    alike = share_hashes.entries_alike

    def lying(*arguments: Any) -> Any:
        from dataclasses import replace

        entries = alike(*arguments)
        return entries and replace(entries, digests=lie)

    with (
        mock.patch.object(share_hashes, "entries_alike", lying),
        mock.patch.object(share_hashes, "hash_of", lambda _octets: bytes([7]) * 32),
    ):
        save_all(tmp_path / "b", rows(TABLE + 1, 2), "2", base=tmp_path / "a")
    assert are_equal(sv.load(tmp_path / "b"), {"w": TABLE + 1})


def test_replicas_are_compared_by_the_process_that_writes_them(tmp_path: Path) -> None:
    shares = [{"w": TABLE, "n": np.array(3)}] * 3
    save_all(tmp_path / "a", shares, "1")
    save_all(tmp_path / "b", shares, "2", base=tmp_path / "a")
    assert own_size(tmp_path / "b") == 0
    mixed = [{"w": TABLE}, {"w": TABLE + 1}, {"w": TABLE}]
    with pytest.raises(CheckpointError, match="has other values in process 1"):
        save_all(tmp_path / "c", mixed, "3", base=tmp_path / "b")
    save_all(tmp_path / "c", mixed, "4", base=tmp_path / "b", replicas="first")
    assert are_equal(sv.load(tmp_path / "c"), {"w": TABLE})


def test_what_is_missing_in_the_base_is_written(tmp_path: Path) -> None:
    save_all(tmp_path / "a", rows(TABLE, 2), "1")
    _, files = entries_of(tmp_path / "a")
    os.truncate(tmp_path / files[0], 3)
    save_all(tmp_path / "b", rows(TABLE, 2), "2", base=tmp_path / "a")
    assert own_size(tmp_path / "b") == TABLE.size // 2
    assert are_equal(sv.load(tmp_path / "b"), {"w": TABLE})


def test_damage_in_bytes_that_are_compared_is_an_error_that_names_the_base(tmp_path: Path) -> None:
    save_all(tmp_path / "a", rows(TABLE, 2), "1")
    _, files = entries_of(tmp_path / "a")
    flip(tmp_path / files[0], 0)
    with pytest.raises(CorruptCheckpoint, match=r"a\.svindex.*'w'"):
        save_all(tmp_path / "b", rows(TABLE, 2), "2", base=tmp_path / "a")
    assert not (tmp_path / "b.svindex").exists()


# --- Errors


@pytest.mark.parametrize("digest", [False, True])
def test_processes_that_see_different_bases_are_refused(digest: bool, tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    save_all(a, rows(TABLE, 2), "1")
    save_all(b, rows(TABLE, 2), "1")
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    for first, second, words in (
        (a, b, "process 0 names the base 'a', and process 1 names the base 'b'"),
        (a, None, "process 0 names the base 'a', and process 1 names no base"),
        (None, b, "process 0 names no base, and process 1 names the base 'b'"),
    ):
        save_one(c, rows(TABLE, 2), 0, base=first, digest=digest)
        with pytest.raises(ArgumentError, match=words):
            save_one(c, rows(TABLE, 2), 1, base=second, digest=digest, commit=True, timeout=5)
        with pytest.raises(CheckpointNotFound):
            sv.load(c)
        sv.save(c, {})
        sv.remove(c)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


@pytest.mark.parametrize("event", ["replaced", "same", "removed", "removed before the commit"])
def test_a_base_that_changes_before_the_commit_is_found(event: str, tmp_path: Path) -> None:
    """Between two shares, or after the last one."""
    a, b = tmp_path / "a", tmp_path / "b"
    save_all(a, rows(TABLE, 2), "1")
    save_one(b, rows(TABLE, 2), 0, base=a)
    if is_late := event == "removed before the commit":
        save_one(b, rows(TABLE, 2), 1, base=a)
    if event.startswith("removed"):
        sv.remove(a)
    if event == "removed":
        sv.save(a, {"w": TABLE[:0]})
    elif not is_late:
        save_all(a, rows(TABLE + (event == "replaced"), 2), "2")
    with pytest.raises(CorruptCheckpoint, match=r"a\.svindex, to which .* was replaced or removed"):
        if is_late:
            sv.commit_shards(b, num_processes=2, run="1", timeout=1)
        else:
            save_one(b, rows(TABLE, 2), 1, base=a, commit=True, timeout=5)
    assert not (tmp_path / "b.svindex").exists()
    if not is_late:
        sv.remove(a)
    sv.save(b, {"w": TABLE})
    assert_whole(tmp_path, {"b": {"w": TABLE}})
    assert strays(tmp_path) == set()


def test_a_share_that_is_there_counts_only_with_the_same_base(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    save_all(a, rows(TABLE, 2), "1")
    for _ in range(2):
        save_one(b, rows(TABLE, 2), 0, base=a)
    with pytest.raises(ArgumentError, match="has saved already, and other values"):
        save_one(b, rows(TABLE, 2), 0)


def test_a_share_with_a_note_that_is_none_is_refused(tmp_path: Path) -> None:
    wrong = [None, [], ["../a", "0", []], ["a/b", "0", []], ["a", 1, []], [1, "0", []]]
    for values in [*wrong, *(["a", "0", numbers] for numbers in ([True], ["1"], 3))]:
        with pytest.raises((ValueError, TypeError, AttributeError)):
            share_hashes.BaseNote.of(values)
    assert share_hashes.BaseNote.of(["a", "0", [2]]) == ("a", "0", (2,))
