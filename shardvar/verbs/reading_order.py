"""The order in which a model is read: embeddings, layers in natural order, norms, heads; what is of
an optimizer last.

A short table of well-known names decides among siblings; all others are in natural order. Pages
have this order, and lists for programs the plain natural one.
"""

import re
from functools import lru_cache
from typing import Any

from shardvar.verbs.parameters import is_optimizer_state
from shardvar.verbs.steps import natural_key

PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
"""Words of projections in their customary order, which is not alphabetical."""

_MOST_PARTS = 32
"""The most times that a key is cut, as in trees; the rest stays together."""

_HEAD = re.compile(r"(?:.*_)?head|embed_out|outputs?|logits|classifier|score", re.IGNORECASE)
_EMBEDDING = re.compile(r"(?:.*_)?(?:embed|embedder|embeddings?|wte|wpe)(?:_.*)?", re.IGNORECASE)
_NORM = re.compile(r"norm|ln_f|(?:final|last)_(?:layer_?)?norm", re.IGNORECASE)
_PROJECTION = re.compile(rf"({'|'.join(PROJECTIONS)})_proj")


def reading_key(key: str) -> tuple[Any, ...]:
    """Return a key that sorts names as a model is read.

    >>> keys = ["head.w", "h.10.q_proj", "h.10.k_proj", "h.9.w", "norm.w", "optimizer.h.w.exp_avg", "wte.w"]
    >>> sorted(keys, key=reading_key)
    ['wte.w', 'h.9.w', 'h.10.q_proj', 'h.10.k_proj', 'norm.w', 'head.w', 'optimizer.h.w.exp_avg']
    """
    parts = key.split("/" if "/" in key else ".", _MOST_PARTS)
    return (is_optimizer_state(key), *map(_part_key, parts))


@lru_cache(maxsize=4096)
def _part_key(part: str) -> tuple[Any, ...]:
    """Return the place of a part of a key among its siblings: by its kind, and then by its name."""
    if found := _PROJECTION.fullmatch(part):
        return 1, PROJECTIONS.index(found[1]), natural_key(part)
    kinds = ((_HEAD, 3), (_EMBEDDING, 0), (_NORM, 2))
    kind = next((place for pattern, place in kinds if pattern.fullmatch(part)), 1)
    return kind, len(PROJECTIONS), natural_key(part)
