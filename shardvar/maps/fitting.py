"""Fit a map to the tensors of a checkpoint: the pieces of sources that make each target.

match    each key with the rules that match it                          keys, matching
contribution    what each rule takes from each tensor to each target           placing, contributions
join     the contributions of one target: its dtype, its shape, its pieces     targets
prove    each source element is used once                               proof

Nothing of a tensor is read but its name, its dtype and its shape. All problems are collected: one
does not stop the search for others.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from shardvar.errors import MapError
from shardvar.maps.contributions import (
    Contribution,
    FittedRule,
    TensorFacts,
    check_factors,
    check_kind,
    contributions_of,
    target_key,
)
from shardvar.maps.extents import SizeOf, rule_extents
from shardvar.maps.keys import Values, match_keys
from shardvar.maps.matching import Match, count_numbers, find_matches
from shardvar.maps.placing import TensorAxes, axes_of
from shardvar.maps.plan import MapPlan, Target
from shardvar.maps.proof import MOST_PROBLEMS, Use, check_uses
from shardvar.maps.syntax import MapRule
from shardvar.maps.targets import KnownTargets, join_contributions


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with a map, or with what it would do."""

    cause: str
    """One sentence that names the rule, the key and the values."""
    remedy: str
    """One sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of fitting a map to a checkpoint."""

    plan: MapPlan
    """The plan; it is right if there are no problems."""
    problems: tuple[Problem, ...]
    """The problems."""
    matches: tuple[int, ...]
    """[rules] the numbers of keys that they take."""
    renamed: Mapping[str, str]
    """The keys of objects, which have no elements, with their new names."""


@dataclass(slots=True)
class _Findings:
    """The uses, contributions and problems of rules, as they are found."""

    problems: list[Problem] = field(default_factory=list)
    uses: dict[str, list[Use]] = field(default_factory=dict)
    """The elements of each tensor that the rules hold."""
    contributions: dict[str, list[Contribution]] = field(default_factory=dict)
    """The contributions of each target."""
    taken: dict[str, list[int]] = field(default_factory=dict)
    """The rules that take each key."""
    left_out: dict[str, int] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)

    def wrong(self, where: str, error: MapError) -> None:
        """Note an error."""
        self.problems.append(Problem(f"{where}: {error.cause}", error.remedy))


def fit_rules(
    rules: Sequence[MapRule],
    tensors: Mapping[str, TensorFacts],
    objects: Collection[str],
    size_of: SizeOf,
    sizes: Collection[str],
    encodings: Mapping[str, str],
) -> Fit:
    """Fit rules to tensors and objects, and prove that nothing is lost."""
    found = _Findings()
    keys = [*tensors, *objects]
    # Match.
    matched: list[list[tuple[str, Values]]] = [[] for _ in rules]
    for key, hits in match_keys([rule.source.key for rule in rules], keys):
        for number, values in hits:
            matched[number].append((key, values))
    # Draft.
    for number, rule in enumerate(rules):
        try:
            fitted = FittedRule(number, rule, rule_extents(rule, size_of, sizes), size_of)
            for constant in (*rule.times, *([] if rule.plus is None else [rule.plus])):
                constant.real(size_of)
            matches = find_matches(rule.source, fitted.extents, matched[number], size_of)
            _contribute(found, fitted, matches, tensors, encodings)
        except MapError as error:
            found.wrong(f"Rule {number + 1}, {rule.text!r}", error)
    # Join.
    targets = _join(found, tensors)
    # Prove. After another problem, what is not used may only follow from it, unless no rule at all
    # has its name.
    by_name = {key: number for number, hits in enumerate(matched) for key, _ in hits}
    if not found.problems and keys and not by_name:
        _check_direction(found, rules, keys)
    judged = [key for key in keys if key not in by_name] if found.problems else keys
    shapes = {key: shape for key, (_, shape) in tensors.items()}
    for cause, remedy in check_uses(rules, shapes, found.uses, by_name, judged, found.taken):
        found.problems.append(Problem(cause, remedy))
    counts = [0] * len(rules)
    for numbers in found.taken.values():
        for number in numbers:
            counts[number] += 1
    plan = MapPlan(targets, found.left_out)
    return Fit(plan, tuple(found.problems), tuple(counts), found.renamed)


def _check_direction(found: _Findings, rules: Sequence[MapRule], keys: Sequence[str]) -> None:
    """Note that a map whose rules match no key has targets that do: it goes the other way."""
    targets = [rule.target.key for rule in rules if rule.target is not None]
    made = next((key for key, hits in match_keys(targets, keys) if hits), None)
    if made is not None:
        found.problems.append(
            Problem(
                f"No rule matches a key, and {made!r} is one that the map makes.",
                "The map goes the other way: add or remove --inverse, in Python .inverse().",
            )
        )


def _contribute(
    found: _Findings,
    fitted: FittedRule,
    matches: Sequence[Match],
    tensors: Mapping[str, TensorFacts],
    encodings: Mapping[str, str],
) -> None:
    """Find what one rule contributes with each key that it takes; an error ends its work."""
    rule, extents = fitted.rule, fitted.extents
    counts = count_numbers(extents, matches)
    placed_of: dict[tuple[int, ...], tuple[TensorAxes, dict[str, int]]] = {}
    uses_of: dict[tuple[object, ...], Use] = {}
    for match in matches:
        found.taken.setdefault(match.key, []).append(fitted.number)
        if match.key not in tensors:
            _take_object(found, fitted, match)
            continue
        dtype, shape = tensors[match.key]
        if shape not in placed_of:
            placed_of[shape] = axes_of(
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
        for contribution in contributions_of(fitted, match, (dtype, shape), placed, selected, mine):
            check_factors(contribution, tensors)
            # Most tensors of a rule are used alike.
            cause = id(placed), contribution.fixed_in(placed.axes), *contribution.selected.items()
            if cause not in uses_of:
                uses_of[cause] = contribution.use()
            uses.append(uses_of[cause])
            found.contributions.setdefault(contribution.target, []).append(contribution)


def _take_object(found: _Findings, fitted: FittedRule, match: Match) -> None:
    """Rename an object, or leave it out: it has no elements to move."""
    rule, others = fitted.rule, found.taken[match.key]
    if len(others) > 1:
        raise MapError(
            f"{match.key!r} is matched by rule {others[0] + 1} too.", "Keep one of the rules."
        )
    if rule.target is None:
        found.left_out[match.key] = fitted.number
        return
    if rule.has_arithmetic or rule.repeated() or rule.source.free() - set(match.indices):
        raise MapError(
            f"{match.key!r} is not a tensor, so it is only renamed or left out.",
            f"Write {match.key!r} -> nothing.",
        )
    found.renamed[match.key] = target_key(fitted, match, match.indices, {})


def _join(found: _Findings, tensors: Mapping[str, TensorFacts]) -> list[Target]:
    """Make each target of its contributions, in the order of their first sources."""
    order = {key: row for row, key in enumerate(tensors)}
    first = {
        key: min(order[contribution.match.key] for contribution in contributions)
        for key, contributions in found.contributions.items()
    }
    targets, known = list[Target](), KnownTargets()
    others = [key for key in tensors if key not in found.taken]
    for key in sorted(found.contributions, key=lambda key: (first[key], key)):
        # The order of rules does not matter.
        contributions = sorted(
            found.contributions[key], key=lambda d: (order[d.match.key], d.number)
        )
        try:
            target, factors = join_contributions(key, contributions, tensors, others, known)
        except MapError as error:
            found.wrong(repr(key), error)
            # Only the problems that are printed say which key is nearest.
            others = others if len(found.problems) < MOST_PROBLEMS else []
            continue
        targets.append(target)
        for source, use in factors:
            found.taken.setdefault(source, [])
            found.uses.setdefault(source, []).append(use)
    taken = set(found.contributions)
    for source, name in found.renamed.items():
        if name in taken:
            found.problems.append(
                Problem(
                    f"{source!r} would be named {name!r}, which another key makes.",
                    "Give it another name, or leave one of them out.",
                )
            )
        taken.add(name)
    return targets
