"""Plain English in pages, help, messages and docstrings: no word-for-word translations, no long sentences.

Pages have none of the phrases. For the package, ``MOST`` counts what is left of each; a count may
fall and never rise. Lower the number with it.
"""

import ast
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from spec_tests.architecture.test_vocabulary import GENERATED, pages, phrases, plain, quotable
from spec_tests.helpers.paths import ROOT
from spec_tests.helpers.source_code import MODULES, PACKAGE, tree_of

PATTERNS = {
    "alone": r"\balone\b",  # only, by itself
    "of which": r"\b(?:of|for|in) which\b",  # a noun, or a sentence of its own
    "those of": r"\bthose (?:of|that)\b|\bthat of\b",  # repeat the noun
    "anew": r"\banew\b",  # again
    "beside": r"\bbeside\b",  # next to, with
    "too": r"\btoo(?=[.;:,)])",  # also
    "whatever": r"\bwhatever\b",  # any, regardless of
}
"""A name -> the phrase. Next to it is what to say instead."""
MOST = {
    "alone": 2, "of which": 112, "those of": 6, "anew": 0, "beside": 1, "too": 14, "whatever": 1,
}  # fmt: skip
"""The number of each in the texts of the package."""
MOST_WORDS = 35
"""The words of a sentence of a page, outside of tables."""


@cache
def specified() -> str:
    """Return the sentences that vectors and rules of the kit quote from pages, and the RFCs'."""
    with zipfile.ZipFile(PACKAGE / "vectors" / "vectors.zip") as vectors:
        files = [name for name in vectors.namelist() if re.fullmatch(r"[^/]+\.json", name)]
        headers = [json.loads(vectors.read(name)).get("header", {}) for name in files]
    assert headers
    quoted = [rule["sentence"] for header in headers for rule in header.get("rules", [])]
    rules = (PACKAGE / "conformance" / "rules").glob("*.py")
    quoted += [path.read_text(encoding="utf-8") for path in rules]
    return plain(" ".join(quoted)) + quotable()


def foreign(text: str) -> Iterator[str]:
    """Yield the names of the phrases in a text, but for what it quotes."""
    words = plain(text)
    for name, pattern in PATTERNS.items():
        for hit in re.finditer(pattern, words, re.IGNORECASE):
            start = words.rfind(" ", 0, max(hit.start() - 12, 0)) + 1
            if words[start : hit.end()] not in specified():
                yield name


def prose(text: str) -> str:
    """Return a page without blocks of code, comments and what a program writes into it."""
    text = re.sub(
        r"<!-- (table|options|keys)\b.*?<!-- end of \1.*?-->", "\n", text, flags=re.DOTALL
    )
    text = re.sub(r"^(`{3,}|:{3,}).*?^\1\s*$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"<!--.*?-->", "\n", text, flags=re.DOTALL)


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page. Code counts as one word, headings and tables do not count.

    >>> list(sentences("# One\\nTwo `a b`. Three\\nfour:\\n- Five"))
    ['Two CODE.', 'Three four:', 'Five']
    """
    text = re.sub(r"^(?:#|\||\s*\|).*$", "", prose(text), flags=re.MULTILINE)
    text = re.sub(r"^\s*(?:[-*]|\d+\.) +", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`+[^`]+`+", "CODE", text)
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?:])[*)\"]* +(?=\S)", " ".join(paragraph.split())):
            if sentence:
                yield sentence


def written() -> list[Path]:
    """Return the pages that people write."""
    return [
        path for path in pages() if path.name not in {*GENERATED, "mutation.md", "CHANGELOG.md"}
    ]


def texts(path: Path) -> Iterator[str]:
    """Yield the texts of a module: docstrings, messages and help."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_pages_are_written_in_plain_english() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}: {name}"
        for path in written()
        for name in foreign(prose(path.read_text(encoding="utf-8")))
    }
    assert found == set()


def test_the_news_of_the_next_release_is_in_plain_english() -> None:
    news = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## [")[1]
    assert sorted({*foreign(prose(news)), *phrases(news)}) == []
    assert [each for each in sentences(news) if len(each.split()) > MOST_WORDS] == []


def test_no_sentence_of_a_page_is_longer_than_one_breath() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}: {sentence}"
        for path in written()
        for sentence in sentences(path.read_text(encoding="utf-8"))
        if len(sentence.split()) > MOST_WORDS
    }
    assert found == set()


def test_the_texts_of_the_package_lose_phrases_and_gain_none() -> None:
    counts = Counter(name for path in MODULES for text in texts(path) for name in foreign(text))
    assert {name: count for name, count in counts.items() if count > MOST[name]} == {}


def test_phrases_are_seen_where_they_are_and_only_there() -> None:
    text = "Read alone, those of A, in which it is too. Written anew beside it, whatever it is."
    assert sorted(foreign(text)) == sorted(PATTERNS)
    assert list(foreign("Too large to read; which of them? Those are next to it.")) == []
    assert [len(each.split()) for each in sentences(f"A {'b ' * 40}.\n| a | row |")] == [42]
