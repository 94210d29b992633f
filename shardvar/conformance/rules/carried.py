"""All levels: methods that pass tensors on. Each gets numbers of every dtype, arrays of the other byte
order, and arrays that their owner changes afterwards; what a variable gave is compared again after a
write.

Inputs that few implementations support may be refused; an answer must be right. To add a method, give
it a row of ``USES``: its rules follow from ``LAWS``.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from shardvar.conformance.calls import WRITES, Broken, Calls, expect_equal, text
from shardvar.conformance.rules import rules
from shardvar.conformance.rules.cases import (
    EVERY,
    RESTS,
    ROWS,
    concatenated,
    expect_bits,
    numbers,
    refusable,
    value_of,
)
from shardvar.conformance.rules.checkpoints import checkpoint_path, expect_tensors, templates_of
from shardvar.conformance.rules.initialization import initial
from shardvar.conformance.rules.policies import save_halves
from shardvar.conformance.rules.updates import written
from shardvar.layout.dtypes import Array, Shape
from shardvar.records import frozen
from shardvar.testing import clipped, counting

Begin = Callable[[Calls, Array, int, ExitStack], Callable[[], Any]]
"""Give an array to the adapter; return the call that reads it, or as many of its rows."""
BYTES = "byte-order strides memory"
EACH = f"numbers {BYTES}"
AFTER = "again before"
LAWS = {
    "numbers": "Numbers of any dtype go through `{}` as they are, or are refused",
    "byte-order": "An array of the other byte order goes through `{}` with its values, or is refused",
    "strides": "An array goes through `{}` with its values, however it lies in memory, or is refused",
    "memory": "`{}` does not change the arrays that it is given",
    "again": "After a write `{}` gives the new values by the same call",
    "before": "What `{}` gave stays as it was when the variable is written afterwards",
    "pure": "A `{}` does not change the variable",
}
KEPT = {
    "": ", and changes of them or of its answer do not reach what is kept",
    "given": ", and changes of its answer do not reach the variable",
    "given returned": "",
}
"""The end of the law of memory, for each kind of arrays that may share memory with the adapter's."""


@frozen
class TensorUse:
    id: str
    needs: str
    """The methods, the one that is asked about first."""
    begin: Any = None
    """A ``Begin``."""
    must: Callable[[Array, int], Array] = lambda table, _count: table
    laws: str = EACH
    shares: str = ""
    """The arrays that may share memory with the adapter's: "given" ones, "returned" ones."""
    read: Any = None
    """In the place of ``begin``, a function that reads as many rows of a variable."""

    @property
    def method(self) -> str:
        return self.needs.split()[0]

    def reader(self, adapter: Calls, given: Array, count: int, stack: ExitStack) -> Any:
        if self.read:
            return partial(self.read, adapter, adapter.create(given, _few(given)), count)
        return self.begin(adapter, given, count, stack)


def _few(table: Array) -> int:
    """Return the number of shards: one for a table of one axis."""
    return 1 + (table.ndim > 1)


def _head(table: Array, count: int) -> Array:
    return table[:count]


def _one_more(table: Array, _count: int) -> Array:
    return table + np.ones((), table.dtype)


def _created(method: str, layout: Callable[[Array], Any]) -> Begin:
    def begin(adapter: Calls, given: Array, _count: int, _stack: ExitStack) -> Callable[[], Any]:
        handle = getattr(adapter, method)(given, layout(given))
        return lambda: adapter.read(handle)

    return begin


def _written(method: str, *operands: Any, first: int = 0) -> Begin:
    def begin(adapter: Calls, given: Array, _count: int, _stack: ExitStack) -> Callable[[], Any]:
        # Sums with ones are not the value given; -0.0 must replace zeros.
        start = np.full(given.shape, first, given.dtype.newbyteorder("="))
        handle = getattr(adapter, method)(adapter.create(start, _few(given)), *operands, given)
        return lambda: adapter.read(handle)

    return begin


def _saved(
    save: Callable[[Calls, str, Array], Any], method: str = "restore", layout: Any = 2
) -> Begin:
    def begin(adapter: Calls, given: Array, count: int, stack: ExitStack) -> Callable[[], Any]:
        path = stack.enter_context(checkpoint_path(adapter))
        save(adapter, path, given)
        if method == "read_rows":
            return lambda: adapter.read_rows(path, "w", 0, count)
        return lambda: getattr(adapter, method)(path, templates_of({"w": given}), layout)

    return begin


def _called(call: Callable[[Calls, Array], Any]) -> Begin:
    return lambda adapter, given, _count, _stack: lambda: call(adapter, given)


def _save_shards(adapter: Calls, path: str, given: Array) -> None:
    adapter.save(path, {"w": given}, _few(given))


def _save_parts(adapter: Calls, path: str, given: Array) -> None:
    rest = (0,) * (given.ndim - 1)
    parts = [((0, *rest), given[:2]), ((2, *rest), given[2:])]
    adapter.save_parts(path, "w", given.shape, given.dtype.newbyteorder("="), parts)


def _spec(given: Array) -> tuple[Any, ...]:
    return (2,), ("x",), (("x",), *((),) * (given.ndim - 1))


_ALL = np.arange(ROWS)
_BOTH = "given returned"
_READS = f"{EACH} {AFTER}"
_PURE = f"{_READS} pure"
_COMPUTED = f"{BYTES} {AFTER} pure"
USES = (
    TensorUse("R-CONCAT-1", "read create", laws=_READS, read=lambda a, h, _: a.read(h)),
    TensorUse("R-SPEC-1", "create_uneven read",
        _created("create_uneven", lambda given: [1, ROWS - 1] if given.ndim > 1 else [ROWS])),
    TensorUse("R-PART-4", "create_partitioned read",
        _created("create_partitioned", lambda given: [_few(given), *[1] * (given.ndim - 1)])),
    TensorUse("R-SV-1", "shards create", laws=f"{EACH} again", shares=_BOTH, read=lambda a, h, _: a.shards(h)),
    TensorUse("R-VAR-1", "index create", None, _head, _READS, "given", lambda a, h, n: a.index(h, (slice(0, n),))),
    TensorUse("R-VAR-1-row", "index create", None, lambda table, _: table[2], _READS, "given",
        lambda a, h, _: a.index(h, (2,))),
    TensorUse("R-MATMUL-1", "matmul create", laws=f"{BYTES} again", shares="given",
        read=lambda a, h, _: a.matmul(np.eye(ROWS, dtype=np.float32), h)),
    TensorUse("R-LOOKUP-2", "lookup create", None, _head, _PURE, "given", lambda a, h, n: a.lookup(h, np.arange(n))),
    TensorUse("R-READ-1", "sparse_read create", None, _head, _PURE, "given",
        lambda a, h, n: a.sparse_read(h, np.arange(n))),
    TensorUse("R-LOOKUP-4", "lookup_clipped create", None, lambda table, n: clipped(table[:n], 4.0), _COMPUTED, "given",
        lambda a, h, n: a.lookup_clipped(h, np.arange(n), 4.0)),
    TensorUse("R-LOOKUP-2-bags", "lookup_bags create", None, _head, _COMPUTED, "given",
        lambda a, h, n: a.lookup_bags(h, [[row] for row in range(n)], None, "sum")),
    TensorUse("R-SV-3-assign", "assign create read", _written("assign")),
    TensorUse("R-SV-3-assign-add", "assign_add create read", _written("assign_add", first=1), _one_more, BYTES),
    TensorUse("R-SV-3-assign-sub", "assign_sub create read", _written("assign_sub", first=1),
        lambda table, _: np.float32(1) - table, BYTES),
    TensorUse("R-SV-3-scatter-update", "scatter create read", _written("scatter", "update", _ALL)),
    TensorUse("R-SV-3-scatter-add", "scatter create read", _written("scatter", "add", _ALL, first=1), _one_more, BYTES),
    TensorUse("R-INIT-2", "initialize_whole", _called(partial(initial, "initialize_whole")), laws="numbers memory",
        shares=_BOTH),
    TensorUse("R-INIT-4-parts", "initialize_parts", _called(partial(initial, "initialize_parts")),
        laws="numbers memory", shares=_BOTH),
    TensorUse("R-CKPT-1", "save restore", _saved(_save_shards)),
    TensorUse("R-CKPT-1-uneven", "restore_uneven save", _saved(_save_shards, "restore_uneven", [1, 3])),
    TensorUse("R-CKPT-1-rows", "read_rows save", _saved(_save_shards, "read_rows"), _head),
    TensorUse("R-POLICY-7", "save_parts restore", _saved(_save_parts)),
    TensorUse("R-POLICY-4", "save_limited restore",
        _saved(lambda a, path, given: a.save_limited(path, {"w": given}, 1, given.nbytes // 2))),
    TensorUse("R-POLICY-7-callback", "save_by_callback restore",
        _saved(lambda a, path, given: save_halves(a, path, {"w": given}))),
    TensorUse("V-MESH-1", "mesh_parts", _called(lambda a, given: a.mesh_parts(given, (2,), (0,))), shares=_BOTH),
    TensorUse("V-WHOLE-1", "mesh_gather",
        # Copies of a vector, and parts of a table.
        _called(lambda a, given: a.mesh_gather([given] * 2 if given.ndim < 2 else [given[:2], given[2:]], given.shape,
            (2,), (None if given.ndim < 2 else 0,))), shares=_BOTH),
    TensorUse("V-MOVE-1", "mesh_move",
        _called(lambda a, given: a.mesh_move(given, (2,), (0,), (given.ndim // 2,))),
        lambda table, _: np.concatenate(np.split(table, 2, table.ndim // 2)), shares=_BOTH),
    TensorUse("V-MOVE-1-joined", "mesh_move_joined",
        _called(lambda a, given: a.mesh_move_joined(given, (2, 2), (0, 0), (None, None))),
        lambda table, _: np.concatenate([table] * 4), shares=_BOTH),
    TensorUse("V-TERM-1", "mesh_reduce", _called(lambda a, given: a.mesh_reduce([given, given], (2,), 0, "sum", (0,))),
        lambda table, _: table * np.float32(2), BYTES, _BOTH),
    TensorUse("V-SPEC-1", "spec_parts", _called(lambda a, given: a.spec_parts(given, *_spec(given))), shares=_BOTH),
    TensorUse("V-SPEC-1-constraint", "spec_constrained",
        _called(lambda a, given: a.spec_constrained(given, *_spec(given))), shares=_BOTH),
    # Device (1, 0) holds the second half of the first half: row 1.
    TensorUse("V-FSDP-1", "fsdp_parts", _called(lambda a, given: a.fsdp_parts(given, (2, 2))),
        lambda table, _: table[[0, 2, 1, 3]], shares=_BOTH),
    TensorUse("V-FSDP-1-hybrid", "hsdp_parts", _called(lambda a, given: a.hsdp_parts(given, (1, 2, 1), 0, None)),
        shares=_BOTH),
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


def check_passed(adapter: Calls, case: tuple[str, Shape], use: TensorUse, law: str) -> None:
    """Pass on numbers of a dtype, or an array of the other byte order."""
    name, rest = case
    must = counting((ROWS, *rest), name)
    if law == "numbers":
        must = numbers(name, must.shape, 3 * (not rest), not rest)
    given = must if law == "numbers" else must.astype(must.dtype.newbyteorder(">"))
    if law == "strides":
        given = np.asfortranarray(must[::-1])[::-1]
    is_saved = "restore" in use.needs or use.method == "read_rows"
    # A table of float32 is what every implementation has.
    is_plain = (law, name, rest) == ("numbers", "float32", (2,))
    with ExitStack() as stack:
        with refusable(not is_plain):
            read = use.reader(adapter, given, ROWS, stack)
            came = None if is_saved else _joined(_answer(adapter, read))
        if is_saved:
            # What was not refused when it was saved comes back.
            came = _joined(_answer(adapter, read))
    must = use.must(must, ROWS)
    if law != "numbers":
        expect_equal(came, must, ulps=16)
    elif is_saved:
        # A checkpoint also keeps the bits of NaN.
        expect_tensors({"w": came}, {"w": must})
    else:
        expect_bits(came, must)


def check_memory(adapter: Calls, case: tuple[str, Shape], use: TensorUse) -> None:
    """Change what was given, and what came, and read again."""
    name, rest = case
    table, more = counting((ROWS, *rest), name), np.asarray(100, name)
    must = use.must(table, 2).copy()
    given = adapter.name(table.copy(), "given")
    adapter.note(f"given = {text(table)}")
    with ExitStack() as stack:
        read = use.reader(adapter, given, 2, stack)
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
        if use.shares != _BOTH:
            expect_equal(_joined(_answer(adapter, read)), must, ulps=16)


def check_after(adapter: Calls, case: tuple[str, Shape], use: TensorUse, law: str) -> None:
    """Read, write, and compare what was read before or afterwards; or only read."""
    value = counting((ROWS, *case[1]))
    handle = adapter.create(value, _few(value))
    before = _joined(_answer(adapter, partial(use.read, adapter, handle, ROWS)))
    expect_equal(before, use.must(value, ROWS), ulps=16)
    if law == "pure":
        expect_equal(adapter.read(handle), value)
        return
    handle = written(adapter, handle, value, case[0])
    if law == "again":
        more = value + np.float32(1)
        came = _joined(_answer(adapter, partial(use.read, adapter, handle, ROWS)))
        expect_equal(came, use.must(more, ROWS), ulps=16)
    else:
        adapter.note("answer")
        expect_equal(before, use.must(value, ROWS), ulps=16)


for _use in USES:
    _rests = ((2,),) if _use.method in ("matmul", "lookup_bags") else RESTS
    # A product, a norm and a sum of terms are of float32.
    _plain = ("float32", "int64") if "numbers" in _use.laws else ("float32",)
    for _law in _use.laws.split():
        _names = EVERY if _law == "numbers" else _plain if _law in BYTES else WRITES
        _before = f"R-READ-2-{_use.method}{'-row' * _use.id.endswith('row')}".replace("_", "-")
        rules(
            (_before if _law == "before" else f"{_use.id}-{_law}",
             f"{_use.needs} read" if _law == "pure" else _use.needs,
             # An implementation may copy only small arrays.
             [*product(_names, (*_rests, (258,)) if _law == "memory" else _rests)],
             partial(check_memory, use=_use) if _law == "memory" else partial(
                 check_after if _law in f"{AFTER} pure" else check_passed, use=_use, law=_law),
             LAWS[_law].format(_use.method) + (KEPT[_use.shares] if _law == "memory" else "")),
        )  # fmt: skip
