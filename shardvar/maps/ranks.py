"""The ranks of a map: rules whose keys begin with the number of a checkpoint.

    {rank}/layers.{l}.w2.weight[o i] -> layers.{l}.w2.weight[o (rank i)]      several sources
    layers.{l}.w2.weight[o (rank i)] -> {rank}/layers.{l}.w2.weight[o i]      several targets

Sources are numbered in the order of the call. Two or more indices may make the number,
as in ``{(pipe tensor)}/``.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from math import prod

from shardvar.errors import MapError
from shardvar.maps.extents import SizeOf, split_number
from shardvar.maps.syntax import AxisNames, KeyPattern, MapRule, NumberPart

_RANK_KEY = re.compile(r"(0|[1-9][0-9]{0,8})/(.+)", re.DOTALL)


def reads_ranks(rules: Sequence[MapRule]) -> bool:
    """Return True if a map takes the keys of numbered sources."""
    return any(_axis(rule.source.key) for rule in rules)


def numbers_sources(rules: Sequence[MapRule], count: int) -> bool:
    """Return True if a map takes the keys of ``count`` numbered sources: by an index, or each source
    by its own number, as in ``0/w[i] times 1/w[i] -> w[i]``."""
    if count == 1 or reads_ranks(rules):
        return reads_ranks(rules)
    sides = [side for rule in rules for side in (rule.source, *rule.factors)]
    ranks = [split_rank(side.key.text) for side in sides]
    return None not in ranks and {each[0] for each in ranks if each} == {*range(count)}


def makes_ranks(rules: Sequence[MapRule]) -> bool:
    """Return True if a map makes the keys of numbered targets."""
    return any(rule.target is not None and _axis(rule.target.key) for rule in rules)


def split_rank(key: str) -> tuple[int, str] | None:
    """Return the rank and the key in its checkpoint; None for a key without a rank.

    >>> split_rank("1/norm.weight"), split_rank("01/norm.weight")
    ((1, 'norm.weight'), None)
    """
    found = _RANK_KEY.fullmatch(key)
    return None if found is None else (int(found[1]), found[2])


def numbered(rank: int, key: str) -> str:
    """Return the key that a tensor of a numbered source has.

    >>> numbered(1, "norm.weight")
    '1/norm.weight'
    """
    return f"{rank}/{key}"


def missing_rank(rules: Sequence[MapRule], keys: Collection[str]) -> str:
    """Return what one checkpoint lacks before its keys, for a map of ranks: it is rank 0.

    Empty for another map, and for keys that have numbers.
    """
    return "0/" if reads_ranks(rules) and not all(map(split_rank, keys)) else ""


def sizes_of_ranks(
    rules: Sequence[MapRule], known: Collection[str], size_of: SizeOf, count: int
) -> dict[str, int]:
    """Return the sizes that a number of sources gives; ``MapError`` if ``known`` sizes differ.

    A source that lacks a tensor is found by them, also if it is the last one.
    """
    sizes: dict[str, int] = {}
    for axis in dict.fromkeys(_axis(rule.source.key) for rule in rules):
        full = {name: size_of(name) for name in axis if name in known}
        unknown, product = [name for name in axis if name not in full], prod(full.values())
        if len(unknown) == 1 and product and count % product == 0:
            sizes[unknown[0]] = count // product
        elif axis and len(unknown) < 2 and product != count:
            given_sizes = " and ".join(f"{name} = {size}" for name, size in full.items())
            raise MapError(
                f"The map has {given_sizes}, and there {'is' if count == 1 else 'are'} {count} "
                f"source{'' if count == 1 else 's'}.",
                "Give the sources of all ranks, in order, or correct the size.",
            )
    return sizes


def copies_left_out(
    rules: Sequence[MapRule], left_out: Mapping[str, int], keys: Collection[str], size_of: SizeOf
) -> dict[str, str]:
    """Return the keys that are left out as copies, each with the key of the kept tensor.

    A rule ``{rank}/norm.weight @ rank=1: -> nothing`` leaves out some ranks of a tensor. If a tensor
    of the same name and of another rank is kept, the others are copies of it: a program can leave
    them out, and only comparing them shows that nothing is lost.
    """
    found: dict[str, str] = {}
    kept: dict[str, list[int]] = {}
    for key in keys:
        rank, name = split_rank(key) or (0, "")
        if name and key not in left_out:
            kept.setdefault(name, []).append(rank)
    for key in keys:
        rule = rules[left_out[key]] if key in left_out else None
        axis = () if rule is None else _axis(rule.source.key)
        rank, name = split_rank(key) or (0, "")
        if rule is None or not rule.source.ranges.keys() & set(axis):
            continue
        full = {each: size_of(each) for each in axis}
        mine = split_number(rank, axis, full)
        # The pipeline's stage 1 has other layers: a copy differs only in the indices of the range.
        same = [each for each in axis if each not in rule.source.ranges]
        for other in sorted(kept.get(name, ())):
            theirs = split_number(other, axis, full)
            if all(mine[each] == theirs[each] for each in same):
                found[key] = f"{other}/{name}"
                break
    return found


def _axis(key: KeyPattern) -> AxisNames:
    """The indices that make the number at the beginning of a key, before a slash; else none."""
    if len(key.parts) < 2:
        return ()
    first, second = key.parts[:2]
    is_rank = isinstance(first, NumberPart) and isinstance(second, str) and second[:1] == "/"
    return first.axis if isinstance(first, NumberPart) and is_rank else ()
