"""Fit a map to the tensors of a checkpoint: which pieces of which source make each target?

match    each key with the rules that match it
solve    the extents of each rule's indices, from shapes, sizes, and the numbers of keys
draft    for each source tensor and each target key that it goes to, what is known so far
join     the drafts of one target: its dtype, its shape, and the extents that only they give
prove    each source element is used once, and each target element is filled once (``maps.proof``)

Nothing of a tensor is read but its name, its dtype and its shape. All problems are collected, and
none of them stops the search for others.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

from shardvar.errors import MapError
from shardvar.layout.dtypes import is_whole
from shardvar.maps.extents import (
    ALL,
    Bounds,
    Extents,
    SizeOf,
    extents_of,
    shift_of,
    solve,
    split_number,
)
from shardvar.maps.fills import bytes_of_number
from shardvar.maps.keys import Values, match_keys, write_key
from shardvar.maps.plan import Arithmetic, MapPlan, Piece, Target, View
from shardvar.maps.proof import Use, check_sources, check_targets
from shardvar.maps.syntax import ELLIPSIS, Axis, Number, Rule, Side, Text, Words
from shardvar.pictures.words import human_shape

About = tuple[str, tuple[int, ...]]
"""The dtype and the shape of a tensor."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What came of fitting a map to a checkpoint."""

    plan: MapPlan
    """The plan; it is right if there are no problems."""
    problems: tuple[str, ...]
    """What is wrong, a sentence each."""
    remedies: tuple[str, ...]
    """What to do about each problem."""
    matches: tuple[int, ...]
    """[rules] the numbers of keys that they match."""
    renamed: Mapping[str, str]
    """The keys of objects, which have no elements, with their new names."""


@dataclass(slots=True)
class _Problems:
    """Problems as they are found; of one rule's, only some are kept."""

    found: list[tuple[str, str]] = field(default_factory=list)

    def add(self, cause: str, remedy: str) -> None:
        """Add a problem, once."""
        if (cause, remedy) not in self.found[-50:]:
            self.found.append((cause, remedy))


@dataclass(frozen=True, slots=True)
class _Match:
    """A source tensor that a rule matches."""

    key: str
    values: dict[str, int]
    """The selected indices that its key has, counted from the start of the range."""
    texts: dict[str, str]


@dataclass(slots=True)
class _Draft:
    """What a rule takes from one tensor to one target."""

    rule: int
    match: _Match
    dtype: str
    target: str
    axes: tuple[Axis, ...]
    """The target's axes, without an ellipsis."""
    fixed: dict[str, int]
    """The selected indices that are not free, of keys."""
    selected: dict[str, int]
    """The selected extents of all free indices."""
    full: dict[str, int | None]
    """The target's full extents, as far as they are known."""
    source: "_Placed"
    extents: Mapping[Axis, int]
    """The extents of axes whose last block is cut, which their indices do not make."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """The axes of a side with all extents: where an element lies follows from them."""

    axes: tuple[Axis, ...]
    full: Mapping[str, int]
    starts: Mapping[str, int]
    cut: Mapping[Axis, int] = field(default_factory=dict)
    """The extents of axes whose last block is cut."""

    def view(self, key: str, fixed: Mapping[str, int], free: Sequence[str]) -> View:
        """Return the view of a piece whose indices are ``free``."""
        start, steps = [], dict.fromkeys(free, (-1, 0))
        for number, axis in enumerate(self.axes):
            step, first = 1, 0
            for name in reversed(axis):
                first += step * (self.starts.get(name, 0) + fixed.get(name, 0))
                if name in steps:
                    steps[name] = (number, step)
                step *= self.full[name]
            start.append(first)
        return View(key, tuple(start), tuple(steps[name] for name in free))

    def use(self, rule: int, fixed: Mapping[str, int], selected: Mapping[str, int]) -> Use:
        """Return what a piece holds of the tensor, in the indices of its axes."""
        names = [name for axis in self.axes for name in axis]
        begins = tuple(self.starts.get(name, 0) + fixed.get(name, 0) for name in names)
        counts = tuple(1 if name in fixed else selected.get(name, 1) for name in names)
        radices = tuple(tuple(self.full[name] for name in axis) for axis in self.axes)
        return Use(rule, radices, begins, counts, tuple(axis in self.cut for axis in self.axes))


def fit(
    rules: Sequence[Rule],
    tensors: Mapping[str, About],
    objects: Collection[str],
    size_of: SizeOf,
    sizes: Collection[str],
    encodings: Mapping[str, str],
) -> Fit:
    """Fit rules to tensors and objects, and prove that nothing is lost."""
    fitting = _Fitting(rules, tensors, size_of, sizes, encodings)
    fitting.match([*tensors, *objects])
    for number in range(len(rules)):
        fitting.draft(number)
    fitting.join()
    return fitting.result()


class _Fitting:
    """The state of one fit."""

    def __init__(
        self,
        rules: Sequence[Rule],
        tensors: Mapping[str, About],
        size_of: SizeOf,
        sizes: Collection[str],
        encodings: Mapping[str, str],
    ) -> None:
        self.rules, self.tensors, self.encodings = rules, tensors, encodings
        self.size_of, self.sizes = size_of, sizes
        self.problems = _Problems()
        self.extents = [self._extents(number) for number in range(len(rules))]
        self.matched: list[list[tuple[str, Values]]] = [[] for _ in rules]
        self.selected_keys: list[set[str]] = [set() for _ in rules]
        self.uses: dict[str, list[Use]] = {}
        self.drafts: dict[str, list[_Draft]] = {}
        self.left_out: dict[str, int] = {}
        self.renamed: dict[str, str] = {}
        self.objects_of: dict[str, int] = {}
        self.targets: list[Target] = []
        self.cached: dict[Any, Any] = {}
        self.keys: Sequence[str] = ()

    def _extents(self, number: int) -> Extents | None:
        try:
            return extents_of(self.rules[number], self.size_of, self.sizes)
        except MapError as error:
            self._wrong(number, error)
            return None

    def _wrong(self, number: int, error: MapError) -> None:
        self.problems.add(
            f"Rule {number + 1}, {self.rules[number].text!r}: {error.cause}", error.remedy
        )

    # Match.

    def match(self, keys: Sequence[str]) -> None:
        """Find the rules of each key."""
        self.keys = keys
        for key, found in match_keys([rule.source.key for rule in self.rules], keys):
            for number, values in found:
                self.matched[number].append((key, values))

    def _matches(self, number: int, extents: Extents) -> list[_Match]:
        """The keys of a rule with their indices, without those that ``@`` leaves to others."""
        side = self.rules[number].source
        named = [part for part in side.key.parts if not isinstance(part, str)]
        shifts = [shift_of(p, self.size_of) if isinstance(p, Number) else 0 for p in named]
        read = [(key, self._raw(named, shifts, values)) for key, values in self.matched[number]]
        read = [(key, raw) for key, raw in read if raw is not None]
        full = self._radices(side, extents, [raw for _, raw in read])
        found = []
        for key, raw in read:
            match = self._selected(key, named, raw, extents, full)
            if match is not None:
                found.append(match)
        return found

    def _raw(
        self, named: Sequence[Any], shifts: Sequence[int], values: Values
    ) -> dict[Any, Any] | None:
        raw: dict[Any, Any] = {}
        for part, shift, value in zip(named, shifts, values, strict=True):
            if isinstance(part, Number):
                number = int(value) - shift
                if number < 0:
                    return None
                raw[part.axis] = number
            else:
                raw[part.name] = value
        return raw

    def _radices(
        self, side: Side, extents: Extents, raws: Sequence[Mapping[Any, Any]]
    ) -> dict[str, int]:
        """The full extents of indices that make numbers, all but the first of each."""
        full: dict[str, int] = {}
        for part in side.key.parts:
            if not isinstance(part, Number):
                continue
            axis = part.axis
            for name in axis:
                known = extents.full(name, False)
                if known is not None:
                    full[name] = known
            unknown = [name for name in axis[1:] if name not in full]
            if not unknown:
                continue
            count = max((raw[part.axis] for raw in raws), default=-1) + 1
            if raws:
                full |= solve(axis, count, full.get, f"The numbers {{({' '.join(axis)})}}")
        return full

    def _selected(
        self,
        key: str,
        named: Sequence[Any],
        raw: Mapping[Any, Any],
        extents: Extents,
        full: Mapping[str, int],
    ) -> _Match | None:
        values, texts = dict[str, int](), dict[str, str]()
        for part in named:
            if isinstance(part, Text):
                texts[part.name] = raw[part.name]
                continue
            found = (
                {part.name: int(raw[part.name])}
                if isinstance(part, Words)
                else split_number(raw[part.axis], part.axis, dict(full))
                if len(part.axis) > 1
                else {part.axis[0]: raw[part.axis]}
            )
            for name, value in found.items():
                bounds = extents.bounds(name, False)
                if value < bounds.start or (bounds.stop is not None and value >= bounds.stop):
                    return None
                if name in full and value >= full[name]:
                    raise MapError(
                        f"The key {key!r} has {name} = {value}, and {name} has the extent "
                        f"{full[name]}.",
                        f"Give another size of {name}, or a rule for the other keys.",
                    )
                if not bounds.is_single:
                    values[name] = value - bounds.start
        return _Match(key, values, texts)

    # Draft.

    def draft(self, number: int) -> None:
        """Draft what one rule does with each tensor that it matches."""
        extents = self.extents[number]
        if extents is None:
            self.selected_keys[number].update(key for key, _ in self.matched[number])
            return
        try:
            matches = self._matches(number, extents)
            counts = self._counts(number, extents, matches)
        except MapError as error:
            self.selected_keys[number].update(key for key, _ in self.matched[number])
            self._wrong(number, error)
            return
        for match in matches:
            self.selected_keys[number].add(match.key)
            try:
                if match.key not in self.tensors:
                    self._draft_object(number, match, extents)
                else:
                    self._draft_one(number, match, extents, counts)
            except MapError as error:
                self._wrong(number, error)

    def _counts(
        self, number: int, extents: Extents, matches: Sequence[_Match]
    ) -> Callable[[_Match], Mapping[str, int]]:
        """Gives the selected extents of a match's indices: the numbers that keys have.

        They are counted by themselves for each text that renames: an encoder and a decoder need not
        have equally many layers.
        """
        counts: dict[tuple[str, ...], dict[str, int]] = {}
        for match in matches:
            mine = counts.setdefault(tuple(match.texts.values()), {})
            for name, value in match.values.items():
                mine[name] = max(mine.get(name, 0), value + 1)
        for mine in counts.values():
            for name in mine:
                known = extents.selected(name)
                mine[name] = mine[name] if known is None else max(known, mine[name])
        return lambda match: counts[tuple(match.texts.values())]

    def _draft_object(self, number: int, match: _Match, extents: Extents) -> None:
        """An object, which is no tensor: it is renamed or left out."""
        rule = self.rules[number]
        if match.key in self.objects_of:
            first = self.objects_of[match.key]
            raise MapError(
                f"{match.key!r} is matched by rule {first + 1} too.", "Keep one of the rules."
            )
        self.objects_of[match.key] = number
        if rule.target is None:
            self.left_out[match.key] = number
            return
        if rule.has_arithmetic or set(rule.source.free()) - set(match.values):
            raise MapError(
                f"{match.key!r} is not a tensor, so it is only renamed or left out.",
                f"Write {match.key!r} -> nothing.",
            )
        self.renamed[match.key] = self._target_key(rule.target, match, extents, {}, {})

    def _source(self, number: int, key: str, extents: Extents) -> tuple[_Placed, dict[str, int]]:
        """The source's axes for a tensor's shape, and the selected extents; cached by shape."""
        shape = self.tensors[key][1]
        if (number, shape) not in self.cached:
            side = self.rules[number].source
            self.cached[number, shape] = _place(
                side,
                shape,
                key,
                lambda name: extents.full(name, False),
                extents.source,
                may_cut=bool(self.rules[number].factors),
            )
        placed, selected = self.cached[number, shape]
        return placed, selected

    def _draft_one(
        self,
        number: int,
        match: _Match,
        extents: Extents,
        counts: Callable[[_Match], Mapping[str, int]],
    ) -> None:
        rule, (dtype, _) = self.rules[number], self.tensors[match.key]
        placed, selected = self._source(number, match.key, extents)
        uses = self.uses.setdefault(match.key, [])
        is_again = rule.is_again
        if rule.target is None:
            uses.append(placed.use(number, {}, selected))
            self.left_out.setdefault(match.key, number)
            return
        self._check_kind(rule, match.key, dtype, placed)
        counted = counts(match)
        axes = _expanded(rule.target.axes, placed)
        # Indices of the source's axes that are in the target's key: one target for each value.
        unstacked = [name for name in rule.target.key.indices() if name in selected]
        of_all = {**counted, **selected}
        full = {name: extents.full(name, True, of_all.get(name)) for axis in axes for name in axis}
        for values in product(*(range(selected[name]) for name in unstacked)):
            fixed = dict(zip(unstacked, values, strict=True))
            key = self._target_key(rule.target, match, extents, fixed, of_all)
            for block, counts_of_block in _blocks(placed, selected):
                mine = {**fixed, **block}
                use = placed.use(number, mine, counts_of_block)
                use.is_again = is_again
                uses.append(use)
                draft = _Draft(
                    number,
                    match,
                    dtype,
                    key,
                    axes,
                    {**match.values, **mine},
                    {**of_all, **counts_of_block},
                    full,
                    placed,
                    placed.cut,
                )
                self.drafts.setdefault(key, []).append(draft)

    def _check_kind(self, rule: Rule, key: str, dtype: str, placed: _Placed) -> None:
        """Raise ``MapError`` if the elements cannot be taken apart, or computed with."""
        target = rule.target
        is_same = target is not None and rule.source.axes == target.axes and not rule.source.ranges
        is_renamed = is_same and not rule.has_arithmetic and not (target and target.ranges)
        if is_whole(dtype) and not is_renamed:
            raise MapError(
                f"{key!r} is of dtype {dtype}, which is never cut or moved.", "Only rename it."
            )
        if rule.has_arithmetic and not ("float" in dtype):
            raise MapError(
                f"{key!r} is of dtype {dtype}, and arithmetic is for floating-point numbers.",
                "Cast it before, or leave the arithmetic out.",
            )
        if key in self.encodings and not is_renamed:
            last = rule.source.axes[-1] if rule.source.axes else ()
            keeps_last = (
                target is not None
                and bool(target.axes)
                and target.axes[-1] == last
                and (last == ELLIPSIS or len(last) == 1)
                and not rule.has_arithmetic
                and not any(name in side.ranges for side in (rule.source, target) for name in last)
            )
            if not keeps_last:
                raise MapError(
                    f"{key!r} consists of blocks of {self.encodings[key]} along its last axis, "
                    "which stays as it is.",
                    "Dequantize first: dequantize=True (--dequantize).",
                )

    def _target_key(
        self,
        side: Side,
        match: _Match,
        extents: Extents,
        fixed: Mapping[str, int],
        counts: Mapping[str, int],
    ) -> str:
        """The key of the target for some indices."""
        given = list[int | str]()
        for part in side.key.parts:
            if isinstance(part, str):
                continue
            if isinstance(part, Text):
                given.append(match.texts[part.name])
                continue
            axis = part.axis if isinstance(part, Number) else (part.name,)
            number = 0
            for place, name in enumerate(axis):
                bounds = extents.bounds(name, True)
                at = bounds.start + fixed.get(name, match.values.get(name, 0))
                full = extents.full(name, True, counts.get(name))
                stop = bounds.stop if full is None else min(full, bounds.stop or full)
                if (
                    stop is not None
                    and at >= stop
                    and (place or bounds.stop is not None or isinstance(part, Words))
                ):
                    raise MapError(
                        f"{match.key!r} has {name} = {at}, past the {stop} that the target has.",
                        f"Choose another range of {name}, or another size.",
                    )
                if place and full is None:
                    raise MapError(
                        f"The size of {name} in {{({' '.join(axis)})}} is not known.",
                        f"Give {name} in sizes, or --size {name}=N.",
                    )
                number = number * (full or 1) + at if place else at
            given.append(number + (shift_of(part, self.size_of) if isinstance(part, Number) else 0))
        return write_key(side.key, given)

    # Join.

    def join(self) -> None:
        """Make each target of its drafts."""
        order = {key: row for row, key in enumerate(self.tensors)}
        firsts = {
            target: min(order[draft.match.key] for draft in drafts)
            for target, drafts in self.drafts.items()
        }
        for key in sorted(self.drafts, key=lambda key: (firsts[key], key)):
            try:
                self._join_one(key, self.drafts[key])
            except MapError as error:
                self.problems.add(f"{key!r}: {error.cause}", error.remedy)

    def _join_one(self, key: str, drafts: Sequence[_Draft]) -> None:
        shape, fulls = _target_shape(drafts, self.rules, self.extents)
        dtypes = {draft.dtype: draft for draft in drafts}
        if len(dtypes) > 1:
            some = ", ".join(f"{d.match.key!r} of {dtype}" for dtype, d in dtypes.items())
            raise MapError(
                f"It is made of tensors of several dtypes: {some}.",
                "Cast them to one before: shardvar reshard SRC DST --cast DTYPE.",
            )
        uses, pieces = [], []
        for draft, full in zip(drafts, fulls, strict=True):
            extents = self.extents[draft.rule]
            assert extents is not None
            starts = {name: bounds.start for name, bounds in extents.target.items()}
            placed = _Placed(draft.axes, full, starts, draft.extents)
            names = {name for axis in draft.axes for name in axis}
            uses.append(placed.use(draft.rule, draft.fixed, draft.selected))
            pieces.append(self._piece(draft, placed, [n for n in draft.selected if n in names]))
        fill = self._fill(key, drafts)
        text = check_targets(shape, uses, has_fill=fill is not None)
        if text:
            self._flaw(text, drafts, uses)
        self.targets.append(Target(key, drafts[0].dtype, shape, tuple(pieces), fill))

    def _flaw(
        self, found: tuple[str, tuple[int, ...]], drafts: Sequence[_Draft], uses: Sequence[Use]
    ) -> None:
        where, rows = found
        shown = [f"rule {drafts[row].rule + 1} ({drafts[row].match.key!r})" for row in rows[:3]]
        if rows:
            raise MapError(
                f"Its element {where} is filled {len(rows)} times, by {' and '.join(shown)}.",
                "Leave one of them out, or separate them with '@'.",
            )
        rules = sorted({draft.rule for draft in drafts})
        near = "; ".join(f"rule {r + 1} {self.rules[r].text!r}" for r in rules[:2])
        missing = self._missing(drafts)
        raise MapError(
            f"Its element {where} is filled by no rule{missing}. It is made by {near}.",
            "Add the source that is missing, or a rule for it, or 'else 0' to fill it.",
        )

    def _missing(self, drafts: Sequence[_Draft]) -> str:
        """Name the number of a key that is missing where keys are stacked."""
        for rule in dict.fromkeys(draft.rule for draft in drafts):
            mine = [draft for draft in drafts if draft.rule == rule]
            source = self.rules[rule].source.key
            names = [n for n in source.indices() if any(n in axis for axis in mine[0].axes)]
            for name in names:
                have = {draft.fixed[name] for draft in mine if name in draft.fixed}
                gaps = sorted(set(range(mine[0].selected.get(name, 0))) - have)
                if gaps:
                    return f": no key {source.text!r} has {name} = {gaps[0]}"
        return ""

    def _fill(self, key: str, drafts: Sequence[_Draft]) -> bytes | None:
        fills = {self.rules[draft.rule].fill for draft in drafts} - {None}
        if not fills:
            return None
        if len(fills) > 1:
            raise MapError("Two rules fill it with different numbers.", "Write one 'else'.")
        return bytes_of_number(str(fills.pop()), drafts[0].dtype)

    def _piece(self, draft: _Draft, placed: _Placed, names: Sequence[str]) -> Piece:
        """The piece of a draft; its indices are in the order of the target."""
        free = [n for axis in draft.axes for n in axis if n not in draft.fixed and n in names]
        sides = [
            draft.source.view(draft.match.key, draft.fixed, free),
            placed.view(draft.target, draft.fixed, free),
        ]
        counts = [draft.selected[name] for name in free]
        rule = self.rules[draft.rule]
        if not rule.has_arithmetic:
            shape, (source, target) = merged(counts, sides)
            return Piece(draft.rule, shape, source, target)
        factors = [self._factor(draft, factor, free) for factor in rule.factors]
        times = prod((each.real(self.size_of) for each in rule.times), start=1.0)
        plus = 0.0 if rule.plus is None else rule.plus.real(self.size_of)
        shape, (source, target, *rest) = merged(counts, [*sides, *factors])
        return Piece(draft.rule, shape, source, target, Arithmetic(tuple(rest), times, plus))

    def _factor(self, draft: _Draft, side: Side, free: Sequence[str]) -> View:
        """The view of a factor."""
        extents = self.extents[draft.rule]
        assert extents is not None
        given = list[int | str]()
        for part in side.key.parts:
            if isinstance(part, Words):
                given.append(self._value(draft, extents, part.name))
            elif isinstance(part, Number):
                number = 0
                for name in part.axis:
                    number = number * draft.source.full.get(name, 1) + self._value(
                        draft, extents, name
                    )
                given.append(number + shift_of(part, self.size_of))
        key = write_key(side.key, given)
        if key not in self.tensors:
            raise MapError(
                f"The factor {key!r} of {draft.match.key!r} is not in the checkpoint.",
                "Correct its name in the rule.",
            )
        dtype, shape = self.tensors[key]
        if "float" not in dtype:
            raise MapError(f"The factor {key!r} is of dtype {dtype}.", "Factors are floats.")
        full = dict(draft.source.full)
        placed, _ = _place(side, shape, key, full.get, {})
        starts = {name: bounds.start for name, bounds in extents.source.items()}
        placed = _Placed(placed.axes, placed.full, starts)
        names = {name for axis in placed.axes for name in axis}
        fixed = {name: value for name, value in draft.fixed.items() if name in names}
        use = placed.use(draft.rule, fixed, draft.selected)
        use.is_again = True
        self.uses.setdefault(key, []).append(use)
        return placed.view(key, draft.fixed, free)

    def _value(self, draft: _Draft, extents: Extents, name: str) -> int:
        return extents.bounds(name, False).start + draft.fixed.get(name, 0)

    # Prove.

    def result(self) -> Fit:
        """Return the plan and the problems."""
        matches = tuple(len(keys) for keys in self.selected_keys)
        # After another problem, what is not used may only follow from it.
        if not self.problems.found:
            by_name = {key: number for number, found in enumerate(self.matched) for key, _ in found}
            shapes = {key: shape for key, (_, shape) in self.tensors.items()}
            selected = set[str]().union(*self.selected_keys)
            for cause, remedy in check_sources(
                self.rules, shapes, self.uses, by_name, self.keys, selected
            ):
                self.problems.add(cause, remedy)
        found = self.problems.found
        return Fit(
            MapPlan(self.targets, self.left_out),
            tuple(cause for cause, _ in found),
            tuple(remedy for _, remedy in found),
            matches,
            self.renamed,
        )


def _place(
    side: Side,
    shape: tuple[int, ...],
    key: str,
    full: Callable[[str], int | None],
    ranges: Mapping[str, Bounds],
    *,
    may_cut: bool = False,
) -> tuple[_Placed, dict[str, int]]:
    """The axes of a side for a tensor's shape, and the selected extents of its free indices.

    With ``may_cut``, the last block of an axis ``(a p)`` may be shorter than the others.
    """
    others = len(side.axes) - (ELLIPSIS in side.axes)
    more = len(shape) - others
    if more < 0 or (more and ELLIPSIS not in side.axes):
        raise MapError(
            f"{key!r} has the shape {human_shape(shape)}, of {len(shape)} axes, and {side.text!r} "
            f"has {others}.",
            "Write as many axes as the tensor has, or '...' for those that stay.",
        )
    axes = list[Axis]()
    for axis in side.axes:
        axes += [(f"...{number}",) for number in range(more)] if axis == ELLIPSIS else [axis]
    found, selected = dict[str, int](), dict[str, int]()
    cut = dict[Axis, int]()
    for axis, extent in zip(axes, shape, strict=True):
        step = full(axis[1]) if may_cut and len(axis) == 2 and full(axis[0]) is None else None
        if step and extent % step:
            cut[axis] = extent
            found |= {axis[0]: -(-extent // step), axis[1]: step}
        else:
            found |= solve(axis, extent, full, f"{key!r} of {human_shape(shape)}")
    for name, size in found.items():
        bounds = ranges.get(name, ALL)
        stop = size if bounds.stop is None else bounds.stop
        if max(stop, bounds.start) > size:
            raise MapError(
                f"'@' selects {name}={bounds.start}:{stop}, and {key!r} of {human_shape(shape)} "
                f"has {name} = {size}.",
                f"Choose a range within {size}.",
            )
        if not bounds.is_single:
            selected[name] = stop - bounds.start
    starts = {name: bounds.start for name, bounds in ranges.items()}
    return _Placed(tuple(axes), found, starts, cut), selected


def _blocks(
    placed: _Placed, selected: dict[str, int]
) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Yield fixed indices and selected extents: of the whole blocks, and of each that is cut."""
    choices = []
    for (block, within), extent in placed.cut.items():
        last, left = divmod(extent, placed.full[within])
        choices.append([({}, {block: last}), ({block: last}, {within: left})])
    for some in product(*choices):
        fixed, counts = dict[str, int](), {**selected}
        for place, extents in some:
            fixed |= place
            counts |= extents
        yield fixed, counts


def _expanded(axes: Sequence[Axis], source: _Placed) -> tuple[Axis, ...]:
    """The target's axes, with those that the source has for ``...``."""
    rest = [axis for axis in source.axes if axis and axis[0].startswith("...")]
    found = list[Axis]()
    for axis in axes:
        found += rest if axis == ELLIPSIS else [axis]
    return tuple(found)


def _target_shape(
    drafts: Sequence[_Draft], rules: Sequence[Rule], extents: Sequence[Extents | None]
) -> tuple[tuple[int, ...], list[dict[str, int]]]:
    """The shape of a target, and the full extents of its indices for each draft.

    An extent that one draft does not know follows from another one, or from the ranges of all.
    """
    rank = len(drafts[0].axes)
    for draft in drafts:
        if len(draft.axes) != rank:
            raise MapError(
                f"Rule {drafts[0].rule + 1} makes {rank} axes, and rule {draft.rule + 1} "
                f"{len(draft.axes)}.",
                "Write the same axes in all rules that fill it.",
            )
    shape = list[int]()
    for axis in range(rank):
        known = dict[int, _Draft]()
        for draft in drafts:
            sizes = [draft.full[name] for name in draft.axes[axis]]
            if draft.axes[axis] in draft.extents:
                known.setdefault(draft.extents[draft.axes[axis]], draft)
            elif None not in sizes:
                known.setdefault(prod(size for size in sizes if size is not None), draft)
        if len(known) > 1:
            (a, one), (b, other), *_ = known.items()
            raise MapError(
                f"Its axis {axis} has {a} by rule {one.rule + 1} from {one.match.key!r}, and {b} "
                f"by rule {other.rule + 1} from {other.match.key!r}.",
                "Parts of one tensor agree on its shape: correct the sizes, or the rules.",
            )
        shape.append(next(iter(known)) if known else _union(drafts, axis, rules, extents))
    fulls = []
    for draft in drafts:
        full = dict[str, int]()
        for axis, extent in zip(draft.axes, shape, strict=True):
            if axis in draft.extents:
                full |= {name: draft.full[name] or 0 for name in axis}
                continue
            full |= solve(axis, extent, draft.full.get, f"Rule {draft.rule + 1}: the target")
        fulls.append(full)
    return tuple(shape), fulls


def _union(
    drafts: Sequence[_Draft],
    axis: int,
    rules: Sequence[Rule],
    extents: Sequence[Extents | None],
) -> int:
    """The extent of an axis of which each draft knows only the part that it fills."""
    stops = dict[str, int]()
    for draft in drafts:
        for name in draft.axes[axis]:
            if draft.full[name] is not None:
                continue
            if rules[draft.rule].fill is not None:
                raise MapError(
                    f"The extent of {name} is not known, so 'else' does not know what to fill.",
                    f"Give {name} in sizes, or --size {name}=N.",
                )
            found = extents[draft.rule]
            assert found is not None
            bounds = found.bounds(name, True)
            stop = bounds.stop
            if stop is None:
                stop = bounds.start + draft.selected[name]
            stops[name] = max(stops.get(name, 0), stop)
    extent = 0
    for draft in drafts:
        for name in draft.axes[axis]:
            if draft.full[name] is None:
                draft.full[name] = stops[name]
        sizes = [draft.full[name] or 0 for name in draft.axes[axis]]
        extent = prod(sizes)
    return extent


def merged(counts: Sequence[int], views: Sequence[View]) -> tuple[tuple[int, ...], list[View]]:
    """Merge neighbouring indices that count as one in all views, and drop those of one element.

    >>> a, b = View("a", (0,), ((0, 3), (0, 1))), View("b", (0, 0), ((1, 3), (1, 1)))
    >>> merged([2, 3], [a, b])[0]
    (6,)
    """
    shape, steps = list[int](), list[list[tuple[int, int]]]()
    for row, count in enumerate(counts):
        mine = [view.steps[row] for view in views]
        if count == 1:
            continue
        if shape and all(
            before[0] == axis and before[1] == step * count
            for before, (axis, step) in zip(steps[-1], mine, strict=True)
        ):
            shape[-1] *= count
            steps[-1] = mine
        else:
            shape.append(count)
            steps.append(mine)
    return tuple(shape), [
        View(view.key, view.start, tuple(each[row] for each in steps))
        for row, view in enumerate(views)
    ]
