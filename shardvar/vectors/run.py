"""Run all published vectors on an implementation: ``python -m shardvar.vectors ANSWERS``.

1. ``import_answers`` imports the answers; a program in another language gives a file.
2. ``run`` checks that the answers and the vectors have the same ops, and unpacks the checkpoints.
3. It answers and judges case by case.
"""

import tempfile
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from shardvar import vectors
from shardvar.errors import ArgumentError
from shardvar.vectors.judge import Judgement, judge_answer
from shardvar.wire.strict_json import parse_json

__all__ = ["judged_file", "ops", "run"]

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
    answers: Any, groups: Collection[str] = (), without: Collection[str] = ()
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
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            told = parse_json(line.encode(), _MAX_DEPTH, allow_nan=True)
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
