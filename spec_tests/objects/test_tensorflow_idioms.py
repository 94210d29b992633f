"""Idioms of programs for tf.train.Checkpoint: the first run, weak roots, copies, roots with a state
of their own."""

import copy
import logging
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import ArgumentError, ArgumentTypeError, UnmatchedObjects, UnsupportedError
from spec_tests.helpers.managed_checkpoints import Clock, build


class Counted(sv.Stateful):
    """An object with a state and a child."""

    def __init__(self, number: int = 0, value: float = 0.0) -> None:
        self.number = number
        self.w = self.track("w", sv.Variable(value))

    def state(self) -> Mapping[str, Any]:
        return {"number": np.int64(self.number)}

    def restore_state(self, values: Mapping[str, Any]) -> None:
        self.number = int(values["number"])


# The first run


@pytest.mark.parametrize("verb", ["read", "restore"])
def test_restoring_no_checkpoint_is_the_first_run(tmp_path: Path, verb: str) -> None:
    w = sv.Variable(3.0)
    checkpoint = sv.Checkpoint(w=w)
    status = getattr(checkpoint, verb)(sv.latest_checkpoint(tmp_path))
    assert float(w) == 3.0
    assert (status.unmatched_keys, status.unmatched_objects) == ([], ["w"])
    assert status.expect_partial() is status
    status.initialize_or_restore()
    for verdict in (
        status.assert_consumed,
        status.assert_existing_objects_matched,
        status.assert_nontrivial_match,
        status.run_restore_ops,
    ):
        with pytest.raises(UnmatchedObjects, match="No checkpoint was given"):
            verdict()
    assert checkpoint.save(tmp_path / "ckpt").path == str(tmp_path / "ckpt-1")


# Weak roots


def test_a_root_that_is_given_weakly_is_saved_restored_and_not_kept(tmp_path: Path) -> None:
    root = sv.Module()
    root.v = sv.Variable(1.0)
    checkpoint = sv.Checkpoint(root=weakref.ref(root), step=sv.Variable(5))
    report = checkpoint.save(tmp_path / "ckpt")
    root.v.assign(2.0)
    checkpoint.restore(report).assert_consumed()
    assert float(root.v) == 1.0
    gone = weakref.ref(root)
    del root
    assert gone() is None
    for verb in (lambda: checkpoint.save(tmp_path / "ckpt"), lambda: checkpoint.restore(report)):
        with pytest.raises(ArgumentError, match="a weak reference, is gone"):
            verb()


def test_a_weak_root_is_an_object_that_is_there() -> None:
    root = sv.Module()
    reference = weakref.ref(root)
    del root
    with pytest.raises(ArgumentError, match="is gone"):
        sv.Checkpoint(reference)

    class Other:
        pass

    other = Other()
    with pytest.raises(ArgumentTypeError, match="has no variables"):
        sv.Checkpoint(weakref.ref(other))


# Roots with a value or a state of their own


def test_an_archive_cannot_hold_the_key_of_a_root_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="would be unpacked from a zip archive"):
        sv.Checkpoint(Counted(3)).write(tmp_path / "model", format="npz")


# Copies


def module_of(items: Mapping[str, sv.Variable]) -> sv.Module:
    module = sv.Module()
    for name, item in items.items():
        setattr(module, name, item)
    return module


@pytest.mark.parametrize("root_of", [module_of, dict])
def test_a_copy_of_a_checkpoint_has_its_own_objects(tmp_path: Path, root_of: Any) -> None:
    v, loop = sv.Variable(1.0), [sv.Variable(2.0)]
    loop.append(loop)  # type: ignore[arg-type]
    root = root_of({"v": v, "w": sv.Variable(3.0)})
    original = sv.Checkpoint(root, loop=loop, again=v)
    original.save(tmp_path / "ckpt")
    twin = copy.deepcopy(original)
    assert int(twin.save_counter) == 1 and twin.save_counter is not original.save_counter
    assert list(twin.children) == list(original.children)
    v.assign(5.0)
    assert float(twin.again) == 1.0
    report: Any = twin.save(tmp_path / "ckpt")
    assert report.path == str(tmp_path / "ckpt-2")
    assert int(original.save_counter) == 1
    original.restore(report).assert_consumed()
    assert float(v) == 1.0
    assert original.save(tmp_path / "ckpt").num_tensors == report.num_tensors


# Policies


def test_a_copy_of_a_manager_saves_its_own_checkpoint(tmp_path: Path) -> None:
    manager = build(tmp_path)
    manager.save()
    twin = copy.deepcopy(manager)
    report: Any = twin.save()
    assert report.path == str(tmp_path / "ckpt-2")
    assert int(manager.checkpoint.save_counter) == 1


def test_policies_of_equal_fields_are_equal_and_hash_alike() -> None:
    class Numbered(sv.ShardingCallback):
        description = "numbered"

        def __init__(self, number: Any) -> None:
            self.number = number

        def __call__(self, shardable_tensors: Any) -> Any:
            return []

    class Other(Numbered):
        pass

    class Slotted(Numbered):
        __slots__ = ("size",)

        def __init__(self, size: int) -> None:
            super().__init__(1)
            self.size = size

    kinds: list[Any] = [(Numbered, 1), (Numbered, 2), (Other, 1), (Slotted, 1), (Slotted, 2)]
    kinds += [(sv.MaxShardSizePolicy, 8), (sv.MaxShardSizePolicy, 9)]
    makers: list[Any] = [partial(kind, number) for kind, number in kinds]
    makers += [sv.ShardByTaskPolicy, sv.AllInOnePolicy]
    makers += [lambda n=n: sv.compose(Numbered(n), sv.MaxShardSizePolicy(8)) for n in (1, 2)]
    for i, first in enumerate(makers):
        assert hash(first()) == hash(first())
        for j, second in enumerate(makers):
            assert (first() == second()) is (i == j)
    assert len({make() for make in makers * 2}) == len(makers)
    assert Numbered(1) != 1
    assert hash(Numbered([1, 2])) == hash(Numbered([1, 2])), (
        "fields that cannot be hashed are allowed"
    )
    assert Numbered([1, 2]) != Numbered([1, 3])
    assert Numbered(np.zeros(2)) == Numbered(np.zeros(2)) != Numbered(np.ones(2))


# Clocks


def test_a_clock_behind_the_last_preserved_checkpoint_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(10_000.0)
    manager = build(tmp_path, 1, keep_checkpoint_every_n_hours=1, clock=clock)
    for _ in range(3):
        clock.now += 3600
        manager.save()
    assert caplog.text == ""
    clock.now = 5000.0
    with caplog.at_level(logging.WARNING, "shardvar.checkpoint"):
        build(tmp_path, 1, keep_checkpoint_every_n_hours=1, clock=clock)
    assert "seconds behind" in caplog.text and "12200" in caplog.text
