"""The inputs that the fuzzer begins with: the files under `golden` and `hostile`, and their
parts."""

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from shardvar.errors import ShardvarError
from shardvar.reference.objects.stored_graph import GRAPH_KEY
from shardvar.verbs.load import open_checkpoint
from shardvar.verbs.save import save
from shardvar.wire.block_file import encode_index_block, open_block_file
from shardvar.wire.sstable import open_table
from spec_tests.fuzzing.memory import SEPARATOR
from spec_tests.helpers import paths
from spec_tests.hostile import ocdbt
from spec_tests.hostile.evidence import EVIDENCE

MAX_NBYTES = 1 << 14
"""Larger files only slow the fuzzer down."""


def seeds_of(name: str) -> list[bytes]:
    """Return the seeds of the target of that name, small ones first; at least one."""
    if name in _SEEDS:
        drawn = _SEEDS[name]()
    else:
        drawn = contents(Path(EVIDENCE[name].file).suffix)
    found = {seed for seed in drawn if len(seed) <= MAX_NBYTES}
    return sorted(found, key=lambda seed: (len(seed), seed)) or [b"\0"]


def checkpoints(index_ending: str, data_marks: str) -> Iterator[bytes]:
    """Each index with its data files."""
    for index in files(index_ending):
        stem = index.name.removesuffix(index_ending)
        data = sorted(
            path for path in index.parent.iterdir() if path.name.startswith(stem + data_marks)
        )
        pieces = [index.read_bytes(), *(path.read_bytes() for path in data[:4])]
        yield SEPARATOR.join(pieces)


def sets() -> Iterator[bytes]:
    """The sets of safetensors: the index, and the files of its directory."""
    for index in files(".safetensors.index.json"):
        data = sorted(path for path in index.parent.glob("*.safetensors") if path.is_file())
        yield SEPARATOR.join([index.read_bytes(), *(path.read_bytes() for path in data[:4])])


def trees(index: str, *names: str) -> Iterator[bytes]:
    """The files of these paths in the folder of each index that has them."""
    for found in files(index):
        paths_of_tree = [found.parent / name for name in names]
        if all(path.is_file() for path in paths_of_tree):
            yield SEPARATOR.join(path.read_bytes() for path in paths_of_tree)


def files(ending: str) -> list[Path]:
    found = [
        path
        for place in ("golden", "hostile")
        for path in (paths.SPEC_TESTS / place).rglob(f"*{ending}")
    ]
    return sorted(path for path in found if path.is_file())


def contents(ending: str) -> Iterator[bytes]:
    for path in files(ending):
        yield path.read_bytes()


def headers() -> Iterator[bytes]:
    """The JSON of safetensors headers."""
    for octets in contents(".safetensors"):
        yield octets[8 : 8 + int.from_bytes(octets[:8], "little") % (1 << 16)]


def npy() -> Iterator[bytes]:
    """The beginnings of the members of archives that are not compressed."""
    for octets in contents(".npz"):
        for piece in octets.split(b"\x93NUMPY")[1:]:
            yield b"\x93NUMPY" + piece[:256]


def arrays() -> Iterator[bytes]:
    """Files of one array, in either order of the axes and of the bytes."""
    for order in ("C", "F"):
        for dtype in ("<f4", ">i2"):
            file = io.BytesIO()
            np.save(file, np.arange(6, dtype=dtype).reshape(2, 3, order=order))
            yield file.getvalue()


def blocks() -> Iterator[bytes]:
    """The metadata and the first blocks of native indexes."""
    for octets in contents(".svindex"):
        try:
            file = open_block_file(
                lambda start, nbytes, octets=octets: octets[start : start + nbytes], len(octets)
            )
        except ShardvarError:
            continue
        yield encode_index_block(file.metadata.values)
        yield from (
            octets[at : at + nbytes]
            for at, nbytes in zip(file.start[:4], file.nbytes[:4], strict=True)
        )


def tables() -> Iterator[tuple[Sequence[bytes], Sequence[bytes]]]:
    """The keys and the values of each block of the tables of bundles."""
    for octets in contents(".index"):
        with suppress(ShardvarError):
            yield from open_table(
                lambda start, nbytes, octets=octets: octets[start : start + nbytes], len(octets)
            ).blocks()


def entries() -> Iterator[bytes]:
    """The values of the tables of bundles."""
    for _, values in tables():
        yield from values[:8]


def keys() -> Iterator[bytes]:
    """The keys of the tables of bundles, of which those of slices are ordered code."""
    for found, _ in tables():
        yield from found[:8]
    yield from (b"\x01\x07", b"\x80", b"\x3f\xff", b"ab\x00\xff\x00\x01", b"\x00")


def graphs() -> Iterator[bytes]:
    """The messages of object graphs."""
    for path in files(".index"):
        try:
            with open_checkpoint(path) as reader:
                if GRAPH_KEY in reader:
                    yield reader.read(GRAPH_KEY).item()
        except ShardvarError:
            continue


def torch_index() -> bytes:
    """The index of a distributed checkpoint that shardvar wrote, with the attribute that torch does
    not have."""
    with TemporaryDirectory() as directory:
        save(
            f"{directory}/ck",
            {"w": np.arange(6.0).reshape(3, 2)},
            format="torch",
            partition=2,
            metadata={"by": "me"},
        )
        return Path(directory, "ck", ".metadata").read_bytes()


def costs() -> Iterator[bytes]:
    """The smallest seeds of every other target, behind the number of the target."""
    for number, name in enumerate(each for each in _SEEDS if each != "cost"):
        yield from (bytes([number]) + seed for seed in seeds_of(name)[:4])


def texts(*lines: str) -> list[bytes]:
    return [line.encode() for line in lines]


_SEEDS = {
    "native": lambda: checkpoints(".svindex", ".svdata-"),
    "tensorflow": lambda: checkpoints(".index", ".data-"),
    "safetensors_set": sets,
    "safetensors_shards": lambda: (
        octets for octets in contents(".safetensors") if b"DCP_SHARDING_INFO" in octets
    ),
    "torch_index": lambda: (*contents(".metadata"), torch_index()),
    "torch_ranks": lambda: (
        octets for octets in contents(".pt") if b"DTensor" in octets or b"ShardedTensor" in octets
    ),
    "zarr": lambda: trees("zarr.json", "t/zarr.json", "t/c/0"),
    "orbax": lambda: trees("_METADATA", "_METADATA", "t/.zarray", "t/0", "t/1"),
    "nodes": lambda: [
        octets[14:-4]
        for octets in (
            ocdbt.manifest((0, 99), 1),
            ocdbt.leaf(ocdbt.GOOD, ("ocdbt.process_0/", "d/0")),
            ocdbt.keyed(["p", "pa", "pb"], [0, 1, 1]),
            ocdbt.branch(["a", "b"], 1, [(0, 9), (9, 9)]),
        )
    ],
    "pickle": lambda: contents(".metadata"),
    "gguf_dequantized": lambda: contents(".gguf"),
    "npy": lambda: [*contents(".npy"), *arrays()],
    "npy_header": npy,
    "safetensors_header": headers,
    "sstable": lambda: contents(".index"),
    "snappy": lambda: [
        b"\x05\x10hello",
        b"\x0a\x04ab\x12\x02",
        b"\x40\x00a\xfe\x01\x00",
        b"\x08\x00x\x1b\x01\0\0\0",
    ],
    "blocks": blocks,
    "protos": entries,
    "ordered_code": keys,
    "strings": lambda: [
        b"\0",
        b"\x02\x01\x02abcdxyz",
        b"\x01\x00\0\0\0\0",
        b"\x03\x80\x01\x01\x00\0\0\0\0" + b"s" * 129,
    ],
    "graph": graphs,
    "state": lambda: texts(
        'model_checkpoint_path: "ckpt-2"\nall_model_checkpoint_paths: "ckpt-1"\n'
        'all_model_checkpoint_paths: "ckpt-2"\n'
        "all_model_checkpoint_timestamps: 1.5\nall_model_checkpoint_timestamps: 2.5\n"
        "last_preserved_timestamp: 0.5\n",
        "model_checkpoint_path: 'a\\n\\x41\\101\\\"'  # a comment",
        'model_checkpoint_path: "ck"',
        "",
    ),
    "slice_text": lambda: texts(
        "13 4 3,3:-",
        "13 4 3,3:0,4",
        "5 -",
        "0 -",
        "1 2 3 0,1:0,2:0,3",
        " ",
        "9223372036854775807 -",
    ),
    "cost": costs,
    "index_expression": lambda: texts(
        "3:7, 0", "..., ::-1", "[1]", "-1,:,0:9:2", "64MiB", "1.5 kB", ""
    ),
}
