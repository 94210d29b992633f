"""The report of a map on a checkpoint: a table of its rules, and the problems."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from shardvar.maps.contributions import TensorFacts
from shardvar.maps.fitting import Fit
from shardvar.maps.plan import MapPlan
from shardvar.maps.proof import MOST_PROBLEMS
from shardvar.maps.syntax import MapRule
from shardvar.pictures.words import human_shape

__all__ = ["MapReport", "RuleReport"]


@dataclass(frozen=True, slots=True)
class RuleReport:
    """One rule on a checkpoint."""

    rule: str
    """The rule."""
    matches: int
    """The number of keys that it matches."""
    source: str
    """The shapes of the tensors that it takes, as text."""
    target: str
    """The shapes of the tensors that it fills, as text."""
    is_exact: bool
    """True if it moves bits, False if it computes."""


@dataclass(frozen=True, slots=True)
class MapReport:
    """A map on a checkpoint. ``str`` prints it as a table."""

    rules: tuple[RuleReport, ...]
    """One report a rule."""
    problems: tuple[str, ...]
    """The problems, a sentence each; empty if the map fits."""
    num_sources: int
    """The number of keys of the checkpoint."""
    num_targets: int
    """The number of tensors that it makes."""
    plan: MapPlan = field(repr=False)
    """Which source elements make which target elements."""

    @property
    def ok(self) -> bool:
        """True if every source element is used once, and every target element is filled once."""
        return not self.problems

    @property
    def is_exact(self) -> bool:
        """True if no rule that matches computes: bits are moved, and nothing is rounded."""
        return all(rule.is_exact for rule in self.rules if rule.matches)

    def lines(self) -> list[str]:
        """Return the table of rules, and what is wrong or that nothing is."""
        width = min(max([len(rule.rule) for rule in self.rules], default=4), 90)
        lines = [f"    {'rule':<{width}}  {'keys':>6}  from -> to"]
        for number, rule in enumerate(self.rules):
            what = "" if rule.is_exact else "  (rounded)"
            shapes = f"{rule.source} -> {rule.target}" if rule.matches else "-"
            lines.append(
                f"{number + 1:>3} {rule.rule:<{width}}  {rule.matches:>6,}  {shapes}{what}"
            )
        lines += first_problems(self.problems)
        if self.ok:
            lines.append("Every source element is used once, and every target element filled once.")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def first_problems(problems: Sequence[str]) -> list[str]:
    """Return the first problems, and the number of the others."""
    more = len(problems) - MOST_PROBLEMS
    return [*problems[:MOST_PROBLEMS], *([f"... and {more:,} more"] if more > 0 else [])]


def map_report(
    rules: Sequence[MapRule], found: Fit, tensors: Mapping[str, TensorFacts], num_objects: int
) -> MapReport:
    """Return the report of a fit."""
    sources: list[set[tuple[int, ...]]] = [set() for _ in rules]
    targets: list[set[tuple[int, ...]]] = [set() for _ in rules]
    for target in found.plan.targets:
        for piece in target.pieces:
            sources[piece.rule].add(tensors[piece.source.key][1])
            targets[piece.rule].add(target.shape)
    for key, number in found.plan.left_out.items():
        if key in tensors:
            sources[number].add(tensors[key][1])
    reports = tuple(
        RuleReport(
            rule.text,
            found.matches[number],
            _shapes(sources[number]),
            "nothing" if rule.target is None else _shapes(targets[number]),
            not rule.has_arithmetic,
        )
        for number, rule in enumerate(rules)
    )
    problems = tuple(f"{each.cause} {each.remedy}".strip() for each in found.problems)
    num_targets = len(found.plan.targets) + len(found.renamed)
    return MapReport(reports, problems, len(tensors) + num_objects, num_targets, found.plan)


def _shapes(shapes: Collection[tuple[int, ...]]) -> str:
    """The shapes of some tensors: the first, and dots if there are others."""
    if not shapes:
        return "-"
    return human_shape(min(shapes)) + (" ..." if len(shapes) > 1 else "")
