"""Calls of an adapter that are made in another process.

A damaged checkpoint may end, hang or exhaust the process that reads it, so ``restore`` of the damage
rules runs in a process apart. It lives as long as it can, since importing a framework takes seconds;
after a death or a timeout another one takes its place. It gets the adapter's name and constructs its
own adapter, which has never seen the tensors that were saved.

That process imports this module, so it stays light: it imports neither pytest nor Hypothesis.
"""

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

from shardvar.conformance.adapter import load_adapter
from shardvar.conformance.calls import ProcessDied

FIRST_PATIENCE = 60.0
"""Seconds after which the first call counts as hung; it imports a framework."""

PATIENCE = 30.0
"""Seconds after which a later call counts as hung; checkpoints here are tiny."""


class Refused(Exception):
    """The method raised an exception in the other process."""


class Isolated:
    """An adapter whose ``restore`` and ``save_limited`` run in another process, and all other
    methods in this one."""

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
        """End the other process, if it was started."""
        if self._pipe is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join()
        self._pipe = None
        self._patience = FIRST_PATIENCE

    def _ask(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method in the other process; ``Refused`` where it raises, ``ProcessDied`` where no
        answer comes."""
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
