"""A pytest plugin that tries many mutants in one process, each in a fork: ``-p
spec_tests.mutation.forks``.

To import the package and to collect the tests takes longer than most tests do. So one process does
both, and a child of it replaces the code of the changed function and runs the tests. That is right
of a change in the body of a function, unless its code has been copied into a closure or its result
kept since the import: a mutant that survives here is tried again in a copy of the repository, by
``trial``. So is one whose failing test also fails in a fork of the unchanged package.
"""

import functools
import gc
import importlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

FILE = "MUTATION_JOBS"
"""The environment variable that names the file of the jobs; what is found goes beside it, with the
suffix `.found`."""


_HANGS = " (hangs or ends Python)"
ENOUGH = 40.0
"""Seconds after which a child whose tests have noticed its mutant in two functions asks no more."""


class _Forks:
    """The jobs: a list of a file, its changed text, the changed line, the tests in their order, the
    seconds after which a test hangs, and whether all that notice are wanted or one."""

    def __init__(self, path: Path) -> None:
        self._jobs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        self._found = path.with_suffix(".found")
        self._log = path.with_suffix(".log")
        self._fails_anyway: dict[str, bool] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try each job in a child, one after the other, instead of running the tests."""
        items = {item.nodeid: item for item in session.items}
        modules = {job["path"]: _import(job["path"]) for job in self._jobs}
        with self._found.open("w", encoding="utf-8", buffering=1) as found:
            for job in self._jobs:
                chosen = [items[test] for test in job["tests"] if test in items]
                change = partial(exchange, modules[job["path"]], job["text"], job["line"])
                noticed = self._try(change, chosen, job["patience"], job["all"])
                self._control(items, noticed, job["patience"])
                real = [test for test in noticed if not self._fails_anyway[_bare(test)]]
                print(json.dumps(real), file=found)
        return True

    def _control(
        self, items: dict[str, pytest.Item], noticed: Sequence[str], patience: float
    ) -> None:
        """Find out which of the tests fail in a child of the unchanged package too."""
        new = [test for test in map(_bare, noticed) if test not in self._fails_anyway]
        if new:
            failing = self._try(lambda: None, [items[test] for test in new], patience, True)
            names = {_bare(test) for test in failing}
            self._fails_anyway.update((test, test in names) for test in new)

    def _try(
        self, change: Callable[[], None], chosen: Sequence[pytest.Item], patience: float, all_: bool
    ) -> list[str]:
        """Return the tests that fail in a child that makes the change; only the first unless all
        are wanted. A child that hangs has a successor for the tests after it, which is the last."""
        noticed: list[str] = []
        for _ in range(2 if all_ else 1):
            self._log.write_text("", encoding="utf-8")
            child = os.fork()
            if child == 0:
                self._be_the_mutant(change, chosen, all_)
            failed, hung = self._wait(child, patience)
            noticed += failed + [hung + _HANGS] * bool(hung)
            if not hung:
                break
            names = [item.nodeid for item in chosen]
            chosen = chosen[names.index(hung) + 1 :]
        return noticed

    def _be_the_mutant(
        self, change: Callable[[], None], chosen: Sequence[pytest.Item], all_: bool
    ) -> None:
        """Change the function, run the tests, up to the first that fails unless all are wanted, and
        end."""
        os.setsid()
        log = self._log.open("a", encoding="utf-8", buffering=1)
        failed: list[str] = []
        functions: set[str] = set()
        begun = time.monotonic()
        try:
            change()
            reporter = _Reporter(failed)
            for item, following in pairwise([*chosen, None]):
                assert item is not None
                print("begins", item.nodeid, file=log)
                item.config.pluginmanager.register(reporter, "mutation-reporter")
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                item.config.pluginmanager.unregister(reporter)
                for test in dict.fromkeys(failed):
                    print("failed", test, file=log)
                functions |= {test.partition("[")[0] for test in failed}
                if failed and not all_:
                    break
                if len(functions) > 1 and time.monotonic() - begun > ENOUGH:
                    break
                failed.clear()
            print("ends", file=log)
        finally:
            os._exit(0)

    def _wait(self, child: int, patience: float) -> tuple[list[str], str]:
        """Return the tests that fail, and the one that hangs or ends the child."""
        length, since = -1, time.monotonic()
        hangs = False
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            time.sleep(0.01)
            if self._log.stat().st_size != length:
                length, since = self._log.stat().st_size, time.monotonic()
            elif time.monotonic() - since > patience and not hangs:
                hangs = True
                os.killpg(child, signal.SIGKILL)
        said = [line.partition(" ") for line in self._log.read_text(encoding="utf-8").splitlines()]
        failed = list(dict.fromkeys(test for what, _, test in said if what == "failed"))
        return failed, said[-1][2] if said and said[-1][0] == "begins" else ""


def _bare(test: str) -> str:
    return test.removesuffix(_HANGS)


class _Reporter:
    """Keeps the tests that fail."""

    def __init__(self, failed: list[str]) -> None:
        self._failed = failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(report.nodeid)


def _import(path: str) -> Any:
    name = "shardvar." + path.removesuffix(".py").replace("/", ".")
    return importlib.import_module(name.removesuffix(".__init__"))


def exchange(module: Any, text: str, line: int) -> None:
    """Give the function that has this line the code that it has in another text of its module."""
    path = module.__file__
    old = list(_functions(compile(Path(path).read_text(encoding="utf-8"), path, "exec")))
    new = list(_functions(compile(text, path, "exec")))
    number = next(
        number for number, code in enumerate(old) if code.co_firstlineno <= line <= _last_line(code)
    )
    place = old[number].co_qualname, old[number].co_firstlineno
    gc.unfreeze()  # what is frozen is not among the objects
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename == path:
            if (each.__code__.co_qualname, each.__code__.co_firstlineno) == place:
                each.__code__ = new[number]
        elif isinstance(each, functools._lru_cache_wrapper):
            each.cache_clear()


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the functions of a module and of its classes, in the order of the text."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & 0x2:  # its variables are local: a function, not the body of a class
                yield each
            else:
                yield from _functions(each)


def _last_line(code: CodeType) -> int:
    """Return the last line of a function that is executed, in it or in what it defines."""
    inner = [_last_line(each) for each in code.co_consts if isinstance(each, CodeType)]
    return max([*inner, *(line for _, _, line in code.co_lines() if line is not None)])


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Forks(Path(os.environ[FILE])))
