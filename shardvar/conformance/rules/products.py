"""All levels: the product of methods and of what hides mistakes. Each method that passes tensors on
gets numbers of every dtype, arrays of the other byte order, and arrays that their owner changes
afterwards; each method that computes gets the numbers that its dtype can hold, fractions whose digits
no narrower dtype has, and repeated ids.

Inputs that few implementations support may be refused; an answer must be right. To add a method, give
it a row of ``USES``: three rules follow.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import (
    REFUSED,
    Broken,
    Calls,
    NotClaimed,
    Panic,
    ProcessDied,
    expect,
    expect_equal,
    text,
)
from shardvar.conformance.rules import rule, rules
from shardvar.conformance.rules.cases import FULL, concatenated, expect_bits, many_shards
from shardvar.conformance.rules.checkpoints import (
    ELASTIC,
    PRESENT,
    RESLICING,
    checkpoint_path,
    expect_tensors,
    templates_of,
)
from shardvar.conformance.rules.initialization import (
    FLOAT32,
    PARTITION,
    SEEDS,
    WHOLE,
)
from shardvar.conformance.rules.meshes import (
    EQUAL,
    FSDP,
    MOVES,
    NAMES,
    PAGE,
    SPEC,
    STATED,
    TERMS,
    by_spec,
    device_arrays,
    expect_parts,
    fsdp_states_what_it_holds,
)
from shardvar.conformance.rules.meshes import REFUSED as CANNOT_EXIST
from shardvar.conformance.rules.meshes import WHOLE as MADE_AGAIN
from shardvar.conformance.rules.optimizers import (
    COMPONENTS,
    SLOTS,
    value_of,
)
from shardvar.conformance.rules.policies import LIMIT, halved
from shardvar.conformance.rules.updates import CLIPPED, LOOKUP, WRITES, written
from shardvar.conformance.rules.variables import (
    AT_LEAST,
    AT_MOST,
    CONCAT,
    CONTIGUOUS,
    DIV,
    FUNCTIONS,
    GRID,
    LAYOUT,
    LIST,
    PRODUCT,
    SIGNATURE,
    SPLITS,
    Sized,
    check_div,
    check_grid,
    check_owner,
    check_read,
    fixed_is_fixed,
    no_more_parts,
    no_part_is_larger,
    no_part_is_smaller,
    no_part_too_many,
    shards_compose_the_whole,
)
from shardvar.layout.dtypes import Array
from shardvar.spec.redistribution import reduced
from shardvar.testing import counting

# Numbers.

INTEGERS = "int8 uint8 int16 uint16 int32 uint32 int64 uint64".split()
REALS = "float16 float32 float64".split()
COMPLEX = "complex64 complex128".split()
EVERY = ("bool", *INTEGERS, *REALS, "bfloat16", *COMPLEX)
RESTS: tuple[tuple[int, ...], ...] = ((), (2,), (1, 2, 3))
"""The axes of a row."""
ROWS = 4
"""The rows of a table, in two shards."""


def numbers(name: str, shape: Sequence[int], shift: int = 0) -> Array:
    """Numbers of a dtype that a mistake changes: both ends of its range, those that 32 bits or
    float64 do not hold, signed zeros, infinities, NaN and fractions."""
    dtype = np.dtype(name)
    if dtype.kind == "b":
        pool = np.array([True, False, False])
    elif dtype.kind in "iu":
        info = np.iinfo(dtype)
        wide = [-1, 0, 1, info.min, info.max, info.max // 2 + 1, 2**31 + 1, 2**53 + 1, -(2**53) - 1]
        pool = np.array([one for one in wide if info.min <= one <= info.max], dtype)
    else:
        tiny, most = (6.2e-5, 6e4) if name == "float16" else (1e-30, 3e38)
        odd = [1 / 3, -0.0, np.inf, np.nan, -1 / 7, most, 0.0, -np.inf, tiny]
        parts = np.array(odd, np.float64)
        with np.errstate(all="ignore"):
            pool = parts.astype(dtype)
        if dtype.kind == "c":
            pool = np.resize(pool, len(pool) + 1)
            pool.imag = np.roll(parts, 4)[np.arange(len(pool)) % len(parts)]
    return np.resize(np.roll(pool, -shift), shape)


def refusable(call: Callable[[], Any]) -> Any:
    """Return the answer of several calls, or ``REFUSED`` if one of them raised."""
    try:
        return call()
    except (NotClaimed, ProcessDied, Broken, Panic):
        raise
    except Exception:  # noqa: BLE001 - which exception it is, is the implementation's business
        return REFUSED


# Methods that pass tensors on.

Begin = Callable[[Calls, Array, int, ExitStack], Callable[[], Any]]
"""Give an array to the adapter; return the call that reads it, or as many of its rows."""
Must = Callable[[Array, int], Array]
NUMBERS, BYTES, MEMORY = "numbers", "byte-order", "memory"
LAWS = {
    NUMBERS: "Numbers of any dtype go through `{}` as they are, or are refused",
    BYTES: "An array of the other byte order goes through `{}` with its values, or is refused",
    MEMORY: "`{}` does not change the arrays that it is given",
}


@dataclass(frozen=True, slots=True)
class Carried:
    id: str
    level: int
    source: str
    sentence: str
    needs: str
    """The methods, the one that is asked about first."""
    begin: Begin
    must: Must
    laws: tuple[str, ...] = (NUMBERS, BYTES, MEMORY)
    shares: str = ""
    """The arrays that may share memory with the adapter's: "given" ones, "returned" ones."""


def _whole(table: Array, _count: int) -> Array:
    return table


def _one_more(table: Array, _count: int) -> Array:
    return table + np.ones((), table.dtype)


def _head(table: Array, count: int) -> Array:
    return table[:count]


def _read(read: Callable[[Calls, Any, int], Any]) -> Begin:
    def begin(adapter: Calls, given: Array, count: int, _stack: ExitStack) -> Callable[[], Any]:
        handle = adapter.create(given, 2)
        return lambda: read(adapter, handle, count)

    return begin


def _created(method: str, layout: Callable[[Array], Any]) -> Begin:
    def begin(adapter: Calls, given: Array, _count: int, _stack: ExitStack) -> Callable[[], Any]:
        handle = getattr(adapter, method)(given, layout(given))
        return lambda: adapter.read(handle)

    return begin


def _written(method: str, *operands: Any) -> Begin:
    def begin(adapter: Calls, given: Array, _count: int, _stack: ExitStack) -> Callable[[], Any]:
        # Ones, so that what is computed is not what was given.
        ones = np.ones(given.shape, given.dtype.newbyteorder("="))
        handle = getattr(adapter, method)(adapter.create(ones, 2), *operands, given)
        return lambda: adapter.read(handle)

    return begin


Save = Callable[[Calls, str, Array], Any]


def _saved(save: Save, method: str = "restore", layout: Any = 2) -> Begin:
    def begin(adapter: Calls, given: Array, count: int, stack: ExitStack) -> Callable[[], Any]:
        path = stack.enter_context(checkpoint_path(adapter))
        save(adapter, path, given)
        if method == "read_rows":
            return lambda: adapter.read_rows(path, "w", 0, count)
        templates = templates_of({"w": given})
        return lambda: getattr(adapter, method)(path, templates, layout)

    return begin


def _called(call: Callable[[Calls, Array], Any]) -> Begin:
    return lambda adapter, given, _count, _stack: lambda: call(adapter, given)


def _save_shards(adapter: Calls, path: str, given: Array) -> None:
    adapter.save(path, {"w": given}, 2)


def _save_halves(adapter: Calls, path: str, given: Array) -> None:
    rest = (0,) * (given.ndim - 1)
    parts = [((0, *rest), given[:2]), ((2, *rest), given[2:])]
    adapter.save_parts(path, "w", given.shape, given.dtype.newbyteorder("="), parts)


def _save_by_halves(adapter: Calls, path: str, given: Array) -> None:
    adapter.note("from shardvar.conformance.rules.policies import halved")
    adapter.save_by_callback(path, {"w": given}, halved, "By the kit.")


def _initial(adapter: Calls, given: Array, is_whole: bool, num_shards: int = 2) -> Any:
    def initial(shape: Any, dtype: Any, part_shape: Any = None, part_offset: Any = None) -> Array:
        rows = given[int((part_offset or [0])[0]) :][: int((part_shape or shape)[0])]
        # Where another dtype is asked for, the numbers are rounded.
        with np.errstate(all="ignore"):
            return rows.astype(np.dtype(getattr(dtype, "as_numpy_dtype", dtype)))

    adapter.name(initial, "initial")
    adapter.note(
        f"value = {text(given)}\n"
        "def initial(shape, dtype, part_shape=None, part_offset=None):\n"
        "    return value[(part_offset or [0])[0]:][:(part_shape or shape)[0]].astype(dtype)"
    )
    method = adapter.initialize_whole if is_whole else adapter.initialize_parts
    return method(initial, given.shape, given.dtype, num_shards)


def _spec(given: Array) -> tuple[tuple[str, ...], ...]:
    return (("x",), *((),) * (given.ndim - 1))


_ALL = np.arange(ROWS)
_BOTH = "given returned"
_NO_NUMBERS = (BYTES, MEMORY)
USES = (
    Carried("R-CONCAT-1", 2, "000", CONCAT, "read create", _read(lambda a, h, _: a.read(h)), _whole, shares="given"),
    Carried("R-SPEC-1", 2, "002", SPLITS, "create_uneven read",
        _created("create_uneven", lambda given: [1, len(given) - 1]), _whole),
    Carried("R-PART-4", 2, "000", LAYOUT, "create_partitioned read",
        _created("create_partitioned", lambda given: [2, *[1] * (given.ndim - 1)]), _whole),
    Carried("R-SV-1", 2, "000", LIST, "shards create", _read(lambda a, h, _: a.shards(h)), _whole, shares=_BOTH),
    Carried("R-VAR-1", 2, "000", FULL, "index create", _read(lambda a, h, n: a.index(h, (slice(0, n),))), _head,
        shares="given"),
    Carried("R-MATMUL-1", 2, "000", PRODUCT, "matmul create",
        _read(lambda a, h, _: a.matmul(np.eye(ROWS, dtype=np.float32), h)), _whole, _NO_NUMBERS,
        "given"),
    Carried("R-LOOKUP-2", 3, "000", LOOKUP, "lookup create", _read(lambda a, h, n: a.lookup(h, np.arange(n))), _head,
        shares="given"),
    Carried("R-READ-1", 3, "000", FULL, "sparse_read create",
        _read(lambda a, h, n: a.sparse_read(h, np.arange(n))), _head, shares="given"),
    Carried("R-LOOKUP-4", 3, "002", CLIPPED, "lookup_clipped create",
        _read(lambda a, h, n: a.lookup_clipped(h, np.arange(n), 1e9)), _head, _NO_NUMBERS, "given"),
    Carried("R-LOOKUP-2-bags", 3, "000", LOOKUP, "lookup_bags create",
        _read(lambda a, h, n: a.lookup_bags(h, [[row] for row in range(n)], None, "sum")), _head, _NO_NUMBERS,
        "given"),
    Carried("R-SV-3-assign", 3, "000", WRITES, "assign create read", _written("assign"), _whole),
    Carried("R-SV-3-assign-add", 3, "000", WRITES, "assign_add create read", _written("assign_add"), _one_more,
        _NO_NUMBERS),
    Carried("R-SV-3-assign-sub", 3, "000", WRITES, "assign_sub create read", _written("assign_sub"),
        lambda table, _: np.float32(1) - table, _NO_NUMBERS),
    Carried("R-SV-3-scatter-update", 3, "000", WRITES, "scatter create read", _written("scatter", "update", _ALL),
        _whole),
    Carried("R-SV-3-scatter-add", 3, "000", WRITES, "scatter create read", _written("scatter", "add", _ALL), _one_more,
        _NO_NUMBERS),
    Carried("R-INIT-2", 4, "000", WHOLE, "initialize_whole", _called(lambda a, given: _initial(a, given, True)), _whole,
        (NUMBERS, MEMORY), _BOTH),
    Carried("R-INIT-4-parts", 4, "000", PARTITION, "initialize_parts",
        _called(lambda a, given: _initial(a, given, False)), _whole, (NUMBERS, MEMORY), _BOTH),
    Carried("R-CKPT-1", 6, "000", ELASTIC, "save restore", _saved(_save_shards), _whole),
    Carried("R-CKPT-1-uneven", 6, "000", ELASTIC, "restore_uneven save",
        _saved(_save_shards, "restore_uneven", [1, 3]), _whole),
    Carried("R-CKPT-1-rows", 6, "000", ELASTIC, "read_rows save", _saved(_save_shards, "read_rows"), _head),
    Carried("R-POLICY-7", 6, "001", RESLICING, "save_parts restore", _saved(_save_halves), _whole),
    Carried("R-POLICY-4", 7, "001", LIMIT, "save_limited restore",
        _saved(lambda a, path, given: a.save_limited(path, {"w": given}, 1, given.nbytes // 2)), _whole),
    Carried("R-POLICY-7-callback", 7, "001", RESLICING, "save_by_callback restore", _saved(_save_by_halves), _whole),
    Carried("V-MESH-1", 9, PAGE, EQUAL, "mesh_parts", _called(lambda a, given: a.mesh_parts(given, (2,), (0,))), _whole,
        shares=_BOTH),
    Carried("V-WHOLE-1", 9, PAGE, MADE_AGAIN, "mesh_gather",
        _called(lambda a, given: a.mesh_gather([given[:2], given[2:]], given.shape, (2,), (0,))), _whole,
        shares=_BOTH),
    Carried("V-MOVE-1", 9, PAGE, MOVES, "mesh_move",
        _called(lambda a, given: a.mesh_move(given, (2,), (None,), (0,))), _whole, shares=_BOTH),
    Carried("V-MOVE-1-joined", 9, PAGE, MOVES, "mesh_move_joined",
        _called(lambda a, given: a.mesh_move_joined(given, (2, 2), (0, 0), (None, None))),
        lambda table, _: np.concatenate([table] * 4), shares=_BOTH),
    Carried("V-TERM-1", 9, PAGE, TERMS, "mesh_reduce",
        _called(lambda a, given: a.mesh_reduce([given, given], (2,), 0, "sum", (0,))),
        lambda table, _: table * np.float32(2), _NO_NUMBERS, _BOTH),
    Carried("V-SPEC-1", 9, PAGE, SPEC, "spec_parts",
        _called(lambda a, given: a.spec_parts(given, (2,), ("x",), _spec(given))), _whole, shares=_BOTH),
    Carried("V-SPEC-1-constraint", 9, PAGE, SPEC, "spec_constrained",
        _called(lambda a, given: a.spec_constrained(given, (2,), ("x",), _spec(given))), _whole, shares=_BOTH),
    # Device (1, 0) holds the second half of the first half: row 1.
    Carried("V-FSDP-1", 9, PAGE, FSDP, "fsdp_parts", _called(lambda a, given: a.fsdp_parts(given, (2, 2))),
        lambda table, _: table[[0, 2, 1, 3]], shares=_BOTH),
    Carried("V-FSDP-1-hybrid", 9, PAGE, FSDP, "hsdp_parts",
        _called(lambda a, given: a.hsdp_parts(given, (1, 2, 1), 0, None)), _whole, shares=_BOTH),
)  # fmt: skip
"""Each method that passes tensors on, by one plain use."""


def _answer(adapter: Calls, read: Callable[[], Any]) -> list[Any]:
    """Read, and return the arrays of the answer; they are called ``answer`` in the program."""
    came = read()
    line = adapter.lines[-1]
    if isinstance(came, dict):
        came, line = value_of(came, "w"), f"{line}['w']"
    adapter.lines[-1] = f"answer = {line}"
    return list(came) if isinstance(came, list | tuple) else [came]


def _joined(arrays: Sequence[Any]) -> Any:
    return concatenated(arrays) if len(arrays) > 1 else np.asarray(arrays[0])


def check_passed(adapter: Calls, given: Array, use: Carried) -> None:
    with ExitStack() as stack:

        def passed() -> Any:
            return _answer(adapter, use.begin(adapter, given, len(given), stack))

        came = refusable(passed)
        if came is not REFUSED:
            must = use.must(given.astype(given.dtype.newbyteorder("=")), len(given))
            if NUMBERS in use.laws:
                expect_bits(_joined(came), must)
            else:
                expect_equal(_joined(came), must, ulps=16)


def check_memory(adapter: Calls, case: tuple[str, tuple[int, ...]], use: Carried) -> None:
    """Change what was given, and what came, and read again."""
    name, rest = case
    table, more = counting((ROWS, *rest), name), np.asarray(100, name)
    must = use.must(table, 2).copy()
    given = adapter.name(table.copy(), "given")
    adapter.note(f"given = {text(table)}")
    with ExitStack() as stack:
        read = use.begin(adapter, given, 2, stack)
        came = _answer(adapter, read)
        expect_equal(_joined(came), must, ulps=16)
        if not np.array_equal(given, table):
            raise Broken(f"The array that was given now holds {text(given)}.", "It must stay.")
        if "given" not in use.shares:
            given += more
            adapter.note("given += 100")
        if "returned" not in use.shares:
            for each in came:
                # An array that cannot be written to cannot change the variable.
                if isinstance(each, np.ndarray) and each.flags.writeable:
                    each += more
            adapter.note("answer += 100  # each array of it")
        if "given" not in use.shares or "returned" not in use.shares:
            expect_equal(_joined(_answer(adapter, read)), must, ulps=16)


def in_other_order(name: str, rest: tuple[int, ...]) -> Array:
    return counting((ROWS, *rest)).astype(np.dtype(name).newbyteorder(">"))


@cache
def _cases(
    law: str, rests: tuple[tuple[int, ...], ...], names: Sequence[str]
) -> st.SearchStrategy[Any]:
    """Return the cases of a law; methods that have the same share what is drawn."""
    drawn = st.sampled_from([*product(names, rests)])
    if law == MEMORY:
        return drawn
    if law == BYTES:
        return drawn.map(lambda case: in_other_order(*case))
    return drawn.map(lambda case: numbers(case[0], (ROWS, *case[1]), 3 * (not case[1])))


for _use in USES:
    _method = _use.needs.split()[0]
    _rests = ((2,),) if _method in ("matmul", "lookup_bags") else RESTS
    # A product, a norm and a sum of terms are of float32.
    _plain = ("float32", "int64") if NUMBERS in _use.laws else ("float32",)
    _names = {NUMBERS: EVERY, BYTES: _plain, MEMORY: _plain}
    _more = {
        "": ", and changes of them or of its answer do not reach what is kept",
        "given": ", and changes of its answer do not reach the variable",
    }.get(_use.shares, "")
    rules(_use.level, _use.source, *(
        (f"{_use.id}-{law}", _use.sentence, _use.needs, _cases(law, _rests, _names[law]),
         partial(check_memory if law == MEMORY else check_passed, use=_use),
         LAWS[law].format(_method) + (_more if law == MEMORY else ""))
        for law in _use.laws
    ))  # fmt: skip


# What is read after a write, by the same call as before it.


def check_again(adapter: Calls, rest: tuple[int, ...], read: Callable[[Calls, Any], Any]) -> None:
    value = counting((ROWS, *rest))
    handle = adapter.create(value, 2)
    for must in (value, value + np.float32(1)):
        expect_equal(_joined(_answer(adapter, partial(read, adapter, handle))), must, ulps=16)
        if must is value:
            handle = written(adapter, handle, value)


def _all_rows(method: str, *more: Any) -> Callable[[Calls, Any], Any]:
    return lambda adapter, handle: getattr(adapter, method)(handle, _ALL, *more)


for _id, _level, _source, _sentence, _method, _again in (
    ("R-CONCAT-1", 2, "000", CONCAT, "read", lambda adapter, handle: adapter.read(handle)),
    ("R-SV-1", 2, "000", LIST, "shards", lambda adapter, handle: adapter.shards(handle)),
    (
        "R-VAR-1",
        2,
        "000",
        FULL,
        "index",
        lambda adapter, handle: adapter.index(handle, (slice(None),)),
    ),
    (
        "R-MATMUL-1",
        2,
        "000",
        PRODUCT,
        "matmul",
        lambda adapter, handle: adapter.matmul(np.eye(ROWS, dtype=np.float32), handle),
    ),
    ("R-LOOKUP-2", 3, "000", LOOKUP, "lookup", _all_rows("lookup")),
    ("R-READ-1", 3, "000", FULL, "sparse_read", _all_rows("sparse_read")),
    ("R-LOOKUP-4", 3, "002", CLIPPED, "lookup_clipped", _all_rows("lookup_clipped", 1e9)),
    (
        "R-LOOKUP-2-bags",
        3,
        "000",
        LOOKUP,
        "lookup_bags",
        lambda adapter, handle: adapter.lookup_bags(
            handle, [[row] for row in range(ROWS)], None, "sum"
        ),
    ),
):
    rules(_level, _source,
        (f"{_id}-again", _sentence, f"{_method} create",
         st.sampled_from(((2,),) if _method in ("matmul", "lookup_bags") else RESTS),
         partial(check_again, read=_again), f"After a write `{_method}` gives the new values by the same call"),
    )  # fmt: skip


# An index of each axis of many.


@rule("R-VAR-1-axes", 2, "000", FULL, "index create", st.sampled_from(
    [(axis, key) for axis in range(4)
     for key in (0, 1, -1, -2, slice(1, None), slice(None, -1), slice(None, None, -1), slice(-2, None))]))  # fmt: skip
def each_axis_is_indexed(adapter: Calls, case: tuple[int, Any]) -> None:
    """An index of any axis of four is NumPy's on the whole."""
    axis, key = case
    value = counting((4, 3, 2, 3))
    index = (*(slice(None),) * axis, key)
    expect_equal(adapter.index(adapter.create(value, 2), index), value[index])


rules(2, "000",
    ("R-SV-1-many", LIST, "create shards", many_shards(), shards_compose_the_whole,
     "More than ten shards are as many as were asked for, and one after another the whole"),
    ("R-CONCAT-1-many", CONCAT, "create read", many_shards(), check_read,
     "A variable in more than ten shards reads as the value that it was created with"),
)  # fmt: skip


# Places: lengths and bytes that 32 bits and float64 do not hold.

_LONG = st.integers(2**53 + 1, 2**53 + 99) | st.integers(2**61, 2**61 + 99)
_FEW = st.integers(2, 5) | st.integers(257, 300)


def _unless_refused(check: Callable[[Calls, Any], None]) -> Callable[[Calls, Any], None]:
    """Return the same check, for lengths that an implementation may refuse."""

    def checked(adapter: Calls, case: Any) -> None:
        refusable(lambda: check(adapter, case))

    return checked


@st.composite
def large_sizes(draw: st.DrawFn) -> Sized:
    """A shape of few rows, whose bytes 32 bits do not hold."""
    rows, rank = draw(st.integers(1, 12) | st.integers(13, 64)), draw(st.integers(2, 5))
    rest = (32768, 65536, 3, 1)[: rank - 1]
    name = draw(st.sampled_from("bool int8 float16 bfloat16 float32 float64 complex128".split()))
    row = int(np.prod(rest, dtype=object)) * np.dtype(name).itemsize
    limit = row * draw(st.integers(1, 5)) + draw(st.integers(-1, 1))
    return (rows, *rest), np.dtype(name), limit, draw(st.integers(1, 9) | st.integers(10, 300))


rules(1, "000",
    ("R-DIV-1-huge", DIV, "div", st.tuples(_LONG, _FEW), _unless_refused(check_div),
     "`div` divides lengths that float64 does not hold, or refuses them"),
    ("R-DIV-1-owner-huge", CONTIGUOUS, "owner",
     st.tuples(_LONG, _FEW, st.integers(1, 99)).map(
         lambda case: ([case[0] - case[2], case[2], case[0] // 2 + case[2]], *case[:2])),
     _unless_refused(check_owner),
     "`owner` gives the shard and the row of ids that float64 does not hold, or refuses them"),
    ("R-PART-1-regions-huge", GRID, "regions",
     st.tuples(_LONG, st.integers(2, 5), st.integers(1, 2)).map(lambda case: ((case[0], 3), [*case[1:]])),
     _unless_refused(check_grid),
     "`regions` cuts extents that float64 does not hold, or refuses them"),
    ("R-PART-1-fixed-large", SIGNATURE, "fixed_shards",
     st.tuples(large_sizes(), st.integers(1, 300)).map(
         lambda case: ((case[0][0][0] * 2**31, *case[0][0][1:]), case[0][1], case[1])),
     fixed_is_fixed, "`fixed_shards` answers with the number of shards for shapes that 32 bits do not hold"),
    ("R-PART-3-min-large", AT_LEAST, "min_size", large_sizes(), no_part_is_smaller,
     "`min_size` answers with parts of at least the minimum, or with one part, of bytes that 32 bits do not hold"),
    ("R-PART-3-upper-large", AT_MOST, "min_size", large_sizes(), no_more_parts,
     "`min_size` answers with as many parts as can hold the minimum, of bytes that 32 bits do not hold"),
    ("R-PART-1-max-large", FUNCTIONS, "max_size", large_sizes(), no_part_is_larger,
     "`max_size` answers with parts of at most the maximum, of bytes that 32 bits do not hold"),
    ("R-PART-1-max-few-large", FUNCTIONS, "max_size", large_sizes(), no_part_too_many,
     "`max_size` answers with as few parts as exceed the maximum nowhere, of bytes that 32 bits do not hold"),
)  # fmt: skip


# Refusals: no shards, rows and keys that are not there.


def _none(adapter: Calls, method: str, count: int) -> None:
    """Ask for no shards, or for fewer."""
    value = counting((ROWS, 2))
    if method.startswith("initialize"):
        drawn = ("zeros", value.shape, FLOAT32, count, 0)
        whole = adapter.name(lambda shape, dtype=FLOAT32, *_: np.ones(shape, dtype), "np.ones")
        adapter.refuses(
            method, *drawn if method == "initialize" else (whole, value.shape, FLOAT32, count)
        )
    elif method in ("optimize", "slots"):
        adapter.refuses(method, "momentum", value, count, [value])
    elif method == "create":
        adapter.refuses(method, value, count)
    else:
        with checkpoint_path(adapter) as path:
            if method == "save":
                adapter.refuses("save", path, {"w": value}, count)
            else:
                adapter.save(path, {"w": value}, 2)
                adapter.refuses("restore", path, templates_of({"w": value}), count)


for _level, _id, _source, _sentence, _needs in (
    (2, "R-DIV-1", "000", DIV, "create"),
    (4, "R-INIT-5", "000", SEEDS, "initialize"),
    (4, "R-INIT-2", "000", WHOLE, "initialize_whole"),
    (4, "R-INIT-4-parts", "000", PARTITION, "initialize_parts"),
    (5, "R-OPT-5", "000", COMPONENTS, "optimize"),
    (5, "R-SLOT-1", "000", SLOTS, "slots"),
    (6, "R-CKPT-1-save", "000", ELASTIC, "save"),
    (6, "R-CKPT-1", "000", ELASTIC, "restore save"),
):
    rules(_level, _source,
        (f"{_id}-none", _sentence, _needs, st.sampled_from([0, -1]),
         partial(lambda adapter, count, method: _none(adapter, method, count), method=_needs.split()[0]),
         f"`{_needs.split()[0]}` in fewer shards than one is refused"),
    )  # fmt: skip


@rule("R-CKPT-1-rows-outside", 6, "000", ELASTIC, "read_rows save", st.sampled_from([3, 5, 7]))
def rows_outside_are_not_made_up(adapter: Calls, stop: int) -> None:
    """Rows of a tensor that was never saved are refused; rows beyond the last are refused or left
    out."""
    value = counting((ROWS, 2))
    with checkpoint_path(adapter) as path:
        adapter.save(path, {"w": value}, 2)
        adapter.gives_or_refuses(value[2:stop], "read_rows", path, "w", 2, stop)
        adapter.refuses("read_rows", path, "never", 0, 2)


@rule(
    "R-CKPT-1-nothing",
    6,
    "000",
    ELASTIC,
    "restore read_rows",
    st.sampled_from(["restore", "read_rows"]),
)
def nothing_is_refused(adapter: Calls, method: str) -> None:
    """Reading a tensor where nothing was saved is refused."""
    with checkpoint_path(adapter) as path:
        operands = (
            ("w", 0, 2) if method == "read_rows" else (templates_of({"w": counting((2,))}), 1)
        )
        adapter.refuses(method, path, *operands)


# Tensors without elements.


def check_empty(adapter: Calls, shape: tuple[int, ...], method: str) -> None:
    tensors = {"w": counting((4, 2)), "none": counting(shape)}
    with checkpoint_path(adapter) as path:
        if method == "save_limited":
            adapter.save_limited(path, tensors, 1, 24)
        else:
            adapter.note("from shardvar.conformance.rules.policies import halved")
            adapter.save_by_callback(path, tensors, halved, "By the kit.")
        expect_tensors(adapter.restore(path, templates_of(tensors), 1), tensors)


def check_few_parts(adapter: Calls, case: tuple[int, int], is_whole: bool) -> None:
    """Initialize a variable with fewer rows than shards."""
    rows, more = case
    value = counting((rows, 2))
    shards = _initial(adapter, value, is_whole, rows + more)
    expect(
        len(shards) in (rows, rows + more),
        f"There are {len(shards)} shards.",
        f"There must be {rows + more}, or a shard a row.",
    )
    expect_equal(concatenated(shards), value)


rules(7, "001", *(
    (f"{name}-empty", sentence, f"{method} restore", st.sampled_from([(0,), (0, 3)]),
     partial(check_empty, method=method), f"Tensors without elements are saved by `{method}` with their shapes")
    for name, sentence, method in (
        ("R-POLICY-4", LIMIT, "save_limited"), ("R-POLICY-7-callback", RESLICING, "save_by_callback"))
))  # fmt: skip
rules(4, "000", *(
    (f"{name}-few-rows", sentence, method, st.tuples(st.integers(1, 3), st.integers(1, 3)),
     partial(check_few_parts, is_whole=is_whole),
     f"With fewer rows than shards the shards of `{method}` make the whole")
    for name, sentence, method, is_whole in (
        ("R-INIT-2", WHOLE, "initialize_whole", True), ("R-INIT-4-parts", PARTITION, "initialize_parts", False))
))  # fmt: skip


# Long keys.

_KEYS = st.sampled_from(
    [*(("k" * n + "a", "k" * n + "b", "k" * n) for n in (31, 64, 100, 128, 180)),
     tuple(f"layers.{n}" for n in range(30))]
)  # fmt: skip


def check_long_keys(adapter: Calls, keys: tuple[str, ...], method: str) -> None:
    """Save tensors of several lengths and numbers under keys that differ at their ends."""
    tensors = {key: counting((ROWS + n, 2)) * np.float32(n + 1) for n, key in enumerate(keys)}
    with checkpoint_path(adapter) as path:
        match method:
            case "save_limited":
                adapter.save_limited(path, tensors, 1, 40)
            case "save_by_callback":
                adapter.note("from shardvar.conformance.rules.policies import halved")
                adapter.save_by_callback(path, tensors, halved, "By the kit.")
            case _:
                adapter.save(path, tensors, 2)
        if method == "list_tensors":
            came = {key: tuple(map(int, one[0])) for key, one in adapter.list_tensors(path).items()}
            must = {key: value.shape for key, value in tensors.items()}
            expect(came | must == came, f"It gave {came}.", f"It must give {must}.")
        elif method == "restore_uneven":
            for key, value in tensors.items():
                one = {key: value}
                sizes = [1, len(value) - 1]
                expect_tensors(adapter.restore_uneven(path, templates_of(one), sizes), one)
        elif method == "read_rows":
            for key, value in tensors.items():
                expect_equal(adapter.read_rows(path, key, 1, 3), value[1:3])
        else:
            expect_tensors(adapter.restore(path, templates_of(tensors), 1), tensors)


for _id, _method, _level, _source, _sentence in (
    ("R-CKPT-1", "restore", 6, "000", ELASTIC),
    ("R-CKPT-1-uneven", "restore_uneven", 6, "000", ELASTIC),
    ("R-CKPT-1-rows", "read_rows", 6, "000", ELASTIC),
    ("R-POLICY-1-list", "list_tensors", 6, "001", PRESENT),
    ("R-POLICY-4", "save_limited", 7, "001", LIMIT),
    ("R-POLICY-7-callback", "save_by_callback", 7, "001", RESLICING),
):
    _reads = "restore" if _level == 7 else "save"
    rules(_level, _source,
        (f"{_id}-keys-long", _sentence, f"{_method} {_reads}", _KEYS, partial(check_long_keys, method=_method),
         f"Tensors whose long keys differ only at their ends, and many tensors, are kept apart by `{_method}`"),
    )  # fmt: skip


# What is said of a checkpoint, for every dtype.


def check_listed(adapter: Calls, case: tuple[str, tuple[int, ...]]) -> None:
    name, rest = case
    value = numbers(name, (ROWS, *rest))
    with checkpoint_path(adapter) as path:

        def call() -> Any:
            adapter.save(path, {"w": value}, 2)
            return adapter.list_tensors(path)["w"]

        came = refusable(call)
        if came is not REFUSED:
            shape, dtype = came
            said = (tuple(map(int, shape)), str(np.dtype(dtype)))
            expect(
                said == (value.shape, name),
                f"It gave {said}.",
                f"It must give {(value.shape, name)}.",
            )


def check_file_sizes(adapter: Calls, case: tuple[str, tuple[int, ...]]) -> None:
    name, rest = case
    value = numbers(name, (16, *rest))
    limit = 3 * value.nbytes // 16
    with checkpoint_path(adapter) as path:

        def call() -> Any:
            adapter.save_limited(path, {"w": value}, 1, limit)
            return [int(nbytes) for nbytes in adapter.file_nbytes(path)]

        came = refusable(call)
        if came is not REFUSED:
            expect(
                max(came, default=0) <= limit,
                f"Files hold {came} bytes.",
                f"None must hold more than {limit}.",
            )
            expect(
                sum(came) >= value.nbytes,
                f"Files hold {came} bytes.",
                f"Together they must hold {value.nbytes}.",
            )


_TYPED = st.sampled_from([*product(EVERY, RESTS)])
rules(6, "001",
    ("R-POLICY-1-list-numbers", PRESENT, "list_tensors save", _TYPED, check_listed,
     "Tensors of any dtype and of one to four axes are listed with their shapes and dtypes, or refused"),
)  # fmt: skip
rules(7, "001",
    ("R-POLICY-4-size-numbers", LIMIT, "file_nbytes save_limited", _TYPED, check_file_sizes,
     "No file holds more bytes than the limit, whatever the dtype and the axes of its tensors, or they are refused"),
)  # fmt: skip


# Meshes.

_THREE = ((2, 2, 2), (2, 1, 3), (3, 2, 1), (1, 2, 3))


@rule("V-WHOLE-1-missing", 9, PAGE, MADE_AGAIN, "mesh_gather", st.sampled_from(
    [*product(((2,), (3,), (2, 2)), ("last", "first", "rows"))]))  # fmt: skip
def missing_parts_are_refused(adapter: Calls, case: tuple[tuple[int, ...], str]) -> None:
    """Parts of fewer devices than the mesh has, and a part of too few rows, are refused: nothing is
    made up for what is missing."""
    mesh, what = case
    placements = tuple(range(len(mesh)))
    value = counting([2 * count for count in mesh])
    held = device_arrays(value, mesh, placements)
    given = {"last": held[:-1], "first": held[1:], "rows": [*held[:-1], held[-1][:1]]}[what]
    adapter.refuses("mesh_gather", given, value.shape, mesh, placements)


def check_no_such_axis(adapter: Calls, mesh: tuple[int, ...], method: str) -> None:
    """Place a tensor along an axis that it does not have."""
    good: tuple[Any, ...] = (None,) * len(mesh)
    bad, value = (2, *good[1:]), counting((4, 4))
    arguments = {
        "mesh_slices": (value.shape, mesh, bad),
        "mesh_gather": ([value] * prod(mesh), value.shape, mesh, bad),
        "mesh_move": (value, mesh, good, bad),
        "mesh_move_joined": (value, mesh, good, bad),
        "mesh_reduce": ([value] * mesh[0], mesh, 0, "sum", bad),
    }[method]
    adapter.refuses(method, *arguments)


rules(9, PAGE, *(
    (f"V-REFUSE-1-{suffix}", CANNOT_EXIST, method,
     st.sampled_from([(2, 2), (3, 2)] if suffix == "joined" else [(2,), (2, 2)]),
     partial(check_no_such_axis, method=method),
     f"`{method}` refuses a placement that cuts an axis which the tensor does not have")
    for suffix, method in (("slices", "mesh_slices"), ("gather", "mesh_gather"), ("move", "mesh_move"),
                           ("joined", "mesh_move_joined"), ("reduce", "mesh_reduce"))
))  # fmt: skip


def check_nothing_named(adapter: Calls, mesh: tuple[int, ...], method: str) -> None:
    """Cut a tensor without rows."""
    value, spec = counting((0, 3)), (NAMES[: len(mesh)], ())
    came = adapter.attempt(method, value, mesh, NAMES[: len(mesh)], spec)
    if came is not REFUSED:
        expect_parts(came, [value] * prod(mesh))


rules(9, PAGE, *(
    (f"{name}-empty", SPEC, method, st.sampled_from([(2,), (3,), (2, 2)]), partial(check_nothing_named, method=method),
     f"Devices hold nothing of a tensor without elements by `{method}`, or it is refused")
    for name, method in (("V-SPEC-1", "spec_parts"), ("V-SPEC-1-constraint", "spec_constrained"))
))  # fmt: skip


@rule("V-MOVE-1-joined-few", 9, PAGE, MOVES, "mesh_move_joined", st.sampled_from(
    [*product(((2, 2), (3, 2)), (1, 2, 3), ((0, 0), (0, None), (None, 0)))]))  # fmt: skip
def few_rows_are_joined(adapter: Calls, case: tuple[tuple[int, ...], int, Any]) -> None:
    """The same, where some devices hold nothing before."""
    mesh, rows, source = case
    value = counting((rows, 2))
    came = adapter.mesh_move_joined(value, mesh, source, (None, None))
    expect_parts(came, [value] * prod(mesh))


Reduction = tuple[tuple[int, ...], int, str, Any]


@rule("V-TERM-1-three-axes", 9, PAGE, TERMS, "mesh_reduce", st.sampled_from(
    [*product(_THREE, (0, 1, 2), ("sum", "avg", "min", "max"), (None, 0, 2))]))  # fmt: skip
def terms_of_three_axes_are_reduced(adapter: Calls, case: Reduction) -> None:
    """Terms along any axis of a mesh of three are all reduced, of a tensor of three axes, whichever
    is cut."""
    mesh, axis, op, cut = case
    terms = [counting((6, 2, 6)) * np.float32((-2) ** n * mesh[axis]) for n in range(mesh[axis])]
    placements = [None, None, None]
    placements[(axis + 1) % 3] = cut
    came = adapter.mesh_reduce(terms, mesh, axis, op, tuple(placements))
    for part, must in zip(came, device_arrays(reduced(terms, op), mesh, placements), strict=True):
        expect_equal(np.asarray(part), must)


@st.composite
def three_named(draw: st.DrawFn) -> Any:
    """A tensor of three axes on a mesh of three, whose names cut any of them in any order."""
    mesh = draw(st.sampled_from(_THREE))
    entries: list[tuple[str, ...]] = [(), (), ()]
    for name in draw(st.permutations(NAMES)):
        axis = draw(st.sampled_from([0, 1, 2, None]))
        if axis is not None:
            entries[axis] = (*entries[axis], name)
    extents = dict(zip(NAMES, mesh, strict=True))
    shape = [max(2, prod(extents[name] for name in entry)) for entry in entries]
    return counting(shape), mesh, NAMES, tuple(entries)


rules(9, PAGE, *(
    (f"{name}-three-axes", SPEC, method, three_named(),
     partial(lambda adapter, case, method: expect_parts(getattr(adapter, method)(*case), by_spec(case)),
             method=method),
     f"`{method}` on a mesh of three axes cuts a tensor of three as its spec says, in the order of the names")
    for name, method in (("V-SPEC-1", "spec_parts"), ("V-SPEC-1-constraint", "spec_constrained"))
))  # fmt: skip


@rule("V-FSDP-1-stated-axes", 9, PAGE, STATED, "fsdp_shapes fsdp_parts", st.sampled_from(
    [*product(((7,), (7, 2, 3), (2, 3), (1, 2, 2, 2)), ((2, 2), (2, 3), (3, 2)))]))  # fmt: skip
def shapes_of_any_rank_are_stated(adapter: Calls, case: tuple[tuple[int, ...], Any]) -> None:
    """The shape that is stated for a tensor of one to four axes matches what the device holds, also
    if that is nothing."""
    shape, mesh = case
    fsdp_states_what_it_holds(adapter, (counting(shape), mesh))
