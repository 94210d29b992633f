"""Creator scopes: what a creator may do, in which order, in which thread, and what is left
behind."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

import shardvar as sv
from shardvar.errors import ArgumentError, ArgumentTypeError, ScopeError

Creator = Callable[..., Any]


def noting(called: list[str], name: str) -> Creator:
    def creator(next_creator: Creator, **kwargs: Any) -> Any:
        called.append(name)
        return next_creator(**kwargs)

    return creator


def test_a_creator_may_call_the_base_constructor() -> None:
    """R-CREATE-1 (RFC 003): "calling a base constructor to actually create a variable"."""
    seen: dict[str, Any] = {}

    def creator(next_creator: Creator, **kwargs: Any) -> Any:
        seen.update(kwargs)
        return next_creator(**kwargs)

    with sv.variable_creator_scope(creator):
        variable = sv.Variable([1.0, 2.0], False, name="w", dtype="float64")
    assert variable.numpy().tolist() == [1, 2] and not variable.trainable
    assert (
        seen["initial_value"] == [1.0, 2.0] and seen["name"] == "w" and seen["trainable"] is False
    )
    assert set(seen) == {
        "initial_value",
        "trainable",
        "name",
        "dtype",
        "shape",
        "constraint",
        "synchronization",
        "aggregation",
    }


def test_a_creator_may_return_a_variable_that_exists() -> None:
    """R-CREATE-1 (RFC 003): "returning preexisting variables": sharing is by passing the object."""
    shared = sv.Variable(1.0, name="shared")
    with sv.variable_creator_scope(lambda next_creator, **kwargs: shared):
        assert sv.Variable(2.0) is shared and sv.Variable(3.0) is shared
    assert sv.Variable(2.0) is not shared


def test_a_creator_may_call_the_base_constructor_several_times() -> None:
    """R-CREATE-1 (RFC 003): "and maybe calling it multiple times"."""

    def halves(next_creator: Creator, **kwargs: Any) -> Any:
        value = kwargs.pop("initial_value")
        middle = len(value) // 2
        parts = [
            next_creator(**kwargs | {"initial_value": part})
            for part in (value[:middle], value[middle:])
        ]
        return sv.ShardedVariable(parts)

    with sv.variable_creator_scope(halves):
        variable = sv.Variable([1.0, 2.0, 3.0])
    assert [shard.shape for shard in variable.variables] == [(1,), (2,)]


def test_further_arguments_reach_the_creators_and_then_mean_something_or_are_an_error() -> None:
    def named(next_creator: Creator, *, color: str, **kwargs: Any) -> Any:
        return next_creator(**kwargs | {"name": color})

    with sv.variable_creator_scope(named):
        assert sv.Variable(1.0, color="red").name == "red"
    with pytest.raises(TypeError, match="color"):
        sv.Variable(1.0, color="red")


def test_a_creator_that_returns_nothing_is_named() -> None:
    with (
        pytest.raises(ArgumentError, match="creator returned None"),
        sv.variable_creator_scope(lambda next_creator, **kwargs: None),
    ):
        sv.Variable(1.0)
    with pytest.raises(ArgumentTypeError, match="is not callable"):
        sv.variable_creator_scope(3)  # type: ignore[arg-type]


def test_subclasses_are_constructed_without_creators() -> None:
    """R-VAR-4 (RFC 003): "when asked to construct subclasses of tf.Variable will do nothing"."""
    from shardvar.reference.variables import ResourceVariable

    called: list[str] = []
    with sv.variable_creator_scope(noting(called, "a")):
        ResourceVariable(1.0)
    assert called == []


def test_a_scope_is_left_as_it_was_when_something_raises_in_it() -> None:
    called: list[str] = []
    with pytest.raises(KeyError, match="mine"), sv.variable_creator_scope(noting(called, "a")):
        raise KeyError("mine")

    def broken(next_creator: Creator, **kwargs: Any) -> Any:
        raise KeyError("creator's own")

    with sv.variable_creator_scope(noting(called, "outer")):
        with pytest.raises(KeyError, match="creator's own"), sv.variable_creator_scope(broken):
            sv.Variable(1.0)
        sv.Variable(1.0)
    assert called == ["outer"]


def test_a_scope_may_be_entered_again_also_inside_itself() -> None:
    called: list[str] = []
    scope = sv.variable_creator_scope(noting(called, "a"))
    with scope, scope:
        sv.Variable(1.0)
    with scope:
        sv.Variable(1.0)
    assert called == ["a"] * 3


def test_leaving_scopes_in_another_order_is_an_error_and_leaves_nothing_behind() -> None:
    called: list[str] = []
    outer, inner = (sv.variable_creator_scope(noting(called, name)) for name in ("outer", "inner"))
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(ScopeError, match="left before one that was entered in it"):
        outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    with pytest.raises(ScopeError):
        inner.__exit__(None, None, None)
    sv.Variable(1.0)
    assert called == []


def test_scopes_belong_to_the_thread_that_entered_them() -> None:
    called: list[str] = []
    other: list[str] = []

    def work() -> None:
        sv.Variable(1.0)
        with sv.variable_creator_scope(noting(other, "b")):
            sv.Variable(1.0)

    with sv.variable_creator_scope(noting(called, "a")):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert (called, other) == ([], ["b"])
