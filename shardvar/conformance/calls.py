"""An adapter whose calls are written down as Python, so that a counterexample can be run without the kit."""

import multiprocessing
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from shardvar.conformance.adapter import load_adapter
from shardvar.testing.compare import difference

REFUSED = object()
"""What ``attempt`` gives for a call that raised."""

LONG = 24
"""Arrays of more elements are written as the expression that makes them, where there is one."""

WRITES = ("assign", "assign_add", "assign_sub", "scatter")
"""Methods that return a new handle, or None where the handle that they were given was changed in place."""


class Broken(Exception):
    """A rule is broken: what came, and what must come."""

    def __init__(self, came: str, must: str) -> None:
        super().__init__(f"{came} {must}")
        self.came = came
        self.must = must


class ProcessDied(Exception):
    """What was called in a process of its own ended that process, or hung; that is never a refusal."""


class NotClaimed(Exception):
    """The adapter raised ``NotImplementedError``: it does not claim these inputs."""


class Panic(Exception):
    """The adapter raised what is no ``Exception``."""


class Calls:
    """An adapter; ``lines`` is the program that has been run on it."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._names: list[tuple[Any, str]] = []
        self.lines: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)

    def name(self, value: Any, name: str) -> Any:
        """Call a value by a name in what is written down from now on; returns the value."""
        self._names.append((value, name))
        return value

    def note(self, line: str) -> None:
        """Write down a line that is no call of the adapter."""
        self.lines.append(line)

    def has(self, name: str) -> bool:
        """Whether the adapter has a method."""
        return callable(getattr(self._adapter, name, None))

    def refuses(self, name: str, *arguments: Any) -> None:
        """Call a method that must raise; ``Broken`` where it returns."""
        answer = self.attempt(name, *arguments)
        if answer is not REFUSED:
            raise Broken(f"It returned {text(answer)}.", "It must raise an exception.")

    def attempt(self, name: str, *arguments: Any) -> Any:
        """Call a method that may raise: its answer, or ``REFUSED``; a process that ended has not refused."""
        try:
            return self._call(name, *arguments)
        except (NotClaimed, ProcessDied):
            raise
        except Exception:  # noqa: BLE001 - which exception it is, is the implementation's business
            return REFUSED

    def _call(self, name: str, *arguments: Any) -> Any:
        call = f"adapter.{name}({', '.join(self._named(argument) for argument in arguments)})"
        self.lines.append(call)
        try:
            answer = getattr(self._adapter, name)(*arguments)
        except NotImplementedError as error:
            raise NotClaimed(f"{name}: {error}" if str(error) else name) from error
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:  # a panic of Rust code is no Exception
            raise Panic(f"{type(error).__name__}: {error}") from error
        if name in WRITES and answer is None:
            return arguments[0]
        if name.startswith("create") or name in WRITES:
            handle = f"h{1 + sum(label[:1] == 'h' for _, label in self._names)}"
            self.lines[-1] = f"{handle} = {call}"
            self._names.append((answer, handle))
        return answer

    def _named(self, value: Any) -> str:
        names = [name for known, name in self._names if known is value]
        return names[-1] if names else text(value)


def expect_equal(came: Any, must: Any, ulps: int = 0) -> None:
    """``Broken`` unless an answer is an array of the same shape and dtype with equal values (NaN equals NaN)."""
    found = difference(came, must, ulps=ulps)
    if found is not None:
        raise Broken(f"It gave {text(came)}.", f"It must give {text(np.asarray(must))}.")


def expect(holds: bool, came: str, must: str) -> None:
    """``Broken`` with two sentences unless something holds."""
    if not holds:
        raise Broken(came, must)


def text(value: object) -> str:
    """A value as Python that makes it, arrays in full.

    >>> text({"a": np.zeros((2, 0), np.float32)}), text([np.array([1, 2]), slice(None, 3)])
    ("{'a': np.zeros((2, 0), 'float32')}", "[np.array([1, 2], 'int64'), slice(None, 3, None)]")
    """
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype == object:
            return f"np.array({array.tolist()!r}, object)" if array.size else f"np.empty({array.shape}, object)"
        if not array.size:
            return f"np.zeros({array.shape}, {str(array.dtype)!r})"
        if array.size > LONG and array.dtype.kind in "iuf":
            short = _pattern(array)
            if short:
                return short
        plain = array if array.dtype.kind in "biufc" else array.astype(np.float64)
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
    """An array that counts from 1, or that is the same everywhere, as an expression; otherwise nothing."""
    dtype, shape = str(array.dtype), array.shape
    if np.array_equal(array, np.full(shape, array.flat[0])):
        return f"np.full({shape}, {array.flat[0].item()}, {dtype!r})"
    for sign in ("", "-"):
        counted = np.arange(1, array.size + 1).reshape(shape)
        if np.array_equal(array, -counted if sign else counted):
            return f"{sign}np.arange(1, {array.size + 1}).reshape({shape}).astype({dtype!r})"
    return ""


# Restoring in a process of its own: a damaged checkpoint may end, hang or fill the process that reads it.
#
# One process is kept as long as it lives, since importing a framework takes seconds; after a death or a silence another
# takes its place. The process is given the adapter's name and makes an adapter of its own, which has never seen the
# tensors that were saved.


FIRST_PATIENCE = 60.0
"""Seconds after which the first call counts as hung: it waits for the import of a framework on a busy machine."""

PATIENCE = 30.0
"""Seconds after which any other call counts as hung; the checkpoints have a few hundred bytes."""


class Refused(Exception):
    """The method raised an exception there."""


class Isolated:
    """An adapter whose ``restore`` and ``save_limited`` run in another process, and all else in this one."""

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
        """End the process, if there is one."""
        if self._pipe is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join()
        self._pipe = None
        self._patience = FIRST_PATIENCE

    def _ask(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """What the method gives there; ``Refused`` where it raises, ``ProcessDied`` where nothing comes back."""
        pipe = self._connect()
        patience = self._patience
        try:
            pipe.send((name, arguments))
            verdict, value = pipe.recv() if pipe.poll(patience) else ("hung", None)
        except (EOFError, OSError) as error:
            self._process.join(5)
            code = self._process.exitcode
            self.close()
            raise ProcessDied(f"{name} ended the process that it ran in, with exit code {code}.") from error
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
            context = multiprocessing.get_context("spawn")
            self._pipe, there = context.Pipe()
            self._process = context.Process(target=serve, args=(there, self._spec), daemon=True)
            self._process.start()
            there.close()
        return self._pipe


def serve(pipe: Connection, spec: str) -> None:
    """The other process: call what is asked for until the pipe is closed."""
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
        except KeyboardInterrupt:
            return
        except BaseException as error:  # noqa: BLE001 - it is told to the other side, a panic of Rust code too
            answer = ("raised", f"{type(error).__name__}: {error}")
        pipe.send(answer)
