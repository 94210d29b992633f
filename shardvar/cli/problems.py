"""Problems of a checkpoint for people: at a terminal a line for each file or cause, in a pipe a
sentence for each.

A line has the file, by its number where its name has one, a word for what is wrong with it, and the
tensors that are lost by it. What to do is said once, below.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from shutil import get_terminal_size
from textwrap import wrap

from shardvar.cli.output import (
    count,
    folded,
    one_line,
    print_bold,
    printable,
    put,
    say,
    seen_from_here,
    short_name,
)
from shardvar.cli.tree import file_number, fold_keys
from shardvar.verbs.reports import Cause, Damage, lines_of_problems, main_causes_of
from shardvar.verbs.steps import natural_key

_MOST_LABELS = 3
"""Names of tensors, or of tensors with a shared label, on a line; it counts more."""
_LEAST_WIDE = 36
"""The fewest columns for the problem next to the file and the word; where there are fewer, it has
its own line."""
_BETWEEN = 2


def print_problems(
    problems: Sequence[Damage],
    everything: bool = False,
    indent: str = "",
    *,
    pipe: str,
    most: int | None = None,
) -> bool:
    """Print problems; in a pipe, and with ``everything``, as sentences that begin with ``pipe``.

    A terminal gets at most ``most`` causes, and the number of the others.

    Return True if each tensor was named.
    """
    if everything or not sys.stdout.isatty():
        for line in lines_of_problems(indent + pipe, problems, everything):
            say(line)
        return True
    causes = _causes(problems)
    for line, word in problem_lines(problems, indent, most):
        if word:
            print_bold(line, word)
        else:
            put(line)
    return len(causes) <= (most or len(causes)) and all(
        len(list(fold_keys(each.keys))) <= _MOST_LABELS for each in causes
    )


def problem_lines(
    problems: Sequence[Damage], indent: str = "", most: int | None = None
) -> list[tuple[str, str]]:
    """Return the lines of problems for a terminal, each with its bold word: one or more for each
    file or cause, then what to do."""
    causes = _causes(problems)
    more = len(causes[most:]) if most else 0
    causes = causes[:most]
    rows = [(_place(each), each.word, list(_details(each))) for each in causes]
    places = max((len(place) for place, _, _ in rows), default=0)
    words = max((len(word) for _, word, _ in rows), default=0)
    longest = max(
        (len(text) for _, _, details in rows for each in details for text in each.split()),
        default=0,
    )
    width = get_terminal_size().columns - len(indent)
    lines = []
    for place, word, details in rows:
        head = "  ".join(filter(None, (place.ljust(places), word.ljust(words))))
        first, *others = _lines(head, details, width, max(longest, _LEAST_WIDE))
        lines += [(indent + first, word), *((indent + line, "") for line in others)]
    if more:
        lines.append((f"{indent}and {count(more, 'other cause')}", ""))
    remedies = dict.fromkeys(one_line(each.remedy) for each in causes if each.remedy)
    if remedies:
        lines.append(("", ""))
    lines += [(line, "") for remedy in remedies for line in folded(indent + remedy)]
    return lines


def _causes(problems: Sequence[Damage]) -> list[Cause]:
    """Return the causes of problems, causes with a file first, in natural order."""
    # What file and word say is not said for each tensor.
    told = main_causes_of(
        replace(each, cause="") if each.is_told_by_file else each for each in problems
    )
    return sorted(told, key=lambda each: (each.file is None, natural_key(each.file or "")))


def _place(cause: Cause) -> str:
    """Return the file of a cause, by the number in its name where it has one."""
    number = None if cause.file is None else file_number(cause.file)
    return printable(cause.file or "") if number is None else f"file {number}"


def _details(cause: Cause) -> Iterator[str]:
    """Yield what file and word lack: the name of the file, the sentence, and the tensors."""
    text = cause.text
    if cause.file is not None:
        text = text.partition(cause.file)[2].lstrip(": ") if cause.file in text else text
        if file_number(cause.file) is not None:
            yield printable(cause.file)
    if text:
        yield seen_from_here(one_line(f"{text} {cause.more}".rstrip()))
    if cause.keys:
        labels = [label for label, _ in fold_keys(cause.keys)]
        yield (
            ", ".join(map(short_name, labels))
            if len(labels) <= _MOST_LABELS
            else count(len(cause.keys), "tensor")
        )


def _lines(head: str, details: Sequence[str], width: int, least: int) -> Iterator[str]:
    """Yield the lines of a cause: its details next to the head, or below it if that leaves fewer
    than ``least`` columns.

    A word that is longer than the terminal, such as the name of a file, stays whole: it is copied.
    """
    beside = len(head) + _BETWEEN
    if width - beside < least:
        yield head.rstrip()
        beside, head = _BETWEEN, ""
    for detail in details:
        for line in wrap(
            detail, max(width - beside, 1), break_long_words=False, break_on_hyphens=False
        ):
            yield f"{head.ljust(beside)}{line}"
            head = ""
