"""Objects with named children: names, hooks, graphs with cycles."""

import pytest

from shardvar.errors import ArgumentTypeError
from shardvar.reference.tracking import ObjectGraph, Trackable


def test_only_a_trackable_is_tracked() -> None:
    with pytest.raises(ArgumentTypeError, match="'x' is 3"):
        Trackable().track("x", 3)  # type: ignore[type-var]


def test_the_graph_holds_each_object_once_whatever_leads_to_it() -> None:
    root, left, right, shared = (Trackable() for _ in range(4))
    root.track("left", left).track("shared", shared)
    root.track("right", right).track("shared", shared)
    shared.track("root", root)
    graph = ObjectGraph.of(root)
    assert graph.objects == (root, left, right, shared)
    assert graph.edges == (
        (("left", 1), ("right", 2)),
        (("shared", 3),),
        (("shared", 3),),
        (("root", 0),),
    )
    assert graph.paths() == ((), ("left",), ("right",), ("left", "shared"))


def test_a_long_chain_needs_no_recursion() -> None:
    root = end = Trackable()
    for _ in range(5000):
        end = end.track("next", Trackable())
    graph = ObjectGraph.of(root)
    assert len(graph.objects) == 5001 and len(graph.paths()[-1]) == 5000
