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


def is_loaded(path: Path) -> bool:
    """Return True if load gives all tensors."""
    try:
        sv.load(path)
    except ShardvarError:
        return False
    return True


def hold_to_verdict(kind: str, case: str) -> None:
    """Read a golden checkpoint by each of its paths, and compare what comes out with its verdict."""
    expected = expectation(kind, case)
    tensors = (expected.get("before_damage") or {}) | (expected.get("tensors") or {})
    wanted = (expected.get("tensors") or {}).keys()
    for path in (expected["open"], *expected.get("open_also", ())):
        path = GOLDEN / kind / case / path
        arrays, errors = read_all(path)
        verified = is_verified(path)
        # Where only the file is at fault, nobody knows what its tensors were.
        for key, array in arrays.items() if tensors else ():
            check_value(array, expected, tensors, key)
        if is_loaded(path) or not expected.get("before_damage"):
            assert arrays.keys().isdisjoint(expected.get("bad_keys", ()))
        match expected["verdict"]:
            case "accept":
                assert (wanted - arrays.keys(), errors, verified) == (set(), {}, True)
                check_parts(path, arrays)
            case "accept_or_unsupported":
                assert all(isinstance(error, UnsupportedError) for error in errors.values())
                assert wanted - arrays.keys() <= {*expected["may_be_unsupported"]}
                assert errors.keys() <= {THE_WHOLE, *expected.get("refused", errors)}
                assert THE_WHOLE in errors or not sv.verify(path).damages
            case "refuse":
                assert not verified and not is_loaded(path)
            case "report":
                assert not verified
            case "either":
                assert errors.keys() | arrays.keys() >= wanted or THE_WHOLE in errors
            case other:
                raise AssertionError(f"no such verdict: {other}")


def check_value(array: Any, expected: dict[str, Any], tensors: dict[str, Any], key: str) -> None:
    """Compare a tensor, a text or an object with what its writer had."""
    texts, told = expected.get("texts", {}), (expected.get("objects") or {}).get(key)
    if key in texts:
        assert [each.decode("latin1") for each in array.ravel()] == texts[key]
    elif key in tensors:
        assert described(array, tensors[key]).items() <= tensors[key].items(), key
    elif array.dtype != object:  # an array of NumPy among the objects is a tensor
        assert repr(array) == told["repr"]
    elif type(told) is dict and "repr" in told:
        assert array[()].decode().startswith(told["repr"][:200])
    elif told is not None:
        assert array[()].decode() == (told if type(told) is str else told["json"])


def check_parts(path: Path, arrays: dict[str, Any]) -> None:
    """Any part of a payload is that part of it, in any order, and what is mapped is what is read."""
    with sv.open_checkpoint(path) as reader:
        for key in arrays:
            entries = reader.find(key)
            for row in range(len(entries)):
                nbytes = int(entries.slices.nbytes[row])
                whole = bytearray(nbytes)
                reader.source.read_into(entries, row, 0, memoryview(whole))
                third = nbytes // 3
                for start, stop in (
                    (2 * third, nbytes),
                    (third, 2 * third + 1),
                    (1, third),
                    (0, 1),
                ):
                    part = bytearray(max(min(stop, nbytes) - start, 0))
                    reader.source.read_into(entries, row, start, memoryview(part))
                    assert part == whole[start : start + len(part)], (key, start)
    mapped = sv.load(path, mmap=True)
    for key, array in arrays.items():
        assert array.dtype == object or mapped[key].tobytes() == array.tobytes(), key
