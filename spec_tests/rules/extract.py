"""The sentences of an RFC, and which of them are normative.

1. ``blocks`` cuts a Markdown document into paragraphs, items of lists, cells of tables, and of code
   the comments and docstrings; each knows the heading that it stands under.
2. ``sentences`` cuts a block where a sentence ends.
3. ``is_normative`` finds the words by which an RFC demands, promises or refuses.

A sentence is quoted as it is read: without emphasis, and of a link its text. All else is verbatim,
mistakes included.
"""

import re
from collections.abc import Iterator

NORMATIVE = re.compile(
    r"\b(?:will|won't|shall|should|shouldn't|must|cannot|can't|disallow|supported|guaranteed|always|never|only)\b"
    r"|\b(?:have|has|had|need|needs|needed|going|plan|plans|propose|proposes|like|required|expected|free|allowed) to\b"
    r"|\b(?:not|no longer|need not|do not|don't|may not) (?:need|be|plan|have)\b|\b(?:we "
    r"propose|proposes?)\b|'ll\b",
    re.IGNORECASE,
)
"""Demands, promises and refusals. It finds more than is normative; what is not is listed with the
reason why."""

_ITEM = re.compile(r"^\s*(?:[*-]|\d+\.)\s+")
_ENDS = re.compile(
    # behind a full stop that is no abbreviation's
    r"(?:(?<=[.?!])|(?<=[.?!][\"”)]))(?<!e\.g\.)(?<!i\.e\.)(?<!\.\.\.)"
    r"\s+(?=[A-Z(]|[\"“`]\w)"  # before what may begin a sentence
)


def plain(text: str) -> str:
    """The text of some Markdown: emphasis and the targets of links are taken off, white space is
    one space.

    >>> plain("**See** the\\n[proto](https://example.org), `x`")
    'See the proto, `x`'
    """
    text = re.sub(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\*\*(\S(?:.*?\S)?)\*\*|(?<!\S)\*(\w[^*]*)\*|</?code>", r"\1\2", text)
    return " ".join(text.split())


def blocks(document: str) -> Iterator[tuple[str, str]]:
    """(heading, text) of each paragraph, item, cell, comment and docstring, in the document's
    order."""
    heading, lines = "", list[str]()
    in_code = False
    for line in [*document.splitlines(), "# "]:
        if line.lstrip().startswith("```"):
            yield from (
                (heading, text) for text in (_prose(lines) if not in_code else _spoken(lines))
            )
            in_code, lines = not in_code, []
        elif not in_code and re.match(r"#+\s", line):
            yield from ((heading, text) for text in _prose(lines))
            heading, lines = plain(line.lstrip("#")), []
        else:
            lines.append(line)


def _prose(lines: list[str]) -> Iterator[str]:
    """Paragraphs, items of lists, cells of tables."""
    block = list[str]()
    for line in [*lines, ""]:
        is_row = line.startswith("|")
        if block and (not line.strip() or _ITEM.match(line) or is_row):
            yield plain(" ".join(block))
            block = []
        if is_row:
            yield from (
                plain(part) for cell in line.strip("|").split("|") for part in cell.split("<br>")
            )
        elif line.strip():
            block.append(_ITEM.sub("", line, count=1))


def _spoken(lines: list[str]) -> Iterator[str]:
    """Yield the prose of code: docstrings, paragraph by paragraph, and comments that follow each
    other."""
    code = "\n".join(lines)
    for docstring in re.findall(r'"""(.*?)"""', code, flags=re.DOTALL):
        for paragraph in re.split(r"\n\s*\n|\n\s*(?=\w+: )|Args:", docstring):
            yield plain(paragraph)
    for comments in re.findall(r"(?:^[^#\n\"]*#.*\n?)+", code, flags=re.MULTILINE):
        yield plain(" ".join(line.partition("#")[2] for line in comments.splitlines()))


def sentences(block: str) -> list[str]:
    """The sentences of a block; an abbreviation ends none.

    >>> sentences("Some layers, e.g. Dense, are small. They stay whole.")
    ['Some layers, e.g. Dense, are small.', 'They stay whole.']
    """
    return [piece for piece in _ENDS.split(block) if piece]


def is_normative(sentence: str) -> bool:
    """Return True if a sentence has one of the words by which an RFC demands, promises or
    refuses."""
    return NORMATIVE.search(sentence) is not None
