"""Colours, laws, checks of exercises, scratch cells and views of source, for these notebooks.

A notebook imports them, so that its own cells are about its subject. Servers and devices differ
in colour, hatching and label: no picture depends on colour alone. Pictures are SVG with text as
text, so that a test can compare their words with a new run's.
"""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from html import escape
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from IPython import get_ipython
from IPython.display import HTML, display
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib_inline.backend_inline import set_matplotlib_formats

COLORS = (
    "#56B4E9",
    "#E69F00",
    "#009E73",
    "#F0E442",
    "#CC79A7",
    "#D55E00",
    "#0072B2",
    "#BBBBBB",
)
"""The palette of Okabe and Ito, which readers with any kind of colour vision can tell apart."""

HATCHES = ("", "///", "||", "\\\\\\", "xx", "--", "++", "|")
"""Lines alone: the dots and circles of matplotlib make a picture ten times as large."""

DARK = "#222222"

PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.9}
"""The white beneath a text that lies on a colour."""

plt.rcParams.update(
    {
        "figure.figsize": (8, 3),
        "figure.constrained_layout.use": True,
        "figure.facecolor": "white",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "hatch.linewidth": 0.5,
        "legend.frameon": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "shardvar",
    }
)
# Without its date, the same figure is the same text.
set_matplotlib_formats("svg", metadata={"Date": None})


class _Scratch:
    """What scratch cells assign: names of the cells around them get their values back.

    A name that a scratch cell has made is its own, and stays, until another cell assigns it.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.before: dict[str, Any] = {}
        self.own: set[str] = set()
        self.is_scratch = False

    def begin(self, info: Any) -> None:
        """Remember the names before a cell."""
        self.before = dict(self.names)
        self.is_scratch = info.raw_cell.lstrip().startswith("# Scratch")

    def end(self, _: Any) -> None:
        """Give the names their values back after a scratch cell."""
        if self.is_scratch:
            self.own |= self.names.keys() - self.before.keys()
            kept = self.own | {name for name in self.before if name.startswith("_")}
            self.names.update({name: self.before[name] for name in self.before.keys() - kept})
        else:
            self.own -= {
                name for name in self.own if self.names.get(name) is not self.before.get(name)
            }


if (_shell := get_ipython()) is not None:
    _scratch = _Scratch(_shell.user_ns)
    _shell.events.register("pre_run_cell", _scratch.begin)
    _shell.events.register("post_run_cell", _scratch.end)


def show(*places: str) -> None:
    """Display the source of functions of the package, folded.

    A place is "module:name" or "module:Class.method".
    """
    for place in places:
        module, _, name = place.partition(":")
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = inspect.getattr_static(found, part)
        if found.__module__ != module:
            raise ValueError(f"{place} is defined in {found.__module__}.")
        source = escape(inspect.cleandoc("\n" + inspect.getsource(found)))
        file = f"{module.replace('.', '/')}.py"
        whose = (
            "The plain rule"
            if module.startswith("shardvar.spec.")
            else "The package's own version"
        )
        title = f"{whose}: <code>{name}</code> in <code>{file}</code>"
        display(HTML(f"<details><summary>{title}</summary><pre>{source}</pre></details>"))


def law(sentence: str, holds: Callable[..., bool | str], cases: Iterable[Any] = ((),)) -> bool:
    """Print the sentence, and in how many cases it holds or which is the first that breaks it.

    ``holds(*case)`` returns True, or False, or a text that describes the difference. A case that is
    neither a tuple nor a list is the only argument. Returns True if the law holds.
    """
    count = 0
    for each in cases:
        count += 1
        case = each if isinstance(each, (tuple, list)) else (each,)
        verdict = holds(*case)
        if verdict is None:
            verdict = "nothing is returned, where True or False is expected"
        if isinstance(verdict, str) or not verdict:
            where = f" for {', '.join(map(repr, case))}" if case else ""
            print(
                f"NOT a law: {sentence}\n     Broken{where}{f': {verdict}' if verdict else ''}."
            )
            return False
    if not count:
        print(f"NOT tried: {sentence}\n     The list of cases is empty.")
        return False
    print(f"Law: {sentence}\n     Held in {count} case{'s' * (count != 1)}.")
    return True


def check(
    answer: Callable[..., Any],
    truth: Callable[..., Any],
    cases: Sequence[Sequence[Any]],
    draw: Callable[..., None],
) -> bool:
    """Compare an answer with the right one in all cases, and draw both side by side.

    Arrays, tuples and lists of the same numbers are the same answer. An exception is a wrong
    one. Drawn is the first case that differs, or else the first. ``draw(axes, value, *case)``
    draws one value. Returns True if the answer is right.
    """
    given = [attempt(answer, case) for case in cases]
    expected = [truth(*case) for case in cases]
    wrong = [n for n in range(len(cases)) if _plain(given[n]) != _plain(expected[n])]
    shown = wrong[0] if wrong else 0
    values = (given[shown], expected[shown])
    if given[0] is None:
        print("Not written yet.")
    elif wrong:
        _print_difference(*values, cases[shown])
    else:
        print(f"Right, in {len(cases)} case{'s' * (len(cases) != 1)}.")
    _, panels = plt.subplots(1, 2, figsize=(8, 2.2))
    titles = ("your answer", "the right one")
    for axes, title, value in zip(panels, titles, values, strict=True):
        axes.axis("off")
        _draw_answer(axes, draw, value, cases[shown])
        axes.set_title(f"{title}: {', '.join(map(str, cases[shown]))}", fontsize=9)
    return not wrong


def attempt(answer: Callable[..., Any], case: Sequence[Any]) -> Any:
    """Return the answer to a case, or the exception that it raised.

    It is given a copy: an answer that changes its lists must not change the question.
    """
    try:
        return answer(*deepcopy(case))
    except Exception as error:  # noqa: BLE001 - an answer may raise anything
        return error


def _plain(value: Any) -> Any:
    """Return a value with its arrays and tuples as lists, and their numbers as Python's."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


def _print_difference(given: Any, expected: Any, case: Sequence[Any]) -> None:
    """Print the case of a wrong answer, with both values, or the error and its place."""
    where = f" for {', '.join(map(repr, case))}" if case else ""
    if isinstance(given, Exception):
        print(f"Not right{where}: your function raised an exception. It is {_short(expected)}.")
        traceback.print_exception(given, limit=-1, chain=False, file=sys.stdout)
    else:
        print(f"Not right{where}: you give {_short(given)}. It is {_short(expected)}.")


def _short(value: Any) -> str:
    """Return the text of a value, without its middle where it has more than 300 characters."""
    text = repr(_plain(value))
    return text if len(text) <= 300 else f"{text[:200]} ... {text[-90:]}"


def _draw_answer(
    axes: Axes, draw: Callable[..., None], value: Any, case: Sequence[Any]
) -> None:
    """Draw a value, or print the reason why not: an answer may be anything."""
    text = ""
    if value is None:
        text = "nothing yet"
    elif isinstance(value, Exception):
        text = type(value).__name__
    else:
        try:
            draw(axes, value, *case)
        except Exception as error:  # noqa: BLE001 - and be anything
            text = f"not a picture: {type(error).__name__}"
            axes.clear()  # also of an unfinished drawing
            axes.axis("off")
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)


def block(
    axes: Axes,
    left: float,
    bottom: float,
    width: float,
    height: float,
    server: int,
    text: str = "",
    **more: Any,
) -> None:
    """Draw a rectangle in the colour and hatching of a server, with a text in its middle."""
    style = {
        "facecolor": COLORS[server % 8],
        "hatch": HATCHES[server % 8],
        "edgecolor": DARK,
        "linewidth": 0.8,
    }
    axes.add_patch(Rectangle((left, bottom), width, height, **style | more))
    if text:
        middle = (left + width / 2, bottom + height / 2)
        axes.text(*middle, text, ha="center", va="center", fontsize=9, bbox=PAPER)


def draw_rows(
    axes: Axes, intervals: Sequence[tuple[int, int]], length: int, word: str = ""
) -> None:
    """Draw the rows of a table as numbered squares, in the colour of their server.

    The number of each server stands above its rows, behind ``word``.
    """
    for server, (first, last) in enumerate(intervals):
        # An answer may have any numbers; only rows of the table are in the picture.
        start, stop = max(first, 0), min(last, length)
        for row in range(start, stop):
            block(axes, row, 0, 1, 1, server, str(row))
        if start < stop:
            axes.text((start + stop) / 2, 1.2, f"{word}{server}", ha="center")
    axes.set(xlim=(-0.1, max(length, 1) + 0.1), ylim=(-0.2, 2.2))
    axes.axis("off")


def draw_bands(
    axes: Axes, before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]
) -> None:
    """Draw two cuts of the same rows, and a band for each pair with rows in common."""
    length = before[-1][1]
    for left, intervals in ((0.0, before), (2.4, after)):
        for server, (start, stop) in enumerate(intervals):
            text = f"{start} to {stop - 1}" if stop > start else ""
            block(axes, left, -stop, 1, stop - start, server, text)
    for source, (start, stop) in enumerate(before):
        for first, last in after:
            top, bottom = max(start, first), min(stop, last)
            if top < bottom:
                axes.fill(
                    [1, 2.4, 2.4, 1],
                    [-top, -top, -bottom, -bottom],
                    COLORS[source % 8],
                    alpha=0.45,
                )
                axes.plot([1, 2.4], [-bottom, -bottom], color=DARK, linewidth=0.6)
                axes.text(
                    1.7,
                    -(top + bottom) / 2,
                    f"{bottom - top} rows",
                    ha="center",
                    va="center",
                    fontsize=8,
                )
    axes.text(0.5, length * 0.03, f"on {len(before)}", ha="center")
    axes.text(2.9, length * 0.03, f"on {len(after)}", ha="center")
    axes.set(xlim=(-0.05, 3.45), ylim=(-length * 1.01, length * 0.12))
    axes.axis("off")
