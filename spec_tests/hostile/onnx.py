"""ONNX models, assembled field by field."""

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate

from spec_tests.hostile.case import PICTURE, Arrays, Case, Evidence, Files
from spec_tests.hostile.tensorflow import proto, varint

FLOAT, INT32, INT64, TEXT, INT4 = 1, 6, 7, 8, 22
RAW, FLOAT_DATA, INT32_DATA, STRING_DATA, INT64_DATA = 9, 4, 5, 6, 7


def tensor(
    name: str = "t",
    dims: Sequence[int] = (4,),
    kind: int = FLOAT,
    data: bytes | None = bytes(16),
    field: int = RAW,
    *more: tuple[int, int | bytes],
) -> bytes:
    """A tensor; ``data`` is what one of its fields has."""
    shape = b"".join(proto((1, each)) for each in dims)
    held = () if data is None else ((field, data),)
    return shape + proto((2, kind), (8, name.encode()), *held, *more)


def external(
    name: str = "t", dims: Sequence[int] = (4,), kind: int = FLOAT, **facts: object
) -> bytes:
    """A tensor whose elements are in another file."""
    pairs = (
        (13, proto((1, key.encode()), (2, str(value).encode()))) for key, value in facts.items()
    )
    return tensor(name, dims, kind, None, RAW, *pairs, (14, 1))


def graph(*initializers: bytes, nodes: Sequence[bytes] = (), sparse: Sequence[bytes] = ()) -> bytes:
    return proto(
        *((1, each) for each in nodes),
        *((5, each) for each in initializers),
        *((15, each) for each in sparse),
    )


def node(output: str, *attributes: bytes, operator: str = "If") -> bytes:
    return proto((2, output.encode()), (4, operator.encode()), *((5, each) for each in attributes))


def model(*initializers: bytes, nodes: Sequence[bytes] = (), sparse: Sequence[bytes] = ()) -> bytes:
    return proto((1, 8), (2, b"hand"), (7, graph(*initializers, nodes=nodes, sparse=sparse)))


def nested(depth: int, inner: bytes) -> bytes:
    """A graph in so many nodes."""
    for _ in range(depth):
        inner = graph(nodes=[node("n", proto((1, b"g"), (6, inner)))])
    return proto((1, 8), (7, inner))


def onnx_cases() -> Iterator[Case]:
    def case(name: str, error: str, why: str, file: bytes, **others: bytes) -> Case:
        return Case(f"onnx_{name}", "ck.onnx", error, why, {"ck.onnx": file, **others})

    incomplete, invalid = "IncompleteCheckpoint", "InvalidCheckpoint"
    malformed, unsupported = "MalformedCheckpoint", "UnsupportedError"
    yield case(
        "huge",
        incomplete,
        "Claims 2^58 elements in 16 bytes.",
        model(tensor(dims=(1 << 29, 1 << 29))),
    )
    yield case(
        "overflow",
        invalid,
        "Extents whose product is 0 in 64 bits.",
        model(tensor(dims=(1 << 32, 1 << 32))),
    )
    yield case(
        "wide_and_empty",
        invalid,
        "An extent of 2^62 next to one of 0.",
        model(tensor(dims=(1 << 62, 0), data=b"")),
    )
    yield case("negative", invalid, "An extent of -1.", model(tensor(dims=((1 << 64) - 1,))))
    yield case("rank", invalid, "A shape of 65 axes.", model(tensor(dims=(1,) * 65, data=bytes(4))))
    yield case(
        "rank_packed",
        invalid,
        "A hundred thousand axes, packed in one field.",
        model(proto((1, b"\1" * 100_000), (2, FLOAT), (8, b"t"), (RAW, bytes(4)))),
    )
    yield case("type", unsupported, "A data type that no release has.", model(tensor(kind=99)))
    yield case(
        "no_data",
        incomplete,
        "A tensor without elements, which is not zeros.",
        model(tensor(data=None)),
    )
    yield case(
        "two_fields",
        invalid,
        "Elements in two fields: readers disagree which count.",
        model(tensor("t", (4,), FLOAT, bytes(16), RAW, (FLOAT_DATA, bytes(16)))),
    )
    yield case(
        "other_field",
        invalid,
        "Elements in the field of another type.",
        model(tensor(data=bytes(4), field=INT32_DATA)),
    )
    yield case(
        "unpacked",
        unsupported,
        "Numbers in a field each.",
        model(proto((1, 2), (2, INT64), (8, b"t"), (INT64_DATA, 1), (INT64_DATA, 2))),
    )
    yield case(
        "segment",
        unsupported,
        "A segment of a tensor: half of it, read as the whole.",
        model(tensor("t", (4,), FLOAT, bytes(16), RAW, (3, proto((1, 0), (2, 4))))),
    )
    yield case(
        "varints_huge",
        incomplete,
        "Claims 2^40 numbers in 4 bytes.",
        model(tensor(dims=(1 << 40,), kind=INT32, data=bytes(4), field=INT32_DATA)),
    )
    yield case(
        "varints_few",
        malformed,
        "Three varints in the place of four.",
        model(tensor(kind=INT32, data=b"\1\2\x80\1", field=INT32_DATA)),
    )
    yield case(
        "varints_many",
        invalid,
        "Five varints in the place of four.",
        model(tensor(kind=INT32, data=b"\1\2\3\4\5", field=INT32_DATA)),
    )
    yield case(
        "varint_long",
        malformed,
        "A varint of eleven bytes.",
        model(tensor(dims=(2,), kind=INT64, data=b"\xff" * 10 + b"\1\1", field=INT64_DATA)),
    )
    yield case(
        "texts",
        incomplete,
        "Claims four texts and has one.",
        model(tensor(kind=TEXT, data=b"a", field=STRING_DATA)),
    )
    yield case(
        "short", incomplete, "Fewer bytes than the shape needs.", model(tensor(data=bytes(15)))
    )
    yield case("long", invalid, "More bytes than the shape needs.", model(tensor(data=bytes(17))))
    yield case(
        "halves",
        incomplete,
        "Five elements of 4 bits in two bytes.",
        model(tensor(dims=(5,), kind=INT4, data=bytes(2))),
    )
    yield case("twice", invalid, "Two tensors of one name.", model(tensor(), tensor()))
    yield case(
        "sparse",
        unsupported,
        "A sparse tensor, whose values are not the whole.",
        model(sparse=[proto((1, tensor(dims=(2,), data=bytes(8))), (3, 4))]),
    )
    yield case(
        "nested",
        invalid,
        "Two thousand graphs in each other: a parser that recurses leaves the stack.",
        nested(2_000, graph(tensor())),
    )
    yield case(
        "outside",
        malformed,
        "A message that is longer than the one around it.",
        proto((1, 8))
        + varint(7 << 3 | 2)
        + varint(12)
        + varint(5 << 3 | 2)
        + varint(1 << 40)
        + bytes(5),
    )
    yield case(
        "group", malformed, "A group, which nests without a length.", proto((1, 8)) + b"\x3b" * 1000
    )
    yield case("no_graph", malformed, "A model without a graph.", proto((1, 8), (2, b"hand")))
    yield case("cut", malformed, "The last byte is missing.", model(tensor())[:-1])
    yield case("empty", malformed, "A file of no bytes.", b"")
    yield case("foreign", malformed, "A picture under the name of a model.", PICTURE)
    yield from _external_cases()


def _external_cases() -> Iterator[Case]:
    data = bytes(16)

    def case(name: str, error: str, why: str, *tensors: bytes, **others: bytes) -> Case:
        files: Files = {"ck.onnx": model(*tensors), **others}
        return Case(f"onnx_external_{name}", "ck.onnx", error, why, files)

    invalid, incomplete = "InvalidCheckpoint", "IncompleteCheckpoint"
    yield case(
        "dotdot",
        invalid,
        "A location that leads out of the folder.",
        external(location="../onnx_external_dotdot/data"),
        data=data,
    )
    yield case("absolute", invalid, "A file of the system.", external(location="/etc/passwd"))
    yield case(
        "backslash",
        invalid,
        "A location that leads out of the folder on Windows.",
        external(location="..\\data"),
        data=data,
    )
    yield case(
        "nul",
        invalid,
        "A location with a NUL, which ends a name for the system.",
        external(location="data\0x"),
        data=data,
    )
    yield case("none", invalid, "External data without a location.", external())
    yield case("missing", "MissingFile", "The file is missing.", external(location="data"))
    yield case(
        "past_end",
        incomplete,
        "Bytes behind the end of the file.",
        external(location="data", offset=8, length=16),
        data=data,
    )
    yield case(
        "offset_huge",
        incomplete,
        "An offset of 2^60: the length to the end is negative.",
        external(location="data", offset=1 << 59),
        data=data,
    )
    yield case(
        "negative", invalid, "A negative offset.", external(location="data", offset=-4), data=data
    )
    yield case(
        "digits",
        invalid,
        "A length of a thousand digits.",
        external(location="data", length="9" * 1000),
        data=data,
    )
    yield case(
        "length",
        incomplete,
        "A length of fewer bytes than the shape needs.",
        external(location="data", length=12),
        data=data,
    )
    yield case(
        "rest",
        invalid,
        "No length: the rest of the file has more bytes than the shape needs.",
        external(dims=(3,), location="data"),
        data=data,
    )
    many = [
        external(f"t{number}", (1 << 15,), location="data", length=1 << 17) for number in range(64)
    ]
    yield case(
        "shared",
        invalid,
        "Many tensors of the same bytes: a small file becomes large arrays.",
        external("t", (1 << 15,), location="data", length=1 << 17),
        *many,
        data=bytes(1 << 17),
    )
    yield case(
        "model_itself",
        invalid,
        "The model as its own external data, from a byte of its program on.",
        external(location="ck.onnx", dims=(1,)),
        data=struct.pack("<f", 1),
    )


def _make(arrays: Arrays) -> Files:
    """Initializers with external data in one file."""
    starts = accumulate((array.nbytes for array in arrays.values()), initial=0)
    tensors = [
        external(key, array.shape, location="ck.data", offset=start, length=array.nbytes)
        for (key, array), start in zip(arrays.items(), starts, strict=False)
    ]
    return {"ck.onnx": model(*tensors), "ck.data": b"".join(map(bytes, arrays.values()))}


EVIDENCE = {"onnx": Evidence("onnx/one_file/m", onnx_cases, file="ck.onnx", make=_make)}
