"""Executors that do each task at once, in the process of the caller."""

import pickle
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Inline(Executor):
    """Requests have one order. What a task works with is pickled, as for another process."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []
        """The tasks, to be done once more."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        self.calls.append(lambda: function(*pickle.loads(pickle.dumps(arguments))))
        future: Future[Any] = Future()
        future.set_result(self.calls[-1]())
        return future
