"""Compute the tensor digests of a .safetensors or .npz file, and compare them with a manifest.

    python tensor_digest.py FILE [MANIFEST]

Without a manifest, the digests that a .safetensors file carries in its metadata are compared.

It was written from digest.md alone. It needs Python and NumPy, runs no code of the file, and holds
one MiB of a safetensors file, or one array of an .npz. Exit codes: 0 done or equal; 1 different;
2 the file or the manifest cannot be read.
"""

import json
import os
import sys
from collections.abc import Iterator
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

LEAF = 1 << 20
SAFETENSORS = {
    "BOOL": ("bool", 1), "I8": ("int8", 1), "I16": ("int16", 2), "I32": ("int32", 4),
    "I64": ("int64", 8), "U8": ("uint8", 1), "U16": ("uint16", 2), "U32": ("uint32", 4),
    "U64": ("uint64", 8), "F16": ("float16", 2), "BF16": ("bfloat16", 2), "F32": ("float32", 4),
    "F64": ("float64", 8), "C64": ("complex64", 8), "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1), "F8_E8M0": ("float8_e8m0fnu", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1), "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1),
}  # fmt: skip
"""The names of dtypes in safetensors: the name in a digest, and the bytes of an element."""


class Unreadable(Exception):
    """An error in a file."""


def tensor_digest(
    key: str, dtype: str, shape: tuple[int, ...], leaves: Iterator[bytes]
) -> bytes:
    """Return the digest of a tensor from the hashes of each MiB of its data."""
    name = key.encode()
    head = f"shardvar digest 1\n{dtype}\n{','.join(map(str, shape))}\n{len(name)}\n"
    return sha256(head.encode() + name + b"".join(leaves)).digest()


def checkpoint_digest(digests: dict[str, bytes]) -> bytes:
    """Return the digest of all tensors together."""
    return sha256(b"".join(sorted(digests.values()))).digest()


CARRIED = "shardvar.digests"
"""The name of the text in the metadata of a file that has the digests of its tensors."""


def carried_digests(path: str) -> dict[str, bytes] | None:
    """Return the digests that a safetensors file carries; None if it carries none."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    metadata = header.get("__metadata__")
    text = metadata.get(CARRIED) if isinstance(metadata, dict) else None
    return None if text is None else parse_manifest(str(text), f"The metadata of {path}")


def safetensors_digests(path: str) -> dict[str, bytes]:
    """Return the digest of each tensor of a safetensors file."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise Unreadable(f"{path} ends within its header.")
        header = json.loads(file.read(length), object_pairs_hook=_without_doubles)
        if not isinstance(header, dict):
            raise Unreadable(f"The header of {path} is not a JSON object.")
        header.pop("__metadata__", None)
        found = {}
        for key, entry in header.items():
            dtype, shape, start, stop = _entry(key, entry)
            if not 0 <= start <= stop <= size - 8 - length:
                raise Unreadable(f"{key!r} lies outside the file.")
            leaves = _leaves(file, 8 + length + start, stop - start)
            found[key] = tensor_digest(key, dtype, shape, leaves)
        return found


def _entry(key: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    try:
        shape = tuple(entry["shape"])
        start, stop = entry["data_offsets"]
        if not all(type(each) is int and each >= 0 for each in (*shape, start, stop)):
            raise ValueError
        dtype = entry["dtype"]
    except (KeyError, TypeError, ValueError):
        raise Unreadable(f"The entry of {key!r} is not one of safetensors.") from None
    if dtype not in SAFETENSORS:
        raise Unreadable(f"{key!r} is of dtype {dtype!r}, which this checker does not know.")
    name, itemsize = SAFETENSORS[dtype]
    if stop - start != prod(shape) * itemsize:
        raise Unreadable(f"{key!r} has {stop - start} bytes, and its shape needs others.")
    return name, shape, start, stop


def _leaves(file: Any, start: int, nbytes: int) -> Iterator[bytes]:
    file.seek(start)
    for at in range(0, nbytes, LEAF):
        piece = file.read(min(LEAF, nbytes - at))
        if len(piece) != min(LEAF, nbytes - at):
            raise Unreadable("The file ends within a tensor.")
        yield sha256(piece).digest()


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Unreadable("The header has a key twice.")
    return found


def npz_digests(path: str) -> dict[str, bytes]:
    """Return the digest of each array of an .npz file."""
    found = {}
    with np.load(path, allow_pickle=False) as arrays:
        if len(set(arrays.files)) != len(arrays.files):
            raise Unreadable("The file has a key twice.")
        for key in arrays.files:
            found[key] = array_digest(key, arrays[key])
    return found


def array_digest(key: str, array: Any) -> bytes:
    """Return the digest of an array of numbers, or of fixed-width bytes."""
    if array.dtype.kind == "S":
        strings = [bytes(each) for each in array.ravel()]
        data, dtype = b"".join(len(s).to_bytes(8, "little") + s for s in strings), "string"
    elif array.dtype.kind in "biufc" and array.dtype.itemsize <= 16:
        data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        dtype = array.dtype.name
    else:
        raise Unreadable(
            f"{key!r} is of dtype {array.dtype}, which this checker does not know."
        )
    pieces = (data[at : at + LEAF] for at in range(0, len(data), LEAF))
    return tensor_digest(key, dtype, array.shape, (sha256(piece).digest() for piece in pieces))


def read_manifest(path: str) -> dict[str, bytes]:
    """Return the digests of tensors in a manifest."""
    with open(path, encoding="utf-8", newline="") as file:
        return parse_manifest(file.read(), path)


def parse_manifest(text: str, path: str) -> dict[str, bytes]:
    """Return the digests of tensors in the text of a manifest."""
    lines = text.split("\n")
    if lines[0] != "# shardvar digest 1" or lines[-1]:
        raise Unreadable(f"{path} is not a whole manifest of version 1.")
    of_all, found = None, {}
    for line in lines[1:]:
        if line.startswith("# checkpoint "):
            of_all = line.removeprefix("# checkpoint ")
        elif line.startswith("# tensor "):
            digits, key = line.removeprefix("# tensor ").split(" ", 1)
            found[json.loads(key)] = bytes.fromhex(digits)
    if of_all != checkpoint_digest(found).hex():
        raise Unreadable(f"{path} has lost a line.")
    return found


def main(words: list[str]) -> int:
    """Print the digests of a file, or compare them with a manifest."""
    if len(words) not in (1, 2):
        print("usage: python tensor_digest.py FILE [MANIFEST]", file=sys.stderr)
        return 2
    try:
        read = npz_digests if words[0].endswith(".npz") else safetensors_digests
        found = read(words[0])
        wanted = found
        if len(words) == 2:
            wanted = read_manifest(words[1])
        elif read is safetensors_digests:
            carried = carried_digests(words[0])
            wanted = found if carried is None else carried
    except (Unreadable, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    wrong = [key for key in {**wanted, **found} if wanted.get(key) != found.get(key)]
    if len(words) == 1:
        for key, digest in found.items():
            print(f"{digest.hex()}  {json.dumps(key)}")
        print(f"checkpoint {checkpoint_digest(found).hex()}")
    for key in wrong:
        print(f"differs: {json.dumps(key)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
