"""Fit a map to the tensors of a checkpoint: the pieces of sources that make each target.

match    each key with the rules that match it                          keys, matching
rename   the names that rules give to whole tensors                     renames
contribution    what each rule takes from each tensor to each target           placing, contributions
join     the contributions of one target: its dtype, its shape, its pieces     targets
prove    each source element is used once                               proof

Nothing of a tensor is read but its name, its dtype and its shape. All problems are collected: one
does not stop the search for others.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

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
from shardvar.maps.keys import Values, match_keys, matches_key
from shardvar.maps.matching import Match, count_numbers, find_matches
from shardvar.maps.placing import TensorAxes, axes_of
from shardvar.maps.plan import MapPlan, Target
from shardvar.maps.proof import MOST_PROBLEMS, Use, check_uses
from shardvar.maps.renames import is_rename, renamed_keys
from shardvar.maps.syntax import KeyPattern, MapRule
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
    model: str = ""
    """The sentence on the model, for the report; empty if the map is for all."""


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
    names: dict[int, dict[str, str]] = field(default_factory=dict)
    """The new names of whole tensors, by key, of each rule that only renames."""
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
    fitted_rules, failed = dict[int, FittedRule](), list[MapRule]()
    for number, rule in enumerate(rules):
        try:
            fitted = FittedRule(number, rule, rule_extents(rule, size_of, sizes), size_of)
            for constant in (*rule.times, *([] if rule.plus is None else [rule.plus])):
                constant.real(size_of)
            fitted_rules[number] = fitted
            new = _new_names(fitted, matched[number], tensors)
            rest = [each for each in matched[number] if each[0] not in new]
            matches = find_matches(rule.source, fitted.extents, rest, size_of)
            found.names[number] = new
            _contribute(found, fitted, matches, tensors, encodings)
        except MapError as error:
            found.wrong(f"Rule {number + 1}, {rule.text!r}", error)
            failed.append(rule)
    for number in _disputed(found):
        del found.names[number]
        fitted = fitted_rules[number]
        mine = [each for each in matched[number] if each[0] in tensors]
        matches = find_matches(fitted.rule.source, fitted.extents, mine, size_of)
        _contribute(found, fitted, matches, tensors, encodings)
    owner = {key: number for number, names in found.names.items() for key in names}
    # Join.
    _drop_targets(found, failed)
    targets = _join(found, tensors, owner)
    # Prove. After another problem, what is not used may only follow from it, unless no rule at all
    # has its name.
    by_name = {key: number for number, hits in enumerate(matched) for key, _ in hits}
    if not found.problems and keys and not by_name:
        _check_direction(found, rules, keys)
    judged = [key for key in keys if key not in owner]
    if found.problems:
        factors = [side.key for rule in rules for side in rule.factors]
        judged = [key for key in judged if key not in by_name and not _is_any(factors, key)]
    shapes = {key: tensors[key][1] for key in judged if key in tensors}
    for cause, remedy in check_uses(rules, shapes, found.uses, by_name, judged, found.taken):
        found.problems.append(Problem(cause, remedy))
    counts = [len(found.names.get(number, ())) for number in range(len(rules))]
    for numbers in found.taken.values():
        for number in numbers:
            counts[number] += 1
    names = {key: found.names[owner[key]][key] for key in tensors if key in owner}
    plan = MapPlan(targets, found.left_out, names, owner, tensors)
    return Fit(plan, tuple(found.problems), tuple(counts), found.renamed)


def _drop_targets(found: _Findings, failed: Sequence[MapRule]) -> None:
    """Forget the targets of rules with a problem: no other problem of them is known."""
    filled = [rule.target.key for rule in failed if rule.target is not None]
    for target in [key for key in found.contributions if _is_any(filled, key)]:
        del found.contributions[target]


def _is_any(patterns: Sequence[KeyPattern], key: str) -> bool:
    """Return True if one of the patterns matches a key."""
    return any(matches_key(each, key) for each in patterns)


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


def _new_names(
    fitted: FittedRule, matched: Sequence[tuple[str, Values]], tensors: Mapping[str, TensorFacts]
) -> dict[str, str]:
    """The names of whole tensors, if a rule only renames; none if they are found one by one."""
    if not is_rename(fitted.rule):
        return {}
    return renamed_keys(fitted, [each for each in matched if each[0] in tensors], tensors) or {}


def _disputed(found: _Findings) -> list[int]:
    """The rules that only rename, and whose keys or names other rules have: the plain way says
    what is wrong with these."""
    used = (key for key, uses in found.uses.items() if not all(use.is_again for use in uses))
    keys = Counter(chain(used, *found.names.values()))
    names = Counter(chain(found.contributions, *(each.values() for each in found.names.values())))
    shared = [{text for text, count in each.items() if count > 1} for each in (keys, names)]
    return [
        number
        for number, mine in found.names.items()
        if not (shared[0].isdisjoint(mine) and shared[1].isdisjoint(mine.values()))
    ]


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
            f"{match.key!r} is not a tensor that can be read, so it is only renamed or left out.",
            f"`shardvar verify` says why. To leave it out, write {match.key!r} -> nothing.",
        )
    found.renamed[match.key] = target_key(fitted, match, match.indices, {})


def _join(
    found: _Findings, tensors: Mapping[str, TensorFacts], owner: Mapping[str, int]
) -> list[Target]:
    """Make each target of its contributions, in the order of their first sources.

    ``owner`` has the keys that are only renamed.
    """
    order = {key: row for row, key in enumerate(tensors)}
    first = {
        key: min(order[contribution.match.key] for contribution in contributions)
        for key, contributions in found.contributions.items()
    }
    targets, known = list[Target](), KnownTargets()
    others = [key for key in tensors if key not in found.taken and key not in owner]
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
    taken = set(chain(found.contributions, *(each.values() for each in found.names.values())))
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
