"""Objects with named children: names, hooks, graphs with cycles."""

import pytest

from shardvar.errors import ArgumentTypeError
from shardvar.reference.tracking import ObjectGraph, Trackable


def test_only_a_trackable_is_tracked() -> None:
    with pytest.raises(ArgumentTypeError, match="'x' is 3"):
        Trackable().track("x", 3)  # type: ignore[type-var]


def test_the_graph_holds_each_object_once_whatever_leads_to_it() -> None:
    """What is added is a child of the root alone."""
    root, left, right, shared, more = (Trackable() for _ in range(5))
    root.track("left", left).track("shared", shared)
    root.track("right", right).track("shared", shared)
    shared.track("root", root)
    graph = ObjectGraph.of(root, {"more": more})
    assert graph.objects == (root, left, right, more, shared)
    assert graph.edges == (
        (("left", 1), ("right", 2), ("more", 3)),
        (("shared", 4),),
        (("shared", 4),),
        (),
        (("root", 0),),
    )
    assert graph.paths() == ((), ("left",), ("right",), ("more",), ("left", "shared"))


@pytest.mark.parametrize("is_untracked", [False, True])
def test_a_child_in_the_place_of_a_slot_is_a_child_like_any_other(is_untracked: bool) -> None:
    owner, variable, child = (Trackable() for _ in range(3))
    owner.track("variable", variable)
    owner.track_slot("m", Trackable(), variable, "m")
    if is_untracked:
        owner.untrack("m")
        assert not owner.child_slots
    owner.track("m", child)
    graph = ObjectGraph.of(owner)
    assert graph.objects == (owner, variable, child) and not graph.slots


def test_a_long_chain_needs_no_recursion() -> None:
    root = end = Trackable()
    for _ in range(5000):
        end = end.track("next", Trackable())
    graph = ObjectGraph.of(root)
    assert len(graph.objects) == 5001 and len(graph.paths()[-1]) == 5000
