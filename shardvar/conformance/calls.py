"""Calls of an adapter: recorded as Python, and checked.

``Calls`` records each call as a line of Python, so that a counterexample can be run without the
kit; ``expect`` and ``expect_equal`` raise ``Broken`` with the two sentences of the report.

A damaged checkpoint may end, hang or exhaust the process that reads it, so ``Isolated`` restores it in
another process, which imports this module, and neither pytest nor Hypothesis. It lives as long as it
can, since importing a framework takes seconds, and constructs its own adapter, which has never seen
the tensors that were saved.
"""

import multiprocessing
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from shardvar.conformance.adapter import load_adapter
from shardvar.layout.dtypes import Array
from shardvar.testing.compare import difference

LONG = 24
"""The most elements of an array that are written out; a longer one is an expression."""

WRITES = ("assign", "assign_add", "assign_sub", "scatter")
"""Methods that return a new handle, or None if they changed the given one in place."""


class Broken(Exception):
    """A rule is broken: two sentences with the answer and the demanded one."""

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


class KeptByRefusal(Exception):
    """The adapter refused what a rule lets it refuse, so that the case keeps the rule."""


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
        self.lines.append(line)

    def has(self, name: str) -> bool:
        return callable(getattr(self._adapter, name, None))

    def refuses(self, name: str, *arguments: Any) -> None:
        """Call a method that must raise; ``Broken`` where it returns."""
        if not self.has_refused(name, *arguments):
            raise Broken(f"It returned {text(self._returned)}.", "It must raise an exception.")

    def has_refused(self, name: str, *arguments: Any) -> bool:
        """Call a method that may raise, and return True if it did."""
        try:
            self.attempt(name, *arguments)
        except KeptByRefusal:
            return True
        return False

    def attempt(self, name: str, *arguments: Any) -> Any:
        """Return the answer of a method; ``KeptByRefusal`` where it raises. A process that died has not refused."""
        try:
            return self._call(name, *arguments)
        # Both are Exceptions, and neither is a refusal: the case was declined, or the process is
        # gone.
        except (NotClaimed, ProcessDied):
            raise
        except Exception as error:  # which exception it is, is the implementation's business
            raise KeptByRefusal from error

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
    if not holds:
        raise Broken(came, must)


def expect_answer(came: Any, must: Any, what: str = "") -> None:
    """Raise ``Broken`` unless an answer in plain Python is the right one."""
    expect(came == must, f"It gave {what}{came}.", f"It must give {must}.")


def expect_near(came: Any, *answers: Array, rtol: float, atol: float, share: str = "") -> None:
    """Raise ``Broken`` unless an answer is near one of several arrays; ``share`` is the tolerance in words."""
    array = np.asarray(came)
    if not any(
        array.shape == must.shape and np.allclose(array, must, rtol=rtol, atol=atol)
        for must in answers
    ):
        musts = " or ".join(map(text, answers))
        raise Broken(f"It gave {text(array)}.", f"It must give {musts}{share}.")


def text(value: object) -> str:
    """Return a value as the Python expression that makes it, arrays in full."""
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


def _pattern(array: Array) -> str:
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


FIRST_PATIENCE = 60.0
"""Seconds after which the first call counts as hung; it imports a framework."""

PATIENCE = 30.0
"""Seconds after which a later call counts as hung; checkpoints here are tiny."""


class Refused(Exception):
    """The method raised an exception in the other process."""


class Isolated:
    """An adapter whose ``restore`` and ``save_limited`` run in another process."""

    def __init__(self, adapter: Any, spec: str) -> None:
        self._adapter = adapter
        self._spec = spec
        self._process: Any = None
        self._pipe: Connection | None = None
        self._patience = FIRST_PATIENCE

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._adapter, name)
        if name in ("restore", "save_limited"):
            return lambda *arguments: self._ask(name, arguments)
        return value

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join()
        self._pipe = None
        self._patience = FIRST_PATIENCE

    def _ask(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method there; ``Refused`` if it raises, ``ProcessDied`` without an answer."""
        pipe = self._connect()
        patience = self._patience
        try:
            pipe.send((name, arguments))
            verdict, value = pipe.recv() if pipe.poll(patience) else ("hung", None)
        except (EOFError, OSError) as error:
            # The pipe breaks a moment before the process is gone, and only then is there an exit
            # code to report.
            self._process.join(5)
            code = self._process.exitcode
            self.close()
            raise ProcessDied(
                f"{name} ended the process that it ran in, with exit code {code}."
            ) from error
        # The framework is imported now, so later calls are quick; ``close`` restores the patience
        # for the next process.
        self._patience = PATIENCE
        if verdict == "hung":
            self.close()
            raise ProcessDied(f"{name} did not return within {patience:.0f} seconds.")
        if verdict == "unclaimed":
            raise NotImplementedError(value)
        if verdict == "raised":
            raise Refused(value)
        return value

    def _connect(self) -> Connection:
        if self._pipe is None:
            # Not a fork: threads and locks of a framework that this process has imported do not
            # survive one.
            context = multiprocessing.get_context("spawn")
            self._pipe, there = context.Pipe()
            self._process = context.Process(target=serve, args=(there, self._spec), daemon=True)
            self._process.start()
            # While this process holds that end open too, ``recv`` would not notice that the other
            # one died.
            there.close()
        return self._pipe


def serve(pipe: Connection, spec: str) -> None:
    """Run in the other process: make the calls that come through the pipe, until it is closed."""
    adapter = load_adapter(spec)
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer: tuple[str, Any] = ("returned", getattr(adapter, name)(*arguments))
        except NotImplementedError as error:
            answer = ("unclaimed", str(error))
        # Ctrl-C reaches both processes; the parent reports it.
        except KeyboardInterrupt:
            return
        except BaseException as error:  # noqa: BLE001 - sent to the other side, a panic of Rust code too
            answer = ("raised", f"{type(error).__name__}: {error}")
        pipe.send(answer)
