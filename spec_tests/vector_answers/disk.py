"""Checkpoint files."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import shardvar as sv

Inputs = Mapping[str, Any]


def read_checkpoint(folder: Path, inputs: Inputs, expected: Any) -> Any:
    """Every tensor, told as the vector tells it: by digest, bytes or strings; the error where one
    is refused."""
    told = {key_of(each): each for each in (expected or {"tensors": []})["tensors"]}
    with sv.open_checkpoint(folder / inputs["path"]) as reader:
        tensors = [
            _tensor(reader, key, told.get(key, {})) for key in sorted(reader, key=_order(told))
        ]
        for fault in reader.source.file_faults().values():
            raise fault
        return {"tensors": tensors}


def apply_delta(folder: Path, inputs: Inputs, expected: Any) -> Any:
    """Every tensor of the result, as ``read_checkpoint`` tells them."""
    with TemporaryDirectory() as scratch:
        deltas = [folder / each for each in inputs["deltas"]]
        # In its own format, which holds every key.
        sv.apply(folder / inputs["path"], deltas, Path(scratch, "result"), format="shardvar")
        return read_checkpoint(Path(scratch), {"path": "result"}, expected)


def read_damaged(folder: Path, inputs: Inputs, expected: Any) -> Any:
    """The keys that are refused, each with the class that was expected where the error is one, and
    no other key."""
    wanted = {each["key"]: each["error"] for each in expected["refused"]}
    refused = []
    with sv.open_checkpoint(folder / inputs["path"]) as reader:
        for key in _keys(reader, wanted):
            try:
                reader.read(key)
            except sv.errors.ShardvarError as error:
                is_wanted = key in wanted and isinstance(error, getattr(sv.errors, wanted[key]))
                refused.append(
                    {"key": key, "error": wanted[key] if is_wanted else type(error).__name__}
                )
    order = list(wanted)
    return {
        "refused": sorted(
            refused, key=lambda each: order.index(each["key"]) if each["key"] in order else -1
        )
    }


def _keys(reader: Any, wanted: Mapping[str, str]) -> list[str]:
    """Every key, or the wanted ones where the list itself is damaged."""
    try:
        return list(reader)
    except sv.errors.CheckpointError:
        return list(wanted)


def key_of(told: Inputs) -> str:
    """The key of a tensor as the engine has it."""
    return (
        told["key"]
        if "key" in told
        else bytes.fromhex(told["key_hex"]).decode("utf-8", "surrogateescape")
    )


def _order(told: Mapping[str, Any]) -> Any:
    places = list(told)
    return lambda key: places.index(key) if key in told else -1


def _tensor(reader: Any, key: str, told: Inputs) -> dict[str, Any]:
    tensor = reader[key]
    name = {"key_hex": told["key_hex"]} if "key_hex" in told else {"key": key}
    found = {**name, "dtype": tensor.dtype, "shape": list(tensor.shape)}
    if "carried" in told:
        return found | {"carried": True}
    value = reader.read(key)
    if value.dtype == object:
        return found | {"strings": [each.hex() for each in value.ravel().tolist()]}
    octets = value.astype(value.dtype.newbyteorder("<")).tobytes()
    found |= {"nbytes": len(octets), "sha256": hashlib.sha256(octets).hexdigest()}
    return found | ({"hex": octets.hex()} if "hex" in told else {})


OPS = {
    "read_checkpoint": read_checkpoint,
    "read_damaged": read_damaged,
    "apply_delta": apply_delta,
}
