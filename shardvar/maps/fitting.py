"""Fit a map to the tensors of a checkpoint: the pieces of sources that make each target.

    match         each key with the rules that match it
    rename        the names that rules give to whole tensors
    contribution  what each rule takes from each tensor to each target
    join          the contributions of one target: its dtype, its shape, its pieces
    prove         each source element is used once

Nothing of a tensor is read but its name, its dtype and its shape. All problems are collected: one
does not stop the search for others.

Most rules of most maps only rename: ``KEY -> KEY``, with the same axes on both sides. The elements
that such a rule moves are known without a look at any tensor, so a key only has a pair of
names, and a model of a million tensors takes a few columns. Where a key is not as simple as that,
nothing is returned, and the plain way (``matching``, ``contributions``) finds the problem.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import chain, compress, count, product
from math import prod

import numpy as np

from shardvar.errors import MapError
from shardvar.layout.dtypes import has_values, numpy_dtype, to_round_once
from shardvar.maps.binding import (
    bind,
    computed_piece,
    numbers_of_others,
    target_dtype,
    uses_of,
    why_unused,
)
from shardvar.maps.expressions import SizeOf
from shardvar.maps.language import (
    ELLIPSIS,
    KeyPart,
    KeyPattern,
    MapRule,
    NumberPart,
    TextPart,
    WordPart,
)
from shardvar.maps.matching import (
    Match,
    Values,
    count_numbers,
    find_matches,
    match_keys,
    matches_key,
    nearest_key,
    rule_extents,
    solve,
)
from shardvar.maps.plan import MapPlan, Piece, Target, View
from shardvar.maps.proof import (
    MOST_PROBLEMS,
    Contribution,
    FittedRule,
    Problem,
    TensorAxes,
    TensorFacts,
    Use,
    axes_of,
    check_kind,
    check_uses,
    contributions_of,
    find_element,
    missing_key,
    piece_of,
    target_key,
)
from shardvar.records import field, frozen, mutable, replace

_WORDS = {"true": 1.0, "false": 0.0}


def bytes_of_number(text: str, dtype: str) -> bytes:
    """Return the bytes of one element; floats are rounded to the dtype, and integers must fit it."""
    kind = numpy_dtype(dtype) if has_values(dtype) else np.dtype(object)
    if kind.hasobject:
        raise MapError(f"'else' cannot fill a tensor of dtype {dtype}.", "Leave 'else' out.")
    try:
        exact: int | float = int(text)
    except ValueError:
        try:
            exact = _WORDS[text] if text in _WORDS else float(text)
        except ValueError:
            raise MapError(f"'else {text}' is not a number.", "Write 'else 0'.") from None
    is_float = kind.kind in "fc" or "float" in dtype
    try:
        with np.errstate(all="ignore"):
            number = np.array([float(exact) if is_float else exact])
            element = to_round_once(number, kind).astype(kind)
        back = element.real.astype(np.float64 if is_float else object)[0]
    except (OverflowError, TypeError, ValueError):
        element, back = np.zeros(1, kind), None
    fits = back is not None and (
        math.isfinite(back) == math.isfinite(exact) if is_float else back == exact
    )
    if not fits:
        raise MapError(
            f"'else {text}' does not fit the dtype {dtype}.", "Give a number that the dtype holds."
        )
    return element.tobytes()


def is_rename(rule: MapRule) -> bool:
    """Return True if a rule gives whole tensors other names, and is not an exception to "once"."""
    return rule.keeps_tensors and not rule.exception


def renamed_keys(
    fitted: FittedRule, found: Sequence[tuple[str, Values]], tensors: Mapping[str, TensorFacts]
) -> dict[str, str] | None:
    """``{match.key: target_key(match) for match in find_matches(found)}``, or None if unsure."""
    rule, extents, size_of = fitted.rule, fitted.extents, fitted.size_of
    if rule.target is None or not found:
        return {}
    columns = _indices(fitted, found)
    if columns is None:
        return None
    keys, indices = columns
    shapes = {} if rule.source.axes == (ELLIPSIS,) else {tensors[key][1]: key for key in keys}
    try:
        for shape, key in shapes.items():
            axes_of(rule.source, shape, key, lambda n: extents.full(n, False), extents.source)
    except MapError:
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
        shift = part.shift.integer(size_of) if isinstance(part, NumberPart) else 0
        if numbers and (min(numbers) + shift < 0 or max(numbers) >= stop):
            return None
        written.append([words[each] if words else each + shift for each in numbers])
    rows = zip(*written, strict=True) if written else [()] * len(keys)
    return dict(zip(keys, map(form.__mod__, rows), strict=True))


def _indices(
    fitted: FittedRule, found: Sequence[tuple[str, Values]]
) -> tuple[list[str], dict[str, Sequence[int | str]]] | None:
    """The keys that a rule takes, with their texts, and their indices from the start of each range."""
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
            shift, full = part.shift.integer(fitted.size_of), extents.full(name, False)
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


KnownTargets = dict[tuple[object, ...], Target]
"""Targets that were made, by all that they depend on but names."""


def join_contributions(
    key: str,
    contributions: Sequence[Contribution],
    others: Collection[str],
    known: KnownTargets,
) -> Target:
    """Most targets of a rule differ only in names, so one is made, and noted in ``known``."""
    if any(contribution.fitted.rule.has_arithmetic for contribution in contributions):
        return _join(key, contributions, others)
    cause = tuple(map(_cause, contributions))
    if cause not in known:
        known[cause] = _join(key, contributions, others)
    target, pieces = known[cause], list[Piece]()
    for piece, each in zip(target.pieces, contributions, strict=True):
        source = View(each.match.key, piece.source.start, piece.source.steps)
        filled = View(each.target, piece.target.start, piece.target.steps)
        pieces.append(Piece(piece.rule, piece.shape, source, filled))
    return Target(key, target.dtype, target.shape, tuple(pieces), target.fill)


def _cause(contribution: Contribution) -> tuple[object, ...]:
    """Return all that a piece depends on, but names."""
    source = contribution.source
    return (
        *(contribution.number, contribution.dtype, id(source), contribution.axes),
        contribution.fixed_in((*contribution.axes, *source.axes)),
        *(tuple(contribution.selected.items()), tuple(contribution.full.items())),
    )


def _join(key: str, contributions: Sequence[Contribution], others: Collection[str]) -> Target:
    shape, fulls = _shape(contributions)
    dtypes = {contribution.dtype: contribution for contribution in reversed(contributions)}
    if len(dtypes) > 1:
        some = ", ".join(
            f"{contribution.match.key!r} of {dtype} by {_rule(contribution)}"
            for dtype, contribution in dtypes.items()
        )
        raise MapError(
            f"it is made of tensors of several dtypes: {some}.",
            "Cast them to one dtype before: shardvar reshard SRC DST --cast DTYPE.",
        )
    uses, pieces = [], []
    for contribution, full in zip(contributions, fulls, strict=True):
        starts = {name: bounds.start for name, bounds in contribution.fitted.extents.target.items()}
        placed = TensorAxes(contribution.axes, full, starts, contribution.cut)
        names = [name for axis in contribution.axes for name in axis]
        fixed = {name: value for name, value in contribution.fixed.items() if name in names}
        use = placed.use(contribution.number, fixed, contribution.selected)
        for name, begin, number in zip(names, use.begins, use.counts, strict=True):
            if begin + number > full[name]:
                near = [each for each in contributions if each.number != contribution.number]
                by = f" by {_rule(near[0])}" if near else ""
                raise MapError(
                    f"{_rule(contribution)} fills {name}={begin}:{begin + number}, and the extent "
                    f"of {name} is {full[name]}{by}.",
                    "Give each rule that fills it a range with '@', or a size.",
                )
        uses.append(use)
        make = piece_of if contribution.binding is None else computed_piece
        try:
            pieces.append(make(contribution, placed))
        except MapError as error:
            raise error.at(_rule(contribution)) from None
    fill = _fill(contributions)
    _check_filled(shape, contributions, uses, others, has_fill=fill is not None)
    return Target(key, contributions[0].dtype, shape, tuple(pieces), fill)


def _shape(contributions: Sequence[Contribution]) -> tuple[tuple[int, ...], list[dict[str, int]]]:
    """The shape of a target, and the full extents of its indices for each contribution."""
    rank = len(contributions[0].axes)
    for contribution in contributions:
        if len(contribution.axes) != rank:
            raise MapError(
                f"{_rule(contributions[0])} makes {rank} axes, and {_rule(contribution)} makes "
                f"{len(contribution.axes)}.",
                "Write the same axes in all rules that fill it.",
            )
    shape, stops = list[int](), dict[str, int]()
    for axis in range(rank):
        known = dict[int, Contribution]()
        for contribution in contributions:
            extent = contribution.extent(axis)
            if extent is not None:
                known.setdefault(extent, contribution)
        if len(known) > 1:
            (a, one), (b, other), *_ = known.items()
            raise MapError(
                f"its axis {axis} has {a} by {_rule(one)} from {one.match.key!r}, and {b} by "
                f"{_rule(other)} from {other.match.key!r}.",
                "Parts of one tensor agree on its shape: correct the sizes, or the rules.",
            )
        shape.append(next(iter(known)) if known else _union(contributions, axis, stops))
    return tuple(shape), [_full(contribution, shape, stops) for contribution in contributions]


def _union(contributions: Sequence[Contribution], axis: int, stops: dict[str, int]) -> int:
    """The extent of an axis; notes the extents of its indices, as far as all ranges reach, in ``stops``."""
    for contribution in contributions:
        for name in contribution.axes[axis]:
            if contribution.full[name] is not None:
                continue
            if contribution.fitted.rule.fill is not None:
                raise MapError(
                    f"the extent of {name} is not known, so 'else' of {_rule(contribution)} does not "
                    "know what to fill.",
                    f"Give {name} in sizes, or --size {name}=N.",
                )
            bounds = contribution.fitted.extents.bounds(name, True)
            stop = bounds.stop
            if stop is None:
                stop = bounds.start + contribution.selected[name]
            stops[name] = max(stops.get(name, 0), stop)
    extent = 0
    for contribution in contributions:
        sizes = {name: contribution.full[name] for name in contribution.axes[axis]}
        extent = max(extent, prod(stops[n] if size is None else size for n, size in sizes.items()))
    stops |= {
        name: extent
        for each in contributions
        for name in each.axes[axis][-1:]
        if not each.axes[axis][1:]
    }
    return extent


def _full(
    contribution: Contribution, shape: Sequence[int], stops: Mapping[str, int]
) -> dict[str, int]:
    """The full extents of the target's indices for one contribution."""
    full = dict[str, int]()

    def known(name: str) -> int | None:
        size = contribution.full[name]
        return stops.get(name) if size is None else size

    for axis, extent in zip(contribution.axes, shape, strict=True):
        if axis in contribution.cut:
            full |= {name: known(name) or 0 for name in axis}
        else:
            full |= solve(axis, extent, known, f"the target of {_rule(contribution)}")
    return full


def _fill(contributions: Sequence[Contribution]) -> bytes | None:
    fills = {
        contribution.fitted.rule.fill: contribution
        for contribution in contributions
        if contribution.fitted.rule.fill
    }
    if len(fills) > 1:
        some = " and ".join(_rule(contribution) for contribution in fills.values())
        raise MapError(f"{some} fill it with different numbers.", "Write one 'else'.")
    for text, contribution in fills.items():
        try:
            return bytes_of_number(str(text), contribution.dtype)
        except MapError as error:
            raise error.at(_rule(contribution)) from None
    return None


def _rule(contribution: Contribution) -> str:
    return f"rule {contribution.number + 1} {contribution.fitted.rule.text!r}"


def _check_filled(
    shape: Sequence[int],
    contributions: Sequence[Contribution],
    uses: Sequence[Use],
    others: Collection[str],
    *,
    has_fill: bool,
) -> None:
    flaw = find_element(shape, uses, may_have_holes=has_fill)
    if flaw is None:
        return
    where, rows = flaw
    if rows:
        named = [
            f"{_rule(contributions[row])} from {contributions[row].match.key!r}" for row in rows[:3]
        ]
        raise MapError(
            f"its element {where} is filled {len(rows)} times, by {' and '.join(named)}.",
            "Leave one of them out, or separate them with '@'.",
        )
    rules = {contribution.number: _rule(contribution) for contribution in contributions}
    near = "; ".join(rules[number] for number in sorted(rules)[:2])
    missing, key = _missing(contributions)
    nearest = nearest_key(key, others) if key else ""
    hint = f"Did you mean {nearest!r}, which no rule takes? " if nearest else ""
    raise MapError(
        f"its element {where} is filled by no rule{missing}; others are filled by {near}.",
        f"{hint}Add the source that is missing, or a rule for it, or 'else 0' to fill it.",
    )


def _missing(contributions: Sequence[Contribution]) -> tuple[str, str]:
    """Name the number that no key has, if that is the cause of a hole, and the key of it."""
    for number in dict.fromkeys(contribution.number for contribution in contributions):
        of_rule = [each for each in contributions if each.number == number]
        first, source = of_rule[0], of_rule[0].fitted.rule.source.key
        for name in source.indices():
            if any(name in axis for axis in first.axes):
                have = {each.fixed[name] for each in of_rule if name in each.fixed}
                # The last number may be very large, so numbers are only counted up to the first gap.
                gap = next(number for number in count() if number not in have)
                if gap < first.selected.get(name, 0):
                    key = missing_key(first, name, gap)
                    named = f" (the key {key!r})" if key else ""
                    return f": no key {source.text!r} has {name} = {gap}{named}", key
    return "", ""


@frozen
class Fit:
    plan: MapPlan
    """The plan; it is right if there are no problems."""
    problems: tuple[Problem, ...]
    matches: tuple[int, ...]
    """[rules] the numbers of keys that they take."""
    renamed: Mapping[str, str]
    """The keys of objects, which have no elements, with their new names."""
    model: str = ""
    """The sentence on the model, for the report; empty if the map is for all."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Tensors that are left out if they equal others, each with the other."""


@mutable
class _Fitting:
    """The rules on the tensors, and everything that is known of them so far."""

    rules: Sequence[MapRule]
    tensors: Mapping[str, TensorFacts]
    encodings: Mapping[str, str]
    idle: Collection[int]
    """The rules that do nothing themselves: of a ``$``, or switched off."""
    problems: list[Problem] = field(default_factory=list)
    uses: dict[str, list[Use]] = field(default_factory=dict)
    """The elements of each tensor that the rules hold."""
    contributions: dict[str, list[Contribution]] = field(default_factory=dict)
    taken: dict[str, list[int]] = field(default_factory=dict)
    """The rules that take each key."""
    names: dict[int, dict[str, str]] = field(default_factory=dict)
    """The new names of whole tensors, by key, of each rule that only renames."""
    left_out: dict[str, int] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)

    def draft(
        self, matched: Sequence[list[tuple[str, Values]]], size_of: SizeOf, sizes: Collection[str]
    ) -> None:
        """Find what each rule does with the keys that match it."""
        fitted_rules, failed = dict[int, FittedRule](), list[KeyPattern]()
        for number, rule in sorted(enumerate(self.rules), key=lambda each: each[1].is_rest):
            if number in self.idle:
                continue
            try:
                ranges = {n: each for side in rule.tensors for n, each in side.ranges.items()}
                source = replace(rule.source, ranges=ranges | rule.source.ranges)
                extents = rule_extents(replace(rule, source=source), size_of, sizes)
                of_tensors = tuple(
                    rule_extents(replace(rule, source=side), size_of, sizes)
                    for side in rule.tensors
                )
                fitted = FittedRule(number, rule, extents, size_of, of_tensors)
                fitted_rules[number] = fitted
                new: dict[str, str] = {}
                if rule.is_rest:
                    used = self.taken.keys() | {key for each in self.names.values() for key in each}
                    matched[number][:] = [each for each in matched[number] if each[0] not in used]
                if is_rename(rule):
                    whole = [each for each in matched[number] if each[0] in self.tensors]
                    new = renamed_keys(fitted, whole, self.tensors) or {}
                rest = [each for each in matched[number] if each[0] not in new]
                matches = find_matches(rule.source, extents, rest, size_of)
                self.names[number] = new
                if rule.tree is None:
                    self._contribute(fitted, matches)
                else:
                    self._compute(fitted, matches)
            except MapError as error:
                self._add(f"Rule {number + 1}, {rule.text!r}", error)
                failed += [] if rule.target is None else [rule.target.key]
        for number in self._disputed():
            del self.names[number]
            fitted = fitted_rules[number]
            whole = [each for each in matched[number] if each[0] in self.tensors]
            matches = find_matches(fitted.rule.source, fitted.extents, whole, size_of)
            self._contribute(fitted, matches)
        # Of targets of rules with a problem, no other problem is known.
        for target in [key for key in self.contributions if _is_any(failed, key)]:
            del self.contributions[target]

    def _add(self, where: str, error: MapError) -> None:
        self.problems.append(Problem(f"{where}: {error.cause}", error.remedy))

    def _disputed(self) -> list[int]:
        """The rules that only rename, and whose keys or names other rules have."""
        used = (key for key, uses in self.uses.items() if not all(use.is_again for use in uses))
        renames = self.names.values()
        keys = Counter(chain(used, *renames))
        names = Counter(chain(self.contributions, *(each.values() for each in renames)))
        shared = [{text for text, count in each.items() if count > 1} for each in (keys, names)]
        return [
            number
            for number, new in self.names.items()
            if not (shared[0].isdisjoint(new) and shared[1].isdisjoint(new.values()))
        ]

    def _contribute(self, fitted: FittedRule, matches: Sequence[Match]) -> None:
        """Find what one rule contributes with each key that it takes; an error ends its work."""
        rule, extents = fitted.rule, fitted.extents
        counts = count_numbers(extents, matches)
        placed_of: dict[tuple[int, ...], tuple[TensorAxes, dict[str, int]]] = {}
        uses_of: dict[tuple[object, ...], Use] = {}
        for match in matches:
            self.taken.setdefault(match.key, []).append(fitted.number)
            if match.key not in self.tensors:
                self._take_object(fitted, match)
                continue
            dtype, shape = self.tensors[match.key]
            if shape not in placed_of:
                placed_of[shape] = axes_of(
                    rule.source,
                    shape,
                    match.key,
                    lambda name: extents.full(name, False),
                    extents.source,
                )
            placed, selected = placed_of[shape]
            uses = self.uses.setdefault(match.key, [])
            if rule.target is None:
                uses.append(placed.use(fitted.number, {}, selected))
                self.left_out.setdefault(match.key, fitted.number)
                continue
            check_kind(rule, match.key, dtype, self.encodings.get(match.key))
            numbers = counts[tuple(match.texts.values())]
            for each in contributions_of(fitted, match, (dtype, shape), placed, selected, numbers):
                # Most tensors of a rule are used alike.
                cause = id(placed), each.fixed_in(placed.axes), *each.selected.items()
                if cause not in uses_of:
                    uses_of[cause] = each.use()
                uses.append(uses_of[cause])
                self.contributions.setdefault(each.target, []).append(each)

    def _compute(self, fitted: FittedRule, matches: Sequence[Match]) -> None:
        """Find what one rule computes with each key for which all its tensors are there."""
        rule, extents = fitted.rule, fitted.extents
        counts, summed = count_numbers(extents, matches), rule.summed()
        if not rule.tensors:
            matches, counts = [Match("", {}, {})], {(): {}}
        others = numbers_of_others(fitted, self.tensors)
        for match, values in product(matches, product(*map(range, others.values()))):
            if any(match.indices.get(name) for name in summed):
                continue  # the first one stands for all
            indices = {name: n for name, n in match.indices.items() if name not in summed}
            numbers = others | counts[tuple(match.texts.values())]
            match = replace(match, indices=indices | dict(zip(others, values, strict=True)))
            binding = bind(fitted, match, numbers, self.tensors)
            if binding is None:
                continue
            for key in dict.fromkeys(binding.keys.values()):
                check_kind(rule, key, self.tensors[key][0], self.encodings.get(key))
            place = rule.tensors.index(rule.source) if rule.tensors else None
            placed = TensorAxes((), {}, {}) if place is None else binding.axes[place]
            about = target_dtype(rule, binding, self.tensors), ()
            some = about, placed, binding.extents, numbers, binding
            for each in contributions_of(fitted, match, *some):
                for key, use in uses_of(each):
                    uses = self.uses.setdefault(key, [])
                    held = [other for other in uses if other.rule == use.rule]
                    if not held:
                        self.taken.setdefault(key, []).append(use.rule)
                    if all(replace(other, is_again=use.is_again) != use for other in held):
                        # A rule may use an element several times.
                        uses.append(replace(use, is_again=use.is_again or bool(held)))
                self.contributions.setdefault(each.target, []).append(each)

    def _take_object(self, fitted: FittedRule, match: Match) -> None:
        """Rename an object, or leave it out: it has no elements to move."""
        rule, others = fitted.rule, self.taken[match.key]
        if len(others) > 1:
            raise MapError(
                f"{match.key!r} is matched by rule {others[0] + 1} too.", "Keep one of the rules."
            )
        if rule.target is None:
            self.left_out[match.key] = fitted.number
            return
        if rule.repeated() or rule.source.free() - set(match.indices):
            raise MapError(
                f"{match.key!r} is not a tensor that can be read, so it is only renamed or left out.",
                f"`shardvar verify` says why. To leave it out, write {match.key!r} -> nothing.",
            )
        self.renamed[match.key] = target_key(fitted, match, match.indices, {})

    def join(self, owner: Mapping[str, int]) -> list[Target]:
        """Make the targets in the order of their first sources; keys of ``owner`` are only renamed."""
        order = {key: row for row, key in enumerate(self.tensors)}
        last = len(order)
        first = {
            key: min(order.get(each.match.key, last) for each in contributions)
            for key, contributions in self.contributions.items()
        }
        targets, known = list[Target](), KnownTargets()
        others = [key for key in self.tensors if key not in self.taken and key not in owner]
        for key in sorted(self.contributions, key=lambda key: (first[key], key)):
            # The order of rules does not matter.
            contributions = sorted(
                self.contributions[key],
                key=lambda each: (order.get(each.match.key, last), each.number),
            )
            try:
                targets.append(join_contributions(key, contributions, others, known))
            except MapError as error:
                self._add(repr(key), error)
                # Only the problems that are printed name the nearest key.
                others = others if len(self.problems) < MOST_PROBLEMS else []
        taken = set(chain(self.contributions, *(each.values() for each in self.names.values())))
        for source, name in self.renamed.items():
            if name in taken:
                cause = f"{source!r} would be named {name!r}, which another key makes."
                remedy = "Give it another name, or leave one of them out."
                self.problems.append(Problem(cause, remedy))
            taken.add(name)
        return targets


def fit_rules(
    rules: Sequence[MapRule],
    tensors: Mapping[str, TensorFacts],
    objects: Collection[str],
    size_of: SizeOf,
    sizes: Collection[str],
    encodings: Mapping[str, str],
    idle: Collection[int],
) -> Fit:
    fitting, keys = _Fitting(rules, tensors, encodings, idle), [*tensors, *objects]
    # Match.
    matched: list[list[tuple[str, Values]]] = [[] for _ in rules]
    for key, hits in match_keys([rule.source.key for rule in rules], keys):
        for number, values in hits:
            if number not in idle:
                matched[number].append((key, values))
    # Draft, and join.
    fitting.draft(matched, size_of, sizes)
    owner = {key: number for number, names in fitting.names.items() for key in names}
    targets, problems = fitting.join(owner), fitting.problems
    # Prove. After another problem, unused tensors may only follow from it, unless no rule at all
    # has its name.
    by_name = {key: number for number, hits in enumerate(matched) for key, _ in hits}
    if not problems and keys and not by_name:
        goals = [rule.target.key for rule in rules if rule.target is not None]
        made = next((key for key, hits in match_keys(goals, keys) if hits), None)
        if made is not None:
            cause = f"No rule matches a key, and {made!r} is one that the map makes."
            remedy = "The map goes the other way: add or remove --inverse, in Python .inverse()."
            problems.append(Problem(cause, remedy))
    judged = [key for key in keys if key not in owner]
    if problems:
        factors = [side.key for rule in rules for side in rule.tensors]
        judged = [key for key in judged if key not in by_name and not _is_any(factors, key)]
    shapes = {key: tensors[key][1] for key in judged if key in tensors}
    why = partial(why_unused, rules=rules, tensors=tensors, size_of=size_of)
    unused = {n for n, rule in enumerate(rules) if not matched[n] and rule.source.key.text} - {
        *idle
    }
    some = rules, shapes, fitting.uses, by_name, judged, fitting.taken, why, unused
    problems += check_uses(*some)
    counts = Counter(chain(owner.values(), *fitting.taken.values()))
    names = {key: fitting.names[owner[key]][key] for key in tensors if key in owner}
    plan = MapPlan(targets, fitting.left_out, names, owner, tensors)
    matches = tuple(counts[number] for number in range(len(rules)))
    return Fit(plan, tuple(problems), matches, fitting.renamed)


def _is_any(patterns: Sequence[KeyPattern], key: str) -> bool:
    return any(matches_key(each, key) for each in patterns)
