"""docs/conformance.json, from the reports of the implementations, and docs/conformance.md, from
that."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from spec_tests.conformance.implementations import Implementation

SOMETIMES = "broken in some runs"
OUTCOMES = {
    "kept": "kept",
    "expected failure": "broken",
    "broken": "broken",
    "unexpected pass": "kept",
}
OUTCOMES |= {SOMETIMES: SOMETIMES}
"""The result for the implementation, whatever was expected; all other outcomes are ``not
claimed``."""

LONGEST = 1000
"""Characters of a line of a counterexample."""
SHOWN = 300
"""Characters of a line of a program on the page."""

Data = dict[str, Any]

_HEAD = """# Conformance results

The results of the [conformance kit](conformance-kit.md) for several implementations. `make conformance` runs the kit
and generates this page from its reports. [conformance.json](conformance.json) has the same data for programs.

- *kept*: no case breaks the rule; in *kept\\**, some cases were not claimed.
- **broken**: a case breaks the rule.
- *broken in some runs*: the implementation is nondeterministic, so the failure appears only in some runs; the reason
  explains it.
- a dash: the adapter does not claim the rule, because the implementation does not have the feature, or the adapter
  cannot reach it.
"""

_BREACHES = """## Breaches

Each breach has its reason, its sentence, and the smallest case found: calls of `adapter = Adapter()` that
[conformance.json](conformance.json) has in full, or a script that shows the breach with only the framework.
`make peers` runs these scripts. If a difference is intended, the reason states it."""


def combined(reports: dict[str, Data], implementations: Sequence[Implementation]) -> Data:
    """The reports as one object: the implementations, and the verdict of each for every rule."""
    present = [one for one in implementations if one.name in reports]
    rows = {one.name: {rule["id"]: rule for rule in reports[one.name]["rules"]} for one in present}
    first = reports[present[0].name]
    return {
        "levels": first["levels"],
        "implementations": [
            {
                "name": one.name,
                "title": one.title,
                "adapter": one.spec,
                "versions": one.versions() or {"shardvar": reports[one.name]["shardvar"]},
            }
            for one in present
        ],
        "rules": [
            {
                key: rule[key]
                for key in ("id", "sentence_id", "level", "rfc", "source", "sentence", "law")
            }
            | {"verdicts": {name: verdict(rules[rule["id"]]) for name, rules in rows.items()}}
            for rule in first["rules"]
        ],
    }


def verdict(rule: Data) -> Data:
    """The outcome of one rule in short; ``cases`` counts those that passed."""
    outcome = OUTCOMES.get(rule["outcome"], "not claimed")
    if outcome == SOMETIMES:  # all else differs from run to run
        return {"outcome": outcome, "reason": rule["reason"]}
    found: Data = {
        "outcome": outcome,
        "cases": rule["cases"],
        "unclaimed_cases": rule["unclaimed_cases"],
    }
    if outcome == "broken":
        found |= {
            "reason": rule["reason"],
            "came": shortened(lasting(rule["counterexample"]["came"])),
        }
        found |= {
            "must": rule["counterexample"]["must"],
            "program": shortened(lasting(rule["program"])),
        }
    else:
        found["unclaimed"] = rule["unclaimed"] or [rule["reason"]] * (outcome == "not claimed")
    return found


def lasting(text: str) -> str:
    """Remove from a text what differs from run to run: addresses of objects, directories,
    tracebacks in messages.

    >>> lasting("It returned <Variable object at 0x7f>."), lasting("No file /tmp/x-1/model. Detected at node A (File")
    ('It returned <Variable object>.', 'No file …/model. …')
    """
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    text = re.sub(r" Detected at node .*", " …", text)
    return re.sub(r"(?<![\w.:<])/(?:[^/\s'\"]+/)+", "…/", text)


def shortened(text: str) -> str:
    """Shorten result lines, which may hold a large array; keep the program's own lines whole."""
    comments = re.compile(rf"^(\s*(?:#|It ).{{{LONGEST}}}).+$", re.MULTILINE)
    return comments.sub(r"\1 …", text)


def outcomes(data: Data) -> dict[tuple[str, str], str]:
    """The outcomes by implementation and rule."""
    return {
        (name, rule["id"]): found["outcome"]
        for rule in data["rules"]
        for name, found in rule["verdicts"].items()
    }


def scripts_of(folder: Path) -> dict[tuple[str, str], Path]:
    """The scripts that show a breach, by implementation and rule: their names begin with the first,
    and their docstrings name the second."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        for rule in re.findall(r"[RV]-[A-Z]+-\d+[a-z-]*", told):
            found[path.stem.partition("_")[0], rule] = path
    return found


def page(data: Data, breaches: Path) -> str:
    """docs/conformance.md."""
    return "\n".join([*_head(data), *_tables(data), *_breaches(data, scripts_of(breaches))]) + "\n"


def _head(data: Data) -> Iterator[str]:
    yield _HEAD
    yield f"| implementation | versions | {' | '.join(_WHAT)} | adapter |"
    yield f"|---|---|{'---|' * len(_WHAT)}---|"
    found = outcomes(data)
    for one in data["implementations"]:
        counts = [
            sum(key[0] == one["name"] and it == what for key, it in found.items()) for what in _WHAT
        ]
        versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
        module = one["adapter"].partition(":")[0]
        link = f"[{one['name']}.py](../{module.replace('.', '/')}.py)"
        yield f"| {one['title']} | {versions} | {' | '.join(map(str, counts))} | {link} |"
    yield ""


_WHAT = ("kept", "broken", SOMETIMES, "not claimed")


def _tables(data: Data) -> Iterator[str]:
    names = [one["name"] for one in data["implementations"]]
    for level, about in data["levels"].items():
        yield f"## Level {level}: {about}"
        yield ""
        yield f"| rule | law | {' | '.join(one['title'] for one in data['implementations'])} |"
        yield f"|---|---|{'---|' * len(names)}"
        for rule in data["rules"]:
            if rule["level"] == int(level):
                cells = " | ".join(_cell(rule, name) for name in names)
                yield f"| {rule['id']} | {_inline(rule['law'])} | {cells} |"
        yield ""


def _cell(rule: Data, name: str) -> str:
    found = rule["verdicts"][name]
    if found["outcome"] in ("broken", SOMETIMES):
        return f"[**{found['outcome']}**](#{_anchor(name, rule['id'])})"
    if found["outcome"] == "kept":
        return "kept\\*" if found["unclaimed_cases"] else "kept"
    return "-"


def _breaches(data: Data, scripts: dict[tuple[str, str], Path]) -> Iterator[str]:
    yield _BREACHES
    for one in data["implementations"]:
        broken = [
            rule
            for rule in data["rules"]
            if rule["verdicts"][one["name"]]["outcome"] in ("broken", SOMETIMES)
        ]
        if broken:
            yield ""
            yield f"### {one['title']}"
        for rule in broken:
            yield from _breach(one["name"], rule, scripts.get((one["name"], rule["id"])))


def _breach(name: str, rule: Data, script: Path | None) -> Iterator[str]:
    found = rule["verdicts"][name]
    yield ""
    yield f"#### {name} {rule['id']}"
    yield ""
    yield f"{_inline(found['reason'])}. {_sentence(rule)}"
    if script:
        yield f"Script: [{script.name}](../examples/breaches/{script.name})."
    if "program" in found:
        yield ""
        yield from _calls(found["program"], only_comments=script is not None)


def _sentence(rule: Data) -> str:
    """The sentence of a rule: a link to docs/rules.md, or the sentence of another source."""
    if rule["rfc"] is None:
        return f'{rule["source"]}: "{_inline(rule["sentence"])}"'
    return f"[{rule['sentence_id']}](rules.md#{rule['sentence_id'].lower()})"


def _calls(program: str, only_comments: bool) -> Iterator[str]:
    """The lines of a program below the adapter; long arrays are cut short, and the JSON has them.

    >>> list(_calls("    adapter = Adapter()\\n    adapter.div(1, 2)\\n    # It gave 1.", False))
    ['    adapter.div(1, 2)', '    # It gave 1.']
    """
    body = program.partition("adapter = Adapter()\n")[2] or program
    for line in body.split("\n"):
        if not only_comments or line.startswith("    #"):
            yield line.rstrip() if len(line) <= SHOWN else line[:SHOWN].rpartition(" ")[0] + " …"


def _anchor(name: str, rule: str) -> str:
    return f"{name}-{rule}".lower()


def _inline(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").rstrip(".")
