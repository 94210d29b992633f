"""Level 4: initial values of shards are parts of one whole, and shards that are drawn differ."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from shardvar.conformance.calls import Calls, expect, expect_answer, expect_equal, text
from shardvar.conformance.rules import refuses, rule, rules
from shardvar.conformance.rules.cases import concatenated, expect_bits
from shardvar.layout.dtypes import Array, Shape
from shardvar.testing import counting

RANDOM = ("random_uniform", "random_normal", "truncated_normal", "glorot_uniform")
FLOAT32 = np.dtype(np.float32)
FLOATS = ("float32", "float64", "float16", "bfloat16")

# The functions ``whole`` and ``initial`` below as text, which the program of a counterexample defines.
WHOLE_SOURCE = """
calls = []
def whole(shape, dtype=np.float32):
    calls.append(shape)
    return np.arange(1, np.prod(shape) + 1, dtype=dtype).reshape(shape) + 1000 * (len(calls) - 1)
"""
INITIAL_SOURCE = """
def initial(shape, dtype=np.float32, part_shape=None, part_offset=None):
    print("asked for", part_shape, "at", part_offset)
    part_shape = part_shape or shape
    region = zip(part_offset or [0] * len(part_shape), part_shape)
    return value[tuple(slice(start, start + n) for start, n in region)].astype(dtype)
"""
OTHER_SOURCE = """
def whole(shape, dtype=np.float32, part_shape=None, part_offset=None):
    shape = part_shape or shape
    return np.ones((shape[0] + {}, *shape[1:]), dtype)
"""

InitialCase = tuple[str, tuple[int, ...], np.dtype[Any], int, int]


@st.composite
def draws(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = RANDOM,
    min_shards: int = 1,
    dtypes: tuple[str, ...] = FLOATS[:2],
) -> InitialCase:
    num_shards = draw(st.integers(min_shards, 4) | st.just(11))
    rows = num_shards * draw(st.integers(2, 4)) + draw(st.integers(0, num_shards - 1))
    kind = draw(st.sampled_from(kinds))
    rest = draw(st.sampled_from([(2,), (4,), (2, 3), ()][: 3 + (kind != "glorot_uniform")]))
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    return (
        kind,
        (rows, *rest),
        dtype,
        num_shards,
        draw(st.integers(0, 99) | st.sampled_from([2**11, 2**24])),
    )


@rule("R-INIT-5", "initialize", draws(min_shards=2))
def shards_differ(adapter: Calls, case: InitialCase) -> None:
    """The shards of a seeded random variable do not hold the same values, be it with other signs."""
    holders = dict[bytes, int]()
    for number, shard in enumerate(map(np.asarray, adapter.initialize(*case))):
        # A seed that is used twice shows in the first rows, a stream that is used twice in others. One
        # number may come twice by chance, and two numbers do not.
        for row in shard if shard.ndim > 1 else pairwise(shard):
            some = np.abs(row)
            holder = holders.setdefault(some.tobytes(), number)
            expect(
                holder == number,
                f"Shards {holder} and {number} both hold {some.tolist()}.",
                "They must differ.",
            )


@rule("R-INIT-5-again", "initialize", draws())
def seeds_are_deterministic(adapter: Calls, case: InitialCase) -> None:
    """The same seed, shape and number of shards give the same values again."""
    first = concatenated(adapter.initialize(*case))
    expect_equal(concatenated(adapter.initialize(*case)), first)


def check_parts(adapter: Calls, case: InitialCase) -> None:
    shards = adapter.initialize(*case)
    expect_few(shards, case[3], 0)
    value = concatenated(shards)
    asked, came = (case[1], str(case[2])), (value.shape, str(value.dtype))
    expect_answer(came, asked, "shape and dtype ")
    is_finite = bool(np.isfinite(value).all())
    expect(is_finite, f"It gave {value.tolist()}.", "All of it must be finite.")


rules(
    ("R-INIT-4", "initialize",
     draws(("zeros", "ones", *RANDOM), dtypes=FLOATS), check_parts,
     "The values of the shards have together the shape and the dtype that were asked for, and are finite"),
)  # fmt: skip


@rule("R-INIT-4-constants", "initialize", draws(("zeros", "ones")))
def constants_are_constant(adapter: Calls, case: InitialCase) -> None:
    """Zeros are zeros and ones are ones in every shard."""
    must = np.zeros(case[1], case[2]) if case[0] == "zeros" else np.ones(case[1], case[2])
    expect_bits(concatenated(adapter.initialize(*case)), must)


@rule("R-INIT-4-range", "initialize",
      draws(("random_uniform",)))  # fmt: skip
def uniform_is_in_range(adapter: Calls, case: InitialCase) -> None:
    """Uniform values lie between -0.05 and 0.05, and are not all the same."""
    value = concatenated(adapter.initialize(*case))
    inside = bool(((value >= -0.05) & (value <= 0.05)).all() and np.unique(value).size > 1)
    must = "It must give different values from -0.05 to 0.05."
    expect(inside, f"It gave {value.tolist()}.", must)


_WEIGHTS = ((64, 32), (96, 32), (24, 8, 16), (4, 6, 8, 16))


def glorot_limit(shape: Shape) -> float:
    return float(np.sqrt(6 / (prod(shape[:-2]) * sum(shape[-2:]))))


@rule("R-INIT-6", "initialize", [
    ("glorot_uniform", shape, FLOAT32, num_shards, seed)
    for shape, num_shards, seed in product(_WEIGHTS, (1, 2, 3, 4), (0, 5, 9))])  # fmt: skip
def fans_are_of_the_whole(adapter: Calls, case: InitialCase) -> None:
    """Glorot's limit, sqrt(6 / (in + out)), uses the last two axes of the whole shape, each times the
    product of the axes before them, however many shards there are."""
    shape, value = case[1], concatenated(adapter.initialize(*case))
    expect_answer(value.shape, shape, "the shape ")
    # At least 64 * 32 = 2,048 values: the chance that all lie below 0.9 of the limit is 0.9**2048,
    # under 1e-93. The mistake, the fans of one shard, shows: two shards of 32 rows give sqrt(6 /
    # 64), 22 % above sqrt(6 / 96).
    limit = glorot_limit(shape)
    came = float(np.abs(value).max())
    expect(
        0.9 * limit < came <= limit * (1 + 1e-6),
        f"Its largest of {value.size} absolute values is {came:.4f}.",
        f"It must be a little below {limit:.4f}.",
    )


@rule("R-INIT-4-axes", "initialize", [
    *product(("zeros", "ones", *RANDOM[:3]), (1, 2, 3), ((), (2, 3), (2, 1, 2, 2)))])  # fmt: skip
def tensors_of_any_rank_are_initialized(
    adapter: Calls, case: tuple[str, int, tuple[int, ...]]
) -> None:
    """Initial values of one to five axes have their shape, and random ones differ in each element."""
    kind, num_shards, rest = case
    shape = (2 * num_shards + 1, *rest)
    check_parts(adapter, (kind, shape, FLOAT32, num_shards, 1))
    value = concatenated(adapter.initialize(kind, shape, FLOAT32, num_shards, 1))
    count = np.unique(value).size
    # Two of fewer than 60 floats coincide in one run of 10,000; half of them never do.
    expect(
        kind in ("zeros", "ones") or count > value.size // 2,
        f"It gave {count} different values of {value.size}.",
        "They must differ.",
    )


@rule("R-INIT-5-seeds", "initialize",
      st.tuples(draws(), st.sampled_from([1, 2, 3, 2**16])))  # fmt: skip
def seeds_differ(adapter: Calls, case: tuple[InitialCase, int]) -> None:
    """Another seed gives other values; one element may be the same by chance."""
    (kind, shape, dtype, num_shards, seed), more = case
    first = concatenated(adapter.initialize(kind, shape, dtype, num_shards, seed))
    other = concatenated(adapter.initialize(kind, shape, dtype, num_shards, seed + more))
    expect(
        int((first == other).sum()) <= 1,
        f"The seeds {seed} and {seed + more} gave {first.tolist()} and {other.tolist()}.",
        "All elements but one must differ.",
    )


def expect_few(shards: Any, rows: int, more: int) -> None:
    expect(
        len(shards) in (rows, rows + more),
        f"There are {len(shards)} shards.",
        f"There must be {rows + more}, or a shard a row.",
    )


_FEW = [*product((1, 2, 3), (1, 2, 3))]


@rule("R-INIT-4-few-rows", "initialize", [*product(RANDOM, _FEW, (0, 99))])
def few_rows_are_initialized(adapter: Calls, case: tuple[str, tuple[int, int], int]) -> None:
    """With fewer rows than shards there are as many shards as were asked for, or one a row, and
    they make the shape."""
    kind, (rows, more), seed = case
    shards = adapter.initialize(kind, (rows, 3), FLOAT32, rows + more, seed)
    expect_few(shards, rows, more)
    expect_equal(np.zeros_like(concatenated(shards)), np.zeros((rows, 3), np.float32))


@rule("R-INIT-4-distributions", "initialize", [
    (kind, shape, np.dtype(name), num_shards, seed)
    for seed, (kind, shape, name, num_shards) in enumerate(
        product(RANDOM, ((96, 64), (24, 8, 32), (6144,)), FLOATS[:2], (1, 2, 3)))
    if kind != "glorot_uniform" or shape[1:]])  # fmt: skip
def values_have_their_distribution(adapter: Calls, case: InitialCase) -> None:
    """Many random values have the mean, the deviation and the ends of their distribution, hardly
    two of them are equal but for their sign, and they have no order."""
    kind, shape = case[:2]
    shards = adapter.initialize(*case)
    array, first = concatenated(shards).astype(np.float64), np.asarray(shards[0])
    limit = glorot_limit(shape)
    # The deviation, the bounds of the absolute value at either end, and the share of values that are
    # more than two deviations from 0. In 6,144 draws the normal values of one sign reach 2.8 deviations.
    spread, least, most, beyond = {
        "random_uniform": (0.05 / 3**0.5, 0.049, 0.05, 0.0),
        "glorot_uniform": (limit / 3**0.5, 0.98 * limit, limit, 0.0),
        "random_normal": (0.05, 0.14, np.inf, 0.0455),
        "truncated_normal": (0.05 * 0.8796, 0.09, 0.1, 0.0346),
    }[kind]
    above = float((np.abs(array) > 2 * spread).mean())
    # 6,144 values: the mean is off by 1.3 % of a deviation, and the deviation by 0.9 % of itself.
    for what, came, low, high in (
        ("mean", float(array.mean()), -0.1 * spread, 0.1 * spread),
        ("deviation", float(array.std()), 0.92 * spread, 1.08 * spread),
        ("largest value", float(array.max()), least, most * (1 + 1e-6)),
        ("least value", float(array.min()), -most * (1 + 1e-6), -least),
        ("share beyond two deviations", above, beyond / 2, 2 * beyond),
        ("share of different values", np.unique(np.abs(first)).size / first.size, 0.9, 1),
        *(
            ("share of rises", float((np.diff(array, axis=axis) > 0).mean()), 0.45, 0.55)
            for axis in range(len(shape))
        ),
    ):
        expect(
            low <= came <= high,
            f"The {what} of {array.size} values is {came:.4f}.",
            f"It must lie between {low:.4f} and {high:.4f}.",
        )


Shaped = tuple[tuple[int, ...], int]


@st.composite
def shaped(draw: st.DrawFn, min_shards: int = 1) -> Shaped:
    num_shards = draw(st.integers(min_shards, 4) | st.just(11))
    return (
        num_shards + draw(st.integers(0, 4)),
        *draw(st.sampled_from([(), (2,), (2, 3)])),
    ), num_shards


@rule("R-INIT-2", "initialize_whole", shaped())
def the_whole_is_sliced(adapter: Calls, case: Shaped) -> None:
    """An initializer that knows no partitions is called for the whole, and the shards are slices of
    one answer."""
    shape, num_shards = case
    calls: list[tuple[int, ...]] = []

    def whole(shape: Shape, dtype: npt.DTypeLike = np.float32) -> Array:
        calls.append(tuple(map(int, shape)))
        # Each call adds another 1,000, so that shards which come from different calls do not fit
        # together.
        value: Array = counting(calls[-1], dtype) + np.asarray(1000 * (len(calls) - 1), dtype)
        return value

    _define(adapter, whole, WHOLE_SOURCE)
    shards = adapter.initialize_whole(whole, shape, FLOAT32, num_shards)
    expect_few(shards, num_shards, 0)
    value = concatenated(shards)
    expect_answer(value.shape, shape, "the shape ")
    # Any of the calls may be used: 2,001 // 1,000 = 2 names it, and its offset is taken off.
    expect_equal(value - 1000 * (value.flat[0] // 1000), counting(shape))


@rule("R-INIT-4-parts", "initialize_parts", shaped())
def parts_are_asked_for(adapter: Calls, case: Shaped) -> None:
    """A partition-aware initializer is given parts whose values, put together, are the whole."""
    shape, num_shards = case
    shards = initial("initialize_parts", adapter, counting(shape), num_shards)
    expect_few(shards, num_shards, 0)
    expect_equal(concatenated(shards), counting(shape))


@rule("R-INIT-2-parts", "initialize_parts", shaped(min_shards=2))
def the_whole_is_never_made(adapter: Calls, case: Shaped) -> None:
    """A partition-aware initializer is never asked for the whole value where there are several
    shards."""
    shape, num_shards = case
    function, calls = _initializer(adapter, counting(shape))
    adapter.initialize_parts(function, shape, FLOAT32, num_shards)
    expect(
        shape not in calls,
        f"It was asked for values of the shapes {calls}.",
        f"It must not be asked for {shape}.",
    )


def check_other_shape(adapter: Calls, case: tuple[Shaped, int], method: str) -> None:
    (shape, num_shards), more = case

    def whole(shape: Any, dtype: Any = np.float32, part: Any = None, *_: Any) -> Array:
        rows, *rest = map(int, part or shape)
        return np.ones((rows + more, *rest), dtype)

    _define(adapter, whole, OTHER_SOURCE.format(more))
    adapter.refuses(method, whole, shape, FLOAT32, num_shards)


def _initializer(
    adapter: Calls, value: Array
) -> tuple[Callable[..., Array], list[tuple[int, ...]]]:
    """A callable that gives parts of an array, and the shapes that it was asked for."""
    calls: list[tuple[int, ...]] = []

    def initial(
        shape: Any, dtype: Any = np.float32, part_shape: Any = None, part_offset: Any = None
    ) -> Array:
        extents = tuple(map(int, shape if part_shape is None else part_shape))
        offset = tuple(map(int, part_offset if part_offset is not None else [0] * len(extents)))
        calls.append(extents)
        whole = tuple(map(int, shape))
        expect(whole == value.shape, f"It was told the shape {whole}.", f"It is {value.shape}.")
        region = tuple(slice(start, start + n) for start, n in zip(offset, extents, strict=True))
        # Where another dtype is asked for, the numbers are rounded or wrap.
        return value[region].astype(np.dtype(getattr(dtype, "as_numpy_dtype", dtype)))

    _define(adapter, initial, f"value = {text(value)}{INITIAL_SOURCE}")
    return initial, calls


def initial(method: str, adapter: Calls, given: Array, num_shards: int = 2) -> Any:
    """Initialize a variable by a callable that gives parts of an array."""
    function, _ = _initializer(adapter, given)
    return getattr(adapter, method)(function, given.shape, given.dtype, num_shards)


def _define(adapter: Calls, function: Callable[..., Any], source: str) -> None:
    adapter.note(source.strip())
    adapter.name(function, function.__name__)


def check_few_parts(adapter: Calls, case: tuple[int, int], method: str) -> None:
    value = counting((case[0], 2))
    shards = initial(method, adapter, value, sum(case))
    expect_few(shards, *case)
    expect_equal(concatenated(shards), value)


def check_none_initialized(adapter: Calls, count: int, method: str) -> None:
    function = adapter.name(lambda shape, dtype=FLOAT32, *_: np.ones(shape, dtype), "np.ones")
    adapter.refuses(method, function, (4, 2), FLOAT32, count)


rules(
    ("R-INIT-5-none", "initialize", [("zeros", (4, 2), FLOAT32, count, 0) for count in (0, -1)], refuses("initialize"),
     "`initialize` in fewer shards than one is refused"),
    *(row for name, method in (("R-INIT-2", "initialize_whole"), ("R-INIT-4-parts", "initialize_parts")) for row in (
        (f"{name}-few-rows", method, _FEW, partial(check_few_parts, method=method),
         f"With fewer rows than shards the shards of `{method}` make the whole"),
        (f"{name}-shape", method, st.tuples(shaped(), st.sampled_from([-1, 1])),
         partial(check_other_shape, method=method),
         f"An initializer that gives another shape is refused by `{method}`, also if NumPy would broadcast it"),
        (f"{name}-none", method, [0, -1], partial(check_none_initialized, method=method),
         f"`{method}` in fewer shards than one is refused"),
    )),
)  # fmt: skip
