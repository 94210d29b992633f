"""Words and drawings that values of any layer use: sizes, durations, shortened and escaped texts,
bounded tables, bands of a flow."""

import re
from itertools import pairwise
from math import isclose

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardvar.pictures.drawings import (
    MOST_MOVES,
    flow_svg,
    ledger_html,
    redistribution_html,
    variable_html,
)
from shardvar.pictures.words import human_age, human_time, one_line, printable, short_name

ROWS = 16
"""The most rows of a table of devices, shards or routes."""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.04 s"), (0.126, "0.13 s"), (9.94, "9.9 s"), (10, "10 s"), (59.4, "59 s"),
        (59.6, "1 min 0 s"), (130, "2 min 10 s"), (3599, "59 min 59 s"), (3600, "1 h 0 min"),
        (11_100, "3 h 5 min"), (360_000, "100 h 0 min"),
    ],
)  # fmt: skip
def test_durations_are_in_their_largest_units(seconds: float, text: str) -> None:
    assert human_time(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "now"), (119, "now"), (120, "2 minutes ago"), (7199, "119 minutes ago"),
        (7200, "2 hours ago"), (172_799, "47 hours ago"), (172_800, "2 days ago"),
        (1_209_599, "13 days ago"), (1_209_600, "2 weeks ago"),
    ],
)  # fmt: skip
def test_ages_are_in_the_largest_unit_of_which_there_are_two(seconds: float, text: str) -> None:
    assert human_age(seconds) == text


@given(st.integers(0, 0x10FFFF))
@example(0x7F)
@example(0x80)
@example(0xFFFF)
@example(0xE0001)
@example(0x10FFFF)
def test_every_character_is_printed_or_escaped_so_that_it_can_be_read_back(number: int) -> None:
    character = chr(number)
    text = printable(character)
    assert text.isprintable()
    if 0xDC80 <= number <= 0xDCFF:
        assert text == f"\\x{number - 0xDC00:02x}"
    elif not character.isprintable():
        assert len(text) == (4 if number < 0x80 else 6 if number <= 0xFFFF else 10)
        assert text.encode().decode("unicode_escape") == character


@given(st.integers(0, 5000), st.sampled_from([one_line, short_name]))
def test_a_shortened_text_has_two_thirds_from_its_beginning(count: int, shorten: object) -> None:
    text = "".join(chr(ord("a") + number % 26) for number in range(count))
    short = shorten(text)  # type: ignore[operator]  # a function of texts
    found = re.fullmatch(r"([a-z]*)\.\.\.\((\d+) characters\)\.\.\.([a-z]*)", short)
    if found is None:
        assert short == text
        return
    head, left_out, tail = found.groups()
    assert text.startswith(head) and text.endswith(tail) and len(short) <= len(text)
    assert len(head) + int(left_out) + len(tail) == count
    assert len(tail) == (len(head) + len(tail)) // 3


def rows_of(html: str) -> int:
    """The rows of the table, its head apart."""
    return html.count("<tr>") - 1


def more_of(html: str) -> int:
    """The number of rows that the table says it leaves out."""
    found = re.search(r"([\d,]+) more", html)
    return int(found[1].replace(",", "")) if found else 0


@pytest.mark.parametrize("count", [1, ROWS - 1, ROWS, ROWS + 1, 100])
def test_tables_have_sixteen_rows_and_count_the_others(count: int) -> None:
    totals = [(0, 0, 1)] * count
    for html in (
        variable_html("v", (), (count,), [(((row,), (1,)), "ps:0") for row in range(count)]),
        ledger_html(0, 0, [("read", "ps:0", "ps:1", row, 1) for row in range(count)]),
        redistribution_html((count,), None, totals, []),
    ):
        text = str(html)
        # The line that counts the others may be a row of the table too.
        assert rows_of(text) in (min(count, ROWS), min(count, ROWS) + (count > ROWS))
        assert more_of(text) == max(count - ROWS, 0)


def test_a_redistribution_names_its_collective_or_says_that_there_is_none() -> None:
    assert "no single collective" in str(redistribution_html((4,), None, [(1, 0, 1)], []))
    named = str(redistribution_html((4,), "all_gather", [(1_234, 0, 1)], []))
    assert "all_gather" in named and "no single collective" not in named
    assert "1,234 elements cross" in named


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4))
def test_bands_go_from_bar_to_bar_and_end_where_they_begin(sizes: list[int]) -> None:
    """A band leaves the right edge of its source and meets the left edge of its target, as thick
    on one side as on the other; bands of a bar lie one below the other."""
    names = [(f"slice {number}", size) for number, size in enumerate(sizes)]
    moves = [(number, number, size) for number, size in enumerate(sizes)]
    svg = str(flow_svg(names, names, moves))
    bars = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', svg)
    numbers = [[float(each) for each in bar] for bar in bars]
    left = min(x for x, *_ in numbers)
    sources = [bar for bar in numbers if bar[0] == left]
    targets = [bar for bar in numbers if bar[0] != left]
    paths = re.findall(r'd="M([^"]*)Z"', svg)
    assert len(paths) == len(sources) == len(targets) == len(sizes) <= MOST_MOVES
    for path, source, target in zip(paths, sources, targets, strict=True):
        places = [float(each) for each in re.findall(r"-?[\d.]+", path)]
        points = [*zip(places[::2], places[1::2], strict=True)]
        # Begin, two control points, the other side; below it; two control points, and back.
        assert len(points) == 8
        assert points[0][0] == points[7][0] == source[0] + source[2]
        assert points[3][0] == points[4][0] == target[0]
        assert {x for x, _ in (*points[1:3], *points[5:7])} == {(points[0][0] + points[3][0]) / 2}
        thickness = points[7][1] - points[0][1]
        assert isclose(thickness, points[4][1] - points[3][1], abs_tol=0.02)
        assert isclose(thickness, source[3], abs_tol=0.6) and thickness > 0
    assert all(above[1] + above[3] <= below[1] for above, below in pairwise(sources))
