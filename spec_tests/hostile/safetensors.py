"""safetensors: single files and sets."""

import json
import struct
from collections.abc import Iterator, Sequence

from spec_tests.hostile.case import PICTURE, Case, Evidence, Files


def safetensors(header: object, data: bytes = bytes(16), nbytes: int | None = None) -> bytes:
    """A file with this header: text as it is, anything else as JSON."""
    octets = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(octets) if nbytes is None else nbytes) + octets + data


def tensor(
    start: int = 0, stop: int = 16, shape: Sequence[int] = (4,), dtype: str = "F32"
) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def safetensors_cases() -> Iterator[Case]:
    def case(name: str, error: str, why: str, file: bytes) -> Case:
        return Case(f"safetensors_{name}", "ck.safetensors", error, why, {"ck.safetensors": file})

    one = json.dumps(tensor())
    yield case(
        "duplicate_key",
        "InvalidCheckpoint",
        "A key twice, with different shapes: readers disagree on which of them counts.",
        safetensors(f'{{"t": {one}, "t": {json.dumps(tensor(shape=(2, 2)))}}}'.encode()),
    )
    yield case(
        "hole",
        "InvalidCheckpoint",
        "Bytes between two tensors that belong to none: something is hidden in them.",
        safetensors({"a": tensor(0, 4, (1,)), "b": tensor(8, 16, (2,))}),
    )
    yield case(
        "overlap",
        "InvalidCheckpoint",
        "Two tensors share bytes: a small file becomes large arrays.",
        safetensors({"a": tensor(), "b": tensor(8, 24)}, bytes(24)),
    )
    yield case(
        "overflow",
        "InvalidCheckpoint",
        "A shape whose size is 0 in 64 bits: 2^32 x 2^32 elements in no bytes.",
        safetensors({"t": tensor(0, 0, (1 << 32, 1 << 32))}, b""),
    )
    yield case(
        "huge",
        "IncompleteCheckpoint",
        "Claims 2^60 elements, and offsets to match, in a file of a hundred bytes.",
        safetensors({"t": tensor(0, 1 << 62, (1 << 60,))}),
    )
    yield case(
        "rank",
        "UnsupportedError",
        "A tensor of 20,000 axes, of which NumPy has 64.",
        safetensors({"t": tensor(0, 4, [1] * 20000)}, bytes(4)),
    )
    yield case(
        "header_huge",
        "MalformedCheckpoint",
        "The header claims 2^63 bytes: it is negative in a signed number, or allocated.",
        safetensors({"t": tensor()}, nbytes=1 << 63),
    )
    yield case(
        "header_past_end",
        "IncompleteCheckpoint",
        "The header claims 99 MB, which a reader allows, in a file of a hundred bytes.",
        safetensors({"t": tensor()}, nbytes=99_000_000),
    )
    yield case(
        "nested",
        "MalformedCheckpoint",
        "A hundred thousand nested lists: a parser that recurses leaves the stack, and the process.",
        safetensors(b'{"t":' + b"[" * 100_000),
    )
    yield case(
        "long_number",
        "MalformedCheckpoint",
        "An offset of fifty thousand digits: turning them into a number takes the square of "
        "their count.",
        safetensors(b'{"t":{"dtype":"F32","shape":[4],"data_offsets":[0,' + b"9" * 50_000 + b"]}}"),
    )
    yield case(
        "negative",
        "InvalidCheckpoint",
        "An offset of -16: what is before the data, the header itself, is read.",
        safetensors({"t": tensor(-16, 0)}),
    )
    yield case("empty", "MalformedCheckpoint", "A file of no bytes.", b"")
    yield case(
        "foreign", "MalformedCheckpoint", "A picture under the name of a checkpoint.", PICTURE
    )
    yield case(
        "truncated",
        "IncompleteCheckpoint",
        "The data lost their last byte.",
        safetensors({"t": tensor()}, bytes(15)),
    )
    for name, file, error in (
        ("dotdot", "../ck.safetensors", "InvalidCheckpoint"),
        ("absolute", "/etc/passwd", "InvalidCheckpoint"),
        ("nul", "ck.safetensors\0.png", "InvalidCheckpoint"),
        ("itself", "ck.safetensors.index.json", "InvalidCheckpoint"),
    ):
        index = json.dumps({"metadata": {}, "weight_map": {"t": file}}).encode()
        yield Case(
            f"safetensors_set_{name}",
            "ck.safetensors.index.json",
            error,
            f"The index of a set says that a tensor lies in {file!r}.",
            {"ck.safetensors.index.json": index, "ck.safetensors": safetensors({"t": tensor()})},
        )
    yield from _shard_cases()


def shard(rank: int, offsets: dict[str, object], shape: Sequence[int] = (4,)) -> Files:
    """The file of one rank, whose slices begin at these offsets."""
    info = json.dumps({key: {"saved_offsets": each} for key, each in offsets.items()})
    header: dict[str, object] = {"__metadata__": {"DCP_SHARDING_INFO": info}}
    header |= {
        key: tensor(16 * number, 16 * number + 16, shape) for number, key in enumerate(offsets)
    }
    return {
        f"shard-{rank:05}-model-00001-of-00001.safetensors": safetensors(
            header, bytes(16 * len(offsets))
        )
    }


def _shard_cases() -> Iterator[Case]:
    first = shard(1, {"t": [0]})
    for name, error, why, files in (
        ("lost", "IncompleteCheckpoint", "The first shard is lost: zeros are taken for it.", shard(2, {"t": [4]})),
        ("hole", "IncompleteCheckpoint", "Two elements are in no slice.", first | shard(2, {"t": [6]})),
        ("overlap", "OverlappingSlices", "Two elements are in two slices.", first | shard(2, {"t": [2]})),
        ("huge", "InvalidCheckpoint", "A slice of 16 bytes begins at 2^61.", first | shard(2, {"t": [1 << 61]})),
        ("digits", "InvalidCheckpoint", "A slice begins at 10^100.", first | shard(2, {"t": [10**100]})),
        ("negative", "InvalidCheckpoint", "A slice begins at -4: before the array.", first | shard(2, {"t": [-4]})),
        ("axes", "InconsistentTensor", "Two slices differ in rank.", first | shard(2, {"t": [0, 0]}, (2, 2))),
        ("nothing", "InvalidCheckpoint", "A slice without a place.", first | shard(2, {"t": None})),
    ):  # fmt: skip
        yield Case(f"safetensors_shard_{name}", min(files), error, why, files)
    (alone,) = shard(2, {"t": [4]}).values()
    why = "One shard under the name of a whole file: half a tensor is taken for all of it."
    yield Case(
        "safetensors_shard_renamed",
        "ck.safetensors",
        "IncompleteCheckpoint",
        why,
        {"ck.safetensors": alone},
    )


EVIDENCE = {
    "safetensors": Evidence(
        "safetensors/numpy_all_dtypes/ckpt/model.safetensors",
        safetensors_cases,
        file="ck.safetensors",
    )
}
