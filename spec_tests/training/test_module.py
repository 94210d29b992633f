"""Modules: attributes are children in folded form, variables are given in expanded form, in one
order."""

from collections import OrderedDict
from copy import copy, deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.reference.tracking import ObjectGraph, Trackable
from shardvar.reference.training.module import Module
from shardvar.reference.variables import ShardedVariable, Variable


def sharded(rows: int = 4, name: str = "w", trainable: bool = True) -> ShardedVariable:
    shards = [
        Variable(np.zeros((1, 2), np.float32), name=f"{name}/part_{i}", trainable=trainable)
        for i in range(rows)
    ]
    return ShardedVariable(shards, name=name)


def names(variables: Any) -> list[str]:
    return [variable.name for variable in variables]


class Leaf(Module):
    def __init__(self, tag: str) -> None:
        super().__init__()
        self.z, self.a = Variable(1.0, name=f"{tag}.z"), Variable(1.0, name=f"{tag}.a")


def test_the_order_is_alphabetical_own_attributes_before_those_of_submodules() -> None:
    module = Module()
    module.b = Leaf("b")
    module.c = Variable(0.0, name="c")
    module.B = Variable(0.0, name="B")
    module._p = Variable(0.0, name="_p")
    module.a = [Leaf("a0"), {"y": Variable(0.0, name="y"), "x": (Variable(0.0, name="x"),)}]
    assert names(module.variables) == ["B", "_p", "x", "y", "c", "a0.a", "a0.z", "b.a", "b.z"]
    assert [type(leaf) for leaf in module.submodules] == [Leaf, Leaf]


def test_what_is_met_twice_is_given_once() -> None:
    module = Module()
    module.a = module.b = Variable(0.0, name="v")
    module.again = [module.a, module]
    module.table = module.same_table = sharded(2)
    assert names(module.variables) == ["v", "w/part_0", "w/part_1"]


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=8))
def test_variables_are_the_trainable_and_the_others_in_the_order_of_names(
    rows: list[tuple[str, bool]],
) -> None:
    """Whatever the order in which attributes were assigned: the last of each name, sorted."""
    module = Module()
    for name, trainable in rows:
        setattr(module, name, Variable(0.0, name=name, trainable=trainable))
    last = dict(rows)
    assert names(module.variables) == sorted(last)
    assert names(module.trainable_variables) == sorted(name for name in last if last[name])
    assert names(module.non_trainable_variables) == sorted(name for name in last if not last[name])


def test_what_becomes_a_shard_after_it_became_an_attribute_is_refused_where_variables_are_collected() -> (
    None
):
    """R-MODULE-1: nobody can know it earlier, and later it would be trained and saved twice."""
    for nested in (False, True):
        module, variable = Module(), Variable([1.0], name="w")
        module.first = [variable] if nested else variable
        assert module.variables == (variable,)
        module.table = ShardedVariable([variable, Variable([2.0])], name="table")
        for collect in (lambda m: m.variables, lambda m: m.trainable_variables):
            with pytest.raises(ArgumentError, match="w is a shard of table"):
                collect(module)


@pytest.mark.parametrize(
    "act",
    [
        lambda d: d.update({"1": Module()}),
        lambda d: d.__setitem__("1", Module()),
        lambda d: d.setdefault("1", Module()),
        lambda d: d.__ior__({"2": 3, "1": Module()}),
    ],
)
def test_two_entries_of_a_dictionary_that_claim_one_name_are_refused_and_nothing_changes(
    act: Any,
) -> None:
    """R-MODULE-3."""
    module, child = Module(), Module()
    module.blocks = {1: child}
    with pytest.raises(ArgumentError, match="The keys 1 and '1' are both children named '1'"):
        act(module.blocks)
    assert module.blocks == {1: child} and dict(module.blocks.children) == {"1": child}
    with pytest.raises(ArgumentError, match="both children named '1'"):
        module.blocks = {1: Module(), "1": Module()}
    assert module.blocks[1] is child
    module.blocks["1"] = "an entry without state claims no name"
    assert dict(module.blocks.children) == {"1": child}


def test_a_shard_is_refused_as_an_attribute_in_any_container() -> None:
    """R-MODULE-1: "We should disallow assigning component variables of a sharded variable to object
    attributes." """
    table = sharded(2)
    shard = table.variables[0]
    module = Module()
    module.shards = []
    module.by_name = {}
    attempts = [
        lambda: setattr(module, "v", shard),
        lambda: setattr(module, "v", table.variables),
        lambda: setattr(module, "v", (1, (shard,))),
        lambda: setattr(module, "v", {"x": [shard]}),
        lambda: module.shards.append(shard),
        lambda: module.shards.extend([shard]),
        lambda: module.shards.insert(0, shard),
        lambda: module.shards.__setitem__(slice(0, 0), [shard]),
        lambda: module.by_name.__setitem__("v", shard),
        lambda: module.by_name.update(v=shard),
        lambda: module.by_name.setdefault("v", shard),
    ]
    for attempt in attempts:
        with pytest.raises(
            ArgumentError, match=r"w/part_0 is a shard of w.*Assign the sharded variable itself"
        ):
            attempt()
    assert not hasattr(module, "v")
    assert module.shards == [] and module.by_name == {}
    module.table = table
    assert module.table is table


def test_attributes_become_children_and_cease_to_be() -> None:
    module = Module()
    module.v, module.n = Variable(0.0), 3
    assert list(module.children) == ["v"]
    module.v = 4
    assert list(module.children) == []
    module.v = Variable(1.0)
    del module.v
    assert list(module.children) == [] and not hasattr(module, "v")


def test_lists_and_dictionaries_grow_and_tell_who_waits() -> None:
    """A restore that came first reaches what is appended later."""
    module = Module()
    module.blocks, module.heads = [], {}
    told: list[tuple[str, Trackable]] = []
    module.blocks.await_children(lambda parent, name, child: told.append((name, child)))
    module.heads.await_children(lambda parent, name, child: told.append((name, child)))
    first, second, third = Leaf("1"), Leaf("2"), Leaf("3")
    module.blocks.append(first)
    module.blocks += [second]
    module.heads["x"] = third
    assert told == [("0", first), ("1", second), ("x", third)]
    assert isinstance(module.blocks, list) and isinstance(module.heads, dict)
    assert module.blocks == [first, second]
    module.blocks.pop(0)
    assert dict(module.blocks.children) == {"0": second}


def test_the_graph_of_objects_has_the_paths_that_a_reader_expects() -> None:
    module = Module()
    module.blocks = [Leaf("b"), 7, {"t": sharded(2)}]
    module.pair = (Variable(0.0), sharded(2))
    paths = {"/".join(path) for path in ObjectGraph.of(module).paths()}
    expected = (
        "blocks blocks/0 blocks/0/z blocks/0/a blocks/2 blocks/2/t pair pair/0 pair/1".split()
    )
    assert paths == {"", *expected}


def test_a_copy_has_containers_of_its_own() -> None:
    module = Module()
    module.blocks, module.by_name = [Leaf("b")], {"t": sharded(2)}
    twin = deepcopy(module)
    twin.blocks.append(Leaf("c"))
    twin.by_name["u"] = 1
    assert len(module.blocks) == 1 and list(module.by_name) == ["t"]
    assert twin.blocks[0] is not module.blocks[0]
    assert twin.children["blocks"] is twin.blocks
    assert len(copy(module.blocks)) == 1 and list(copy(module.by_name)) == ["t"]
    assert names(twin.variables) == ["w/part_0", "w/part_1", "b.a", "b.z", "c.a", "c.z"]


def test_mappings_of_any_keys_and_lists_that_contain_themselves_are_walked() -> None:
    module = Module()
    module.odd = OrderedDict([(2, Variable(0.0, name="two")), ("1", Variable(0.0, name="one"))])
    module.loop = [Variable(0.0, name="v")]
    module.loop.append(module.loop)
    assert names(module.variables) == ["v", "two", "one"]


def test_a_chain_of_modules_deeper_than_pythons_stack_is_walked() -> None:
    root = module = Module()
    for _ in range(3000):
        module.inner = Module()
        module = module.inner
    module.v = Variable(0.0, name="deep")
    assert names(root.variables) == ["deep"] and len(root.submodules) == 3000


def test_a_module_has_the_name_that_it_was_given_or_its_classes() -> None:
    class Dense(Module):
        pass

    class RNNCellStack(Module):
        pass

    assert (
        Module("x").name == "x"
        and Dense().name == "dense"
        and RNNCellStack().name == "rnn_cell_stack"
    )
    with pytest.raises(ArgumentTypeError, match="Invalid name"):
        Module(3)  # type: ignore[arg-type]


def test_a_propertys_setter_keeps_the_value_under_its_own_name() -> None:
    class Wrapper(Module):
        @property
        def weight(self) -> Any:
            return self._weight

        @weight.setter
        def weight(self, value: Any) -> None:
            self._weight = value

    module = Wrapper()
    module.weight = Variable(0.0, name="w")
    assert list(module.children) == ["_weight"] and names(module.variables) == ["w"]


def test_setdefault_of_a_tracked_dictionary_returns_what_it_holds() -> None:
    """As a plain one does: what was there, or what it puts there."""
    module = Module()
    module.d = {"a": 1}
    assert module.d.setdefault("a", 2) == 1
    assert module.d.setdefault("b", 3) == 3 == module.d["b"]
    assert module.d.setdefault("c") is None and "c" in module.d
