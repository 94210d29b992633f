"""Redistribution: what torch 2.13 recorded, and the laws of the plan on all small meshes."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from shardvar.errors import ArgumentError, LayoutError
from shardvar.layout.meshes import redistribution
from shardvar.layout.meshes.dtensor import DTensorPlacement
from shardvar.layout.meshes.layout import Mesh
from shardvar.layouts import (
    DeviceCopies,
    Layout,
    Partial,
    Redistribution,
    Replicate,
    Shard,
    StridedShard,
    dtensor,
    parameter_servers,
    plan_redistribution,
)  # fmt: skip
from spec_tests.helpers.layout_tables import Case, cases, each_row, placements_of
from spec_tests.helpers.thoroughness import stride

R = Replicate()
CUTS: tuple[DTensorPlacement, ...] = (R, Shard(0), Shard(1), StridedShard(0, 2), StridedShard(0, 3))


def sides(case: Case) -> tuple[list[DTensorPlacement], list[DTensorPlacement]]:
    """Return the placements before and after of a recorded case."""
    return placements_of(case["source"]), placements_of(case["target"])


def is_distributable(case: Case) -> bool:
    """Return False for terms of a product, which no DTensor can be distributed as."""
    return not any(
        isinstance(each, Partial) and each.op == "product" for side in sides(case) for each in side
    )


def plan_of(case: Case) -> Redistribution:
    mesh = Mesh(case["mesh"]["shape"])
    before, after = (dtensor(case["shape"], mesh, placements) for placements in sides(case))
    ops = {op for axis, op in before.pending} - {op for axis, op in after.pending}
    return plan_redistribution(before, after, reduce=ops.pop() if ops else None)


RECORDED = [case for case in cases("redistribute") if is_distributable(case)]
PLAIN = [case for case in RECORDED if not case.get("flattened") and "strided" not in case["group"]]


def small_pairs() -> Iterator[tuple[Layout, Layout]]:
    """Yield all pairs of layouts by `CUTS`, of small tensors on small meshes."""
    for shape, mesh in product(((5, 3), (2, 4)), ((1,), (2,), (3,), (2, 2), (3, 2))):
        layouts = [
            dtensor(shape, Mesh(mesh), placements) for placements in product(CUTS, repeat=len(mesh))
        ]
        yield from product(layouts, layouts)


def elements(layout: Layout, device: int) -> set[int]:
    """Return the numbers of the elements that a device holds; none for a device that the mesh
    lacks."""
    whole = np.arange(np.prod(layout.shape, dtype=int)).reshape(layout.shape)
    regions = layout.regions(device) if device < layout.mesh.size else ()
    return {int(number) for region in regions for number in whole[region.slices].ravel()}


@each_row([case for case in RECORDED if "must_receive" in case])
def test_a_device_receives_what_it_lacks_and_no_more(case: Case) -> None:
    """The recorded lower bound of each device, which torch's own moves exceed, is what the plan
    sends to it."""
    plan = plan_of(case)
    assert plan.must_receive().tolist() == plan.received().tolist() == case["must_receive"]


@each_row([case for case in PLAIN if len(case["planned"]) <= 1])
def test_what_torch_does_in_one_step_has_the_name_of_that_step(case: Case) -> None:
    named = [each["collective"] or "local_slice" for each in case["planned"]] or ["identity"]
    assert [plan_of(case).collective] == named


def test_a_plan_sends_to_each_device_what_it_lacks_from_one_that_holds_it() -> None:
    """On small meshes: an element that is kept was held, one that is sent is lacked, and comes from
    a holder."""
    for source, target in [*small_pairs()][:: stride(3)]:
        plan = plan_redistribution(source, target)
        whole = np.arange(np.prod(source.shape)).reshape(source.shape)
        before = [elements(source, device) for device in range(source.mesh.size)]
        got: list[list[int]] = [[] for _ in before]
        for table in (plan.kept, plan.moves):
            for row in range(len(table)):
                sender, receiver = int(table.sender[row]), int(table.receiver[row])
                region = table.region(row)
                numbers = whole[region.slices].ravel().tolist()
                assert before[sender].issuperset(numbers)
                assert (
                    (sender == receiver)
                    == before[receiver].issuperset(numbers)
                    == (table is plan.kept)
                )
                for at, layout in (
                    (table.source_row[row], source),
                    (table.target_row[row], target),
                ):
                    outer = layout.regions(int(layout.device[at]))
                    first = int(np.searchsorted(layout.device, layout.device[at]))
                    assert outer[int(at) - first].covers(region)
                got[receiver] += numbers
        assert [sorted(each) for each in got] == [
            sorted(elements(target, device)) for device in range(len(before))
        ]
        assert plan.received().tolist() == plan.must_receive().tolist()
        assert plan.sent().sum() == plan.received().sum()


def test_holders_share_the_work_and_each_pair_has_one_message() -> None:
    """Holders of one region differ by at most one message, and a device sends at most one message
    to another."""
    for holders, receivers in product(range(1, 5), range(6)):
        devices = holders + receivers
        mesh = Mesh((devices,))
        rows = [[0, 0], [8, 3]]
        source = Layout(
            (8, 3),
            mesh,
            "the first ones",
            np.arange(holders),
            *np.repeat([rows], holders, 0).swapaxes(0, 1),
        )
        plan = plan_redistribution(source, dtensor((8, 3), mesh, [R]))
        assert isinstance(plan.moves, DeviceCopies) and isinstance(plan.kept, DeviceCopies)
        assert plan.messages.sum() == receivers
        assert np.ptp(plan.messages[:holders]) <= 1
        assert plan.messages[holders:].sum() == 0


def test_holders_take_turns_from_the_largest_message_on() -> None:
    mesh, whole = Mesh((4,)), np.array([[[0], [6]]] * 2)
    source = Layout((6,), mesh, "the first two", np.arange(2), *whole.swapaxes(0, 1))
    cut = np.array([[0], [1]]), np.array([[1], [5]])
    target = Layout((6,), mesh, "uneven", np.arange(2, 4), *cut)
    moves = plan_redistribution(source, target).moves
    turns = dict(zip(moves.receiver.tolist(), moves.sender.tolist(), strict=True))
    assert turns == {3: 0, 2: 1}


def test_both_searches_for_pairs_give_the_same_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = list(small_pairs())[::7]
    plans = [plan_redistribution(*pair) for pair in pairs]
    monkeypatch.setattr(redistribution, "_FEW", -1)
    for pair, plan in zip(pairs, plans, strict=True):
        other = plan_redistribution(*pair)
        for mine, its in ((plan.moves, other.moves), (plan.kept, other.kept)):
            assert len(mine) == len(its)
            for name in ("sender", "receiver", "source_row", "target_row", "offset", "extent"):
                np.testing.assert_array_equal(getattr(mine, name), getattr(its, name))


def test_every_device_receives_the_terms_that_it_lacks() -> None:
    """A reduction brings each of k terms of a device's target to it, but for the one that it
    holds."""
    for target in product((R, Shard(0), Shard(1)), repeat=2):
        mesh = Mesh((3, 2))
        source, after = dtensor((6, 4), mesh, [Partial(), R]), dtensor((6, 4), mesh, target)
        plan = plan_redistribution(source, after, reduce="sum")
        assert plan.num_terms == 3
        assert plan.received().tolist() == [2 * len(elements(after, device)) for device in range(6)]
        for row, term in enumerate(plan.moves.term.tolist()):
            assert (
                plan.moves.sender[row] // 2 == term
            )  # a device's coordinate along the first axis is its term


def test_terms_that_stay_terms_move_among_devices_of_one_term() -> None:
    mesh = Mesh((2, 3))
    plan = plan_redistribution(
        *(dtensor((6, 6), mesh, [Partial("max"), cut]) for cut in (Shard(0), Shard(1)))
    )
    assert plan.collective == "all_to_all"
    assert (plan.moves.sender // 3 == plan.moves.receiver // 3).all()


@pytest.mark.parametrize("op", ["sum", "avg", "max"])
def test_a_term_on_one_device_is_a_value(op: str) -> None:
    """A mesh axis of one device changes nothing, whether it is pending or not, before or after."""
    mesh = Mesh((1, 3))
    for cut, then in product((R, Shard(0), Partial(op)), repeat=2):
        reduce = op if cut == Partial(op) != then else None
        if then == Partial(op) != cut:
            continue  # values do not become terms
        plans = [
            plan_redistribution(
                dtensor((6, 4), mesh, [first, cut]),
                dtensor((6, 4), mesh, [second, then]),
                reduce=reduce,
            )
            for first, second in product((R, Partial(op)), repeat=2)
        ]
        for plan in plans:
            for name in ("sender", "receiver", "offset", "extent", "term"):
                of_plan, of_first = getattr(plan.moves, name), getattr(plans[0].moves, name)
                np.testing.assert_array_equal(of_plan, of_first)
            assert (plan.num_terms, plan.collective) == (plans[0].num_terms, plans[0].collective)
    one = dtensor((6, 4), mesh, [Partial(op), R])
    with pytest.raises(ArgumentError, match="not pending"):
        plan_redistribution(one, dtensor((6, 4), mesh, [R, R]), reduce=op)


def test_meshes_of_other_sizes_number_the_same_devices() -> None:
    """Devices that one mesh lacks hold nothing there: three servers become five, and five three."""
    for before, after in ((3, 5), (5, 3)):
        source, target = (parameter_servers((13, 2), Mesh((count,))) for count in (before, after))
        plan = plan_redistribution(source, target)
        lacked = [len(elements(target, device) - elements(source, device)) for device in range(5)]
        assert plan.received().tolist() == lacked
        assert plan.received(4).tolist() == [4 * count for count in lacked]
        assert plan.peak().tolist() == [
            len(elements(source, n)) + len(elements(target, n)) for n in range(5)
        ]


def test_one_holder_of_all_broadcasts_and_swapped_axes_are_a_permutation() -> None:
    mesh = Mesh((2, 2))
    one = Layout((4, 4), mesh, "device 1", np.array([1]), np.array([[0, 0]]), np.array([[4, 4]]))
    assert plan_redistribution(one, dtensor((4, 4), mesh, [R, R])).collective == "broadcast"
    there, back = ([Shard(0), Shard(1)], [Shard(1), Shard(0)])
    assert (
        plan_redistribution(dtensor((4, 4), mesh, there), dtensor((4, 4), mesh, back)).collective
        == "permute"
    )
    # Columns are gathered and rows are cut: neither of both alone.
    assert (
        plan_redistribution(
            dtensor((4, 4), mesh, there), dtensor((4, 4), mesh, [R, Shard(0)])
        ).collective
        is None
    )


def test_scalars_and_tensors_without_elements_have_plans() -> None:
    mesh = Mesh((2, 2))
    scalar = plan_redistribution(
        dtensor((), mesh, [Partial(), R]), dtensor((), mesh, [R, R]), reduce="sum"
    )
    assert scalar.received().tolist() == [1, 1, 1, 1]
    assert scalar.collective == "all_reduce"
    empty = plan_redistribution(
        dtensor((0, 3), mesh, [R, Shard(1)]), dtensor((0, 3), mesh, [Shard(1), R])
    )
    assert (len(empty.moves), len(empty.kept), empty.collective) == (0, 0, "identity")


@pytest.mark.parametrize(
    ("source", "target", "reduce", "words"),
    [
        (Partial(), R, None, "reduce='sum'"),
        (Partial("max"), R, "sum", "'sum' is named, and the source is 'max'"),
        (Shard(0), R, "sum", "not pending"),
        (Partial(), R, "mean", "no reduction 'mean'"),
        (Partial(), R, 3, "no reduction 3"),
        (Shard(0), Partial(), None, "is a value"),
        (R, Partial(), None, "is a value"),
        (Partial("max"), Partial(), None, "pending as 'max'"),
    ],
)
def test_terms_become_values_by_a_named_reduction_alone(
    source: DTensorPlacement, target: DTensorPlacement, reduce: str | None, words: str
) -> None:
    before, after = (dtensor((5, 4), Mesh((2,)), [each]) for each in (source, target))
    with pytest.raises(ArgumentError) as caught:
        plan_redistribution(before, after, reduce=reduce)
    assert words in f"{caught.value.cause} {caught.value.remedy}"


def test_layouts_of_other_tensors_and_layouts_with_holes_are_refused() -> None:
    mesh = Mesh((2,))
    whole = dtensor((4, 4), mesh, [R])
    with pytest.raises(LayoutError, match=r"\(4, 4\), the target layout of \(4, 5\)"):
        plan_redistribution(whole, dtensor((4, 5), mesh, [R]))
    half = Layout(
        (4, 4), mesh, "the upper half", np.array([0]), np.array([[0, 0]]), np.array([[2, 4]])
    )
    with pytest.raises(LayoutError, match=r"\[0:4, 0:4\], which device 0 needs"):
        plan_redistribution(half, whole)
    overlapping = Layout(
        (4, 4),
        mesh,
        "halves and more",
        np.array([0, 1]),
        np.array([[0, 0], [1, 0]]),
        np.array([[3, 4], [3, 4]]),
    )
    with pytest.raises(LayoutError, match="overlap"):
        plan_redistribution(overlapping, whole)
