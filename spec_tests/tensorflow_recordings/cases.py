"""Running and judging a case: the same for every group.

A case passes where this engine gives what it expects: equal values of equal dtype and shape, or an
error of the class that stands for TensorFlow's. It deviates where it does not, and a rule of the
group says that cases of this kind differ, and the rule finds that what the engine did instead is
right. Everything else fails; so does an op that nobody offers.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from shardvar.errors import ShardvarError
from shardvar.layout.dtypes import dtype_name, numpy_dtype

ERRORS: dict[str, type[Exception]] = {
    "InvalidArgumentError": ValueError,
    "ValueError": ValueError,
    "TypeError": TypeError,
    "IndexError": IndexError,
    "RuntimeError": RuntimeError,
    "NotImplementedError": NotImplementedError,
    "AttributeError": AttributeError,
    "ZeroDivisionError": ZeroDivisionError,
}
"""The builtin of which an error here must be an instance, where TensorFlow raises the class on the
left."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The engine's result: a value, or an error."""

    value: Any = None
    """The value that the op returned, if it returned."""
    error: Exception | None = None
    """The exception that it raised, if it raised."""

    @property
    def refused(self) -> bool:
        """True if the engine raised an error of its own tree: it understood the input and refused
        it."""
        return isinstance(self.error, ShardvarError)


@dataclass(frozen=True, slots=True)
class Rule:
    """A way in which this engine is on purpose unlike TensorFlow."""

    id: str
    """Its row in docs/deviations.md."""
    covers: Callable[[Mapping[str, Any], Outcome], bool]
    """True if a case is of this kind and its outcome is right."""


@dataclass(frozen=True, slots=True)
class Verdict:
    id: str
    """The case."""
    kind: str
    """``passed``, ``deviates`` or ``failed``."""
    why: str = ""
    """The rule, or what went wrong."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The allowed distance of real numbers from the recorded ones: a group's `ULP`, `TOLERANCE` and
    `SUMMAND`.

    Where a group has a tolerance, numbers of 16 bits may be off by four of their own roundings:
    TensorFlow rounds after each operation, shardvar computes in float32 and rounds once.
    """

    ulp: int = 0
    """Units in the last place."""
    tolerance: float = 0.0
    """Relative to the expected number, and to 1 where that is smaller: libraries add up in other
    orders."""
    summand: float = 0.0
    """Units in the last place are this number's, where the expected one is smaller: it was added
    last."""

    @classmethod
    def of(cls, module: ModuleType, inputs: Any = None) -> "Allowance":
        """That of a group, for a case with these inputs; none where it does not say."""
        summand = getattr(module, "SUMMAND", lambda inputs: 0.0)
        return cls(getattr(module, "ULP", 0), getattr(module, "TOLERANCE", 0.0), summand(inputs))

    def covers(self, found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
        """Return True if two arrays of one dtype and shape are close enough."""
        if not dtype_name(found.dtype).startswith(("float", "bfloat", "complex")):
            return np.array_equal(found, expected)
        with np.errstate(all="ignore"):
            size = np.abs(expected)
            rounding = np.spacing(np.maximum(size, size.dtype.type(self.summand))).astype(
                np.float64
            )
            wide = np.promote_types(found.dtype, np.float64)
            far = np.abs(found.astype(wide) - expected.astype(wide))
            unit = (
                max(self.tolerance, 4 * float(ml_dtypes.finfo(size.dtype).eps))
                if size.itemsize == 2
                else 0.0
            )
            relative = self.tolerance and max(self.tolerance, unit)
            near = np.maximum(
                self.ulp * rounding, relative * np.maximum(size.astype(np.float64), 1)
            )
        both_nan = np.isnan(found) & np.isnan(expected)
        return bool(np.all((found == expected) | both_nan | (far <= near)))


EXACT = Allowance()


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Values of which each is right, because the recording does not say what was done, or in which
    form it tells the outcome."""

    values: tuple[Any, ...]
    """The values."""


class Skipped(Exception):
    """Raised by an op that does not know what a case's inputs mean."""


def judge(case: Mapping[str, Any], module: ModuleType | None) -> Verdict:
    op = op_of(case, module)
    if module is None or op is None:
        return Verdict(case["id"], "failed", f"no layer offers the op {case['op']!r}")
    try:
        outcome = run(op, case["inputs"])
        wrong = disagreement(case, outcome, Allowance.of(module, case["inputs"]))
    except AssertionError as error:
        return Verdict(case["id"], "failed", str(error))
    except Exception as error:  # noqa: BLE001 - one case that cannot be read does not end the run
        return Verdict(case["id"], "failed", f"cannot be judged: {type(error).__name__}: {error}")
    if wrong is None:
        return Verdict(case["id"], "passed")
    rule = next(
        (rule for rule in [*module.RULES, *COMMON_RULES] if _covers(rule, case, outcome)), None
    )
    return (
        Verdict(case["id"], "failed", wrong)
        if rule is None
        else Verdict(case["id"], "deviates", rule.id)
    )


def op_of(case: Mapping[str, Any], module: ModuleType | None) -> Callable[[Any], Any] | None:
    """Return the function of a case's op.

    A recording without inputs tells its answer only. Then the group's `LAWS` has a function that
    takes the answer: it builds the variable of which the answer must come by the law in the op's
    name, such as the rows of ``iter_rows``.
    """
    if module is None:
        return None
    law = getattr(module, "LAWS", {}).get(case["op"])
    if law is not None and "expected" in case and not case["inputs"].keys() - {"mode"}:
        return lambda inputs: law(case["expected"])
    return module.OPS.get(case["op"])


def _refused_too(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """Both refuse, TensorFlow by whatever stumbled first over the input."""
    return case.get("error", {}).get("class") in _STUMBLES and outcome.refused


def any_integers(ops: Mapping[str, Callable[[Any], Any]]) -> Rule:
    """D-ID-1: ids of any integer dtype address rows. Right is what the same op gives for int64."""

    def covers(case: Mapping[str, Any], outcome: Outcome) -> bool:
        wide = _widened(case["inputs"])
        if wide == case["inputs"] or outcome.error is not None:
            return False
        return difference(outcome.value, encoded(ops[case["op"]](wide))) is None

    return Rule("D-ID-1", covers)


def _widened(inputs: Any) -> Any:
    """The inputs with their arrays of other integers than int32, but for shards, as int64."""
    if is_array(inputs):
        is_other = inputs["dtype"].removeprefix("u").startswith("int")
        return {**inputs, "dtype": "int64"} if is_other and inputs["dtype"] != "int32" else inputs
    if not isinstance(inputs, Mapping):
        return inputs
    return {
        key: value if key.endswith("shards") else _widened(value) for key, value in inputs.items()
    }


def encoded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: encoded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return {
            "dtype": dtype_name(value.dtype), "shape": list(value.shape), "data": value.tolist()
        }  # fmt: skip
    return value


_STUMBLES = (
    "AttributeError",
    "IndexError",
    "NotImplementedError",
    "RuntimeError",
    "TypeError",
    "ZeroDivisionError",
)

COMMON_RULES = [Rule("D-ERROR-1", _refused_too)]
"""Rules of every group, after the group's own."""


def _covers(rule: Rule, case: Mapping[str, Any], outcome: Outcome) -> bool:
    """A rule that cannot make sense of a case does not cover it."""
    try:
        return rule.covers(case, outcome)
    except Exception:  # noqa: BLE001 - whatever it stumbles over, the case is then another rule's, or fails
        return False


def run(op: Callable[[Any], Any], inputs: Any) -> Outcome:
    """The value or the error of an op; only an assertion, which is a law of the engine broken,
    passes through."""
    try:
        return Outcome(op(inputs))
    except AssertionError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it raises is what is judged
        return Outcome(error=error)


def disagreement(
    case: Mapping[str, Any], outcome: Outcome, allowance: Allowance = EXACT
) -> str | None:
    """Return, in one line, how the outcome differs from what the case expects, or None."""
    if "error" not in case:
        if outcome.error is not None:
            return f"raised {type(outcome.error).__name__}: {outcome.error}"
        return difference(outcome.value, case["expected"], allowance=allowance)
    wanted = case["error"]["class"]
    if outcome.error is None:
        return f"expected {wanted}, got {_short(outcome.value)}"
    if not isinstance(outcome.error, ERRORS.get(wanted, ())):
        return f"expected {wanted}, raised {type(outcome.error).__name__}: {outcome.error}"
    if "state_after" in case and difference(
        list(map(decode, case["inputs"]["shards"])), case["state_after"]
    ):
        return "TensorFlow left a part of the write behind"
    return None


def difference(
    actual: Any, expected: Any, path: str = "", allowance: Allowance = EXACT
) -> str | None:
    """Return the first difference of two values, or None; dicts are compared by the expected keys
    alone."""
    if isinstance(actual, AnyOf):
        each = [difference(value, expected, path, allowance) for value in actual.values]
        return None if None in each else each[0]
    if is_array(expected):
        return _array_difference(actual, decode(expected), path, allowance)
    if isinstance(expected, dict):
        if not isinstance(actual, Mapping):
            return f"{path}: {_short(actual)} is no mapping"
        pairs: Iterable[tuple[str, Any, Any]] = (
            (f"{path}.{key}", actual.get(key), expected[key]) for key in expected
        )
    elif isinstance(expected, list):
        if not isinstance(actual, list | tuple) or len(actual) != len(expected):
            return f"{path}: {_short(actual)} is not {_short(expected)}"
        pairs = (
            (f"{path}[{i}]", *both) for i, both in enumerate(zip(actual, expected, strict=True))
        )
    else:
        same = type(actual) is type(expected) and actual == expected
        return None if same else f"{path}: {_short(actual)} is not {_short(expected)}"
    return next(
        (
            found
            for name, *both in pairs
            if (found := difference(*both, name, allowance)) is not None
        ),
        None,
    )


def is_array(value: Any) -> bool:
    """Return True if a value is an array in the recordings' encoding."""
    return isinstance(value, dict) and value.keys() >= {"dtype", "shape", "data"}


def decode(value: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The array that ``{dtype, shape, data}`` encodes; strings become bytes."""
    dtype = numpy_dtype(value["dtype"])
    flat = _flat(value["data"])
    if dtype == np.object_:
        array = np.empty(len(flat), object)
        array[:] = [item.encode() if isinstance(item, str) else item for item in flat]
    else:
        is_real = any(
            isinstance(item, float | str) for item in flat
        )  # integers of 64 bits would not survive as reals
        array = (
            np.array([float(item) for item in flat]).astype(dtype)
            if is_real
            else np.array(flat, dtype)
        )
    return array.reshape(value["shape"])


def _array_difference(
    actual: Any, expected: np.ndarray[Any, Any], path: str, allowance: Allowance
) -> str | None:
    try:
        found = np.asarray(actual)
    except ValueError:
        return f"{path}: {_short(actual)} is no array"
    if found.dtype.kind == "U" or (found.dtype == object and expected.dtype != object):
        return f"{path}: {_short(actual)} is no array of {expected.dtype}"
    if dtype_name(found.dtype) != dtype_name(expected.dtype) or found.shape != expected.shape:
        return f"{path}: {found.dtype} {found.shape} is not {expected.dtype} {expected.shape}"
    return (
        None
        if allowance.covers(found, expected)
        else f"{path}: {_short(found.tolist())} is not {_short(expected.tolist())}"
    )


def _flat(data: Any) -> list[Any]:
    if not isinstance(data, list):
        return [data]
    return [item for part in data for item in (_flat(part) if isinstance(part, list) else [part])]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
