"""The plain variable: interface, factory, snapshots, assignments, threads, devices."""

import copy
import gc
import inspect
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import shardvar as sv
from shardvar.errors import (
    AbstractClass,
    ArgumentError,
    ArgumentTypeError,
    OutOfRange,
    ScopeError,
)
from shardvar.reference.devices import Device, device_scope, track_transfers
from shardvar.reference.variables import (
    RefVariable,
    ResourceVariable,
    UnreadVariable,
    Variable,
    variable_operations,
)
from shardvar.reference.variables.interface import VariableInterface
from shardvar.reference.variables.values import ADD, REPLACE, Write, commit
from shardvar.reference.variables.variable import VariableSynchronization
from spec_tests.helpers.sharded_variables import UserVariable, counting

WRITES = {
    "assign": lambda old, value: value,
    "assign_add": lambda old, value: old + value,
    "assign_sub": lambda old, value: old - value,
}


def three(**kwargs: Any) -> Any:
    return Variable(np.array([1, 2, 3], np.float32), **kwargs)


def test_calling_variable_makes_a_resource_variable() -> None:
    """R-VAR-6: "the default implementation of the tf.Variable interface will be
    ResourceVariable"."""
    variable = sv.Variable([1.0])
    assert (
        type(variable) is ResourceVariable
        and isinstance(variable, sv.Variable)
        and isinstance(variable, sv.Trackable)
    )


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (1.5, "float32", ()),
        (3, "int32", ()),
        (2**40, "int64", ()),
        (True, "bool", ()),
        ([[1, 2], [3, 4]], "int32", (2, 2)),
        (np.float64(1.5), "float64", ()),
        (np.zeros((2, 0), np.int8), "int8", (2, 0)),
        (np.array([1.0, 2.0], ">f4"), "float32", (2,)),
        (["a", b"bc"], "object", (2,)),
        (1j, "complex128", ()),
    ],
)
def test_a_value_has_the_dtype_that_a_reader_of_numpy_or_tensorflow_expects(
    value: Any, dtype: str, shape: tuple[int, ...]
) -> None:
    variable = Variable(value)
    assert (str(variable.dtype), variable.shape) == (dtype, shape)
    assert variable.dtype.isnative


def test_a_dtype_by_name_casts_the_initial_value() -> None:
    assert str(Variable([1, 2], dtype="bfloat16").dtype) == "bfloat16"
    assert Variable(lambda: [1, 2], dtype=np.float64).dtype == np.float64
    with pytest.raises(ArgumentError, match="has dtype float64, and the variable int32"):
        Variable(np.array([1.5]), dtype="int32")


@given(
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)),
    st.data(),
)
def test_reads_are_snapshots(value: Any, data: st.DataObject) -> None:
    """R-READ-2 (RFC 003): "no mutation is done to the Tensor returned by a read_variable_op after
    it's been read"."""
    variable = Variable(value)
    reads = [
        variable.read_value(),
        variable.value(),
        variable.numpy(),
        np.asarray(variable),
        variable[...],
    ]
    for verb in data.draw(st.lists(st.sampled_from(sorted(WRITES)), max_size=3)):
        getattr(variable, verb)(np.ones_like(value))
    for read in reads:
        np.testing.assert_array_equal(read, value)


@pytest.mark.parametrize("verb", WRITES)
def test_a_write_returns_a_variable_that_reads_when_asked_or_nothing(verb: str) -> None:
    """R-ASSIGN-1 (RFC 003): "Implement the subclass to be returned from tf.assign*"."""
    variable = three()
    returned = getattr(variable, verb)([1.0, 1.0, 1.0])
    assert (
        isinstance(returned, UnreadVariable)
        and isinstance(returned, Variable)
        and returned is not variable
    )
    assert (
        returned.name == variable.name and returned.trainable and returned.device is variable.device
    )
    variable.assign([7.0, 8.0, 9.0])
    assert returned.numpy().tolist() == [7, 8, 9], "it is no snapshot"
    returned.assign_add([1.0, 1.0, 1.0]).scatter_add(sv.IndexedSlices([10.0], [0]))
    assert variable.numpy().tolist() == [18, 9, 10], "writes are chained"
    assert getattr(variable, verb)([0.0, 0.0, 0.0], read_value=False) is None


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        ("float32", np.array([1.0]), True),
        ("float32", np.array([1]), True),
        ("bfloat16", np.array([1.0], np.float32), True),
        ("float32", np.array([True]), True),
        ("complex64", np.array([1.0]), True),
        ("int32", np.array([1.0], np.float32), False),
        ("float32", np.array([1j]), False),
        ("bool", np.array([1]), False),
        ("float32", np.array(["a"]), False),
        ("string", np.array([1]), False),
        ("int8", np.array([300]), False),
        ("uint8", np.array([-1]), False),
        ("int8", np.array([-3], np.int64), True),
    ],
)
def test_a_value_is_cast_where_its_kind_allows_and_refused_otherwise(
    dtype: str, value: Any, fits: bool
) -> None:
    variable = Variable(
        np.array([b"x"], object) if dtype == "string" else [0] if dtype != "bool" else [False],
        dtype=dtype,
    )
    before = variable.numpy().tolist()
    if fits:
        assert complex(variable.assign(value).numpy()[0]) == complex(value[0])
    else:
        with pytest.raises(ArgumentError, match=r"Convert it first|do not fit"):
            variable.assign(value)
        assert variable.numpy().tolist() == before


def test_a_shape_with_none_takes_values_of_any_size_there() -> None:
    server, worker = Device("ps:0"), Device("worker:0")
    variable = Variable([1.0], shape=[None], device=server)
    with device_scope(worker), track_transfers() as ledger:
        assert variable.assign([1.0, 2.0]).shape == (2,) and variable.shape == (2,)
    (moved,) = ledger.transfers
    assert (moved.source, moved.target, moved.nbytes) == (worker.name, server.name, 8)
    variable.assign_add([1.0, 1.0])
    with pytest.raises(ArgumentError, match="Expected"):
        variable.assign_add([1.0])
    with pytest.raises(ArgumentError, match="Expected"):
        variable.assign([[1.0]])
    with pytest.raises(ArgumentError, match="initial value of Variable has shape"):
        Variable([1.0, 2.0], shape=[3])
    for wrong in ([-1], 3, ["a"]):
        with pytest.raises(ArgumentError):
            Variable([1.0], shape=wrong)


@pytest.mark.parametrize(
    ("kind", "kwargs", "trainable"),
    [
        (Variable, {}, True),
        (Variable, {"trainable": None}, True),
        (Variable, {"trainable": False}, False),
        (Variable, {"synchronization": "ON_READ"}, False),
        (Variable, {"synchronization": "ON_READ", "trainable": True}, True),
        (RefVariable, {}, True),
        (RefVariable, {"trainable": None}, True),
        (RefVariable, {"trainable": False}, False),
    ],
)
def test_a_variable_is_trainable_unless_it_is_synchronized_on_read(
    kind: Any, kwargs: dict[str, Any], trainable: bool
) -> None:
    assert kind(1.0, **kwargs).trainable is trainable


def test_batch_scatter_update_updates_every_batch() -> None:
    variable = Variable(np.zeros((2, 3), np.float32))
    variable.batch_scatter_update(sv.IndexedSlices([[1.0, 2.0], [3.0, 4.0]], [[0, 2], [1, 1]]))
    assert variable.numpy().tolist() == [[1, 0, 2], [0, 4, 0]]
    with pytest.raises(OutOfRange, match="Index 3 at"):
        variable.batch_scatter_update(sv.IndexedSlices([[9.0], [9.0]], [[0], [3]]))
    with pytest.raises(ArgumentError, match="The batch"):
        variable.batch_scatter_update(sv.IndexedSlices([[9.0]], [[0]]))
    assert variable.numpy().tolist() == [[1, 0, 2], [0, 4, 0]]


@pytest.mark.parametrize(
    "write",
    [
        lambda variable: np.add(variable, 1, out=variable),
        lambda variable: np.add.at(variable, 0, 1),
        lambda variable: np.copyto(variable, 0),
        lambda variable: np.put(variable, 0, 1),
        lambda variable: np.cumsum(variable, out=variable),
    ],
)
def test_numpy_never_writes_through_a_variable(write: Any) -> None:
    variable = three()
    with pytest.raises(ArgumentTypeError, match="would write to a variable"):
        write(variable)
    with pytest.raises(ArgumentError, match="always a copy"):
        np.asarray(variable, copy=False)
    name = variable
    name += 1
    assert isinstance(name, np.ndarray) and variable.numpy().tolist() == [1, 2, 3]


def test_a_deep_copy_has_a_value_of_its_own_on_the_same_device() -> None:
    device = Device("ps:3")
    variable = three(name="w", device=device)
    twin = copy.deepcopy(variable)
    variable.assign([0.0, 0.0, 0.0])
    assert twin.numpy().tolist() == [1, 2, 3] and twin.name == "w" and twin.device is device
    assert twin.resource is not variable.resource
    assert copy.copy(variable).resource is variable.resource


def test_a_variable_is_made_on_the_current_device_or_where_another_is() -> None:
    device, other = Device("ps:0"), Device("ps:1")
    with device_scope(device):
        assert Variable(1.0).device is device
        assert Variable(1.0, device=other).device is other
        assert (
            Variable(1.0, device=device, colocated_with=Variable(2.0, device=other)).device is other
        )
        # A kind of one's own holds no resource, and is where it is used.
        assert Variable(1.0, device=other, colocated_with=UserVariable([1.0])).device is device
    with pytest.raises(ArgumentTypeError, match="colocated_with is 3"):
        Variable(1.0, colocated_with=3)


def test_reading_and_writing_move_the_value_once() -> None:
    server, worker = Device("ps:0"), Device("worker:0")
    with device_scope(worker):
        variable = Variable(np.zeros((10, 4), np.float32), device=server)
        with track_transfers() as ledger:
            variable.read_value()
            variable.assign(np.ones((10, 4), np.float32))
            variable.assign_add(np.ones((10, 4), np.float32))
            variable.sparse_read([3, 3, 7])
            variable.scatter_add(sv.IndexedSlices(np.ones((2, 4), np.float32), [9, 0]))
            _ = variable[2:5]
    counted = {
        name: (traffic.nbytes, traffic.messages) for name, traffic in ledger.operations.items()
    }
    assert counted == {
        "read_value": (160, 1),
        "assign": (160, 1),
        "assign_add": (160, 1),
        "sparse_read": (48, 1),
        "scatter_add": (32, 1),
        "getitem": (48, 1),
    }
    assert {(row.source, row.target) for row in ledger.transfers} == {
        (server.name, worker.name),
        (worker.name, server.name),
    }


def test_a_kind_of_variable_of_ones_own_needs_five_things() -> None:
    """R-VAR-5 (RFC 003): "users will be able to implement their own variable-like objects by
    subclassing"."""

    def creator(next_creator: Any, **kwargs: Any) -> Any:
        return UserVariable(np.float32(kwargs["initial_value"]))

    with sv.variable_creator_scope(creator):
        variable = sv.Variable(counting((4, 2)))
    assert isinstance(variable, UserVariable) and variable.trainable
    variable.assign_add(np.ones((4, 2)))
    variable.scatter_mul(sv.IndexedSlices(np.full((3, 2), 2.0), [3, 0, 3]))
    assert variable.writes == 2
    assert variable.numpy().tolist() == [[4, 6], [4, 5], [6, 7], [32, 36]]
    assert variable[1:3, 0].tolist() == [4, 6] and variable.sparse_read([3, 0]).tolist() == [
        [32, 36],
        [4, 6],
    ]
    assert (variable + 1).shape == (4, 2)
    whole = sv.ShardedVariable([variable, Variable(counting((1, 2)))])
    whole.scatter_add(sv.IndexedSlices(np.ones((2, 2)), [4, 1]))
    assert whole.numpy().tolist() == [[4, 6], [5, 6], [6, 7], [32, 36], [2, 3]]


def test_a_kind_that_lacks_a_method_is_abstract() -> None:
    """R-VAR-4 (RFC 003): "tf.Variable will become an abstract base class with a well-defined
    interface and a scoped factory to construct instances". An abstract class is refused where it is
    called, and not where the method is missed."""
    for name in VariableInterface.__abstractmethods__ - {"assign"}:
        member = inspect.getattr_static(VariableInterface, name)
        body = member.fget if isinstance(member, property) else member
        with pytest.raises(NotImplementedError):
            body(*[None] * body.__code__.co_argcount)
    have: dict[str, Any] = {
        "__init__": lambda self: None,
        "shape": (),
        "dtype": np.dtype(np.float32),
        "name": "v",
        "read_value": lambda self: np.float32(1),
        "assign": lambda self, value, *_, **__: None,
    }
    whole = type("Whole", (Variable,), have)
    assert inspect.isabstract(Variable) and not inspect.isabstract(whole)
    assert isinstance(whole(), Variable) and type("Child", (whole,), {})().read_value() == 1
    for name in have.keys() - {"__init__"}:
        kind = type("Kind", (Variable,), {key: have[key] for key in have if key != name})
        for error in (AbstractClass, TypeError, NotImplementedError):
            with pytest.raises(error, match=f"Kind is an abstract variable.* define {name}[.] "):
                kind()
        assert inspect.isabstract(kind)
        # The class that defines it is no longer abstract, and neither is one with a mixin of it.
        assert type("Kind", (kind,), {name: have[name]})()
        assert type("Kind", (type("Mixin", (), {name: have[name]}), kind), {})()
    # A kind that plans its writes needs no `assign`.
    planned = have | {"plan_writes": lambda *_: []}
    del planned["assign"]
    assert type("Planned", (Variable,), planned)().assign(2.0) is not None
    with pytest.raises(AbstractClass, match="Define __init__ in the class"):
        type("Bare", (Variable,), {key: have[key] for key in have if key != "__init__"})()


def test_the_signature_of_a_variable_is_that_of_its_factory() -> None:
    """`help` shows it, creators get its defaults, and Python's errors for a call speak of it."""
    assert list(inspect.signature(Variable).parameters)[:3] == [
        "initial_value",
        "trainable",
        "name",
    ]
    seen: list[dict[str, Any]] = []

    def creator(next_creator: Any, **kwargs: Any) -> Any:
        seen.append(kwargs)
        return next_creator(**kwargs)

    with sv.variable_creator_scope(creator):
        Variable([1.0], None, "v", device=None)
    assert seen[0].keys() == inspect.signature(Variable).parameters.keys() - {"more"} | {"device"}
    for call in (lambda: Variable(1, 2, 3, 4, 5), lambda: Variable(1, initial_value=2)):
        with pytest.raises(TypeError, match="argument"):
            call()


def test_low_level_operations_work_on_a_resource() -> None:
    """R-OPS-1 (RFC 003): "We will expose the internal ops used to implement ResourceVariable"."""
    ops = sv.variable_operations
    assert ops is variable_operations
    given = np.array([[1.0, 2.0], [3.0, 4.0]])
    handle = ops.variable_handle(given, Device("ps:0"))
    given += 9  # It has a copy.
    read = ops.read_variable_op(handle)
    ops.assign_add_variable_op(handle, np.ones((2, 2), np.float32))
    ops.assign_sub_variable_op(handle, np.full((2, 2), 2, np.float32))
    assert ops.resource_gather(handle, np.array([1, 0])).tolist() == [[2, 3], [0, 1]]
    ops.resource_scatter(handle, ADD, np.array([1, 1]), np.ones((2, 2), np.float32))
    ops.assign_variable_op(handle, ops.read_variable_op(handle) * 2)
    assert ops.read_variable_op(handle).tolist() == [[0, 2], [8, 10]] and read.tolist() == [
        [1, 2],
        [3, 4],
    ]
    with pytest.raises(ArgumentError, match="Expected"):
        ops.assign_variable_op(handle, [1.0])
    ops.destroy_resource(handle)
    assert handle.device.used == 0
    with pytest.raises(ScopeError, match="after its release"):
        ops.read_variable_op(handle)


def test_variables_are_written_by_methods_and_by_no_free_function() -> None:
    """R-ASSIGN-3 (RFC 003): "reading from and writing to variables will be done via methods"."""
    writes = [
        name for name in dir(Variable) if name.startswith(("assign", "scatter", "batch_scatter"))
    ]
    assert {"assign", "assign_add", "assign_sub", "scatter_add", "scatter_update"} <= set(writes)
    assert set(writes) & (set(sv.__all__) | set(sv.nn.__all__)) == set()


def test_a_scope_of_names_belongs_to_its_thread() -> None:
    names = []
    with sv.name_scope("a") as scope:
        thread = threading.Thread(target=lambda: names.append(Variable(1.0, name="w").name))
        thread.start()
        thread.join()
        assert (scope, Variable(1.0).name) == ("a/", "a/Variable")
    assert names == ["w"]
    with pytest.raises(ArgumentTypeError, match="Invalid name"), sv.name_scope(3):  # type: ignore[arg-type]
        pass


def test_nothing_is_collected_globally() -> None:
    """R-VAR-8 (RFC 003): "tf.Variable will not add the Variable to any collections by default"."""
    import weakref

    variable = three()
    gone = weakref.ref(variable)
    del variable
    gc.collect()
    assert gone() is None


def test_repr_names_what_it_is() -> None:
    assert repr(three(name="w")) == (
        "<sv.ResourceVariable 'w' shape=(3,) dtype=float32 value=array([1., 2., 3.], "
        "dtype=float32)>"
    )


def test_nobody_reads_in_between_the_writes_of_one_commit() -> None:
    """A write to many shards happens at once: a reader waits until the last of them is written."""
    first, second = Variable([0.0]), Variable([0.0])
    seen: list[list[float]] = []
    reader = threading.Thread(target=lambda: seen.append(first.numpy().tolist()))

    def write_second() -> None:
        reader.start()
        reader.join(0.2)  # as long as it may take who does not wait
        seen.append(["written"])

    commit(
        [*first.plan_writes(REPLACE, np.ones(1, np.float32)), Write(second.resources, write_second)]
    )
    reader.join()
    assert seen == [["written"], [1.0]]


def test_unsigned_integers_are_divided_with_every_digit() -> None:
    """A division in float64 would round what has more than 53 bits."""
    large = Variable(np.array([2**64 - 1, 2**63 + 1], np.uint64))
    large.scatter_div(sv.IndexedSlices(np.array([1, 1], np.uint64), [0, 1]))
    assert large.numpy().tolist() == [2**64 - 1, 2**63 + 1]


def test_the_numbers_of_synchronizations_and_aggregations_are_tensorflows() -> None:
    """They are in the configurations that it stores."""
    assert [each.value for each in VariableSynchronization] == [0, 1, 2, 3]
    assert [each.name for each in VariableSynchronization] == [
        "AUTO",
        "NONE",
        "ON_WRITE",
        "ON_READ",
    ]


def test_the_interface_itself_is_abstract() -> None:
    """A kind that does not derive from Variable defines all that it asks; Variable writes the last
    five in terms of the others."""
    asked = {"shape", "dtype", "name", "read_value"}
    derived = {"trainable", "plan_writes", "plan_row_writes", "_read_rows", "_written"}
    assert VariableInterface.__abstractmethods__ == asked | derived
    assert Variable.__abstractmethods__ == asked | {"assign"}
    with pytest.raises(TypeError, match="abstract"):
        VariableInterface()


def first_layers_gradient(first: Any, second: Any, x: float) -> float:
    """Two linear layers, y = (x * first) * second, trained on y itself; the second is updated
    before the first's gradient, which is x * second, is taken: nothing orders the two."""
    weight = second.read_value()
    hidden = x * float(first.read_value())
    second.assign_sub(np.float32(hidden))
    return x * float(weight)


def test_a_gradient_taken_at_a_value_that_an_update_has_changed_is_wrong() -> None:
    """R-REF-1 (RFC 003): "it would be possible for the value after the update to be used in the
    backward pass, leading to incorrect gradients".
    """
    assert first_layers_gradient(RefVariable(3.0), RefVariable(5.0), x=2.0) == 2.0 * (5.0 - 6.0)
    assert first_layers_gradient(ResourceVariable(3.0), ResourceVariable(5.0), x=2.0) == 2.0 * 5.0


def test_what_a_ref_variable_reads_and_returns_is_its_memory() -> None:
    """R-REF-1 (RFC 003): "two ops with the same input can see it having different values"."""
    variable = RefVariable([1.0, 2.0], name="r")
    read, returned = variable.read_value(), variable.assign_add([1.0, 1.0])
    assert read is returned and read.tolist() == [2, 3]
    assert (
        variable.assign_sub(np.ones(2)).tolist() == [1, 2]
        and variable.name == "r"
        and variable.trainable
    )
    with pytest.raises(ArgumentError, match="Expected"):
        variable.assign([1.0])
    with pytest.raises(ArgumentError, match="takes no shape"):
        RefVariable(1.0, shape=())


def test_a_creator_may_make_ref_variables() -> None:
    """R-REF-1 (RFC 003): "RefVariable will be kept in tf.compat.v1"; here whoever wants it asks for
    it."""
    with sv.variable_creator_scope(lambda next_creator, **kwargs: RefVariable(**kwargs)):
        assert type(sv.Variable(1.0)) is RefVariable
