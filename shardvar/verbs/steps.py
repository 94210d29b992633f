"""The order of checkpoints by their names, and the newest of a series: ``step-2`` comes before
``step-10``.

Names form one series if they differ only in their numbers, as ``epoch=1-step=20.ckpt`` and
``epoch=2-step=40.ckpt`` do. The newest has the largest numbers, from left to right. A single name
is a series only if it has a word for a step, or is a number.

These belong to no series:

    best, last                        names without a number
    model.fp16                        a number that names a precision
    text_encoder, text_encoder_2      numbers, if the same name without one is there
    mp_rank_01, consolidated.01.pth   the parts of one save (``formats.parts``)
    model_0, model_1                  numbers that count from 0 as ranks do, without a word for a
                                      step
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from shardvar.formats.parts import is_part, may_be_ranks

# At most 18 digits, since ``int`` refuses texts of more than 4,300 digits, which a hostile key may
# hold.
_NUMBER = re.compile("([0-9]{1,18})")
_STEP = re.compile(
    r"(?P<precision>(?<![a-z])(?:fp|bf|b?float|u?int|i?q)[0-9]+)|[0-9]{1,18}", re.IGNORECASE
)

_USUAL = re.compile(
    r"(?<![a-z])(steps?|iter(ation)?s?|epochs?|checkpoints?|ckpts?|snapshots?|rounds?|updates?)"
    r"[-_.=]?\d|^\d+$",
    re.IGNORECASE,
)


@lru_cache(1024)
def natural_key(name: str) -> tuple[tuple[str, int], ...]:
    """Return a key that sorts names as people count.

    >>> sorted(["step-10", "step-2", "best"], key=natural_key)
    ['best', 'step-2', 'step-10']
    """
    texts = _NUMBER.split(name)  # every second one is a number
    return tuple(zip(texts[::2], [*map(int, texts[1::2]), -1], strict=True))


def in_series(names: Sequence[str]) -> list[str]:
    """Return the names of the one series among them, the newest last; empty if there is none, or
    more than one.

    >>> in_series(["step-10", "best", "step-2"]), in_series(["step-1", "epoch-1"])
    (['step-2', 'step-10'], [])
    >>> in_series(["mp_rank_00", "mp_rank_01"]), in_series(["model", "model.fp16"])
    ([], [])
    >>> in_series(["vae", "text_encoder_2"]), in_series(["best", "checkpoint-500"])
    ([], ['checkpoint-500'])
    """
    if any(map(is_part, names)):
        return []
    patterns = {name: pattern_of(name) for name in names}
    numbered = {name: pattern for name, pattern in patterns.items() if "\0" in pattern}
    if len(set(numbered.values())) != 1:
        return []
    bare = re.sub("[-_.=]?\0", "", next(iter(numbered.values())))
    series = sorted(numbered, key=natural_key)
    is_one = is_step(series[0]) or (len(series) > 1 and not may_be_parts(series))
    return series if is_one and bare not in patterns else []


def may_be_parts(names: Sequence[str]) -> bool:
    """Return True if names may be of the ranks of one save, for their numbers count from 0.

    >>> may_be_parts(["model_0", "model_1"]), may_be_parts(["step_0", "step_1"]), may_be_parts(["m_1", "m_2"])
    (True, False, False)
    """
    numbers = [
        [int(found[0]) for found in _STEP.finditer(name) if not found["precision"]]
        for name in names
    ]
    is_alike = len(set(map(pattern_of, names))) == 1 and bool(numbers[0])
    return is_alike and not is_step(names[0]) and may_be_ranks(numbers)


def is_step(name: str) -> bool:
    """Return True if a name by itself says that it belongs to a step: it has a word for it, or is
    a number.

    >>> is_step("global_step20"), is_step("0000100"), is_step("epoch=1.ckpt"), is_step("text_encoder_2")
    (True, True, True, False)
    """
    return _USUAL.search(name) is not None


def pattern_of(name: str) -> str:
    """Return a name with NUL for each number that may count steps."""
    return _STEP.sub(lambda found: found[0] if found["precision"] else "\0", name)


def differing(paths: Sequence[Sequence[str]]) -> list[str]:
    """Return the first component of each path in which the paths differ; the last one, for a path
    without others.

    >>> differing([("runs", "step-1", "default"), ("runs", "step-2", "default")])
    ['step-1', 'step-2']
    """
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
