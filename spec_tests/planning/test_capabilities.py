"""Fitting slices to a format: what it cannot cut is joined, what it cannot hold is refused by
name."""

from math import prod

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardvar.errors import UnsupportedError
from shardvar.layout import Region
from shardvar.layout.dtypes import NAMES, numpy_dtype
from shardvar.limits import MAX_KEY_NBYTES
from shardvar.planning.index import find_faults
from shardvar.planning.slices import (
    Capabilities,
    SliceTable,
    TensorSlice,
    TensorTable,
    check_holds,
    cuttable_rows,
    join_whole,
    rows_in_file_order,
)
from shardvar.records import replace
from spec_tests.helpers.hypothesis_strategies import slice_tables
from spec_tests.planning.test_slices import is_grid

ALL = frozenset(NAMES)
NUMBERS = ALL - {"string", "variant"}

capabilities = st.builds(
    Capabilities,
    dtypes=st.just(ALL),
    slice_dtypes=st.sampled_from([frozenset(), NUMBERS, frozenset({"float32"})]),
    max_slice_rank=st.integers(0, 3),
    empty_slices=st.booleans(),
    is_grid=st.booleans(),
)


def plain_join(slices: SliceTable, can: Capabilities) -> list[tuple[TensorSlice, str]]:
    """The definition: slice by slice, each with its device. A tensor that cannot be cut stands where
    its first slice stood."""
    given, found = [slices[row] for row in range(len(slices))], list[tuple[TensorSlice, str]]()
    for row, each in enumerate(given):
        parts = [other.region for other in given if other.key == each.key]
        is_cut = each.dtype in can.slice_dtypes and len(each.full_shape) <= can.max_slice_rank
        is_cut &= not can.is_grid or is_grid(each.full_shape, parts)
        if not is_cut or (0 in each.full_shape and not can.empty_slices):
            if each.key not in [other.key for other in given[:row]]:
                nbytes = each.nbytes
                if each.dtype != "string":
                    nbytes = prod(each.full_shape) * numpy_dtype(each.dtype).itemsize
                whole = replace(each, region=Region.whole(each.full_shape), nbytes=nbytes)
                found.append((whole, slices.device_of(row)))
        elif each.region.size or can.empty_slices:
            found.append((each, slices.device_of(row)))
    return found


def test_a_format_has_no_more_than_it_claims() -> None:
    """Most formats have several files, metadata and a replacement in one step, so these are the
    default. A format that says no more than its dtypes cuts nothing."""
    least = Capabilities(ALL, ALL)
    has = {name for name, value in least._asdict().items() if value is True}
    assert has == {"many_files", "atomic_overwrite", "holds_texts"}
    assert not cuttable_rows(UNEVEN, least).any()


UNEVEN = SliceTable.of(
    TensorTable.of([("w", "float32", (13,))]),
    *(np.array(each) for each in ([0, 0], [[0], [1]], [[1], [12]], [4, 48])),
)


@example(UNEVEN, False, Capabilities(ALL, NUMBERS, 1))
@example(UNEVEN, False, Capabilities(ALL, NUMBERS, 1, is_grid=True))
@given(slice_tables(), st.booleans(), capabilities)
def test_what_a_format_cannot_cut_is_whole_and_the_rest_as_it_was(
    slices: SliceTable, has_devices: bool, capabilities: Capabilities
) -> None:
    if has_devices:
        device = np.arange(len(slices)) % 2
        slices = replace(
            slices, device=device, devices=tuple(f"/task:{n}/device:CPU:0" for n in "01")
        )
    joined = join_whole(slices, capabilities)
    assert [(joined[row], joined.device_of(row)) for row in range(len(joined))] == plain_join(
        slices, capabilities
    )
    assert find_faults(joined) == {}
    assert cuttable_rows(slices, capabilities).tolist() == [
        each.dtype in capabilities.slice_dtypes
        and 0 < len(each.full_shape) <= capabilities.max_slice_rank
        for each in map(slices.__getitem__, range(len(slices)))
    ]


@given(slice_tables(), st.lists(st.sampled_from(NAMES), unique=True), st.booleans())
def test_a_data_file_has_tensors_in_the_order_of_its_format(
    slices: SliceTable, order: list[str], is_ordered: bool
) -> None:
    """By dtype, and then by the bytes of the name; slices of one tensor as they are."""
    names = (*order, *(name for name in NAMES if name not in order)) if is_ordered else ()
    rows = rows_in_file_order(slices, Capabilities(ALL, ALL, file_order=names))
    expected = list(range(len(slices)))
    if is_ordered:
        expected.sort(
            key=lambda row: (
                names.index(slices.dtype(row)),
                slices.key(row).encode("utf-8", "surrogatepass"),
            )
        )
    assert rows.tolist() == expected


@pytest.mark.parametrize(
    ("rows", "held", "cause", "remedy"),
    [
        (
            [("w", "float32"), ("names", "string"), *((f"q{n}", "qint8") for n in "abcdefg")],
            ["float32"],
            "The format npz cannot hold 'names' (string), 'qa' (qint8), 'qb' (qint8), 'qc' (qint8), 'qd' "
            "(qint8), 'qe' (qint8), 'qf' (qint8), 'qg' (qint8).",
            "Leave them out (--exclude), cast them, or choose another format.",
        ),
        (
            [*((f"{n}", "string") for n in range(10))],
            ["float32"],
            "The format npz cannot hold '0' (string), '1' (string), '2' (string), '3' (string), '4' (string), "
            "'5' (string), '6' (string), '7' (string) and 2 more.",
            "Leave them out (--exclude), or choose another format.",
        ),
        (
            [("w", "float32")],
            [],
            "shardvar can read npz but not write it.",
            "Choose another one, such as safetensors (--format).",
        ),
    ],
)  # fmt: skip
def test_what_a_format_cannot_hold_is_refused_with_keys_dtypes_and_remedy(
    rows: list[tuple[str, str]], held: list[str], cause: str, remedy: str
) -> None:
    tensors = TensorTable.of([(*row, ()) for row in rows])
    with pytest.raises(UnsupportedError) as caught:
        check_holds(tensors.whole(), Capabilities(frozenset(held), frozenset()), "npz")
    assert (caught.value.cause, caught.value.remedy) == (cause, remedy)
    check_holds(tensors.whole(), Capabilities(ALL, frozenset()), "npz")


@pytest.mark.parametrize("character", ["a", "é", "\U0001f600"])
def test_a_key_may_have_as_many_bytes_as_a_zip_archive_counts(character: str) -> None:
    """Bytes of UTF-8, and not characters."""
    each = len(character.encode())
    longest = character * (MAX_KEY_NBYTES // each)
    can = Capabilities(ALL, frozenset())
    check_holds(TensorTable.of([(longest, "int8", ())]).whole(), can, "npz")
    with pytest.raises(
        UnsupportedError, match=f" has {(MAX_KEY_NBYTES // each + 1) * each} bytes, which"
    ):
        check_holds(TensorTable.of([(longest + character, "int8", ())]).whole(), can, "npz")
