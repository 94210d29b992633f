"""Run all published vectors on an implementation: ``python -m shardvar.vectors ANSWERS``.

1. ``import_answers`` imports the answers; a program in another language gives a file.
2. ``run`` checks that the answers and the vectors have the same ops, and unpacks the checkpoints.
3. It answers and judges case by case.

Is this answer to a published vector right?

1. An answer is a value, or the exception that the implementation raised. ``judge_answer`` compares it with
   what the case expects, and then with each of its other acceptable answers.
2. Answers are Python's and NumPy's values, or JSON as the README of the vectors writes it: a program
   in another language writes its answers to a file. Arrays are compared by dtype, shape and
   elements.
3. A checkpoint may be answered with its arrays by key; they are then described as the vectors
   describe them.

Names of errors are shardvar's, so any exception is right where one is expected. The tests of
shardvar give ``error_class`` and also compare the class.
"""

import hashlib
import re
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from shardvar import vectors
from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array, dtype_name, numpy_dtype
from shardvar.records import frozen
from shardvar.wire.strict_json import parse_json

__all__ = ["Judgement", "decode_array", "is_array", "judge_answer", "judged_file", "ops", "run"]

_ErrorClass = Callable[[str], type[BaseException]]


@frozen
class Judgement:
    """The judgement on one answer."""

    id: str
    """The case."""
    outcome: str
    """``passed``, ``acceptable`` (another answer than the expected one, which the vectors allow),
    ``failed`` or ``not claimed``."""
    why: str = ""
    """The reason: of the acceptable answer, or the first difference."""


def judge_answer(
    case: Mapping[str, Any], answer: Any, error_class: _ErrorClass | None = None
) -> Judgement:
    """Return the judgement on an answer to a case.

    Parameters
    ----------
    case : dict
        One of the cases of ``shardvar.vectors.group``.
    answer : any
        The value that the implementation returned, or the exception that it raised.
    error_class : callable, optional
        The class of a named error; by default any exception is right.

    Returns
    -------
    Judgement
        The outcome, and the reason for it.

    Examples
    --------
    >>> from shardvar import vectors
    >>> case = vectors.group("div")["cases"][0]
    >>> judge_answer(case, [(0, 3), (3, 6), (6, 9), (9, 11), (11, 13)]).outcome
    'passed'
    >>> judge_answer(case, [(0, 3), (3, 6), (6, 9), (9, 12), (12, 13)]).why
    '[3][1]: 12 is not 11'
    """
    if isinstance(answer, NotImplementedError):
        return Judgement(case["id"], "not claimed", str(answer))
    class_of = error_class or (lambda _name: Exception)
    wrong = _wrong(case, answer, case["ulps"], class_of)
    if wrong is None:
        return Judgement(case["id"], "passed")
    if isinstance(answer, Exception) and _refuses_keys(case):
        return Judgement(case["id"], "acceptable", "All is refused, also keys that can be read.")
    for other in case["acceptable"]:
        if _wrong(other, answer, case["ulps"], class_of) is None:
            return Judgement(case["id"], "acceptable", other["why"])
    return Judgement(case["id"], "failed", wrong)


def _refuses_keys(case: Mapping[str, Any]) -> bool:
    expected = case.get("expected")
    return isinstance(expected, Mapping) and expected.keys() == {"refused"}


def decode_array(value: Mapping[str, Any]) -> Array:
    """Return the array that ``{dtype, shape, data}`` encodes.

    Parameters
    ----------
    value : dict
        The array in the vectors' encoding.
    """
    dtype, data = numpy_dtype(value["dtype"]), value["data"]
    if dtype.kind in "iu":
        flat = np.array([int(each) for each in data], dtype)
    elif dtype.kind == "c":
        flat = np.array([complex(float(a), float(b)) for a, b in data], dtype)
    elif dtype.kind == "b":
        flat = np.array(data, dtype)
    else:
        flat = np.array([float(each) for each in data], np.float64).astype(dtype)
    return flat.reshape(value["shape"])


def is_array(value: Any) -> bool:
    """Return True if a value is an array in the vectors' encoding.

    Parameters
    ----------
    value : any
        A value of a case.

    Returns
    -------
    bool
        True if it has a dtype, a shape and data.
    """
    return isinstance(value, Mapping) and value.keys() == {"dtype", "shape", "data"}


def _wrong(
    outcome: Mapping[str, Any], answer: Any, ulps: int, error_class: _ErrorClass
) -> str | None:
    if "error" in outcome:
        wanted = error_class(outcome["error"])
        if isinstance(answer, wanted) and not isinstance(answer, AssertionError):
            return None
        return f"expected an error such as {outcome['error']}, got {_short(answer)}"
    if isinstance(answer, BaseException):
        return f"raised {type(answer).__name__}: {answer}"
    expected = outcome["expected"]
    try:
        if isinstance(expected, Mapping) and expected.keys() == {"tensors"}:
            return _tensors_difference(answer, expected["tensors"])
        if _refuses_keys(outcome):
            return _refused_difference(answer, expected["refused"], error_class)
        return _difference(answer, expected, ulps, "")
    except Exception as error:  # noqa: BLE001 - an answer may have any form, such as uneven lists
        return f"{_short(answer)} cannot be compared: {error!r}"


def _difference(found: Any, expected: Any, ulps: int, at: str) -> str | None:
    if is_array(expected):
        return _array_difference(found, decode_array(expected), ulps, at)
    if isinstance(found, np.ndarray | np.generic):
        found = found.tolist()
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping) or found.keys() != expected.keys():
            return f"{at}: {_short(found)} is not {_short(expected)}"
        pairs = [(found[key], expected[key], f"{at}.{key}") for key in expected]
    elif isinstance(expected, list):
        if not isinstance(found, list | tuple) or len(found) != len(expected):
            return f"{at}: {_short(found)} is not {_short(expected)}"
        pairs = [(a, b, f"{at}[{i}]") for i, (a, b) in enumerate(zip(found, expected, strict=True))]
    else:
        if isinstance(found, str) is not isinstance(expected, str):
            # Beyond 2^53, not finite, or -0.0 of JavaScript, a number is a text.
            found, expected = (
                int(each)
                if isinstance(each, str) and re.fullmatch("-?[0-9]{1,400}", each)
                else float(each)
                if each in ("nan", "inf", "-inf", "-0.0")
                else each
                for each in (found, expected)
            )
        if isinstance(expected, float) and (
            isinstance(found, float) or (type(found) is int and abs(found) < 2**1023)
        ):
            return _array_difference(np.array(found, np.float64), np.array(expected), ulps, at)
        same = found == expected and isinstance(found, bool) is isinstance(expected, bool)
        return None if same else f"{at}: {_short(found)} is not {_short(expected)}"
    return next(
        (wrong for a, b, name in pairs if (wrong := _difference(a, b, ulps, name)) is not None),
        None,
    )


def _array_difference(found: Any, expected: Array, ulps: int, at: str) -> str | None:
    given = decode_array(found) if is_array(found) else np.asarray(found)
    if dtype_name(given.dtype) != dtype_name(expected.dtype) or given.shape != expected.shape:
        return f"{at}: {given.dtype}{given.shape} is not {expected.dtype}{expected.shape}"
    told = f"{_short(given.tolist())} is not {_short(expected.tolist())}"
    if given.dtype.kind == "c":
        # Each part is a real number.
        given, expected = (
            np.ascontiguousarray(each).ravel().view(each.real.dtype) for each in (given, expected)
        )
    same = given == expected
    if given.dtype.kind not in "biu":
        # -0.0 is not 0.0, and NaNs are equal, whatever their bits.
        is_nan = np.isnan(given) & np.isnan(expected)
        same = same & (np.signbit(given) == np.signbit(expected)) | is_nan
        if ulps:
            with np.errstate(invalid="ignore"):
                unit = np.spacing(np.abs(expected)).astype(np.float64)
                far = np.abs(given.astype(np.float64) - expected.astype(np.float64))
            same = same | (far <= ulps * unit)
    if np.all(same):
        return None
    return f"{at}: {told}{f' within {ulps} ulps' if ulps else ''}"


def _tensors_difference(answer: Any, expected: Sequence[Mapping[str, Any]]) -> str | None:
    """Compare the tensors of a checkpoint: arrays by key, or as the vectors describe them."""
    if not isinstance(answer, Mapping):
        return f"{_short(answer)} is not a mapping of keys to arrays"
    if answer.keys() == {"tensors"} and isinstance(answer["tensors"], list | tuple):
        given = {_key(told): told for told in answer["tensors"]}
    else:
        given = {
            key.encode() if isinstance(key, str) else key: value for key, value in answer.items()
        }
    wanted = {_key(told): told for told in expected}
    if given.keys() != wanted.keys():
        return f"the keys {sorted(given)} are not {sorted(wanted)}"
    for key, told in wanted.items():
        found = given[key]
        if told.get("carried") and (found is None or isinstance(found, Exception)):
            continue  # a dtype that NumPy does not have: the key is all that can be said
        if isinstance(found, Exception):
            return f"{key!r}: raised {found!r}"
        if not isinstance(found, Mapping):
            array = np.asarray(found)
            found = {"shape": list(array.shape)}
            if array.dtype.kind == "O":
                texts = [each.hex() for each in array.ravel().tolist()]
                found |= {"dtype": "string", "strings": texts}
            else:
                octets = array.astype(array.dtype.newbyteorder("<")).tobytes()
                found |= {"dtype": dtype_name(array.dtype), "nbytes": len(octets)}
                found["sha256"] = hashlib.sha256(octets).hexdigest()
        for field in told.keys() - {"key", "key_hex", "hex", "carried"}:
            if found.get(field) != told[field]:
                return f"{key!r}: {field} is {found.get(field)!r} instead of {told[field]!r}"
    return None


def _refused_difference(
    answer: Any, expected: Sequence[Mapping[str, Any]], error_class: _ErrorClass
) -> str | None:
    """Compare the refused keys of a damaged checkpoint, given as a list or with each value."""
    if not isinstance(answer, Mapping):
        return f"{_short(answer)} is not a mapping of keys to arrays and errors"
    if answer.keys() == {"refused"} and isinstance(answer["refused"], list | tuple):
        refused = {
            each if isinstance(each, str) else each["key"]: each for each in answer["refused"]
        }
    else:
        refused = {key: value for key, value in answer.items() if isinstance(value, Exception)}
    wanted = {each["key"]: each["error"] for each in expected}
    if refused.keys() != wanted.keys():
        return f"the refused keys {sorted(refused)} are not {sorted(wanted)}"
    for key, error in refused.items():
        if isinstance(error, Exception) and not isinstance(error, error_class(wanted[key])):
            return f"{key!r}: raised {error!r} instead of {wanted[key]}"
    return None


def _key(told: Mapping[str, Any]) -> bytes:
    return told["key"].encode() if "key" in told else bytes.fromhex(told["key_hex"])


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


_MAX_DEPTH = 100
"""The depth of the values of an answer."""
_Answer = Callable[[Mapping[str, Any]], Any]


def ops(groups: Collection[str] = ()) -> set[str]:
    """Return the names of the ops of the vectors, or of some groups.

    Parameters
    ----------
    groups : collection of str, optional
        The groups, by default all.

    Returns
    -------
    set of str
        The names.

    Examples
    --------
    >>> sorted(ops(["div"]))
    ['chunk', 'div', 'div_owner']
    """
    return {
        case["op"] for name in groups or vectors.groups() for case in vectors.group(name)["cases"]
    }


def run(
    answers: Any, groups: Collection[str] = (), without: Collection[str] = ()
) -> list[Judgement]:
    """Return the judgement on each case.

    Parameters
    ----------
    answers : any
        A mapping, a module or an object: a function for each op, by its name, that takes the inputs
        of a case as a dict. The inputs of a checkpoint have its absolute path.
    groups : collection of str, optional
        The groups to run, by default all.
    without : collection of str, optional
        The ops that the implementation does not have. Their cases are not claimed.

    Returns
    -------
    list of Judgement
        In the order of the groups and their cases.

    Raises
    ------
    ArgumentError
        If an op has no answer and is not in `without`, or `without` has an op that no vector uses.

    Notes
    -----
    An answer that raises ``NotImplementedError`` does not claim its case, for a dtype or a format
    that the implementation lacks. Every other exception is the answer, and right only where the
    vector expects an error.

    Examples
    --------
    >>> from shardvar.spec import partitions
    >>> def div(inputs):
    ...     length, num_shards = int(inputs["length"]), inputs["num_shards"]
    ...     if length < 0 or num_shards < 1:
    ...         raise ValueError("There is nothing to divide.")
    ...     return partitions.div(length, num_shards)
    >>> found = run({"div": div}, ["div"], without=["chunk", "div_owner"])
    >>> sorted({each.outcome for each in found})
    ['not claimed', 'passed']
    """
    table = _answers_of(answers, groups, without)
    with tempfile.TemporaryDirectory() as folder:
        if not groups or {*groups} & {"checkpoints", "deltas"}:
            for name in vectors.names():
                if name.startswith("checkpoints/"):
                    path = Path(folder, *name.split("/"))
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(vectors.read(name))
        return [
            _judged(case, table.get(case["op"]), Path(folder))
            for name in groups or vectors.groups()
            for case in vectors.group(name)["cases"]
        ]


def _answers_of(
    answers: Any, groups: Collection[str], without: Collection[str]
) -> dict[str, _Answer]:
    """Return the function of each op; errors as ``run``."""
    known, asked = ops(), ops(groups)
    unknown = sorted({*without} - known)
    if isinstance(answers, Mapping):
        unknown += sorted({*map(str, answers)} - known)
        table = {name: answers[name] for name in asked & answers.keys()}
    else:
        table = {name: getattr(answers, name) for name in asked if hasattr(answers, name)}
    if unknown:
        raise ArgumentError(
            f"No vector has the op {unknown[0]!r}.", f"The ops are {', '.join(sorted(known))}."
        )
    missing = sorted(asked - table.keys() - {*without})
    if missing:
        raise ArgumentError(
            f"No answer is given for the ops {', '.join(missing)}.",
            "Give a function for each, or list the ops that you do not have: --without OP,OP.",
        )
    return {name: answer for name, answer in table.items() if name not in without}


def _read_answers(path: Path) -> dict[str, Any]:
    """Return the answers of a file by the ids of their cases; errors as ``judged_file``."""
    found: dict[str, Any] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            told = parse_json(line, _MAX_DEPTH, allow_nan=True)
            kinds = told.keys() & {"answer", "error", "not_claimed"}
            is_right = isinstance(told["id"], str) and len(kinds) == 1 and told["id"] not in found
        except (ValueError, KeyError, TypeError, AttributeError):
            is_right = False
        if not is_right:
            raise ArgumentError(
                f"Line {number} of {path} is not one answer of a new case.",
                'Write {"id": ID, "answer": VALUE}, or "error" or "not_claimed" with a reason.',
            )
        if "answer" in told:
            found[told["id"]] = told["answer"]
        elif "error" in told:
            found[told["id"]] = RuntimeError(told["error"])
        else:
            found[told["id"]] = NotImplementedError(told["not_claimed"])
    return found


def judged_file(
    path: Path, groups: Collection[str] = (), without: Collection[str] = ()
) -> list[Judgement]:
    """Return the judgement on each case by a file of answers; a case without an answer fails.

    See ``run`` for the other parameters.

    Parameters
    ----------
    path : path_like
        The file. Each line is a JSON object: ``{"id": ..., "answer": ...}``, ``{"id": ..., "error":
        "why"}`` for an input that was refused, or ``{"id": ..., "not_claimed": "why"}``.

    Raises
    ------
    ArgumentError
        If a line has another form, an id twice, or an id that no vector has.
    """
    given = _read_answers(path)
    cases = [case for name in groups or vectors.groups() for case in vectors.group(name)["cases"]]
    every = {case["id"] for name in vectors.groups() for case in vectors.group(name)["cases"]}
    strange = sorted({*without} - ops()) + sorted(given.keys() - every)
    if strange:
        raise ArgumentError(f"No vector has the op or the id {strange[0]!r}.", "Correct the name.")
    found = []
    for case in cases:
        if case["op"] in without:
            found.append(Judgement(case["id"], "not claimed"))
        elif case["id"] not in given:
            found.append(Judgement(case["id"], "failed", "the file has no answer"))
        else:
            found.append(judge_answer(case, given[case["id"]]))
    return found


def import_answers(spec: str) -> Any:
    """Import ``package.module`` or ``package.module:Name``, and construct a class."""
    module_name, _, name = spec.partition(":")
    try:
        found: Any = import_module(module_name)
        for part in filter(None, name.split(".")):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(
            f"Cannot import the answers {spec!r}: {error}.",
            "Give package.module or package.module:Name, in a directory from which Python imports.",
        ) from error
    return found() if isinstance(found, type) else found


def _judged(case: Mapping[str, Any], answer: _Answer | None, folder: Path) -> Judgement:
    if answer is None:
        return Judgement(case["id"], "not claimed")
    inputs = dict(case["inputs"])
    if "path" in inputs:
        inputs["path"] = str(folder / inputs["path"])
    if "deltas" in inputs:
        inputs["deltas"] = [str(folder / each) for each in inputs["deltas"]]
    try:
        value = answer(inputs)
    except Exception as error:  # noqa: BLE001 - whatever it raises is its answer
        value = error
    return judge_answer(case, value)
