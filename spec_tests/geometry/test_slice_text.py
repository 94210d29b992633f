"""TensorFlow's text of a slice: printed and parsed back, and refused where TensorFlow refuses
it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import LayoutError
from shardvar.layout import Region, format_slice_text, parse_slice_text
from spec_tests.helpers.hypothesis_strategies import filled_shapes, regions_in


@st.composite
def slices(draw: st.DrawFn) -> tuple[tuple[int, ...], Region]:
    shape = draw(filled_shapes(max_rank=4, min_rank=1))
    return shape, draw(regions_in(shape).filter(lambda region: region.size > 0))


@given(slices())
def test_a_whole_axis_may_be_a_dash(slice_: tuple[tuple[int, ...], Region]) -> None:
    shape, region = slice_
    extents = [
        "-" if (offset, extent) == (0, full) else f"{offset},{extent}"
        for full, offset, extent in zip(shape, region.offset, region.shape, strict=True)
    ]
    text = f"{' '.join(map(str, shape))} {':'.join(extents)}"
    assert parse_slice_text(text) == slice_


def test_the_text_is_tensorflows() -> None:
    """The example of TensorFlow's checkpoints: rows 3 to 6 of a [13, 4] table."""
    assert format_slice_text((13, 4), Region((3, 0), (3, 4))) == "13 4 3,3:0,4"
    assert (
        parse_slice_text("13 4 3,3:0,4")
        == parse_slice_text("13 4 3,3:-")
        == ((13, 4), Region((3, 0), (3, 4)))
    )
    assert parse_slice_text("13 -") == ((13,), Region((0,), (13,)))


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "-", "13", "0,3", "13 4", "13 4 3,3", "13 3,3:0,4", "13 4 3,3:0,4:0,1", "13  3,3", "13 3,3 ",
        "13 4 3,3 0,4", "13 4 3;3:0,4", "13 4 3,3,3:0,4", "13 4 3:0,4", "13 a,3", "13 3,a", "13 3,", "13 ,3", "13 --",
        "-13 3,3", "13 -1,3", "13 3,-3", "+13 3,3", "13 +3,3", "1_3 3,3", "13 3, 3", "13 3.0,3", "0x13 3,3", "13 ٣,3",
        "13 3,0", "13 13,1", "13 12,2", "13 0,14", "0 0,1", "13 99999999999999999999,1", "9999999999999999999 0,1",
        "13 9223372036854775807,9223372036854775807", "13 0,9223372036854775808", "13\n3,3", "13\0 3,3",
    ],
)  # fmt: skip
def test_what_is_no_slice_text_is_refused(text: str) -> None:
    """Each breaks the grammar, reaches out, has no element (which TensorFlow refuses), or does not
    fit 64 bits."""
    with pytest.raises(LayoutError) as caught:
        parse_slice_text(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "region"),
    [
        ((), Region((), ())),
        ((13,), Region((3,), (0,))),
        ((13,), Region((3,), (11,))),
        ((13,), Region((3, 0), (3, 1))),
        ((0,), Region((0,), (0,))),
    ],
)
def test_what_tensorflow_has_no_text_for_is_not_printed(
    shape: tuple[int, ...], region: Region
) -> None:
    with pytest.raises(LayoutError, match="no slice text"):
        format_slice_text(shape, region)
