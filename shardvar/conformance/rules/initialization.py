"""Level 4: initial values of shards are parts of one whole, and shards that are drawn differ."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from shardvar.conformance.calls import Calls, expect, expect_answer, expect_equal
from shardvar.conformance.rules import rule, rules
from shardvar.conformance.rules.cases import concatenated, expect_bits
from shardvar.layout.dtypes import Array
from shardvar.testing import counting

SEEDS = (
    "For seeded initializers, the seed must be changed deterministically for each shard, "
    "otherwise each shard will use the same values."
)
FULL_SHAPE = "`shape` is the full combined shape"
PARTITION = "`__call__(shape, dtype, partition)` returns the initial value of the partition."
WHOLE = (
    "If not, this initializer is not partition aware and we will go ahead creating the entire "
    "value and do slicing"
)
NOT_WHOLE = (
    "being able to initialize sharded variable without needing to create the entire initial value"
)
RANDOM = ("random_uniform", "random_normal", "truncated_normal", "glorot_uniform")
FLOAT32 = np.dtype(np.float32)
FLOATS = ("float64", "float16", "bfloat16")

# The functions ``whole`` and ``part`` below as text, which the program of a counterexample defines.
WHOLE_SOURCE = """
calls = []
def whole(shape, dtype=np.float32):
    calls.append(shape)
    return np.arange(1, np.prod(shape) + 1, dtype=dtype).reshape(shape) + 1000 * (len(calls) - 1)
"""
PART_SOURCE = """
def part(shape, dtype=np.float32, part_shape=None, part_offset=None):
    print("asked for", part_shape, "at", part_offset)
    region = tuple(slice(o, o + n) for o, n in zip(part_offset or (), part_shape or ()))
    return np.arange(1, np.prod(shape) + 1, dtype=dtype).reshape(shape)[region]
"""
# The same with large numbers, and with another number of rows.
LARGE_SOURCE = """
def part(shape, dtype=np.float32, part_shape=None, part_offset=None):
    region = tuple(slice(o, o + n) for o, n in zip(part_offset or (), part_shape or ()))
    return (np.arange(1, np.prod(shape) + 1).reshape(shape) + 2**40)[region].astype(dtype)
"""
OTHER_SOURCE = """
def whole(shape, dtype=np.float32):
    return np.ones((shape[0] + {}, *shape[1:]), dtype)
"""

InitialCase = tuple[str, tuple[int, ...], np.dtype[Any], int, int]


@st.composite
def draws(draw: st.DrawFn, kinds: tuple[str, ...] = RANDOM, min_shards: int = 1) -> InitialCase:
    num_shards = draw(st.integers(min_shards, 4))
    # Two rows of two columns for each shard at least: four random floats do not coincide by chance.
    rows = num_shards * draw(st.integers(2, 4)) + draw(st.integers(0, num_shards - 1))
    kind, columns = draw(st.sampled_from(kinds)), draw(st.integers(2, 4))
    return kind, (rows, columns), FLOAT32, num_shards, draw(st.integers(0, 99))


@rule("R-INIT-5", 4, "000", SEEDS, "initialize", draws(min_shards=2))
def shards_differ(adapter: Calls, case: InitialCase) -> None:
    """The shards of a seeded random variable do not hold the same values."""
    holders = dict[bytes, int]()
    for number, shard in enumerate(map(np.asarray, adapter.initialize(*case))):
        # A seed that is used twice shows in the first rows, a stream that is used twice in others.
        for row in shard:
            holder = holders.setdefault(row.tobytes(), number)
            expect(
                holder == number,
                f"Shards {holder} and {number} both hold the row {row.tolist()}.",
                "They must differ.",
            )


@rule("R-INIT-5-again", 4, "000", SEEDS, "initialize", draws())
def seeds_are_deterministic(adapter: Calls, case: InitialCase) -> None:
    """The same seed, shape and number of shards give the same values again."""
    first = concatenated(adapter.initialize(*case))
    expect_equal(concatenated(adapter.initialize(*case)), first)


def check_parts(adapter: Calls, case: InitialCase) -> None:
    value = concatenated(adapter.initialize(*case))
    asked, came = (case[1], str(case[2])), (value.shape, str(value.dtype))
    expect_answer(came, asked, "shape and dtype ")
    is_finite = bool(np.isfinite(value).all())
    expect(is_finite, f"It gave {value.tolist()}.", "All of it must be finite.")


rules(4, "000",
    ("R-INIT-4", PARTITION, "initialize", draws(("zeros", "ones", *RANDOM)), check_parts,
     "The values of the shards have together the shape and the dtype that were asked for, and are finite"),
)  # fmt: skip


@rule("R-INIT-4-constants", 4, "000", PARTITION, "initialize", draws(("zeros", "ones")))
def constants_are_constant(adapter: Calls, case: InitialCase) -> None:
    """Zeros are zeros and ones are ones in every shard."""
    must = np.zeros(case[1], case[2]) if case[0] == "zeros" else np.ones(case[1], case[2])
    expect_bits(concatenated(adapter.initialize(*case)), must)


@rule("R-INIT-4-range", 4, "000", "def __init__(self, minval=-0.05, maxval=0.05, seed=None):", "initialize",
      draws(("random_uniform",)))  # fmt: skip
def uniform_is_in_range(adapter: Calls, case: InitialCase) -> None:
    """Uniform values lie between -0.05 and 0.05, and are not all the same."""
    value = concatenated(adapter.initialize(*case))
    inside = bool(((value >= -0.05) & (value <= 0.05)).all() and np.unique(value).size > 1)
    must = "It must give different values from -0.05 to 0.05."
    expect(inside, f"It gave {value.tolist()}.", must)


@rule("R-INIT-6", 4, "000", FULL_SHAPE, "initialize",
      st.tuples(st.integers(1, 4), st.sampled_from([64, 96]), st.integers(0, 9)))  # fmt: skip
def fans_are_of_the_whole(adapter: Calls, case: tuple[int, int, int]) -> None:
    """Glorot's limit, sqrt(6 / (rows + columns)), uses the whole shape, however many shards there
    are."""
    num_shards, rows, seed = case
    shards = adapter.initialize("glorot_uniform", (rows, 32), FLOAT32, num_shards, seed)
    value = concatenated(shards)
    # At least 64 * 32 = 2,048 values: the chance that all lie below 0.9 of the limit is 0.9**2048,
    # under 1e-93. The mistake, the fans of one shard, shows: two shards of 32 rows give sqrt(6 /
    # 64), 22 % above sqrt(6 / 96).
    limit, came = float(np.sqrt(6 / (rows + 32))), float(np.abs(value).max())
    expect(
        0.9 * limit < came <= limit * (1 + 1e-6),
        f"Its largest of {value.size} absolute values is {came:.4f}.",
        f"It must be a little below {limit:.4f}.",
    )


@rule("R-INIT-6-axes", 4, "000", FULL_SHAPE, "initialize",
      st.tuples(st.integers(1, 4), st.sampled_from([(24, 8, 16), (4, 6, 8, 16)]), st.integers(0, 9)))  # fmt: skip
def fans_have_a_receptive_field(adapter: Calls, case: tuple[int, tuple[int, ...], int]) -> None:
    """Glorot's fans are the last two axes, times the product of the axes before them."""
    num_shards, shape, seed = case
    value = concatenated(adapter.initialize("glorot_uniform", shape, FLOAT32, num_shards, seed))
    expect_answer(value.shape, shape, "the shape ")
    # 3,072 values, as above.
    limit = float(np.sqrt(6 / (prod(shape[:-2]) * sum(shape[-2:]))))
    came = float(np.abs(value).max())
    expect(
        0.9 * limit < came <= limit * (1 + 1e-6),
        f"Its largest of {value.size} absolute values is {came:.4f}.",
        f"It must be a little below {limit:.4f}.",
    )


@rule("R-INIT-4-axes", 4, "000", PARTITION, "initialize", st.tuples(
    st.sampled_from(("zeros", "ones", *RANDOM[:3])), st.integers(1, 3),
    st.sampled_from([(), (2, 3), (2, 1, 2, 2)])))  # fmt: skip
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


@rule("R-INIT-5-seeds", 4, "000", SEEDS, "initialize",
      st.tuples(draws(), st.sampled_from([1, 2, 3, 2**16])))  # fmt: skip
def seeds_differ(adapter: Calls, case: tuple[InitialCase, int]) -> None:
    """Another seed gives other values."""
    (kind, shape, dtype, num_shards, seed), more = case
    first = concatenated(adapter.initialize(kind, shape, dtype, num_shards, seed))
    other = concatenated(adapter.initialize(kind, shape, dtype, num_shards, seed + more))
    expect(
        not np.array_equal(first, other),
        f"The seeds {seed} and {seed + more} both gave {first.tolist()}.",
        "They must give different values.",
    )


rules(4, "000",
    ("R-INIT-4-dtypes", PARTITION, "initialize",
     st.tuples(draws(("zeros", "ones", *RANDOM)), st.sampled_from(FLOATS)),
     lambda adapter, case: check_parts(adapter, (*case[0][:2], np.dtype(case[1]), *case[0][3:])),
     "Initial values have the dtype that was asked for"),
)  # fmt: skip


@rule("R-INIT-4-few-rows", 4, "000", PARTITION, "initialize",
      st.tuples(st.sampled_from(RANDOM), st.integers(1, 3), st.integers(1, 3), st.integers(0, 99)))  # fmt: skip
def few_rows_are_initialized(adapter: Calls, case: tuple[str, int, int, int]) -> None:
    """With fewer rows than shards there are as many shards as were asked for, or one a row, and
    they make the shape."""
    kind, rows, more, seed = case
    shards = adapter.initialize(kind, (rows, 3), FLOAT32, rows + more, seed)
    expect(
        len(shards) in (rows, rows + more),
        f"There are {len(shards)} shards.",
        f"There must be {rows + more}, or a shard a row.",
    )
    expect_equal(np.zeros_like(concatenated(shards)), np.zeros((rows, 3), np.float32))


@rule("R-INIT-4-distributions", 4, "000", PARTITION, "initialize",
      st.tuples(st.sampled_from(RANDOM), st.integers(1, 3), st.integers(0, 9)))  # fmt: skip
def values_have_their_distribution(adapter: Calls, case: tuple[str, int, int]) -> None:
    """Many random values have the mean, the deviation and the ends of their distribution, and
    hardly two of them are equal."""
    kind, num_shards, seed = case
    shards = adapter.initialize(kind, (96, 64), FLOAT32, num_shards, seed)
    array, first = concatenated(shards).astype(np.float64), np.asarray(shards[0])
    limit = float(np.sqrt(6 / (96 + 64)))
    # The deviation, the largest absolute value, and the share of values that are more than two
    # deviations from 0. A normal value is never below 3 deviations in 6,144 draws, by 2e-7.
    spread, least, most, beyond = {
        "random_uniform": (0.05 / 3**0.5, 0.049, 0.05, 0.0),
        "glorot_uniform": (limit / 3**0.5, 0.98 * limit, limit, 0.0),
        "random_normal": (0.05, 0.155, np.inf, 0.0455),
        "truncated_normal": (0.05 * 0.8796, 0.095, 0.1, 0.0346),
    }[kind]
    largest, above = float(np.abs(array).max()), float((np.abs(array) > 2 * spread).mean())
    # 6,144 values: the mean is off by 1.3 % of a deviation, and the deviation by 0.9 % of itself.
    for what, came, low, high in (
        ("mean", float(array.mean()), -0.1 * spread, 0.1 * spread),
        ("deviation", float(array.std()), 0.92 * spread, 1.08 * spread),
        ("largest absolute value", largest, least, most * (1 + 1e-6)),
        ("share beyond two deviations", above, beyond / 2, 2 * beyond),
        ("share of different values", np.unique(first).size / first.size, 0.9, 1),
    ):
        expect(
            low <= came <= high,
            f"The {what} of {array.size} values is {came:.4f}.",
            f"It must lie between {low:.4f} and {high:.4f}.",
        )


Shaped = tuple[tuple[int, ...], int]


@st.composite
def shaped(draw: st.DrawFn, min_shards: int = 1) -> Shaped:
    num_shards = draw(st.integers(min_shards, 4))
    return (
        num_shards + draw(st.integers(0, 4)),
        *draw(st.sampled_from([(), (2,), (2, 3)])),
    ), num_shards


@rule("R-INIT-2", 4, "000", WHOLE, "initialize_whole", shaped())
def the_whole_is_sliced(adapter: Calls, case: Shaped) -> None:
    """An initializer that knows no partitions is called for the whole, and the shards are slices of
    one answer."""
    shape, num_shards = case
    calls: list[tuple[int, ...]] = []

    def whole(shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        calls.append(tuple(map(int, shape)))
        # Each call adds another 1,000, so that shards which come from different calls do not fit
        # together.
        value: Array = counting(calls[-1], dtype) + np.asarray(1000 * (len(calls) - 1), dtype)
        return value

    _define(adapter, whole, WHOLE_SOURCE)
    value = concatenated(adapter.initialize_whole(whole, shape, FLOAT32, num_shards))
    expect_answer(value.shape, shape, "the shape ")
    # Any of the calls may be used: 2,001 // 1,000 = 2 names it, and its offset is taken off.
    expect_equal(value - 1000 * (value.flat[0] // 1000), counting(shape))


@rule("R-INIT-4-parts", 4, "000", PARTITION, "initialize_parts", shaped())
def parts_are_asked_for(adapter: Calls, case: Shaped) -> None:
    """A partition-aware initializer is given parts whose values, put together, are the whole."""
    shape, num_shards = case
    part, _ = _part_of(adapter)
    shards = adapter.initialize_parts(part, shape, FLOAT32, num_shards)
    expect_equal(concatenated(shards), counting(shape))


@rule("R-INIT-2-parts", 4, "000", NOT_WHOLE, "initialize_parts", shaped(min_shards=2))
def the_whole_is_never_made(adapter: Calls, case: Shaped) -> None:
    """A partition-aware initializer is never asked for the whole value where there are several
    shards."""
    shape, num_shards = case
    part, calls = _part_of(adapter)
    adapter.initialize_parts(part, shape, FLOAT32, num_shards)
    expect(
        shape not in calls,
        f"It was asked for values of the shapes {calls}.",
        f"It must not be asked for {shape}.",
    )


@rule("R-INIT-4-parts-dtypes", 4, "000", PARTITION, "initialize_parts",
      st.tuples(shaped(), st.sampled_from(["float64", "int64"])))  # fmt: skip
def parts_are_asked_for_in_their_dtype(adapter: Calls, case: tuple[Shaped, str]) -> None:
    """A partition-aware initializer is given the dtype, and its values are not rounded to
    another."""
    (shape, num_shards), name = case
    dtype = np.dtype(name)
    part, _ = _part_of(adapter, name, 2**40, LARGE_SOURCE)
    came = concatenated(adapter.initialize_parts(part, shape, dtype, num_shards))
    expect_equal(came, counting(shape, name) + np.asarray(2**40, dtype))


@rule("R-INIT-2-shape", 4, "000", WHOLE, "initialize_whole",
      st.tuples(shaped(), st.sampled_from([-1, 1])))  # fmt: skip
def other_initial_shapes_are_refused(adapter: Calls, case: tuple[Shaped, int]) -> None:
    """An initializer that gives another shape than the variable's is refused."""
    (shape, num_shards), more = case

    def whole(shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        return np.ones((int(shape[0]) + more, *map(int, shape[1:])), dtype)

    _define(adapter, whole, OTHER_SOURCE.format(more))
    adapter.refuses("initialize_whole", whole, shape, FLOAT32, num_shards)


def _part_of(
    adapter: Calls, name: str | None = None, more: int = 0, source: str = PART_SOURCE
) -> tuple[Callable[..., Array], list[tuple[int, ...]]]:
    """A partition-aware initializer of numbers that count from ``more + 1``, and the shapes that it
    was asked for. They are counted in a dtype of their own, if they have one."""
    calls: list[tuple[int, ...]] = []

    def part(
        shape: Any, dtype: Any = np.float32, part_shape: Any = None, part_offset: Any = None
    ) -> Array:
        extents = tuple(map(int, shape if part_shape is None else part_shape))
        offset = tuple(map(int, part_offset if part_offset is not None else [0] * len(extents)))
        calls.append(extents)
        region = tuple(slice(start, start + n) for start, n in zip(offset, extents, strict=True))
        whole = counting(tuple(map(int, shape)), name or dtype)[region]
        if name is None:
            return whole
        # Where another dtype is asked for, the numbers are rounded or wrap.
        asked = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
        return np.asarray((whole + np.asarray(more, name)).astype(asked))

    _define(adapter, part, source)
    return part, calls


def _define(adapter: Calls, function: Callable[..., Any], source: str) -> None:
    adapter.note(source.strip())
    adapter.name(function, function.__name__)
