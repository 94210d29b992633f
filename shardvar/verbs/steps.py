"""The order of checkpoints by their names, and the newest of a series: ``step-2`` comes before
``step-10``.

Names form one series if they differ only in their numbers, as ``epoch=1-step=20.ckpt`` and
``epoch=2-step=40.ckpt`` do, and something shows that these count steps:

    step-10, 10_epochs.pt       a word for a step, with the number
    10/default                  an item in a step of an Orbax manager
    10.pt, weights.10-0.32.h5   only numbers, or with them a word for a model, if they do not count
                                from 0 as ranks do, and the checkpoints hold the same tensors

The newest has the largest numbers of steps, from left to right. These belong to no series:

    best, last                        names without a number
    text_encoder_2, layer-3           numbers of something else
    model.fp16                        a number that names a precision
    mp_rank_01, m-1-of-2.npz          the parts of one save (``formats.parts``)
    step-3-a1, step-3-a2              two of one step
    checkpoint, checkpoint-2          numbers, if the same name without one is there
"""

import os
import re
from collections.abc import Sequence
from contextlib import closing
from typing import Protocol

from shardvar.errors import ShardvarError
from shardvar.formats.protocol import Format, Source
from shardvar.formats.sets import are_parts, count_as_ranks, is_of_several, split_numbers
from shardvar.layout.dtypes import Shape
from shardvar.pictures.words import natural_key
from shardvar.storage.protocol import Storage

_FIXED = (
    r"(?i)(?<![a-z])(?:fp|bf|b?float|u?int|i?q|(?:layer|block|stage|expert|head|fold|split|slice|"
    r"seed|trial|task|group|member|client|agent|encoder|adapter|lora|v)s?[-_.= ]?)[0-9]+|([0-9]{1,18})"
)
"""Numbers, and words whose numbers never count steps."""
_COUNTED = "steps?|iter(?:ation)?s?|epochs?|rounds?|updates?"
_STEP = (
    rf"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))(?i:(?:global|train|time)?(?:{_COUNTED}|checkpoints?|ckpts?|snapshots?))"
    rf"[-_.= ]?([0-9]{{1,18}})|([0-9]{{1,18}})[-_. ]?(?i:{_COUNTED})(?![A-Za-z])(?![-_.= ]?[0-9])"
)
"""A word for a step, and its number."""
_ENDING = r"(\.[A-Za-z][A-Za-z0-9]*)+$"
_BARE = r"(?i)((?<![a-z])(model|weight|param|parameter|net|network|state|dict|save|saved|cp)s?(?![a-z])|[^a-z])*"
"""A name without its ending that has no word but those for a model."""
_JOINT = ("orbax", "torch")
"""The formats whose checkpoints all processes of a job write together."""
_MOST_OPENED = 8
"""The checkpoints of a series that are opened."""


class Openable(Protocol):
    """A checkpoint that can be opened (``locate.Location``)."""

    @property
    def format(self) -> Format:
        """Its format."""

    @property
    def storage(self) -> Storage:
        """The directory that holds it."""

    def open(self) -> Source:
        """Open it for reading."""


def in_series(names: Sequence[str], found: Sequence[Openable] = ()) -> list[str]:
    """Return the names of the only series among them, the newest last; empty if there is none, or
    more than one.

    ``found`` are the checkpoints of the names. Without these, only words for steps count.

    >>> in_series(["step-10", "best", "step-2"]), in_series(["step-1", "epoch-1"])
    (['step-2', 'step-10'], [])
    >>> in_series(["step-1-rank0", "step-1-rank1"]), in_series(["step-1-of-2", "step-2-of-2"])
    ([], [])
    >>> in_series(["vae", "text_encoder_2"]), in_series(["best", "checkpoint-500"]), in_series(["1", "2"])
    ([], ['checkpoint-500'], [])
    """
    patterns = {name: pattern_of(name) for name in names}
    numbered = {name: pattern for name, pattern in patterns.items() if "\1" in pattern}
    if len(set(numbered.values())) != 1 or any(map(is_of_several, numbered)):
        return []
    bare = re.sub("[-_.=]?\1", "", next(iter(numbered.values())))
    series = sorted(numbered, key=lambda name: (_steps_in(name), natural_key(name)))
    if bare in patterns or not (_counts_steps(series) or _is_bare_series(names, series, found)):
        return []
    return series


def _steps_in(name: str) -> list[int]:
    return [int(first or second) for first, second in re.findall(_STEP, split_numbers(name)[0])]


def _counts_steps(series: Sequence[str]) -> bool:
    steps = {*map(tuple, map(_steps_in, series))}
    return len(steps) == len(series) and () not in steps


def _is_bare_series(names: Sequence[str], series: Sequence[str], found: Sequence[Openable]) -> bool:
    """Names without a word but those for a model are of steps if their checkpoints show it."""
    if not found or not all(re.fullmatch(_BARE, re.sub(_ENDING, "", name)) for name in series):
        return False
    # Of a step that has several checkpoints, the first one.
    places = dict(reversed([*zip(names, found, strict=True)]))
    chosen = [places[name] for name in series]
    # Items in the steps of an Orbax manager.
    if all(
        item.format.name == "orbax" and os.path.basename(item.storage.path) != step
        for item, step in zip(chosen, series, strict=True)
    ):
        return True
    is_joint = all(each.format.name in _JOINT for each in chosen)
    if len(series) < 2 or (may_be_parts(series) and not is_joint):
        return False
    chosen = [*chosen[:: -(-len(chosen) // _MOST_OPENED)], chosen[-1]]
    first = _tensors(chosen[0])
    return bool(first) and all(_tensors(each) == first for each in chosen[1:])


def _tensors(found: Openable) -> dict[str, Shape] | None:
    try:
        with closing(found.open()) as source:
            tables = [table.slices.tensors.facts() for table in source.index.scan()]
            if source.index.faults:
                return None
            return {key: shape for table in tables for key, (_, shape) in table.items()}
    except ShardvarError:
        return None


def may_be_parts(names: Sequence[str]) -> bool:
    """Return True if names may be of the parts of one save.

    >>> may_be_parts(["model_0", "model_1"]), may_be_parts(["step_0", "step_1"]), may_be_parts(["m_1", "m_2"])
    (True, False, False)
    """
    if any(map(is_of_several, names)):
        return True
    if len({split_numbers(name)[0] for name in names}) == 1 and split_numbers(names[0])[1]:
        return are_parts(names)
    numbers = [[*map(int, filter(None, re.findall(_FIXED, name)))] for name in names]
    if len({*map(pattern_of, names)}) != 1 or _counts_steps(names):
        return False
    axis = next((axis for axis in zip(*numbers, strict=True) if len({*axis}) > 1), (1,))
    return 0 in axis and count_as_ranks(axis)


def is_step(name: str) -> bool:
    """Return True if a name by itself shows a step: it has a word for it, or is a number.

    >>> is_step("global_step20"), is_step("0000100"), is_step("epoch=1.ckpt"), is_step("text_encoder_2")
    (True, True, True, False)
    """
    return bool(_steps_in(name)) or name.isdecimal()


def pattern_of(name: str) -> str:
    """Return a name with a mark for each number that may count steps; the numbers of parts stay."""
    frame, numbers = split_numbers(name)
    text = re.sub(_FIXED, lambda found: "\1" if found[1] else found[0], frame)
    for number in numbers:
        text = text.replace("\0", str(number), 1)
    return text


def differing(paths: Sequence[Sequence[str]]) -> list[str]:
    """The first component in which the paths differ; of a path without others, its last."""
    depth = first_difference(paths)
    return [path[depth] for path in paths]


def first_difference(paths: Sequence[Sequence[str]]) -> int:
    """Return the number of the first component that differs between paths; every path has one."""
    depth = 0
    while (
        all(len(path) > depth + 1 for path in paths) and len({path[depth] for path in paths}) == 1
    ):
        depth += 1
    return depth
