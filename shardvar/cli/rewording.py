"""Words of a command line that argparse would misread, put in a form that it reads right."""

import re
from collections.abc import Sequence
from itertools import islice

# Such as -1 or -3:, which argparse would take for options.
_NEGATIVE_INDEX = re.compile(r"-[0-9:][0-9:,. +-]*")

_WITH_VALUES = ("--verify", "--item", "--dequantize-to", "--map", "--rule", "--size")
"""The options of ``show`` that take a value; the value must stay behind them."""


def with_cuts(words: Sequence[str]) -> list[str]:
    """Return the arguments with ``--shards -,tp`` as one word, since argparse would take ``-,tp``
    for an option."""
    joined: list[str] = []
    for word in words:
        if word.startswith("-,") and joined[-1:] == ["--shards"]:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def options_first(words: list[str]) -> list[str]:
    """Return the arguments of ``show`` with the options in front.

    An INDEX may begin with a minus sign, as in ``show model table -1 --json``. argparse would take
    it for an option. It also fills the optional INDEX as soon as it can, and would miss one that
    follows an option.
    """
    options: list[str] = []
    others: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        if word == "--":
            others.extend(rest)
        elif word.startswith("-") and not _NEGATIVE_INDEX.fullmatch(word):
            options.append(word)
            if word in _WITH_VALUES:
                options.extend(islice(rest, 1))
        else:
            others.append(word)
    # After ``--`` argparse takes every word for an argument, -1 too.
    return [words[0], *options, "--", *others]
