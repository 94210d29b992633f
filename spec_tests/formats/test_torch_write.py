"""Files of torch.save and distributed checkpoints that shardvar writes; ``spec_tests/peers`` lets torch
itself read them."""

import codecs
import math
import pickle
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import InvalidCheckpoint, MalformedCheckpoint, TargetExists, UnsupportedError
from shardvar.formats.torch import saved
from shardvar.formats.torch.archive import frame_of, open_archive, tensor_call
from shardvar.formats.torch.dcp import parse_metadata
from shardvar.formats.torch.values import DTYPES, tensor_of
from shardvar.layout.dtypes import ITEMSIZES, code
from shardvar.wire.opcode_writer import Call, Instance, build_pickle
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.plain import Global, Node
from spec_tests.helpers.format_protocol import GOLDEN
from spec_tests.helpers.torch_files import write_torch

TENSORS: dict[str, Any] = {
    "layer.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "layer": np.arange(5, dtype=np.uint16),
    "naïve ✓": np.array(7, np.int64),
    "": np.zeros((0, 3), np.bool),
}
READABLE = {
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch.storage.UntypedStorage",
}
"""The names, with those of dtypes and their storages, that ``torch.load(weights_only=True)``
takes."""


class _Inert(pickle.Unpickler):
    """Python's own reader of pickles, with None in the place of every tensor."""

    def find_class(self, module: str, name: str) -> Any:
        return codecs.encode if (module, name) == ("_codecs", "encode") else lambda *_: None

    def persistent_load(self, pid: Any) -> None:
        return None


def test_plain_objects_of_a_distributed_checkpoint_are_values_of_the_file(tmp_path: Path) -> None:
    """As Python's pickle gives them back."""
    source = GOLDEN / "torch_dcp" / "nested_and_objects" / "ckpt"
    sv.reshard(source, tmp_path / "x.pt")
    assert sv.diff(source, tmp_path / "x.pt").equal
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        values = _Inert(archive.open("archive/data.pkl")).load()
    assert values["epoch"] == 3 and values["name"] == "naïve ✓" and values["raw"] == b"\x00\xff"
    assert (
        values["optim.groups.0.betas"] == (0.9, 0.99)
        and values["nothing"] is None
        and values["big"] == 2**70
    )
    assert "model.weight" not in values or values["model.weight"] is None
    # Without a tensor, a file is its frame alone.
    write_torch(tmp_path / "set.pt", {"kept": -math.inf, "seen": Call("builtins.range", (1, 2, 1))})
    sv.reshard(tmp_path / "set.pt", tmp_path / "y.pt", filter="kept")
    assert sv.load(tmp_path / "y.pt")["kept"][()] == b"-inf"


def test_pythons_zipfile_reads_the_file_and_agrees_with_every_checksum(tmp_path: Path) -> None:
    sv.save(tmp_path / "x.pt", TENSORS)
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        assert archive.testzip() is None
        folder = "archive/"
        assert [name.removeprefix(folder) for name in archive.namelist()] == [
            "data.pkl",
            "byteorder",
            *(f"data/{number}" for number in range(len(TENSORS))),
            "version",
        ]
        assert archive.read(folder + "data/0") == TENSORS["layer.0.weight"].tobytes()
        assert (archive.read(folder + "version"), archive.read(folder + "byteorder")) == (
            b"3\n",
            b"little",
        )


@pytest.mark.parametrize("name", ["x.pt", "folder"])
def test_payloads_begin_at_multiples_of_64_and_are_mapped(name: str, tmp_path: Path) -> None:
    sv.save(tmp_path / name, TENSORS, format="torch" if name == "folder" else None)
    with sv.open_checkpoint(tmp_path / name) as reader:
        entries = reader.entries()
        assert entries.plain.all() and not (entries.start % 64).any()


def test_the_pickle_names_nothing_but_tensors(tmp_path: Path) -> None:
    dtypes = {name: np.zeros(2, name) for name in DTYPES.values() if hasattr(np, name)}
    sv.save(tmp_path / "x.pt", dtypes)
    octets = (tmp_path / "x.pt").read_bytes()
    names: list[str] = []
    pickle = open_archive(
        lambda start, nbytes: octets[start : start + nbytes], 0, len(octets)
    ).content("data.pkl", 1 << 20)
    parse_pickle(pickle, names.append)
    others = set(names) - READABLE - DTYPES.keys()
    assert (
        all(name.startswith("torch.") and name.endswith("Storage") for name in others)
        and pickle[1] == 2
    )


@given(st.sampled_from(sorted(DTYPES.values())), st.lists(st.integers(0, 4), max_size=4).map(tuple))
def test_a_tensor_that_is_described_is_the_one_that_is_read(
    dtype: str, shape: tuple[int, ...]
) -> None:
    """Law: ``tensor_of(tensor_call(dtype, shape, number))`` is contiguous, of that dtype and shape,
    and all of it."""
    node, _ = parse_pickle(build_pickle(tensor_call(dtype, shape, 7)))
    assert type(node) is Node
    tensor = tensor_of(node)
    assert (tensor.dtype, tensor.shape, tensor.offset, tensor.record) == (dtype, shape, 0, "data/7")
    assert tensor.is_contiguous and tensor.storage_nbytes == tensor.count * tensor.itemsize


@pytest.mark.parametrize(
    ("name", "form", "written"),
    [
        ("x.pt", None, "x.pt"),
        ("x.pth", None, "x.pth"),
        ("x", "pt", "x.pt"),
        ("x.bin", "pt", "x.bin"),
    ],
)
def test_a_file_is_named_as_it_was_asked_for(
    name: str, form: str | None, written: str, tmp_path: Path
) -> None:
    for _ in range(2):
        sv.save(tmp_path / name, TENSORS, format=form, force=True)
        assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == [
            written
        ]
    assert sv.load(tmp_path / name).keys() == TENSORS.keys()


def test_the_name_of_an_index_and_more_tensors_than_a_pickle_may_describe_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnsupportedError, match="index of a set"):
        sv.save(tmp_path / "x.bin.index.json", TENSORS)
    monkeypatch.setattr(f"{saved.__name__}.MAX_PICKLE_NBYTES", 300)
    with pytest.raises(UnsupportedError, match="MAX_PICKLE_NBYTES"):
        sv.save(tmp_path / "x.pt", TENSORS)
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == []


STATE: dict[str, Any] = {
    "layer.0.weight": np.arange(28, dtype=np.float32).reshape(7, 4),
    "steps": np.arange(5, dtype=np.uint16),
    "naïve ✓": np.array(7, np.int64),
    "empty": np.zeros((0, 3), np.bool),
}


def written(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize(("other", "is_cut_otherwise"), [((4, 4), True), ((4, 6), False)])
def test_an_item_of_another_extent_along_one_axis_names_fsdp_over_tensor_parallelism(
    other: tuple[int, int], is_cut_otherwise: bool, tmp_path: Path
) -> None:
    """torch writes such items where FSDP2 cuts what tensor parallelism has cut unevenly, and no
    copy is at fault."""
    for name, shape in (("ck", (6, 4)), ("other", other)):
        sv.save(tmp_path / name, {"t": np.zeros(shape, np.int8)}, format="torch", partition=2)
    (file,), (data,) = ((tmp_path / name).glob("*.distcp") for name in ("ck", "other"))
    file.write_bytes(data.read_bytes())
    with pytest.raises(
        InvalidCheckpoint, match=r"holds int8\[2, .\], but the index says int8\[3, 4\]"
    ) as caught:
        sv.load(tmp_path / "ck")
    assert ("FSDP2 over tensor parallelism" in caught.value.remedy) == is_cut_otherwise


def test_reshard_replaces_a_folder_only_if_it_is_told_to(tmp_path: Path) -> None:
    """A folder with data files and without an index too: they may be all that is left."""
    sv.save(tmp_path / "model.npz", STATE)
    sv.save(tmp_path / "ck", STATE, format="torch")
    for _ in range(2):
        before = written(tmp_path / "ck")
        with pytest.raises(TargetExists):
            sv.reshard(tmp_path / "model.npz", tmp_path / "ck", format="torch")
        assert written(tmp_path / "ck") == before
        (tmp_path / "ck" / ".metadata").unlink(missing_ok=True)
    sv.reshard(tmp_path / "model.npz", tmp_path / "ck", format="torch", force=True)
    assert sv.diff(tmp_path / "model.npz", tmp_path / "ck").equal


def test_pythons_zipfile_reads_every_item_and_agrees_with_its_checksums(tmp_path: Path) -> None:
    sv.save(tmp_path / "ck", STATE, format="torch", partition={"layer*": 2})
    with sv.open_checkpoint(tmp_path / "ck") as reader:
        assert reader.metadata.description
    items = parse_metadata((tmp_path / "ck" / ".metadata").read_bytes())
    for file, start, nbytes in items.places:
        item = (tmp_path / "ck" / file).read_bytes()[start : start + nbytes]
        with zipfile.ZipFile(BytesIO(item)) as archive:
            assert archive.testzip() is None and archive.read("archive/byteorder") == b"little"


def test_objects_are_carried_as_they_are_and_keep_their_places_in_nested_values(
    tmp_path: Path,
) -> None:
    """Byte for byte, under new names too; keys that keep their names keep the paths that lead to
    them."""
    source = GOLDEN / "torch_dcp" / "nested_and_objects" / "ckpt"
    report = sv.reshard(source, tmp_path / "ck", format="torch", rename={"epoch": "round"})
    assert report.num_objects > 0 and report.num_tensors + report.num_objects == len(
        sv.load(source)
    )
    old, new = (
        {key: array[()] for key, array in sv.load(path).items()}
        for path in (source, tmp_path / "ck")
    )
    assert new.pop("round") == old.pop("epoch") == b"3"
    assert new.keys() == old.keys() and all(np.array_equal(new[key], old[key]) for key in old)
    with sv.open_checkpoint(source) as before, sv.open_checkpoint(tmp_path / "ck") as after:
        keys = {"name", "raw", "optim.groups.0.betas"}
        assert before.source.objects(keys, "torch") == after.source.objects(keys, "torch")  # type: ignore[attr-defined]
        assert before.source.objects(keys, "torch").keys() == keys  # type: ignore[attr-defined]
        paths = dict(before.metadata.paths)
        assert paths.pop("epoch") == ("epoch",) and after.metadata.paths == paths | {
            "round": ("round",)
        }


@pytest.mark.parametrize("packed", [b"\0" * 5, b"\0" * 4 * 1000, "text", [1, 2], {"a": 1}, 7, None])
def test_checksums_of_the_index_that_are_not_its_items_are_refused(
    packed: Any, tmp_path: Path
) -> None:
    """Of another size, too many for the items, or of another type; an attribute that is not a dict
    says nothing."""
    sv.save(tmp_path / "ck", STATE, format="torch")
    root, _ = parse_pickle((tmp_path / "ck" / ".metadata").read_bytes())
    state = {key: value for key, value in root.state.items() if key in ("version", "planner_data")}
    empty = {"state_dict_metadata": {}, "storage_data": {}}
    name = "torch.distributed.checkpoint.metadata.Metadata"
    inside, instead = (
        build_pickle(Instance(name, state | empty | {"shardvar": value}), 4)
        for value in ({"crc32": packed}, packed)
    )
    with pytest.raises(MalformedCheckpoint, match="not as many as its items"):
        parse_metadata(inside)
    assert parse_metadata(instead).facts == []


def test_an_item_of_the_index_that_is_no_record_is_refused() -> None:
    """Whatever value stands where the key or the place of an item belongs."""
    module = "torch.distributed.checkpoint"
    key = Instance(f"{module}.metadata.MetadataIndex", {"fqn": "a", "offset": None, "index": None})
    about = {"relative_path": "__0_0.distcp", "offset": 0, "length": 4}
    place = Instance(f"{module}.filesystem._StorageInfo", about)
    for wrong in (Global("torch.float32"), 7, "text", None, (1, 2), b"raw"):
        for stored in ({wrong: place}, {key: wrong}):
            state = {"state_dict_metadata": {}, "storage_data": stored}
            root = Instance(f"{module}.metadata.Metadata", state)
            with pytest.raises(MalformedCheckpoint, match="lacks its key or its place"):
                parse_metadata(build_pickle(root, 4))


def test_an_object_that_would_run_code_is_not_carried(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match="would call builtins.eval"):
        sv.reshard(GOLDEN / "torch_dcp" / "run_in_object" / "ckpt", tmp_path / "ck", format="torch")
    assert not (tmp_path / "ck").exists()


@given(st.sampled_from(sorted(DTYPES.values())), st.lists(st.integers(0, 1 << 40), max_size=5))
def test_an_item_is_aligned_at_both_ends_whatever_its_tensor(dtype: str, shape: list[int]) -> None:
    """Also one of terabytes, whose sizes need the wide fields of a zip."""
    if np.prod([float(extent) for extent in shape]) < 1 << 56:
        frame = frame_of(dtype, tuple(shape))
        nbytes = int(np.prod(shape, dtype=np.int64)) * int(ITEMSIZES[code(dtype)])
        assert frame.head_nbytes % 64 == 0 == (frame.head_nbytes + nbytes + frame.tail_nbytes) % 64
