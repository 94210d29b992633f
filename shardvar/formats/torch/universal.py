"""DeepSpeed's Universal Checkpoints: a folder for each parameter, as ``ds_to_universal`` writes them.

    zero/NAME/fp32.pt                       a parameter or a buffer, whole
    zero/NAME/exp_avg.pt, exp_avg_sq.pt, …  the states of the optimizer
    zero/NAME/step.pt                       their step; of stage 3 it is in the next file
    zero/optimizer_state.pt                 the groups of the optimizer
    mp_rank_00_model_states.pt, …           the state of the run, with the shapes of the parameters;
                                            of stage 3: zero_pp_rank_0_mp_rank_00_model_states.pt, …

A file has a tensor, or a dict with the tensor ``param`` and with what DeepSpeed needs to cut it again.
Keys are NAME, ``optimizer.state.NAME.exp_avg`` and its like, ``optimizer.param_groups``, and
``optimizer.step`` of stage 3. Stage 3 writes vectors, which get the shape that the model's file says.
Buffers and frozen parameters that have no folder come from the model's file. A parameter that the
model's file names and that has no file ``fp32.pt`` is incomplete.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from shardvar.errors import (
    READ_ERRORS,
    CheckpointError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    MissingFile,
    StorageError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles, open_below
from shardvar.formats.torch.items import TensorView
from shardvar.formats.torch.names import OF_MODEL, UNIVERSAL
from shardvar.formats.torch.places import Stored
from shardvar.formats.torch.shares import whole_of
from shardvar.formats.torch.source import SavedContents, TorchSource, torch_source
from shardvar.formats.torch.state_dict import Unpickled, unpickle
from shardvar.formats.torch.whole import RUN, add_models, add_run
from shardvar.formats.torch.zero import add_buffers, add_frozen, add_shared, param_shapes
from shardvar.pictures.words import named
from shardvar.storage.concurrency import do_all
from shardvar.storage.protocol import ReadableFile, Storage, Traits
from shardvar.wire.damage import WRITE_AGAIN

_STATE = re.compile(rf"{UNIVERSAL}/([^/]+)/([^/]+)\.pt", re.DOTALL)
_WEIGHT = "fp32"
_GROUPS, _STEP = "param_groups.", "optimizer_state_dict.state.0.step"
_COPY = "Copy the whole folder again, or convert the checkpoint again with ds_to_universal.py."


@dataclass(frozen=True, slots=True)
class FilesBelow:
    """The files in and below a folder, by their paths."""

    root: Storage
    """The folder."""

    @property
    def traits(self) -> Traits | None:
        """The cost of a request; None on a local disk."""
        return self.root.traits

    def open(self, name: str) -> ReadableFile:
        """Open a file by its path."""
        return open_below(self.root, name)


def open_universal(storage: Storage, *, is_whole: bool = False) -> TorchSource:
    """Open the files of all parameters, and of the model.

    With ``is_whole``, the keys are all that another Universal Checkpoint is written of (``whole``).
    """
    paths = [*storage.tree()]
    models = [each for each in paths if OF_MODEL.fullmatch(each)]
    if not models:
        cause = f"{storage.path}: mp_rank_00_model_states.pt is missing."
        raise MissingFile(cause, _COPY).in_file("mp_rank_00_model_states.pt")
    others = [*models, *[RUN][: RUN in paths]]
    matches = [*filter(None, map(_STATE.fullmatch, paths))]
    data = DataFiles(FilesBelow(storage), [*others, *(each[0] for each in matches)])
    found, failed = _read_all(data, len(others))
    data.check_in_place()

    contents = SavedContents()
    states = [found[number] for number in range(len(models))]
    shapes = _shapes_of(states, data.names)
    for number, match in enumerate(matches, len(others)):
        name, state = match[1], match[2]
        key = name if state == _WEIGHT else f"optimizer.state.{name}.{state}"
        try:
            if number in failed:
                raise failed[number]
            if is_whole:
                _check_uncut(found[number])
            contents.stored[key] = [_stored(found[number], number, shapes.get(name))]
        except (*READ_ERRORS, StorageError) as error:
            contents.faults[key] = error.at(match[0], repr(key))
    _add_model(contents, data, states)
    if RUN in others:
        _add_optimizer(contents, found[len(models)], len(models))
        if is_whole:
            add_run(contents, len(models), found[len(models)].leaves, [shapes])
    if is_whole:
        add_models(contents, data, range(len(models)))
    _add_missing(contents, [*shapes, *(each[1] for each in matches)])
    if not all(each.archive.has_checksums for each in found.values()):
        contents.unguarded |= contents.stored.keys()
    return torch_source(data, contents)


def _read_all(
    data: DataFiles, needed: int
) -> tuple[dict[int, Unpickled], dict[int, CheckpointError | UnsupportedError | StorageError]]:
    """Return what the files hold, and what is wrong with others; raise for the first ``needed``."""
    found: dict[int, Unpickled] = {}
    failed: dict[int, CheckpointError | UnsupportedError | StorageError] = {}

    def read(number: int) -> None:
        try:
            found[number] = unpickle(data.open(number), may_be_value=True)
        except (*READ_ERRORS, StorageError) as error:
            failed[number] = error

    do_all(read, range(len(data.names)), data.traits)
    for number in sorted(failed)[:1]:
        if number < needed:
            raise failed[number]
    return found, failed


def _shapes_of(states: Sequence[Unpickled], names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters that the files of the model name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for part, name in zip(states, names, strict=False):
        with prefix_errors(name):
            for group in param_shapes(part.leaves):
                shapes |= group
    return shapes


def _stored(part: Unpickled, number: int, shape: tuple[int, ...] | None) -> Stored:
    """Return what the file of a state holds; a vector in the shape of its parameter."""
    key = next((key for key in ("param", "") if key in part.leaves), None)
    if key is None:
        raise MalformedCheckpoint("The file has neither a tensor nor a 'param'.", WRITE_AGAIN)
    if not part.has_tensor(key):
        return Stored(number, part.object(key))
    view = whole_of(part.value(key), part.view)
    own = view.tensor.shape
    # In a dict, the tensor has its own shape. Parts of it that were cut have shapes of their own in
    # the model's file.
    if key or not own or shape is None or own == shape:
        return Stored.whole(number, view)
    if len(own) != 1 or own[0] != prod(shape) or not view.tensor.is_contiguous:
        cause = f"It has the shape {own}, and its parameter {shape}."
        raise InvalidCheckpoint(cause, WRITE_AGAIN)
    return Stored.whole(number, _reshaped(view, shape))


def _reshaped(view: TensorView, shape: tuple[int, ...]) -> TensorView:
    """Return a contiguous tensor in another shape."""
    strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return replace(view, tensor=replace(view.tensor, shape=shape, strides=strides))


def _add_model(contents: SavedContents, data: DataFiles, states: Sequence[Unpickled]) -> None:
    """Add what only the files of the model have: buffers, frozen and shared parameters."""
    rest = SavedContents()
    is_cut = data.names[0].startswith("zero_pp_rank_")
    with prefix_errors(data.names[0]):
        add_buffers(rest, states[0], 0)
        add_frozen(rest, states, 0, 3 if is_cut else 1)
    for key, stored in rest.stored.items():
        contents.stored.setdefault(key, stored)
    add_shared(contents, states[0].leaves)


def _check_uncut(part: Unpickled) -> None:
    """Raise if the file of a state says more of how to cut the tensor than shardvar writes."""
    about = {key: value for key, value in part.leaves.items() if key not in ("", "param")}
    if about not in ({}, {"cat_dim": 0}):
        cause = f"The file says how to cut the tensor: {named(sorted(about))}."
        raise UnsupportedError(cause, "Copy the folder, and change its files one by one.")


def _add_optimizer(contents: SavedContents, part: Unpickled, number: int) -> None:
    """Add the groups of the optimizer, and the step that all parameters of stage 3 have."""
    wanted = {f"optimizer.{key}": key for key in part.leaves if key.startswith(_GROUPS)}
    if _STEP in part.leaves:
        wanted["optimizer.step"] = _STEP
    for key, leaf in wanted.items():
        try:
            stored = (
                Stored.whole(number, whole_of(part.value(leaf), part.view))
                if part.has_tensor(leaf)
                else Stored(number, part.object(leaf))
            )
            contents.stored.setdefault(key, [stored])
        except READ_ERRORS as error:
            contents.faults[key] = error.at(RUN, repr(key))


def _add_missing(contents: SavedContents, names: Sequence[str]) -> None:
    """Make faults of parameters without values."""
    for key in dict.fromkeys(names):
        if key not in contents.stored and key not in contents.faults:
            cause = f"{key!r}: {UNIVERSAL}/{key}/{_WEIGHT}.pt is missing."
            contents.faults[key] = IncompleteCheckpoint(cause, _COPY)
