"""Checkpoints of any size, each of a construct whose cost some reader did not bound: data for the
tests of cost.

``files(n)`` of a construct holds n of something: keys, slices, fields, nodes. A file of 2n is about
twice as large, and no verb may take more than about twice the time and the memory for it.
"""

import io
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from math import isqrt
from typing import Any

import numpy as np

from shardvar.formats.tensorflow.contents import slice_key
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

# --- TensorFlow

_HEADER = proto((1, 1), (3, proto((1, 1))))


def bundle(*entries: tuple[bytes, bytes], data: bytes = bytes(16)) -> Files:
    """A bundle of one data file."""
    index = table(block([(b"", _HEADER), *sorted(entries)]))
    return {"ck.index": index, "ck.data-00000-of-00001": data}


def shared_block(count: int, first: bytes, value: bytes) -> bytes:
    """A table block whose keys each add two bytes to the first one."""
    body = varint(0) + varint(0) + varint(len(_HEADER)) + _HEADER
    body += varint(0) + varint(len(first)) + varint(len(value)) + first + value
    for number in range(count):
        shared = len(first)
        body += (
            varint(shared) + varint(4) + varint(len(value)) + struct.pack(">I", number + 1) + value
        )
    return body + struct.pack("<II", 0, 1)


def tf_key_prefixes(count: int) -> Files:
    index = table(shared_block(count, b"k" * 8 * count, bundle_entry()))
    return {"ck.index": index, "ck.data-00000-of-00001": bytes(16)}


def tf_key_prefixes_of_allowed_keys(count: int) -> Files:
    index = table(shared_block(count, b"k" * 60_000, bundle_entry()))
    return {"ck.index": index, "ck.data-00000-of-00001": bytes(16)}


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
    return {"ck.index": octets, "ck.data-00000-of-00001": bytes(16)}


def tf_keys(count: int) -> Files:
    return bundle(*((b"key%08d" % number, bundle_entry()) for number in range(count)))


def tf_shared_payload(count: int) -> Files:
    """All tensors have the same bytes, which are as long as there are tensors."""
    data = bytes(16 * count)
    entry = bundle_entry((4 * count,), 16 * count, data=data)
    return bundle(*((b"key%08d" % number, entry) for number in range(count)), data=data)


def tf_shapes(count: int) -> Files:
    dim = proto((2, proto((2, proto((1, 1))))))
    return bundle((b"t", proto((1, 1)) + dim * count + proto((5, 16))))


def tf_axes(count: int) -> Files:
    return bundle((b"t", bundle_entry([1] * count)))


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
    return bundle(
        *(
            (b"%08d" % number + b"a\x1b[31m/" * 400, bundle_entry())
            for number in range(count // 100)
        )
    )


def graph_bundle(nodes: Sequence[bytes], values: Sequence[bytes] = ()) -> Files:
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


def value(key: bytes, attribute: bytes = b"VARIABLE_VALUE") -> bytes:
    return proto((2, proto((1, attribute), (2, b""), (3, key))))


def child(number: int, name: bytes) -> bytes:
    return proto((1, proto((1, number), (2, name))))


def graph_states(count: int) -> Files:
    """One object with many attributes, all of one key."""
    key = b"a/.ATTRIBUTES/s"
    node = b"".join(value(key, b"attribute%d" % number) for number in range(count))
    return graph_bundle([child(1, b"a"), node], [key])


def graph_children(count: int) -> Files:
    names = [b"v%d" % number for number in range(count)]
    root = b"".join(child(number + 1, name) for number, name in enumerate(names))
    return graph_bundle(
        [root, *(value(name + VALUE) for name in names)], [name + VALUE for name in names]
    )


def graph_chain(count: int) -> Files:
    nodes = [child(number + 1, b"c") for number in range(count)]
    return graph_bundle([*nodes, value(b"v" + VALUE)], [b"v" + VALUE])


def graph_names_of_one(count: int) -> Files:
    """One variable under many names."""
    root = b"".join(child(1, b"name%d" % number) for number in range(count))
    return graph_bundle([root, value(b"v" + VALUE)], [b"v" + VALUE])


def graph_keras(count: int) -> Files:
    """An optimizer that names one list of slots many times."""
    variables = b"".join(child(3, b"%d" % number) for number in range(count))
    slots = b"".join(child(2, b"list%d" % number) for number in range(count))
    optimizer = child(1, b"_trainable_variables") + slots
    return graph_bundle([optimizer, variables, variables, value(b"v" + VALUE)], [b"v" + VALUE])


def graph_keras_owners(count: int) -> Files:
    """Many optimizers that share one list of variables and one list of slots."""
    variables = b"".join(child(3, b"%d" % number) for number in range(count))
    owner = child(1, b"_trainable_variables") + child(2, b"_momentums")
    root = b"".join(child(4 + number, b"o%d" % number) for number in range(count))
    nodes = [root, variables, variables, value(b"v" + VALUE), *([owner] * count)]
    return graph_bundle(nodes, [b"v" + VALUE])


def graph_slots(count: int) -> Files:
    """One optimizer with many slots of one variable."""
    slots = b"".join(
        proto((3, proto((1, 2), (2, b"slot%d" % number), (3, 2)))) for number in range(count)
    )
    return graph_bundle(
        [child(1, b"o") + child(2, b"v"), slots, value(b"v" + VALUE)], [b"v" + VALUE]
    )


def graph_lost(count: int) -> Files:
    """Many values that no object has, with control characters in their keys."""
    keys = [b"lost\x1b[31m%d" % number + VALUE for number in range(count)]
    return graph_bundle([b""], keys)


# --- safetensors


def st_file(header: dict[str, object], data: bytes = b"") -> Files:
    return {"ck.safetensors": safetensors(header, data)}


def st_keys(count: int) -> Files:
    return st_file(
        {f"key{number}": tensor(4 * number, 4 * number + 4, (1,)) for number in range(count)},
        bytes(4 * count),
    )


def st_extents(count: int) -> Files:
    return st_file({"t": tensor(0, 16, [2**62] * count)}, bytes(16))


def st_ones(count: int) -> Files:
    return st_file({"t": tensor(0, 4, [1] * count)}, bytes(4))


def st_digits(count: int) -> Files:
    return st_file({"t": tensor(0, 16, [10**4000] * (count // 100))}, bytes(16))


def st_zeros(count: int) -> Files:
    return st_file({"t": tensor(0, 0, [2**62, *[0] * count, *[3] * count])})


def st_metadata(count: int) -> Files:
    return st_file(
        {"__metadata__": {f"name{number}": "text" for number in range(count)}, "t": tensor()},
        bytes(16),
    )


def st_shards(count: int) -> Files:
    """Shards of one slice each, of which every second one is missing."""
    return {
        name: file
        for rank in range(count)
        for name, file in shard(2 * rank + 2, {"t": [4 * rank]}).items()
    }


def st_shard_keys(count: int) -> Files:
    """A shard of many slices, each behind a hole."""
    return shard(1, {f"key{number}": [4 + number] for number in range(count)})


def st_set_files(count: int) -> Files:
    """A set whose tensors are in files that are missing."""
    names = {
        f"key{number}": f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        for number in range(count)
    }
    return {"ck.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": names}).encode()}


def st_set_keys(count: int) -> Files:
    """A set of one file that has none of the tensors."""
    index = {
        "metadata": {"total_size": 10**4000},
        "weight_map": {f"key{n}": "ck.safetensors" for n in range(count)},
    }
    return {
        "ck.safetensors.index.json": json.dumps(index).encode(),
        "ck.safetensors": safetensors({"t": tensor()}),
    }


# --- npz


def npz_keys(count: int) -> Files:
    return {"ck.npz": archive(*(Member(f"key{number}.npy", npy()) for number in range(count)))}


def npz_shared(count: int) -> Files:
    return {"ck.npz": archive(*[Member("key.npy", npy())] * count, is_shared=True)}


def npz_headers(count: int) -> Files:
    """Compressed headers that are all spaces."""

    def member(number: int) -> Member:
        text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (), }".ljust(9900) + b"%08d" % 0
        text = text[:9000] + b" " * 900 + b"\n"
        octets = b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + struct.pack("<f", number)
        packed = zlib.compress(octets, 9)[2:-4]
        return Member(f"key{number}.npy", packed, 8, len(octets), zlib.crc32(octets))

    return {"ck.npz": archive(*map(member, range(count // 10)))}


# --- native


def columns(count: int, **others: object) -> dict[str, object]:
    """The columns of ``count`` tensors, all of one element of the same four bytes."""
    zeros, ones = [0] * count, [1] * count
    keys = [b"key%08d" % number for number in range(count)]
    return {
        "key": b"".join(keys),
        "key_nbytes": u32(*map(len, keys)),
        "dtype": np.zeros(count, "u1"),
        "rank": np.ones(count, "u1"),
        "count": u32(*ones),
        "shape": u64(*ones),
        "extent": u64(*ones),
        "offset": u64(*zeros),
        "nbytes": u64(*ones),
        "start": u64(*zeros),
        "file": u32(*zeros),
        "crc": u32(*zeros),
        **others,
    }


def native_keys(count: int) -> Files:
    return native(hand_made(columns(count, start=u64(*range(count)))), bytes(count))


def native_rows(count: int) -> Files:
    return native(native_slices(*((row % 4, 1) for row in range(count))))


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


# --- gguf


def gguf_keys(count: int) -> Files:
    infos = [Info(f"blk.{number}.weight", (8,), offset=32 * number) for number in range(count)]
    return {"ck.gguf": gguf(*infos, data=bytes(32 * count))}


def gguf_fields(count: int) -> Files:
    return {
        "ck.gguf": gguf(
            Info(), fields=[gguf_number(f"field {number}", number) for number in range(count)]
        )
    }


def gguf_words(count: int) -> Files:
    """A tokenizer."""
    words = struct.pack("<IQ", 8, count) + b"".join(text(str(number)) for number in range(count))
    return {"ck.gguf": gguf(Info(), fields=[Field("words", 9, words)])}


def gguf_shared(count: int) -> Files:
    """All tensors have the same bytes."""
    infos = [Info(f"t{number}", (8 * count,)) for number in range(count)]
    return {"ck.gguf": gguf(*infos, data=bytes(32 * count))}


def gguf_duplicates(count: int) -> Files:
    return {"ck.gguf": gguf(*[Info()] * count)}


def gguf_parts(count: int) -> Files:
    name = f"ck-{{:05d}}-of-{count:05d}.gguf"
    return {name.format(k + 1): split(k, count, Info(f"t{k}"), total=count) for k in range(count)}


def pt_keys(count: int) -> Files:
    """All keys have one tensor."""
    body = (
        torch_file.tensor(2, 2)
        + b"q\x00"
        + b"0}("
        + b"".join(torch_file.text(f"k{n}") + b"h\x00" for n in range(count))
    )
    return {"ck.pt": torch_file.archive(body + b"u", ("data/0", bytes(16)))}


def pt_nested(count: int) -> Files:
    """Tuples in each other, a byte each."""
    return {"ck.pt": torch_file.archive(b"N" + b"\x85" * count)}


def pt_empty_lists(count: int) -> Files:
    """A list of empty lists, a byte each."""
    return {"ck.pt": torch_file.archive(b"](" + b"]" * count + b"e")}


def pt_empty_dicts(count: int) -> Files:
    """A list of empty dicts, a byte each."""
    return {"ck.pt": torch_file.archive(b"](" + b"}" * count + b"e")}


def pt_none(count: int) -> Files:
    """A list of None, a byte each, and a dict: so each is a value of its own."""
    return {"ck.pt": torch_file.archive(b"](" + b"N" * count + b"}e")}


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


def pt_ranks_keys(count: int) -> Files:
    """All keys have one strided shard, which lies in two regions."""
    local = torch_file.tensor(2, 2)
    shard = torch_file.dtensor(4, local, 2, "_StridedShard", split_factor=torch_file.number(2))
    body = (
        shard
        + b"q\x00"
        + b"0}("
        + b"".join(torch_file.text(f"k{n}") + b"h\x00" for n in range(count))
    )
    return {"ck_world_size_1_rank_0.pt": torch_file.archive(body + b"u", ("data/0", bytes(16)))}


# --- Zarr and Orbax


def zarr_arrays(count: int) -> Files:
    group = zarr.zarr(zarr.array(), c_0=zarr.VALUES)
    described, octets = group.pop("t/zarr.json"), group.pop("t/c/0")
    for number in range(count):
        group |= {f"t{number}/zarr.json": described, f"t{number}/c/0": octets}
    return group


def zarr_files(count: int) -> Files:
    """The chunks of one array, an element each."""
    described = zarr.array(shape=[count], chunk_grid=zarr.grid(1))
    return zarr.zarr(described, **{f"c_{number}": zarr.VALUES[:4] for number in range(count)})


def zarr_absent(count: int) -> Files:
    """The chunks of one array, which are absent."""
    return zarr.zarr(
        zarr.array(shape=[count], chunk_grid=zarr.grid(1), attributes={"pad": "x" * 400 * count})
    )


def zarr_axes(count: int) -> Files:
    """Arrays of 32 axes."""
    files = zarr.zarr(zarr.array(shape=[4] + [1] * 31, chunk_grid=zarr.grid(4, *[1] * 31)))
    described = files.pop("t/zarr.json")
    for number in range(count):
        files |= {
            f"t{number}/zarr.json": described,
            "/".join([f"t{number}/c", *"0" * 32]): zarr.VALUES,
        }
    return files


def zarr_codecs(count: int) -> Files:
    """Codecs of one array, each of which copies the chunk."""
    codecs = [zarr.BYTES, *[{"name": "zstd"}] * count]
    return zarr.zarr(zarr.array(codecs=codecs), c_0=zarr.VALUES)


def orbax_leaves(count: int) -> Files:
    files = zarr.orbax(*(zarr.leaf(f"t{number}") for number in range(count)))
    described = files.pop("t/.zarray")
    chunks = {name: files.pop(f"t/{name}") for name in ("0", "1")}
    for number in range(count):
        files |= {f"t{number}/.zarray": described}
        files |= {f"t{number}/{name}": octets for name, octets in chunks.items()}
    return files


def orbax_lost(count: int) -> Files:
    """Leaves whose arrays are not there."""
    return zarr.orbax(*(zarr.leaf(f"t{number}") for number in range(count)))


def orbax_steps(count: int) -> Files:
    """Leaves whose paths repeat the names of all before."""
    return zarr.orbax(zarr.leaf(*["t"] * count), zarr.leaf("t"))


def orbax_database(count: int) -> Files:
    """Leaves whose arrays are values in a node."""
    files = zarr.orbax(*(zarr.leaf(f"t{number:06}") for number in range(count)), use_ocdbt=True)
    described = files.pop("t/.zarray")
    values: dict[str, bytes | ocdbt.Span] = {}
    for number in range(count):
        values |= {f"t{number:06}/.zarray": described, f"t{number:06}/0": zarr.VALUES[:8]}
        values |= {f"t{number:06}/1": zarr.VALUES[8:]}
    return {"_METADATA": files["_METADATA"]} | ocdbt.rooted(ocdbt.leaf(values, ("", "d/0")))


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


# --- flax


def flax_arrays(count: int) -> Files:
    return {"ck.msgpack": flax.packed({f"key{number}": flax.array() for number in range(count)})}


def flax_values(count: int) -> Files:
    """Plain values, which are objects."""
    return {"ck.msgpack": flax.packed({f"key{number}": number for number in range(count)})}


def flax_list(count: int) -> Files:
    """One value of many numbers."""
    return {"ck.msgpack": flax.packed({"key": [*range(count)], "t": flax.array()})}


def flax_empties(count: int) -> Files:
    """Maps and lists without values, of a byte each."""
    return {"ck.msgpack": flax.packed({"maps": [{}] * count, "lists": [[]] * count})}


def flax_levels(count: int) -> Files:
    """Values below long names that each key repeats."""
    values: dict[str, Any] = {f"{number}": number for number in range(count // 40)}
    for _ in range(40):
        values = {"name of a level" * 2: values}
    return {"ck.msgpack": flax.packed(values)}


def flax_chunks(count: int) -> Files:
    """An array of many chunks."""
    chunk = flax.array((4,))
    return {"ck.msgpack": flax.packed({"t": flax.chunks((4 * count,), *[chunk] * count)})}


def flax_refused(count: int) -> Files:
    """Arrays whose dtype has no numbers."""
    arrays = {f"key{number}": flax.array(dtype="object") for number in range(count)}
    return {"ck.msgpack": flax.packed(arrays)}


def flax_set_files(count: int) -> Files:
    """The index of a set whose files are missing."""
    names = {f"key/{n}": f"ck-{n + 1:05d}-of-{count:05d}.msgpack" for n in range(count)}
    return {"ck.msgpack.index.json": flax.index(names)}


# --- onnx


def onnx_tensors(count: int) -> Files:
    return {"ck.onnx": onnx.model(*(onnx.tensor(f"key{number}") for number in range(count)))}


def onnx_nodes(count: int) -> Files:
    """Nodes without tensors."""
    return {"ck.onnx": onnx.model(onnx.tensor(), nodes=[onnx.node("n")] * count)}


def onnx_graphs(count: int) -> Files:
    """Tensors in graphs of nodes with long names, which each key repeats."""
    inner = onnx.graph(*(onnx.tensor(f"key{number}") for number in range(count // 40)))
    for _ in range(40):
        attribute = proto((1, b"then_branch"), (6, inner))
        inner = onnx.graph(nodes=[onnx.node("name of an output", attribute)])
    return {"ck.onnx": proto((1, 8), (7, inner))}


def onnx_varints(count: int) -> Files:
    """One tensor of varints."""
    tensor = onnx.tensor("t", (count,), onnx.INT64, b"\1" * count, onnx.INT64_DATA)
    return {"ck.onnx": onnx.model(tensor)}


def onnx_texts(count: int) -> Files:
    texts = [(onnx.STRING_DATA, b"ab")] * count
    tensor = onnx.tensor("t", (count,), onnx.TEXT, None, onnx.RAW, *texts)
    return {"ck.onnx": onnx.model(tensor)}


def onnx_external(count: int) -> Files:
    """Tensors of the same few bytes of a file."""
    tensors = [onnx.external(f"key{number}", location="data") for number in range(count)]
    return {"ck.onnx": onnx.model(*tensors), "data": bytes(16)}


def onnx_locations(count: int) -> Files:
    """Tensors that are each in a file that is missing."""
    tensors = [onnx.external(f"key{number}", location=f"data{number}") for number in range(count)]
    return {"ck.onnx": onnx.model(*tensors)}


def onnx_duplicates(count: int) -> Files:
    return {"ck.onnx": onnx.model(*[onnx.tensor()] * count)}


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


def keras_keys(count: int) -> Files:
    return {"ck.weights.h5": keras_file(count)}


def keras_decoded(count: int) -> Files:
    """Small arrays that h5py decodes one by one."""
    return {"ck.weights.h5": keras_file(count, chunks=(2,))}


def keras_links(count: int) -> Files:
    """One array under many names, and soft links to it."""

    def fill(file: Any) -> None:
        file["t"] = np.zeros(4)
        for number in range(count):
            file[f"hard {number}"] = file["t"]
            file.id.links.create_soft(b"soft %d" % number, b"/t")

    return {"ck.weights.h5": hdf5(fill)}


def keras_set_layers(count: int) -> Files:
    """The index of a set whose layers are not in its file."""
    layers = {f"/layers/dense_{number}/vars": ["ck_00000.weights.h5"] for number in range(count)}
    index = json.dumps({"weight_map": layers}).encode()
    return {"ck.weights.json": index, "ck_00000.weights.h5": keras_file(1)}


def keras_set_files(count: int) -> Files:
    """The index of a set whose files are missing."""
    layers = {
        f"/layers/dense_{number}/vars": f"ck_{number:05}.weights.h5" for number in range(count)
    }
    return {"ck.weights.json": json.dumps({"weight_map": layers}).encode()}


CONSTRUCTS = [
    Construct("tf key prefixes", "ck", tf_key_prefixes, 2000),
    Construct("tf key prefixes of allowed keys", "ck", tf_key_prefixes_of_allowed_keys, 2000),
    Construct("tf nested blocks", "ck", tf_nested_blocks, 1000),
    Construct("tf keys", "ck", tf_keys, 500),
    Construct("tf shared payload", "ck", tf_shared_payload, 500),
    Construct("tf shapes", "ck", tf_shapes, 20000),
    Construct("tf axes", "ck", tf_axes, 5000),
    Construct("tf files", "ck", tf_files, 300),
    Construct("tf strings", "ck", tf_strings, 30000),
    Construct("tf slices", "ck", tf_slices, 500),
    Construct("tf slices listed often", "ck", tf_slices_listed_often, 1000),
    Construct("tf long keys", "ck", tf_long_keys, 3000),
    Construct("graph states", "ck", graph_states, 2000),
    Construct("graph children", "ck", graph_children, 300),
    Construct("graph chain", "ck", graph_chain, 3000),
    Construct("graph names of one", "ck", graph_names_of_one, 3000),
    Construct("graph keras", "ck", graph_keras, 1000),
    Construct("graph keras owners", "ck", graph_keras_owners, 1000),
    Construct("graph slots", "ck", graph_slots, 3000),
    Construct("graph lost", "ck", graph_lost, 300),
    Construct("safetensors keys", "ck.safetensors", st_keys, 500),
    Construct("safetensors extents", "ck.safetensors", st_extents, 5000),
    Construct("safetensors ones", "ck.safetensors", st_ones, 20000),
    Construct("safetensors digits", "ck.safetensors", st_digits, 3000),
    Construct("safetensors zeros", "ck.safetensors", st_zeros, 5000),
    Construct("safetensors metadata", "ck.safetensors", st_metadata, 3000),
    Construct("safetensors shards", "shard-00002-model-00001-of-00001.safetensors", st_shards, 200),
    Construct(
        "safetensors shard keys", "shard-00001-model-00001-of-00001.safetensors", st_shard_keys, 500
    ),
    Construct("safetensors set files", "ck.safetensors.index.json", st_set_files, 300),
    Construct("safetensors set keys", "ck.safetensors.index.json", st_set_keys, 2000),
    Construct("npz keys", "ck.npz", npz_keys, 500),
    Construct("npz shared", "ck.npz", npz_shared, 1000),
    Construct("npz headers", "ck.npz", npz_headers, 1000),
    Construct("dcp items", ".metadata", dcp_items, 300),
    Construct("dcp hints", ".metadata", dcp_hints, 1000),
    Construct("pt keys", "ck.pt", pt_keys, 1000),
    Construct("pt nested", "ck.pt", pt_nested, 50_000),
    Construct("pt empty lists", "ck.pt", pt_empty_lists, 50_000),
    Construct("pt empty dicts", "ck.pt", pt_empty_dicts, 50_000),
    Construct("pt none", "ck.pt", pt_none, 4000),
    Construct("pt ranks keys", "ck_world_size_1", pt_ranks_keys, 1000),
    Construct("llama keys", "consolidated", llama_keys, 500),
    Construct("rankwise tensors", "metadata.pkl", rankwise_tensors, 300),
    Construct("universal parameters", "", universal_parameters, 150),
    Construct("llama experts", "consolidated", llama_experts, 20),
    Construct("gguf keys", "ck.gguf", gguf_keys, 1000),
    Construct("gguf fields", "ck.gguf", gguf_fields, 3000),
    Construct("gguf words", "ck.gguf", gguf_words, 20000),
    Construct("gguf shared", "ck.gguf", gguf_shared, 1000),
    Construct("gguf duplicates", "ck.gguf", gguf_duplicates, 2000),
    Construct("gguf parts", "ck", gguf_parts, 200),
    Construct("zarr arrays", "zarr.json", zarr_arrays, 150),
    Construct("zarr files", "zarr.json", zarr_files, 500),
    Construct("zarr absent", "zarr.json", zarr_absent, 2000),
    Construct("zarr axes", "zarr.json", zarr_axes, 20),
    Construct("zarr codecs", "zarr.json", zarr_codecs, 500),
    Construct("orbax leaves", "_METADATA", orbax_leaves, 150),
    Construct("orbax database", "_METADATA", orbax_database, 300),
    Construct("orbax nodes", "_METADATA", orbax_nodes, 2000),
    Construct("orbax files", "_METADATA", orbax_files, 3000),
    Construct("orbax lost", "_METADATA", orbax_lost, 2000),
    Construct("orbax steps", "_METADATA", orbax_steps, 20000),
    Construct("flax arrays", "ck.msgpack", flax_arrays, 1000),
    Construct("flax values", "ck.msgpack", flax_values, 3000),
    Construct("flax list", "ck.msgpack", flax_list, 30_000),
    Construct("flax empties", "ck.msgpack", flax_empties, 30_000),
    Construct("flax levels", "ck.msgpack", flax_levels, 20_000),
    Construct("flax chunks", "ck.msgpack", flax_chunks, 2000),
    Construct("flax refused", "ck.msgpack", flax_refused, 1000),
    Construct("flax set files", "ck.msgpack.index.json", flax_set_files, 500),
    Construct("onnx tensors", "ck.onnx", onnx_tensors, 1000),
    Construct("onnx nodes", "ck.onnx", onnx_nodes, 5000),
    Construct("onnx graphs", "ck.onnx", onnx_graphs, 10_000),
    Construct("onnx varints", "ck.onnx", onnx_varints, 100_000),
    Construct("onnx texts", "ck.onnx", onnx_texts, 20_000),
    Construct("onnx external", "ck.onnx", onnx_external, 1000),
    Construct("onnx locations", "ck.onnx", onnx_locations, 1000),
    Construct("onnx duplicates", "ck.onnx", onnx_duplicates, 3000),
    Construct("keras keys", "ck.weights.h5", keras_keys, 300),
    Construct("keras decoded", "ck.weights.h5", keras_decoded, 200),
    Construct("keras links", "ck.weights.h5", keras_links, 500),
    Construct("keras set layers", "ck.weights.json", keras_set_layers, 1000),
    Construct("keras set files", "ck.weights.json", keras_set_files, 500),
    Construct("native keys", "ck", native_keys, 2000),
    Construct("native rows", "ck", native_rows, 3000),
    Construct("native rods", "ck", native_rods, 4800),
    *(construct for row in EVIDENCE.values() for construct in row.growing),
]
