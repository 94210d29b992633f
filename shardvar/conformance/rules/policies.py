"""Level 7: what decides which file holds what may re-slice tensors, and may not lose, reshape or
cast them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import REFUSED, Calls, expect
from shardvar.conformance.rules import rule, rules
from shardvar.conformance.rules.checkpoints import (
    PRESENT,
    RESLICING,
    NamedArrays,
    checkpoint_path,
    expect_restored,
    expect_saved,
    templates_of,
)
from shardvar.layout.dtypes import Array
from shardvar.testing import counting

LIMIT = (
    "Every shard on the right has a maximum size of 500MB, so some tensors are split among "
    "multiple shards."
)
REMOVED = "Tensors must not be removed from the checkpoint."
RESHAPED = "Tensors must not be reshaped."
CAST = "Tensor dtypes must not change."
ONCE = "The callback will only be called once for a given `checkpoint.save()` call."
DESCRIBED = "The `description` is saved alongside the tensor data in the checkpoint"

MODIFIED = (
    "Note that not only can the sharding callback rearrange tensors, but also modify tensors."
)

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


def check_limited(adapter: Calls, case: Limited) -> None:
    tensors, num_shards, limit = case
    with checkpoint_path(adapter) as path:
        adapter.save_limited(path, tensors, num_shards, limit)
        expect_restored(adapter, path, tensors)


# From 16 bytes on every limit can be kept: a row of ``w`` takes 8 bytes, and so does ``step``.


rules(7, "001",
    ("R-POLICY-4", LIMIT, "save_limited restore",
     st.tuples(models(), st.just(1), st.integers(16, 100)), check_limited,
     "A checkpoint saved in files of limited size is restored bit for bit"),
    ("R-POLICY-4-shards", LIMIT, "save_limited restore",
     st.tuples(models(), st.just(2), st.integers(16, 100)), check_limited,
     "A variable that is sharded already is saved in files of limited size and restored bit for bit"),
)  # fmt: skip


# In another process, since an implementation that cuts until every slice fits never returns.
@rule("R-POLICY-4-tiny", 7, "001", LIMIT, "save_limited restore",
      st.tuples(models(), st.just(1), st.integers(1, 8)), isolated=True)  # fmt: skip
def tiny_limits_end(adapter: Calls, case: Limited) -> None:
    """A limit below the size of a row is refused or kept as nearly as can be, and saving ends."""
    tensors, num_shards, limit = case
    with checkpoint_path(adapter) as path:
        if adapter.attempt("save_limited", path, tensors, num_shards, limit) is not REFUSED:
            expect_restored(adapter, path, tensors)


@rule("R-POLICY-4-size", 7, "001", LIMIT, "save_limited file_nbytes",
      st.tuples(models(), st.integers(1, 2), st.integers(16, 100)))  # fmt: skip
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


def whole(tensors: NamedArrays) -> Files:
    return [[(key, 0, np.asarray(array))] for key, array in tensors.items()]


def halved(tensors: NamedArrays) -> Files:
    files: Files = [[], []]
    for key, given in tensors.items():
        array = np.asarray(given)
        middle = len(array) // 2 if array.ndim else 0
        if middle:
            files[0].append((key, 0, array[:middle]))
            files[1].append((key, middle, array[middle:]))
        else:
            files[0].append((key, 0, array))
    return files


def removed(tensors: NamedArrays) -> Files:
    return whole(tensors)[:-1]


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
    """The tensors whose values ``modified`` gives."""
    return {key: np.asarray(array * 3, array.dtype) for key, array in tensors.items()}


def modified(tensors: NamedArrays) -> Files:
    return whole(tripled(tensors))


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


def _save(
    adapter: Calls,
    path: str,
    tensors: NamedArrays,
    callback: Callable[[NamedArrays], Files],
    description: str = "By the kit.",
) -> Any:
    # Callbacks are functions of this module, so that the program can import them.
    adapter.note(f"from shardvar.conformance.rules.policies import {callback.__name__}")
    return adapter.attempt("save_by_callback", path, tensors, callback, description)


def check_callback(
    adapter: Calls,
    tensors: NamedArrays,
    callback: Callable[[NamedArrays], Files],
    is_refusable: bool = True,
) -> None:
    with checkpoint_path(adapter) as path:
        saved = _save(adapter, path, tensors, callback)
        if not is_refusable:
            expect_saved(saved)
        if saved is not REFUSED:
            expect_restored(adapter, path, tensors)


rules(7, "001",
    ("R-POLICY-7-callback", RESLICING, "save_by_callback restore",
     models(), partial(check_callback, callback=halved, is_refusable=False),
     "A callback that puts halves of tensors in different files is obeyed, and everything is restored"),
    ("R-POLICY-1", REMOVED, "save_by_callback restore", models(), partial(check_callback, callback=removed),
     "If a callback drops a tensor, saving is refused or the tensor is saved all the same"),
    ("R-POLICY-1-rows", REMOVED, "save_by_callback restore",
     models(), partial(check_callback, callback=rows_removed),
     "If a callback drops rows of a tensor, saving is refused or the rows are saved all the same"),
    ("R-POLICY-2", RESHAPED, "save_by_callback restore", models(), partial(check_callback, callback=reshaped),
     "If a callback reshapes a tensor, saving is refused or the shape is kept all the same"),
    ("R-POLICY-3", CAST, "save_by_callback restore", models(), partial(check_callback, callback=cast),
     "If a callback casts a tensor, saving is refused or the dtype is kept all the same"),
)  # fmt: skip


@rule("R-POLICY-5", 7, "001", ONCE, "save_by_callback", models())
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
    expect(
        seen == [sorted(case)],
        f"It was called with {seen}.",
        f"It must be called once, with {sorted(case)}.",
    )


def check_description(
    adapter: Calls, tensors: NamedArrays, description: str = "By the kit."
) -> None:
    with checkpoint_path(adapter) as path:
        _save(adapter, path, tensors, whole, description)
        came = adapter.description(path)
    expect(came == description, f"It gave {came!r}.", f"It must give {description!r}.")


rules(7, "001",
    ("R-POLICY-6", DESCRIBED, "save_by_callback description", models(), check_description,
     "The description of the callback is in the checkpoint"),
    ("R-POLICY-6-text", DESCRIBED, "save_by_callback description",
     st.sampled_from(["größer als 1 MiB", "大きい", "", "two\nlines", 'a "quoted" one', " ", "x" * 500]),
     lambda adapter, description: check_description(adapter, {"w": counting((4, 2))}, description),
     "The description in the checkpoint is the callback's, whatever characters it has"),
)  # fmt: skip


def check_modified(
    adapter: Calls, tensors: NamedArrays, callback: Callable[[NamedArrays], Files]
) -> None:
    with checkpoint_path(adapter) as path:
        expect_saved(_save(adapter, path, tensors, callback))
        expect_restored(adapter, path, tripled(tensors))


def check_contradiction(
    adapter: Calls, tensors: NamedArrays, callback: Callable[[NamedArrays], Files]
) -> None:
    with checkpoint_path(adapter) as path:
        if _save(adapter, path, tensors, callback) is not REFUSED:
            adapter.refuses("restore", path, templates_of(tensors), 1)


@rule("R-POLICY-1-invented", 7, "001", PRESENT, "save_by_callback restore", models())
def invented_tensors_are_saved(adapter: Calls, case: NamedArrays) -> None:
    """A tensor that a callback adds is refused, or saved with the others: it is not dropped."""
    with checkpoint_path(adapter) as path:
        if _save(adapter, path, case, invented) is not REFUSED:
            expect_restored(adapter, path, case | {"invented": counting((3, 2))})


rules(7, "001",
    *((f"R-POLICY-13{suffix}", MODIFIED, "save_by_callback restore", models(),
       partial(check_modified, callback=callback), f"Values that a callback changed are saved{law}")
      for suffix, callback, law in (
          ("", modified, ""), ("-halves", modified_halves, ", also if it cuts the tensors"))),
    *((f"R-POLICY-1-twice{suffix}", PRESENT, "save_by_callback restore", models(),
       partial(check_contradiction, callback=callback),
       f"A {noun} that a callback gives twice, with different values, is refused when it is saved or restored")
      for suffix, callback, noun in (("", given_twice, "tensor"), ("-rows", rows_given_twice, "row"))),
)  # fmt: skip
