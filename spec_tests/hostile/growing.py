"""Checkpoints of any size, each of a construct whose cost some reader did not bound: data for the
tests of cost.

``files(n)`` of a construct holds n of something: keys, slices, fields, nodes. A file of 2n is about
twice as large, and no verb may take more than about twice the time and the memory for it.
"""

import io
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import isqrt
from typing import Any

import numpy as np

import shardvar as sv
from shardvar.formats.tensorflow.contents import slice_key
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.native_checkpoints import hand_made
from spec_tests.hostile import flax, ocdbt, onnx, zarr
from spec_tests.hostile import torch as torch_file
from spec_tests.hostile.case import Construct, Files
from spec_tests.hostile.evidence import EVIDENCE
from spec_tests.hostile.gguf import Field, Info, gguf, split, text
from spec_tests.hostile.gguf import number as gguf_number
from spec_tests.hostile.native import native, native_slices, u32, u64
from spec_tests.hostile.npz import Member, archive, npy
from spec_tests.hostile.safetensors import safetensors, shard, tensor
from spec_tests.hostile.tensorflow import (
    block,
    bundle_entry,
    handle,
    masked,
    proto,
    stored,
    table,
    varint,
)
from spec_tests.hostile.torch_sets import (
    llama_experts,
    llama_keys,
    rankwise_tensors,
    universal_parameters,
)

Row = tuple[int, Callable[[int], Any]]
"""The count of a construct, and what gives its files or the bytes of its only file."""


def constructs(kind: str, path: str, **rows: Row) -> Iterator[Construct]:
    """Yield constructs that are opened by one path, which is that of the only file where a row
    gives bytes."""

    def files(make: Callable[[int], Files | bytes], count: int) -> Files:
        made = make(count)
        return {path: made} if isinstance(made, bytes) else made

    for name, (count, make) in rows.items():
        yield Construct(f"{kind} {name.replace('_', ' ')}", path, partial(files, make), count)


# --- Keys of every format


def saved(form: str, count: int) -> Files:
    """A checkpoint of small tensors, as shardvar or the format's own row makes it."""
    tensors = {f"key{number:08}": np.zeros(8, np.float32) for number in range(count)}
    if make := EVIDENCE[form].make:
        return make(tensors)
    bucket = MemoryBucket()
    with in_bucket(bucket):
        sv.save(f"s3://bucket/{EVIDENCE[form].file or 'ck'}", tensors, format=form)
    return dict(bucket.files)


COUNTS = {"shardvar": 2000, "tensorflow": 500, "safetensors": 500, "npz": 500, "pt": 1000}
COUNTS |= {"torch": 300, "zarr": 150, "orbax": 300, "gguf": 1000, "flax": 1000, "onnx": 1000}
KEYS = [
    Construct(f"keys {form}", EVIDENCE[form].file or "ck", partial(saved, form), count)
    for form, count in (COUNTS | {"keras": 300}).items()
]

# --- TensorFlow

_HEADER = proto((1, 1), (3, proto((1, 1))))


def files_of_bundle(index: bytes, data: bytes = bytes(16)) -> Files:
    return {"ck.index": index, "ck.data-00000-of-00001": data}


def bundle(*entries: tuple[bytes, bytes], data: bytes = bytes(16)) -> Files:
    """A bundle of one data file."""
    return files_of_bundle(table(block([(b"", _HEADER), *sorted(entries)])), data)


def shared_block(count: int, first: bytes) -> Files:
    """A bundle whose keys each add two bytes to the first one."""
    value = bundle_entry()
    body = varint(0) + varint(0) + varint(len(_HEADER)) + _HEADER
    body += varint(0) + varint(len(first)) + varint(len(value)) + first + value
    for number in range(count):
        shared = len(first)
        body += (
            varint(shared) + varint(4) + varint(len(value)) + struct.pack(">I", number + 1) + value
        )
    return files_of_bundle(table(body + struct.pack("<II", 0, 1)))


def tf_nested_blocks(count: int) -> Files:
    """Each table block is a value within the one before it."""
    inner, places = b"", []
    for number in reversed(range(count)):
        # The first bytes are those of the entry: shared, unshared, the length of the value, the
        # key.
        head = varint(0) + varint(4) + varint(len(inner)) + struct.pack(">I", number + 1)
        content = head + inner + struct.pack("<II", 0, 1)
        places = [(start + len(head), nbytes) for start, nbytes in places]
        places.insert(0, (0, len(content)))
        inner = stored(content)
    listed = block(
        [(struct.pack(">I", number + 1), handle(*place)) for number, place in enumerate(places)]
    )
    footer = handle(0, places[0][1]) + handle(len(inner), len(listed))
    octets = inner + stored(listed) + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")
    return files_of_bundle(octets)


def tf_shared_payload(count: int) -> Files:
    """All tensors have the same bytes, which are as long as there are tensors."""
    data = bytes(16 * count)
    entry = bundle_entry((4 * count,), 16 * count, data=data)
    return bundle(*((b"key%08d" % number, entry) for number in range(count)), data=data)


def tf_shapes(count: int) -> Files:
    dim = proto((2, proto((2, proto((1, 1))))))
    return bundle((b"t", proto((1, 1)) + dim * count + proto((5, 16))))


def tf_files(count: int) -> Files:
    """Each tensor is in a file of its own, which is missing."""
    header = proto((1, count), (3, proto((1, 1))))
    entries = [(b"key%08d" % number, bundle_entry(shard=number)) for number in range(count)]
    return {
        "ck.index": table(block([(b"", header), *entries])),
        f"ck.data-00000-of-{count:05d}": bytes(16),
    }


def tf_strings(count: int) -> Files:
    lengths = bytes(count)
    word = struct.pack("<I", masked(bytes(4 * count)))
    # The checksum of a string tensor covers the lengths as words, then the bytes after them.
    entry = proto((1, 7), (2, proto((2, proto((1, count))))), (5, count + 4))
    entry += varint(6 << 3 | 5) + struct.pack("<I", masked(bytes(4 * count) + word))
    return bundle((b"t", entry), data=lengths + word)


def tf_slices(count: int) -> Files:
    """A table in rows of 4 bytes, one slice each."""
    extents = [((row, 1), (0, 1)) for row in range(count)]
    full = bundle_entry((count, 1), 0, data=b"", slices=extents)
    parts = [
        (slice_key(b"t", each), bundle_entry((1, 1), 4, offset=4 * row, data=bytes(4)))
        for row, each in enumerate(extents)
    ]
    return bundle((b"t", full), *parts, data=bytes(4 * count))


def tf_slices_listed_often(count: int) -> Files:
    full = bundle_entry((4,), 0, data=b"", slices=[((0, 4),)] * count)
    return bundle((b"t", full), (slice_key(b"t", ((0, 4),)), bundle_entry()))


def tf_long_keys(count: int) -> Files:
    keys = (b"%08d" % number + b"a\x1b[31m/" * 400 for number in range(count // 100))
    return bundle(*((key, bundle_entry()) for key in keys))


BUNDLES = constructs(
    "tf",
    "ck",
    key_prefixes=(2000, lambda n: shared_block(n, b"k" * 8 * n)),
    key_prefixes_of_allowed_keys=(2000, lambda n: shared_block(n, b"k" * 60_000)),
    nested_blocks=(1000, tf_nested_blocks),
    shared_payload=(500, tf_shared_payload),
    shapes=(20000, tf_shapes),
    axes=(5000, lambda n: bundle((b"t", bundle_entry([1] * n)))),
    files=(300, tf_files),
    strings=(30000, tf_strings),
    slices=(500, tf_slices),
    slices_listed_often=(1000, tf_slices_listed_often),
    long_keys=(3000, tf_long_keys),
)


def graph_bundle(nodes: Sequence[bytes], values: Sequence[bytes]) -> Files:
    """A bundle of a graph of objects, and of a float32 tensor of 4 for each key of ``values``."""
    message = b"".join(proto((1, node)) for node in nodes)
    length = varint(len(message))
    word = struct.pack("<I", masked(struct.pack("<I", len(message))))
    payload = length + word + message
    entry = proto((1, 7), (2, b""), (4, 16 * len(values)), (5, len(payload)))
    entry += varint(6 << 3 | 5) + struct.pack(
        "<I", masked(struct.pack("<I", len(message)) + word + message)
    )
    tensors = [(key, bundle_entry(offset=16 * number)) for number, key in enumerate(values)]
    return bundle(
        (b"_CHECKPOINTABLE_OBJECT_GRAPH", entry), *tensors, data=bytes(16 * len(values)) + payload
    )


VALUE = b"/.ATTRIBUTES/VARIABLE_VALUE"
OF_V = b"v" + VALUE


def value(key: bytes, attribute: bytes = b"VARIABLE_VALUE") -> bytes:
    return proto((2, proto((1, attribute), (2, b""), (3, key))))


def child(number: int, name: bytes) -> bytes:
    return proto((1, proto((1, number), (2, name))))


def names(count: int, number: int, name: bytes) -> bytes:
    """Children of one number under many names."""
    return b"".join(child(number, name % each) for each in range(count))


def of_one_value(*nodes: bytes) -> Files:
    """A graph of these nodes, of which the last is the only variable."""
    return graph_bundle([*nodes, value(OF_V)], [OF_V])


def graph_states(count: int) -> Files:
    """One object with many attributes, all of one key."""
    key = b"a/.ATTRIBUTES/s"
    node = b"".join(value(key, b"attribute%d" % number) for number in range(count))
    return graph_bundle([child(1, b"a"), node], [key])


def graph_children(count: int) -> Files:
    keys = [b"v%d" % number + VALUE for number in range(count)]
    root = b"".join(child(number + 1, b"v%d" % number) for number in range(count))
    return graph_bundle([root, *map(value, keys)], keys)


def graph_keras(count: int) -> Files:
    """An optimizer that names one list of slots many times."""
    variables = names(count, 3, b"%d")
    optimizer = child(1, b"_trainable_variables") + names(count, 2, b"list%d")
    return of_one_value(optimizer, variables, variables)


def graph_keras_owners(count: int) -> Files:
    """Many optimizers that share one list of variables and one list of slots."""
    variables = names(count, 3, b"%d")
    owner = child(1, b"_trainable_variables") + child(2, b"_momentums")
    root = b"".join(child(4 + number, b"o%d" % number) for number in range(count))
    nodes = [root, variables, variables, value(OF_V), *([owner] * count)]
    return graph_bundle(nodes, [OF_V])


def graph_slots(count: int) -> Files:
    """One optimizer with many slots of one variable."""
    slots = b"".join(
        proto((3, proto((1, 2), (2, b"slot%d" % number), (3, 2)))) for number in range(count)
    )
    return of_one_value(child(1, b"o") + child(2, b"v"), slots)


def graph_lost(count: int) -> Files:
    """Many values that no object has, with control characters in their keys."""
    return graph_bundle([b""], [b"lost\x1b[31m%d" % number + VALUE for number in range(count)])


GRAPHS = constructs(
    "graph",
    "ck",
    states=(2000, graph_states),
    children=(300, graph_children),
    chain=(3000, lambda n: of_one_value(*(child(each + 1, b"c") for each in range(n)))),
    names_of_one=(3000, lambda n: of_one_value(names(n, 1, b"name%d"))),
    keras=(1000, graph_keras),
    keras_owners=(1000, graph_keras_owners),
    slots=(3000, graph_slots),
    lost=(300, graph_lost),
)

# --- safetensors


def st_metadata(count: int) -> bytes:
    return safetensors({"__metadata__": {f"name{k}": "text" for k in range(count)}, "t": tensor()})


def st_shape(shape: Sequence[int], nbytes: int) -> bytes:
    """A tensor of this shape."""
    return safetensors({"t": tensor(0, nbytes, shape)}, bytes(nbytes))


def st_shards(count: int) -> Files:
    """Shards of one slice each, of which every second one is missing."""
    return {
        name: file
        for rank in range(count)
        for name, file in shard(2 * rank + 2, {"t": [4 * rank]}).items()
    }


def st_set_files(count: int) -> Files:
    """A set whose tensors are in files that are missing."""
    files = {f"key{k}": f"model-{k + 1:05d}-of-{count:05d}.safetensors" for k in range(count)}
    return {"ck.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": files}).encode()}


def st_set_keys(count: int) -> Files:
    """A set of one file that has none of the tensors."""
    files = {f"key{n}": "ck.safetensors" for n in range(count)}
    index = {"metadata": {"total_size": 10**4000}, "weight_map": files}
    return {
        "ck.safetensors.index.json": json.dumps(index).encode(),
        "ck.safetensors": safetensors({"t": tensor()}),
    }


SHARD = "shard-{:05}-model-00001-of-00001.safetensors"
SAFETENSORS = [
    *constructs(
        "safetensors",
        "ck.safetensors",
        extents=(5000, lambda n: st_shape([2**62] * n, 16)),
        ones=(20000, lambda n: st_shape([1] * n, 4)),
        digits=(3000, lambda n: st_shape([10**4000] * (n // 100), 16)),
        zeros=(5000, lambda n: st_shape([2**62, *[0] * n, *[3] * n], 0)),
        metadata=(3000, st_metadata),
    ),
    *constructs("safetensors", SHARD.format(2), shards=(200, st_shards)),
    *constructs(
        "safetensors",
        SHARD.format(1),
        # Many slices, each behind a hole.
        shard_keys=(500, lambda n: shard(1, {f"key{k}": [4 + k] for k in range(n)})),
    ),
    *constructs(
        "safetensors",
        "ck.safetensors.index.json",
        set_files=(300, st_set_files),
        set_keys=(2000, st_set_keys),
    ),
]

# --- npz


def npz_headers(count: int) -> bytes:
    """Compressed headers that are all spaces."""

    def member(number: int) -> Member:
        text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (), }".ljust(9900) + b"%08d" % 0
        text = text[:9000] + b" " * 900 + b"\n"
        octets = b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + struct.pack("<f", number)
        packed = zlib.compress(octets, 9)[2:-4]
        return Member(f"key{number}.npy", packed, 8, len(octets), zlib.crc32(octets))

    return archive(*map(member, range(count // 10)))


NPZ = constructs(
    "npz",
    "ck.npz",
    shared=(1000, lambda n: archive(*[Member("key.npy", npy())] * n, is_shared=True)),
    headers=(1000, npz_headers),
)

# --- native


def native_rods(count: int) -> Files:
    """About ``count`` slices of one tensor, rods along three axes that pass each other: no plane
    separates them."""
    side = isqrt(count // 3)
    across = np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1).reshape(-1, 2) * 2
    offset = np.zeros((3, side * side, 3), np.int64)
    extent = np.ones_like(offset)
    for axis in range(3):
        # Along y and z those of the first kind have an even and an odd place, those of the second
        # kind along z and x.
        offset[axis, :, (axis + 1) % 3] = across[:, 0]
        offset[axis, :, (axis + 2) % 3] = across[:, 1] + 1
        extent[axis, :, axis] = 2 * side
    rods, nbytes = 3 * side * side, 2 * side
    columns = {
        "rank": np.array([3], "u1"),
        "shape": u64(nbytes, nbytes, nbytes),
        "count": u32(rods),
        "offset": offset.astype("<u8").ravel(),
        "extent": extent.astype("<u8").ravel(),
        "file": u32(*[0] * rods),
        "start": u64(*range(0, rods * nbytes, nbytes)),
        "nbytes": u64(*[nbytes] * rods),
        "crc": u32(*[zlib.crc32(b"")] * rods),
    }
    return native(hand_made(columns), bytes(rods * nbytes))


NATIVE = constructs(
    "native",
    "ck",
    rows=(3000, lambda n: native(native_slices(*((row % 4, 1) for row in range(n))))),
    rods=(4800, native_rods),
)

# --- gguf


def gguf_words(count: int) -> bytes:
    """A tokenizer."""
    words = struct.pack("<IQ", 8, count) + b"".join(text(str(number)) for number in range(count))
    return gguf(Info(), fields=[Field("words", 9, words)])


def gguf_shared(count: int) -> bytes:
    """All tensors have the same bytes."""
    infos = [Info(f"t{number}", (8 * count,)) for number in range(count)]
    return gguf(*infos, data=bytes(32 * count))


def gguf_parts(count: int) -> Files:
    name = f"ck-{{:05d}}-of-{count:05d}.gguf"
    return {name.format(k + 1): split(k, count, Info(f"t{k}"), total=count) for k in range(count)}


GGUF = [
    *constructs(
        "gguf",
        "ck.gguf",
        fields=(
            3000,
            lambda n: gguf(Info(), fields=[gguf_number(f"field {k}", k) for k in range(n)]),
        ),
        words=(20000, gguf_words),
        shared=(1000, gguf_shared),
        duplicates=(2000, lambda n: gguf(*[Info()] * n)),
    ),
    *constructs("gguf", "ck", parts=(200, gguf_parts)),
]

# --- PyTorch


def of_one_tensor(made: bytes, count: int) -> bytes:
    """A file in which all keys have one tensor."""
    keys = b"".join(torch_file.text(f"k{n}") + b"h\x00" for n in range(count))
    return torch_file.archive(made + b"q\x00" + b"0}(" + keys + b"u", ("data/0", bytes(16)))


def pt_ranks_keys(count: int) -> bytes:
    """All keys have one strided shard, which lies in two regions."""
    local = torch_file.tensor(2, 2)
    made = torch_file.dtensor(4, local, 2, "_StridedShard", split_factor=torch_file.number(2))
    return of_one_tensor(made, count)


def dcp_items(count: int) -> Files:
    """One tensor in slices of two rows, each with an item."""
    item = torch_file.ITEM
    at = [torch_file.size(2 * k, 0) for k in range(count)]
    slices = torch_file.slices(*((each, torch_file.size(2, 2)) for each in at))
    places = torch_file.places(
        *((each, "__0_0.distcp", k * len(item), len(item)) for k, each in enumerate(at))
    )
    return {
        ".metadata": torch_file.metadata(slices, places, torch_file.size(2 * count, 2)),
        "__0_0.distcp": item * count,
    }


def dcp_hints(count: int) -> Files:
    """The same item again and again, each time with a hint that is one list of as many numbers."""
    item, at = torch_file.ITEM, torch_file.size(0, 0)
    many = b"](" + torch_file.number(2**62) * count + b"e" + b"q\xff"
    hints = [many, *[b"h\xff"] * (count - 1)]
    places = torch_file.places(*[(at, "__0_0.distcp", 0, len(item))] * count, hints=hints)
    slices = torch_file.slices((at, torch_file.size(2, 2)))
    return {
        ".metadata": torch_file.metadata(slices, places, torch_file.size(2, 2)),
        "__0_0.distcp": item,
    }


RANKS = ("ck_world_size_1", "ck_world_size_1_rank_0.pt")
TORCH = [
    *constructs("dcp", ".metadata", items=(300, dcp_items), hints=(1000, dcp_hints)),
    *constructs(
        "pt",
        "ck.pt",
        keys=(1000, lambda n: of_one_tensor(torch_file.tensor(2, 2), n)),
        # Tuples in each other, and lists of empty values: a byte each.
        nested=(50_000, lambda n: torch_file.archive(b"N" + b"\x85" * n)),
        empty_lists=(50_000, lambda n: torch_file.archive(b"](" + b"]" * n + b"e")),
        empty_dicts=(50_000, lambda n: torch_file.archive(b"](" + b"}" * n + b"e")),
        # And a dict: so each is a value of its own.
        none=(4000, lambda n: torch_file.archive(b"](" + b"N" * n + b"}e")),
    ),
    *constructs("pt", RANKS[0], ranks_keys=(1000, lambda n: {RANKS[1]: pt_ranks_keys(n)})),
    *constructs("llama", "consolidated", keys=(500, llama_keys), experts=(20, llama_experts)),
    *constructs("rankwise", "metadata.pkl", tensors=(300, rankwise_tensors)),
    *constructs("universal", "", parameters=(150, universal_parameters)),
]

# --- Zarr and Orbax


def zarr_axes(count: int) -> Files:
    """Arrays of 32 axes."""
    described = zarr.array(shape=[4] + [1] * 31, chunk_grid=zarr.grid(4, *[1] * 31))
    one = zarr.zarr(described, **{"_".join(["c", *"0" * 32]): zarr.VALUES})
    return {name.replace("t/", f"t{n}/", 1): one[name] for n in range(count) for name in one}


def zarr_files(count: int) -> Files:
    """The chunks of one array, an element each."""
    described = zarr.array(shape=[count], chunk_grid=zarr.grid(1))
    return zarr.zarr(described, **{f"c_{number}": zarr.VALUES[:4] for number in range(count)})


def zarr_absent(count: int) -> Files:
    """The chunks of one array, which are absent."""
    return zarr.zarr(
        zarr.array(shape=[count], chunk_grid=zarr.grid(1), attributes={"pad": "x" * 400 * count})
    )


def zarr_codecs(count: int) -> Files:
    """Codecs of one array, each of which copies the chunk."""
    codecs = [zarr.BYTES, *[{"name": "zstd"}] * count]
    return zarr.zarr(zarr.array(codecs=codecs), c_0=zarr.VALUES)


def orbax_lost(count: int) -> Files:
    """Leaves whose arrays are not there."""
    return zarr.orbax(*(zarr.leaf(f"t{number}") for number in range(count)))


def orbax_nodes(count: int) -> Files:
    """A node for each key, which is of no array."""
    keys = [f"k{number:06}" for number in range(count)]
    nodes = [ocdbt.keyed([key]) for key in keys]
    places = [(number * len(nodes[0]), len(nodes[0])) for number in range(count)]
    return ocdbt.GOOD_TREE | ocdbt.rooted(*nodes, ocdbt.branch(keys, 0, places), height=1)


def orbax_files(count: int) -> Files:
    """A node with the paths of as many files, which are not there."""
    names = [(f"ocdbt.process_{number}/", "d/" + "a" * 32) for number in range(count)]
    body = bytes([0]) + ocdbt.paths(*names) + bytes([1]) + ocdbt.column(1) + b"k" + bytes(2)
    return ocdbt.GOOD_TREE | ocdbt.rooted(ocdbt.frame(ocdbt.NODE, body))


ZARR = [
    *constructs(
        "zarr",
        "zarr.json",
        files=(500, zarr_files),
        absent=(2000, zarr_absent),
        axes=(20, zarr_axes),
        codecs=(500, zarr_codecs),
    ),
    *constructs(
        "orbax",
        "_METADATA",
        nodes=(2000, orbax_nodes),
        files=(3000, orbax_files),
        lost=(2000, orbax_lost),
        # Paths that repeat the names of all before.
        steps=(20000, lambda n: zarr.orbax(zarr.leaf(*["t"] * n), zarr.leaf("t"))),
    ),
]

# --- flax


def flax_keys(count: int, value: Any) -> bytes:
    return flax.packed({f"key{number}": value for number in range(count)})


def flax_levels(count: int) -> bytes:
    """Values below long names that each key repeats."""
    values: dict[str, Any] = {f"{number}": number for number in range(count // 40)}
    for _ in range(40):
        values = {"name of a level" * 2: values}
    return flax.packed(values)


def flax_chunks(count: int) -> bytes:
    """An array of many chunks."""
    return flax.packed({"t": flax.chunks((4 * count,), *[flax.array((4,))] * count)})


def flax_set_files(count: int) -> bytes:
    """The index of a set whose files are missing."""
    return flax.index({f"key/{n}": f"ck-{n + 1:05d}-of-{count:05d}.msgpack" for n in range(count)})


FLAX = [
    *constructs(
        "flax",
        "ck.msgpack",
        values=(3000, lambda n: flax_keys(n, 1)),
        list=(30_000, lambda n: flax.packed({"key": [*range(n)], "t": flax.array()})),
        empties=(30_000, lambda n: flax.packed({"maps": [{}] * n, "lists": [[]] * n})),
        levels=(20_000, flax_levels),
        chunks=(2000, flax_chunks),
        refused=(1000, lambda n: flax_keys(n, flax.array(dtype="object"))),
    ),
    *constructs("flax", "ck.msgpack.index.json", set_files=(500, flax_set_files)),
]

# --- onnx


def onnx_graphs(count: int) -> bytes:
    """Tensors in graphs of nodes with long names, which each key repeats."""
    inner = onnx.graph(*(onnx.tensor(f"key{number}") for number in range(count // 40)))
    for _ in range(40):
        attribute = proto((1, b"then_branch"), (6, inner))
        inner = onnx.graph(nodes=[onnx.node("name of an output", attribute)])
    return proto((1, 8), (7, inner))


def onnx_varints(count: int) -> bytes:
    """One tensor of varints."""
    return onnx.model(onnx.tensor("t", (count,), onnx.INT64, b"\1" * count, onnx.INT64_DATA))


def onnx_texts(count: int) -> bytes:
    texts = [(onnx.STRING_DATA, b"ab")] * count
    return onnx.model(onnx.tensor("t", (count,), onnx.TEXT, None, onnx.RAW, *texts))


def onnx_external(count: int) -> Files:
    """Tensors of the same few bytes of a file."""
    tensors = [onnx.external(f"key{number}", location="data") for number in range(count)]
    return {"ck.onnx": onnx.model(*tensors), "data": bytes(16)}


def onnx_locations(count: int) -> Files:
    """Tensors that are each in a file that is missing."""
    tensors = [onnx.external(f"key{number}", location=f"data{number}") for number in range(count)]
    return {"ck.onnx": onnx.model(*tensors)}


ONNX = constructs(
    "onnx",
    "ck.onnx",
    nodes=(5000, lambda n: onnx.model(onnx.tensor(), nodes=[onnx.node("n")] * n)),
    graphs=(10_000, onnx_graphs),
    varints=(100_000, onnx_varints),
    texts=(20_000, onnx_texts),
    duplicates=(3000, lambda n: onnx.model(*[onnx.tensor()] * n)),
    external=(1000, onnx_external),
    locations=(1000, onnx_locations),
)

# --- keras


def hdf5(fill: Callable[[Any], object]) -> bytes:
    """The bytes of a file of h5py, which is needed for this alone."""
    import h5py

    octets = io.BytesIO()
    with h5py.File(octets, "w") as file:
        fill(file)
    return octets.getvalue()


def keras_file(count: int, **how: object) -> bytes:
    def fill(file: Any) -> None:
        for number in range(count):
            file.create_dataset(
                f"layers/dense_{number}/vars/0", data=np.full(4, number, "<f4"), **how
            )

    return hdf5(fill)


def keras_links(count: int) -> bytes:
    """One array under many names, and soft links to it."""

    def fill(file: Any) -> None:
        file["t"] = np.zeros(4)
        for number in range(count):
            file[f"hard {number}"] = file["t"]
            file.id.links.create_soft(b"soft %d" % number, b"/t")

    return hdf5(fill)


def keras_index(count: int, files: Callable[[int], Any]) -> bytes:
    layers = {f"/layers/dense_{number}/vars": files(number) for number in range(count)}
    return json.dumps({"weight_map": layers}).encode()


def keras_set_layers(count: int) -> Files:
    """The index of a set whose layers are not in its file."""
    index = keras_index(count, lambda _: ["ck_00000.weights.h5"])
    return {"ck.weights.json": index, "ck_00000.weights.h5": keras_file(1)}


KERAS = [
    *constructs(
        "keras",
        "ck.weights.h5",
        # Small arrays that h5py decodes one by one.
        decoded=(200, lambda n: keras_file(n, chunks=(2,))),
        links=(500, keras_links),
    ),
    *constructs(
        "keras",
        "ck.weights.json",
        set_layers=(1000, keras_set_layers),
        # Files that are missing.
        set_files=(500, lambda n: keras_index(n, lambda k: f"ck_{k:05}.weights.h5")),
    ),
]

KINDS: list[Iterable[Construct]] = [
    KEYS,
    BUNDLES,
    GRAPHS,
    SAFETENSORS,
    NPZ,
    TORCH,
    GGUF,
    ZARR,
    FLAX,
    ONNX,
    KERAS,
    NATIVE,
]
KINDS += [row.growing for row in EVIDENCE.values()]
CONSTRUCTS = [construct for kind in KINDS for construct in kind]
