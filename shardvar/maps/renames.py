"""The new names of whole tensors, of all keys of a rule at once.

Most rules of most maps only rename: ``KEY -> KEY``, with the same axes on both sides. The elements
that such a rule moves are known without a look at any tensor, so what it says of a key is a pair of
names, and a model of a million tensors takes a few columns. Where a key is not as simple as that,
nothing is returned, and the plain way (``matching``, ``contributions``) says what is wrong with it.
"""

from collections.abc import Mapping, Sequence
from itertools import compress

from shardvar.errors import MapError
from shardvar.maps.contributions import FittedRule, TensorFacts
from shardvar.maps.extents import shift_of
from shardvar.maps.keys import Values
from shardvar.maps.placing import axes_of
from shardvar.maps.syntax import ELLIPSIS, KeyPart, MapRule, NumberPart, TextPart, WordPart


def is_rename(rule: MapRule) -> bool:
    """Return True if a rule gives whole tensors other names, and is not an exception to "once"."""
    return rule.keeps_tensors and not rule.is_again and rule.fill is None


def renamed_keys(
    fitted: FittedRule, found: Sequence[tuple[str, Values]], tensors: Mapping[str, TensorFacts]
) -> dict[str, str] | None:
    """Return the new names of the keys that a rule takes, of the ones that its pattern matches.

    None if a number does not fit a size or a range of the target, if several indices make a number,
    or if the axes of a tensor are not the rule's. It holds:

        renamed_keys(rule, found) = {match.key: target_key(match) for match in find_matches(found)}
    """
    rule, extents, size_of = fitted.rule, fitted.extents, fitted.size_of
    if rule.target is None or not found:
        return {}
    columns = _indices(fitted, found)
    if columns is None:
        return None
    keys, indices = columns
    if rule.source.axes != (ELLIPSIS,) and not _fit_axes(fitted, keys, tensors):
        return None
    form, written = "", list[Sequence[int | str]]()
    for part in rule.target.key.parts:
        if isinstance(part, str):
            form += part.replace("%", "%%")
            continue
        form += "%s"
        if isinstance(part, TextPart):
            written.append(indices[part.name])
            continue
        name = _index_of(part)
        if name is None:
            return None
        bounds = extents.bounds(name, True)
        numbers = [bounds.start + int(each) for each in indices.get(name, [0] * len(keys))]
        words = part.words if isinstance(part, WordPart) else ()
        stop = len(words) if words else max(numbers, default=0) + 1
        stop = stop if bounds.stop is None else min(stop, bounds.stop)
        shift = shift_of(part, size_of) if isinstance(part, NumberPart) else 0
        if numbers and (min(numbers) + shift < 0 or max(numbers) >= stop):
            return None
        written.append([words[each] if words else each + shift for each in numbers])
    rows = zip(*written, strict=True) if written else [()] * len(keys)
    return dict(zip(keys, map(form.__mod__, rows), strict=True))


def _indices(
    fitted: FittedRule, found: Sequence[tuple[str, Values]]
) -> tuple[list[str], dict[str, Sequence[int | str]]] | None:
    """The keys that a rule takes, and their indices from the start of each range, and texts."""
    extents, is_taken = fitted.extents, [True] * len(found)
    parts = [part for part in fitted.rule.source.key.parts if not isinstance(part, str)]
    indices, last = dict[str, Sequence[int | str]](), dict[str, int]()
    for part, column in zip(
        parts, zip(*(values for _, values in found), strict=True), strict=False
    ):
        if isinstance(part, TextPart):
            indices[part.name] = column
            continue
        name = _index_of(part)
        if name is None:
            return None
        bounds, shift = extents.bounds(name, False), 0
        if isinstance(part, NumberPart):
            shift, full = shift_of(part, fitted.size_of), extents.full(name, False)
            last |= {} if full is None else {name: full - bounds.start}
        numbers = [int(each) - shift - bounds.start for each in column]
        stop = max(numbers) + 1 if bounds.stop is None else bounds.stop - bounds.start
        if min(numbers) < 0 or max(numbers) >= stop:
            is_taken = [a and 0 <= b < stop for a, b in zip(is_taken, numbers, strict=True)]
        indices[name] = numbers
    keys = [key for key, _ in found]
    if not all(is_taken):
        keys = [*compress(keys, is_taken)]
        indices = {name: [*compress(column, is_taken)] for name, column in indices.items()}
    is_past = any(indices[name] and max(map(int, indices[name])) >= n for name, n in last.items())
    return None if is_past else (keys, indices)


def _index_of(part: KeyPart) -> str | None:
    """The index that a part of a key has; None if it has several."""
    if isinstance(part, NumberPart):
        return part.axis[0] if len(part.axis) == 1 else None
    return part.name if isinstance(part, WordPart | TextPart) else None


def _fit_axes(fitted: FittedRule, keys: Sequence[str], tensors: Mapping[str, TensorFacts]) -> bool:
    """Return True if tensors have the axes that the source of a rule has."""
    source, extents = fitted.rule.source, fitted.extents
    try:
        for shape, key in {tensors[key][1]: key for key in keys}.items():
            axes_of(source, shape, key, lambda name: extents.full(name, False), extents.source)
    except MapError:
        return False
    return True
