"""The names that a folded line stands for."""

import re
from collections.abc import Iterator
from itertools import product


def expanded(label: str) -> Iterator[str]:
    """The names that a label stands for, as a shell expands braces: ``{0..2,9}``, ``{00..11}``,
    ``{0..8..2}``."""
    texts = re.split(r"\{([^}]*)\}", label)
    choices = [
        [text] if place % 2 == 0 else list(numbers(text)) for place, text in enumerate(texts)
    ]
    return ("".join(words) for words in product(*choices))


def numbers(text: str) -> Iterator[str]:
    """The numbers or words in such braces."""
    for item in text.split(","):
        if item.isalpha():
            yield item
            continue
        first, last, step = (*item.split(".."), *("" for _ in range(2)))[:3]
        for number in range(int(first), int(last or first) + 1, int(step or "1")):
            yield str(number).zfill(len(first))
