"""ONNX models, assembled field by field."""

from collections.abc import Sequence
from itertools import accumulate

from spec_tests.hostile.case import Arrays, Evidence, Files
from spec_tests.hostile.tensorflow import proto

FLOAT, INT64, TEXT = 1, 7, 8
RAW, INT32_DATA, STRING_DATA, INT64_DATA = 9, 5, 6, 7


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


def _make(arrays: Arrays) -> Files:
    """Initializers with external data in one file."""
    starts = accumulate((array.nbytes for array in arrays.values()), initial=0)
    tensors = [
        external(key, array.shape, location="ck.data", offset=start, length=array.nbytes)
        for (key, array), start in zip(arrays.items(), starts, strict=False)
    ]
    return {"ck.onnx": model(*tensors), "ck.data": b"".join(map(bytes, arrays.values()))}


EVIDENCE = {"onnx": Evidence("onnx/one_file/m", "onnx_", file="ck.onnx", make=_make)}
