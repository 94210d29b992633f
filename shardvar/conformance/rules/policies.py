"""Level 7: what decides which file holds what may re-slice tensors, and may not lose, reshape or
cast them."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Calls, expect, expect_equal
from shardvar.conformance.rules import rule, rules
from shardvar.conformance.rules.cases import EVERY, RESTS, numbers, refusable
from shardvar.conformance.rules.checkpoints import (
    NamedArrays,
    bands,
    checkpoint_path,
    expect_listed,
    expect_restored,
    save_parts,
    templates_of,
)
from shardvar.layout.dtypes import Array
from shardvar.testing import counting

Files = list[list[tuple[str, int, Array]]]
Limited = tuple[NamedArrays, int, int]


@st.composite
def models(draw: st.DrawFn) -> NamedArrays:
    # At least two rows of ``w``, so that a callback can drop one and keep one.
    tensors = {
        "w": counting((draw(st.integers(2, 9)), 2)),
        "bias": -counting((draw(st.integers(1, 4)),)),
    }
    if draw(st.booleans()):
        tensors["step"] = np.array(7, np.int64)
    return tensors


# From 8 bytes on every limit can be kept: a row of ``w`` takes 8 bytes, and so does ``step``.
_LIMITED = st.tuples(models(), st.integers(1, 2), st.integers(8, 100))


@rule("R-POLICY-4", "save_limited restore", _LIMITED)
def limited_files_are_restored(adapter: Calls, case: Limited) -> None:
    """Tensors, sharded or not, are saved in files of limited size and restored bit for bit."""
    tensors, num_shards, limit = case
    with checkpoint_path(adapter) as path:
        adapter.save_limited(path, dict(tensors), num_shards, limit)
        expect_restored(adapter, path, tensors)


# In another process, since an implementation that cuts until every slice fits never returns.
@rule("R-POLICY-4-tiny", "save_limited restore",
      st.tuples(models(), st.just(1), st.integers(1, 8)), isolated=True)  # fmt: skip
def tiny_limits_end(adapter: Calls, case: Limited) -> None:
    """A limit below the size of a row is refused or kept as nearly as can be, and saving ends."""
    tensors, num_shards, limit = case
    with checkpoint_path(adapter) as path:
        adapter.attempt("save_limited", path, tensors, num_shards, limit)
        expect_restored(adapter, path, tensors)


@rule("R-POLICY-4-size", "save_limited file_nbytes", _LIMITED)
def limits_are_kept(adapter: Calls, case: Limited) -> None:
    """No file holds more bytes of payload than the limit."""
    tensors, num_shards, limit = case
    with checkpoint_path(adapter) as path:
        adapter.save_limited(path, tensors, num_shards, limit)
        came = [int(nbytes) for nbytes in adapter.file_nbytes(path)]
    expect(
        max(came, default=0) <= limit,
        f"Files hold {came} bytes.",
        f"None must hold more than {limit}.",
    )
    # A list that leaves out files would keep any limit.
    total = sum(array.nbytes for array in tensors.values())
    expect(sum(came) >= total, f"Files hold {came} bytes.", f"Together they must hold {total}.")


@rule("R-POLICY-4-size-numbers", "file_nbytes save_limited", [*product(EVERY, RESTS)])
def limits_are_of_bytes(adapter: Calls, case: tuple[str, tuple[int, ...]]) -> None:
    """No file holds more bytes than the limit, whatever the dtype and the axes of its tensors, or
    they are refused."""
    value = numbers(case[0], (16, *case[1]))
    with refusable():
        limits_are_kept(adapter, ({"w": value}, 1, 3 * value.nbytes // 16))


def whole(tensors: NamedArrays) -> Files:
    return [[(key, 0, np.asarray(array))] for key, array in tensors.items()]


def halved(tensors: NamedArrays) -> Files:
    files: Files = [[], []]
    for key, given in tensors.items():
        array = np.asarray(given)
        middle = len(array) // 2 if array.ndim else 0
        if middle:
            # The later rows come first.
            files[1].append((key, 0, array[:middle]))
            files[0].append((key, middle, array[middle:]))
        else:
            files[0].append((key, 0, array))
    return files


def removed(tensors: NamedArrays) -> Files:
    # The callback changes its argument too, and an implementation must not use that dict afterwards.
    tensors.popitem()
    return whole(tensors)


def _changed(tensors: NamedArrays, change: Callable[[Array], Array]) -> Files:
    """Return a file for each tensor, with another ``w``."""
    return whole(tensors | {"w": change(np.asarray(tensors["w"]))})


def rows_removed(tensors: NamedArrays) -> Files:
    return _changed(tensors, lambda array: array[:-1])


def reshaped(tensors: NamedArrays) -> Files:
    return _changed(tensors, np.ravel)


def cast(tensors: NamedArrays) -> Files:
    return _changed(tensors, lambda array: array.astype(np.float64))


def tripled(tensors: NamedArrays) -> NamedArrays:
    """The tensors whose values ``modified_halves`` gives."""
    return {key: np.asarray(array * 3, array.dtype) for key, array in tensors.items()}


def modified_halves(tensors: NamedArrays) -> Files:
    return halved(tripled(tensors))


def given_twice(tensors: NamedArrays) -> Files:
    """A file for each tensor, and one that contradicts the first of them."""
    key, array = next(iter(tensors.items()))
    return [*whole(tensors), [(key, 0, np.asarray(array * 2, array.dtype))]]


def rows_given_twice(tensors: NamedArrays) -> Files:
    """The same, of one row."""
    key, array = next(iter(tensors.items()))
    return [*whole(tensors), [(key, 1, np.asarray(array[1:2] * 2, array.dtype))]]


def invented(tensors: NamedArrays) -> Files:
    """A file for each tensor, and for one that was not saved."""
    return [*whole(tensors), [("invented", 0, counting((3, 2)))]]


def save_by(
    adapter: Calls,
    path: str,
    tensors: NamedArrays,
    callback: Callable[[NamedArrays], Files],
    description: str = "By the kit.",
) -> Any:
    # Callbacks are functions of this module, so that the program can import them.
    adapter.note(f"from shardvar.conformance.rules.policies import {callback.__name__}")
    return adapter.save_by_callback(path, tensors, callback, description)


save_halves = partial(save_by, callback=halved)


def check_callback(
    adapter: Calls,
    tensors: NamedArrays,
    callback: Callable[[NamedArrays], Files],
    saved: Callable[[NamedArrays], NamedArrays | None] = lambda tensors: tensors,
    is_refusable: bool = True,
) -> None:
    """Save by a callback, and restore the tensors that are saved then; a contradiction is refused."""
    with checkpoint_path(adapter) as path:
        with refusable(is_refusable):
            save_by(adapter, path, dict(tensors), callback)
        must = saved(tensors)
        if must is None:
            adapter.refuses("restore", path, templates_of(tensors), 1)
        else:
            expect_restored(adapter, path, must)


rules(*(
    (name, "save_by_callback restore", models(), partial(check_callback, callback=callback, **more), law)
    for name, callback, more, law in (
        ("R-POLICY-7-callback", halved, {"is_refusable": False},
         "A callback that puts halves of tensors in different files is obeyed, and everything is restored"),
        ("R-POLICY-1", removed, {},
         "If a callback drops a tensor, saving is refused or the tensor is saved all the same"),
        ("R-POLICY-1-rows", rows_removed, {},
         "If a callback drops rows of a tensor, saving is refused or the rows are saved all the same"),
        ("R-POLICY-2", reshaped, {},
         "If a callback reshapes a tensor, saving is refused or the shape is kept all the same"),
        ("R-POLICY-3", cast, {}, "If a callback casts a tensor, saving is refused or the dtype is kept all the same"),
        ("R-POLICY-1-invented", invented, {"saved": lambda tensors: tensors | {"invented": counting((3, 2))}},
         "A tensor that a callback adds is refused, or saved with the others: it is not dropped"),
        ("R-POLICY-13", modified_halves, {"saved": tripled, "is_refusable": False},
         "Values that a callback changed are saved, also if it cuts the tensors"),
        ("R-POLICY-1-twice", given_twice, {"saved": lambda _: None},
         "A tensor that a callback gives twice, with different values, is refused when it is saved or restored"),
        ("R-POLICY-1-twice-rows", rows_given_twice, {"saved": lambda _: None},
         "A row that a callback gives twice, with different values, is refused when it is saved or restored"),
    )
))  # fmt: skip


@rule("R-POLICY-5", "save_by_callback", models())
def callbacks_are_called_once(adapter: Calls, case: NamedArrays) -> None:
    """A callback is called once for each save, and sees every tensor then."""
    seen: list[list[str]] = []

    def counted(tensors: NamedArrays) -> Files:
        seen.append(sorted(tensors))
        return whole(tensors)

    with checkpoint_path(adapter) as path:
        adapter.note(
            "from shardvar.conformance.rules.policies import whole as counted  # and count the "
            "calls"
        )
        adapter.save_by_callback(path, case, counted, "By the kit.")
    must = [sorted(case)]
    expect(seen == must, f"It was called with {seen}.", f"It must be called with {must}.")


@rule("R-POLICY-6", "save_by_callback description", [
    "By the kit.", "größer als 1 MiB", "大きい", "", "two\r\nlines\n", 'a "quoted" one', " ", "x" * 500])  # fmt: skip
def descriptions_are_saved(adapter: Calls, description: str) -> None:
    """The description in the checkpoint is the callback's, whatever characters it has."""
    with checkpoint_path(adapter) as path:
        save_by(adapter, path, {"w": -counting((4, 2))}, whole, description)
        came = adapter.description(path)
    expect(came == description, f"It gave {came!r}.", f"It must give {description!r}.")


# Keys and extents, by each method that writes or reads.


def save_columns(adapter: Calls, path: str, tensors: NamedArrays) -> None:
    save_parts(adapter, path, (tensors["w"], bands(tensors["w"], [(0, 1), (1, 2)], axis=1)))


_SAVE: dict[str, Callable[[Calls, str, NamedArrays], None]] = {
    "save": lambda adapter, path, tensors: adapter.save(path, tensors, 2),
    "save_parts": save_columns,
    "save_limited": lambda adapter, path, tensors: adapter.save_limited(path, tensors, 1, 40),
    "save_by_callback": save_halves,
}


def check_saved(adapter: Calls, tensors: NamedArrays, method: str, save: str = "save") -> None:
    with checkpoint_path(adapter) as path, refusable(tuple(tensors) in _ODD):
        _SAVE[method if method in _SAVE else save](adapter, path, tensors)
        if method == "list_tensors":
            expect_listed(adapter, path, tensors)
        elif method == "restore_uneven":
            for key, value in tensors.items():
                expect_restored(adapter, path, {key: value}, [1, len(value) - 1])
        elif method == "read_rows":
            for key, value in tensors.items():
                expect_equal(adapter.read_rows(path, key, 1, 3), value[1:3])
        else:
            expect_restored(adapter, path, tensors)


_KEYS = [("k" * n + "a", "k" * n + "b", "k" * n) for n in (31, 64, 180)]
_ODD = [("a/b", "a//b", "a\\b", "/a/b"), ("a#1", "a#2", "a"), ("a\0b", "a\0", "a"), ("", ".", ".."),
        ("a\n", "a", "a\t"), *(("k" * n + "a", "k" * n) for n in (255, 1024, 4096))]  # fmt: skip
"""Keys that an implementation may refuse."""
_LONG: list[NamedArrays] = [
    {key: counting((4 + n, 2)) * np.float32(n + 1) for n, key in enumerate(keys)}
    for keys in (*_KEYS, [f"layers.{n}" for n in range(30)], *_ODD)
]
rules(
    *(
        (f"{name}-keys-long", f"{method} {'restore' if method in _SAVE else 'save'}", _LONG,
         partial(check_saved, method=method),
         f"Tensors whose long keys differ only at their ends, and many tensors, are kept apart by `{method}`")
        for name, method in (
            ("R-CKPT-1", "restore"), ("R-CKPT-1-uneven", "restore_uneven"), ("R-CKPT-1-rows", "read_rows"),
            ("R-POLICY-1-list", "list_tensors"), ("R-POLICY-4", "save_limited"),
            ("R-POLICY-7-callback", "save_by_callback"))
    ),
    *(
        (f"{name}-{suffix}", f"{method} {save}", [{"w": counting((rows, 2))} for rows in (5, 9)],
         partial(check_saved, method=method, save=save), f"`{method}` reads what `{save}` cut in parts")
        for name, method in (("R-CKPT-1-uneven", "restore_uneven"), ("R-CKPT-1-rows", "read_rows"),
                             ("R-POLICY-1-list", "list_tensors"))
        for suffix, save in (("parts", "save_parts"), ("limited", "save_limited"), ("callback", "save_by_callback"))
    ),
    *(
        (f"{name}-empty", f"{method} restore",
         [{"w": counting((4, 2)), "none": -np.zeros(shape, np.float32)} for shape in ((0,), (0, 3), ())],
         partial(check_saved, method=method),
         f"Scalars, and tensors without elements, are saved by `{method}` as they are")
        for name, method in (("R-POLICY-4", "save_limited"), ("R-POLICY-7-callback", "save_by_callback"))
    ),
)  # fmt: skip
