"""Conversions: which tensors change their names, their axes or their dtypes on the way from a source
to a target?

    stored entries --names, transpose--> --cast--> entries to write

New names and transposes are one map, whose rules are ``KEY -> NAME`` and ``KEY[a b] -> NAME[b a]``.
Each step gives entries and a source that reads them, so that planning and the engine see tensors as
they will be. Globs are of the keys of the target. A glob that matches nothing is an error.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardvar.engine.cast import CastSource, cast_entries
from shardvar.engine.mapped import mapped
from shardvar.errors import ArgumentError
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import ITEMSIZES, Bools, is_whole, parse_dtype
from shardvar.maps.plan import plan_short_rules
from shardvar.pictures.words import human_shape, message, named
from shardvar.planning.index import EntryTable
from shardvar.planning.slices import TensorTable
from shardvar.storage.scratch import map_scratch
from shardvar.verbs.arguments import check_globs, strings_of
from shardvar.verbs.numbers import is_floating
from shardvar.verbs.quantization import DTYPES
from shardvar.verbs.renaming import matches_any, matching, such_as

_LOG = logging.getLogger("shardvar.checkpoint")
_NEW = "Globs are of the names in the target. "


@dataclass(frozen=True, slots=True)
class Conversions:
    """The tensors to convert, by globs of their keys in the target."""

    cast: Mapping[str, str] | str | None
    """Dtypes by globs, or the dtype of all floating-point tensors."""
    transpose: str | Iterable[str] | None
    """Globs of matrices to transpose."""

    def dtype_of_numbers(self, dequantize: bool | str) -> bool | str:
        """Return the dtype to dequantize to: the one of a cast, so that a number is rounded once.

        A cast of some tensors begins with float32.
        """
        if dequantize is not True or not self.cast:
            return dequantize
        dtype = parse_dtype(self.cast) if isinstance(self.cast, str) else "float32"
        return dtype if dtype in DTYPES else "float32"

    def of(
        self,
        source: Source,
        stored: EntryTable,
        names: Sequence[str],
        encodings: Mapping[str, str],
        lost: Sequence[str] = (),
    ) -> tuple[EntryTable, Source]:
        """Return the converted entries and the source that reads them.

        ``names`` are the tensors' new names, by which ``encodings`` are given. A glob that matches
        only ``lost`` tensors, which are left out, is not wrong.
        """
        tensors = stored.slices.tensors
        is_matrix = _transposed(tensors, names, self.transpose, encodings, lost)
        if is_matrix.any() or names is not tensors.keys:
            plan = plan_short_rules(tensors, names, is_matrix)
            stored, source = mapped(source, stored, plan, map_scratch)
        return _cast(source, stored, {} if self.cast is None else self.cast, encodings, lost)


def warn_without_scales(path: str, source: Source, entries: EntryTable) -> None:
    """Warn of tensors that a cast makes floats of at most 8 bits: it only rounds, and programs that
    read such models expect scales."""
    if not isinstance(source, CastSource):
        return
    tensors, before = entries.slices.tensors, source.stored.slices.tensors.codes
    rows = np.flatnonzero((ITEMSIZES[tensors.codes] == 1) & (ITEMSIZES[before] > 1)).tolist()
    dtypes = {tensors.keys[row]: tensors.dtype(row) for row in rows}
    keys = [key for key, dtype in dtypes.items() if is_floating(dtype)]
    if keys:
        kinds = ", ".join(dict.fromkeys(map(dtypes.__getitem__, keys)))
        cause = f"{path}: no scales are written with {named(keys)}, cast to {kinds}."
        remedy = (
            "Programs that run such models expect scales (weight_scale): quantise with their tools."
        )
        _LOG.warning("%s", message(f"{cause} {remedy}"))


def _transposed(
    tensors: TensorTable,
    names: Sequence[str],
    transpose: str | Iterable[str] | None,
    encodings: Mapping[str, str],
    lost: Sequence[str],
) -> Bools:
    """[n] True for the matrices that globs of new names take."""
    ranks = tensors.ranks.tolist()
    is_matrix = np.zeros(len(tensors), np.bool)
    for glob in [] if transpose is None else strings_of(transpose, "globs"):
        hits = [row for row, name in enumerate(names) if matches_any(name, [glob])]
        for row in hits:
            _check_transposable(names[row], tensors.dtype(row), tensors.shape(row), encodings)
        # As in NumPy, a vector is its own transpose: a glob of kernels may match biases too.
        matrices = [row for row in hits if ranks[row] == 2]
        if not matrices and not matching(lost, glob):
            found = [name for name, rank in zip(names, ranks, strict=True) if rank == 2]
            raise ArgumentError(
                f"No matrix matches {glob!r}, so none is transposed.", _NEW + such_as(found)
            )
        is_matrix[matrices] = True
    return is_matrix


def _check_transposable(
    key: str, dtype: str, shape: tuple[int, ...], encodings: Mapping[str, str]
) -> None:
    """Raise ``ArgumentError`` for tensors that have no transpose, or several."""
    if len(shape) > 2:
        cause = f"{key!r} has the shape {human_shape(shape)}, and only matrices are transposed."
        raise ArgumentError(cause, "Choose a glob that does not match it.")
    if len(shape) == 2 and is_whole(dtype):
        raise ArgumentError(
            f"{key!r} is of dtype {dtype}, which is never cut or transposed.", "Choose numbers."
        )
    if key in encodings:
        cause = (
            f"{key!r} consists of blocks of {encodings[key]}: transposed, their bytes would mean "
            "nothing."
        )
        raise ArgumentError(cause, "Dequantize first: `--dequantize`, in Python `dequantize=True`.")


def _cast(
    source: Source,
    stored: EntryTable,
    cast: Mapping[str, str] | str,
    encodings: Mapping[str, str],
    lost: Sequence[str],
) -> tuple[EntryTable, Source]:
    """The entries with the dtypes that they are cast to, and the source that converts them."""
    dtypes = (
        _matching(stored, cast, lost) if isinstance(cast, Mapping) else _floats(stored, cast, lost)
    )
    if not dtypes:
        return stored, source
    for key in filter(encodings.__contains__, dtypes):
        cause = (
            f"{key!r} consists of blocks of {encodings[key]}: cast to {dtypes[key]}, their bytes "
            "would mean nothing."
        )
        raise ArgumentError(cause, "Dequantize first: `--dequantize`, in Python `dequantize=True`.")
    return cast_entries(stored, dtypes), CastSource.of(source, stored)


def _floats(stored: EntryTable, given: str, lost: Sequence[str]) -> dict[str, str]:
    """The dtype, for each floating-point tensor."""
    dtype, tensors = parse_dtype(given), stored.slices.tensors
    floats = [key for row, key in enumerate(tensors.keys) if is_floating(tensors.dtype(row))]
    if not floats and not lost:
        raise ArgumentError(
            f"No tensor has floating-point numbers, so none is cast to {dtype}.", "Leave it out."
        )
    return dict.fromkeys(floats, dtype)


def _matching(stored: EntryTable, globs: Mapping[str, str], lost: Sequence[str]) -> dict[str, str]:
    """The dtype of each tensor that matches a glob; of several, the last one counts."""
    check_globs(globs, "globs to dtypes")
    dtypes: dict[str, str] = {}
    for glob, given in globs.items():
        dtype = parse_dtype(given)
        hits = matching(stored.slices.tensors.keys, glob)
        if not hits and not matching(lost, glob):
            cause = f"No tensor matches {glob!r}, so none is cast to {dtype}."
            raise ArgumentError(cause, _NEW + such_as(stored.slices.tensors.keys))
        dtypes |= dict.fromkeys(hits, dtype)
    return dtypes
