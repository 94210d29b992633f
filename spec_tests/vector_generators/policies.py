"""Which slices share a file: sharding policies."""

from collections.abc import Iterator, Sequence
from typing import Any

from shardvar.spec import policies
from spec_tests.vector_generators.case import Acceptable, Case, Group, maker, numbered
from spec_tests.vector_generators.partitioning import ITEMSIZE
from spec_tests.vector_generators.regions import region

Tensor = tuple[str, str, list[int]]
"""Key, dtype, shape."""
_LOCAL = "/job:localhost/replica:0/task:0/device:CPU:0"


def filled(tensors: Sequence[Tensor], limit: int, cut: policies.Cut) -> Any:
    """Files in order, each up to the limit."""
    return _as_json(policies.filled(_sized(tensors), limit, cut))


def _sized(tensors: Sequence[Tensor]) -> list[policies.Tensor]:
    return [(key, ITEMSIZE[dtype], shape) for key, dtype, shape in tensors]


def _as_json(files: policies.Files) -> list[list[dict[str, Any]]]:
    return [[{"key": key, **region((at, shape))} for key, at, shape in file] for file in files]


def _inputs(tensors: Sequence[Tensor], devices: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    named = [
        {
            "key": key,
            "dtype": dtype,
            "shape": shape,
            "device": devices[number] if devices else _LOCAL,
        }
        for number, (key, dtype, shape) in enumerate(tensors)
    ]
    return {"tensors": named, **more}


_FULL: list[tuple[str, list[Tensor], int, str]] = [
    (
        "fits",
        [("a", "float32", [2, 3]), ("b", "float32", [2])],
        100,
        "A limit that nothing passes makes more files.",
    ),
    (
        "exact",
        [("a", "float32", [4]), ("b", "float32", [4])],
        16,
        "A file that is just full is taken for too full.",
    ),
    (
        "rows",
        [("a", "float32", [5, 2])],
        16,
        "Parts of even size take more files than the limit needs.",
    ),
    ("columns", [("a", "float32", [2, 5])], 24, "Only the first axis is cut."),
    (
        "rest",
        [("a", "float32", [3]), ("b", "float32", [6, 2])],
        32,
        "The rest of a file is left empty.",
    ),
    (
        "new-file",
        [("a", "float32", [7]), ("b", "float64", [2, 2])],
        32,
        "A piece that does not fit is put in all the same.",
    ),
    (
        "scalars",
        [("a", "float64", []), ("b", "float64", []), ("c", "float64", [])],
        16,
        "A scalar is cut, or dropped.",
    ),
    (
        "wide",
        [("a", "float32", [2, 2, 3])],
        24,
        "Offsets are those in the remaining piece, not in the tensor.",
    ),
    ("bytes", [("a", "int8", [10]), ("b", "bfloat16", [6])], 8, "Elements are counted, not bytes."),
    (
        "empty",
        [("a", "float32", [0, 4]), ("b", "float32", [2])],
        8,
        "Tensors without elements are dropped.",
    ),
]
_BALANCED: list[tuple[str, list[Tensor], int]] = [
    ("one", [("a", "float32", [6, 2])], 3),
    ("uneven", [("a", "float32", [7, 3])], 2),
    ("several", [("a", "float32", [5, 2]), ("b", "float64", [3, 1]), ("c", "int8", [8, 4])], 4),
    ("more-than-rows", [("a", "float32", [3, 2])], 3),
]


def _cases() -> Iterator[Case]:
    of_size = maker("max_shard_size", "R-POLICY-14", "max-size-")
    for name, tensors, limit, bug in _FULL:
        expected = filled(tensors, limit, policies.most_filling)
        theirs = filled([each for each in tensors if 0 not in each[2]], limit, policies.even)
        also = []
        if theirs != expected and name != "empty":
            also = [
                Acceptable(
                    "TensorFlow cuts into parts of even size, along the axis that takes the fewest.",
                    theirs,
                )
            ]
        inputs = _inputs(tensors, max_shard_size=limit)
        yield of_size(name, inputs, bug, expected, acceptable=also)
    for limit in (0, -1):
        inputs = _inputs([("a", "float32", [2])], max_shard_size=limit)
        bug = "A limit that holds nothing begins file after file."
        yield of_size(f"bad-{limit}", inputs, bug, error="ArgumentError")
    for name, tensors, count in _BALANCED:
        inputs = _inputs(tensors, num_files=count)
        bug = "Tensors are never cut, or tensors and not bytes are counted."
        files = _as_json(policies.balanced(_sized(tensors), count))
        yield Case(f"balanced-{name}", "V-BALANCE-1", "balanced", inputs, bug, files)
    tensors = [
        ("a", "float32", [2]),
        ("b", "float32", [3]),
        ("c", "int8", []),
        ("d", "float32", [0]),
    ]
    job = "/job:ps/replica:0/task:{}/device:{}:0".format
    devices = [job(1, "CPU"), job(0, "CPU"), job(1, "GPU"), job(0, "CPU")]
    groups = {"by_task": [0, 1, 0, 1], "by_device": [0, 1, 2, 1]}
    for op, numbers in groups.items():
        expected = _as_json(policies.grouped(_sized(tensors), numbers))
        bug = (
            "Files are in the order of the names, devices are taken for tasks, or what has no "
            "elements is dropped."
        )
        rule = "R-POLICY-8" if op == "by_task" else "R-POLICY-10"
        also = (
            [Acceptable("Files may stand in any order.", list(reversed(expected)))]
            if op == "by_task"
            else []
        )
        yield Case(op, rule, op, _inputs(tensors, devices), bug, expected, acceptable=also)


GROUP = Group(
    "policies",
    "The files that a policy makes: in each the slices, by key and region. The order within a "
    "file does not count.",
    "The sentences of RFC 001's appendix, tried axis by axis and index by index; even marks in "
    "fractions.",
    numbered(_cases()),
)
