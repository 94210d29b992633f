"""The report of a map on a checkpoint: a table of its rules, and the problems."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from shardvar.limits import MAX_NAMED
from shardvar.maps.fitting import Fit
from shardvar.maps.language import MapRule
from shardvar.maps.plan import MapPlan
from shardvar.maps.proof import MOST_PROBLEMS, Problem, TensorFacts
from shardvar.pictures.words import human_shape, message, printable
from shardvar.records import asdict, field, frozen, replace

_WIDEST = 120
"""The width up to which a column is padded; a longer cell shifts its row."""
HEADERS = ("", "rule", "matches", "from", "to")
"""The columns of the table of rules."""
_KINDS = {
    "rounded": "the numbers in another dtype",
    "computed": "in float64, then rounded once",
}
UNLIKE = "differ"
"""One more column, of a comparison."""

__all__ = ["MapReport", "RuleReport"]


@frozen
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
    kind: str
    """``moved``: bits; ``rounded``: the numbers, in another dtype; ``computed``: other numbers."""
    num_targets: int
    """The number of tensors that it fills, or helps to fill."""
    exception: str
    """The word by which it is an exception to "once": also, nothing or else; empty without one."""
    num_unlike: int | None = None
    """In a comparison, how many of the tensors that it fills differ; else None."""


@frozen
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
    model: str = ""
    """The sentence on the model that the map is for, or why it was not checked."""

    @property
    def ok(self) -> bool:
        """True if every source element is used once, and every target element is filled once."""
        return not self.problems

    @property
    def is_exact(self) -> bool:
        """True if no rule that matches computes: bits are moved, and nothing is rounded."""
        return all(rule.kind == "moved" for rule in self.rules if rule.num_targets)

    def compared(self, unlike: Collection[str]) -> "MapReport":
        """Return the report with how many tensors of each rule differ in a comparison.

        Parameters
        ----------
        unlike : collection of str
            The keys of the tensors that differ.

        Returns
        -------
        MapReport
            The report, whose rules have ``num_unlike``.
        """
        rules = self.plan.rules_by_target()
        counts = Counter(number for key in unlike for number in rules.get(key, ()))
        pairs = enumerate(self.rules)
        return replace(self, rules=tuple(replace(rule, num_unlike=counts[n]) for n, rule in pairs))

    def headers(self) -> tuple[str, ...]:
        """Return the columns of the table of rules."""
        is_compared = any(rule.num_unlike is not None for rule in self.rules)
        return (*HEADERS, UNLIKE) if is_compared else HEADERS

    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells of the table of rules, in the columns of ``headers``."""
        rows = []
        for number, rule in enumerate(self.rules):
            matches, each = f"{rule.matches:,}", rule.matches // max(rule.num_targets, 1)
            if each > 1 and each * rule.num_targets == rule.matches and rule.num_targets > 1:
                matches = f"{rule.num_targets:,} x {each:,}"  # so many sources for each target
            rounded = f" ({rule.kind})" if rule.num_targets and rule.kind != "moved" else ""
            cells = f"{number + 1}", printable(rule.rule), matches, rule.source
            unlike = () if rule.num_unlike is None else (f"{rule.num_unlike:,}",)
            rows.append((*cells, rule.target + rounded, *unlike))
        return rows

    def summary(self) -> list[str]:
        """Return sentences about the proof of the map, or its problems, and about rounding."""
        if self.problems:
            return first_problems(self.problems)
        used = [
            f", or {what}{self._named(word)}"
            for word, what in (("nothing", "left out by name"), ("also", "used again by 'also'"))
            if self._named(word)
        ]
        filled = f", or by 'else'{self._named('else')}" if self._named("else") else ""
        lines = [
            f"every source is used once{''.join(used)}; every tensor made is filled once{filled}"
        ]
        for kind, words in _KINDS.items():
            of_kind = [n + 1 for n, r in enumerate(self.rules) if r.num_targets and r.kind == kind]
            if of_kind:
                lines.append(f"{kind}: {_numbers(of_kind)}, {words}")
        others = "moved: all other rules, bits as they are"
        lines.append("exact: bits are moved, and nothing is computed" if self.is_exact else others)
        idle = [n + 1 for n, r in enumerate(self.rules) if not (r.matches or r.num_targets)]
        if idle:
            lines.append(f"no key matches {_numbers(idle)}")
        return [*lines, *([printable(self.model)] if self.model else [])]

    def lines(self) -> list[str]:
        """Return the table of rules, and its summary."""
        table = [self.headers(), *self.rows()]
        widths = [min(max(map(len, column)), _WIDEST) for column in zip(*table, strict=True)]
        return [
            *("  ".join(map(str.ljust, row, widths)).rstrip() for row in table),
            *self.summary(),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with stable keys."""
        return {
            "rules": [asdict(rule) for rule in self.rules],
            "num_sources": self.num_sources,
            "num_targets": self.num_targets,
            "is_exact": self.is_exact,
            "summary": self.summary(),
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _named(self, word: str) -> str:
        """The rules that are exceptions by a word, in brackets; empty if none matches a key."""
        some = [n + 1 for n, r in enumerate(self.rules) if r.matches and r.exception == word]
        return f" ({_numbers(some)})" if some else ""


def _numbers(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - MAX_NAMED:,} more" if len(numbers) > MAX_NAMED else ""
    listed = ", ".join(map(str, numbers[:MAX_NAMED]))
    return f"rule {listed}" if len(numbers) == 1 else f"rules {listed}{more}"


def first_problems(problems: Sequence[str]) -> list[str]:
    more = len(problems) - MOST_PROBLEMS
    return [*problems[:MOST_PROBLEMS], *([f"... and {more:,} more"] if more > 0 else [])]


def sentences_of(problems: Sequence[Problem]) -> tuple[str, ...]:
    """Return each problem and its remedy as text that is safe to print."""
    return tuple(message(f"{each.cause} {each.remedy}".strip()) for each in problems)


def map_report(
    rules: Sequence[MapRule], fit: Fit, tensors: Mapping[str, TensorFacts], num_objects: int
) -> MapReport:
    sources: list[set[tuple[int, ...]]] = [set() for _ in rules]
    targets: list[set[tuple[int, ...]]] = [set() for _ in rules]
    num_targets = Counter(chain.from_iterable(fit.plan.rules_by_target().values()))
    for target in fit.plan.targets:
        for piece in target.pieces:
            sources[piece.rule].update(tensors[key][1] for key in piece.keys)
            targets[piece.rule].add(target.shape)
    for key, number in fit.plan.rules.items():
        sources[number].add(tensors[key][1])
        targets[number].add(tensors[key][1])
    for key, number in fit.plan.left_out.items():
        if key in tensors:
            sources[number].add(tensors[key][1])
    reports = tuple(
        RuleReport(
            rule.text,
            fit.matches[number],
            _shapes(sources[number]),
            "nothing" if rule.target is None else _shapes(targets[number]),
            rule.kind,
            num_targets[number],
            rule.exception,
        )
        for number, rule in enumerate(rules)
    )
    problems = sentences_of(fit.problems)
    made = len(fit.plan.targets) + len(fit.plan.names) + len(fit.renamed)
    return MapReport(reports, problems, len(tensors) + num_objects, made, fit.plan, fit.model)


def _shapes(shapes: Collection[tuple[int, ...]]) -> str:
    """The shapes of some tensors: the first, and dots if there are others."""
    if not shapes:
        return "-"
    return human_shape(min(shapes)) + (" ..." if len(shapes) > 1 else "")
