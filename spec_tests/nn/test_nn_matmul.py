"""Products with sharded variables are NumPy's to five digits in both modes, which differ in what
crosses."""

import tracemalloc
from itertools import chain, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError
from shardvar.reference.devices import Device, track_transfers
from shardvar.reference.nn import matmul
from shardvar.reference.variables import Variable
from spec_tests.helpers.embedding_tables import Table, shard, tables

MODES = st.sampled_from(["concat", "sharded"])


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.shape == expected.shape and np.allclose(found, expected, rtol=1e-5, atol=1e-5)


@given(
    tables(min_rows=0),
    st.integers(0, 4),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    MODES,
)
def test_a_sharded_variable_gives_rows_of_the_product_on_the_left_and_terms_of_its_sum_on_the_right(
    table: Table, columns: int, batch: list[int], mode: str
) -> None:
    b = np.random.default_rng(0).normal(size=(3, columns)).astype(np.float32)
    found = matmul(table.sharded, b, mode)
    assert close(found, table.full @ b) and found.dtype == np.float32
    a = np.random.default_rng(0).normal(size=(*batch, table.rows)).astype(np.float32)
    assert close(matmul(a, table.sharded, mode), a @ table.full)


def test_two_variables_and_no_variable_are_multiplied_too() -> None:
    full = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert close(matmul(shard(full, [2, 1]), Variable(full.T)), full @ full.T)
    assert close(matmul(full, full.T), full @ full.T)
    assert matmul(Variable([[1, 2]]), [[0.5], [1.0]]).tolist() == [
        [2.5]
    ]  # integers by reals: reals


def test_concat_moves_the_variable_and_sharded_moves_the_other_matrix_and_the_product() -> None:
    """R-MATMUL-1, as the ledger has it."""
    table = shard(np.ones((7, 3), np.float32), [4, 0, 3])
    b = np.ones((3, 2), np.float32)
    with track_transfers() as concat:
        matmul(table, b)
    with track_transfers() as sharded:
        matmul(table, b, "sharded")
    assert concat.total("matmul").nbytes == concat.nbytes == 7 * 3 * 4 and concat.messages == 2
    assert sharded.nbytes == 2 * b.nbytes + 7 * 2 * 4 and sharded.messages == 4
    with track_transfers() as right:
        matmul(np.ones((5, 7), np.float32), table, "sharded")
    assert right.nbytes == 5 * 7 * 4 + 2 * (
        5 * 3 * 4
    )  # each shard takes its own columns and gives a term


@pytest.mark.parametrize("mode", ["concat", "sharded"])
@pytest.mark.parametrize("is_local", [True, False])
def test_no_second_copy_of_the_variable_is_ever_held(mode: str, is_local: bool) -> None:
    """Beside the answer at most one shard is held, and where it lives here, not even that."""
    table = shard(np.ones((1 << 16, 16), np.float32), [1 << 13] * 8, local=is_local)
    b = np.ones((16, 1), np.float32)
    matmul(table, b, mode)  # whatever is imported or cached at first
    tracemalloc.start()
    matmul(table, b, mode)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    allowed = (1 << 16) * 4 + (1 << 16) + (0 if is_local else (1 << 13) * 16 * 4)
    assert peak < allowed


def test_a_device_without_room_for_the_product_says_so() -> None:
    variable = Variable(np.ones((4, 4), np.float32), device=Device("ps:0", memory_limit=100))
    with pytest.raises(MemoryError, match="ps"):
        matmul(variable, np.ones((4, 64), np.float32), "sharded")


def test_factors_that_have_no_product_and_another_mode_are_refused() -> None:
    for b in (np.ones((2, 2)), np.ones(3), np.ones((1, 3, 3))):
        with pytest.raises(ArgumentError, match="product"):
            matmul(Variable(np.ones((2, 3))), b)
    numbers, strings = ([kind([[value]]) for kind in (list, Variable)] for value in (1.0, "x"))
    for left, right in chain(product(numbers, strings), product(strings, numbers + strings)):
        with pytest.raises(ArgumentError, match="Strings have no product"):
            matmul(left, right)
    with pytest.raises(ArgumentError, match="mode"):
        matmul(Variable([[1.0]]), [[1.0]], "fast")  # type: ignore[arg-type]
