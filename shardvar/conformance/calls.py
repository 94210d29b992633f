"""Calls of an adapter: recorded as Python, and checked.

``Calls`` records each call as a line of Python, so that a counterexample can be run without the
kit; ``expect`` and ``expect_equal`` raise ``Broken`` with the two sentences of the report.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from shardvar.testing.compare import difference

REFUSED = object()
"""The result of ``attempt`` for a call that raised."""

LONG = 24
"""The most elements of an array that are written out; a longer one is an expression."""

WRITES = ("assign", "assign_add", "assign_sub", "scatter")
"""Methods that return a new handle, or None if they changed the given one in place."""


class Broken(Exception):
    """A rule is broken: the sentences say what came and what must come."""

    def __init__(self, came: str, must: str) -> None:
        super().__init__(f"{came} {must}")
        self.came = came
        self.must = must


class ProcessDied(Exception):
    """A call in another process ended that process, or hung; this never counts as a refusal."""


class NotClaimed(Exception):
    """The adapter raised ``NotImplementedError``: it does not claim these inputs."""


class Panic(Exception):
    """The adapter raised a ``BaseException`` that is not an ``Exception``."""


class Calls:
    """An adapter whose calls are recorded; ``lines`` is the program that has run on it."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._names: list[tuple[Any, str]] = []
        # The last answer as it came. A report shows it where a rule goes on with another value:
        # None of a write that changed its handle in place.
        self._returned: Any = None
        self.lines: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)

    def name(self, value: Any, name: str) -> Any:
        """Write a value by a name in the lines that follow; return the value."""
        self._names.append((value, name))
        return value

    def note(self, line: str) -> None:
        """Record a line that does not call the adapter."""
        self.lines.append(line)

    def has(self, name: str) -> bool:
        """Return True if the adapter has a method."""
        return callable(getattr(self._adapter, name, None))

    def refuses(self, name: str, *arguments: Any) -> None:
        """Call a method that must raise; ``Broken`` where it returns."""
        if self.attempt(name, *arguments) is not REFUSED:
            raise Broken(f"It returned {text(self._returned)}.", "It must raise an exception.")

    def attempt(self, name: str, *arguments: Any) -> Any:
        """Call a method that may raise; return its answer, or ``REFUSED``. A process that died has
        not refused."""
        try:
            return self._call(name, *arguments)
        # Both are Exceptions, and neither is a refusal: the case was declined, or the process is
        # gone.
        except (NotClaimed, ProcessDied):
            raise
        except Exception:  # noqa: BLE001 - which exception it is, is the implementation's business
            return REFUSED

    def _call(self, name: str, *arguments: Any) -> Any:
        call = f"adapter.{name}({', '.join(self._named(argument) for argument in arguments)})"
        # Recorded before it is made, so that a call that raises is the last line of the
        # counterexample.
        self.lines.append(call)
        # A method that is not there has not refused its arguments.
        if not self.has(name):
            raise NotClaimed(f"no method {name}")
        try:
            answer = getattr(self._adapter, name)(*arguments)
        except NotImplementedError as error:
            raise NotClaimed(f"{name}: {error}" if str(error) else name) from error
        # Ctrl-C must end the session and not become a broken rule.
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:  # a panic of Rust code derives only from BaseException
            raise Panic(f"{type(error).__name__}: {error}") from error
        self._returned = answer
        # Changed in place: the rule goes on with the handle that it has, which keeps its name.
        if name in WRITES and answer is None:
            return arguments[0]
        if name.startswith("create") or name in WRITES:
            handle = f"h{1 + sum(label[:1] == 'h' for _, label in self._names)}"
            self.lines[-1] = f"{handle} = {call}"
            self._names.append((answer, handle))
        return answer

    def _named(self, value: Any) -> str:
        # By identity, since two handles may hold equal arrays; the last name is the one that the
        # program assigned last.
        names = [name for known, name in self._names if known is value]
        return names[-1] if names else text(value)


def expect_equal(came: Any, must: Any, ulps: int = 0) -> None:
    """Raise ``Broken`` unless an answer has an array's shape, dtype and values (also NaN)."""
    found = difference(came, must, ulps=ulps)
    if found is not None:
        raise Broken(f"It gave {text(came)}.", f"It must give {text(np.asarray(must))}.")


def expect(holds: bool, came: str, must: str) -> None:
    """Raise ``Broken`` with two sentences unless ``holds``."""
    if not holds:
        raise Broken(came, must)


def text(value: object) -> str:
    """Return a value as the Python expression that makes it, arrays in full.

    >>> text({"a": np.zeros((2, 0), np.float32)}), text([np.array([1, 2]), slice(None, 3)])
    ("{'a': np.zeros((2, 0), 'float32')}", "[np.array([1, 2], 'int64'), slice(None, 3, None)]")
    """
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype == object:
            return (
                f"np.array({array.tolist()!r}, object)"
                if array.size
                else f"np.empty({array.shape}, object)"
            )
        if not array.size:
            return f"np.zeros({array.shape}, {str(array.dtype)!r})"
        if array.size > LONG and array.dtype.kind in "iuf":
            short = _pattern(array)
            if short:
                return short
        # float64 holds every value of bfloat16 and its like exactly; the dtype is written next to
        # the numbers.
        plain = array if array.dtype.kind in "biufc" else array.astype(np.float64)
        # ``repr`` writes nan and inf, which Python does not know as names.
        numbers = repr(plain.tolist()).replace("nan", "np.nan").replace("inf", "np.inf")
        return f"np.array({numbers}, {str(array.dtype)!r})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(text, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(text, value)) + (",)" if len(value) == 1 else ")")
    if isinstance(value, np.dtype):
        return f"np.dtype({str(value)!r})"
    if value is ...:
        return "..."
    return str(getattr(value, "__name__", "a_function")) if callable(value) else repr(value)


def _pattern(array: np.ndarray[Any, Any]) -> str:
    """Return the expression of an array that counts from 1 or repeats a value; else ""."""
    dtype, shape = str(array.dtype), array.shape
    # The templates of a restore repeat one value of junk.
    if np.array_equal(array, np.full(shape, array.flat[0])):
        return f"np.full({shape}, {array.flat[0].item()}, {dtype!r})"
    # Most tables come from ``counting``: the 960 numbers of a (60, 16) table become one
    # ``np.arange``.
    for sign in ("", "-"):
        counted = np.arange(1, array.size + 1).reshape(shape)
        if np.array_equal(array, -counted if sign else counted):
            return f"{sign}np.arange(1, {array.size + 1}).reshape({shape}).astype({dtype!r})"
    return ""
