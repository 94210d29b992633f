"""The order of checkpoints by their names, and the newest of a series: ``step-2`` comes before
``step-10``.

Names form one series if they differ only in their numbers, as ``epoch=1-step=20.ckpt`` and
``epoch=2-step=40.ckpt`` do. The newest has the largest numbers, from left to right. Names without a
number, such as ``best``, belong to no series, nor do the parts of one checkpoint, such as
``mp_rank_01`` and ``consolidated.01.pth``. Numbers that name a precision, as in ``model.fp16``, do
not count; nor do numbers if the same name without one is there, as ``text_encoder`` is with
``text_encoder_2``.
"""

import re
from collections.abc import Sequence

# At most 18 digits, since ``int`` refuses texts of more than 4,300 digits, which a hostile key may
# hold.
_NUMBER = re.compile("([0-9]{1,18})")
_STEP = re.compile(
    r"(?P<precision>(?<![a-z])(?:fp|bf|b?float|u?int|i?q)[0-9]+)|[0-9]{1,18}", re.IGNORECASE
)
_PART = re.compile(
    "(rank|shard|part|worker|process|device|host|node|consolidated)[-_.]?[0-9]", re.IGNORECASE
)


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
    """
    if any(_PART.search(name) for name in names):
        return []
    patterns = {
        name: _STEP.sub(lambda found: found[0] if found["precision"] else "\0", name)
        for name in names
    }
    numbered = {name: pattern for name, pattern in patterns.items() if "\0" in pattern}
    if len(set(numbered.values())) != 1:
        return []
    bare = re.sub("[-_.=]?\0", "", next(iter(numbered.values())))
    return [] if bare in patterns else sorted(numbered, key=natural_key)


def differing(paths: Sequence[Sequence[str]]) -> list[str]:
    """Return the first component of each path in which the paths differ; the last one, for a path
    without others.

    >>> differing([("runs", "step-1", "default"), ("runs", "step-2", "default")])
    ['step-1', 'step-2']
    """
    depth = 0
    while (
        all(len(path) > depth + 1 for path in paths) and len({path[depth] for path in paths}) == 1
    ):
        depth += 1
    return [path[depth] for path in paths]
