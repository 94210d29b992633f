"""Forked processes, as data loaders make them: a child that reads, saves or assigns works or gets a
clear error.

Each child has an alarm, so one that hangs is a failure and not a test run without an end.
"""

import itertools
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar import forks
from shardvar.errors import LockHeld, StillSaving
from shardvar.forks import new_latch, new_lock, unforked
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.thoroughness import EXHAUSTIVE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

SECONDS = 60
"""The alarm of a child; what it does takes some hundredths of a second."""

FORKS = 20 if EXHAUSTIVE else 6


def start_child(work: Callable[[], object]) -> int:
    """Fork, do the work in the child, and return the child's number."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # from 3.12 on, of a process with threads
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - the child ends here whatever happens
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def in_child(work: Callable[[], object]) -> None:
    """Do the work in a forked child, which must come to its end without an error."""
    _, status = os.waitpid(start_child(work), 0)
    assert os.waitstatus_to_exitcode(status) == 0, "hangs" if status == signal.SIGALRM else "fails"


@contextmanager
def in_threads(*works: Callable[[], object]) -> Iterator[None]:
    """Do each work again and again in a thread of its own, until the block ends."""
    is_over, errors = threading.Event(), []

    def repeat(work: Callable[[], object]) -> None:
        try:
            while not is_over.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert not errors


# Locks and sections.


@contextmanager
def held(block: AbstractContextManager[Any]) -> Iterator[None]:
    """Let another thread stay in a block for as long as this one."""
    is_inside, is_over = threading.Event(), threading.Event()

    def stay() -> None:
        with block:
            is_inside.set()
            is_over.wait(SECONDS)

    thread = threading.Thread(target=stay)
    thread.start()
    is_inside.wait(SECONDS)
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("new", [new_lock, new_latch])
def test_a_lock_that_another_thread_held_is_free_in_the_child(new: Callable[[], Any]) -> None:
    lock = new()
    with held(lock):
        in_child(lock.acquire)
        assert not lock.acquire(blocking=False)  # it is still held here


def test_a_lock_that_the_forking_thread_holds_stays_its_own() -> None:
    """In parent and child it is released once, as if there had been no fork."""
    lock = new_lock()
    lock.acquire()
    in_child(lock.release)
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()


def test_a_child_sees_a_section_whole_or_not_at_all() -> None:
    both = [0, 0]

    def write() -> None:
        with unforked, unforked:  # one section may lie in another
            both[0] += 1
            time.sleep(0.002)
            both[1] += 1

    def check() -> None:
        assert both[0] == both[1]
        write()

    with in_threads(write):
        for _ in range(FORKS):
            in_child(check)


def test_a_fork_waits_for_a_section_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child does not inherit the section of a thread that it does not have."""
    monkeypatch.setattr(forks, "_PATIENCE_SECONDS", 0.05)
    with held(unforked):
        in_child(lambda: in_child(lambda: None))


def test_neither_a_fork_nor_a_section_waits_for_the_other_in_its_own_thread() -> None:
    """What a thread runs while it forks, such as a finalizer, may enter a section."""

    def enter() -> None:
        forks._forking.add(threading.get_ident())  # as if this thread were forking
        with unforked:
            pass

    with unforked:
        in_child(unforked.__exit__)
        in_child(unforked.__enter__)
    in_child(enter)


def test_a_child_may_use_a_name_that_another_thread_was_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's lock of a module that is being imported would be held in the child for ever."""
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.3)\nvalue = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sv._HOME_OF, "value", "slow_to_import")  # type: ignore[attr-defined]
    thread = threading.Thread(target=lambda: sv.__getattr__("value"))
    thread.start()
    time.sleep(0.1)
    in_child(lambda: sv.__getattr__("value"))
    thread.join()
    monkeypatch.delitem(vars(sv), "value")


# What children do.


def test_children_of_a_busy_process_read_assign_and_save(tmp_path: Path) -> None:
    """While other threads assign, add, look up, read a checkpoint and save; no child sees an
    assignment by half."""
    sharded = sv.ShardedVariable([sv.Variable(np.zeros((10_000, 8), np.float32)) for _ in range(3)])
    single = sv.Variable(np.zeros((100, 3)))
    checkpoint = sv.Checkpoint(sharded=sharded, single=single)
    sv.save(tmp_path / "source", {"table": np.ones((2000, 8))}, partition=4)
    reader = sv.open_checkpoint(tmp_path / "source")
    numbers = itertools.count(1)

    def assign() -> None:
        sharded.assign(np.full((30_000, 8), next(numbers), np.float32))

    def update() -> None:
        single.assign_add(np.ones((100, 3)))
        sharded.sparse_read([1, 2, 20_000])

    def save() -> None:
        checkpoint.write(tmp_path / "parent", force=True)

    def child() -> None:
        values = sharded.numpy()
        assert (values == values[0, 0]).all()
        assert len(set(single.numpy().ravel().tolist())) == 1
        sharded.assign_add(np.ones((30_000, 8), np.float32))
        single.scatter_update(sv.IndexedSlices(np.zeros((1, 3)), np.array([5])))
        assert (reader.read("table") == 1).all()
        path = tmp_path / f"child-{os.getpid()}"
        checkpoint.save(path)
        assert sv.verify(f"{path}-1").ok
        with sv.open_checkpoint(tmp_path / "source") as other:
            assert (other.read("table") == 1).all()
        checkpoint.restore(f"{path}-1").assert_consumed()
        assert (sharded.numpy() == values[0, 0] + 1).all()

    with in_threads(assign, update, save, lambda: reader.read("table")):
        for _ in range(FORKS):
            in_child(child)
    reader.close()


def test_a_child_that_is_forked_within_a_save_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It saves, writes and restores by itself. The pending save is not its own, and it is told so
    at once."""
    begun, gate = threading.Event(), threading.Event()
    from shardvar.verbs import writing

    write = writing.write_checkpoint

    def write_slowly(*arguments: Any, **options: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            gate.wait(SECONDS)
        return write(*arguments, **options)

    monkeypatch.setattr(writing, "write_checkpoint", write_slowly)
    variable = sv.Variable([1.0, 2.0])
    checkpoint = sv.Checkpoint(w=variable)
    assert checkpoint.save_counter == 0
    checkpoint.write(tmp_path / "before")
    pending: Any = [checkpoint.save(tmp_path / "ck", background=True)]
    assert begun.wait(SECONDS)

    def child() -> None:
        for ask in (pending[0].join, pending[0].done, lambda: pending[0].join(timeout=0)):
            with pytest.raises(
                StillSaving, match=r"is being written by process \d+.*Join it there"
            ):
                ask()
        with pytest.raises(LockHeld):
            checkpoint.save(tmp_path / "ck")  # the same number, which the parent is writing
        checkpoint.save(tmp_path / "other")
        checkpoint.write(tmp_path / "written")
        checkpoint.restore(tmp_path / "before").assert_consumed()
        pending.clear()  # nothing waits or logs where the handle goes

    try:
        in_child(child)
    finally:
        gate.set()
    assert pending[0].join().path.endswith("ck-1")
    assert sv.latest_checkpoint(tmp_path) and sv.verify(tmp_path / "ck-1").ok
    assert sv.verify(tmp_path / "other-1").ok and sv.verify(tmp_path / "written").ok
    assert not caplog.records


def test_parent_and_children_read_through_one_open_reader(tmp_path: Path) -> None:
    """They share its descriptors, and no position in them."""
    values = {f"t{number}": np.full((500, 16), number) for number in range(20)}
    for name, options in (
        ("ck", {"partition": 3}),
        ("ck.npz", {}),
        ("tf", {"format": "tensorflow"}),
    ):
        sv.save(tmp_path / name, values, **options)  # type: ignore[arg-type]
        with sv.open_checkpoint(tmp_path / name) as reader:

            def read(reader: Any = reader) -> None:
                for _ in range(5):
                    for key, value in values.items():
                        assert (reader.read(key) == value).all()

            children = [start_child(read) for _ in range(3)]
            read()
            for child in children:
                assert os.waitpid(child, 0)[1] == 0


# Locks of checkpoints.


def test_a_child_does_not_keep_the_lock_of_a_dead_writer(tmp_path: Path) -> None:
    """The writer is killed while it holds the lock, and its worker lives on."""
    storage = LocalStorage(str(tmp_path))
    is_ready, ready = os.pipe()
    is_over, over = os.pipe()

    def write() -> None:
        os.close(over)
        with storage.lock("ck"):
            start_child(lambda: (os.write(ready, b"x"), os.read(is_over, 1)))
            signal.pause()

    writer = start_child(write)
    os.close(is_over)
    try:
        assert os.read(is_ready, 1) == b"x"
        with pytest.raises(LockHeld), storage.lock("ck"):
            pass
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        with storage.lock("ck"):
            pass
        assert storage.names() == []
    finally:
        os.close(over)  # lets the worker end
        os.close(ready)
        os.close(is_ready)


def test_a_child_leaves_the_lock_of_its_parent_alone(tmp_path: Path) -> None:
    """Whether it ends, takes the lock itself, or leaves the block in which it was forked."""
    storage = LocalStorage(str(tmp_path))

    def take() -> None:
        with pytest.raises(LockHeld), storage.lock("ck"):
            pass

    with storage.lock("ck"):
        in_child(lambda: None)
        in_child(take)

    def leave() -> None:
        with pytest.raises(KeyboardInterrupt), storage.lock("ck"):
            in_child(lambda: None)
            raise KeyboardInterrupt

    leave()
    lock = storage.lock("ck")
    with lock:
        in_child(lambda: lock.__exit__(None, None, None))
        assert storage.names() == [".ck.lock"]
        take()
    assert storage.names() == []


def test_no_fork_catches_a_lock_half_taken(tmp_path: Path) -> None:
    """Threads take and release locks while children are forked that live on; no child keeps one."""
    storage = LocalStorage(str(tmp_path))
    is_over, over = os.pipe()
    children = []

    def lock(name: str) -> None:
        with storage.lock(name):
            pass

    def wait() -> None:
        os.close(over)
        os.read(is_over, 1)

    with in_threads(lambda: lock("a"), lambda: lock("b")):
        children = [start_child(wait) for _ in range(FORKS)]
    try:
        lock("a")
        lock("b")
    finally:
        os.close(over)
        os.close(is_over)
        for child in children:
            assert os.waitpid(child, 0)[1] == 0


def test_a_child_forgets_the_threads_that_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a thread that was inside of a section nor one that was forking at the same time keeps
    a thread of the child waiting."""

    def work() -> None:
        assert not forks._inside and not forks._forking
        entered = threading.Event()

        def enter() -> None:
            with unforked:
                entered.set()

        threading.Thread(target=enter, daemon=True).start()
        assert entered.wait(SECONDS)

    me = threading.get_ident()
    monkeypatch.setattr(forks, "_PATIENCE_SECONDS", 0.01)
    with held(unforked):
        forks._forking.add(me + 1)  # as if another thread were forking too
        try:
            in_child(work)
            assert me not in forks._forking
        finally:
            forks._forking.discard(me + 1)
    assert not forks._inside


def test_a_section_that_waited_for_a_fork_counts_as_entered() -> None:
    """From then on, the next fork waits for it, and it may be entered again. Until then no fork
    waits for it."""
    forks._forking.add(-1)  # as if another thread were forking
    entered, is_over, counts = threading.Event(), threading.Event(), []

    def enter() -> None:
        with unforked:
            counts.append(forks._inside[threading.get_ident()])
            with unforked:
                counts.append(forks._inside[threading.get_ident()])
            counts.append(forks._inside[threading.get_ident()])
            entered.set()
            is_over.wait(SECONDS)

    thread = threading.Thread(target=enter)
    thread.start()
    try:
        assert not entered.wait(0.05)
        begin = time.monotonic()
        in_child(lambda: None)
        assert time.monotonic() - begin < forks._PATIENCE_SECONDS
    finally:
        forks._forking.discard(-1)
    assert entered.wait(SECONDS)
    is_over.set()
    thread.join()
    assert counts == [1, 2, 1] and not forks._inside
