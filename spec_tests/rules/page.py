"""docs/rules.md: sentence by sentence, what obeys it, what holds it, who keeps it."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from spec_tests.helpers import paths
from spec_tests.rules import mentions
from spec_tests.rules.kept import checks, kept_by
from spec_tests.rules.mentions import Mention
from spec_tests.rules.sentences import Document, Sentence, documents, sentences_by_rule

PAGE = paths.DOCS / "rules.md"

_HEAD = """\
# Rules

What the four RFCs say, sentence by sentence: every one that demands, promises or refuses something (and those that the
code quotes besides), as it stands there. `make rules` writes this page from the data in `spec_tests/rules/`, from the
ids in the code and its tests, and from `docs/conformance.json`, which `make peers` writes; `make check` fails where it
is out of date, where a rule has no function or no test, and where a quotation is none.

- *obeyed by*: the functions, classes or modules whose documentation or comments name the rule.
- *held by*: the tests that fail where it is broken; `kit` gives the checks of the conformance kit that stand for it.
- *kept by*: what the kit found of the implementations. Not all rules can be asked of others: `not in the kit`.
- *status*: `kept`, perhaps with the sense in which; `unlike`, where shardvar does something else on purpose (see
  [deviations.md](deviations.md) too); or `out of scope`; the last two with the reason.

A rule that is the source of several sentences has its functions and tests beside the first of them.
"""


def page() -> str:
    """The whole page."""
    lines = [_HEAD, *_summary()]
    shown: set[str] = set()
    for document in documents():
        lines += ["", f"## RFC {document.number}: {document.title}", ""]
        lines += [f"Complete for the text with SHA-256 `{document.sha256}`."]
        for section, sentences in groupby(document.sentences, key=lambda sentence: sentence.section):
            lines += ["", f"### {section}", "", "| rule | sentence | obeyed by | held by | kept by | status |"]
            lines += ["|---|---|---|---|---|---|"]
            for sentence in sentences:
                lines += _rows(document, sentence, shown)
    return "\n".join(lines) + "\n"


def _summary() -> Iterator[str]:
    yield "| document | sentences | kept | unlike | out of scope |"
    yield "|---|---|---|---|---|"
    for document in documents():
        every = document.sentences
        counts = [len(every), sum(bool(each.rules) for each in every), sum(bool(each.unlike) for each in every)]
        counts.append(sum(bool(each.out_of_scope) for each in every))
        yield f"| RFC {document.number} | {' | '.join(map(str, counts))} |"
    yield ""
    yield f"{len(sentences_by_rule())} rules, of which the kit checks {len(checks())}."


def _rows(document: Document, sentence: Sentence, shown: set[str]) -> Iterator[str]:
    """A row for each rule of a sentence, or one where it has none."""
    text = _cell(sentence.text)
    if not sentence.rules:
        why = f"unlike: {sentence.unlike}" if sentence.unlike else f"out of scope: {sentence.out_of_scope}"
        yield f"| | {text} | | | | {_cell(why)} |"
    status = f"kept: {_cell(sentence.note)}" if sentence.note else "kept"
    for rule in sentence.rules:
        if rule in shown:
            yield f"| [{rule}](#{rule.lower()}) | {text} | see {rule} | | | {status} |"
        else:
            anchor = f'<a id="{rule.lower()}"></a>{rule}'
            obeyed = _links(one for one in mentions.functions() if one.rule == rule)
            held = _links(one for one in mentions.tests() if one.rule == rule)
            yield f"| {anchor} | {text} | {obeyed} | {held}{_kit(rule)} | {kept_by(rule)} | {status} |"
        shown.add(rule)
        text = "the same sentence"


def _links(places: Iterable[Mention]) -> str:
    """Each place once, in order, as a link to its file."""
    named = dict.fromkeys((one.path, one.module, one.name) for one in places)
    return "<br>".join(f"[{module}](../{path}){f' `{name}`' if name else ''}" for path, module, name in named)


def _kit(rule: str) -> str:
    ids = checks().get(rule, ())
    return f"<br>kit: {', '.join(ids)}" if ids else ""


def _cell(text: str) -> str:
    """A text in a cell of a table: what Markdown or HTML would take for its own is escaped."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
