"""Fit a map to the tensors of a checkpoint: the pieces of sources that make each target.

    match         each key with the rules that match it
    rename        the names that rules give to whole tensors
    contribution  what each rule takes from each tensor to each target
    join          the contributions of one target: its dtype, its shape, its pieces
    prove         each source element is used once

Nothing of a tensor is read but its name, its dtype and its shape. All problems are collected: one
does not stop the search for others.

Most rules of most maps only rename: ``KEY -> KEY``, with the same axes on both sides. The elements
that such a rule moves are known without a look at any tensor, so its keys only have new names, and a
model of a million tensors takes a few columns. If that fails, or another rule has the same keys or
names, the rule contributes key by key as all others do, which finds the problem.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, count, product
from math import prod
from typing import Any

import numpy as np

from shardvar.errors import MapError
from shardvar.layout.dtypes import has_values, numpy_dtype, to_round_once
from shardvar.maps.binding import (
    bind,
    computed_piece,
    numbers_of_others,
    target_dtype,
    why_unused,
)
from shardvar.maps.expressions import SizeOf
from shardvar.maps.language import ELLIPSIS, KeyPattern, MapRule
from shardvar.maps.matching import (
    NEAR,
    Hit,
    Match,
    MatchTable,
    count_numbers,
    find_matches,
    likeness,
    match_keys,
    matches_key,
    nearest_key,
    nearest_rule,
    solve,
    why_unmatched,
    write_keys,
)
from shardvar.maps.plan import MapPlan, Target
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
    fit_rule,
    missing_key,
    name_rules,
    piece_of,
    quoted_key,
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


def names_of_whole(
    fitted: FittedRule, matches: MatchTable, tensors: Mapping[str, TensorFacts]
) -> dict[str, str]:
    """Return the names that a rule gives to whole tensors, by key, without a look at each of them."""
    is_any = fitted.rule.source.axes == (ELLIPSIS,)
    shapes = {} if is_any else {tensors[key][1]: key for key in matches.keys}
    for shape, key in shapes.items():
        axes_of(fitted.source, shape, key, {})
    names = write_keys(fitted.target, matches, {})
    return dict(zip(matches.keys, names, strict=True))


def join_contributions(
    key: str,
    contributions: Sequence[Contribution],
    others: Collection[str],
    known: dict[tuple[object, ...], Target],
) -> Target:
    """Most targets of a rule differ only in names, so one is made, and noted in ``known``."""
    if any(contribution.binding for contribution in contributions):
        return _join(key, contributions, others)
    # Tensors that have their axes in common also have all else, but fixed indices and cut blocks.
    cause = tuple(
        (id(each.source), each.fixed_in((*each.axes, *each.source.axes)), *each.selected.items())
        for each in contributions
    )
    if cause not in known:
        known[cause] = _join(key, contributions, others)
    pairs = zip(known[cause].pieces, contributions, strict=True)
    pieces = tuple([piece.between(each.match.key, each.target) for piece, each in pairs])
    return replace(known[cause], key=key, pieces=pieces)


def _join(key: str, contributions: Sequence[Contribution], others: Collection[str]) -> Target:
    shape, fulls = _shape(contributions)
    dtypes = {contribution.dtype: contribution for contribution in reversed(contributions)}
    if len(dtypes) > 1:
        some = ", ".join(
            f"{each.match.key!r} of {dtype} by {_rule(each)}" for dtype, each in dtypes.items()
        )
        raise MapError(
            f"it is made of tensors of several dtypes: {some}.",
            "Cast them to one dtype before: shardvar reshard SRC DST --cast DTYPE.",
        )
    uses, pieces = [], []
    for contribution, full in zip(contributions, fulls, strict=True):
        starts = contribution.fitted.target.starts()
        placed = TensorAxes(contribution.axes, full, starts, contribution.cut)
        use = placed.use(contribution.number, contribution.fixed, contribution.selected)
        for name, begin, number in zip(full, use.begins, use.counts, strict=True):
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
    first, rank = contributions[0], len(contributions[0].axes)
    for contribution in contributions:
        if len(contribution.axes) != rank:
            raise MapError(
                f"{_rule(first)} makes {rank} axes, and {_rule(contribution)} makes "
                f"{len(contribution.axes)}.",
                "Write the same axes in all rules that fill it.",
            )
    shape, fulls = list[int](), [dict[str, int]() for _ in contributions]
    for axis in range(rank):
        known = dict[int, Contribution]()
        for contribution in contributions:
            if (extent := contribution.extent(axis)) is not None:
                known.setdefault(extent, contribution)
        if len(known) > 1:
            (a, one), (b, other), *_ = known.items()
            raise MapError(
                f"its axis {axis} has {a} by {_rule(one)} from {one.match.key!r}, and {b} by "
                f"{_rule(other)} from {other.match.key!r}.",
                "Parts of one tensor agree on its shape: correct the sizes, or the rules.",
            )
        # If no rule knows the extent, it is as far as all ranges reach.
        stops = {} if known else _stops(contributions, axis)
        reached = [prod(_sizes(each, axis, stops).values()) for each in contributions]
        shape.append(next(iter(known), max(reached)))
        for contribution, full in zip(contributions, fulls, strict=True):
            names = contribution.axes[axis]
            sizes = _sizes(contribution, axis, stops if names[1:] else {})
            where = f"the target of {_rule(contribution)}"
            full |= sizes if names in contribution.cut else solve(names, shape[-1], sizes, where)
    return tuple(shape), fulls


def _sizes(contribution: Contribution, axis: int, stops: Mapping[str, int]) -> dict[str, int]:
    """The full extents of the indices of an axis, as far as they are known."""
    known = {name: size for name, size in contribution.full.items() if size is not None}
    full = {**stops, **known}
    return {name: full[name] for name in contribution.axes[axis] if name in full}


def _stops(contributions: Sequence[Contribution], axis: int) -> dict[str, int]:
    """The largest stop of each index of an axis whose extent no rule knows."""
    stops = dict[str, int]()
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
            bounds = contribution.fitted.target.bounds(name)
            stop = (
                bounds.start + contribution.selected[name] if bounds.stop is None else bounds.stop
            )
            stops[name] = max(stops.get(name, 0), stop)
    return stops


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
    problems: list[Problem] = field(default_factory=list)
    uses: dict[str, list[Use]] = field(default_factory=lambda: defaultdict(list))
    """The elements of each tensor that the rules hold."""
    contributions: dict[str, list[Contribution]] = field(default_factory=lambda: defaultdict(list))
    taken: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The rules that take each key."""
    names: dict[int, dict[str, str]] = field(default_factory=dict)
    """The new names of whole tensors, by key, of each rule that only renames."""
    left_out: dict[str, int] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)

    def draft(
        self, matched: Mapping[int, list[Hit]], size_of: SizeOf, sizes: Collection[str]
    ) -> None:
        """Find what each rule does with the keys that match it."""
        renames, failed = dict[int, tuple[FittedRule, MatchTable]](), list[KeyPattern]()
        for number in sorted(matched, key=lambda number: self.rules[number].is_rest):
            rule, hits = self.rules[number], matched[number]
            try:
                fitted = fit_rule(number, rule, size_of, sizes)
                if rule.is_rest:
                    used = self.taken.keys() | {key for each in self.names.values() for key in each}
                    hits = [each for each in hits if each[0] not in used]
                matches = find_matches(fitted.source, hits)
                if rule.has_arithmetic:
                    self._compute(fitted, matches)
                    continue
                is_renamed = [is_rename(rule) and key in self.tensors for key in matches.keys]
                whole = matches.where(is_renamed)
                with suppress(MapError):
                    self.names[number] = names_of_whole(fitted, whole, self.tensors)
                    renames[number] = fitted, whole
                new = self.names.get(number, {})
                self._contribute(fitted, matches.where([key not in new for key in matches.keys]))
            except MapError as error:
                self._add(f"Rule {number + 1}, {rule.text!r}", error)
                failed += [] if rule.target is None else [rule.target.key]
        for number in self._disputed():
            del self.names[number]
            self._contribute(*renames[number])
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
        return [
            number
            for number, new in self.names.items()
            if any(keys[key] > 1 or names[name] > 1 for key, name in new.items())
        ]

    def _contribute(self, fitted: FittedRule, matches: Iterable[Match]) -> None:
        """Find what a rule that moves bits contributes with each key that it takes."""
        rule, number = fitted.rule, fitted.number
        matches, alike = [*matches], dict[tuple[Any, ...], list[Match]]()
        counts = count_numbers(fitted.source, matches)
        for match in matches:
            if match.key in self.tensors:
                self.taken[match.key].append(number)
                numbers = counts[tuple(match.texts.values())]
                facts = *self.tensors[match.key], self.encodings.get(match.key), *numbers.items()
                alike.setdefault(facts, []).append(match)
        for (dtype, shape, encoding, *sizes), rows in alike.items():
            placed, selected = axes_of(fitted.source, shape, rows[0].key, {})
            check_kind(rule, rows[0].key, dtype, encoding)
            for match in rows if rule.target is None else ():
                self.uses[match.key].append(placed.use(number, {}, selected))
                self.left_out.setdefault(match.key, number)
            for each in contributions_of(fitted, rows, dtype, placed, selected, dict(sizes)):
                self.uses[each.match.key] += [use for _, use in each.uses()]
                self.contributions[each.target].append(each)
        for match in matches:
            if match.key not in self.tensors:
                self._take_object(fitted, match)

    def _compute(self, fitted: FittedRule, matches: Iterable[Match]) -> None:
        """Find what a rule computes with each key for which all its tensors are there."""
        rule, summed = fitted.rule, fitted.rule.summed()
        counts = count_numbers(fitted.source, matches)
        others = numbers_of_others(fitted, self.tensors)
        if not rule.tensors:
            matches, counts = [Match("", {}, {})], {(): {}}
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
            anchor = rule.tensors.index(rule.source) if rule.tensors else None
            placed = TensorAxes((), {}, {}) if anchor is None else binding.axes[anchor]
            dtype = target_dtype(rule, binding, self.tensors)
            some = dtype, placed, binding.extents, numbers, binding
            for each in contributions_of(fitted, [match], *some):
                self.contributions[each.target].append(each)
                for key, use in each.uses():
                    uses = self.uses[key]
                    # A rule may use an element several times.
                    is_again = any(other.rule == use.rule for other in uses)
                    if not is_again:
                        self.taken[key].append(use.rule)
                    uses.append(replace(use, is_again=True) if is_again else use)

    def _take_object(self, fitted: FittedRule, match: Match) -> None:
        """Rename an object, or leave it out: it has no elements to move."""
        rule, others = fitted.rule, self.taken[match.key]
        others.append(fitted.number)
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
        rows = MatchTable.of([match])
        self.renamed[match.key] = write_keys(fitted.target, rows, {})[0]

    def join(self, others: Collection[str]) -> list[Target]:
        """Make the targets in the order of their first sources; ``others`` are taken by no rule."""
        order = {key: row for row, key in enumerate(self.tensors)}

        def place(each: Contribution) -> tuple[int, int]:
            return order.get(each.match.key, len(order)), each.number

        targets, known = list[Target](), dict[tuple[object, ...], Target]()
        # The order of rules does not matter.
        rows = {key: sorted(each, key=place) for key, each in self.contributions.items()}
        for key in sorted(rows, key=lambda key: (place(rows[key][0])[0], key)):
            try:
                targets.append(join_contributions(key, rows[key], others, known))
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

    def prove(
        self, keys: Sequence[str], matched: Mapping[int, Sequence[Hit]], size_of: SizeOf
    ) -> None:
        """Find keys, and elements of tensors, that are not used once; ``keys`` are not only renamed."""
        rules, problems = self.rules, self.problems
        by_name = {key: number for number, hits in matched.items() for key, _ in hits}
        if not problems and keys and not by_name:
            goals = [rule.target.key for rule in rules if rule.target is not None]
            made = next((key for key, hits in match_keys(goals, keys) if hits), None)
            if made is not None:
                cause = f"No rule matches a key, and {made!r} is one that the map makes."
                remedy = (
                    "The map goes the other way: add or remove --inverse, in Python .inverse()."
                )
                problems.append(Problem(cause, remedy))
        if problems:
            # Unused tensors may only follow from them, unless no rule at all has their names.
            factors = [side.key for rule in rules for side in rule.tensors]
            keys = [key for key in keys if key not in by_name and not _is_any(factors, key)]
        unused = {n for n, hits in matched.items() if not hits and rules[n].source.key.text}
        described, misspelt = 0, dict[int, str]()
        for key in keys:
            if key in self.taken:
                shape = self.tensors[key][1] if key in self.tensors else (0,)
                problems += check_uses(key, shape, self.uses[key], rules)
                continue
            described += 1
            if described > MOST_PROBLEMS:
                problems.append(Problem(f"{key!r} is matched by no rule.", ""))
                continue
            if (problem := why_unused(key, rules, self.tensors, size_of)) is not None:
                problems.append(problem)
                continue
            near = ""
            if key in by_name:
                rule = name_rules([by_name[key]], rules)
                near = f"; {rule} matches its name and not its numbers"
            elif (number := nearest_rule(key, rules, unused)) is not None:
                if number in unused and likeness(key, rules[number]) >= NEAR:
                    misspelt.setdefault(number, key)
                why = why_unmatched(key, rules[number].source.key)
                near = f"; the nearest is {name_rules([number], rules)}{f', where {why}' if why else ''}"
            remedy = f"Add a rule for it, or leave it out: '{quoted_key(key)} -> nothing'."
            problems.append(Problem(f"{key!r} is matched by no rule{near}.", remedy))
        for number, key in misspelt.items():
            cause = f"Rule {number + 1}, {rules[number].text!r}, matches no key, and is most like {key!r}."
            problems.append(Problem(cause, "Correct its name, or remove the rule."))


def fit_rules(
    rules: Sequence[MapRule],
    tensors: Mapping[str, TensorFacts],
    objects: Collection[str],
    size_of: SizeOf,
    sizes: Collection[str],
    encodings: Mapping[str, str],
    idle: Collection[int],
) -> Fit:
    """``idle`` rules do nothing themselves: of a ``$``, or switched off."""
    fitting, keys = _Fitting(rules, tensors, encodings), [*tensors, *objects]
    # Match.
    matched: dict[int, list[Hit]] = {
        number: [] for number in range(len(rules)) if number not in idle
    }
    for key, hits in match_keys([rule.source.key for rule in rules], keys):
        for number, texts in hits:
            if number in matched:
                matched[number].append((key, texts))
    # Draft, and join.
    fitting.draft(matched, size_of, sizes)
    owner = {key: number for number, names in fitting.names.items() for key in names}
    others = [key for key in tensors if key not in fitting.taken and key not in owner]
    targets = fitting.join(others)
    fitting.prove([key for key in keys if key not in owner], matched, size_of)
    counts = Counter(chain(owner.values(), *fitting.taken.values()))
    names = {key: fitting.names[owner[key]][key] for key in tensors if key in owner}
    plan = MapPlan(targets, fitting.left_out, names, owner, tensors)
    matches = tuple(counts[number] for number in range(len(rules)))
    return Fit(plan, tuple(fitting.problems), matches, fitting.renamed)


def _is_any(patterns: Sequence[KeyPattern], key: str) -> bool:
    return any(matches_key(each, key) for each in patterns)
