"""Zarr groups and checkpoints of Orbax: the parts; groups that lost something, and oddities of the
real writers: what is missing is named."""

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    CheckpointError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MissingFile,
    ShardvarError,
    UnsupportedError,
)
from shardvar.formats.zarr.source import Ahead, Band
from shardvar.wire.crc import CRC32C
from shardvar.wire.zarr_metadata import parse_array
from spec_tests.helpers.format_protocol import GOLDEN
from spec_tests.helpers.golden_verdicts import read_all
from spec_tests.hostile.zarr import BYTES, described_v2, described_v3, grid, leaf


def make(folder: Path, files: dict[str, Any]) -> Path:
    """Write files, of which those that are dicts are JSON."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {"title": "é", "n": [1]}}
HALVES = {"t/c/0": np.float32([1, 2]).tobytes(), "t/c/1": np.float32([3, 4]).tobytes()}


def test_raw_chunks_are_read_in_place_and_mapped_and_cut_at_the_end(tmp_path: Path) -> None:
    """Without TensorStore. A chunk that reaches beyond the array is a prefix of its file on the
    first axis, and on others it is decoded."""
    second = described_v3(shape=[2, 3], chunk_grid=grid(2, 2))
    blocks = np.float32([[1, 2, 3, 0], [4, 5, 6, 0]])
    files = {
        "u/c/0/0": np.ascontiguousarray(blocks[:, :2]).tobytes(),
        "u/c/0/1": blocks[:, 2:].copy().tobytes(),
    }
    described = {"t/zarr.json": described_v3(shape=[3]), "u/zarr.json": second}
    path = make(tmp_path / "g", {"zarr.json": GROUP, **described, **HALVES, **files})
    with sv.open_checkpoint(path) as reader:
        assert reader.metadata.user == {"title": "é", "n": "[1]"}
        assert reader.read("t").tolist() == [1, 2, 3]
        assert reader.read("t", np.s_[1:3]).tolist() == [2, 3]
        assert reader.read("u").tolist() == [[1, 2, 3], [4, 5, 6]]
        assert reader.entries().plain.tolist() == [True, True, True, False]
    assert sv.load(path, ["t"], mmap=True)["t"].tolist() == [1, 2, 3]


def test_without_a_fill_value_zeros_stand_for_an_absent_chunk(tmp_path: Path) -> None:
    """In version 2, where zarr-python omits chunks of zeros then; version 3 always has one, or it
    is damaged."""
    path = make(
        tmp_path / "g",
        {".zgroup": {"zarr_format": 2}, "t/.zarray": described_v2(), "t/0": HALVES["t/c/0"]},
    )
    assert sv.load(path)["t"].tolist() == [1, 2, 0, 0]
    said = ": 1 of 2 chunks are absent; there is no fill value, and zeros stand for them."
    assert sv.verify(path).notes == (f"t{said}",)
    assert sv.verify(path / "t").notes == (f".{said}",)  # the folder is the array
    files = {
        "zarr.json": GROUP,
        "t/zarr.json": described_v3(fill_value=None),
        "t/c/0": HALVES["t/c/0"],
    }
    with pytest.raises(IncompleteCheckpoint, match="'c/1', one of 2, is missing"):
        sv.load(make(tmp_path / "v3", files))


def test_symbolic_links_to_folders_are_not_entered(tmp_path: Path) -> None:
    make(tmp_path / "outside", {"t/zarr.json": described_v3(), **HALVES})
    path = make(tmp_path / "g", {"zarr.json": GROUP})
    (path / "link").symlink_to(tmp_path / "outside" / "t")
    (path / "circle").symlink_to(path)
    assert sv.load(path) == {}


def test_chunks_that_are_decoded_ahead_are_those_that_are_asked_for() -> None:
    """In any order, some never, and an error only where its own chunk is asked for."""
    begun: list[int] = []
    error = IncompleteCheckpoint("The third is missing.", "Look for it.")

    def start(bands: Sequence[Band]) -> list[Any]:
        begun.extend(band[0] for band in bands)
        return [error if band[0] == 3 else band[0] * 10 for band in bands]

    ahead = Ahead(start)
    ahead.expect([((number, 0, 1), 1 << 25) for number in range(8)])
    assert ahead.take((0, 0, 1)) == 0 and begun == [0, 1, 2]
    assert ahead.take((1, 0, 1)) == 10 and begun == [0, 1, 2, 3]
    assert ahead.take((2, 0, 1)) == 20
    with pytest.raises(IncompleteCheckpoint, match="third"):
        ahead.take((3, 0, 1))
    assert (
        ahead.take((6, 0, 1)) == 60 and ahead.take((0, 0, 1)) == 0 and ahead.take((9, 0, 1)) == 90
    )
    assert begun.count(6) == 1


def test_chunks_of_a_bucket_are_begun_together() -> None:
    """As many as there is room for, once none is left of those before; what was given up is begun
    again."""
    calls: list[list[int]] = []

    def start(bands: Sequence[Band]) -> list[Any]:
        calls.append([band[0] for band in bands])
        return [band[0] * 10 for band in bands]

    ahead = Ahead(start, is_batched=True)
    ahead.expect([((number, 0, 1), 1 << 25) for number in range(5)])
    assert [ahead.take((number, 0, 1)) for number in (0, 1, 3, 2)] == [0, 10, 30, 20]
    assert calls == [[0, 1], [3, 4], [2]]
    ahead.expect([((number, 0, 1), 8) for number in range(5000)])
    assert [ahead.take((number, 0, 1)) for number in range(5000)] == [*range(0, 50000, 10)]
    assert [len(call) for call in calls[3:]] == [4096, 904]


# --- Orbax


def orbax(folder: Path, leaves: list[dict[str, Any]], files: dict[str, Any], **fields: Any) -> Path:
    tree = {
        "tree_metadata": {str(number): each for number, each in enumerate(leaves)},
        "use_ocdbt": False,
    }
    return make(folder, {"_METADATA": tree | fields, **files})


ARRAY = {"a.t/.zarray": described_v2(), "a.t/0": HALVES["t/c/0"], "a.t/1": HALVES["t/c/1"]}


def test_keys_are_paths_joined_by_dots(tmp_path: Path) -> None:
    path = orbax(
        tmp_path / "ck", [leaf("a", "t"), leaf("n", kind="None")], ARRAY, custom_metadata={"run": 7}
    )
    assert sv.load(path)["a.t"].tolist() == [1, 2, 3, 4]
    with sv.open_checkpoint(path) as reader:
        assert reader.metadata.user == {"run": "7"} and reader.format == "orbax"
    assert sv.verify(path).notes == ("n: It is an empty leaf (None) and has no array.",)


def test_an_array_in_folders_of_folders_is_inside(tmp_path: Path) -> None:
    """Haiku's modules have names like "linear/~/w"."""
    files = {f"a/~/{name.partition('/')[2]}": octets for name, octets in ARRAY.items()}
    assert sv.load(orbax(tmp_path / "ck", [leaf("a/~")], files))["a/~"].tolist() == [1, 2, 3, 4]


def test_a_step_of_a_manager_means_its_items(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "orbax" / "manager_step_20" / "ckpt" / "20", tmp_path / "20")
    assert sv.load(tmp_path / "20").keys() == {"w"}
    shutil.copytree(tmp_path / "20" / "state", tmp_path / "20" / "other")
    with pytest.raises(ShardvarError, match="may mean"):
        sv.load(tmp_path / "20")
    assert sv.load(tmp_path / "20" / "other").keys() == {"w"}


def test_a_database_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    """At one path, in one process; a reader of the old one says so, or gives its values."""
    for case in ("dtypes", "mesh_2x2x2", "dtypes"):
        shutil.rmtree(tmp_path / "ck", ignore_errors=True)
        shutil.copytree(GOLDEN / "orbax" / case / "ckpt", tmp_path / "ck")
        right = sv.load(GOLDEN / "orbax" / case / "ckpt")
        assert all(
            array.tobytes() == right[key].tobytes()
            for key, array in sv.load(tmp_path / "ck").items()
        )
    with sv.open_checkpoint(tmp_path / "ck") as reader:
        shutil.rmtree(tmp_path / "ck")
        shutil.copytree(GOLDEN / "orbax" / "mesh_2x2x2" / "ckpt", tmp_path / "ck")
        try:
            assert np.array_equal(reader.read("int8"), right["int8"])
        except CheckpointError as error:
            assert "replaced" in str(error)


def test_leaves_without_arrays_need_no_database(tmp_path: Path) -> None:
    """Orbax makes none for strings and None alone, though the index says that arrays are in one."""
    kinds = {"s": "string", "n": "None", "w": "jax.Array"}
    leaves = {key: leaf(key, kind=kind) for key, kind in kinds.items()}
    tree = {"tree_metadata": leaves, "use_ocdbt": True, "use_zarr3": False}
    files = {"_METADATA": tree, "_strings.json": {"s": "text"}}
    with pytest.raises(MissingFile, match=r"manifest\.ocdbt"):
        sv.load(make(tmp_path / "arrays", files))
    del leaves["w"]
    assert {key: value[()] for key, value in sv.load(make(tmp_path / "none", files)).items()} == {
        "s": b"text"
    }
    assert sv.verify(tmp_path / "none").ok


def group_v2(**changed: Any) -> dict[str, Any]:
    """A group of version 2 with the arrays ``a`` and ``b``, and consolidated metadata."""
    nodes = {"a/.zarray": described_v2(), "b/.zarray": described_v2(shape=[0])}
    consolidated = {"zarr_consolidated_format": 1, "metadata": nodes}
    chunks = {"a/0": HALVES["t/c/0"], "a/1": HALVES["t/c/1"]}
    return {".zgroup": {"zarr_format": 2}, ".zmetadata": consolidated} | nodes | chunks | changed


def group_v3(**changed: Any) -> dict[str, Any]:
    """The same of version 3."""
    nodes = {"a": described_v3(), "b": described_v3(shape=[0]), "in": GROUP}
    group = GROUP | {"consolidated_metadata": {"kind": "inline", "metadata": nodes}}
    files = {f"{key}/zarr.json": nodes[key] for key in "ab"}
    chunks = {"a/c/0": HALVES["t/c/0"], "a/c/1": HALVES["t/c/1"]}
    return {"zarr.json": group} | files | chunks | changed


@pytest.mark.parametrize("files", [group_v2(), group_v3()], ids=["v2", "v3"])
def test_an_array_that_the_consolidated_metadata_describe_is_there_or_an_error(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    """Its folder may be lost as a whole, or its description alone."""
    assert sv.verify(make(tmp_path / "whole", files)).ok
    for lost in ("a", "b"):
        rest = {name: content for name, content in files.items() if not name.startswith(f"{lost}/")}
        path = make(tmp_path / lost, rest)
        arrays, errors = read_all(path)
        assert lost not in arrays and type(errors[lost]) is MissingFile and len(arrays) == 1
        assert [damage.key for damage in sv.verify(path).damages] == [lost]


@pytest.mark.parametrize("name", ["0", "1/0", "0.1", "c", "c/0", "c/0/1", "c.0.1"])
@pytest.mark.parametrize("version", [2, 3])
def test_chunks_without_a_description_are_a_lost_array(
    tmp_path: Path, version: int, name: str
) -> None:
    """A folder of chunks that is not an array's, whatever names them."""
    whole = {2: group_v2(**{".zmetadata": b"{}"}), 3: group_v3(**{"zarr.json": GROUP})}[version]
    path = make(tmp_path / "g", {**whole, f"g/w/{name}": b"1234"})
    arrays, errors = read_all(path)
    assert arrays.keys() == {"a", "b"} and {*errors} == {"g/w"}
    assert type(errors["g/w"]) is MissingFile and not sv.verify(path).ok


def test_other_files_of_a_group_are_not_arrays(tmp_path: Path) -> None:
    files: Any = dict.fromkeys(("README.md", "notes/today", "a/.DS_Store"), b"")
    files |= {".zattrs": {}, "g/.zgroup": {"zarr_format": 2}}
    path = make(tmp_path / "g", group_v2(**files))
    assert sv.verify(path).ok and sv.load(path).keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("group", "name", "described"),
    [(group_v2, ".zarray", described_v2), (group_v3, "zarr.json", described_v3)],
    ids=["v2", "v3"],
)
def test_a_description_that_differs_from_the_consolidated_one_is_a_problem(
    group: Any, name: str, described: Any, tmp_path: Path
) -> None:
    """zarr-python reads the latter: a changed shape is seen by some readers and not by others. An
    array that they leave out is read and noted."""
    path = make(tmp_path / "changed", group(**{f"a/{name}": described(shape=[3])}))
    assert sv.load(path)["a"].tolist() == [1, 2, 3]
    (damage,) = sv.verify(path).damages
    assert "another shape" in damage.message and "a/" in (damage.file or "")
    path = make(tmp_path / "more", group(**{f"z/{name}": described(shape=[0])}))
    report = sv.verify(path)
    assert report.ok and "z" in sv.load(path) and "do not describe it" in report.notes[0]


def listing(value: Any) -> dict[str, Any]:
    """A group whose attribute that lists its arrays has this value."""
    return group_v3(**{"zarr.json": GROUP | {"attributes": {"shardvar_arrays": value}}})


CONSOLIDATED = [b"", b"[]", b'{"metadata": 7}', b'{"metadata": {"a/.zarray": 7}}', b"\xff"]


@pytest.mark.parametrize(
    ("files", "words"),
    [(group_v2(**{".zmetadata": content}), "") for content in CONSOLIDATED]
    + [(listing(value), "not a list of texts") for value in ([7], ["a", None])],
)
def test_a_damaged_list_of_arrays_is_a_problem_and_nothing_more(
    tmp_path: Path, files: dict[str, Any], words: str
) -> None:
    path = make(tmp_path / "g", files)
    (damage,) = sv.verify(path).damages
    assert sv.load(path)["a"].tolist() == [1, 2, 3, 4] and words in damage.message


def test_a_text_under_the_name_of_that_attribute_is_an_attribute(tmp_path: Path) -> None:
    with sv.open_checkpoint(make(tmp_path / "g", listing("a, b"))) as reader:
        assert reader.metadata.user == {"shardvar_arrays": "a, b"} and not reader.faults


@pytest.mark.parametrize("name", ["../x", "/etc", "a/../../x", "x\0y"])
def test_a_name_of_the_consolidated_metadata_is_never_a_path(tmp_path: Path, name: str) -> None:
    make(tmp_path, {"x/.zarray": described_v2(), "x/0": bytes(8), "x/1": bytes(8)})
    other = {"metadata": {f"{name}/.zarray": described_v2()}}
    arrays, errors = read_all(make(tmp_path / "g", group_v2(**{".zmetadata": other})))
    assert arrays.keys() == {"a", "b"} and type(errors[name]) is MissingFile


def test_an_array_in_the_folder_of_an_array_is_not_read_as_if_all_were_well(tmp_path: Path) -> None:
    """A description in the place of a group's: the fill value would stand for all of an array that
    nobody wrote."""
    inner = {
        "in/t/zarr.json": described_v3(),
        **{f"in/{name}": octets for name, octets in HALVES.items()},
    }
    path = make(tmp_path / "g", {"zarr.json": GROUP, "in/zarr.json": described_v3(), **inner})
    arrays, errors = read_all(path)
    assert arrays.keys() == {"in/t"} and type(errors["in"]) is InvalidCheckpoint


def test_attributes_that_are_not_a_number_are_attributes(tmp_path: Path) -> None:
    """zarr-python writes them as Python does, and a missing value often is NaN."""
    attributes = b'{"x": NaN, "y": -Infinity}'
    described = b'{"zarr_format": 3, "node_type": "group", "attributes": %b}' % attributes
    both = group_v2(**{".zattrs": attributes}), {"zarr.json": described}
    for number, files in enumerate(both):
        with sv.open_checkpoint(make(tmp_path / str(number), files)) as reader:
            assert reader.metadata.user == {"x": "NaN", "y": "-Infinity"} and not reader.faults
    nan = make(
        tmp_path / "n",
        {"zarr.json": GROUP, "t/zarr.json": described_v3(attributes={"missing": np.nan}), **HALVES},
    )
    assert sv.load(nan)["t"].tolist() == [1, 2, 3, 4]


def test_a_shard_is_guarded_only_if_its_index_is(tmp_path: Path) -> None:
    """Of an inner chunk that the index does not list, the fill value is read: its own checksum is
    not asked."""
    order, crc = BYTES, {"name": "crc32c"}
    octets = [each + CRC32C.compute(each).to_bytes(4, "little") for each in HALVES.values()]
    for index_codecs, outcome in (([order, crc], "values match"), ([order], "not verifiable")):
        index = np.uint64([0, 12, 12, 12]).tobytes()
        index += CRC32C.compute(index).to_bytes(4, "little") * (outcome == "values match")
        inner = {"chunk_shape": [2], "codecs": [order, crc], "index_location": "end"}
        inner |= {"index_codecs": index_codecs}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
        described = described_v3(codecs=codecs, chunk_grid=grid(4))
        files = {"zarr.json": GROUP, "t/zarr.json": described, "t/c/0": b"".join([*octets, index])}
        path = make(tmp_path / outcome, files)
        assert sv.load(path)["t"].tolist() == [1, 2, 3, 4] and sv.verify(path).outcomes == {
            "t": outcome
        }
        (path / "t/c/0").write_bytes(
            b"".join([*octets, index]).replace(np.uint64([12, 12]).tobytes(), b"\xff" * 16)
        )
        assert sv.verify(path).outcomes["t"] != "ok"


@pytest.mark.parametrize("mark", [{}, {"commit_success.txt": b"ok"}])
def test_an_orbax_step_of_json_alone_is_not_taken_for_a_lost_one(
    tmp_path: Path, mark: dict[str, bytes]
) -> None:
    """Neither the step nor its item is damaged; a step whose item of arrays was lost is."""
    item = {f"meta/{name}": content for name, content in {"metadata": b'{"x": 1}', **mark}.items()}
    step = make(tmp_path / "1", {"_CHECKPOINT_METADATA": {"item_handlers": {}}, **item})
    for path, what in (
        (step, "its items are JSON: 'meta'"),
        (step / "meta", "an item of an Orbax step that is JSON"),
    ):
        with pytest.raises(UnsupportedError, match=what):
            sv.load(path)
    lost = make(
        tmp_path / "2", {"_CHECKPOINT_METADATA": {"item_handlers": {}}, "state/d/ab": b"x", **item}
    )
    with pytest.raises(MissingFile, match="_METADATA is missing"):
        sv.load(lost)


ODD_VALUES: list[Any] = [None, True, -1, 1 << 63, 1.5, np.nan, "", "zstd", [], [1], [[]], {}]
ODD_VALUES += [{"id": 7}, {"name": 7}]
DESCRIPTIONS = {
    "v2": described_v2(compressor={"id": "zstd", "level": 1}, filters=[], dimension_separator="."),
    "v3": described_v3(attributes={}),
}


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name, fields in DESCRIPTIONS.items() for field in fields]
)
def test_whatever_a_field_of_a_description_is_an_error_of_shardvar_or_an_array(
    name: str, field: str
) -> None:
    """Each value of the wrong type, and none at all: a description is untrusted JSON."""
    whole = DESCRIPTIONS[name]
    changed = [whole | {field: value} for value in ODD_VALUES] + [
        {each: value for each, value in whole.items() if each != field}
    ]
    for described in changed:
        with suppress(ShardvarError):
            parsed = parse_array(json.dumps(described).encode(), int(name[1]))
            assert len(parsed.chunk_shape) == len(parsed.shape) == len(parsed.counts)


@pytest.mark.parametrize(
    ("dtype", "filters", "kind"),
    [
        ("<U3", None, "text"),
        ("|S3", None, "byte strings of fixed size"),
        ("<M8[ns]", None, "dates"),
        ("<m8[s]", None, "time differences"),
        ("|V4", None, "raw bytes"),
        ("|O", [{"id": "vlen-utf8"}], "text of any length"),
        ("|O", [{"id": "pickle"}], "objects"),
        ([["a", "<i4"]], None, "elements with fields"),
    ],
)
def test_what_no_tensor_holds_is_named_and_hides_nothing_else(
    tmp_path: Path, dtype: Any, filters: Any, kind: str
) -> None:
    """It is listed, verify says why it is not verified, and the numbers beside it are read."""
    path = make(
        tmp_path / "g",
        group_v2(**{".zmetadata": b"{}", "x/.zarray": described_v2(dtype=dtype, filters=filters)}),
    )
    arrays, errors = read_all(path)
    assert arrays.keys() == {"a", "b"} and type(errors["x"]) is UnsupportedError
    assert "the shape [4]" in str(errors["x"]) and f"does not read: {kind}" in str(errors["x"])
    report = sv.verify(path)
    assert not report.damages and report.outcomes["x"] == "not verifiable"
    assert [(each.key, each.kind) for each in report.uncompared] == [("x", "UnsupportedError")]
