"""The check that the data files hold every normative sentence of the RFCs, which are not in the
repository."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from spec_tests.rules.extract import blocks, is_normative, plain, sentences
from spec_tests.rules.sentences import Document, documents

_COMMENT = re.compile(r"^\s*#+ ", re.MULTILINE)


def faults(folder: Path) -> Iterator[str]:
    """Yield the faults of the data, held against the documents `000-*.md` to `003-*.md` of a
    folder."""
    for document in documents():
        found = sorted(folder.glob(f"{document.number}-*.md"))
        if not found:
            yield f"RFC {document.number}: no {document.number}-*.md in {folder}"
            continue
        data = found[0].read_bytes()
        if hashlib.sha256(data).hexdigest() != document.sha256:
            yield (
                f"RFC {document.number}: another text than the one with the digest "
                f"{document.sha256}"
            )
        yield from faults_of(document, data.decode("utf-8"))


def faults_of(document: Document, text: str) -> Iterator[str]:
    """The normative sentences that the data lacks, and what the data has that the text lacks."""
    whole = plain(_COMMENT.sub("", text))
    known = [sentence.text for sentence in document.sentences]
    for sentence in known:
        if sentence not in whole:
            yield f"RFC {document.number} does not say: {sentence}"
    for heading, block in blocks(text):
        for sentence in filter(is_normative, sentences(block)):
            if not any(sentence in one for one in known):
                yield f"RFC {document.number}, {heading}: not in the table: {sentence}"
