"""A path means one checkpoint, also while another process removes or replaces it.

A model of the storage lets something happen before the k-th call that a verb makes of it, for all k:
the checkpoint at the path is removed, emptied, or replaced, by another one or by its neighbour. Then
the verb answers for the checkpoint that was at the path before or after, or raises an error about
that path. It never lists the folder above the path, and touches nothing that was not named.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.engine.pool import in_this_thread
from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    ReadError,
    ShardvarError,
    StorageError,
)
from shardvar.planning.policies import BalancedPolicy
from shardvar.storage.local import LocalStorage
from shardvar.storage.posix import LocalReadableFile
from shardvar.verbs.compare.blocks import measure
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.thoroughness import is_due

OLD, NEW, NEIGHBOUR, RESULT = 3.0, 7.0, 4.0, 9.0
"""The values of the checkpoint at the path, of one that replaces it, of the one next to it, and of
what a delta makes of the old one."""

FOLDERS = {
    "native in a folder": ("shardvar", "ck", 2),
    "tensorflow in a folder": ("tensorflow", "ck", 1),
    "safetensors in a folder": ("safetensors", "model.safetensors", 1),
    "safetensors set in a folder": ("safetensors", "model", 2),
    "npz in a folder": ("npz", "m.npz", 1),
    "pt in a folder": ("pt", "m.pt", 1),
    "torch": ("torch", "", 2),
    "zarr": ("zarr", "", 1),
    "orbax": ("orbax", "", 1),
}
"""Checkpoints whose path is a folder: the format, the name in the folder, the number of files."""
FILES = {
    "native": ("shardvar", "", 2),
    "tensorflow": ("tensorflow", "", 1),
    "safetensors": ("safetensors", ".safetensors", 1),
    "npz": ("npz", ".npz", 1),
    "pt": ("pt", ".pt", 1),
}
"""Checkpoints whose path is a prefix or a file: the format, the ending, the number of files."""
LAYOUTS = FOLDERS | FILES
Facts = set[float]
"""The values that an answer shows; empty if it shows none."""


def arrays(value: float) -> dict[str, Any]:
    return {key: np.full((4, 3), value, np.float32) for key in ("a", "b")}


def write(home: str, layout: str, step: str, value: float, **options: Any) -> str:
    """Save a checkpoint as a step of a directory or a prefix, and return its path."""
    form, name, files = LAYOUTS[layout]
    path = f"{home}/{step}{name}" if layout in FILES else f"{home}/{step}"
    target = f"{path}/{name}" if layout in FOLDERS and name else path
    policy = BalancedPolicy(files) if files > 1 else None
    sv.save(target, arrays(value), format=form, policy=policy, **options)
    return path


# --- The model of a storage


@dataclass
class Model:
    """A storage in which something happens before a call."""

    happens: Callable[[], None] = lambda: None
    """The thing that happens."""
    at: int = -1
    """The number of the call, counted from 0."""
    calls: int = 0
    """Calls so far."""
    listed: list[str] = field(default_factory=list)
    """The folders that were listed, in order."""
    lock: Any = field(default_factory=RLock)

    def call(self, listed: str | None = None) -> None:
        """Note a call."""
        with self.lock:
            number, self.calls = self.calls, self.calls + 1
            if number == self.at:
                self.happens()
            if listed is not None:
                self.listed.append(listed)


class Stage:
    """A directory or a bucket with the steps of a run, and what a test makes of them."""

    def __init__(self, layout: str, home: str) -> None:
        self.layout, self.home, self.begin = layout, home, dict[str, bytes]()
        self.path = f"{home}/run/step-3{'' if layout in FOLDERS else LAYOUTS[layout][1]}"

    def files(self) -> dict[str, bytes]:
        """The files by their paths from the home on."""
        raise NotImplementedError

    def put(self, files: dict[str, bytes]) -> None:
        """Make these the only files."""
        raise NotImplementedError

    def is_of(self, name: str, step: str) -> bool:
        """Return True for a file of a step."""
        return name.startswith((f"run/{step}/", f"run/{step}."))

    def step(self, files: dict[str, bytes], step: str) -> dict[str, bytes]:
        return {name: octets for name, octets in files.items() if self.is_of(name, step)}

    def prepare(self) -> dict[str, bytes]:
        """Write the checkpoints that a case begins with, and return all files."""
        run = f"{self.home}/run"
        write(f"{self.home}/aside", self.layout, "step-3", NEW)
        write(run, self.layout, "step-3", OLD)
        write(run, self.layout, "step-4", NEIGHBOUR)
        for name, value in (("old", OLD), ("neighbour", NEIGHBOUR)):
            more = f"{self.home}/more/{name}"
            sv.save(more, arrays(value))
            sv.save(f"{more}-changed", arrays(value) | {"a": arrays(RESULT)["a"]})
            sv.delta(more, f"{more}-changed", f"{more}-delta")
        return self.files()

    # What happens.

    def remove(self) -> None:
        self.put({n: o for n, o in self.files().items() if not self.is_of(n, "step-3")})

    def replace(self) -> None:
        self.remove()
        new = {n.replace("aside/", "run/", 1): o for n, o in self.begin.items() if "aside/" in n}
        self.put(self.files() | new)

    def rename(self) -> None:
        self.remove()
        files = self.files()
        moved = self.step(files, "step-4")
        named = {n.replace("step-4", "step-3", 1): o for n, o in moved.items()}
        self.put({n: o for n, o in files.items() if n not in moved} | named)

    def empty(self) -> None:
        self.remove()

    def model(self, model: Model) -> Any:
        raise NotImplementedError


class Disk(Stage):
    def files(self) -> dict[str, bytes]:
        return {
            path.relative_to(self.home).as_posix(): path.read_bytes()
            for path in sorted(Path(self.home).rglob("*"))
            if path.is_file()
        }

    def put(self, files: dict[str, bytes]) -> None:
        there = self.files()
        for name in there.keys() - files.keys():
            os.unlink(f"{self.home}/{name}")
        for name, octets in files.items():
            if there.get(name) != octets:
                path = Path(self.home, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                aside = path.with_name("aside.tmp")
                aside.write_bytes(octets)
                os.replace(aside, path)

    def remove(self) -> None:
        if self.layout in FOLDERS:
            shutil.rmtree(f"{self.home}/run/step-3", ignore_errors=True)
        else:
            super().remove()

    def empty(self) -> None:
        super().remove()

    def rename(self) -> None:
        if self.layout in FOLDERS:
            self.remove()
            os.rename(f"{self.home}/run/step-4", f"{self.home}/run/step-3")
        else:
            super().rename()

    @contextmanager
    def model(self, model: Model) -> Iterator[None]:
        def met(call: Any) -> Any:
            def hook(*arguments: Any, **options: Any) -> Any:
                model.call()
                return call(*arguments, **options)

            return hook

        scandir = os.scandir

        def listing(path: Any = ".") -> Any:
            if isinstance(path, str):  # a program that removes a tree gives a descriptor
                model.listed.append(path)
            return scandir(path)

        with pytest.MonkeyPatch.context() as patch:
            for owner, names in {
                LocalStorage: "open create names folders status stamp tree rename move sync remove "
                "lock make create_once",
                LocalReadableFile: "read read_into map",
            }.items():
                for name in names.split():
                    patch.setattr(owner, name, met(getattr(owner, name)))
            patch.setattr(os, "scandir", listing)
            yield


@dataclass(eq=False)
class ModelBucket(MemoryBucket):
    """A bucket whose requests are calls of a model."""

    model: Model = field(default_factory=Model)

    def head(self, key: str) -> Any:
        self.model.call()
        return super().head(key)

    def read(self, key: str, head: Any, start: int, nbytes: int) -> memoryview:
        self.model.call()
        return super().read(key, head, start, nbytes)

    def listing(self, key: str) -> Any:
        self.model.call(listed=key)
        return super().listing(key)

    def walk(self, key: str) -> Any:
        self.model.call(listed=key)
        return super().walk(key)

    def change(self, what: str, do: Callable[[], None]) -> None:
        self.model.call()
        super().change(what, do)


class Bucket(Stage):
    def __init__(self, layout: str, home: str) -> None:
        super().__init__(layout, home)
        self.bucket = ModelBucket()

    def files(self) -> dict[str, bytes]:
        return dict(self.bucket.files)

    def put(self, files: dict[str, bytes]) -> None:
        self.bucket.files.clear()
        self.bucket.files.update(files)

    @contextmanager
    def model(self, model: Model) -> Iterator[None]:
        self.bucket.model = model
        yield


# --- The verbs


def seen(loaded: dict[str, Any]) -> Facts:
    assert loaded.keys() == {"a", "b"}, f"another set of keys: {[*loaded]}"
    return {float(value) for array in loaded.values() for value in np.unique(array)}


def read_many(stage: Stage) -> Facts:
    with sv.open_checkpoint(stage.path) as reader:
        found = reader.read_many([("a", None), ("b", np.s_[1:3])])
    return seen(dict(zip("ab", found, strict=True)))


def digested(stage: Stage) -> Facts:
    found = sv.digest(stage.path)
    for each in found.unreadable:
        raise CheckpointError(each.message, "")
    return {DIGESTS[found.checkpoint]}


def verified(stage: Stage) -> Facts:
    sv.verify(stage.path)
    return set()


def compared(stage: Stage, a: str, b: str) -> Facts:
    """Show the neighbour's value if the sides are said to be equal."""
    report = sv.diff(a, b)
    return {NEIGHBOUR} if report.equal else set()


def changed(stage: Stage, a: str, b: str) -> Facts:
    """Show the values of the side at the path."""
    report = sv.delta(a, b, f"{stage.home}/out/d")
    return {DIGESTS[report.base if a == stage.path else report.result]}


def measured(stage: Stage) -> Facts:
    """Show the least and the largest value of each tensor."""
    with sv.open_checkpoint(stage.path) as reader:
        found = dict(measure(reader, ["a", "b"]))
    for each in found.values():
        if isinstance(each, ReadError):
            raise each
    return {bound for each in found.values() for bound in (each.minimum, each.maximum)}


def resharded(stage: Stage) -> Facts:
    target = f"{stage.home}/out/target"
    sv.reshard(stage.path, target, format="shardvar")
    return seen(sv.load(target))


def applied(stage: Stage) -> Facts:
    """Show the old value if its delta was applied."""
    target = f"{stage.home}/out/target"
    sv.apply(stage.path, f"{stage.home}/more/old-delta", target, format="shardvar")
    loaded = sv.load(target)
    assert seen({"a": loaded["a"], "b": loaded["a"]}) == {RESULT}
    return seen({"a": loaded["b"], "b": loaded["b"]})


def applied_to_a_neighbour(stage: Stage) -> Facts:
    target = f"{stage.home}/out/target"
    with suppress(ArgumentError):
        sv.apply(stage.path, f"{stage.home}/more/neighbour-delta", target, format="shardvar")
        return {NEIGHBOUR}
    return set()


def applied_in_place(stage: Stage) -> Facts:
    sv.apply(
        stage.path,
        f"{stage.home}/more/old-delta",
        target_of(stage),
        format=form_of(stage),
        force=True,
    )
    return {OLD}


def target_of(stage: Stage) -> str:
    _, name, _ = LAYOUTS[stage.layout]
    return f"{stage.path}/{name}" if stage.layout in FOLDERS and name else stage.path


def form_of(stage: Stage) -> str:
    return LAYOUTS[stage.layout][0]


def saved(stage: Stage) -> Facts:
    write(f"{stage.home}/run", stage.layout, "step-3", RESULT, force=True)
    return set()


def resharded_over(stage: Stage) -> Facts:
    sv.reshard(
        f"{stage.home}/more/old-changed", target_of(stage), format=form_of(stage), force=True
    )
    return set()


def removed(stage: Stage) -> Facts:
    sv.remove(stage.path)
    return set()


def newest(stage: Stage) -> Facts:
    path = sv.newest_checkpoint(stage.path)
    assert path.startswith(stage.path), path
    return set()


DIGESTS: dict[Any, float] = {}
"""The value by the digest of a checkpoint."""
READING: dict[str, Callable[[Stage], Facts]] = {
    "load": lambda stage: seen(sv.load(stage.path)),
    "mmap": lambda stage: seen(sv.load(stage.path, mmap=True)),
    "read_many": read_many,
    "digest": digested,
    "verify": verified,
    "diff a": lambda stage: compared(stage, stage.path, f"{stage.home}/more/neighbour"),
    "diff b": lambda stage: compared(stage, f"{stage.home}/more/neighbour", stage.path),
    "delta a": lambda stage: changed(stage, stage.path, f"{stage.home}/more/old-changed"),
    "delta b": lambda stage: changed(stage, f"{stage.home}/more/old-changed", stage.path),
    "stats": measured,
    "reshard": resharded,
    "apply": applied,
    "apply to a neighbour": applied_to_a_neighbour,
    "newest": newest,
}
WRITING: dict[str, Callable[[Stage], Facts]] = {
    "remove": removed,
    "save": saved,
    "reshard over": resharded_over,
    "apply in place": applied_in_place,
}
VERBS = READING | WRITING
LATER = {"diff b", "delta b", "apply", "apply to a neighbour", "apply in place"}
"""Verbs that look at another path first: what happens then is before they look at this one."""
EVENTS = ("remove", "empty", "replace", "rename")


@pytest.fixture(scope="module", autouse=True)
def digests(tmp_path_factory: pytest.TempPathFactory) -> None:
    for value in (OLD, NEW, NEIGHBOUR, RESULT):
        path = tmp_path_factory.mktemp("digests") / "ck"
        sv.save(path, arrays(value))
        DIGESTS[sv.digest(path).checkpoint] = value
        DIGESTS[f"sha256:{sv.digest(path).checkpoint}"] = value


def check_case(stage: Stage, verb: str, event: str, model: Model) -> None:
    """Run a verb in which the event happens, and fail unless the law holds."""
    stage.put(stage.begin)
    error = None
    facts: Facts = set()
    try:
        with stage.model(model):
            facts = VERBS[verb](stage)
    except ShardvarError as caught:
        error = caught
    allowed = {OLD, NEW} | ({NEIGHBOUR} if event == "rename" else set())
    assert facts <= allowed and len(facts) <= 1, facts
    if error is not None:
        kinds = (CheckpointError, StorageError, ArgumentError)
        # What had gone before the first look may have been misspelt: the remedy names what is near.
        is_unseen = verb in LATER or stage.layout in FILES or model.at == 0
        text = error.cause if is_unseen else str(error)
        assert isinstance(error, kinds) and "step-4" not in text, repr(error)
        assert type(error) is not sv.errors.AmbiguousPath, error
        is_unmapped = verb == "mmap" and isinstance(stage, Bucket)  # where nothing can be mapped
        if verb in READING and verb != "apply" and not is_unmapped:
            assert isinstance(error, CheckpointError), repr(error)
    # A writer looks there for what an earlier one has left of a folder.
    if stage.layout in FOLDERS and verb not in {*LATER, "save", "reshard over"}:
        check_listed(stage, model.listed)
    after = stage.files()
    own = ("run/step-3", "out/")
    if event == "rename" and model.calls > model.at:
        own = (*own, "run/step-4")
    for name, octets in stage.begin.items():
        assert name.startswith(own) or after.get(name) == octets, f"{name} was touched"
    strays = [n for n in after.keys() - stage.begin.keys() if not n.startswith(own)]
    assert not strays or verb in WRITING, strays


def check_listed(stage: Stage, listed: list[str]) -> None:
    """Fail if the folder above the path was listed; in a bucket only the first request may."""
    above = os.path.join(stage.home, "run").removeprefix("s3://bucket/")
    assert above not in listed[isinstance(stage, Bucket) :], listed


def check_law(stage: Stage, verb: str) -> None:
    """Exhaustive, or a sample: each event before each call."""
    for number, event in enumerate(EVENTS):
        for at in range(10_000):
            if not is_due(at + number + len(verb), 13):
                continue
            model = Model(getattr(stage, event), at)
            try:
                check_case(stage, verb, event, model)
            except AssertionError as failed:
                raise AssertionError(
                    f"{event} before call {at} of {model.calls}: {failed}"
                ) from failed
            if model.calls <= at:
                break


_begun: dict[tuple[type[Stage], str], dict[str, bytes]] = {}


@pytest.fixture(params=[Disk, Bucket])
def make_stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Stage]]:
    """Return a function that makes the stage of a layout."""
    bucket = Bucket("native", "s3://bucket")
    with in_bucket(bucket.bucket), in_this_thread():

        def make(layout: str) -> Stage:
            if request.param is Disk:
                return Disk(layout, str(tmp_path))
            stage = Bucket(layout, "s3://bucket")
            stage.bucket = bucket.bucket
            return stage

        yield make


@pytest.mark.sample(5)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_verb_means_the_checkpoint_at_its_path(
    layout: str, verb: str, make_stage: Callable[[str], Stage]
) -> None:
    """From the same files for all verbs, which are written once."""
    stage = make_stage(layout)
    place = type(stage), layout
    if place not in _begun:
        _begun[place] = stage.prepare()
    stage.begin = _begun[place]
    check_law(stage, verb)


STEPS = ("native", "torch", "zarr", "orbax")
"""Layouts of numbered steps: prefixes, and folders."""


def take_step(stage: Stage, step: str) -> None:
    stage.put({n: o for n, o in stage.files().items() if not stage.is_of(n, step)})


@pytest.mark.parametrize("layout", STEPS)
def test_steps_beside_a_program_that_removes_some(
    layout: str, make_stage: Callable[[str], Stage]
) -> None:
    """Before each call of a save, or of a restore, another program removes a step."""
    stage = make_stage(layout)
    run, form = f"{stage.home}/run", LAYOUTS[stage.layout][0]
    for number in (1, 2):
        sv.SavedSteps(run).save(number, arrays(number), format=form)
    begin = stage.files()
    for at in range(10_000):
        if not is_due(at, 11):
            continue
        calls = []
        for gone, is_save in (("step-1", True), ("step-2", False)):
            stage.put(begin)
            model = Model(partial(take_step, stage, gone), at)
            steps = sv.SavedSteps(run, keep_last=1)
            with stage.model(model):
                if is_save:
                    steps.save(3, arrays(3), format=form)
                else:
                    with suppress(CheckpointError):
                        found = steps.restore()
                        assert found is None or seen(found.loaded) == {float(found.number)}
            kept, value = ("step-3", 3.0) if is_save else ("step-1", 1.0)
            assert seen(sv.load(f"{run}/{kept}")) == {value}, f"{kept} is lost, before call {at}"
            calls.append(model.calls)
        if max(calls) <= at:
            break
