"""Reading the page of ``shardvar view`` back: its columns, and through them the tensors and slices
that it shows."""

import json
import re
from typing import Any

HOSTILE_KEYS = (
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]></style><svg/onload=alert(2)>",
    "{{data}}${x}`quote\"'",
    "a\u202eevil",
    "line\u2028separator\nnext",
    "bytes\udcff",
    "🙂/日本",
    "🙂/日木",
    "back\\slash/&lt;b&gt;",
    "__proto__",
    "constructor/prototype",
)
"""Names that would run, hide or break something in a page that trusted them."""


def columns_of(page: str) -> dict[str, Any]:
    """Return the page's one block of data."""
    (block,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL
    )
    columns: dict[str, Any] = json.loads(block)
    for checkpoint in columns["checkpoints"]:
        for name in ("dtype", "shape", "nbytes", "num_slices"):
            checkpoint[name] = _unpacked(checkpoint[name])
        checkpoint["slices"]["file"] = _unpacked(checkpoint["slices"]["file"])
        _add_starts(checkpoint)
        checkpoint["faults"] = [
            [row, *checkpoint["causes"][cause]] for row, cause in checkpoint["faults"]
        ]
        if stats := checkpoint["stats"]:
            for name in ("count", "nan", "inf", "zero", "peak"):
                stats[name] = _unpacked(stats[name])
            text, bins = stats["histogram"], stats["bins"]
            stats["histogram"] = [text[at : at + bins].strip() for at in range(0, len(text), bins)]
    return columns


def _add_starts(checkpoint: dict[str, Any]) -> None:
    """Where slices begin, as the page counts them: behind the slice before in the same file."""
    slices = checkpoint["slices"]
    rows = [row for row, count in enumerate(checkpoint["num_slices"]) for _ in range(count)]
    cut = {number: size for (number, *_), size in zip(slices["cut"], slices["nbytes"], strict=True)}
    ends: dict[int, int] = {}
    slices["start"] = []
    for number, (row, file, gap) in enumerate(
        zip(rows, slices["file"], _unpacked(slices["gap"]), strict=True)
    ):
        start = int(gap) if isinstance(gap, str) else ends.get(file, 0) + gap
        end = start + cut.get(number, checkpoint["nbytes"][row])
        ends[file] = end if end < 2**53 else ends.get(file, 0)
        slices["start"].append(start)


def _unpacked(column: Any) -> list[Any]:
    if isinstance(column, list):
        return column
    runs = column["runs"]
    return [
        value for value, length in zip(runs[::2], runs[1::2], strict=True) for _ in range(length)
    ]


def keys_of(columns: dict[str, Any]) -> list[str]:
    """The keys of one checkpoint, put together from what each shares with the one before it."""
    keys = [""]
    for shared, rest in zip(columns["keys"]["shared"], columns["keys"]["rest"], strict=True):
        keys.append(keys[-1][:shared] + rest)
    return keys[1:]


def tensors_of(columns: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """(dtype, shape, bytes) by key, of the tensors that the index tells of."""
    rows = zip(keys_of(columns), columns["dtype"], columns["shape"], columns["nbytes"], strict=True)
    return {
        key: (columns["dtypes"][dtype], tuple(map(int, columns["shapes"][shape])), nbytes)
        for key, dtype, shape, nbytes in rows
        if dtype >= 0
    }


def slices_of(
    columns: dict[str, Any],
) -> list[tuple[str, tuple[int, ...], tuple[int, ...], str, int, int, bool]]:
    """(key, offset, shape, file, start, bytes, whether byte for byte) of every slice."""
    slices, tensors = columns["slices"], tensors_of(columns)
    cut = {number: box for number, *box in slices["cut"]}
    keys = [
        key
        for key, count in zip(keys_of(columns), columns["num_slices"], strict=True)
        for _ in range(count)
    ]
    nbytes = {
        number: size for (number, *_), size in zip(slices["cut"], slices["nbytes"], strict=True)
    }
    found = []
    for number, key in enumerate(keys):
        shape = tensors[key][1]
        box = cut.get(number, [*[0] * len(shape), *shape])
        offset, extent = tuple(map(int, box[: len(shape)])), tuple(map(int, box[len(shape) :]))
        file = columns["files"][slices["file"][number]]
        place = file, int(slices["start"][number]), nbytes.get(number, tensors[key][2])
        found.append((key, offset, extent, *place, number not in slices["encoded"]))
    return found
