"""What Orbax, zarr-python and xarray write is what shardvar reads, and the reverse; skipped where
one is missing."""

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.formats.zarr.sink import WRITTEN as WRITTEN_DTYPES
from shardvar.layout.dtypes import numpy_dtype
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.system_calls import snapshot

RNG = np.random.default_rng(7)


def arrays_of(version: int) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Arrays with the options that they are written with."""
    found: dict[str, tuple[Any, dict[str, Any]]] = {
        "a": (RNG.standard_normal((33, 17)), {"chunks": (8, 5)}),
        "d/e/f": (np.arange(10, dtype=np.int16), {"chunks": (4,)}),
        "nan": (np.full((4, 4), np.nan), {"chunks": (2, 2), "fill_value": np.nan}),
        "inf": (np.array([np.inf, 1, 2], np.float16), {"chunks": (1,), "fill_value": np.inf}),
        "complex": (np.array([1 + 2j, 3]), {"chunks": (1,), "fill_value": 1j}),
        "bool": (np.array([True, False]), {"chunks": (1,), "fill_value": True}),
        "empty": (np.zeros((0, 3)), {"chunks": (1, 3)}),
        "raw": (np.arange(100.0), {"chunks": (10,), "compressors": None}),
        "scalar": (np.array(2.5), {}),
    }
    if version == 3:
        found["sharded"] = (RNG.standard_normal((64, 64)), {"chunks": (8, 8), "shards": (32, 16)})
    return found


DTYPES = ["bool", "int8", ">i2", "<i4", "uint64", "<f2", "float32", ">f8", "complex64", ">c16"]
EXTENTS = [
    (),
    (0,),
    (7,),
    (5, 4),
    (3, 0, 2),
    (3, 4, 5),
    (2, 3, 2, 3),
    (2, 2, 2, 2, 3),
    (2, 1, 2, 2, 2, 3),
]


def compressors_of(version: int) -> dict[str, Any]:
    """The compressors that TensorStore has too, by name."""
    codecs, numcodecs = pytest.importorskip("zarr.codecs"), pytest.importorskip("numcodecs")
    if version == 2:
        pair = numcodecs.Zstd(checksum=True), numcodecs.Blosc("zstd", 5, numcodecs.Blosc.BITSHUFFLE)
        return {
            "none": None,
            "zstd": pair[0],
            "blosc": pair[1],
            "gzip": numcodecs.GZip(),
            "bz2": numcodecs.BZ2(),
        }
    both = [codecs.GzipCodec(), codecs.Crc32cCodec()]
    zstd = codecs.ZstdCodec(checksum=True)
    return {
        "none": None,
        "zstd": zstd,
        "blosc": codecs.BloscCodec(),
        "crc": [codecs.Crc32cCodec()],
        "both": both,
    }


@pytest.mark.parametrize("version", [2, 3])
def test_every_rank_and_codec_of_zarr_python_is_read_bit_for_bit(
    tmp_path: Path, version: int
) -> None:
    """In both orders, with both separators, with chunks that do not divide, with fill values of any
    kind, and with attributes that are NaN."""
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(
        tmp_path / "g", mode="w", zarr_format=version, attributes={"missing": np.nan}
    )
    written, number = {}, 0
    for name, compressor in compressors_of(version).items():
        for shape in EXTENTS:
            dtype = np.dtype(DTYPES[number % len(DTYPES)])
            array = RNG.integers(-2, 2, shape).astype(dtype)
            options: dict[str, Any] = {
                "order": "CF"[number // 2 % 2],
                "fill_value": None if number % 3 else 0,
            }
            if version == 3:
                options = {"fill_value": bool(number % 3) if dtype.kind == "b" else number % 3}
                if shape and array.size and number % 2:
                    options["shards"] = tuple(2 * max(extent // 2, 1) for extent in shape)
            keys = {
                "name": "v2" if version == 2 else "default",
                "configuration": {"separator": "./"[number % 2]},
            }
            made = group.create_array(
                key := f"{name}/{len(shape)}.{number}",
                shape=shape,
                dtype=dtype,
                chunks=tuple(max(extent // 2, 1) for extent in shape),
                compressors=compressor,
                chunk_key_encoding=keys,
                **options,
            )
            made[...] = array
            written[key] = group[key][...].astype(dtype.newbyteorder("<"))
            number += 1
    for key, (array, options) in arrays_of(version).items():
        group.create_array(key, shape=array.shape, dtype=array.dtype, **options)[...] = array
        written[key] = array
    loaded = sv.load(tmp_path / "g")
    assert loaded.keys() == written.keys()
    for key, array in written.items():
        hold_bits(loaded[key], array, key)
    report = sv.verify(tmp_path / "g")
    assert report.ok and not report.damages
    guarded = {key.partition("/")[0] for key, outcome in report.outcomes.items() if outcome == "ok"}
    guarded -= {"sharded"}
    assert guarded <= {"zstd", "crc", "both"}


@pytest.mark.parametrize("version", [2, 3])
def test_datasets_of_xarray(tmp_path: Path, version: int) -> None:
    """With labels, which are text: they are refused by name, and the numbers are read."""
    xarray, _ = pytest.importorskip("xarray"), pytest.importorskip("zarr")
    values = RNG.standard_normal((5, 3), np.float32)
    counts = np.array(
        [0, 0, 7, 0, 0]
    )  # a chunk of zeros is not stored, and version 2 has no fill value then
    variables = {"t": (("y", "x"), values), "n": (("y",), counts)}
    dataset = xarray.Dataset(variables, {"x": ["a", "b", "c"]}, {"title": "a run"})
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # neither text nor consolidated metadata are in the specification of version 3
        dataset.to_zarr(tmp_path / "ds", zarr_format=version, encoding={"n": {"chunks": (2,)}})
    loaded, report = sv.load(tmp_path / "ds", ["t", "n"]), sv.verify(tmp_path / "ds")
    hold_bits(loaded["t"], values, "t")
    hold_bits(loaded["n"], counts, "n")
    assert not report.ok and [each.key for each in report.uncompared] == ["x"]
    with sv.open_checkpoint(tmp_path / "ds") as reader:
        assert reader.metadata.user["title"] == "a run" and "x" in reader.faults


WRITTEN = {
    **{
        f"dtypes/{name}": np.arange(20).reshape(5, 4).astype(numpy_dtype(name))
        for name in sorted(WRITTEN_DTYPES)
    },
    "scalar": np.float64(2.5),
    "empty": np.zeros((0, 3), np.float32),
    "odd é name .-0": np.ones((1, 1, 2), np.uint8),
    "layers.0.cut": np.arange(39, dtype=np.float32).reshape(13, 3),
    "grid": np.arange(48, dtype=np.int16).reshape(4, 12),
}
CUTS = {"layers.0.cut": sv.PartitionSpec(splits=[[3, 3, 3, 3, 1]]), "grid": [2, 3]}


def write(path: Path, form: str) -> None:
    sv.save(path, WRITTEN, format=form, partition=CUTS, metadata={"by": "me"})


def hold_bits(found: Any, written: Any, key: str) -> None:
    found, written = np.asarray(found), np.asarray(written)
    assert found.dtype == written.dtype and found.shape == written.shape, key
    assert found.tobytes() == written.tobytes(), key


def test_zarr_python_reads_what_is_written_of_the_dtypes_that_it_has(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    write(tmp_path / "ck", "zarr")
    group = zarr.open_group(tmp_path / "ck", mode="r")
    assert dict(group.attrs) == {"by": "me", "shardvar_arrays": sorted(WRITTEN)}
    refused = set()
    for key, array in WRITTEN.items():
        try:
            hold_bits(group[key][...], array, key)
        except ValueError as error:
            refused.add(key)
            assert "data type" in str(error)
    assert all("float8" in key or "bfloat16" in key for key in refused)


def test_zarr_python_refuses_a_chunk_that_was_changed(tmp_path: Path) -> None:
    """The codec crc32c is its own."""
    zarr = pytest.importorskip("zarr")
    write(tmp_path / "ck", "zarr")
    chunk = tmp_path / "ck" / "grid" / "c" / "1" / "2"
    chunk.write_bytes(b"x" + chunk.read_bytes()[1:])
    with pytest.raises(ValueError, match="checksum"):
        zarr.open_group(tmp_path / "ck", mode="r")["grid"][...]
    assert [damage.key for damage in sv.verify(tmp_path / "ck").damages] == ["grid"]


def test_tensorstore_reads_what_is_written(tmp_path: Path) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    for form, driver in (("zarr", "zarr3"), ("orbax-plain", "zarr")):
        write(tmp_path / form, form)
        for key, array in WRITTEN.items():
            store = {"driver": "file", "path": str(tmp_path / form / key)}
            opened = tensorstore.open(
                {"driver": driver, "kvstore": store}, open=True, read=True
            ).result()
            hold_bits(opened.read().result(), array, key)


def test_xarray_opens_what_is_written_as_a_dataset_and_as_a_tree(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    plain = {
        "w": np.arange(6.0).reshape(2, 3),
        "a/w": np.arange(4),
        "a/b/v": np.float32(1),
        "w_0": np.zeros((3, 2)),
    }
    sv.save(tmp_path / "ck", plain, format="zarr")
    for options in ({}, {"consolidated": True}, {"consolidated": False}):
        dataset = xarray.open_zarr(tmp_path / "ck", **options)
        for key in ("w", "w_0"):
            hold_bits(dataset[key].values, plain[key], key)
        tree = xarray.open_datatree(tmp_path / "ck", engine="zarr", **options)
        for key, array in plain.items():
            hold_bits(tree[key].values, array, key)


def test_zarr_python_uses_the_consolidated_metadata_that_are_written(tmp_path: Path) -> None:
    """It lists and reads from them, without a warning, as from those that it writes itself."""
    zarr = pytest.importorskip("zarr")
    plain = {"w": np.arange(6.0).reshape(2, 3), "a/w": np.arange(4), "a/b/v": np.float32(1)}
    sv.save(tmp_path / "ck", plain, format="zarr")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_consolidated(tmp_path / "ck", mode="r")
        listed = {path: type(node).__name__ for path, node in group.members(max_depth=None)}
        found = {key: group[key][...] for key in plain}
    assert listed == {"a": "Group", "a/b": "Group", "a/b/v": "Array", "a/w": "Array", "w": "Array"}
    for key, array in plain.items():
        hold_bits(found[key], array, key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(tmp_path / "ck")
    report = sv.verify(tmp_path / "ck")
    assert report.ok and not report.notes


def test_a_group_with_a_dtype_that_zarr_python_lacks_opens_and_tells_a_lost_array(
    tmp_path: Path,
) -> None:
    """Its attribute is kept when others are set, and arrays may be added."""
    zarr = pytest.importorskip("zarr")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    tensors = {
        "w": np.arange(6.0).reshape(2, 3),
        "a/w": np.arange(4),
        "a/h": np.arange(4).astype(ml_dtypes.bfloat16),
    }
    sv.save(tmp_path / "ck", tensors, format="zarr", metadata={"by": "me"})
    group = zarr.open_group(tmp_path / "ck", mode="a")
    for key in ("w", "a/w"):
        hold_bits(group[key][...], tensors[key], key)
    group.attrs["more"] = "text"
    group.create_array("added", data=np.arange(3))
    report = sv.verify(tmp_path / "ck")
    assert report.ok and not report.notes
    with sv.open_checkpoint(tmp_path / "ck") as reader:
        assert reader.metadata.user == {"by": "me", "more": "text"} and "added" in reader
    for key in tensors:
        shutil.copytree(tmp_path / "ck", tmp_path / "lost", dirs_exist_ok=True)
        shutil.rmtree(tmp_path / "lost" / key)
        assert [damage.key for damage in sv.verify(tmp_path / "lost").damages] == [key]
        shutil.rmtree(tmp_path / "lost")


def test_zarr_python_takes_an_array_that_it_removes_from_what_it_has_read(tmp_path: Path) -> None:
    """So it is not missed; it knows nothing of the attribute, by which it is missed, as it is
    without a list."""
    zarr = pytest.importorskip("zarr")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype, is_missed in ((np.float32, False), (ml_dtypes.bfloat16, True)):
        path = tmp_path / np.dtype(dtype).name
        sv.save(path, {"t": np.zeros(3), "u": np.zeros(3, dtype)}, format="zarr")
        del zarr.open_group(path, mode="a")["t"]
        assert [damage.key for damage in sv.verify(path).damages] == ["t"] * is_missed


def leaves_of(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix.removesuffix("."): tree}
    return {
        key: value
        for name, below in tree.items()
        for key, value in leaves_of(below, f"{prefix}{name}.").items()
    }


@pytest.mark.parametrize("form", ["orbax", "orbax-plain"])
def test_orbax_restores_what_is_written(form: str, tmp_path: Path) -> None:
    """By its checkpointers, by its newer interface, and as a step of a manager."""
    ocp = pytest.importorskip("orbax.checkpoint")
    write(tmp_path / "run" / "12" / "default", form)
    path = tmp_path / "run" / "12" / "default"
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        restored = manager.restore(12, args=ocp.args.PyTreeRestore())
    trees = [ocp.PyTreeCheckpointer().restore(path), restored]
    for tree in trees:
        leaves = leaves_of(tree)
        assert leaves.keys() == WRITTEN.keys()
        for key, array in WRITTEN.items():
            hold_bits(leaves[key], array, key)
    # These make arrays of JAX, which has no 64 bits unless it is told so.
    narrow = {key: array for key, array in WRITTEN.items() if np.asarray(array).dtype.itemsize < 8}
    sv.save(tmp_path / "narrow", narrow, format=form)
    for tree in (
        ocp.StandardCheckpointer().restore(tmp_path / "narrow"),
        ocp.v1.load(tmp_path / "narrow"),
    ):
        leaves = leaves_of(tree)
        assert leaves.keys() == narrow.keys()
        for key, array in narrow.items():
            hold_bits(np.asarray(leaves[key]), array, key)


@pytest.mark.parametrize("values", [1, 2], ids=["new", "replaced"])
def test_orbax_restores_what_is_written_into_a_bucket(values: int, tmp_path: Path) -> None:
    """Its objects are downloaded; the last of two checkpoints, of which only the manifest, and what it
    leads to, has changed."""
    ocp = pytest.importorskip("orbax.checkpoint")
    bucket = MemoryBucket()
    with in_bucket(bucket):
        for number in range(1, values + 1):
            tensors = {"a.w": np.full((300, 20), number, np.float32), "b": np.full(3, number)}
            url = "s3://bucket/run/7/default"
            sv.save(url, tensors, format="orbax", partition=2, force=True)
    for key, octets in bucket.files.items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(octets)
    path = tmp_path / "run" / "7" / "default"
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        restored = manager.restore(7, args=ocp.args.PyTreeRestore())
    for tree in (restored, ocp.PyTreeCheckpointer().restore(path)):
        leaves = leaves_of(tree)
        assert leaves.keys() == tensors.keys()
        for key, array in tensors.items():
            hold_bits(np.asarray(leaves[key]), array, key)
    kernel = ocp.StandardCheckpointer().restore(path)["a"]["w"]
    assert np.array_equal(kernel, tensors["a.w"])


@pytest.mark.parametrize("is_plain", [False, True])
def test_what_orbax_says_of_a_checkpoint_is_what_it_would_say(
    is_plain: bool, tmp_path: Path
) -> None:
    """The index byte for byte, the mark but for the path, and what is said of the step but for
    times; the same keys in the database, whose descriptions differ in the compression."""
    ocp = pytest.importorskip("orbax.checkpoint")
    tensorstore = pytest.importorskip("tensorstore")
    tree = {
        "params": {"b": np.ones(3, np.float32), "a": np.zeros((40, 30), np.int8)},
        "layers": [np.arange(3), {"w": np.arange(4.0)}, *(np.arange(2) for _ in range(10))],
        "name": "a run",
    }
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=not is_plain)
    ocp.Checkpointer(handler).save(tmp_path / "theirs", tree)
    form = "orbax-plain" if is_plain else "orbax"
    sv.reshard(tmp_path / "theirs", tmp_path / "ours", format=form)
    theirs, ours = (snapshot(tmp_path / each) for each in ("theirs", "ours"))
    for name in ("_METADATA", "_strings.json"):
        assert json.loads(ours[name]) == json.loads(theirs[name])
    assert ours["_METADATA"] == theirs["_METADATA"]
    said = [re.sub(rb"\d{19}", b"TIME", each["_CHECKPOINT_METADATA"]) for each in (ours, theirs)]
    assert said[0] == said[1]
    assert ours["commit_success.txt"] == theirs["commit_success.txt"].replace(b"theirs", b"ours")
    tops = [{name for name in each if "/" not in name} for each in (ours, theirs)]
    assert tops[0] == tops[1]
    if is_plain:
        return
    found = []
    for name in ("ours", "theirs"):
        base = {"driver": "file", "path": f"{tmp_path / name}/"}
        store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
        keys = sorted(store.list().result())
        found.append(
            {key: json.loads(store[key]) if key.endswith(b".zarray") else None for key in keys}
        )
    for described in found:
        for document in filter(None, described.values()):
            del document["compressor"]
    assert found[0] == found[1]


def test_orbax_restores_strings_and_the_lists_that_the_index_knows(tmp_path: Path) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    tree = {"name": "a run", "nested": {"text": "wörld\n", "layers": [np.arange(3), np.arange(4)]}}
    ocp.PyTreeCheckpointer().save(tmp_path / "ck", tree)
    sv.reshard(tmp_path / "ck", tmp_path / "copy", format="orbax")
    restored = ocp.PyTreeCheckpointer().restore(tmp_path / "copy")
    layers = restored["nested"].pop("layers")
    assert isinstance(layers, list)
    assert all(map(np.array_equal, layers, tree["nested"].pop("layers"))) and restored == tree
