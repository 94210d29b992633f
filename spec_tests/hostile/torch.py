"""Hostile checkpoints of PyTorch. Pickles are assembled opcode by opcode, archives without
compression."""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from spec_tests.hostile.case import PICTURE, Case, Files

DCP = "torch.distributed.checkpoint"


def text(value: str) -> bytes:
    octets = value.encode()
    return b"X" + struct.pack("<I", len(octets)) + octets


def number(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def pair(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def mapping(**items: bytes) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def call(module: str, attribute: str, *args: bytes) -> bytes:
    return name(module, attribute) + pair(*args) + b"R"


def instance(module: str, attribute: str, state: bytes) -> bytes:
    return name(module, attribute) + b")\x81" + state + b"b"


def size(*extents: int) -> bytes:
    return call("torch", "Size", pair(*map(number, extents)))


def whole_pickle(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


RUN = call("posix", "system", text("touch SHARDVAR_MARKER"))
VALUES = struct.pack("<4f", 0, 1, 2, 3)


def tensor(*shape: int, offset: int = 0, count: int = 4) -> bytes:
    storage = (
        pair(text("storage"), name("torch", "FloatStorage"), text("0"), text("cpu"), number(count))
        + b"Q"
    )
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    extents = pair(*map(number, shape)), pair(*map(number, strides))
    return call(
        "torch._utils", "_rebuild_tensor_v2", storage, number(offset), *extents, b"\x89", b"}"
    )


def archive(body: bytes, *records: tuple[str, bytes]) -> bytes:
    """An archive as torch.save writes it, with these records beside the pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as zipped:
        for record, octets in [("data.pkl", whole_pickle(body)), *records]:
            zipped.writestr(zipfile.ZipInfo(f"archive/{record}", (1980, 1, 1, 0, 0, 0)), octets)
    return buffer.getvalue()


def dtensor(rows: int, local: bytes, count: int, kind: str = "Shard", **fields: bytes) -> bytes:
    """A DTensor of ``rows`` x 2 on a mesh of ``count`` devices, of which the first one keeps
    ``local``."""
    layout = instance(
        "torch.distributed._mesh_layout", "_MeshLayout", mapping(shape=pair(number(count)))
    )
    at = pair(number(0))
    mesh = instance(
        "torch.distributed.device_mesh",
        "DeviceMesh",
        mapping(_layout=layout, _coordinate_on_dim=at),
    )
    placement = instance(
        "torch.distributed.tensor.placement_types", kind, mapping(dim=number(0), **fields)
    )
    spec = mapping(mesh=mesh, placements=pair(placement))
    state = mapping(
        _local_tensor=local,
        _spec=instance("torch.distributed.tensor._dtensor_spec", "DTensorSpec", spec),
    )
    subclass = name("torch.distributed.tensor", "DTensor")
    about = pair(subclass, name("torch", "float32"), size(rows, 2))
    function = name("torch._utils", "_rebuild_wrapper_subclass")
    return call(
        "torch._tensor", "_rebuild_from_type_v2", function, subclass, about, pair(b"N", state)
    )


ITEM = archive(tensor(2, 2), ("data/0", VALUES), ("version", b"3\n"))


def metadata(slices: bytes, places: bytes, shape: bytes) -> bytes:
    """An index of one tensor, ``t``."""
    dtype = pair(name("torch", "float32"), b"N", b"\x89", b"N", b"\x89")
    properties = instance(f"{DCP}.metadata", "TensorProperties", dtype)
    described = mapping(properties=properties, size=shape, chunks=slices)
    stored = instance(f"{DCP}.metadata", "TensorStorageMetadata", described)
    state = mapping(state_dict_metadata=mapping(t=stored), storage_data=places)
    return whole_pickle(instance(f"{DCP}.metadata", "Metadata", state))


def slices(*regions: tuple[bytes, bytes]) -> bytes:
    kind = f"{DCP}.metadata", "ChunkStorageMetadata"
    return (
        b"]("
        + b"".join(instance(*kind, mapping(offsets=at, sizes=shape)) for at, shape in regions)
        + b"e"
    )


def places(*items: tuple[bytes, str, int, int], hints: Sequence[bytes] = ()) -> bytes:
    """Where the items are: the offset of the slice, the file, the offset there, and the length.

    ``hints`` are the first attributes ``index``, by which torch finds a slice faster, and which it
    does not compare.
    """
    pairs = [
        instance(f"{DCP}.metadata", "MetadataIndex", mapping(fqn=text("t"), offset=at, **hint))
        + instance(
            f"{DCP}.filesystem",
            "_StorageInfo",
            mapping(relative_path=text(file), offset=number(start), length=number(nbytes)),
        )
        for (at, file, start, nbytes), hint in zip_longest(
            items, [{"index": hint} for hint in hints], fillvalue={}
        )
    ]
    return b"}(" + b"".join(pairs) + b"u"


def dcp(file: str = "__0_0.distcp", rows: int = 2, items: bytes | None = None) -> Files:
    found = items or places((size(0, 0), file, 0, len(ITEM)))
    return {
        ".metadata": metadata(slices((size(0, 0), size(2, 2))), found, size(rows, 2)),
        "__0_0.distcp": ITEM,
    }


def laughs() -> bytes:
    """Forty dicts, each of which holds the one before it twice."""
    body = b"}q\x00"
    for at in range(40):
        before = b"h" + bytes([at])
        body += b"0}(" + text("a") + before + text("b") + before + b"uq" + bytes([at + 1])
    return body


def case(label: str, path: str, error: str, why: str, files: Files | bytes) -> Case:
    return Case(
        f"torch_{label}", path, error, why, {path: files} if isinstance(files, bytes) else files
    )


def index_cases() -> Iterator[Case]:
    """Cases of the index of a distributed checkpoint."""
    index = ".metadata"
    yield case(
        "run_index", index, "InvalidCheckpoint", "The index calls a function.", whole_pickle(RUN)
    )
    dotted = (
        b"\x80\x04"
        + text("torch.serialization")
        + text("os.system")
        + b"\x93"
        + pair(text("true"))
        + b"R."
    )
    yield case(
        "dotted",
        index,
        "InvalidCheckpoint",
        "An allowed module, and a name that walks out of it.",
        dotted,
    )
    huge = b"\x80\x02Nr" + struct.pack("<I", 2**31 - 1) + b"."
    yield case("memo", index, "MalformedCheckpoint", "A number that a memo is sized by.", huge)
    claim = b"\x80\x04\x8d" + struct.pack("<Q", 2**60) + b"."
    yield case("text", index, "MalformedCheckpoint", "A text of 2**60 bytes is sliced.", claim)
    deep = b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b"."
    yield case(
        "nested",
        index,
        "MalformedCheckpoint",
        "100,000 tuples in each other: a reader recurses.",
        deep,
    )
    yield case(
        "foreign", index, "MalformedCheckpoint", "A picture under the name of an index.", PICTURE
    )
    outside = dcp("../torch_dotdot/__0_0.distcp")
    yield case(
        "dotdot", index, "InvalidCheckpoint", "An item is in a file outside of the folder.", outside
    )
    yield case(
        "huge",
        index,
        "IncompleteCheckpoint",
        "2**50 rows are claimed and two stored.",
        dcp(rows=2**50),
    )
    region = size(0, 0), size(0, 2**61)
    nothing = {".metadata": metadata(slices(region), b"}", region[1])}
    yield case(
        "wide_and_empty",
        index,
        "InvalidCheckpoint",
        "A shape of 0 x 2**61, which NumPy cannot hold.",
        nothing,
    )
    exchanged = dcp() | {"__0_0.distcp": ITEM + ITEM}
    yield case(
        "exchanged",
        index,
        "InvalidCheckpoint",
        "A file is another one that holds a right item.",
        exchanged,
    )
    twice = [(size(0, 0), "__0_0.distcp", start, len(ITEM)) for start in (0, len(ITEM))]
    for label, hint, why in (
        (
            "hint",
            number(-(2**62)),
            "Two items of one slice, which differ in their hints alone: torch takes the last one.",
        ),
        ("run_hint", RUN, "The hint of an item, which nothing needs, is the answer of a function."),
    ):
        items = places(*twice, hints=[number(2**62), hint])
        yield case(
            label, index, "InvalidCheckpoint", why, dcp(items=items) | {"__0_0.distcp": ITEM + ITEM}
        )
    negative = dcp(items=places((size(0, 0), "__0_0.distcp", -1, len(ITEM))))
    yield case("negative", index, "InvalidCheckpoint", "An item begins before its file.", negative)
    cut = dcp() | {"__0_0.distcp": ITEM[:-1]}
    yield case(
        "cut", index, "IncompleteCheckpoint", "The last byte of the last item is missing.", cut
    )


def saved_cases() -> Iterator[Case]:
    """Cases of files of torch.save."""
    file, record = "ck.pt", ("data/0", VALUES)
    yield case("run", file, "InvalidCheckpoint", "The file is a call of a function.", archive(RUN))
    yield case(
        "run_value",
        file,
        "InvalidCheckpoint",
        "A value is a call of a function.",
        archive(mapping(t=RUN)),
    )
    yield case(
        "laughs", file, "InvalidCheckpoint", "2**40 keys, of forty dicts.", archive(laughs())
    )
    cycle = b"]q\x00(}h\x00e"
    yield case(
        "cycle", file, "InvalidCheckpoint", "A list that holds itself and a dict.", archive(cycle)
    )
    deep = mapping(a=number(1), t=b"]" * 50_000 + b"a" * 49_999)
    yield case(
        "deep",
        file,
        "UnsupportedError",
        "50,000 lists in each other: a printer recurses.",
        archive(deep),
    )
    beyond = archive(mapping(t=tensor(3, 2)), record)
    yield case("past_storage", file, "OutOfBounds", "The shape reaches beyond the storage.", beyond)
    nothing = archive(mapping(t=tensor(0, 2**61)), record)
    yield case(
        "saved_wide_and_empty",
        file,
        "InvalidCheckpoint",
        "The same of a file of torch.save.",
        nothing,
    )
    claims = archive(mapping(t=tensor(2, 2, count=2**58)), record)
    yield case(
        "claims",
        file,
        "InvalidCheckpoint",
        "A storage of 2**60 bytes, of which 16 are there.",
        claims,
    )
    twice = archive(mapping(t=tensor(2, 2)), record, ("data/1", bytes(16))).replace(
        b"data/1", b"data/0"
    )
    yield case(
        "duplicate",
        file,
        "InvalidCheckpoint",
        "Two records of one name: readers choose different ones.",
        twice,
    )
    damaged = archive(mapping(t=tensor(2, 2)), record)
    wrong = damaged.replace(struct.pack("<I", zlib.crc32(VALUES)), b"\0\0\0\0")
    yield case(
        "crc",
        file,
        "CorruptCheckpoint",
        "The bytes are not those of the checksum, which torch ignores.",
        wrong,
    )
    yield case("empty", file, "MalformedCheckpoint", "A file of no bytes.", b"")
    index = b'{"weight_map": {"t": "../torch_crc/ck.pt"}}'
    set_path = "pytorch_model.bin.index.json"
    yield case(
        "set_dotdot",
        set_path,
        "InvalidCheckpoint",
        "The index of a set names a file outside.",
        index,
    )


def rank_cases() -> Iterator[Case]:
    """Cases of files of single ranks."""
    lost = "ck_world_size_999999"
    why = (
        "The name of the file claims 999,999 ranks: each of their names is made, or each file "
        "looked for."
    )
    yield case(
        "ranks", lost, "MissingFile", why, {f"{lost}_rank_0.pt": archive(mapping(t=number(1)))}
    )
    ranks, record = "ck_world_size_1", ("data/0", VALUES)
    split = dtensor(2, tensor(2, 2), 1, "_StridedShard", split_factor=number(2**60))
    files = {f"{ranks}_rank_0.pt": archive(mapping(t=split), record)}
    yield case(
        "ranks_split",
        ranks,
        "UnsupportedError",
        "A shard of 2**60 intervals: a list of them is made.",
        files,
    )
    files = {f"{ranks}_rank_0.pt": archive(mapping(t=dtensor(2**20, tensor(2, 2), 2**19)), record)}
    why = (
        "Of 2**20 rows on 2**19 devices two rows are there: the others are read as zeros, or each "
        "device is visited."
    )
    yield case("ranks_hole", ranks, "IncompleteCheckpoint", why, files)
