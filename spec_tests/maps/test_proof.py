"""Small laws of maps: which elements rules use together, and which numbers ``else`` fills."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import MapError
from shardvar.layout import Region
from shardvar.maps.fitting import bytes_of_number
from shardvar.maps.proof import Use, _covers
from shardvar.testing import regions_in, tilings

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
