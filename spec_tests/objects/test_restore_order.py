"""Several restores of one object, and several stored objects in one: they end as in TensorFlow."""

import os
import tempfile
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import UnmatchedObjects
from shardvar.reference.tracking import ObjectGraph, Trackable
from spec_tests.helpers.thoroughness import stride


def saved(path: Path, **values: Any) -> Path:
    """Write variables ``dep/NAME`` of these values."""
    sv.Checkpoint(dep={name: sv.Variable(value) for name, value in values.items()}).write(path)
    return path


def module(**variables: Any) -> Any:
    made = sv.Module()
    for name, variable in variables.items():
        setattr(made, name, variable)
    return made


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted on Linux")
def test_restores_that_have_no_more_to_give_keep_no_checkpoint_open(tmp_path: Path) -> None:
    """A program that evaluates one checkpoint after the other restores a part of each."""
    root, path = module(dep=module(a=sv.Variable(0.0))), saved(tmp_path / "1", a=1.0, b=2.0)
    checkpoint = sv.Checkpoint(root)
    checkpoint.read(path).expect_partial()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        saved(path, a=float(number), b=2.0)
        sv.Checkpoint(root).read(path).expect_partial()
        checkpoint.read(path).expect_partial()
        assert float(root.dep.a) == number
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    root.dep.b = sv.Variable(0.0)
    assert float(root.dep.b) == 2.0


def test_a_variable_that_was_saved_as_two_takes_the_first_and_the_other_is_named(
    tmp_path: Path,
) -> None:
    """The first in the checkpoint's order, whatever the program's is."""
    sv.Checkpoint(module(a=sv.Variable(1.0), b=sv.Variable(2.0))).write(tmp_path / "model")
    root, shared = Trackable(), sv.Variable(0.0)
    root.track("b", shared)
    root.track("a", shared)
    status = sv.Checkpoint(root).read(tmp_path / "model").assert_existing_objects_matched()
    assert float(shared) == 1.0
    assert status.unmatched_keys == ["b/.ATTRIBUTES/VARIABLE_VALUE"]
    with pytest.raises(UnmatchedObjects, match="values without an object: b/"):
        status.assert_consumed()


def test_a_stored_object_goes_to_the_first_that_appears_under_any_of_its_names(
    tmp_path: Path,
) -> None:
    shared = sv.Variable(1.0)
    sv.Checkpoint(module(a=shared, b=shared)).write(tmp_path / "model")
    for first, second in ("ab", "ba"):
        root = sv.Module()
        sv.Checkpoint(root).read(tmp_path / "model").expect_partial()
        setattr(root, first, sv.Variable(0.0))
        setattr(root, second, sv.Variable(0.0))
        assert (float(getattr(root, first)), float(getattr(root, second))) == (1.0, 0.0)


# TensorFlow's rule, as a twin of a few lines


@dataclass
class Twin:
    """What TensorFlow does with graphs of objects: each object is a number, and restores have a
    value of one."""

    children: dict[int, dict[str, int]] = field(default_factory=dict)
    values: dict[int, float] = field(default_factory=dict)
    uids: dict[int, int] = field(default_factory=dict)
    deferred: dict[int, dict[str, list[Any]]] = field(default_factory=dict)
    uid: Any = field(default_factory=lambda: count(1))

    def restore(self, root: int, edges: Any, stored: dict[int, float]) -> None:
        self._restore((next(self.uid), edges, stored, {}), 0, root)

    def attach(self, parent: int, name: str, child: int) -> None:
        self.children.setdefault(parent, {})[name] = child
        waiting = self.deferred.get(parent, {}).pop(name, [])
        for restore, node in sorted(waiting, key=lambda each: each[0][0], reverse=True):
            self._restore(restore, node, child)

    def _restore(self, restore: Any, node: int, each: int) -> None:
        uid, edges, stored, bound = restore
        if node in bound:
            return
        bound[node] = each
        queue = [(node, each)]
        for node, each in queue:
            if uid > self.uids.get(each, 0):
                self.uids[each] = uid
                if node in stored:
                    self.values[each] = stored[node]
            for name, child in edges[node]:
                if child in bound:
                    continue
                local = self.children.get(each, {}).get(name)
                if local is None:
                    self.deferred.setdefault(each, {}).setdefault(name, []).append((restore, child))
                else:
                    bound[child] = local
                    queue.append((child, local))


LEAVES, INNER = ["v", "w"], ["m", "n"]
"""The names of variables, and those of objects with children."""


def grown(draw: st.DrawFn, value: float) -> list[Trackable]:
    """Draw a graph with shared objects and cycles, and return its objects, the root first."""
    inner = [Trackable() for _ in range(draw(st.integers(1, 3)))]
    leaves: list[Any] = [sv.Variable(value + number) for number in range(draw(st.integers(1, 3)))]
    for parent in inner:
        for names, kind in ((LEAVES, leaves), (INNER, inner)):
            for name in draw(st.lists(st.sampled_from(names), unique=True)):
                parent.track(name, draw(st.sampled_from(kind)))
    return [*inner, *leaves]


@settings(max_examples=80 // stride(2))
@given(st.data())
def test_any_order_of_restores_and_attachments_ends_as_in_tensorflow(data: Any) -> None:
    """Checkpoints of drawn graphs are restored into drawn objects, which are attached to each other
    in between."""
    draw = data.draw
    with tempfile.TemporaryDirectory() as directory:
        stored = []
        for number in range(draw(st.integers(1, 3))):
            objects = grown(draw, 100.0 * (number + 1))
            path = f"{directory}/{number}"
            graph = ObjectGraph.of(objects[0])
            sv.Checkpoint(objects[0]).write(
                path, format=draw(st.sampled_from(["shardvar", "tensorflow"]))
            )
            values = {
                n: float(each)
                for n, each in enumerate(graph.objects)
                if isinstance(each, sv.Variable)
            }
            stored.append((path, graph.edges, values))
        objects = [*(Trackable() for _ in range(3)), *(sv.Variable(0.0) for _ in range(3))]
        twin, statuses = Twin(), []
        for _ in range(draw(st.integers(1, 10))):
            if draw(st.booleans()):
                root, (path, edges, values) = draw(st.integers(0, 2)), draw(st.sampled_from(stored))
                twin.restore(root, edges, values)
                statuses.append(sv.Checkpoint(objects[root]).read(path).expect_partial())
            else:
                name = draw(st.sampled_from(LEAVES + INNER))
                parent = draw(st.integers(0, 2))
                child = draw(st.integers(0, 2) if name in INNER else st.integers(3, 5))
                twin.attach(parent, name, child)
                objects[parent].track(name, objects[child])
            got = {
                number: float(each)
                for number, each in enumerate(objects)
                if isinstance(each, sv.Variable)
            }
            assert got == {number: twin.values.get(number, 0.0) for number in got}
