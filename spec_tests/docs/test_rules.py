"""Every rule has a function and a test, every quotation is one, and docs/rules.md says so."""

import doctest
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from shardvar.conformance.rules import all_rules
from spec_tests.helpers import paths
from spec_tests.helpers.programs import ENVIRONMENT, command_of
from spec_tests.rules import extract, kept, mentions, status
from spec_tests.rules.complete import faults_of
from spec_tests.rules.extract import is_normative, sentences
from spec_tests.rules.kept import joined
from spec_tests.rules.mentions import Mention, mentions_of, quotes
from spec_tests.rules.page import PAGE, page
from spec_tests.rules.sentences import (
    Document,
    Sentence,
    documents,
    no_plain_rule,
    sentences_by_rule,
)
from spec_tests.rules.status import (
    FEWEST_WORDS,
    KEPT,
    NOT_TESTED,
    RULE_KEPT,
    running_names,
    running_tests,
    spoken,
    status_of,
)

ROOT = paths.ROOT
MARKS = re.compile("[`'\"\u201c\u201d]")


def quoted_wrongly(places: tuple[Mention, ...]) -> list[str]:
    """The quotations that no sentences of their rule have, one after the other, in one RFC."""
    by_rule = sentences_by_rule()
    wrong = []
    for place in places:
        texts: dict[str, str] = {}
        for number, sentence in by_rule.get(place.rule, ()):
            texts[number] = f"{texts.get(number, '')} {MARKS.sub('', sentence.text).lower()}"
        wrong.extend(
            f"{place.path}:{place.line}: {place.rule} does not say {quote!r}"
            for quote in place.quotes
            if len(quote.split()) >= FEWEST_WORDS
            and not any(spoken(quote) in text for text in texts.values())
        )
    return wrong


def test_every_rule_has_a_function_that_obeys_it() -> None:
    fast = {place.rule for place in mentions.functions() if not place.is_plain}
    assert sentences_by_rule().keys() - fast == set()


def test_every_rule_has_a_plain_function_or_the_reason_why_not() -> None:
    plain = {place.rule for place in mentions.functions() if place.is_plain}
    assert sentences_by_rule().keys() - plain == no_plain_rule().keys()


def test_every_rule_has_a_test_that_holds_it() -> None:
    """One that runs here, and that nothing can skip: those that need another framework, and the
    kit's, come on top."""
    assert sentences_by_rule().keys() - {place.rule for place in running_tests()} == set()


def test_a_sentence_is_kept_only_where_a_test_of_it_runs() -> None:
    """Its test quotes it, or it is all that the rule says; a test that may be skipped, or of the
    rule, is less."""
    rule, (_, first), *_ = next(
        [r, *found] for r, found in sentences_by_rule().items() if len(found) > 1
    )
    quoting = Mention(rule, "spec_tests/a/test_a.py", 1, "test_a", (first.text,))
    silent = Mention(
        rule, "spec_tests/a/test_a.py", 1, "test_a", ("something else entirely", "two words")
    )
    assert status_of(first, [quoting]) == status_of(first, [silent, quoting]) == KEPT
    assert status_of(first, [silent]) == RULE_KEPT and status_of(first, []) == NOT_TESTED
    alone = next([r, *found] for r, found in sentences_by_rule().items() if len(found) == 1)
    test = Mention(alone[0], "spec_tests/a/test_a.py", 1, "test_a", ())
    assert status_of(alone[1][1], [test]) == KEPT and status_of(alone[1][1], []) == NOT_TESTED


def test_the_page_calls_a_sentence_kept_only_where_a_test_of_it_runs() -> None:
    """Read from the page itself: each row that ends in "kept" quotes a sentence that a running test
    quotes."""
    kept_texts = {
        spoken(row.split("| ")[2].replace("\\|", "|").replace("\\*", "*").replace("&lt;", "<"))
        for row in page().splitlines()
        if re.search(r"\| kept(:[^|]*)? \|$", row)
        and "the same sentence" not in row
        and " \\| " not in row
    }
    by_rule = sentences_by_rule()
    tested = {
        spoken(sentence.text)
        for test in running_tests()
        for _, sentence in by_rule[test.rule]
        if len(by_rule[test.rule]) == 1
        or any(spoken(quote) in spoken(sentence.text) for quote in test.quotes)
    }
    assert len(kept_texts) > 60 and kept_texts - tested == set()


@pytest.mark.parametrize("rule", ["R-INIT-8", "R-BALANCE-1", "R-VAR-9", "R-VAR-1"])
def test_sentences_that_the_page_once_called_kept_without_a_test_have_one(rule: str) -> None:
    found = {status_of(sentence, running_tests()) for _, sentence in sentences_by_rule()[rule]}
    assert KEPT in found and NOT_TESTED not in found


@pytest.mark.parametrize(
    "text",
    [
        "@pytest.mark.skip\ndef test_a(): pass",
        "@pytest.mark.skipif(True, reason='x')\ndef test_a(): pass",
        "@pytest.mark.xfail(reason='x')\ndef test_a(): pass",
        "pytestmark = pytest.mark.skipif(NODE is None)\ndef test_a(): pass",
        "pytestmark = [pytest.mark.slow, pytest.mark.skip]\ndef test_a(): pass",
        "def test_a():\n    if x:\n        pytest.skip('not here')",
        "def test_a():\n    pytest.importorskip('torch')",
    ],
)
def test_a_test_that_may_be_skipped_keeps_nothing(text: str) -> None:
    assert running_names(f"{text}\ndef helper(): pass") == set()
    assert running_names("@pytest.mark.parametrize('skip', [1])\ndef test_a(skip): skip + 1") == {
        "test_a"
    }


def test_every_id_in_the_code_is_in_the_table() -> None:
    places = [*mentions.functions(), *mentions.tests()]
    strangers = [
        f"{each.path}:{each.line}: {each.rule}"
        for each in places
        if each.rule not in sentences_by_rule()
    ]
    assert strangers == []


def test_what_is_quoted_beside_an_id_is_a_sentence_of_that_rule() -> None:
    assert quoted_wrongly(mentions.functions() + mentions.tests()) == []


def test_the_kit_checks_rules_of_the_table_and_quotes_them() -> None:
    """One registry: the kit's rules are some of these, each with a sentence of its RFC that stands
    in the table.

    Rules whose ids begin with V are of sentences of the documentation
    (kit/test_conformance_rules.py).
    """
    by_rule = sentences_by_rule()
    strangers = [
        f"{check.id}: {check.sentence}"
        for check in all_rules()
        if check.id.startswith("R-")
        and not any(
            number == check.rfc and spoken(check.sentence) in spoken(sentence.text)
            for number, sentence in by_rule.get(check.sentence_id, ())
        )
    ]
    assert strangers == []


def test_the_page_is_the_one_that_make_rules_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/rules.md is out of date: run `make rules`."
    )


def test_sentences_stand_once_and_each_has_one_fate() -> None:
    for document in documents():
        texts = [sentence.text for sentence in document.sentences]
        assert len(set(texts)) == len(texts), document.number
    with pytest.raises(ValueError, match="one of"):
        Sentence("Goals", "It must.", rules=("R-A-1",), out_of_scope="no")
    with pytest.raises(ValueError, match="one of"):
        Sentence("Goals", "It must.")
    with pytest.raises(ValueError, match="note"):
        Sentence("Goals", "It must.", unlike="it need not", note="in a sense")
    with pytest.raises(ValueError, match="no id"):
        Sentence("Goals", "It must.", rules=("R-SV-3-add",))


# The tests above are worth what the functions below see.


def test_a_sentence_that_the_data_lacks_or_makes_up_is_told() -> None:
    text = (
        "# Goals\n\nShards **will** be even,\ne.g. 3 and 3. They are few.\n\n* no [hole](x.md) is "
        "allowed to stay\n"
    )
    right = Document(
        "000", "", "", (Sentence("Goals", "Shards will be even, e.g. 3 and 3.", rules=("R-A-1",)),)
    )
    told = list(faults_of(right, text))
    assert told == ["RFC 000, Goals: not in the table: no hole is allowed to stay"]
    wrong = Document("000", "", "", (Sentence("Goals", "Shards will be odd.", out_of_scope="no"),))
    assert [fault.split(":")[0] for fault in faults_of(wrong, text)] == [
        "RFC 000 does not say",
        "RFC 000, Goals",
        "RFC 000, Goals",
    ]


@pytest.mark.parametrize(
    "phrase",
    "will,should,must,shall,cannot,disallow,won't,never,is not supported,are only going to support,"
    "need to be one,don't plan to,we'll mirror".split(","),
)
def test_the_words_of_demands_refusals_and_promises_are_seen(phrase: str) -> None:
    assert is_normative(f"These {phrase} hold.")
    assert not is_normative("It holds, and is wilful.")


@pytest.mark.parametrize("module", [extract, kept, mentions, status])
def test_the_examples_of_the_rules_own_functions_hold(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert tried and not failed


def test_sentences_end_where_they_end() -> None:
    assert sentences('No "mod". "div" is it (see TF 2.x). It is, i.e. It.') == [
        'No "mod".',
        '"div" is it (see TF 2.x).',
        "It is, i.e. It.",
    ]


def test_ids_are_seen_with_the_function_around_them_and_what_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.py").write_text(
        '"""R-A-1 (RFC 000): "one two\nthree".\n\nNot "four five six"."""\n'
        "class C:\n"
        "    def f(self):\n"
        '        # R-B-2: \'a "b" ... c\'. R-C-3: "d e\n'
        '        # f".\n'
        '        return "R-D-4-more"\n'
        '# R-E-5: "above it"\n'
        "def g(): pass\n"
    )
    monkeypatch.setattr(mentions, "ROOT", tmp_path)
    found = [
        (each.rule, each.line, each.name, each.quotes) for each in mentions_of(tmp_path / "m.py")
    ]
    assert found == [
        ("R-A-1", 1, "", ("one two three",)),
        ("R-B-2", 7, "C.f", ('a "b"', "c")),
        ("R-C-3", 7, "C.f", ("d e f",)),
        ("R-E-5", 10, "g", ("above it",)),
    ]


def test_a_false_quotation_is_told() -> None:
    rule, [(_, sentence), *_] = next(iter(sentences_by_rule().items()))
    place = Mention(
        rule, "shardvar/a.py", 1, "f", (sentence.text, "what no RFC would ever say", "two words")
    )
    assert [told.split(": ")[1] for told in quoted_wrongly((place,))] == [
        f"{rule} does not say 'what no RFC would ever say'"
    ]
    assert list(quotes(" 'users\\' model' doesn't")) != []


def test_one_broken_check_breaks_a_rule() -> None:
    assert joined(["kept", "broken", "not claimed"]) == "broken (1 of 3)"
    assert joined(["kept", "not claimed"]) == "kept"


def test_what_the_kit_found_is_told_of_each_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As spec_tests/conformance writes it; before it ran nothing is claimed, and no rule that it
    does not check."""
    outcomes = [
        {"a": "kept", "b": "kept", "c": "not claimed"},
        {"a": "kept", "b": "broken", "c": "not claimed"},
    ]
    rules = [
        {
            "sentence_id": "R-DIV-1",
            "verdicts": {name: {"outcome": outcome} for name, outcome in row.items()},
        }
        for row in outcomes
    ]
    names = [{"name": name, "title": name.upper()} for name in "abc"]
    monkeypatch.setattr(kept, "verdicts", lambda: {"implementations": names, "rules": rules})
    assert kept.kept_by("R-DIV-1") == "broken (1 of 2): B; kept: A; not claimed: C"
    assert kept.kept_by("R-SV-1") == "not run" and kept.kept_by("R-FORM-1") == "-"


def test_the_data_is_held_against_a_folder_of_rfcs_by_hand(tmp_path: Path) -> None:
    (tmp_path / "000-x.md").write_text("# X\n\nIt must.\n")
    done = subprocess.run(
        command_of("rules", "--rfc", tmp_path), capture_output=True, text=True, env=ENVIRONMENT
    )
    assert (
        done.returncode == 1
        and "another text" in done.stdout
        and "RFC 001: no 001-*.md" in done.stdout
    )
