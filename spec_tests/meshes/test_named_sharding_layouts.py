"""JAX's layouts: every case that jax 0.10 recorded, refusals included, and the laws of specs."""

from typing import Any

import pytest

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError, OutOfRange
from shardvar.layout.meshes import (
    Layout,
    Partial,
    Shard,
    dtensor,
    named_sharding,
    parameter_servers,
)
from shardvar.layout.meshes.layout import Mesh
from spec_tests.helpers.layout_tables import Case, cases, each_row, held, recorded

MESH = Mesh((2, 2), ("x", "y"))


def layout_of(case: Case) -> Layout:
    order = case["layout"].get("device_order")
    mesh = Mesh(case["mesh"]["shape"], case["mesh"]["axes"], order)
    return named_sharding(
        case["shape"], mesh, case["layout"]["spec"], unreduced=case["layout"].get("unreduced", ())
    )


@each_row(cases("jax"))
def test_a_device_holds_what_it_holds_in_jax(case: Case) -> None:
    """Regions, groups of equal devices, and the number of a device within its group."""
    layout = layout_of(case)
    assert held(layout) == recorded(case)
    assert layout.pending == ()
    if (
        0 not in case["shape"]
    ):  # JAX tells empty shards at different offsets apart; a layout has regions with elements
        assert [list(group) for group in layout.replicas] == case["replicas"]
        assert (len(layout.replicas) == 1) == case["is_fully_replicated"]
        number = {device: place for group in layout.replicas for place, device in enumerate(group)}
        recorded_ids = {
            each["device"]: each["replica_id"] for each in case["devices"] if "replica_id" in each
        }
        assert recorded_ids.items() <= number.items()


REFUSED = [
    case for case in cases("jax", refused=True) if case["refused"]["error"] != "NotImplementedError"
]
AXIS_TYPES = "Unreduced axes can only refer to mesh axes that is of type"


@each_row(REFUSED)
def test_what_jax_refuses_is_refused(case: Case) -> None:
    """All but the type of a mesh axis, which is not geometry."""
    if case["refused"]["message"].startswith(AXIS_TYPES):
        assert layout_of(case).pending == ((1, "sum"),)
        return
    with pytest.raises(ArgumentError) as caught:
        layout_of(case)
    assert caught.value.remedy


UNREDUCED = [
    case for case in cases("jax", refused=True) if case["refused"]["error"] == "NotImplementedError"
]


@each_row(UNREDUCED)
def test_unreduced_axes_are_pending_sums(case: Case) -> None:
    """JAX has such arrays and does not say which devices hold what; each device of the axis holds a
    term."""
    layout = layout_of(case)
    plain = named_sharding(case["shape"], layout.mesh, case["layout"]["spec"])
    assert held(layout) == held(plain)
    assert [(MESH.axis_names[axis], op) for axis, op in layout.pending] == [  # type: ignore[index]  # it has names
        (name, "sum") for name in case["layout"]["unreduced"]
    ]


def test_terms_are_in_the_order_of_the_mesh_whatever_its_axes_are_called() -> None:
    mesh = Mesh((2, 3), ("y", "x"))
    for unreduced in (("y", "x"), ("x", "y")):
        assert named_sharding((4,), mesh, (None,), unreduced=unreduced).pending == (
            (0, "sum"),
            (1, "sum"),
        )


def test_the_same_regions_are_equal_in_the_words_of_both_frameworks() -> None:
    """Several axes on one are ``[Shard(0), Shard(0)]``; trailing None and tuples of one name do not
    matter."""
    both = named_sharding((8, 6), MESH, (("x", "y"),))
    assert both == dtensor((8, 6), MESH, [Shard(0), Shard(0)])
    assert both == named_sharding((8, 6), Mesh((4,), ("z",)), ("z", None))
    assert both != named_sharding((8, 6), MESH, (("y", "x"),))
    unreduced = named_sharding((8, 6), MESH, ("x",), unreduced=("y",))
    assert unreduced == dtensor((8, 6), MESH, [Shard(0), Partial("sum")])


@pytest.mark.parametrize(
    ("spec", "unreduced", "error"),
    [
        ("xy", (), ArgumentTypeError),
        (None, (), ArgumentTypeError),
        ({"x", "y"}, (), ArgumentTypeError),
        ({"x": None}, (), ArgumentTypeError),
        ((3,), (), ArgumentTypeError),
        (((None,),), (), ArgumentTypeError),
        (("z",), (), ArgumentError),
        (("x", "x"), (), ArgumentError),
        ((None, None, "x"), (), OutOfRange),
        ((None, "x"), (), LayoutError),
        ((), "x", ArgumentTypeError),
        ((), 1, ArgumentTypeError),
        ((), ("z",), ArgumentError),
        ((), ("x", "x"), ArgumentError),
        (("x",), ("x",), ArgumentError),
    ],
)
def test_bad_specs_are_refused(spec: Any, unreduced: Any, error: type[ArgumentError]) -> None:
    with pytest.raises(error) as caught:
        named_sharding((8, 3), MESH, spec, unreduced=unreduced)
    assert caught.value.remedy


class PartitionSpec:
    """As JAX has it: not a sequence."""

    partitions = ("x", None)
    unreduced = frozenset({"y"})


def test_a_spec_of_jax_is_taken_with_its_unreduced_axes() -> None:
    """They would be lost without a word if only the entries were read."""
    expected = named_sharding((8, 6), MESH, ("x",), unreduced=("y",))
    found = named_sharding((8, 6), MESH, PartitionSpec())  # type: ignore[arg-type]  # JAX has no types here
    assert found == expected
    assert expected.pending == ((1, "sum"),)


def test_a_mesh_without_names_has_no_axis_to_name() -> None:
    assert named_sharding((8,), Mesh((2,)), (None,)).replicas == ((0, 1),)
    with pytest.raises(ArgumentError, match="no axis 'x'"):
        named_sharding((8,), Mesh((2,)), ("x",))


def test_an_order_of_servers_is_followed() -> None:
    layout = parameter_servers((3,), Mesh((2,), devices=(1, 0)))
    assert held(layout) == {0: [((2,), (1,))], 1: [((0,), (2,))]}


@pytest.mark.parametrize(("shape", "mesh"), [((), (2,)), ((4,), (2, 2)), ((4,), ())])
def test_what_servers_cannot_hold_is_refused(shape: Any, mesh: Any) -> None:
    with pytest.raises(LayoutError):
        parameter_servers(shape, Mesh(mesh))
