"""Distributed checkpoints that shardvar writes; ``spec_tests/peers`` lets torch itself read
them."""

import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import InvalidCheckpoint, MalformedCheckpoint, TargetExists
from shardvar.formats.torch.archive import frame_of
from shardvar.formats.torch.dcp import parse_metadata
from shardvar.formats.torch.values import DTYPES
from shardvar.layout.dtypes import ITEMSIZES, code
from shardvar.wire.opcode_writer import Instance, build_pickle
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.plain import Global
from spec_tests.helpers.format_protocol import GOLDEN

TENSORS: dict[str, Any] = {
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
    sv.save(tmp_path / "model.npz", TENSORS)
    sv.save(tmp_path / "ck", TENSORS, format="torch")
    for _ in range(2):
        before = written(tmp_path / "ck")
        with pytest.raises(TargetExists):
            sv.reshard(tmp_path / "model.npz", tmp_path / "ck", format="torch")
        assert written(tmp_path / "ck") == before
        (tmp_path / "ck" / ".metadata").unlink(missing_ok=True)
    sv.reshard(tmp_path / "model.npz", tmp_path / "ck", format="torch", force=True)
    assert sv.diff(tmp_path / "model.npz", tmp_path / "ck").equal


def test_pythons_zipfile_reads_every_item_and_agrees_with_its_checksums(tmp_path: Path) -> None:
    sv.save(tmp_path / "ck", TENSORS, format="torch", partition={"layer*": 2})
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
    sv.save(tmp_path / "ck", TENSORS, format="torch")
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
