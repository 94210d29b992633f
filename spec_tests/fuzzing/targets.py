"""The targets: for every reader a function of bytes that returns, or raises an error of
`shardvar.errors`."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from shardvar.cli.usage import parse_index_text, parse_size
from shardvar.errors import ShardvarError
from shardvar.formats.compressed import unpack_frame
from shardvar.formats.table import format_named
from shardvar.formats.tensorflow.contents import decode_bundle_entries, decode_header
from shardvar.layout.region import format_slice_text, parse_slice_text
from shardvar.reference.objects.stored_graph import decode_graph
from shardvar.verbs.newest import SeriesState
from shardvar.verbs.reader import Reader
from shardvar.wire import sstable, strings
from shardvar.wire.block_file import decode_index_block
from shardvar.wire.npy import build_preamble, parse_preamble, preamble_nbytes
from shardvar.wire.ocdbt import NodePlace, NodeRoom, parse_manifest, parse_node
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.safetensors_header import parse_header
from shardvar.wire.sstable import decompress_snappy, open_table
from spec_tests.fuzzing.cost import read_within_budget
from spec_tests.fuzzing.memory import MemoryStorage
from spec_tests.hostile import ocdbt
from spec_tests.hostile.evidence import EVIDENCE


@dataclass(frozen=True)
class Target:
    """One reader."""

    name: str
    """Its name for `python -m spec_tests.fuzzing`."""
    read: Callable[[bytes], object]
    """Reads bytes."""

    def run(self, data: bytes) -> bool:
        """Return True if the bytes have values; every error but those of `shardvar.errors` comes
        through."""
        try:
            self.read(data)
        except ShardvarError:
            return False
        return True


def reader_of(form: str, name: str, first: str) -> Callable[[bytes], None]:
    """Open a checkpoint of that format, and read every key of it."""

    def read(data: bytes) -> None:
        source = format_named(form).open(MemoryStorage(first, data), name)  # type: ignore[arg-type]
        reader = Reader(f"/fuzz/{name}", form, source)
        try:
            for key in [*reader, "none"]:
                read_key(reader, key)
            getattr(source, "findings", tuple)()
        finally:
            reader.close()

    return read


def read_dequantized(data: bytes) -> None:
    """Each tensor as numbers, whole and in part."""
    source = format_named("gguf").open(MemoryStorage("ck.gguf", data), "ck.gguf")  # type: ignore[arg-type]
    with Reader("/fuzz/ck.gguf", "gguf", source.dequantized()) as reader, np.errstate(all="ignore"):  # type: ignore[attr-defined]
        for key in reader:
            read_key(reader, key)


def read_key(reader: Reader, key: str) -> None:
    """One key whole, and one element of it; an error is that key's alone."""
    try:
        array = reader.read(key)
        some = reader.read(key, (slice(0, 1),) * min(array.ndim, 1))
    except ShardvarError:
        return
    # Whatever checksums say, a part is that part of the whole.
    if (
        array.dtype != np.object_
        and some.tobytes() != np.ascontiguousarray(array[:1] if array.ndim else array).tobytes()
    ):
        raise AssertionError(f"{key!r}: a part of it is not that part of the whole")


def read_slice_text(data: bytes) -> None:
    shape, region = parse_slice_text(data.decode("utf-8", "surrogateescape"))
    if parse_slice_text(format_slice_text(shape, region)) != (shape, region):
        raise AssertionError(f"{shape} and {region} do not come back")


def read_ordered_code(data: bytes) -> None:
    """Each decoder accepts what its encoder writes, and nothing else."""
    for decode, encode in (
        (sstable.decode_num, sstable.encode_num),
        (sstable.decode_signed, sstable.encode_signed),
        (sstable.decode_string, sstable.encode_string),
    ):
        try:
            value, stop = decode(data, 0)
        except ShardvarError:
            continue
        if encode(value) != data[:stop]:  # type: ignore[operator]
            raise AssertionError(f"{decode.__name__} took {data[:stop]!r} for {value!r}")


def read_state(data: bytes) -> None:
    state = SeriesState.decode(data)
    if SeriesState.decode(state.encode()) != state:
        raise AssertionError(f"{state} does not come back")


def read_index_expression(data: bytes) -> None:
    """Parse the index and the size that a person types to `shardvar show`."""
    text, shape = data.decode("utf-8", "replace"), (13, 4, 2)
    with suppress(ShardvarError):
        parse_size(text)
    axes = parse_index_text(text, shape)
    for axis, extent in zip(axes, shape, strict=True):
        chosen = [axis] if isinstance(axis, int) else list(axis[:1]) + list(axis[-1:])
        if not all(0 <= each < extent for each in chosen):
            raise AssertionError(f"{text!r} selects {axis} of {extent}")


def read_graph(data: bytes) -> None:
    decode_graph(
        data,
        {
            "model/w/.ATTRIBUTES/VARIABLE_VALUE": None,
            "save_counter/.ATTRIBUTES/VARIABLE_VALUE": None,
        },
    )


def read_npy(data: bytes) -> None:
    header = parse_preamble(data[: preamble_nbytes(data[:12], len(data))])
    if header.is_plain:
        parse_preamble(build_preamble(header.dtype, header.shape))


def read_protos(data: bytes) -> None:
    _, errors = decode_bundle_entries([data])
    for error in errors.values():
        if not isinstance(error, ShardvarError):
            raise error
    with suppress(ShardvarError):
        decode_header(data)


def read_strings(data: bytes) -> None:
    """The first byte says of how many strings."""
    count = data[0] if data else 0
    read = [
        strings.decode,
        strings.bundle_checksum,
        strings.variant_checksum,
        strings.from_big_endian,
    ]
    for each in read:
        with suppress(ShardvarError):
            each(data[1:], (count,) if each is strings.decode else count)  # type: ignore[operator]


def read_blocks(data: bytes) -> None:
    block = decode_index_block(data)
    for name in [*map(str, block.values), "key"]:
        for ask in (
            block.text,
            block.octets,
            block.strings,
            block.bounds,
            lambda name: block.numbers(name, "<u4"),
        ):
            with suppress(ShardvarError):
                ask(name)


def read_table(data: bytes) -> None:
    def read(start: int, nbytes: int) -> bytes:
        if start < 0 or nbytes < 0 or start + nbytes > len(data):
            raise AssertionError(f"{nbytes} bytes at {start} of {len(data)} are asked for")
        return data[start : start + nbytes]

    for _ in open_table(read, len(data)).blocks():
        pass


def read_nodes(data: bytes) -> None:
    """The body of a manifest and of nodes of a database, in frames with their checksums."""
    for height in (None, 0, 1):
        octets = ocdbt.frame(ocdbt.MANIFEST if height is None else ocdbt.NODE, data)
        with suppress(ShardvarError):
            if height is None:
                parse_manifest(octets, unpack_frame, NodeRoom())
            else:
                place = NodePlace("d/0", "", 0, len(octets), height, b"p", b"p")
                parse_node(octets, place, unpack_frame, NodeRoom())


_SAFETENSORS = {
    "safetensors_set": "ck.safetensors.index.json",
    "safetensors_shards": "shard-00001-model-00001-of-00001.safetensors",
}

_READERS = [
    Target("native", reader_of("shardvar", "ck", "ck.svindex")),
    Target("tensorflow", reader_of("tensorflow", "ck", "ck.index")),
    *(
        Target(name, reader_of(name, row.file, row.file))
        for name, row in EVIDENCE.items()
        if row.file
    ),
    *(Target(name, reader_of("safetensors", file, file)) for name, file in _SAFETENSORS.items()),
    Target("torch_index", reader_of("torch", ".metadata", ".metadata")),
    Target("torch_ranks", reader_of("pt", "ck_world_size_1", "ck_world_size_1_rank_0.pt")),
    Target("zarr", reader_of("zarr", "zarr.json", "zarr.json")),
    Target("orbax", reader_of("orbax", "_METADATA", "_METADATA")),
    Target("nodes", read_nodes),
    Target("pickle", parse_pickle),
    Target("gguf_dequantized", read_dequantized),
    Target("npy_header", read_npy),
    Target("safetensors_header", parse_header),
    Target("sstable", read_table),
    Target("snappy", decompress_snappy),
    Target("blocks", read_blocks),
    Target("protos", read_protos),
    Target("ordered_code", read_ordered_code),
    Target("strings", read_strings),
    Target("graph", read_graph),
    Target("state", read_state),
    Target("slice_text", read_slice_text),
    Target("index_expression", read_index_expression),
]

TARGETS = [
    *_READERS,
    Target("cost", partial(read_within_budget, [target.read for target in _READERS])),
]
