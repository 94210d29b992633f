"""Hostile checkpoints of PyTorch. Pickles are assembled opcode by opcode, archives without
compression."""

import io
import struct
import zipfile
from collections.abc import Sequence
from itertools import zip_longest

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


VALUES = struct.pack("<4f", 0, 1, 2, 3)


def tensor(
    *shape: int, offset: int = 0, count: int = 4, strides: Sequence[int] | None = None
) -> bytes:
    """A tensor of the storage ``0`` with ``count`` elements; contiguous, or with these strides."""
    storage = (
        pair(text("storage"), name("torch", "FloatStorage"), text("0"), text("cpu"), number(count))
        + b"Q"
    )
    if strides is None:
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
