"""Objects with named children: names, hooks, graphs with cycles."""

import pytest

from shardvar.errors import ArgumentTypeError
from shardvar.reference.tracking import ObjectGraph, Trackable


def test_children_appear_in_order_and_the_view_cannot_be_written() -> None:
    root, first, second = Trackable(), Trackable(), Trackable()
    assert root.children == {}
    root.track("b", first)
    root.track("a", second)
    assert list(root.children) == ["b", "a"] and root.children["b"] is first
    with pytest.raises(TypeError):
        root.children["c"] = first  # type: ignore[index]
    root.untrack("b")
    root.untrack("nonesuch")
    assert list(root.children) == ["a"]


def test_only_a_trackable_is_tracked() -> None:
    with pytest.raises(ArgumentTypeError, match="'x' is 3"):
        Trackable().track("x", 3)  # type: ignore[type-var]


def test_a_hook_is_told_of_each_child_after_it_stands_in_the_table() -> None:
    root, early, late = Trackable(), Trackable(), Trackable()
    root.track("early", early)
    seen = []
    root.await_children(
        lambda parent, name, child: seen.append((parent.children[name] is child, name))
    )
    root.track("late", late)
    assert seen == [(True, "late")]
    root.await_children()
    root.track("unseen", Trackable())
    assert len(seen) == 1


def test_an_object_may_have_several_hooks_which_are_called_in_order() -> None:
    root, seen = Trackable(), []
    hooks = [lambda parent, name, child, number=number: seen.append(number) for number in range(3)]
    root.await_children(*hooks)
    assert root.child_hooks == tuple(hooks)
    root.track("child", Trackable())
    assert seen == [0, 1, 2]
    root.await_children(hooks[2])
    root.track("child", Trackable())
    assert seen == [0, 1, 2, 2]


def test_children_that_are_added_to_the_root_are_in_the_graph_alone() -> None:
    root, own, added = Trackable(), Trackable(), Trackable()
    root.track("own", own).track("up", root)
    graph = ObjectGraph.of(root, {"added": added, "same": own})
    assert graph.objects == (root, own, added)
    assert graph.edges == ((("own", 1), ("added", 2), ("same", 1)), (("up", 0),), ())
    assert list(root.children) == ["own"]


def test_a_hook_may_leave_itself_on_the_child_so_that_grandchildren_are_seen() -> None:
    seen = []

    def hook(parent: Trackable, name: str, child: Trackable) -> None:
        seen.append(name)
        child.await_children(hook)

    root = Trackable()
    root.await_children(hook)
    root.track("child", Trackable()).track("grandchild", Trackable())
    assert seen == ["child", "grandchild"]


def test_a_subclass_that_does_not_call_init_is_tracked_all_the_same() -> None:
    class Plain(Trackable):
        def __init__(self) -> None:
            self.own = 1

    plain = Plain()
    plain.track("x", Trackable())
    assert list(plain.children) == ["x"] and Plain().children == {}


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


def test_the_graph_is_frozen_while_the_objects_go_on() -> None:
    root = Trackable()
    graph = ObjectGraph.of(root)
    root.track("later", Trackable())
    assert graph.edges == ((),)


def test_a_long_chain_needs_no_recursion() -> None:
    root = end = Trackable()
    for _ in range(5000):
        end = end.track("next", Trackable())
    graph = ObjectGraph.of(root)
    assert len(graph.objects) == 5001 and len(graph.paths()[-1]) == 5000
