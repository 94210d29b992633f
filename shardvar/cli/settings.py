"""Settings in few lines, such as the learning rate and the epoch of a training state.

There is a line for each place in the tree that has settings. The values that people look for come
first, values that are off come last, and a line has as many as fit.
"""

from collections.abc import Iterator, Mapping, Sequence
from shutil import get_terminal_size

from shardvar.cli.output import count, printable
from shardvar.verbs.scalars import ScalarValue

_MOST_LINES = 3
"""The places of a tree that have a line."""
_FIRST = (
    "epoch",
    "step",
    "global_step",
    "iteration",
    "lr",
    "initial_lr",
    "betas",
    "momentum",
    "eps",
    "weight_decay",
)
_OFF = ("None", "False", "0", "[]", "{}", "''")
_LONGEST = 24
"""The characters of the longest value in a line."""


def settings_lines(keys: Sequence[str], scalars: Mapping[str, ScalarValue]) -> list[str]:
    """Return the settings of these keys in a heading and at most three more lines."""
    groups: dict[str, list[str]] = {}
    for key in keys:
        groups.setdefault(key[: _place(key)], []).append(key)
    lines = [f"{count(len(keys), 'setting')} (--all lists each):"]
    for number, (place, some) in enumerate(groups.items(), 1):
        if number == _MOST_LINES and len(groups) > _MOST_LINES:
            more = sum(len(others) for others in list(groups.values())[number - 1 :])
            return [
                *lines,
                f"  {count(more, 'setting')} in {len(groups) - number + 1} other places",
            ]
        lines.append(_line(f"  {printable(place)}{': ' * bool(place)}", some, scalars))
    return lines


def _place(key: str) -> int:
    """Return where the last part of a key begins, without its separator."""
    separator = "/" if "/" in key else "."
    return max(key.rfind(separator), 0)


def _line(text: str, keys: Sequence[str], scalars: Mapping[str, ScalarValue]) -> str:
    """Return as many settings of one place as fit a line, and the number of the others."""
    width = get_terminal_size().columns
    shown: list[str] = []
    ordered = sorted(keys, key=lambda key: _rank(key, scalars))
    for number, each in enumerate(_texts(ordered, scalars)):
        rest = len(keys) - number - 1
        end = f", {rest} more" if rest else ""
        if len(", ".join([text, *shown, each])) + len(end) > width and shown:
            break
        shown.append(each)
    more = [f"{len(keys) - len(shown)} more"] * (len(shown) < len(keys))
    return text + ", ".join([*shown, *more])


def _rank(key: str, scalars: Mapping[str, ScalarValue]) -> tuple[bool, int]:
    name = key[_place(key) :].lstrip("./")
    is_off = key not in scalars or scalars[key].text in _OFF
    return is_off and name not in _FIRST, _FIRST.index(name) if name in _FIRST else len(_FIRST)


def _texts(keys: Sequence[str], scalars: Mapping[str, ScalarValue]) -> Iterator[str]:
    for key in keys:
        name = printable(key[_place(key) :].lstrip("./"))
        value = printable(scalars[key].text) if key in scalars else "not read"
        yield f"{name} {value if len(value) <= _LONGEST else value[: _LONGEST - 1] + '…'}"
