"""The sentences of the RFCs, as the data files have them."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ID = re.compile(r"R-[A-Z]+-\d+(?![\w-])")
"""An id. With something behind it (``R-SV-3-add``) it is that of a check of the conformance kit."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, and what becomes of it: it has rules, or is out of scope, or something else is
    done on purpose."""

    section: str
    """The heading that it stands under."""
    text: str
    """The sentence, verbatim but for emphasis and the targets of links."""
    rules: tuple[str, ...] = ()
    """The ids of the rules that it is the source of."""
    out_of_scope: str = ""
    """The reason why nothing here could obey it."""
    unlike: str = ""
    """Shardvar's deliberate alternative."""
    note: str = ""
    """In which sense its rules are kept, where that is not all that it says."""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.rules, self.out_of_scope, self.unlike))) != 1:
            raise ValueError(f"{self.text!r} needs one of rules, out_of_scope, unlike.")
        if self.note and not self.rules:
            raise ValueError(f"{self.text!r} has a note, and no rule of which it could be.")
        if not all(ID.fullmatch(rule) for rule in self.rules):
            raise ValueError(f"{self.text!r} has {self.rules}, of which one is no id.")


@dataclass(frozen=True, slots=True)
class Document:
    number: str
    """Its number: ``000``."""
    title: str
    """Its title."""
    sha256: str
    """The digest of the text for which the sentences are complete."""
    sentences: tuple[Sentence, ...]
    """In the RFC's order."""


@cache
def documents() -> tuple[Document, ...]:
    """All RFCs, by number."""
    return tuple(_read(path) for path in sorted(HERE.glob("rfc*.toml")))


def sentences_by_rule() -> dict[str, list[tuple[str, Sentence]]]:
    """For each rule (number of the RFC, sentence) in order."""
    found: dict[str, list[tuple[str, Sentence]]] = {}
    for document in documents():
        for sentence in document.sentences:
            for rule in sentence.rules:
                found.setdefault(rule, []).append((document.number, sentence))
    return found


@cache
def no_plain_rule() -> dict[str, str]:
    """The reason why a rule has no function in ``shardvar.spec``."""
    reasons = tomllib.loads((HERE / "no_plain_rule.toml").read_text(encoding="utf-8"))
    return {rule: reason for reason, rules in reasons.items() for rule in rules}


def _read(path: Path) -> Document:
    data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return Document(
        path.stem.removeprefix("rfc"),
        data["title"],
        data["sha256"],
        tuple(_parsed(data["sentence"])),
    )


def _parsed(rows: list[dict[str, Any]]) -> Iterator[Sentence]:
    for row in rows:
        yield Sentence(**row | {"rules": tuple(row.get("rules", ()))})
