"""torch's checkpoints: the golden ones by torch, damaged ones through the verbs, and the parts alone.

Files in the form that ``torch.save`` had before version 1.6: the golden one was written by torch 2.13
with ``_use_new_zipfile_serialization=False``: views, tied and empty tensors, and objects."""

import pickle
import shutil
import tracemalloc
import zlib
from collections import Counter, OrderedDict, defaultdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.cli.main import main
from shardvar.errors import (
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    ShardvarError,
    UnsupportedError,
)
from shardvar.formats.files import DataFiles
from shardvar.formats.leaves import leaves_of
from shardvar.formats.torch.dcp import open_dcp, parse_metadata
from shardvar.formats.torch.source import Frames
from shardvar.formats.torch.values import STORAGES, is_tensor, plain_of, tensor_of
from shardvar.layout.region import Region
from shardvar.storage.local import LocalStorage
from shardvar.wire.damage import LEGACY_MAGIC
from shardvar.wire.opcode_writer import Call, build_pickle
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.plain import Global, Node, Reference
from spec_tests.helpers.damage import flip
from spec_tests.helpers.format_protocol import GOLDEN
from spec_tests.helpers.torch_files import save_pickled
from spec_tests.helpers.way_counts import entered

UNLIKE = "disagree with their CRC-32"
TENSOR = Node("torch._utils._rebuild_tensor_v2", ())


def test_a_single_checksum_that_is_0_is_a_wrong_one(tmp_path: Path) -> None:
    """Also where the elements can no longer be compared."""
    sv.save(tmp_path / "ck.pt", {"t": np.arange(4, dtype=np.int64)})
    file = tmp_path / "ck.pt"
    crc = zlib.crc32(sv.load(file)["t"].tobytes()).to_bytes(4, "little")
    assert file.read_bytes().count(crc) == 2
    file.write_bytes(file.read_bytes().replace(crc, bytes(4)))
    assert not sv.verify(file).ok


def damaged_views(folder: Path) -> Path:
    """Views of one storage, with its first bit changed: ``tail`` ends it and ``evens`` nearly
    reaches its end."""
    shutil.copy(GOLDEN / "torch_pt" / "shared_storage" / "x.pt", path := folder / "x.pt")
    flip(path, path.read_bytes().index(sv.load(path)["whole"].tobytes()))
    return path


def test_a_storage_is_compared_where_the_tensors_that_are_read_reach_over_all_of_it(
    tmp_path: Path,
) -> None:
    """A part of it is compared where that is asked for: by ``verify="full"``, by a reshard, and by
    show of a small tensor; a reader says what it did not compare."""
    path = damaged_views(tmp_path)
    for keys in (None, ["whole"], ["evens", "tail"], ["t", "again"]):
        with pytest.raises(CorruptCheckpoint, match=f"{UNLIKE}|do not have the checksum"):
            sv.load(path, keys)
    assert sv.load(path, ["head", "tail"])["tail"].shape == (10,)
    for keys in (["tail"], ["head", "tail"], ["t"]):
        with pytest.raises(CorruptCheckpoint, match=UNLIKE):
            sv.load(path, keys, verify="full")
        with pytest.raises(CorruptCheckpoint, match=UNLIKE):
            sv.reshard(path, tmp_path / "new", filter=keys)
        assert main(["show", str(path), keys[0]]) != 0
        with sv.open_checkpoint(path) as reader:
            values = reader.read(keys[0])
            assert reader.unverified == [(keys[0], Region.whole(values.shape))]
            with pytest.raises(CorruptCheckpoint):
                reader.read(keys[0], verify="full")


def test_every_tensor_in_a_damaged_storage_is_damaged(tmp_path: Path) -> None:
    """Nothing says which of its bytes are wrong, so no outcome is "ok", whether or not a tensor
    spans the storage."""
    spanned = damaged_views(tmp_path)
    shutil.copy(
        GOLDEN / "torch_pt" / "small_view_of_large_storage" / "x.pt", loose := tmp_path / "loose.pt"
    )
    values = np.arange(4000, 4100, dtype=np.float32).tobytes()
    # The checksum of the storage covers a view of a part of it.
    report = sv.verify(loose)
    assert report.ok and set(report.outcomes.values()) == {"ok"} and report.unguarded_nbytes == 0
    octets = loose.read_bytes()
    assert octets.count(values) == 1
    loose.write_bytes(octets.replace(values, bytes(400)))
    for path, right in ((spanned, set()), (loose, {"u"})):
        report = sv.verify(path)
        assert {key for key, outcome in report.outcomes.items() if outcome == "ok"} == right
        assert {damage.key for damage in report.damages} == report.outcomes.keys() - right
        assert {(damage.kind, damage.file) for damage in report.damages} == {
            ("CorruptCheckpoint", path.name)
        }


def test_a_dict_of_another_class_may_have_an_empty_key(tmp_path: Path) -> None:
    """As the root of a file, where a single value has that key too; that value is named."""
    path = save_pickled(tmp_path / "x.pt", defaultdict(int, {"": 7, "a": 8}))
    with pytest.raises(UnsupportedError, match="It is a value of the type int"):
        sv.load(save_pickled(tmp_path / "epoch.pt", 5))
    assert {key: value[()] for key, value in sv.load(path).items()} == {"": b"7", "a": b"8"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ((TENSOR, 1), "It is an object with a tensor in it."),
        (Global("torch.nn.Linear"), "refers to torch.nn.Linear, which shardvar does not import."),
        (Global("builtins.len"), "refers to builtins.len, which shardvar does not import."),
        ({Global("torch.strided"): 1}, "refers to torch.strided, which shardvar does not import."),
        (
            Node("builtins.range", (0, 3, 1)),
            "of the class builtins.range, .* Save what it holds as",
        ),
        (Node("numpy._core.multiarray.scalar", ()), r"tensor: `torch.as_tensor\(value\)`."),
        (Reference(("storage", Global("torch.FloatStorage"), "0", "cpu", 4)), "without a tensor."),
    ],
)
def test_an_object_that_is_not_plain_is_refused_for_what_it_is(value: Any, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        plain_of(value)


def test_the_shape_of_a_tensor_without_elements_is_that_of_its_item(tmp_path: Path) -> None:
    """It has no bytes that a checksum could cover: a changed extent anywhere in the index is a
    fault all the same."""
    shutil.copytree(GOLDEN / "torch_dcp" / "scalars_empties" / "ckpt", tmp_path / "ck")
    index = tmp_path / "ck" / ".metadata"
    octets = index.read_bytes()
    shape = b"K\x00K\x03\x86"
    places = [place for place in range(len(octets)) if octets.startswith(shape, place)]
    assert len(places) == 2, "the full shape, and that of the slice"
    for place in places:
        index.write_bytes(
            octets[:place] + shape.replace(b"\x03", b"\x01") + octets[place + len(shape) :]
        )
        assert sv.verify(tmp_path / "ck").outcomes["empty03"] == "damaged"
        with pytest.raises(ShardvarError):
            sv.load(tmp_path / "ck", ["empty03"])


def test_opening_reads_no_item_and_a_key_reads_its_own() -> None:
    source = open_dcp(LocalStorage(str(GOLDEN / "torch_dcp" / "base" / "ckpt")), ".metadata")
    assert not source.views and not source.payloads
    source.index.find("v")
    assert len(source.views) == 1 and not source.payloads
    source.close()


@pytest.mark.parametrize(
    "case", ["rows9_ranks2", "fsdp2_adamw_bf16_3_ranks", "bit_in_values", "item_rezipped"]
)
def test_a_frame_that_is_like_another_is_read_like_one_that_is_not(case: str) -> None:
    """The template of a frame skips most of the work, whose result is known, and changes nothing."""
    storage = LocalStorage(str(GOLDEN / "torch_dcp" / case / "ckpt"))
    source = open_dcp(storage, ".metadata")
    index: Any = source.index
    items = parse_metadata((GOLDEN / "torch_dcp" / case / "ckpt" / ".metadata").read_bytes())
    data = DataFiles(storage, index.files)
    places = [
        (int(index.file[row]), item.start, item.nbytes, (index.slices.dtype(row), item.shape))
        for row, item in enumerate(items.rows)
        if index.slices.dtype(row) != "string"
    ]

    def views(frames: Frames) -> list[Any]:
        return [frames.read_tensor(*place) for place in places]

    fast, plain = Frames(data), Frames(data, uses_templates=False)
    assert views(fast) == views(plain)
    few, many = (sum(entered(partial(views, each)).values()) for each in (fast, plain))
    assert few < many / 2
    source.close()


def test_keys_are_those_of_torch() -> None:
    """Dicts of every kind of the standard library are entered, however they are pickled: the items
    of a counter are its argument, those of the others are set afterwards."""
    value = {"a": [TENSOR, 1], "b": {0: 1, "0": 2}, "c": [1, [2, [3]]], "d": [{}, []], "e": {}}
    leaves, clashes = leaves_of(value, is_tensor)
    assert list(leaves) == ["a.0", "a.1", "b.0", "c", "d.1"] and clashes == {"b.0"}
    kinds: list[Any] = [Counter(a=2, b=1), OrderedDict(a=2, b=1), defaultdict(int, a=2, b=1)]
    for each, protocol in product(kinds, (2, 4)):
        tree = {"c": parse_pickle(pickle.dumps(each, protocol))[0]}
        assert leaves_of(tree, is_tensor)[0] == {"c.a": 2, "c.b": 1}


def test_a_key_has_the_text_that_torch_gives_it_and_a_dict_with_another_is_an_object() -> None:
    """Its tensors are not read then, and all others are."""
    named = {(1, "a"): 1, b"b": 2, None: 3}
    assert leaves_of(named, is_tensor)[0] == {"(1, 'a')": 1, "b'b'": 2, "None": 3}
    for key in (Global("torch.float32"), Node("m.Color", (1,)), ((1, 2), 3), 1 << 65, ("a" * 257,)):
        for other in ({key: 1}, defaultdict_of(key)):
            leaves, _ = leaves_of({"a": {"b": 1}, "c": other}, is_tensor)
            assert list(leaves) == ["a.b", "c"] and leaves["c"] is other


def defaultdict_of(key: Any) -> Node:
    node = Node("collections.defaultdict", ())
    node.items = [key, 1]
    return node


def test_a_call_of_what_has_no_name_is_refused() -> None:
    """A pickle can call any value, also one that has no hash."""
    nameless, wrapper = Node({"a": 1}, ()), "torch._utils._rebuild_parameter"
    with pytest.raises(ShardvarError):
        plain_of([nameless])
    for tensor in (
        Node(wrapper, (nameless,)),
        Node(
            "torch._tensor._rebuild_from_type_v2",
            (Global("torch._utils._rebuild_tensor_v2"), nameless, (), {}),
        ),
    ):
        with pytest.raises(ShardvarError):
            tensor_of(tensor)


def test_a_value_that_is_too_deep_or_too_wide_is_refused_and_not_followed() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(UnsupportedError, match="nested deeper"):
        plain_of(nested)
    wide: list[Any] = [1] * 1000
    for _ in range(40):
        wide = [wide] * 1000
    with pytest.raises(UnsupportedError):
        plain_of(wide)


def test_a_key_is_looked_up_without_memory_for_all_others(tmp_path: Path) -> None:
    """``verify`` asks for every key by itself, which took the square of their number."""
    sv.save(
        tmp_path / "ck",
        {f"w{number}": np.ones(2, np.float32) for number in range(2_000)},
        format="torch",
    )
    with sv.open_checkpoint(tmp_path / "ck") as reader:
        assert (
            not reader.faults and "w6" not in reader.index.faults
        )  # all items are read, and looked up once
        tracemalloc.start()
        try:
            assert reader.source.is_guarded("w7")  # type: ignore[attr-defined]  # of this format's source
            assert reader.index.faults.get("w7") is None
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 30_000


FILE = GOLDEN / "torch_legacy" / "small.pt"
W = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_the_values_are_the_ones_that_torch_saved(tmp_path: Path) -> None:
    found = sv.load(FILE)
    np.testing.assert_array_equal(found["w"], W)
    np.testing.assert_array_equal(found["tied"], W)
    np.testing.assert_array_equal(found["b"], [True, False])
    np.testing.assert_array_equal(found["view"], [2, 3, 4])
    np.testing.assert_array_equal(found["t"], np.arange(6, dtype=np.int16).reshape(2, 3).T)
    assert found["e"].shape == (0, 2)
    assert (found["p"].dtype.name, found["p"].astype(float).tolist()) == ("bfloat16", [1, 1])
    assert found["args"].item() == b"Namespace(a=1)" and found["lr"].item() == b"np.float64(0.5)"
    with sv.open_checkpoint(FILE) as reader:
        np.testing.assert_array_equal(reader["w"][1, :2], W[1, :2])
    sv.reshard(FILE, tmp_path / "new.pt")
    assert sv.diff(FILE, tmp_path / "new.pt").equal


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    data, path = FILE.read_bytes(), tmp_path / "x.pt"
    for stop in range(0, len(data), 7):
        path.write_bytes(data[:stop])
        with pytest.raises(ShardvarError):
            sv.load(path)


def old_file(
    path: Path,
    keys: object = ("0",),
    version: object = 1001,
    view: object = None,
    count: int = 6,
    stored: int = 6,
    more: bytes = b"",
    little: object = True,
) -> Path:
    """Write a file of one tensor of 6 float32 by hand."""
    kind = Global(next(name for name, dtype in STORAGES.items() if dtype == "float32"))
    storage = Reference(("storage", kind, "0", "cpu", count, view))
    args = (storage, 0, (2, 3), (3, 1), False, Call("collections.OrderedDict", ()))
    pickles = [
        version,
        {"protocol_version": 1001, "little_endian": little, "type_sizes": {}},
        {"w": Call("torch._utils._rebuild_tensor_v2", args)},
        [*keys] if isinstance(keys, tuple) else keys,
    ]
    order = "<" if little is True else ">"
    head = LEGACY_MAGIC + b"".join(map(build_pickle, pickles))
    payload = np.array(stored, f"{order}i8").tobytes() + W.astype(f"{order}f4").tobytes()
    path.write_bytes(head + payload + more)
    return path


@pytest.mark.parametrize("little", [True, False])
def test_a_file_written_by_hand_is_read_in_both_orders_of_bytes(
    little: bool, tmp_path: Path
) -> None:
    np.testing.assert_array_equal(sv.load(old_file(tmp_path / "x.pt", little=little))["w"], W)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"keys": ()}, InvalidCheckpoint),
        ({"keys": ("0", "0")}, ShardvarError),
        ({"keys": ("0", "1")}, ShardvarError),
        ({"keys": 5}, ShardvarError),
        ({"keys": "0"}, ShardvarError),
        ({"version": 1002}, UnsupportedError),
        ({"version": [1001]}, UnsupportedError),
        ({"little": 1}, UnsupportedError),
        ({"view": ("1", 0, 6)}, UnsupportedError),
        ({"stored": 5}, InvalidCheckpoint),
        ({"stored": -1}, InvalidCheckpoint),
        ({"count": 7, "stored": 7}, IncompleteCheckpoint),
        ({"count": 2**60, "stored": 2**60}, ShardvarError),
        ({"count": -1}, ShardvarError),
        ({"more": b"x"}, InvalidCheckpoint),
    ],
)
def test_storages_that_do_not_fit_the_file_are_refused(
    changes: dict[str, object], error: type[ShardvarError], tmp_path: Path
) -> None:
    with pytest.raises(error):
        sv.load(old_file(tmp_path / "x.pt", **changes))  # type: ignore[arg-type]
