"""The result of a restore: what matched, and what did not.

A program asserts by it what it expects. ``restore(None)``, the first run of a program that restores
its latest checkpoint, also has a status.
"""

from collections.abc import Callable
from typing import Self

from shardvar.errors import UnmatchedObjects
from shardvar.reference.objects.restoration import Restoration
from shardvar.reference.tracking import ObjectGraph, Stateful, Trackable
from shardvar.reference.variables import VariableInterface


class RestoreStatus:
    """The result of one restore, as of when it is asked: what appears later is restored later.

    Without a ``restoration`` it is the result of ``restore(None)``: objects keep their initial
    values, and, as in TensorFlow, each assertion fails.
    """

    def __init__(self, restoration: Restoration | None, graph: Callable[[], ObjectGraph]) -> None:
        self._restoration = restoration
        self._graph = graph

    @property
    def unmatched_keys(self) -> list[str]:
        """The keys of the checkpoint whose values no object took."""
        return sorted(self._restoration.unmatched.keys) if self._restoration else []

    @property
    def unmatched_objects(self) -> list[str]:
        """The paths of variables and objects with state of their own that took no value."""
        # Of now: objects may have appeared, and taken their values, since the restore.
        graph = self._graph()
        return [
            "/".join(path) or "the root"
            for node, path in zip(graph.objects, graph.paths(), strict=True)
            if not self._is_restored(node) and _has_values(node)
        ]

    def assert_consumed(self) -> Self:
        """Raise ``UnmatchedObjects``, naming all, unless every value found its variable and the
        other way round."""
        self._check(self.unmatched_objects, self.unmatched_keys)
        return self

    def assert_existing_objects_matched(self) -> Self:
        """Raise ``UnmatchedObjects``, naming all, unless every existing variable took a value."""
        self._check(self.unmatched_objects, [])
        return self

    def assert_nontrivial_match(self) -> Self:
        """Raise ``UnmatchedObjects`` where no object but the root met a stored one."""
        if self._restoration is None or self._restoration.num_met <= 1:
            self._check(self.unmatched_objects or ["all but the root"], self.unmatched_keys)
        return self

    def expect_partial(self) -> Self:
        """Declare that unmatched values are intended, so that they are not logged."""
        if self._restoration is not None:
            self._restoration.unmatched.is_expected = True
        return self

    def run_restore_ops(self) -> None:
        """Do nothing, since values are restored already; for programs written for TensorFlow. Fails
        without a path."""
        self._check([], [])

    def initialize_or_restore(self) -> None:
        """Do nothing, for TensorFlow's programs: variables are restored already."""

    def _is_restored(self, node: Trackable) -> bool:
        return self._restoration is not None and self._restoration.is_restored(node)

    def _check(self, objects: list[str], keys: list[str]) -> None:
        restoration = self._restoration
        if restoration is None:
            raise UnmatchedObjects(
                "No checkpoint was given (the path is None), and nothing was restored.",
                "Assert this only after a checkpoint was restored.",
            )
        unmatched = []
        if objects:
            unmatched.append(f"objects without a value: {', '.join(objects)}")
        if keys:
            unmatched.append(f"values without an object: {', '.join(keys)}")
        if unmatched:
            raise UnmatchedObjects(
                f"{restoration.path} and the objects do not match; {'; '.join(unmatched)}.",
                "Name the objects as they were when it was written, or do not assert this. "
                f"{restoration.reader.policy_sentence}".rstrip(),
            )


def _has_values(node: Trackable) -> bool:
    return isinstance(node, VariableInterface) or (
        isinstance(node, Stateful) and bool(node.state())
    )
