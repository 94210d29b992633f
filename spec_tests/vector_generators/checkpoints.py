"""Checkpoint files: what sound ones hold, and how much of damaged ones may be read.

The files come from ``spec_tests/golden``, where real libraries and this one wrote them, and
``spec_tests/hostile``. What a native one holds is read by the reader that docs/format.md prints;
what others hold is what their library said.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from shardvar.spec.checkpoints import Slice, combine
from spec_tests.helpers.paths import DOCS, GOLDEN, SPEC_TESTS
from spec_tests.vector_generators.case import Case, Group, maker, numbered
from spec_tests.vector_generators.encoding import of_payload, tensor

HOSTILE = SPEC_TESTS / "hostile"
FORMAT_MD = DOCS / "format.md"

MOST_FILE_NBYTES = 9_000
"""Larger ones are left to the repository."""

_CARRIED = ("variant", "qint8", "quint8", "qint16", "quint16", "qint32")
_BY_LIBRARY = {
    "tensorflow": [
        "sharded_var_3", "slices_grid_2d", "slices_dash_unordered", "sharded_var_bf16_unordered_uneven", "empties",
        "scalars", "hand_slices_cross_shards", "v1_saver_sharded_2dev",
    ],
    "safetensors": ["numpy_all_dtypes", "zero_size", "jax_bfloat16", "hub_sharded_300", "scalars_0d"],
    "npz": ["mixed_methods", "scalars_0d", "data_descriptor"],
}  # fmt: skip
_REFUSED = {
    "tensorflow": ["slices_with_hole", "slices_overlap", "bad_data_byte", "bad_shards_swapped", "bad_shard_missing"],
    "safetensors": ["data_truncated_1", "duplicate_key_other_data", "offsets_past_end", "shape_overflow_to_0"],
    "npz": ["crc_wrong_deflated", "duplicate_members"],
}  # fmt: skip


@cache
def book() -> Any:
    """The reader that docs/format.md prints."""
    code = re.search(r"```python\n(.*?)```", FORMAT_MD.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)
    return names["read"]


def joined(shape: tuple[int, ...], slices: list[Any]) -> bytes:
    """The payload of a tensor, from the payloads of its slices."""
    count = prod(shape)
    size = sum(len(payload) for _, _, payload in slices) // count if count else 1
    named: list[Slice] = [
        ("", shape, offset, np.frombuffer(payload, f"V{size}").reshape(extents))
        for offset, extents, payload in slices
    ]
    return combine(named, "").tobytes()


def split_strings(payload: bytes, count: int) -> list[str]:
    """The elements of a string tensor, in hexadecimal."""
    lengths, at = [], 0
    for _ in range(count):
        length = shift = 0
        while True:
            byte = payload[at]
            length |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        lengths.append(length)
    at += 4
    found = []
    for length in lengths:
        found.append(payload[at : at + length].hex())
        at += length
    return found


def _native_tensors(path: Path) -> Iterator[dict[str, Any]]:
    for key, (dtype, shape, slices) in sorted(book()(path).items()):
        if dtype in _CARRIED:
            yield tensor(key, dtype, shape, carried=True)
        elif dtype == "string":
            yield tensor(key, dtype, shape, strings=split_strings(slices[0][2], prod(shape)))
        else:
            yield of_payload(key, dtype, shape, joined(shape, slices))


def _library_tensors(tensors: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for key, told in tensors.items():
        dtype, shape = told["dtype"], told["shape"]
        if dtype == "string":
            strings = [base64.b64decode(each["b64"]).hex() for each in told["values"]]
            yield tensor(key, dtype, shape, strings=strings)
        else:
            yield tensor(key, dtype, shape, nbytes=told["nbytes"], sha256=told["sha256"])


def files_of(directory: Path) -> dict[str, bytes]:
    """The files of a checkpoint in a directory, by their paths there."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "expected.json"
    }


def _expectation(group: str, name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(
        (GOLDEN / group / name / "expected.json").read_text(encoding="utf-8")
    )
    return told


FILES: dict[str, bytes] = {}


def _add(name: str, directory: Path) -> str:
    """Take the files of a checkpoint; its directory."""
    target = f"checkpoints/{name}"
    FILES.update({f"{target}/{path}": octets for path, octets in files_of(directory).items()})
    return target


SOUND, REFUSED = (maker("read_checkpoint", rule) for rule in ("R-CKPT-1", "V-FILE-1"))
DAMAGED = maker("read_damaged", "V-FILE-1")


def _native_cases() -> Iterator[Case]:
    for directory in sorted((GOLDEN / "native").iterdir()):
        if sum(map(len, files_of(directory).values())) > MOST_FILE_NBYTES:
            continue
        name, told = directory.name, _expectation("native", directory.name)
        target = _add(f"native_{name}", directory)
        inputs = {"format": "shardvar", "path": f"{target}/{told['prefix']}"}
        if "error" in told:
            yield REFUSED(f"native-{name}", inputs, told["how"], error=told["error"])
        elif told["errors"]:
            expected: dict[str, Any] = {
                "refused": [{"key": key, "error": error} for key, error in told["errors"].items()]
            }
            yield DAMAGED(f"native-{name}", inputs, told["how"], expected)
        else:
            expected = {"tensors": list(_native_tensors(directory / told["prefix"]))}
            yield SOUND(f"native-{name}", inputs, told["how"], expected)


def _refused_keys(told: Mapping[str, Any]) -> list[str]:
    """The keys that the library refused, or that hold no whole tensor; none where it refused the
    checkpoint."""
    if "tf_says" in told:
        return [key for key, outcome in told["tf_says"]["restore_v2"].items() if outcome != "ok"]
    if "bad_keys" in told:
        return list(told["bad_keys"])
    return [key for key, each in told.get("tensors", {}).items() if "slice_values" in each]


def _library_cases() -> Iterator[Case]:
    sound = [(group, name) for group, names in _BY_LIBRARY.items() for name in names]
    refused = [(group, name) for group, names in _REFUSED.items() for name in names]
    for number, (group, name) in enumerate([*sound, *refused]):
        told = _expectation(group, name)
        target = _add(f"{group}_{name}", GOLDEN / group / name)
        inputs = {"format": group, "path": f"{target}/{told.get('open', told.get('prefix'))}"}
        about = f"{group}-{name}", inputs, told["how"]
        if number < len(sound):
            yield SOUND(*about, {"tensors": list(_library_tensors(told["tensors"]))})
        elif keys := _refused_keys(told):
            bad = [{"key": key, "error": "CheckpointError"} for key in keys]
            yield DAMAGED(*about, {"refused": bad})
        else:
            yield REFUSED(*about, error="CheckpointError")


_FILE_OF_A_SET = re.compile(r"(\w+)(\.\d+\.pth|-\d{5}-of-\d{5}\.msgpack)")


def _opened(names: Iterable[str]) -> str:
    """Return the path that a person would type: the prefix of an index or of a set, the one file,
    or nothing for the folder."""
    index = next(
        (name for name in names if name.endswith((".svindex", ".index", ".index.json"))), None
    )
    if index is not None:
        return index.removesuffix(".svindex").removesuffix(".index")
    if any(name.startswith("zero/") for name in names):  # a Universal Checkpoint of DeepSpeed
        return ""
    if "metadata.pkl" in names:
        return "metadata.pkl"
    # The index of a folder of folders is at its top.
    first = min(names, key=lambda name: name.count("/"))
    part = _FILE_OF_A_SET.fullmatch(first)
    return part[1] if part else first


def hostile_rows(folder: str) -> list[tuple[str, str, str]]:
    """The name, the error and the bug of each hostile file in a folder, of the README's tables."""
    text = (HOSTILE / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^\| {folder}(\w+) \| [^|]*\| ([A-Z]\w+) \| (.*) \|$", text, re.M)


def _hostile_cases() -> Iterator[Case]:
    for name, error, bug in hostile_rows(""):
        files = files_of(HOSTILE / name)
        if sum(map(len, files.values())) > MOST_FILE_NBYTES:
            continue
        target = _add(f"hostile_{name}", HOSTILE / name)
        form = name.partition("_")[0]
        inputs = {
            "format": "shardvar" if form == "native" else form,
            "path": f"{target}/{_opened(files)}".removesuffix("/"),
        }
        yield REFUSED(f"hostile-{name}", inputs, bug, error=error)


_CASES = numbered([*_native_cases(), *_library_cases(), *_hostile_cases()])

GROUP = Group(
    "checkpoints",
    "Checkpoint files beside this one, with what sound ones hold and what of damaged ones must "
    "be refused.",
    "Native files are read by the reader that docs/format.md prints; TensorFlow 2.21, safetensors "
    "and NumPy wrote the "
    "others and said what is in them. Damaged files were damaged by hand.",
    _CASES,
    FILES,
)
