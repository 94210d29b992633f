"""Processes that save together in one bucket, and take their steps in any order.

Each process is a thread. It stops before every request and every pause, until it is its turn. So an
order of turns is an interleaving of the real code, and the same order gives the same one. A process
that is dead takes no more steps: whatever it tries raises ``Dead``.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any
from unittest import mock

import numpy as np

import shardvar as sv
from shardvar.errors import CheckpointNotFound, ShardvarError
from shardvar.storage.requests import FolderListing, Head
from shardvar.verbs.together import fence, run
from spec_tests.helpers.memory_bucket import Dead, MemoryBucket, in_bucket

URL = "s3://bucket/run/ck"
PATIENCE = 8
"""Pauses after which a process gives up."""


@dataclass(eq=False)
class Actor:
    save: Callable[[], Any]
    outcome: str = ""
    is_dead: bool = False
    is_waiting: bool = False
    pauses: int = 0
    thread: threading.Thread | None = None


@dataclass(eq=False)
class Stage:
    """Gives the turns: one process moves, and all others stand before their next step."""

    actors: list[Actor] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    chosen: Actor | None = None

    def here(self) -> Actor | None:
        me = threading.current_thread()
        return next((each for each in self.actors if each.thread is me), None)

    def step(self) -> None:
        """Wait for the turn; threads that help a process move with it."""
        actor = self.here()
        if actor is None:
            return
        with self.changed:
            actor.is_waiting = True
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.chosen is actor or actor.is_dead)
            self.chosen, actor.is_waiting = None, False
            if actor.is_dead:
                raise Dead

    def sleep(self, _seconds: float) -> None:
        actor = self.here()
        if actor is not None:
            actor.pauses += 1
        self.step()

    def monotonic(self) -> float:
        actor = self.here()
        return float(actor.pauses) if actor is not None else 0.0

    def play(
        self,
        saves: list[Callable[[], Any]],
        choose: Callable[[int], int],
        kill_at: int,
        death: tuple[int, int] | None = None,
    ) -> tuple[list[str], int]:
        """Let processes save; return the outcome of each and the number of steps.

        ``choose`` picks one of so many. At step ``kill_at`` all die; ``death`` is the step at which
        one process dies, and its number.
        """  # fmt: skip
        self.actors = [Actor(save) for save in saves]
        for actor in self.actors:
            actor.thread = threading.Thread(target=self._act, args=(actor,), daemon=True)
            actor.thread.start()
        number = 0
        while True:
            with self.changed:
                self.changed.wait_for(
                    lambda: (
                        self.chosen is None
                        and all(each.is_waiting or each.outcome for each in self.actors)
                    )
                )
                able = [each for each in self.actors if not each.outcome]
                if not able:
                    break
                if number >= kill_at:
                    for each in able:
                        each.is_dead = True
                elif death and number >= death[0] and not self.actors[death[1]].outcome:
                    self.actors[death[1]].is_dead = True
                else:
                    self.chosen = able[choose(len(able))]
                dead = [each for each in able if each.is_dead]
                self.changed.notify_all()
            for each in dead:
                assert each.thread is not None
                each.thread.join(60)
            number += 1
        return [each.outcome for each in self.actors], number

    def _act(self, actor: Actor) -> None:
        try:
            self.step()
            actor.save()
            outcome = "done"
        except Dead:
            outcome = "dead"
        except ShardvarError as error:
            outcome = f"{type(error).__name__}: {error}"
        except BaseException as error:  # noqa: BLE001 - shown by the test
            outcome = f"foreign {type(error).__name__}: {error}"
        with self.changed:
            actor.outcome = outcome
            actor.is_waiting = False
            if self.chosen is actor:
                self.chosen = None
            self.changed.notify_all()


@dataclass(eq=False)
class StagedBucket(MemoryBucket):
    """A bucket in which every request of a process is a step."""

    stage: Stage = field(default_factory=Stage)

    def head(self, key: str) -> Head:
        if not self.lock._is_owned():  # else it is a part of another request
            self.stage.step()
        return super().head(key)

    def listing(self, key: str) -> FolderListing:
        self.stage.step()
        return super().listing(key)

    def change(self, what: str, do: Callable[[], object]) -> None:
        self.stage.step()
        super().change(what, do)


@contextmanager
def on_stage(bucket: StagedBucket) -> Iterator[None]:
    """Every URL means this bucket, and pauses are steps."""
    with (
        in_bucket(bucket),
        mock.patch.object(fence, "time", bucket.stage),
        mock.patch.object(run, "time", bucket.stage),
    ):
        yield


def tensors_of(seed: int, process: int, count: int) -> dict[str, Any]:
    """What one process holds: rows of a table, and a replica; all values are the seed."""
    return {
        "w": sv.LocalShard(np.full((2, 3), seed), (2 * process, 0), (2 * count, 3)),
        "x": np.full(4, seed),
    }


def saves_of(
    seed: int, count: int, *, held: Mapping[int, Any] | None = None, **options: Any
) -> list[Callable[[], Any]]:
    """The saves of all processes of a job; some hold other tensors than those of the seed."""
    tensors = {process: tensors_of(seed, process, count) for process in range(count)}
    names = {"num_processes": count, "run": "r", "timeout": PATIENCE, **options}
    save = partial(sv.save_shards, URL, **names)
    return [
        partial(save, each, process=process)
        for process, each in (tensors | dict(held or {})).items()
    ]


def seed_of(bucket: MemoryBucket) -> int:
    """The seed of the checkpoint that a reader finds, 0 without one; a mixture is an error."""
    with in_bucket(MemoryBucket(dict(bucket.files))):
        try:
            found = sv.load(URL)
        except CheckpointNotFound:
            return 0
        assert sv.verify(URL).ok
    (seed,) = {int(value) for array in found.values() for value in array.ravel()}
    return seed


def violation(random: Random, count: int, *, same: bool, longest: int = 120) -> str:
    """Play a job that is killed at some step and the job that follows it; return what is wrong."""
    bucket = StagedBucket()
    with on_stage(bucket):
        seeds = (1, 1) if same else (1, 2)
        kill_at = random.randrange(longest)
        bucket.stage.play(saves_of(seeds[0], count), random.randrange, kill_at)
        before = seed_of(bucket)
        death = (
            (random.randrange(longest), random.randrange(count))
            if random.randrange(3) == 0
            else None
        )
        outcomes, _ = bucket.stage.play(saves_of(seeds[1], count), random.randrange, 10_000, death)
    alive = {each if each == "done" else "error" for each in outcomes if each != "dead"}
    try:
        after = seed_of(bucket)
    except (AssertionError, ValueError, ShardvarError) as error:
        return f"not a whole checkpoint ({error}): {outcomes}"
    if any(each.startswith("foreign") for each in outcomes):
        return f"a foreign error: {outcomes}"
    if len(alive) > 1:
        return f"some return and some do not: {outcomes}"
    if "done" in alive and after != seeds[1]:
        return f"all return, and the checkpoint is {after}: {outcomes}"
    if alive == {"error"} and after not in (before, seeds[1] if death else before):
        return f"all have an error, and the checkpoint is {after}: {outcomes}"
    return ""
