"""One word for each idea, and plain English: words, class names and phrases that the project does
not use.

docs/design.md has the words. A word counts wherever it is: in a name, a docstring, a comment, a
message.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from spec_tests.helpers.paths import DOCS, ROOT
from spec_tests.helpers.source_code import MODULES, PACKAGE, definitions, tree_of
from spec_tests.rules.sentences import documents

HOMES = {
    # A region is not called a box, nor is a rectangle that is drawn.
    "box": ("maps/plan.py", "maps/proof.py"),
    # All but the first name what PyTorch, Zarr and Flax call by this word.
    "chunk": (
        "layout/partition.py",
        "conformance/adapters/torch.py",
        "formats/torch/dcp.py",
        "formats/torch/__init__.py",
        "torch/storage.py",
        "verbs/lazy.py",
        "verbs/clean.py",
        "verbs/remove.py",
        *(
            f"formats/zarr/{name}.py"
            for name in ("__init__", "contents", "database", "files", "orbax", "sink", "source")
        ),
        "wire/zarr_metadata.py",
        "wire/msgpack_tree.py",
        "formats/hdf5.py",
        "layout/meshes/dtensor.py",
        "layout/meshes/layout.py",
        "verbs/holders.py",
    ),
    # A piece of a map, and the pieces that reads are made of.
    "piece": (
        "view/collect.py",
        "verbs/joining.py",
        "engine/arithmetic.py",
        "engine/pieces.py",
        "maps/lifting.py",
        "engine/lattices.py",
        "engine/mapped.py",
        *(f"maps/{name}.py" for name in ("binding", "fitting", "plan", "proof", "report")),
    ),
}
"""A word -> the modules that may use it freely; others may only name what these define."""
PROPER_NAMES = re.compile(
    r"Box(-| and )Muller|torch\.chunk|viewBox|rich\.box|box=SIMPLE_HEAD|chunk_size=part_nbytes"
)
CLASS_NAMES = {
    "Claim", "Draft", "Filling", "Found", "Gathered", "Given", "Held", "Kept", "Known", "Laid", "Manner", "Measured",
    "Placed", "Read", "Said", "Seen", "Taken", "Told", "Written",
}  # fmt: skip
"""Participles and riddles: a class is called by a noun of its field."""
PHRASES = re.compile(
    r"\b(?:(?<!there )(?:is|are) no(?! longer\b| more\b| less\b| fewer\b) [a-z]+|are none|none of "
    r"which|whoever|besides"
    r"|nobody|somebody|(?:is|are) told|shall|stands? there|of its own|of today's)\b",
    re.IGNORECASE,
)
GENERATED = {"rules.md", "conformance.md"}
"""Pages that quote the RFCs."""


def path_in_package(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def words_of(text: str) -> set[str]:
    """Return the words of a text and of the names in it.

    >>> sorted(words_of("BoxList, _boxes_of"))
    ['box', 'boxes', 'list', 'of']
    """
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", text)}


def names_of(home: str) -> set[str]:
    """Return what a module exports, and its own name."""
    path = PACKAGE / home
    return {path.stem, *definitions(tree_of(path))} if path.exists() else set()


def test_a_word_is_used_in_its_own_module_only() -> None:
    found = set()
    for word, homes in HOMES.items():
        exported = "|".join(sorted({name for home in homes for name in names_of(home)})) or "(?!)"
        # A name counts as one where it is code: imported, called, an attribute, or in quotation
        # marks of some kind.
        code = re.compile(
            r"(?:(?<=[`'\".])|(?<=import )|(?<=, "
            rf"))(?:{exported})\b|\b(?:{exported})(?=[`'\"(\[.,])"
        )
        for path in MODULES:
            text = code.sub("", PROPER_NAMES.sub("", path.read_text(encoding="utf-8")))
            if path_in_package(path) not in homes and words_of(text) & {
                word,
                f"{word}s",
                f"{word}es",
            }:
                found.add(f"{path_in_package(path)}: {word}")
    assert found == set()


def test_classes_are_called_by_nouns() -> None:
    found = {
        f"{path_in_package(path)}: {node.name}"
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and node.name.strip("_") in CLASS_NAMES
    }
    assert found == set()


@cache
def quotable() -> str:
    """Return the words of all sentences of the RFCs that the project quotes."""
    return plain(
        " ".join(sentence.text for document in documents() for sentence in document.sentences)
    )


def plain(text: str) -> str:
    return " ".join(re.sub(r"[`*_\"'#]", "", text).split())


def phrases(text: str) -> Iterator[str]:
    """Yield the phrases of a text that the project does not use, but for those that it quotes."""
    words = plain(text)
    for hit in PHRASES.finditer(words):
        start, stop = words.rfind(" ", 0, max(hit.start() - 12, 0)) + 1, hit.end()
        if words[start:stop] not in quotable():
            yield hit[0].lower()


def pages() -> list[Path]:
    return [
        path
        for path in sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
        if path.name not in GENERATED
    ]


def test_the_english_is_plain() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}: {phrase}"
        for path in [*MODULES, *pages()]
        for phrase in phrases(path.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_words_are_seen_in_names_and_in_prose_and_not_in_other_words() -> None:
    """The tests above are worth what `words_of` sees."""
    assert words_of("# Boxes: read_box(x), _BoxList") == {"boxes", "read", "box", "x", "list"}
    assert words_of("inbox mailbox boxing") == {"inbox", "mailbox", "boxing"}


def test_phrases_are_seen_and_good_english_is_not() -> None:
    assert list(phrases("'10XB' is no size, whoever asks")) == ["is no size", "whoever"]
    assert list(phrases("There is no checkpoint; it is no longer there.")) == []
