"""Small laws of maps: which elements rules use together, which places they fill, which numbers
``else`` fills, and which copies are compared."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import MapError
from shardvar.layout import Region
from shardvar.maps.fitting import bytes_of_number
from shardvar.maps.map import Map, copies_left_out, fit_map
from shardvar.maps.proof import Use, _covers
from shardvar.testing import regions_in, tilings
from spec_tests.helpers.map_arrays import assert_same, map_arrays

SHAPE = (4, 3)


@given(st.lists(regions_in(SHAPE), max_size=5) | tilings(SHAPE), st.booleans())
def test_rules_cover_a_tensor_if_each_element_is_in_one_of_them(
    regions: Sequence[Region], is_split: bool
) -> None:
    radices = ((4,), (3,))
    uses = [
        Use(rule, radices, tuple(region.offset), tuple(region.shape))
        for rule, region in enumerate(regions)
    ]
    if is_split:  # an axis of other indices, which the boxes cannot be made of
        uses = [Use(9, ((2, 2), (3,)), (0, 0, 0), (1, 2, 3)), *uses]
    used = np.zeros(SHAPE, bool)
    used[:2] |= is_split
    for region in regions:
        used[region.slices] = True
    assert _covers(SHAPE, uses) == bool(used.all())


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("300", "uint8"),
        ("-1", "uint8"),
        (str(2**70), "int64"),
        ("0.5", "int8"),
        ("nan", "int32"),
        ("inf", "uint16"),
        ("1e9", "float16"),
    ],
)
def test_a_number_that_a_dtype_does_not_hold_is_refused(text: str, dtype: str) -> None:
    with pytest.raises(MapError, match=rf"'else {text}' does not fit the dtype {dtype}\."):
        bytes_of_number(text, dtype)


@pytest.mark.parametrize("ranges", ["", " @ a=0:", " @ p=0:", " @ p=0:{p} else 0"])
def test_a_cut_block_is_filled_up_only_by_a_range_with_a_stop(ranges: str) -> None:
    for extent, p in product(range(1, 10), range(1, 5)):
        numbers, scales = np.arange(1.0, extent + 1), 2.0 ** np.arange(-(-extent // p))
        rule = "w[(a p)] times s[a] -> x[(a p)]" + ranges.format(p=p)
        made = map_arrays(Map([rule], sizes={"p": p}), {"w": numbers, "s": scales})
        wanted = np.array([n * scales[i // p] for i, n in enumerate(numbers)])
        padding = -extent % p if "else" in ranges else 0
        assert_same(made, {"x": np.pad(wanted, (0, padding))})


@pytest.mark.parametrize("readable", [*product([True, False], repeat=3)])
def test_a_copy_is_compared_if_it_and_the_kept_tensor_can_be_read(
    readable: tuple[bool, ...],
) -> None:
    rules = Map(["{rank}/w @ rank=0 -> w", "{rank}/w @ rank=1: -> nothing"])
    tensors = {f"{n}/w": ("int8", (2,)) for n, is_there in enumerate(readable) if is_there}
    objects = [f"{n}/w" for n, is_there in enumerate(readable) if not is_there]
    left_out = fit_map(rules, tensors, objects, {}, "nowhere").plan.left_out
    assert left_out.keys() == {"1/w", "2/w"}
    found = copies_left_out(rules.parsed, left_out, tensors, lambda _: 3)
    assert found == {key: "0/w" for key in left_out if {key, "0/w"} <= tensors.keys()}


def test_a_copy_is_one_of_the_tensor_with_the_same_other_indices() -> None:
    """Of pipeline stages and copies: each stage has other layers."""
    tensors = {f"{n}/w": ("int8", (2,)) for n in range(6)}
    rules = Map(["{(pp c)}/w @ c=0 -> {pp}.w", "{(pp c)}/w @ c=1: -> nothing"], sizes={"c": 2})
    left_out = fit_map(rules, tensors, (), {}, "nowhere").plan.left_out
    found = copies_left_out(rules.parsed, left_out, tensors, {"pp": 3, "c": 2}.__getitem__)
    assert found == {f"{n}/w": f"{n - 1}/w" for n in (1, 3, 5)}
