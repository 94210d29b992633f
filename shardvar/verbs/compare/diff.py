"""Diff: compare the tensors of two checkpoints in any formats and slices.

It compares keys, dtypes, shapes, and then values. Both checkpoints are walked through block by
block in the same order (``compare.blocks``), so that neither is ever held whole, and every
checksum on the way is compared. A tensor that cannot be read is named with its error, and hides no
other.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import TYPE_CHECKING

from shardvar.engine.pool import Progress
from shardvar.errors import (
    ArgumentError,
    ShardvarError,
    UnsupportedError,
)
from shardvar.formats.published import delta_error
from shardvar.formats.table import is_companion
from shardvar.pictures.words import natural_key
from shardvar.planning.index import DELTA
from shardvar.records import replace
from shardvar.verbs.arguments import check_progress, named_arguments
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.compare.comparison import DiffReport, Unreadable
from shardvar.verbs.compare.distances import Tolerance
from shardvar.verbs.compare.walk import PairWalk, compare_keys, comparer_of
from shardvar.verbs.locate import (
    NOT_OPENED,
    Location,
    Path,
    SplitPath,
    find_below,
    find_checkpoint,
    look_at,
    only_one,
)
from shardvar.verbs.problems import Damage
from shardvar.verbs.reader import Reader, open_found
from shardvar.verbs.renaming import Globs, new_names, select_keys
from shardvar.verbs.together.executors import Opening, check_executor

if TYPE_CHECKING:
    from shardvar.maps.map import Map
    from shardvar.maps.report import MapReport
    from shardvar.verbs.mapping import MapLike


@named_arguments
def diff(
    a: Path,
    b: Path,
    *,
    progress: Progress = lambda _nbytes: None,
    filter: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    map: "MapLike | None" = None,
    rtol: float | None = None,
    atol: float | None = None,
    close: bool = False,
    ignore_dtype: bool = False,
    dequantize: bool | str = False,
    executor: Executor | None = None,
) -> DiffReport:
    """Compare two checkpoints, tensor by tensor and element by element; formats, slices and files
    do not matter.

    Parameters
    ----------
    a : path_like
        The first checkpoint.
    b : path_like
        The second checkpoint. Of two folders, the other checkpoints in them are compared too, by
        their paths, unless options choose or rename keys: see ``others`` of the report.
    progress : callable, optional
        Called with numbers of payload bytes as they are compared, of both checkpoints.
    filter : str or iterable of str, optional
        Globs of the names in ``b``; at least one must match. all tensors by default.
    exclude : str or iterable of str, optional
        Globs of the names in ``b``; none may match.
    rename : mapping of str to str, optional
        The names in ``b`` by the keys of ``a``, in the forms of ``sv.reshard``.
    map : Map, path_like or list of str, optional
        A map between model families, as ``sv.Map``: the tensors that it makes of ``a`` are compared with ``b``.
        If it reads or makes ranks, a path with ``{rank}``, or a folder of ``rank_0``, ``rank_1``
        ..., means the checkpoints of all of them.
    rtol : float, optional
        The part of the magnitude in ``b`` that elements may be apart. 0 if only ``atol`` is given.
    atol : float, optional
        The distance that elements may be apart. 0 if only ``rtol`` is given.
    close : bool, default False
        Use the tolerances of the dtypes where ``rtol`` or ``atol`` is not given.
    ignore_dtype : bool, default False
        Allow that dtypes differ.
    dequantize : bool or dtype, default False
        Compare the numbers of quantised tensors of both, as ``sv.open_checkpoint`` reads them.
    executor : concurrent.futures.Executor, optional
        An executor whose workers compare the tensors.

    Returns
    -------
    DiffReport
        The report. A damaged tensor is listed as unreadable, and hides no other.

    Raises
    ------
    CheckpointNotFound
        If there is no checkpoint at one of the paths.
    AmbiguousPath
        If a path matches several checkpoints.
    CheckpointError
        If an index is damaged.
    ArgumentError
        If a tolerance is not a finite number >= 0, or a glob or a name matches nothing.

    Notes
    -----
    Without a tolerance elements are the same if their bits are; see ``compare_arrays`` for NaNs,
    zeros and other dtypes. With one, they are the same if ``|a - b| <= atol + rtol * |b|``. Every
    payload of tensors that both have with one shape is verified. Bytes that no tensor has are not
    compared, such as the rest of a PyTorch storage whose parts are the tensors, and neither is the
    checksum of such a storage: ``sv.verify`` compares it. Memory: some blocks of 4 MiB.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> one, two = (os.path.join(tempfile.mkdtemp(), "model") for _ in range(2))
    >>> _ = sv.save(one, {"x": np.array([1, 2, 3])}), sv.save(two, {"x": np.array([1, 2, 5])}, partition=2)
    >>> sv.diff(one, two).differences[0].values.first
    (2,)
    """
    tolerance = Tolerance.of(rtol, atol, close)
    check_executor(executor)
    check_progress(progress)
    given: Map | None = None
    if map is not None:
        from shardvar.verbs.mapping import as_map, paths_of_ranks  # few comparisons have one

        given = as_map(map)
    files = set[str]()
    compare = partial(
        _diff,
        files=files,
        given=given,
        chosen=(filter, exclude),
        rename=rename or {},
        tolerance=tolerance,
        ignore_dtype=ignore_dtype,
        dequantize=dequantize,
        executor=executor,
        progress=progress,
    )
    if given is None:
        one, other = look_at(a), look_at(b)
        if not (one.name or other.name or rename or filter or exclude):
            return _diff_folders(one, other, compare, files)
        found = [[only_one(each, find_below(each))] for each in (one, other)]
    else:
        found = [
            [find_checkpoint(each) for each in paths_of_ranks(path, given, is_made=is_made)]
            for path, is_made in ((a, False), (b, True))
        ]
    report = compare(*found)
    if len(found[0]) > 1:
        report = replace(report, path_a=os.fsdecode(a))
    return replace(report, path_b=os.fsdecode(b)) if len(found[1]) > 1 else report


def _diff_folders(
    a: SplitPath,
    b: SplitPath,
    compare: Callable[[list[Location], list[Location]], DiffReport],
    files: set[str],
) -> DiffReport:
    """Compare what two folders mean, if it is one checkpoint each, and all else by its path;
    ``compare`` adds the paths of the files that it reads to ``files``."""
    from shardvar.verbs.newest import contents_of  # of folders

    one, other = (contents_of(place, find_below(place)) for place in (a, b))
    is_one = len(one.meant) == len(other.meant) == 1 or not (one.meant and other.meant)
    own = DiffReport(a.storage.path, b.storage.path, (), (), (), (), 0)
    if is_one:
        own = compare([only_one(a, one.meant)], [only_one(b, other.meant)])
    left, right = (
        {
            os.path.relpath(os.path.join(x.storage.path, x.stem), each.place.storage.path): x
            for x in (each.others if is_one else each.all)
        }
        for each in (one, other)
    )
    others, not_compared = list[DiffReport](), list[str]()
    for name in left.keys() & right.keys():
        try:
            others.append(compare([left[name]], [right[name]]))
        except NOT_OPENED as error:
            if isinstance(error, UnsupportedError) and is_companion(left[name].name):
                not_compared.append(left[name].name)  # only its own program reads it
                continue
            side = "a"
            with suppress(ShardvarError):
                left[name].open().close()
                side = "b"
            broken = (Unreadable(side, Damage.of(error)),)
            others.append(DiffReport(left[name].path, right[name].path, (), (), (), broken, 0))
    for name in left.keys() ^ right.keys():
        found = left.get(name) or right[name]
        with suppress(*NOT_OPENED), closing(found.open()) as source:
            files.update(found.paths_of(source))
    for each in (one, other):
        not_compared += each.unread(files.union(found.path for found in each.all))
    return replace(
        own,
        others=tuple(sorted(others, key=lambda each: natural_key(each.path_a))),
        checkpoints_only_in_a=tuple(left[each].path for each in sorted(left.keys() - right.keys())),
        checkpoints_only_in_b=tuple(
            right[each].path for each in sorted(right.keys() - left.keys())
        ),
        not_compared=tuple(sorted({*not_compared})),
    )


def _opened(found: list[Location], dequantize: bool | str) -> Reader:
    if len(found) == 1:
        return open_found(found[0], dequantize=dequantize)
    from shardvar.verbs.joining import open_numbered  # of several ranks

    return open_numbered(found, None, None, dequantize=dequantize)


def _selected(keys: list[str], chosen: tuple[Globs, Globs], *, has_map: bool) -> set[str]:
    try:
        return select_keys(keys, *chosen)
    except ArgumentError as error:
        if not has_map:
            raise
        cause = f"{error.cause} With a map, filter and exclude take the keys that it makes."
        raise ArgumentError(cause, error.remedy) from None


def _diff(
    a: list[Location],
    b: list[Location],
    *,
    files: set[str],
    given: "Map | None",
    chosen: tuple[Globs, Globs],
    rename: Mapping[str, str],
    tolerance: Tolerance | None,
    ignore_dtype: bool,
    dequantize: bool | str,
    executor: Executor | None,
    progress: Progress,
) -> DiffReport:
    """As ``diff``, of two checkpoints, each of which may be in several ranks."""
    with ExitStack() as stack:
        found = a, b
        openings = [Opening(first, dequantize, tuple(more)) for first, *more in found]
        one, other = (stack.enter_context(_opened(each, dequantize)) for each in found)
        for (first, *_), each in zip(found, (one, other), strict=True):
            files.update(first.paths_of(each.source))
            if DELTA in each.index.metadata.user:
                raise delta_error(each.path, each.index)
        report_of_map: Callable[[], MapReport] | None = None
        if given is not None:
            from shardvar.verbs.mapping import check_numbered, map_and_report

            ranks = len(found[0]) if len(found[0]) > 1 else None
            one, report_of_map = map_and_report(one, given, ranks=ranks)
            check_numbered(other, given)
        made = list(one)
        if rename:
            from shardvar.verbs.mapping import renamed_reader

            one = renamed_reader(one, rename)
        keys = _selected(list(dict.fromkeys([*one, *other])), chosen, has_map=given is not None)
        keys_a, keys_b = ([key for key in each if key in keys] for each in (one, other))
        walk = PairWalk(Blocks.of(one), Blocks.of(other), tolerance, ignore_dtype, progress)
        report = compare_keys(
            one, other, walk, keys_a, keys_b, comparer_of(walk, executor, openings)
        )
        if report_of_map is None:
            return report
        names = dict(zip(new_names(made, rename), made, strict=True))
        unlike = {names[key] for key in report.unlike_in_a()}
        return replace(report, map=report_of_map().compared(unlike))
