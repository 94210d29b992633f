"""Generate docs/rules.md: for each sentence of the RFCs, its code, its tests, and the
implementations that keep it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from spec_tests.helpers import paths
from spec_tests.rules import mentions
from spec_tests.rules.kept import checks, kept_by
from spec_tests.rules.mentions import Mention
from spec_tests.rules.sentences import (
    Document,
    Sentence,
    documents,
    no_plain_rule,
    sentences_by_rule,
)
from spec_tests.rules.status import KEPT, NOT_TESTED, RULE_KEPT, running_tests, status_of

PAGE = paths.DOCS / "rules.md"

_HEAD = """\
# Specification

Every normative sentence of the four RFCs, and every further sentence that the code quotes, verbatim. `make rules`
generates this page from the data in `spec_tests/rules/`, from the rule ids in the code and its tests, and from
`docs/conformance.json`, which `make conformance` writes. `make check` fails if the page is out of date, if a
rule has no code or test, or if a quotation is not exact.

- *plain rule*: the function of `shardvar.spec` under this sentence, the shortest that is right. A rule that is not of
  values or forms has none, for the reason in the column.
- *implemented by*: the functions, classes or modules whose documentation or comments name the rule.
- *tested by*: the tests that fail if the rule is broken; `kit` lists the corresponding checks of the conformance kit.
- *kept by*: the kit's results for each implementation, or a dash if it has no such check.
- *status*, derived from the tests that nothing can skip: `kept` if one of them quotes this sentence, or its rule comes
  from it alone; `rule kept` if tests of its rule run and quote other sentences, or none; `not tested`. Or `unlike`, if
  shardvar deliberately differs (see also [Differences from TensorFlow](deviations.md)), or `out of scope`, both with a
  reason.

If a rule comes from several sentences, its functions and tests are listed with the first, to which its id links.
"""


def page() -> str:
    lines = [_HEAD, *_summary()]
    shown: set[str] = set()
    for document in documents():
        lines += ["", f"## RFC {document.number}: {document.title}", ""]
        lines += [f"Complete for the text with SHA-256 `{document.sha256}`."]
        for section, sentences in groupby(
            document.sentences, key=lambda sentence: sentence.section
        ):
            lines += [
                "",
                f"### {section}",
                "",
                "| rule | sentence | plain rule | implemented by | tested by | kept by | status |",
            ]
            lines += ["|---|---|---|---|---|---|---|"]
            for sentence in sentences:
                lines += _rows(document, sentence, shown)
    return "\n".join(lines) + "\n"


def _summary() -> Iterator[str]:
    yield "| document | sentences | kept | rule kept | not tested | unlike | out of scope |"
    yield "|---|---|---|---|---|---|---|"
    for document in documents():
        every = document.sentences
        found = Counter(status_of(each, running_tests()) for each in every if each.rules)
        counts = [len(every), found[KEPT], found[RULE_KEPT], found[NOT_TESTED]]
        counts += [
            sum(bool(each.unlike) for each in every),
            sum(bool(each.out_of_scope) for each in every),
        ]
        yield f"| RFC {document.number} | {' | '.join(map(str, counts))} |"
    yield ""
    yield (
        f"{len(sentences_by_rule())} rules, of which the kit checks {len(checks())}, and "
        f"{len(sentences_by_rule()) - len(no_plain_rule())} have a plain rule."
    )


def _rows(document: Document, sentence: Sentence, shown: set[str]) -> Iterator[str]:
    """A row for each rule of a sentence, or one where it has none."""
    text = _cell(sentence.text)
    if not sentence.rules:
        why = (
            f"unlike: {sentence.unlike}"
            if sentence.unlike
            else f"out of scope: {sentence.out_of_scope}"
        )
        yield f"| | {text} | | | | | {_cell(why)} |"
    status = status_of(sentence, running_tests()) if sentence.rules else ""
    status += f": {_cell(sentence.note)}" if sentence.note else ""
    for rule in sentence.rules:
        if rule in shown:
            yield f"| [{rule}](#{rule.lower()}) | {text} | | | | | {status} |"
        else:
            anchor = f'<a id="{rule.lower()}"></a>{rule}'
            places = [one for one in mentions.functions() if one.rule == rule]
            plain = _links(one for one in places if one.is_plain)
            plain = plain or f"none: {no_plain_rule()[rule]}"
            obeyed = _links(one for one in places if not one.is_plain)
            held = _links(one for one in mentions.tests() if one.rule == rule)
            yield (
                f"| {anchor} | {text} | {plain} | {obeyed} | {held}{_kit(rule)} | {kept_by(rule)} "
                f"| {status} |"
            )
        shown.add(rule)
        text = "the same sentence"


def _links(places: Iterable[Mention]) -> str:
    """Each place once, in order, as a link to its file."""
    named = dict.fromkeys((one.path, one.module, one.name) for one in places)
    return "<br>".join(
        f"[{module}](../{path}){f' `{name}`' if name else ''}" for path, module, name in named
    )


def _kit(rule: str) -> str:
    ids = checks().get(rule, ())
    return f"<br>kit: {', '.join(ids)}" if ids else ""


def _cell(text: str) -> str:
    """A text in a cell of a table: what Markdown or HTML would take for its own is escaped."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
