"""Apply a delta of shardvar to its base, or refuse it.

It was written from delta.md and digest.md, and needs only Python and NumPy. A checkpoint is a
mapping from keys to tensors, and a tensor is its dtype, its shape and its bytes, as the reader in
format.md gives them; strings are as in digest.md. Bytes of a delta are believed only after they were
compared.

    result = apply_delta(base, delta, mark)     mark: the text shardvar.delta of the user's metadata
"""

import json
import zlib
from collections.abc import Mapping
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

LEAF, ROW = 1 << 20, 48
USED_BITS = {"int2": 3, "uint2": 3, "int4": 15, "uint4": 15, "float4_e2m1fn": 15}
USED_BITS |= {"float6_e2m3fn": 63, "float6_e3m2fn": 63}
KINDS = {"equal": (True, True), "changed": (True, True), "removed": (True, False)}

Tensor = tuple[str, tuple[int, ...], bytes]


class Refused(ValueError):
    """The delta is damaged, or the base is another one."""


def need(condition: object, what: str) -> None:
    """Refuse what does not hold."""
    if not condition:
        raise Refused(what)


def hash_of(dtype: str, data: bytes) -> bytes:
    """Return the SHA-256 of a leaf."""
    bits = USED_BITS.get(dtype, 255)
    return sha256((np.frombuffer(data, np.uint8) & bits).tobytes()).digest()


def tensor_digest(key: bytes, tensor: Tensor) -> str:
    """Return the digest of a tensor."""
    dtype, shape, data = tensor
    head = f"shardvar digest 1\n{dtype}\n{','.join(map(str, shape))}\n{len(key)}\n".encode()
    leaves = [hash_of(dtype, data[at : at + LEAF]) for at in range(0, len(data), LEAF)]
    return sha256(head + key + b"".join(leaves)).hexdigest()


def digest_of_all(digests: list[str]) -> str:
    """Return the digest of a checkpoint."""
    return sha256(b"".join(sorted(map(bytes.fromhex, digests)))).hexdigest()


def unplaned(data: bytes, width: int) -> Any:
    """Return integers from their planes."""
    planes = np.frombuffer(data, np.uint8).reshape(width, -1)
    return np.ascontiguousarray(planes.T).reshape(-1).view(f"<u{width}")


def inflated(body: bytes, nbytes: int) -> bytes:
    """Return what a zlib stream holds, which is so many bytes and no more."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, nbytes + 1)
    except zlib.error as error:
        raise Refused(f"not a zlib stream: {error}") from None
    need(
        len(data) == nbytes and stream.eof and not stream.unused_data,
        "a stream of another length",
    )
    return data


def mask_of(encoding: int, body: bytes, num_changed: int, nbytes: int, width: int) -> Any:
    """Return the mask of a leaf."""
    count = nbytes // width
    need(num_changed <= count, "more changed elements than elements")
    if encoding == 1:
        data = inflated(body, num_changed * (4 + width))
        gaps, values = data[: 4 * num_changed], data[4 * num_changed :]
        places = np.cumsum(unplaned(gaps, 4).astype(np.int64) + 1) - 1
        need(not num_changed or places[-1] < count, "an element outside the leaf")
        mask = np.zeros(count, f"<u{width}")
        mask[places] = unplaned(values, width)
    elif encoding == 2:
        mask = unplaned(inflated(body, nbytes), width)
    else:
        need(
            encoding == 3 and len(body) == nbytes,
            "an unknown encoding, or a mask of another size",
        )
        mask = np.frombuffer(body, f"<u{width}")
    need(np.count_nonzero(mask) == num_changed, "another number of changed elements")
    return mask


def changed(old: Tensor, payload: bytes) -> Tensor:
    """Return a tensor with its frames applied."""
    dtype, shape, data = old
    width = min(max(len(data) // max(prod(shape), 1), 1), 8)
    need(len(payload) >= 4, "frames without their number")
    stop = 4 + ROW * int.from_bytes(payload[:4], "little")
    need(stop <= len(payload), "the rows end behind the payload")
    new, at, before = bytearray(data), stop, -1
    for row in range(4, stop, ROW):
        leaf, encoding, size, num_changed = np.frombuffer(payload, "<u4", 4, row).tolist()
        need(before < leaf < -(-len(data) // LEAF), "leaves that do not ascend, or outside")
        need(at + size <= len(payload), "a body that ends behind the payload")
        piece = bytes(new[leaf * LEAF : (leaf + 1) * LEAF])
        mask = mask_of(encoding, payload[at : at + size], num_changed, len(piece), width)
        piece = (np.frombuffer(piece, mask.dtype) ^ mask).tobytes()
        need(
            hash_of(dtype, piece) == payload[row + 16 : row + ROW], "another leaf than was made"
        )
        new[leaf * LEAF : (leaf + 1) * LEAF] = piece
        at, before = at + size, leaf
    need(at == len(payload), "bytes behind the last body")
    return dtype, shape, bytes(new)


def decoded(octets: bytes) -> Any:
    """Return the value of a JSON text; no object has a name twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        need(len(dict(pairs)) == len(pairs), "a name twice in one object")
        return dict(pairs)

    try:
        return json.loads(octets, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise Refused(f"not JSON: {error}") from None


def apply_delta(base: Mapping[str, Tensor], delta: Mapping[str, Tensor], mark: str) -> Any:
    """Return the tensors that a delta makes of its base, each compared with its digest."""
    try:
        head, rows = decoded(mark.encode()), decoded(delta["table"][2])["tensors"]
        need(head["version"] == 1, "a version that is not known")
        found, stored, ties = {}, {"table"}, {}
        for row in rows:
            octets = (
                bytes.fromhex(row["key_bytes"]) if "key_bytes" in row else row["key"].encode()
            )
            key, kind = octets.decode("utf-8", "surrogateescape"), row["kind"]
            about, both = (row["dtype"], tuple(row["shape"])), (row["base"], row["result"])
            told = tuple(digest is not None for digest in both)
            need(
                told == KINDS.get(kind, (told[0], kind == "whole")),
                "an unknown kind or digests",
            )
            need(kind != "equal" or both[0] == both[1], "equal, with two digests")
            need((key in base) == told[0] and key not in found, "another base, or a row twice")
            if kind in ("equal", "changed"):
                need(base[key][:2] == about, "a base of another dtype or shape")
            name = f"{kind}/{key}"
            if "tie" in row:
                # It may be stored under the key of the other tensor.
                name, ties[key] = name if name in delta else f"{kind}/{row['tie']}", row["tie"]
            if kind in ("changed", "whole"):
                stored.add(name)
            if kind == "changed":
                found[key] = changed(base[key], delta[name][2])
            elif kind != "removed":
                found[key] = base[key] if kind == "equal" else delta[name]
            if kind != "removed":
                need(found[key][:2] == about, "a tensor of another dtype or shape")
                need(
                    tensor_digest(octets, found[key]) == both[1],
                    "another base, or a damaged delta",
                )
        for key, other in ties.items():
            need(found[key] == found[other] and other not in ties, "a tie of other bytes")
        need(
            len(base) == sum(row["base"] is not None for row in rows),
            "a base with more tensors",
        )
        need(delta.keys() == stored, "a tensor that no row names")
        for name in ("base", "result"):
            told = [row[name] for row in rows if row[name] is not None]
            need(digest_of_all(told) == head[name], "a row is lost or foreign")
    except Refused:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Refused(f"the table or the mark has another form: {error!r}") from None
    return found
