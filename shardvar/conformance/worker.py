"""Restoring in a process of its own: a damaged checkpoint may end, hang or fill the process that reads it.

One process is kept as long as it lives, since importing a framework takes seconds; after a death or a silence another
takes its place. The process is given the adapter's name and makes an adapter of its own, which has never seen the
tensors that were saved.
"""

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

from shardvar.conformance.adapter import load_adapter
from shardvar.conformance.calls import ProcessDied

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
