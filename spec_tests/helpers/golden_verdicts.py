"""Golden checkpoints of real libraries through the verbs, held to what a careful reader does with
them."""

from pathlib import Path
from typing import Any

import shardvar as sv
from shardvar.errors import ShardvarError, UnsupportedError
from spec_tests.helpers.format_protocol import GOLDEN, described, expectation

THE_WHOLE = "the checkpoint"


def read_all(path: Path) -> tuple[dict[str, Any], dict[str, ShardvarError]]:
    """Every tensor and object that can be read, and the error of every other key, or of the
    whole."""
    arrays: dict[str, Any] = {}
    errors: dict[str, ShardvarError] = {}
    try:
        with sv.open_checkpoint(path) as reader:
            for key in reader:
                try:
                    arrays[key] = reader.read(key)
                except ShardvarError as error:
                    errors[key] = error
    except ShardvarError as error:
        errors[THE_WHOLE] = error
    return arrays, errors


def is_verified(path: Path) -> bool:
    """Return True if verify finds nothing wrong."""
    try:
        return sv.verify(path).ok
    except ShardvarError:
        return False


def hold_to_verdict(kind: str, case: str) -> None:
    """Read a golden checkpoint, and compare what comes out with its verdict."""
    expected = expectation(kind, case)
    path, tensors = GOLDEN / kind / case / expected["open"], expected.get("tensors") or {}
    arrays, errors = read_all(path)
    verified, missing = is_verified(path), tensors.keys() - arrays.keys()
    for key in arrays.keys() & expected.get("objects", {}).keys():
        assert arrays.pop(key)[()].decode() == expected["objects"][key]["json"]
    for key, array in arrays.items():
        assert described(array, tensors[key]).items() <= tensors[key].items(), key
    assert arrays.keys().isdisjoint(expected.get("bad_keys", ()))
    match expected["verdict"]:
        case "accept":
            assert (missing, errors, verified) == (set(), {}, True)
        case "accept_or_unsupported":
            assert all(isinstance(error, UnsupportedError) for error in errors.values())
            assert missing <= set(expected["may_be_unsupported"])
        case "refuse":
            assert errors and not verified
        case "either":
            assert not missing or errors
        case other:
            raise AssertionError(f"no such verdict: {other}")
