"""A state machine of saves, damage, crashes and restarts in one directory of steps, held against a
plain policy over a dictionary."""

import math
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import shardvar as sv
from shardvar.errors import ArgumentError, CorruptCheckpoint, LockHeld
from shardvar.verbs.training.step_records import StepRules, best_steps, plan_removal
from spec_tests.helpers.damage import flip

VALUES = st.none() | st.sampled_from(
    [0.0, -0.0, 1.0, np.float64(2.0), 0.1 + 0.2, 1e-300, math.inf, math.nan]
)
STRAYS = ["step-7.txt", "step-007.svindex", "step-8-notes", "notes", "step-9x", "xstep-3.svindex"]


@dataclass
class Step:
    """A step of the model."""

    seed: int
    value: float | None
    noted: frozenset[int]
    state: str = "whole"


def stays(number: int, steps: dict[int, Step], rules: dict[str, Any]) -> bool:
    """Return True if a rule keeps a step, by the definition."""
    later = sum(other > number for other in steps)
    if rules["keep_last"] is None or later < rules["keep_last"]:
        return True
    if rules["keep_every"] is not None and number % rules["keep_every"] == 0:
        return True
    sign = {"min": 1.0, "max": -1.0}[rules["mode"]]
    ranks = {
        other: (sign * step.value, other)
        for other, step in steps.items()
        if step.value is not None and step.value == step.value
    }
    return number in ranks and sum(r < ranks[number] for r in ranks.values()) < rules["keep_best"]


ONLY_BEST = {"keep_last": 0, "keep_every": None, "keep_best": 1}
RULES = st.fixed_dictionaries(
    {
        "keep_last": st.none() | st.integers(1, 4),
        "keep_every": st.none() | st.integers(1, 5),
        "keep_best": st.integers(0, 3),
        "mode": st.sampled_from(["min", "max"]),
    }
)


@given(st.dictionaries(st.integers(0, 30), st.none() | st.floats(), max_size=12), RULES)
def test_a_step_is_removed_if_no_rule_keeps_it_and_only_then(
    values: dict[int, float | None], rules: dict[str, Any]
) -> None:
    steps = {number: Step(0, value, frozenset()) for number, value in values.items()}
    planned = StepRules(**{name.removeprefix("keep_"): rule for name, rule in rules.items()})
    gone = plan_removal(values, planned)
    assert gone == [number for number in sorted(values) if not stays(number, steps, rules)]
    assert not values or max(values) not in gone, "a job resumes from the newest"
    rules |= ONLY_BEST
    assert best_steps(values, planned, 1) == [each for each in values if stays(each, steps, rules)]


class Steps(RuleBasedStateMachine):
    """The directory holds what the policy keeps, and nothing that it does not know is touched."""

    @initialize(rules=RULES)
    def begin(self, rules: dict[str, Any]) -> None:
        self.folder = TemporaryDirectory()
        self.place = Path(self.folder.name)
        self.steps: dict[int, Step] = {}
        self.strays: dict[str, bytes] = {}
        self.seed = 0
        self._start(rules)

    def _start(self, rules: dict[str, Any]) -> None:
        self.rules = rules
        self.manager = sv.SavedSteps(self.place, **rules)
        self.known: set[int] = set()
        self.last: int | None = None
        # A new manager learns of damage from the newest step that has all of its files.
        whole = [n for n, step in self.steps.items() if step.state in ("whole", "flipped")]
        if whole:
            self.known = {*self.steps[max(whole)].noted}

    def _whole(self) -> dict[int, Step]:
        return {
            number: step
            for number, step in sorted(self.steps.items())
            if step.state in ("whole", "flipped") and number not in self.known
        }

    def _newest(self) -> int:
        return max(self._whole(), default=0)

    def _tensors(self) -> dict[str, Any]:
        self.seed += 1
        return {"w": np.full(40, self.seed), "b": np.array(self.seed)}

    def _save(self, number: int, value: float | None) -> None:
        newest = self._newest()
        if self.last is not None and newest > self.last:
            words = f"step-{newest} was saved by another job since .* step {self.last}"
            with pytest.raises(LockHeld, match=words):
                self.manager.save(number, self._tensors(), value)
            return
        tensors = self._tensors()
        self.manager.save(number, tensors, value)
        self.known.discard(number)
        self.last = number
        self.steps[number] = Step(self.seed, value, frozenset(self.known))
        whole = self._whole()
        for other in whole:
            if not stays(other, whole, self.rules):
                del self.steps[other]

    @rule(gap=st.integers(1, 3), value=VALUES)
    def save(self, gap: int, value: float | None) -> None:
        self._save(self._newest() + gap, value)

    @precondition(lambda self: self.last is not None and self.last == self._newest())
    @rule(value=VALUES)
    def save_again(self, value: float | None) -> None:
        self._save(self._newest(), value)

    @precondition(lambda self: self._whole())
    @rule(back=st.integers(0, 3))
    def save_earlier(self, back: int) -> None:
        newest = self._newest()
        number = max(newest - back, 0)
        if newest > (self.last if self.last is not None else newest):
            expected: type[Exception] = LockHeld
        elif number == newest == self.last:
            return
        else:
            expected = ArgumentError
        with pytest.raises(expected):
            self.manager.save(number, self._tensors())

    @rule(gap=st.integers(1, 3))
    def crash(self, gap: int) -> None:
        """A job is killed after one of two processes has written its share."""
        number = self._newest() + gap
        if number not in self.steps:
            names = {"process": 0, "num_processes": 2, "run": f"step-{number}", "commit": False}
            sv.save_shards(self.place / f"step-{number}", self._tensors(), **names)
            self.steps[number] = Step(0, None, frozenset(), "unfinished")

    @precondition(lambda self: self._whole())
    @rule(data=st.data(), how=st.sampled_from(["lost", "cut", "index", "flipped"]))
    def damage(self, data: st.DataObject, how: str) -> None:
        number = data.draw(st.sampled_from([*self._whole()]))
        step = self.steps[number]
        if how == step.state == "flipped":
            return  # a second time would mend it
        # Files of a removed checkpoint of this number stay while another index cannot be read.
        files = self.place.glob(f"step-{number}.svdata-*")
        file = max(files, key=lambda each: each.stat().st_mtime_ns)
        index = self.place / f"step-{number}.svindex"
        if how == "lost":
            file.unlink()
        elif how == "cut":
            file.write_bytes(file.read_bytes()[:-1])
        else:
            path = index if how == "index" else file
            flip(path)
        step.state = "flipped" if how == "flipped" else "broken"

    @rule(name=st.sampled_from(STRAYS))
    def stray(self, name: str) -> None:
        """A file of the user's has a name like a step's."""
        self.strays[name] = b"not a checkpoint"
        (self.place / name).write_bytes(self.strays[name])

    @rule(rules=RULES)
    def restart(self, rules: dict[str, Any]) -> None:
        self._start(rules)

    @rule()
    def restore(self) -> None:
        expected = None
        for number, step in reversed(self._whole().items()):
            if step.state == "whole":
                expected = number
                break
            self.known.add(number)
        if expected is None and any(s.state != "unfinished" for s in self.steps.values()):
            with pytest.raises(CorruptCheckpoint, match=r"No step of .* can be restored\. step-"):
                self.manager.restore()
            return
        found = self.manager.restore()
        if expected is None:
            assert found is None
            return
        step = self.steps[expected]
        assert (found.number, found.path) == (expected, str(self.place / f"step-{expected}"))
        assert found.loaded["w"].tolist() == [step.seed] * 40
        self.known |= step.noted
        self.last = expected

    @rule(value=VALUES)
    def another_job_saves(self, value: float | None) -> None:
        other = sv.SavedSteps(self.place)
        here = {step.number for step in other.steps()}
        number = max(here | {self._newest()}) + 1
        whole = [n for n, step in self.steps.items() if step.state in ("whole", "flipped")]
        noted = self.steps[max(whole)].noted if whole else frozenset()
        other.save(number, self._tensors(), value)
        self.known.discard(number)
        self.steps[number] = Step(self.seed, value, noted - {number})

    @invariant()
    def the_directory_is_as_the_policy_says(self) -> None:
        if not hasattr(self, "place"):
            return
        if self.last is None:  # what a new manager learns of damage
            whole = [n for n, step in self.steps.items() if step.state in ("whole", "flipped")]
            self.known |= self.steps[max(whole)].noted if whole else frozenset()
        whole = self._whole()
        found = self.manager.steps()
        assert [each.number for each in found] == [*whole]
        assert [repr(each.value) for each in found] == [
            repr(None if step.value is None else float(step.value)) for step in whole.values()
        ]
        newest = self.manager.newest()
        assert (newest.number if newest else 0) == self._newest()
        best = self.rules | ONLY_BEST
        expected = [number for number in whole if stays(number, whole, best)]
        found_best = self.manager.best()
        assert ([found_best.number] if found_best else []) == expected

    @invariant()
    def nothing_else_is_removed(self) -> None:
        if not hasattr(self, "place"):
            return
        for name, content in self.strays.items():
            assert (self.place / name).read_bytes() == content
        for number, step in self.steps.items():
            # What a killed save has left goes with a later save.
            if step.state != "unfinished":
                assert [*self.place.glob(f"step-{number}.*")], (number, step)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestSteps = Steps.TestCase
TestSteps.settings = settings(stateful_step_count=25)
