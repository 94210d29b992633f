"""Messages: what errors, findings and logs say is safe to print, and short, whatever the keys of a
file are."""

import ast
import logging
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import CorruptCheckpoint, prefix_errors
from shardvar.formats.protocol import Finding
from shardvar.limits import MAX_MESSAGE_LENGTH, MAX_SUGGESTED_LENGTH, MAX_WORD_LENGTH
from shardvar.pictures.words import message, similar
from spec_tests.helpers.source_code import MODULES, module_name, tree_of

HOSTILE = "x\x1b[31mRED\x07\nfake: all is well\u202egpj.exe\u200b\u2066\ud800\udcff\x85\u2028"


@given(st.text() | st.text("a\x1b \u202e", min_size=1000, max_size=5000))
def test_a_message_is_printable_and_short_and_a_message_of_itself(text: str) -> None:
    said = message(text)
    assert said.isprintable() and len(said) <= MAX_MESSAGE_LENGTH
    assert max(map(len, said.split()), default=0) <= 10 * MAX_WORD_LENGTH
    assert message(said) == said or len(said) > MAX_WORD_LENGTH


@given(st.text("abc ,.'", max_size=MAX_WORD_LENGTH))
def test_a_short_plain_message_stays_as_it_is(text: str) -> None:
    assert message(text) == text


def test_an_error_has_no_control_characters_and_a_bounded_length() -> None:
    for key in (HOSTILE, 10**6 * "k", 10**5 * "\u202e", "two words " * 10**5):
        try:
            with prefix_errors(key):
                raise CorruptCheckpoint(f"{key} and {key!r} are wrong.", f"Copy {key}.")
        except CorruptCheckpoint as error:
            assert str(error).isprintable() and len(str(error)) <= 2 * MAX_MESSAGE_LENGTH + 1
        finding = Finding("file", f"It has {key}.", True)
        assert finding.message.isprintable() and len(finding.message) <= MAX_MESSAGE_LENGTH


def test_long_names_are_not_compared() -> None:
    """Their comparison takes the square of their length, and that of many names takes long."""
    word, most = "ab" * MAX_SUGGESTED_LENGTH, MAX_SUGGESTED_LENGTH
    assert similar(word, [word[1:]] * 10_000) == [] and similar("word", ["wort", word]) == ["wort"]
    assert similar(word[:most], [word[1:most]]) == [word[1:most]]
    assert similar(word[1:most], [word[:most]]) == [word[:most]]
    assert (
        similar(word[: most + 1], [word[:most]]) == similar(word[:most], [word[: most + 1]]) == []
    )
    assert similar("word", ["?"] * 9_999 + ["wort"]) == ["wort"]
    assert similar("word", ["?"] * 10_000 + ["wort"]) == []


def edits(a: str, b: str) -> int:
    """The edits between two texts, from those between their beginnings."""
    table = {(i, j): i + j for i in range(len(a) + 1) for j in range(len(b) + 1) if not i * j}
    for i, j in product(range(1, len(a) + 1), range(1, len(b) + 1)):
        table[i, j] = min(
            table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (a[i - 1] != b[j - 1])
        )
        if a[i - 2 : i] == b[j - 2 : j][::-1] and min(i, j) > 1:
            table[i, j] = min(table[i, j], table[i - 2, j - 2] + 1)
    return table[len(a), len(b)]


def test_a_suggestion_is_at_most_two_edits_away_and_fewer_for_a_short_word() -> None:
    """Or it contains the word: all texts of at most three letters, after some beginnings."""
    ends = ["".join(each) for length in range(4) for each in product("abc", repeat=length)]
    for start, end in product(("", "X", "xyz"), ends):
        typed, names = start + end, [start.lower() + each.upper() for each in ends]
        far = {each: edits(typed.lower(), each.lower()) for each in names}
        allowed = sum(len(typed) >= length for length in (3, 6))
        near = sorted((each for each in names if far[each] <= allowed), key=far.__getitem__)
        within = [each for each in names if len(typed) > 2 and typed.lower() in each.lower()]
        assert similar(typed, names, 100) == (near or within)
        assert similar(typed, names) == (near or within)[:1]
    assert similar("kernel", ["bias", "dense/kernel", "kernels/of/it"]) == ["dense/kernel"]


def test_every_line_of_a_log_goes_through_message() -> None:
    """Only `log_warning`, the error of a save in the background, and repeated requests ask for a
    logger to write to; the process that writes hands on what these have logged."""
    callers = {
        module_name(path)
        for path in MODULES
        if not module_name(path).startswith(("shardvar.cli", "shardvar.conformance"))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") in ("getLogger", "warning", "warn")
        and ast.unparse(node.func) in ("logging.getLogger", "logging.warning", "warnings.warn")
    }
    assert callers == {
        "shardvar.errors",
        "shardvar.storage.requests",
        "shardvar.verbs.background",
        "shardvar.verbs.writer_process",
    }


def test_values_that_no_object_took_are_logged_without_control_characters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [f"{HOSTILE.replace(chr(0xD800), '')}{number}" for number in range(20)] + ["k" * 60_000]
    sv.save(tmp_path / "ck", {f"{key}/.ATTRIBUTES/VARIABLE_VALUE": np.ones(1) for key in keys})
    with caplog.at_level(logging.WARNING, "shardvar"):
        sv.Checkpoint().read(tmp_path / "ck")
        import gc

        gc.collect()
    assert caplog.messages
    assert all(line.isprintable() and len(line) <= MAX_MESSAGE_LENGTH for line in caplog.messages)
