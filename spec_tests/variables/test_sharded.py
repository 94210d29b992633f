"""The sharded variable as one: construction, Python's protocols, dense and sparse reads and
writes."""

import copy
import gc
import inspect
import operator as op
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError
from shardvar.layout.partition import Partition
from shardvar.reference.variables import Variable
from shardvar.reference.variables.interface import VariableInterface
from spec_tests.helpers.sharded_variables import (
    Array,
    counting,
    sharded_arrays,
    sharded_of,
)


@given(sharded_arrays())
def test_shards_compose_a_larger_variable(pair: tuple[Array, sv.ShardedVariable]) -> None:
    """R-SV-1 (RFC 000): "that list of variables compose a larger variable". R-VAR-1 (RFC 000):
    "users' model code doesn't need to change w.r.t whether the variable is sharded or not": rows
    are those of a plain variable."""
    array, sharded = pair
    assert sharded.shape == array.shape and sharded.dtype == array.dtype and sharded.trainable
    np.testing.assert_array_equal(sharded.read_value(), array)
    assert isinstance(sharded.partition, Partition) and sharded.partition.shape == array.shape
    for shard, part, device in zip(
        sharded.variables, sharded.partition, sharded.devices, strict=True
    ):
        np.testing.assert_array_equal(shard.read_value(), array[part.slices])
        assert shard.device is device and shard.container is sharded
    assert all(
        a is b for a, b in zip(sharded.get_variable_list(), sharded.variables, strict=True)
    ), "R-SV-2"
    for variable in (Variable(array), sharded):
        for wanted, (number, row) in zip(array, enumerate(variable), strict=True):
            np.testing.assert_array_equal(row, wanted)
            np.testing.assert_array_equal(row, variable[number])


@pytest.mark.parametrize(
    "culprit",
    ["x", None, 3.0, np.zeros(3), [1, 2], {"a": 1}],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("place", [0, 2, 40])
def test_the_first_item_that_is_not_a_variable_is_named_with_its_place(
    culprit: Any, place: int
) -> None:
    given = [
        *(Variable(np.zeros((5, 9)), name=f"a_long_name_{i}") for i in range(place)),
        culprit,
        Variable([1.0]),
    ]
    with pytest.raises(
        ArgumentTypeError, match=rf"^Shard {place} is {type(culprit).__name__} "
    ) as caught:
        sv.ShardedVariable(given)
    assert repr(culprit)[:20] in str(caught.value)


@pytest.mark.parametrize(
    ("shards", "said"),
    [
        ([Variable([1.0]), Variable([1])], "Shards 0 and 1 differ in dtype: float32 and int32"),
        ([Variable([[1.0]]), Variable([[1.0]]), Variable([1.0])], "Shards 0 and 2 differ in shape"),
        (
            [Variable(np.zeros((2, 3))), Variable(np.zeros((2, 4)))],
            "differ in shape behind the first axis",
        ),
        (
            [Variable([1.0]), Variable([1.0], trainable=False)],
            "differ in trainable property: True and False",
        ),
        ([Variable(1.0)], "is a scalar"),
        ([Variable(1.0), Variable([1.0])], "is a scalar"),
        ([Variable([1.0], name="x")] * 2, "x is given twice"),
    ],
)
def test_shards_that_do_not_fit_are_refused_and_stay_free(shards: list[Any], said: str) -> None:
    """R-SV-4: the error names the first that does not fit."""
    with pytest.raises(ArgumentError, match=said):
        sv.ShardedVariable(shards)
    assert all(shard.container is None for shard in shards)


def test_a_variable_has_one_place_in_one_container() -> None:
    shard = Variable([1.0], name="x")
    first = sv.ShardedVariable([shard], name="first")
    with pytest.raises(LayoutError, match="x is a shard of first already"):
        sv.ShardedVariable([shard, Variable([2.0])])
    del first
    gc.collect()
    assert sv.ShardedVariable([shard]).shape == (1,), "where the container is gone it is free again"


def test_no_two_shards_share_a_buffer() -> None:
    array = counting((4, 2))
    sharded = sv.ShardedVariable([Variable(array[:2]), Variable(array[:2]), Variable(array)])
    sharded.variables[0].assign(np.zeros((2, 2), np.float32))
    assert sharded.numpy()[2:4].tolist() == array[:2].tolist() and array.all()
    buffers = [shard.resource.array for shard in sharded.variables]
    assert not any(np.shares_memory(a, b) for a in buffers for b in [*buffers, array] if a is not b)


def test_iteration_is_over_a_snapshot_that_nothing_else_holds() -> None:
    sharded = sharded_of(np.zeros((3, 2), np.float32), [1, 2])
    for row in sharded:
        row += 1
        sharded.assign_add(np.ones((3, 2), np.float32))
        assert row.tolist() == [1, 1]
    assert sharded.numpy().tolist() == [[3, 3]] * 3


def test_what_has_no_rows_is_not_iterated_over_and_nothing_has_a_length() -> None:
    """As an array without axes, which is a TypeError; an empty list would be a wrong answer."""
    with pytest.raises(TypeError, match="no len"):
        len(sharded_of(counting((3, 2)), [1, 2]))  # type: ignore[arg-type]
    for variable in (Variable(3.0), sv.Variable(3.0, name="w").assign(4.0)):
        with pytest.raises(ArgumentTypeError, match="no rows to iterate"):
            list(variable)


def test_one_element_is_converted_as_that_of_a_plain_variable_and_several_are_refused() -> None:
    for value in (0.0, 2.0):
        for one in (Variable([value]), sharded_of(np.array([value], np.float32), [0, 1])):
            assert bool(one) == bool(value)
    for several in (Variable(np.ones(3)), sharded_of(np.ones(3), [1, 2])):
        for convert in (bool, int, float, complex):
            with pytest.raises(ArgumentError, match="an array"):
                convert(several)


OPERATORS_OF_INTEGERS = [op.and_, op.or_, op.xor, op.lshift, op.rshift]


@pytest.mark.parametrize("operator", OPERATORS_OF_INTEGERS, ids=lambda each: each.__name__)
def test_an_operator_that_numpy_refuses_is_an_error_of_the_tree(operator: Any) -> None:
    """A TypeError as NumPy's, and a ValueError where TensorFlow's is an InvalidArgumentError."""
    array = np.ones((3, 2), np.float32)
    for variable in (Variable(array), sharded_of(array, [1, 2])):
        for pair in (
            (variable, variable),
            (variable, array),
            (array, variable),
            (variable, "x"),
            (variable, None),
        ):
            with pytest.raises(ArgumentTypeError) as caught:
                operator(*pair)
            assert (
                isinstance(caught.value, ValueError) and caught.value.cause and caught.value.remedy
            )
        with pytest.raises(ArgumentTypeError):
            ~variable  # noqa: B018


@pytest.mark.parametrize(
    "operator", [op.add, op.sub, op.mul, op.matmul, op.lt, op.eq, op.ne, op.floordiv, np.maximum]
)
def test_shapes_that_do_not_combine_are_an_error_of_the_tree(operator: Any) -> None:
    for variable in (Variable(np.ones((3, 2))), sharded_of(np.ones((3, 2)), [1, 2])):
        for pair in ((variable, np.ones((4, 5))), (np.ones((4, 5)), variable)):
            with pytest.raises(ArgumentError, match=r"\(4, 5\)"):
                operator(*pair)


def test_every_public_method_of_a_variable_is_one_of_a_sharded_variable_with_the_same_arguments() -> (
    None
):
    """R-VAR-3 (RFC 000): "By conforming to the variable interface, we could also easily swap the
    implementation"."""
    members = {"read_value": None} | vars(VariableInterface)
    names = [
        name
        for name, member in members.items()
        if not name.startswith("_") and not isinstance(member, property)
    ]
    assert {"read_value", "assign_add", "scatter_add", "sparse_read", "gather_nd"} <= set(names)
    for name in names:
        plain, sharded = getattr(sv.Variable, name), getattr(sv.ShardedVariable, name)
        assert (
            inspect.signature(plain).parameters.keys()
            == inspect.signature(sharded).parameters.keys()
        ), name
    for name in ("shape", "dtype", "name", "trainable"):
        assert isinstance(inspect.getattr_static(sv.ShardedVariable, name), property)


def test_it_is_a_variable() -> None:
    """R-VAR-9 (RFC 003): "Implement PartitionedVariable as a subclass of the tf.Variable
    interface"."""
    sharded = sharded_of(counting((3,)), [1, 2])
    assert isinstance(sharded, sv.Variable) and isinstance(sharded, sv.Trackable)
    assert issubclass(sv.ShardedVariable, sv.Variable) and sharded.container is None
    assert sharded.device is sharded.devices[0]
    for absent in (
        "ref",
        "handle",
        "save_slice_info",
        "scatter_nd_update",
        "get_shape",
        "op",
        "initializer",
    ):
        assert not hasattr(sharded, absent)


def test_copies() -> None:
    sharded = sharded_of(counting((3, 2)), [1, 2])
    shallow, deep = copy.copy(sharded), copy.deepcopy(sharded)
    sharded.assign_add(np.ones((3, 2), np.float32))
    assert (
        shallow.numpy().tolist() == sharded.numpy().tolist()
        and shallow.variables == sharded.variables
        and shallow.variables is not sharded.variables
    )
    assert deep.numpy().tolist() == counting((3, 2)).tolist() and deep.devices == sharded.devices
    assert [shard.name for shard in deep.variables] == ["w/part_0", "w/part_1"] and deep.variables[
        0
    ].container is deep
    held = copy.deepcopy({"a": sharded, "b": sharded})
    assert held["a"] is held["b"]


def test_repr_names_shards_and_devices_and_reads_nothing() -> None:
    assert repr(sharded_of(counting((3, 2)), [1, 2])) == (
        "<sv.ShardedVariable 'ShardedVariable' shape=(3, 2) dtype=float32 of "
        "w/part_0 (1, 2) on /job:ps/replica:0/task:0/device:CPU:0, "
        "w/part_1 (2, 2) on /job:ps/replica:0/task:1/device:CPU:0>"
    )


@pytest.mark.parametrize(
    "expression",
    [
        "s + 1", "1 - s", "s * s", "s / 2", "7 // s", "s % 3", "divmod(s, 2)[1]", "s ** 2", "2 ** s", "-s", "+s",
        "abs(s)", "s < 3", "s <= s", "s > 3", "3 >= s", "s @ np.ones((2, 1))", "np.ones((1, 5)) @ s",
        "np.sum(s)", "np.mean(s, axis=0)", "np.concatenate([s, s])", "np.where(s > 3, s, 0)", "np.stack((s, s))",
        "np.linalg.norm(s)", "np.einsum('ij,kj->ik', s, s)", "np.sort(s, axis=1)", "np.zeros_like(s)", "np.shape(s)",
        "np.ndim(s)", "np.size(s)", "np.add.reduce(s)", "np.multiply.outer(s, [1, 2])", "np.asarray(s, 'float64')",
        "np.isclose(s, s)", "np.array_split(s, 2)[0]", "np.take(s, [1, 0], axis=0)", "s.astype('int8')",
        "s == s", "s != 2", "s & 3", "3 | s", "s ^ 1", "~s", "s << 1", "64 >> s",
    ],
)  # fmt: skip
def test_python_and_numpy_on_shards_are_as_on_the_whole(expression: str) -> None:
    """R-VAR-1. R-CONCAT-1 (RFC 000): "This allows any Python op to accept sharded variable
    objects"."""
    array = counting((5, 2), np.int32)
    found = eval(expression, {"np": np, "s": sharded_of(array, [2, 0, 3])})  # noqa: S307 - the words above
    wanted = eval(expression, {"np": np, "s": array})  # noqa: S307
    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))
    assert not isinstance(found, sv.ShardedVariable)


@given(st.sampled_from(["assign", "assign_add", "assign_sub"]), sharded_arrays(), st.booleans())
def test_dense_writes_are_numpys_and_return_the_container(
    verb: str, pair: tuple[Array, sv.ShardedVariable], from_sharded: bool
) -> None:
    """R-SV-3, R-ASSIGN-2."""
    array, sharded = pair
    value = counting(array.shape) * 3
    given_value = sharded_of(value, [len(value)]) if from_sharded else value
    assert getattr(sharded, verb)(given_value, read_value=False) is sharded
    wanted = {"assign": value, "assign_add": array + value, "assign_sub": array - value}[verb]
    np.testing.assert_array_equal(sharded.numpy(), wanted)


@given(sharded_arrays(), st.data())
def test_gather_nd_addresses_the_first_axes(
    pair: tuple[Array, sv.ShardedVariable], data: st.DataObject
) -> None:
    array, sharded = pair
    depth = data.draw(st.integers(1, array.ndim))
    if 0 in array.shape[:depth]:
        return
    one = st.tuples(*(st.integers(0, extent - 1) for extent in array.shape[:depth]))
    indices = np.array(data.draw(st.lists(one, max_size=6)), int).reshape(-1, depth)
    np.testing.assert_array_equal(sharded.gather_nd(indices), array[tuple(indices.T)])
