"""Words that values of any layer use: sizes, durations, shortened and escaped texts; and the bands
of a flow."""

import re
from collections.abc import Callable
from itertools import pairwise
from math import isclose

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardvar.limits import MAX_MESSAGE_LENGTH, MAX_NAMED, MAX_WORD_LENGTH
from shardvar.pictures import words
from shardvar.pictures.drawings import MOST_MOVES, flow_svg
from shardvar.pictures.words import message, one_line, printable, short_name


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("human_time", [(0.04, "0.04 s"), (0.126, "0.13 s"), (9.94, "9.9 s"), (10, "10 s"), (59.4, "59 s"),
                        (59.6, "1 min 0 s"), (130, "2 min 10 s"), (3599, "59 min 59 s"), (3600, "1 h 0 min"),
                        (11_100, "3 h 5 min"), (360_000, "100 h 0 min")]),
        ("human_age", [(0, "now"), (119, "now"), (120, "2 minutes ago"), (7199, "119 minutes ago"),
                       (7200, "2 hours ago"), (172_799, "47 hours ago"), (172_800, "2 days ago"),
                       (1_209_599, "13 days ago"), (1_209_600, "2 weeks ago"), (7e8, "1,157 weeks ago")]),
        ("human_size", [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (9994, "9.99 kB"), (9995, "10.0 kB"),
                        (99_949, "99.9 kB"), (99_950, "100 kB"), (999_499, "999 kB"), (999_500, "1.00 MB"),
                        (10**9, "1.00 GB"), (10**12, "1.00 TB"), (10**15, "1.00 PB"), (10**18, "1,000 PB")]),
        ("human_count", [(9999, "9,999"), (10_000, "10.0K"), (10**6, "1.00M"), (10**9, "1.00B"), (10**15, "1,000T")]),
        ("human_tensors", [(1, "1 tensor"), (5, 11, "5 tensors in 11 slices"), (5, 5, "5 tensors"),
                           (5, 3, 2, "3 tensors and 2 settings"), (5, 4, 2, "3 tensors in 4 slices and 2 settings"),
                           (2, 0, 2, "2 settings"), (0, "0 tensors")]),
        ("all_tensors", [(5, 0, "5 tensors"), (1, 0, "1 tensor"), (5, 2, "5 tensors and settings"),
                         (2, 2, "2 settings")]),
        ("human_shape", [((13, 4), "[13, 4]"), ((), "[]")]),
        ("in_command", [("Pass force=True (--force), or leave it out (--exclude).",
                         "Pass --force, or leave it out (--exclude)."),
                        ("Call sv.load() (--stats) or `f(a=1)`.", "Call --stats or `f(a=1)`.")]),
        ("in_python", [("Pass force=True (--force), or leave it out (--exclude).",
                        "Pass force=True, or leave it out (exclude=)."),
                       ("`shardvar inspect` lists.", "`sv.open_checkpoint(PATH)` lists."),
                       ("`shardvar reshard A B` or `shardvar show`.", "`sv.reshard(A, B)` or `shardvar show`.")]),
        ("named", [(["a", "b\n"], r"'a', 'b\n'"), (["x"] * MAX_NAMED, ", ".join(["'x'"] * MAX_NAMED)),
                   (["x"] * (MAX_NAMED + 1234), ", ".join(["'x'"] * MAX_NAMED) + " and 1,234 more")]),
        ("natural_key", [("step-10", (("step-", 10), ("", -1))), ("", (("", -1),)), ("7", (("", 7), ("", -1))),
                         (19 * "1", (("", int(18 * "1")), ("", 1), ("", -1)))]),
    ],
)  # fmt: skip
def test_numbers_and_remedies_have_these_words(name: str, rows: list[tuple[object, ...]]) -> None:
    for *arguments, expected in rows:
        assert getattr(words, name)(*arguments) == expected


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


@given(
    st.integers(0, 5000),
    st.sampled_from([(short_name, MAX_WORD_LENGTH), (message, MAX_MESSAGE_LENGTH)]),
    st.booleans(),
)
@example(MAX_WORD_LENGTH, (short_name, MAX_WORD_LENGTH), False)
@example(MAX_WORD_LENGTH + 1, (short_name, MAX_WORD_LENGTH), False)
@example(MAX_MESSAGE_LENGTH, (message, MAX_MESSAGE_LENGTH), True)
@example(MAX_MESSAGE_LENGTH + 1, (message, MAX_MESSAGE_LENGTH), True)
def test_a_shortened_text_has_two_thirds_from_its_beginning(
    count: int, shortens: tuple[Callable[[str], str], int], is_spaced: bool
) -> None:
    """A text of one long word is shortened as a word; ``one_line`` shortens nothing."""
    shorten, length = shortens
    letters = "abcdefg hijk" if is_spaced else "abcdefghijkl"
    text = "".join(letters[number % 12] for number in range(count))
    length = length if is_spaced else MAX_WORD_LENGTH
    kept = length - 30
    left_out = f"...({count - kept} characters)..."
    assert one_line(text) == text
    assert shorten(text) == (
        text if count <= length else text[: kept - kept // 3] + left_out + text[count - kept // 3 :]
    )


@pytest.mark.parametrize(("character", "width"), [("\x07", 4), ("\u2028", 6), ("\U000e0001", 10)])
def test_an_escaped_text_is_shortened_again(character: str, width: int) -> None:
    """Its escapes are counted as they are printed, and a backslash stays."""
    assert one_line(f"a\\{character}") == message(f"a\\{character}") == f"a\\{printable(character)}"
    for count in (MAX_MESSAGE_LENGTH // width, MAX_MESSAGE_LENGTH // width + 1):
        text = " ".join([character * 9] * (count // 9)) + character * (count % 9)
        printed = one_line(text)
        assert len(printed) == count * width + count // 9 - 1
        assert (message(text) == printed) == (len(printed) <= MAX_MESSAGE_LENGTH)
        assert len(message(text)) <= MAX_MESSAGE_LENGTH


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
