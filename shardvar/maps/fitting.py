"""Fit a map to the tensors of a checkpoint: which pieces of which source make each target?

match    each key with the rules that match it                          keys, matching
draft    what each rule takes from each tensor to each target           placing, drafts
join     the drafts of one target: its dtype, its shape, its pieces     targets
prove    each source element is used once                               proof

Nothing of a tensor is read but its name, its dtype and its shape. All problems are collected: one
does not stop the search for others.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from shardvar.errors import MapError
from shardvar.maps.drafts import About, Draft, FittedRule, check_kind, draft_tensor, target_key
from shardvar.maps.extents import SizeOf, extents_of
from shardvar.maps.keys import Values, match_keys
from shardvar.maps.matching import Match, count_numbers, find_matches
from shardvar.maps.placing import Placed, place
from shardvar.maps.plan import MapPlan, Target
from shardvar.maps.proof import Use, check_sources
from shardvar.maps.syntax import Rule
from shardvar.maps.targets import join_drafts


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with a map, or with what it would do."""

    cause: str
    """One sentence that names the rule, the key and the values."""
    remedy: str
    """One sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What came of fitting a map to a checkpoint."""

    plan: MapPlan
    """The plan; it is right if there are no problems."""
    problems: tuple[Problem, ...]
    """What is wrong."""
    matches: tuple[int, ...]
    """[rules] the numbers of keys that they take."""
    renamed: Mapping[str, str]
    """The keys of objects, which have no elements, with their new names."""


@dataclass(slots=True)
class _Found:
    """What the rules do, as it is found."""

    problems: list[Problem] = field(default_factory=list)
    uses: dict[str, list[Use]] = field(default_factory=dict)
    """What the rules hold of each tensor."""
    drafts: dict[str, list[Draft]] = field(default_factory=dict)
    """The drafts of each target."""
    taken: dict[str, list[int]] = field(default_factory=dict)
    """The rules that take each key."""
    left_out: dict[str, int] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)

    def wrong(self, where: str, error: MapError) -> None:
        """Note an error."""
        self.problems.append(Problem(f"{where}: {error.cause}", error.remedy))


def fit(
    rules: Sequence[Rule],
    tensors: Mapping[str, About],
    objects: Collection[str],
    size_of: SizeOf,
    sizes: Collection[str],
    encodings: Mapping[str, str],
) -> Fit:
    """Fit rules to tensors and objects, and prove that nothing is lost."""
    found = _Found()
    keys = [*tensors, *objects]
    # Match.
    matched: list[list[tuple[str, Values]]] = [[] for _ in rules]
    for key, hits in match_keys([rule.source.key for rule in rules], keys):
        for number, values in hits:
            matched[number].append((key, values))
    # Draft.
    for number, rule in enumerate(rules):
        try:
            fitted = FittedRule(number, rule, extents_of(rule, size_of, sizes), size_of)
            matches = find_matches(rule.source, fitted.extents, matched[number], size_of)
            _draft(found, fitted, matches, tensors, encodings)
        except MapError as error:
            found.wrong(f"Rule {number + 1}, {rule.text!r}", error)
    # Join.
    targets = _join(found, tensors)
    # Prove. After another problem, what is not used may only follow from it.
    if not found.problems:
        by_name = {key: number for number, hits in enumerate(matched) for key, _ in hits}
        shapes = {key: shape for key, (_, shape) in tensors.items()}
        for cause, remedy in check_sources(rules, shapes, found.uses, by_name, keys, found.taken):
            found.problems.append(Problem(cause, remedy))
    counts = [0] * len(rules)
    for numbers in found.taken.values():
        for number in numbers:
            counts[number] += 1
    plan = MapPlan(targets, found.left_out)
    return Fit(plan, tuple(found.problems), tuple(counts), found.renamed)


def _draft(
    found: _Found,
    fitted: FittedRule,
    matches: Sequence[Match],
    tensors: Mapping[str, About],
    encodings: Mapping[str, str],
) -> None:
    """Draft what one rule does with each key that it takes; an error ends its work."""
    rule, extents = fitted.rule, fitted.extents
    counts = count_numbers(extents, matches)
    placed_of: dict[tuple[int, ...], tuple[Placed, dict[str, int]]] = {}
    for match in matches:
        found.taken.setdefault(match.key, []).append(fitted.number)
        if match.key not in tensors:
            _take_object(found, fitted, match)
            continue
        dtype, shape = tensors[match.key]
        if shape not in placed_of:
            placed_of[shape] = place(
                rule.source,
                shape,
                match.key,
                lambda name: extents.full(name, False),
                extents.source,
                may_cut=bool(rule.factors),
            )
        placed, selected = placed_of[shape]
        uses = found.uses.setdefault(match.key, [])
        if rule.target is None:
            uses.append(placed.use(fitted.number, {}, selected))
            found.left_out.setdefault(match.key, fitted.number)
            continue
        check_kind(rule, match.key, dtype, encodings.get(match.key))
        mine = counts[tuple(match.texts.values())]
        for draft in draft_tensor(fitted, match, (dtype, shape), placed, selected, mine):
            uses.append(draft.use())
            found.drafts.setdefault(draft.target, []).append(draft)


def _take_object(found: _Found, fitted: FittedRule, match: Match) -> None:
    """Rename an object, or leave it out: it has no elements to move."""
    rule, others = fitted.rule, found.taken[match.key]
    if len(others) > 1:
        raise MapError(
            f"{match.key!r} is matched by rule {others[0] + 1} too.", "Keep one of the rules."
        )
    if rule.target is None:
        found.left_out[match.key] = fitted.number
        return
    if rule.has_arithmetic or rule.source.free() - set(match.indices):
        raise MapError(
            f"{match.key!r} is not a tensor, so it is only renamed or left out.",
            f"Write {match.key!r} -> nothing.",
        )
    found.renamed[match.key] = target_key(fitted, match, match.indices, {})


def _join(found: _Found, tensors: Mapping[str, About]) -> list[Target]:
    """Make each target of its drafts, in the order of their first sources."""
    order = {key: row for row, key in enumerate(tensors)}
    first = {
        key: min(order[draft.match.key] for draft in drafts) for key, drafts in found.drafts.items()
    }
    targets = list[Target]()
    for key in sorted(found.drafts, key=lambda key: (first[key], key)):
        # The order of rules does not matter.
        drafts = sorted(found.drafts[key], key=lambda d: (order[d.match.key], d.number))
        try:
            target, factors = join_drafts(key, drafts, tensors)
        except MapError as error:
            found.wrong(repr(key), error)
            continue
        targets.append(target)
        for source, use in factors:
            found.taken.setdefault(source, [])
            found.uses.setdefault(source, []).append(use)
    taken = set(found.drafts)
    for source, name in found.renamed.items():
        if name in taken:
            found.problems.append(
                Problem(
                    f"{source!r} would be named {name!r}, which another key makes.", "Rename it."
                )
            )
        taken.add(name)
    return targets
