"""The report: a table rule by rule, for a terminal, as JSON and as one HTML page."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import shardvar
from shardvar.conformance.adapter import methods_of, strangers_of
from shardvar.conformance.registry import LEVELS, Rule, rules_of
from shardvar.conformance.verdict import (
    BROKEN,
    BROKEN_SOMETIMES,
    EXPECTED_FAILURE,
    KEPT,
    NOT_CLAIMED,
    NOT_RUN,
    UNEXPECTED_PASS,
    Verdict,
)

OUTCOMES = (KEPT, BROKEN, NOT_CLAIMED, EXPECTED_FAILURE, BROKEN_SOMETIMES, UNEXPECTED_PASS, NOT_RUN)
_STYLES = {KEPT: "green", BROKEN: "red", UNEXPECTED_PASS: "red"}
_STYLES |= dict.fromkeys((EXPECTED_FAILURE, BROKEN_SOMETIMES), "yellow")


@dataclass(frozen=True, slots=True)
class Report:
    """The verdicts of a run of the kit."""

    spec: str
    """The name of the adapter, ``package.module:Name``."""
    adapter: Any
    """The adapter, for the methods that it has."""
    levels: range
    """The levels that were asked for."""
    verdicts: Mapping[str, Verdict]
    """The verdicts by rule; rules that are missing were not run."""

    def rows(self) -> Iterator[tuple[Rule, Verdict]]:
        """Return every rule of the levels and its verdict."""
        for rule in rules_of(self.levels):
            yield rule, self.verdicts.get(rule.id, Verdict(rule.id, NOT_RUN))

    def counts(self) -> dict[str, int]:
        """Return the number of rules of each outcome."""
        counted = Counter(verdict.outcome for _, verdict in self.rows())
        return {outcome: counted[outcome] for outcome in OUTCOMES}


def remark(verdict: Verdict) -> str:
    """Return the remark next to an outcome: the reason, and the share of unclaimed cases."""
    parts = [verdict.reason] if verdict.reason else []
    if verdict.unclaimed_cases and verdict.outcome != NOT_CLAIMED:
        # Three reasons fit on a line; the JSON report has all of them.
        reasons = f": {'; '.join(verdict.unclaimed[:3])}" if verdict.unclaimed else ""
        total = verdict.cases + verdict.unclaimed_cases
        parts.append(f"{verdict.unclaimed_cases} of {total} cases not claimed{reasons}")
    return "; ".join(parts)


def summary(report: Report) -> str:
    """Return the counts in one line; only the first three outcomes may be 0."""
    counts = report.counts()
    shown = [
        outcome for outcome in OUTCOMES if counts[outcome] or outcome in (KEPT, BROKEN, NOT_CLAIMED)
    ]
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in shown)


def table_lines(report: Report, width: int | None) -> Iterator[tuple[str, str]]:
    """Yield the lines of the table, cut to the terminal, each with a colour or ``""``."""
    rows = list(report.rows())
    broad = max((len(rule.id) for rule, _ in rows), default=0)
    for level in report.levels:
        yield f"level {level}: {LEVELS[level]}", "bold"
        for rule, verdict in rows:
            if rule.level != level:
                continue
            note = f"({remark(verdict)}) " if remark(verdict) else ""
            line = (
                f"  {rule.id:{broad}}  {verdict.outcome:{max(map(len, OUTCOMES))}}  "
                f"{note}{rule.law}"
            )
            fits = width is None or len(line) <= width
            yield line if fits else line[: (width or 1) - 1] + "…", _STYLES.get(verdict.outcome, "")
    strangers = strangers_of(report.adapter)
    if strangers:
        yield f"no rule asks for these methods of the adapter: {', '.join(strangers)}", "yellow"
    yield summary(report), "bold"


def details(rule: Rule, verdict: Verdict, spec: str) -> str:
    """Return the reason why a rule is not kept, with a program that shows it."""
    head = f'{rule.id} ({rule.source}, level {rule.level}): "{rule.sentence}"\n{rule.law}.\n'
    # Only an unexpected pass fails without a counterexample.
    if verdict.counterexample is None:
        return (
            f"{head}\nIt was declared as an expected failure ({verdict.reason}), and is kept: take "
            "it off the list."
        )
    return f"{head}\nThe smallest counterexample:\n\n{program(verdict, spec)}"


def program(verdict: Verdict, spec: str) -> str:
    """Return the counterexample as a program on the adapter, with results in comments."""
    example = verdict.counterexample
    if example is None:
        return ""
    module, _, name = spec.partition(":")
    calls = "\n".join(example.calls)
    imports = ["import numpy as np", f"from {module} import {name}"]
    # Importing ml_dtypes registers these names with NumPy, which then accepts them as texts.
    if any(word in calls for word in ("bfloat16", "float8", "float4", "int4", "int2'")):
        imports.insert(0, "import ml_dtypes  # dtypes that NumPy has not")
    lines = [
        *imports,
        "",
        f"adapter = {name}()",
        *example.calls,
        f"# {example.came}",
        f"# {example.must}",
    ]
    return "\n".join(f"    {line}" if line else "" for line in "\n".join(lines).split("\n"))


def to_json(report: Report) -> str:
    """Return the report as one JSON object with stable keys."""
    rules = [
        {
            "id": rule.id,
            "sentence_id": rule.sentence_id,
            "level": rule.level,
            "rfc": rule.rfc if rule.rfc.isdigit() else None,
            "source": rule.source,
            "sentence": rule.sentence,
            "law": rule.law,
            "needs": list(rule.needs),
            **{key: value for key, value in verdict.as_json().items() if key != "rule"},
            "program": program(verdict, report.spec) or None,
        }
        for rule, verdict in report.rows()
    ]
    body = {
        "adapter": report.spec,
        "shardvar": shardvar.__version__,
        "levels": {str(level): LEVELS[level] for level in report.levels},
        "methods": sorted(methods_of(report.adapter)),
        "unknown_methods": strangers_of(report.adapter),
        "counts": report.counts(),
        "rules": rules,
    }
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def to_html(report: Report) -> str:
    """Return the report as one self-contained HTML page."""
    title = f"Conformance of {escape(report.spec)}"
    judged = f"{escape(summary(report))}; judged by shardvar {shardvar.__version__}"
    parts = [_HEAD.format(title=title), f"<h1>{title}</h1><p>{judged}"]
    for level in report.levels:
        parts.append(
            f"<h2>Level {level}: {LEVELS[level]}</h2><table><tr><th>rule<th>verdict<th>law and "
            "sentence"
        )
        for rule, verdict in report.rows():
            if rule.level == level:
                parts.append(_html_row(rule, verdict, report.spec))
        parts.append("</table>")
    return "\n".join(parts) + "\n"


def _html_row(rule: Rule, verdict: Verdict, spec: str) -> str:
    note = remark(verdict)
    text = f"{escape(rule.law)}<br><q>{escape(rule.sentence)}</q> {rule.source}"
    text += f"<br>{escape(note)}" if note else ""
    if verdict.counterexample is not None:
        text += f"<details><summary>counterexample</summary><pre>{escape(program(verdict, spec))}</pre></details>"
    css = verdict.outcome.replace(" ", "-")
    return f'<tr class="{css}" id="{rule.id}"><td>{rule.id}<td>{verdict.outcome}<td>{text}'


# Braces are doubled because ``str.format`` puts the title in.
_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.4 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; vertical-align: top; padding: .3em .6em }}
tr {{ border-bottom: 1px solid #ccc }} td:first-child, td:nth-child(2) {{ white-space: nowrap }} q {{ color: #555 }}
.kept td:nth-child(2) {{ color: #060 }} .broken td:nth-child(2), .unexpected-pass td:nth-child(2) {{ color: #a00 }}
.expected-failure td:nth-child(2), .broken-in-some-runs td:nth-child(2) {{ color: #960 }}
.not-claimed td, .not-run td {{ color: #777 }}
pre {{ overflow-x: auto; background: #f6f6f6; padding: .6em }}
</style>"""
