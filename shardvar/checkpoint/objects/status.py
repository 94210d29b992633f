"""What a restore found, and what it did not: asked by the user, since either may be meant."""

from collections.abc import Callable
from typing import Self

from shardvar.checkpoint.objects.restoration import Restoration
from shardvar.errors import UnmatchedObjects
from shardvar.tracking import ObjectGraph, Stateful, Trackable
from shardvar.variables import VariableInterface


def _has_values(node: Trackable) -> bool:
    return isinstance(node, VariableInterface) or (isinstance(node, Stateful) and bool(node.state()))


class RestoreStatus:
    """The state of one restore, as of when it is asked: what appears later is restored later."""

    def __init__(self, restoration: Restoration, graph: Callable[[], ObjectGraph]) -> None:
        self._restoration = restoration
        self._graph = graph

    @property
    def unmatched_keys(self) -> list[str]:
        """The keys of the checkpoint whose values no object took."""
        return sorted(self._restoration.unmatched.keys)

    @property
    def unmatched_objects(self) -> list[str]:
        """The variables and objects with a state of their own that took none, as the names that lead to them."""
        graph = self._graph()
        return [
            "/".join(path) or "the root"
            for node, path in zip(graph.objects, graph.paths(), strict=True)
            if not self._restoration.is_restored(node) and _has_values(node)
        ]

    def assert_consumed(self) -> Self:
        """Raise ``UnmatchedObjects``, naming all, unless every value found its variable and the other way round."""
        self._check(self.unmatched_objects, self.unmatched_keys)
        return self

    def assert_existing_objects_matched(self) -> Self:
        """Raise ``UnmatchedObjects``, naming all, unless every variable that there is took a value."""
        self._check(self.unmatched_objects, [])
        return self

    def assert_nontrivial_match(self) -> Self:
        """Raise ``UnmatchedObjects`` where nothing but the root met anything."""
        if self._restoration.num_met <= 1:
            self._check(self.unmatched_objects or ["all but the root"], self.unmatched_keys)
        return self

    def expect_partial(self) -> Self:
        """Say that what stays unmatched is meant, so that nothing is logged about it."""
        self._restoration.unmatched.is_expected = True
        return self

    def _check(self, objects: list[str], keys: list[str]) -> None:
        said = []
        if objects:
            said.append(f"objects without a value: {', '.join(objects)}")
        if keys:
            said.append(f"values without an object: {', '.join(keys)}")
        found = self._restoration
        if said:
            raise UnmatchedObjects(
                f"{found.path} and the objects do not match; {'; '.join(said)}.",
                "Name the objects as they were when it was written, or do not assert this. "
                f"{found.reader.policy_sentence}".rstrip(),
            )
