"""Bad input, item by item: one clear error of the tree, that says what and what to do, before any
shard changes."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar import nn
from shardvar.errors import ShardvarError
from shardvar.reference.devices import Device
from shardvar.reference.variables import (
    AggregatingVariable,
    MirroredVariable,
    PerReplica,
    Variable,
    create_sharded_variable,
)
from shardvar.reference.variables import initializers as init
from spec_tests.helpers.sharded_variables import counting, sharded_of

NAN, INF = float("nan"), float("inf")
slices = sv.IndexedSlices
ROWS, COLUMNS = 5, 2


class Given:
    """What a case works on: a sharded variable, a plain one, a mirrored one, an optimizer; none of
    it may change."""

    def __init__(self) -> None:
        self.s = sharded_of(counting((ROWS, COLUMNS)), [2, 0, 3])
        self.i = sharded_of(counting((ROWS, COLUMNS), np.int32), [2, 3])
        self.t = sharded_of(np.array([b"a", b"b", b"c"], object), [1, 2])
        self.v = Variable(counting((ROWS, COLUMNS)), name="v")
        self.m = MirroredVariable([Variable(counting((ROWS, COLUMNS))) for _ in range(2)], "SUM")
        self.a = AggregatingVariable(sharded_of(counting((ROWS, COLUMNS)), [4, 1]), "MEAN")
        self.o = sv.optimizers.SGD(0.1)

    def state(self) -> list[Any]:
        """The value of every shard and copy, and who contains it."""
        sharded = [self.s, self.i, self.t, self.a.variable]
        variables = [
            self.v,
            *self.m.copies,
            *(shard for each in sharded for shard in each.variables),
        ]
        return [(v.numpy().tolist(), v.shape, str(v.dtype), v.container) for v in variables]


def of_each(act: Callable[[Any], Any]) -> list[Callable[[Given], Any]]:
    """The same of a sharded, a plain, a mirrored and an aggregating variable: there is one rule for
    all."""
    return [partial(lambda g, kind: act(getattr(g, kind)), kind=kind) for kind in "svma"]


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


def made(initial_value: Any, cut: Any = 2, **kwargs: Any) -> Callable[[Given], Any]:
    return lambda g: create_sharded_variable(initial_value, cut, **kwargs)


def answering(answer: Any) -> Callable[[Given], Any]:
    return made(counting((4, 2)), lambda shape, dtype: answer)


CASES: dict[str, list[tuple[type[Exception], str, list[Callable[[Given], Any]]]]] = {
    "wrong shapes": [
        (ValueError, r"shape \(4, 2\).*\(5, 2\)", of_each(lambda x: x.assign(ones(4, 2)))),
        (ValueError, r"shape \(6, 2\)", of_each(lambda x: x.assign(ones(6, 2)))),
        (ValueError, r"shape \(5, 3\)", of_each(lambda x: x.assign_add(ones(5, 3)))),
        (ValueError, r"shape \(5, 1\)", of_each(lambda x: x.assign_sub(ones(5, 1)))),
        (ValueError, r"shape \(\)", of_each(lambda x: x.assign_add(1.0))),
        (ValueError, r"shape \(5, 2, 1\)", of_each(lambda x: x.assign(ones(5, 2, 1)))),
        (
            ValueError,
            r"shape \(1, 3\).*\(1, 2\)",
            of_each(lambda x: x.scatter_add(slices(ones(1, 3), [0]))),
        ),
        (
            ValueError,
            r"shape \(3, 2\).*indices \(1,\)",
            of_each(lambda x: x.scatter_update(slices(ones(3, 2), [0]))),
        ),
        (
            ValueError,
            "1 axis|rank 1|one axis",
            of_each(lambda x: x.scatter_add(slices(ones(1, 1, 2), [[0]]))),
        ),
        (ValueError, "do not address", of_each(lambda x: x.gather_nd([[0, 0, 0]]))),
        (ValueError, r"3 indices are too many", of_each(lambda x: x[0, 0, 0])),
        (IndexError, r"mask of shape \(4,\) does not", of_each(lambda x: x[np.ones(4, bool)])),
        (IndexError, r"fit the axes \(2,\)", of_each(lambda x: x[:, np.ones(5, bool)])),
        (IndexError, "[Ss]hape mismatch", of_each(lambda x: x[[0, 1], [0, 1, 0]])),
        (IndexError, "axis 5", of_each(lambda x: np.sum(x, axis=5))),
        (ValueError, "reshape", of_each(lambda x: np.reshape(x, (4, 4)))),
        (ValueError, "inhomogeneous", of_each(lambda x: x.assign([[1.0, 2.0], [3.0]]))),
        (
            ValueError,
            r"batch|shape",
            of_each(lambda x: x.batch_scatter_update(slices(ones(2, 1), [[0], [1]]))),
        ),
        (
            ValueError,
            "",
            [lambda g: sv.matmul(ones(3, 4), g.s), lambda g: sv.matmul(g.s, ones(3, 4))],
        ),
        (ValueError, "", [lambda g: slices(ones(2, 2), [[0], [1, 2]])]),
        (ValueError, "shape", [lambda g: g.o.apply_gradients([(ones(3, 2), g.s.variables[0])])]),
    ],
    "wrong dtypes": [
        (
            ValueError,
            "complex64.*float32",
            of_each(lambda x: x.assign(ones(5, 2, dtype=np.complex64))),
        ),
        (
            ValueError,
            "float32.*int32",
            [lambda g: g.i.assign(ones(5, 2)), lambda g: g.i.scatter_add(slices(ones(1, 2), [0]))],
        ),
        (ValueError, "do not fit int32", [lambda g: g.i.assign(np.full((5, 2), 2**40))]),
        (ValueError, "string.*float32", of_each(lambda x: x.assign(np.full((5, 2), "a")))),
        (ValueError, "float32.*string", [lambda g: g.t.assign(ones(3))]),
        (ValueError, "cannot add values", [lambda g: g.t.assign_add(["a", "b", "c"])]),
        (ValueError, "cannot add values", [lambda g: g.t.scatter_add(slices(["a"], [0]))]),
        (ValueError, "cannot max", [lambda g: g.t.scatter_max(slices(["a"], [0]))]),
        (ValueError, "cannot add", [lambda g: Variable([True, False]).assign_add([True, True])]),
        (TypeError, "Python objects", of_each(lambda x: x.assign([[object()] * 2] * 5))),
        (ValueError, "'nonesuch' is not known", [lambda g: Variable([1.0], dtype="nonesuch")]),
        (TypeError, "Invalid dtype 3", [lambda g: Variable([1.0], dtype=3)]),
        (ValueError, "max_norm", [lambda g: nn.embedding_lookup(g.i, [0], max_norm=1.0)]),
        (ValueError, "add", [lambda g: sharded_of(np.ones(3, np.int8), [1, 2]) + 1000]),
        (TypeError, "IndexedSlices", of_each(lambda x: x.scatter_add(ones(5, 2)))),
        (TypeError, "IndexedSlices", of_each(lambda x: x.batch_scatter_update((1, 2)))),
        (ValueError, "", [lambda g: Variable([[1, 2], [3]]), lambda g: Variable([None])]),
        (ValueError, "", [lambda g: Variable(object()), lambda g: Variable({})]),
    ],
    "wrong ids": [
        (IndexError, r"5.*\b5\b", of_each(lambda x: x.sparse_read([0, 5]))),
        (IndexError, "7", of_each(lambda x: x.scatter_update(slices(ones(2, 2), [0, 7])))),
        (IndexError, "9", of_each(lambda x: x.gather_nd([[0, 0], [9, 1]]))),
        (ValueError, "is a scalar and has no rows", [lambda g: Variable(1.0).sparse_read([0])]),
        (IndexError, "5", of_each(lambda x: x[5])),
        (IndexError, "Index -6 is out of range for axis 0", of_each(lambda x: x[-6])),
        (IndexError, "2", of_each(lambda x: x[0, 2])),
        (IndexError, "Index 5 is out of range", of_each(lambda x: x[[0, 5]])),
        (ValueError, "step 0", of_each(lambda x: x[0:5:0])),
        (TypeError, "integers", of_each(lambda x: x.sparse_read([0.5]))),
        (TypeError, "integers", of_each(lambda x: x.scatter_add(slices(ones(1, 2), [True])))),
        (TypeError, "Invalid index", of_each(lambda x: x[1.5])),
        (TypeError, r"Invalid index \[0.5\]", of_each(lambda x: x[[0.5]])),
        (TypeError, "0.5 must be an integer", of_each(lambda x: x[0.5:2])),
        (TypeError, "Invalid index", of_each(lambda x: x[{1: 2}])),
        (TypeError, "", of_each(lambda x: x.sparse_read(["a"]))),
        (TypeError, "", of_each(lambda x: x.sparse_read(None))),
        (
            IndexError,
            r"9223372036854775807",
            of_each(lambda x: x.sparse_read(np.array([2**63 - 1]))),
        ),
        (
            IndexError,
            r"18446744073709551615",
            of_each(lambda x: x.sparse_read(np.array([2**64 - 1], np.uint64))),
        ),
    ],
    "negative ids": [
        (IndexError, "-1", of_each(lambda x: x.sparse_read([0, -1]))),
        (IndexError, "-1", of_each(lambda x: x.scatter_add(slices(ones(1, 2), [-1])))),
        (IndexError, "-1", of_each(lambda x: x.gather_nd([[-1]]))),
        (IndexError, "-1", of_each(lambda x: x.batch_scatter_update(slices(ones(1, 2), [-1])))),
    ],
    "division by zero": [
        (ValueError, "zero", of_each(lambda x: x.scatter_div(slices([[1.0, 0.0]], [0])))),
        (ValueError, "zero", [lambda g: g.i.scatter_div(slices([[1, 0]], [4]))]),
    ],
    "two containers": [
        (ValueError, "", [lambda g: sv.ShardedVariable([g.s.variables[0]])]),
        (ValueError, "", [lambda g: sv.ShardedVariable([g.v, g.v])]),
        (ValueError, "one variable", [lambda g: MirroredVariable([g.v, g.v])]),
        (ValueError, "", [lambda g: setattr(sv.Module(), "x", g.s.variables[0])]),
        (ValueError, "", [lambda g: setattr(sv.Module(), "x", {"a": (g.s.variables[0],)})]),
    ],
    "what is no container": [
        (TypeError, "non-empty|Shard 0 is", [lambda g, wrong=wrong: sv.ShardedVariable(wrong)])
        for wrong in (None, [], "ab", 3, [1.0], {})
    ],
    "partitioners that return nonsense": [
        (ValueError, re.escape(str(answer)), [answering(answer)])
        for answer in (
            [],
            (),
            [0, 1],
            [-1, 1],
            [2, 2],
            [1, 2],
            [2.5, 1],
            [NAN, 1],
            [2, 1, 1],
            "ab",
            [None],
            3.0,
            {},
            [True, 1.5],
        )
    ]
    + [
        (
            ValueError,
            "",
            [
                answering(sv.PartitionSpec(splits=[[1, 1], [2]])),
                answering(sv.PartitionSpec(partitions=[2, 2])),
            ],
        ),
        (
            ValueError,
            "",
            [
                lambda g: sv.PartitionSpec(partitions=[2], splits=[[2]]),
                lambda g: sv.PartitionSpec(),
            ],
        ),
        (TypeError, "not callable", [lambda g: sv.ParameterServerStrategy(2, 3)]),
        (
            TypeError,
            "cannot be called",
            [made(counting((4, 2)), lambda: [1]), made(counting((4, 2)), lambda shape: [1])],
        ),
        (ValueError, "", [made(counting((4, 2)), sv.Partition.from_counts((4, 2), [1, 2]))]),
        (ValueError, "", [made(counting((4, 2)), sv.Partition.from_counts((5, 2), [2, 1]))]),
    ],
    "initializers that lie": [
        (
            ValueError,
            r"\(1, 2\).*\(2, 2\)",
            [made(lambda partition: ones(1, 2), shape=(4, 2), dtype="float32")],
        ),
        (
            ValueError,
            "complex64",
            [made(lambda partition: ones(2, 2, dtype=np.complex64), shape=(4, 2), dtype="float32")],
        ),
        (
            ValueError,
            r"\(9, 2\).*\(4, 2\)",
            [made(lambda: ones(9, 2), shape=(4, 2), dtype="float32")],
        ),
        (
            ValueError,
            "no value|None|initial value",
            [made(lambda: None), made(None), lambda g: Variable(None)],
        ),
        (
            ValueError,
            "int32|float32",
            [made(lambda partition: ones(2, 2), shape=(4, 2), dtype="int32")],
        ),
        (ValueError, r"\(2,\)", [lambda g: Variable([1.0, 2.0], shape=(3,))]),
        (
            ValueError,
            "negative",
            [lambda g: Variable([1.0], shape=(-1,)), lambda g: init.Zeros()((-1, 2))],
        ),
        (ValueError, "", [made(init.Constant([1.0, 2.0, 3.0]), shape=(4, 2), dtype="float32")]),
        (ValueError, "", [made(init.RandomUniform(seed=1), shape=(4, 2), dtype="string")]),
        (TypeError, "", [lambda g: Variable([1.0], shape="ab"), lambda g: Variable([1.0], name=3)]),
    ],
    "what replicas disagree about": [
        (
            ValueError,
            "an aggregation",
            [lambda g: MirroredVariable([Variable(1.0)]).assign(PerReplica([1.0, 2.0]))],
        ),
        (
            TypeError,
            "arrays",
            [lambda g: g.m.assign_add(PerReplica([slices(ones(1, 2), [0]), ones(5, 2)]))],
        ),
        (ValueError, "", [lambda g: g.m.assign_add(PerReplica([ones(5, 2), ones(4, 2)]))]),
        (ValueError, "devices", [lambda g: PerReplica([])]),
        (ValueError, "2 values are on 1 dev", [lambda g: PerReplica([1, 2], [Device("GPU:0")])]),
        (ValueError, "The copies differ", [lambda g: MirroredVariable([g.v, Variable([1.0])])]),
        (TypeError, "non-empty list of", [lambda g: MirroredVariable([])]),
        (TypeError, "non-empty list of", [lambda g: MirroredVariable([3])]),
        (TypeError, "AggregatingVariable is", [lambda g: AggregatingVariable(3, "SUM")]),
    ],
}


@pytest.mark.parametrize(
    ("error", "said", "act"),
    [
        pytest.param(error, said, act, id=f"{item}-{number}-{place}")
        for item, cases in CASES.items()
        for number, (error, said, acts) in enumerate(cases)
        for place, act in enumerate(acts)
    ],
)
def test_bad_input_is_one_clear_error_and_nothing_changes(
    error: type[Exception], said: str, act: Callable[[Given], Any]
) -> None:
    """R-VAR-2: nothing is broadcast, nothing cropped."""
    given = Given()
    before = given.state()
    with pytest.raises(error) as raised:
        act(given)
    assert isinstance(raised.value, ShardvarError), "of the tree"
    message = str(raised.value)
    assert re.search(said, message, re.DOTALL), message
    assert re.fullmatch(r"\S.*\.", message, re.DOTALL), "sentences"
    assert given.state() == before


@pytest.mark.parametrize("sizes", [[0], [0, 0, 0]])
def test_empty_everything_is_no_error(sizes: list[int]) -> None:
    for shape in ((0,), (0, 2), (0, 0)):
        sharded = sharded_of(np.zeros(shape, np.float32), sizes)
        none = slices(np.zeros(shape, np.float32), np.zeros(0, int))
        assert sharded.scatter_add(none).batch_scatter_update(none) is sharded
        found = [sharded[np.zeros(0, bool)], sharded[[]], sharded + 1]
        assert [value.shape for value in found] == [shape] * len(found)
        assert np.sum(sharded) == 0 and np.concatenate([sharded, sharded]).shape == shape
    table = sharded_of(np.zeros((0, 2), np.float32), sizes)
    assert nn.embedding_lookup(table, np.zeros((3, 0), int)).shape == (3, 0, 2)
    empty = nn.SparseTensor(np.zeros((0, 2), int), np.zeros(0, int), (0, 3))
    assert nn.embedding_lookup_sparse(table, empty, None).shape == (0, 2)
