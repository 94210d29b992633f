"""Keys as a tree: cut after each ``/``, or after each ``.`` in keys without ``/``, in natural
order.

A chain of single branches is one line. In an overview, siblings that differ in only one number,
such as the layers of a deep model, share a line as well. Two siblings are alike if the same names
are below them, in any order, with the same kinds of tensors. The range of such a line lists exactly
which numbers exist: ``{0..2,9}``, or ``{00..11}`` with the padding of the keys. A number that no
sibling has is a gap, which the line knows. Siblings that are alike and differ in one word of
several, such as the matrices of an attention, also share a line: ``{q,k,v,o}_proj.weight``.

Problems of a checkpoint are folded in the same way: at a terminal a line has the file, by its number
where its name has one, a word for its fault, and the tensors that are lost by it; a pipe gets a
sentence for each. The remedy is printed once, below.
"""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from shardvar.cli.output import (
    at_terminal,
    count,
    folded,
    one_line,
    print_bold,
    printable,
    put,
    say,
    seen_from_here,
    short_name,
    terminal_size,
)
from shardvar.pictures.words import in_command, natural_key
from shardvar.records import field, mutable, replace
from shardvar.verbs.parameters import PROJECTIONS

if TYPE_CHECKING:
    from shardvar.verbs.problems import Cause, Damage

_MOST_LEVELS = 32
"""The most times that a key is cut; the rest stays together, which bounds the recursion."""

_FEWEST_ALIKE = 3
"""The fewest numbered siblings that share a line; fewer are shown one by one."""

_MOST_GAPS = 3
"""The most missing numbers that are taken for gaps; more are a rule, such as every second layer."""

# At most nine digits, since ``int`` refuses texts of more than 4,300 digits, which a hostile key
# may hold.
_NUMBER = re.compile(r"[0-9]{1,9}")
_LETTERS = r"[^\W\d_]+"


_MOST_WORDS = 8
"""The most words that a line lists; siblings with more are shown one by one."""


class Line(NamedTuple):
    label: str
    """The end of the key, without what the lines above it show."""
    guide: str
    """The branches drawn in front of it, three characters a level."""
    leaf: int | None
    """The position of the key that ends here; None for a branch."""
    leaves: tuple[int, ...]
    """The positions of all keys at or below it, including siblings that share the line."""
    alike: tuple[int, ...]
    """The positions of ``leaves``, and of their counterparts below shared lines above."""
    num_alike: int = 1
    """The siblings that share the line by a range of numbers."""
    num_shared: int = 1
    """All siblings that share the line, also those by a list of words."""
    gaps: tuple[int, ...] = ()
    """The numbers between the first and the last of these siblings that no sibling has."""

    @property
    def level(self) -> int:
        """The depth of the line, 1 at the root."""
        return len(self.guide) // 3


@mutable
class _Node:
    leaf: int | None = None
    children: dict[str, "_Node"] = field(default_factory=dict)
    form: int = 0
    """Equal for branches with the same names and kinds of tensors below them."""


class _Group(NamedTuple):
    label: str
    names: Sequence[str]
    gaps: tuple[int, ...] = ()
    num_alike: int = 1
    """The names, if the label has a range of numbers: such siblings are worth counting."""


_Grouped = Callable[[_Node], list[_Group]]
"""Returns the lines of a node's children."""


def tree_lines(
    keys: Sequence[str], kinds: Sequence[Hashable] | None = None, *, by_words: bool = True
) -> Iterator[Line]:
    """Yield the lines of the tree, from top to bottom.

    ``kinds`` describes the tensor of each key. With it, siblings that differ in one number only
    share a line, and with ``by_words`` also siblings that differ in one word.

    >>> [line.guide + line.label for line in tree_lines(["a/b/c", "a/b/d", "e"])]
    ['├─ a/b/', '│  ├─ c', '│  └─ d', '└─ e']
    >>> [line.label for line in tree_lines(["w00", "w01", "w02", "w10"], "ffff")]
    ['w{00..02,10}']
    >>> [line.label for line in tree_lines(["k_proj.w", "q_proj.w", "norm.w"], "ffg")]
    ['{q,k}_proj.w', 'norm.w']
    """
    root = _Node()
    for position, key in enumerate(keys):
        node = root
        for label in _labels(key):
            below = node.children.get(label)
            if below is None:
                below = node.children[label] = _Node()
            node = below
        node.leaf = position
    if kinds is None:
        return _lines([root], "", _alone)
    _number_forms(root, kinds, {})
    return _lines([root], "", partial(_alike, by_words=by_words))


def _labels(key: str) -> list[str]:
    """Return the labels on the way to a key, separators included: ``a/b`` has ``a/`` and ``b``."""
    separator = "/" if "/" in key else "."
    words = key.split(separator, _MOST_LEVELS)
    labels = [word + separator for word in words[:-1]]
    # A key that ends in its separator has no further label: ``a/`` is one label and not two.
    return labels + words[-1:] if words[-1] or not labels else labels


def _number_forms(node: _Node, kinds: Sequence[Hashable], numbers: dict[Hashable, int]) -> None:
    """Give equal branches the same number, so that comparing two takes one step."""
    for child in node.children.values():
        _number_forms(child, kinds, numbers)
    below = frozenset((label, child.form) for label, child in node.children.items())
    node.form = numbers.setdefault(
        (node.leaf is not None and (kinds[node.leaf],), below), len(numbers)
    )


def _lines(above: Sequence[_Node], guide: str, grouped: _Grouped) -> Iterator[Line]:
    """Yield the lines below the first of some nodes, which have the same children."""
    groups = grouped(above[0])
    for number, group in enumerate(groups, 1):
        is_last = number == len(groups)
        branch = guide + ("└─ " if is_last else "├─ ")
        label, gaps = group.label, group.gaps
        num_alike, num_shared = group.num_alike, len(group.names)
        nodes = [above[0].children[name] for name in group.names]
        every = [node.children[name] for node in above for name in group.names]
        # A chain of single lines is one line: ``a/`` above only ``b/`` becomes ``a/b/``, and
        # likewise ``layers.{0..3}.``.
        while nodes[0].leaf is None and len(inner := grouped(nodes[0])) == 1:
            label += inner[0].label
            gaps += inner[0].gaps
            num_alike *= inner[0].num_alike
            num_shared *= len(inner[0].names)
            nodes = [each.children[name] for each in nodes for name in inner[0].names]
            every = [each.children[name] for each in every for name in inner[0].names]
        leaves = tuple(leaf for each in nodes for leaf in _leaves(each))
        alike = (
            leaves
            if len(every) == len(nodes)
            else tuple(leaf for each in every for leaf in _leaves(each))
        )
        yield Line(label, branch, nodes[0].leaf, leaves, alike, num_alike, num_shared, gaps)
        if nodes[0].children:
            yield from _lines(every, guide + ("   " if is_last else "│  "), grouped)


def _alone(node: _Node) -> list[_Group]:
    return [_Group(label, (label,)) for label in sorted(node.children, key=natural_key)]


def _alike(node: _Node, by_words: bool) -> list[_Group]:
    """Return the lines of a node's children, in natural order of the first child of each."""
    labels = sorted(node.children, key=natural_key)
    alike: dict[Hashable, list[str]] = {}
    numbers: dict[tuple[str, ...], set[int]] = {}
    for label in labels:
        # Numbered labels are grouped by a pair and others by a text, so that a ``#`` in a key is
        # never a number.
        numbered = _NUMBER.search(label) is not None
        alike.setdefault(
            (_NUMBER.sub("#", label), node.children[label].form) if numbered else label, []
        ).append(label)
        for found in _NUMBER.finditer(label):
            numbers.setdefault(_around(label, found), set()).add(int(found[0]))
    groups = [
        each
        for some in alike.values()
        for part in _by_one_number(some)
        for each in _group(part, numbers)
    ]
    if by_words:
        single = [each.label for each in groups if len(each.names) == 1]
        shared = _by_one_word({label: node.children[label].form for label in single})
        taken = {name for each in shared for name in each.names}
        groups = [each for each in groups if each.label not in taken] + shared
    return sorted(groups, key=lambda each: min(map(natural_key, each.names)))


def _by_one_word(forms: Mapping[str, int]) -> list[_Group]:
    """Return a line for labels that are alike and differ in one word, the most labels first."""
    alike: dict[tuple[int, tuple[str, ...], int], list[str]] = {}
    for label, form in forms.items():
        words = _words(label)
        for place in range(len(words) - 1 if len(words) > 2 else 0):
            # Digits are left to ranges, and braces and commas in keys would be taken for the line's
            # own.
            if re.fullmatch(_LETTERS, words[place]):
                alike.setdefault(
                    (place, (*words[:place], "", *words[place + 1 :]), form), []
                ).append(label)
    groups, taken = list[_Group](), set[str]()
    for (place, _, _), labels in sorted(alike.items(), key=lambda each: -len(each[1])):
        if 1 < len(labels) <= _MOST_WORDS and taken.isdisjoint(labels):
            taken.update(labels)
            groups.append(_of_words(place, labels))
    return groups


def _words(label: str) -> list[str]:
    """Return the words of a label, and last the separator at its end, if it has one."""
    name = label[:-1] if label[-1:] in ("/", ".") else label
    return [*name.split("_"), label[len(name) :]]


def _of_words(place: int, labels: Sequence[str]) -> _Group:

    def order(label: str) -> tuple[int, object]:
        word = _words(label)[place]
        return (
            (PROJECTIONS.index(word), ())
            if word in PROJECTIONS
            else (len(PROJECTIONS), natural_key(label))
        )

    names = sorted(labels, key=order)
    words = _words(names[0])
    words[place] = f"{{{','.join(_words(name)[place] for name in names)}}}"
    return _Group("_".join(words[:-1]) + words[-1], names)


def _group(labels: Sequence[str], numbers: dict[tuple[str, ...], set[int]]) -> list[_Group]:
    """Return one line for labels that differ in one number, or one each for a few."""
    if len(labels) < _FEWEST_ALIKE:
        return [_Group(label, [label]) for label in labels]
    matches = [list(_NUMBER.finditer(label)) for label in labels]
    columns = [[found[0] for found in column] for column in zip(*matches, strict=True)]
    place, texts = next(each for each in enumerate(columns) if len(set(each[1])) > 1)
    before, after = _around(labels[0], matches[0][place])
    first, last = int(texts[0]), int(texts[-1])
    there = numbers[before, after]
    is_dense = last - first < len(there) + _MOST_GAPS + 1
    missing = (
        tuple(n for n in range(first, last) if n not in there)[: _MOST_GAPS + 1] if is_dense else ()
    )
    gaps = missing if len(missing) <= _MOST_GAPS else ()
    return [_Group(f"{before}{{{number_ranges(texts)}}}{after}", labels, gaps, len(labels))]


def _around(label: str, number: re.Match[str]) -> tuple[str, str]:
    return label[: number.start()], label[number.end() :]


def _by_one_number(labels: Sequence[str]) -> Iterator[Sequence[str]]:
    numbers = [tuple(_NUMBER.findall(label)) for label in labels]
    varying = [
        place for place, found in enumerate(zip(*numbers, strict=True)) if len(set(found)) > 1
    ]
    if len(varying) <= 1:
        yield labels
        return
    # Of ``head_0_w_1``, the last number varies first: ``head_0_w_{0..3}`` and ``head_1_w_{0..3}``.
    place = varying[-1]
    groups: dict[tuple[str, ...], list[str]] = {}
    for label, found in zip(labels, numbers, strict=True):
        groups.setdefault(found[:place] + found[place + 1 :], []).append(label)
    yield from groups.values()


def fold_keys(keys: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield keys in natural order; keys that differ only in their numbers share one label.

    One number varies in a label, or several numbers if every combination is a key.

    >>> [(label, len(shared)) for label, shared in fold_keys(["layer.10.w", "layer.9.w", "layer.11.w", "bias"])]
    [('bias', 1), ('layer.{9..11}.w', 3)]
    >>> [label for label, _ in fold_keys([f"layer.{i}.expert.{j}" for i in range(3) for j in range(4)])]
    ['layer.{0..2}.expert.{0..3}']
    """
    alike: dict[Sequence[str], list[str]] = {}
    for key in sorted(keys, key=natural_key):
        alike.setdefault(tuple(_NUMBER.split(key)), []).append(key)
    groups = [
        group
        for each in alike.values()
        # One group, if the keys are all combinations of the numbers in them.
        for group in (
            [each] if prod(map(len, _choices(each))) == len(each) else _by_one_number(each)
        )
    ]
    for group in sorted(groups, key=lambda group: natural_key(group[0])):
        if len(group) < _FEWEST_ALIKE:
            yield from ((key, [key]) for key in group)
        else:
            yield _label(group), group


def fold_words(labels: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield labels; labels that differ in one word of one part share a label that lists the words.

    >>> list(fold_words(["a.k_proj.w", "b", "a.q_proj.w"]))
    [('a.{q,k}_proj.w', ['a.q_proj.w', 'a.k_proj.w']), ('b', ['b'])]
    """
    alike: dict[tuple[str, str], dict[str, str]] = {}
    for label in labels:
        parts = _labels(label)
        for place, part in enumerate(parts):
            around = "".join(parts[:place]), "".join(parts[place + 1 :])
            alike.setdefault(around, {})[part] = label
    shared: dict[str, tuple[str, Sequence[str]]] = {}
    for (before, after), by_part in sorted(alike.items(), key=lambda each: -len(each[1])):
        free = {part: 0 for part, label in by_part.items() if label not in shared}
        for group in _by_one_word(free):
            members: Sequence[str] = [by_part[part] for part in group.names]
            shared.update(dict.fromkeys(members, (f"{before}{group.label}{after}", members)))
    done = set[str]()
    for label in labels:
        folded, members = shared.get(label, (label, [label]))
        if folded not in done:
            yield folded, members
        done.add(folded)


def _label(keys: Sequence[str]) -> str:
    """Return the common label of keys, with ranges for the numbers that vary."""
    choices = iter(_choices(keys))

    def number_or_range(_: re.Match[str]) -> str:
        texts = next(choices)
        return texts[0] if len(texts) == 1 else f"{{{number_ranges(texts)}}}"

    return _NUMBER.sub(number_or_range, keys[0])


def _choices(keys: Sequence[str]) -> list[list[str]]:
    """Return the ascending texts of each number in keys that differ only in numbers."""
    columns = zip(*map(_NUMBER.findall, keys), strict=True)
    return [sorted(set(column), key=lambda text: (int(text), text)) for column in columns]


def number_ranges(texts: Sequence[str]) -> str:
    """Return exactly these numbers, which ascend: ``0..2,9`` or ``00..11``; with a step,
    ``0..8..2``, as in shells.

    >>> number_ranges(["0", "1", "2", "9"])
    '0..2,9'
    """
    runs: list[list[str]] = []
    for text in texts:
        # The successor of 09 is 10, and so is the successor of 9: padding belongs to the range.
        if runs and text == str(int(runs[-1][-1]) + 1).zfill(len(runs[-1][-1])):
            runs[-1].append(text)
        else:
            runs.append([text])
    numbers = [int(text) for text in texts]
    steps = {b - a for a, b in pairwise(numbers)}
    padding_is_plain = len(set(map(len, texts))) == 1 or not any(
        text[0] == "0" < text for text in texts
    )
    if len(steps) == 1 and len(runs) == len(texts) > _FEWEST_ALIKE and padding_is_plain:
        return f"{texts[0]}..{texts[-1]}..{steps.pop()}"
    return ",".join(
        ",".join(run) if len(run) < _FEWEST_ALIKE else f"{run[0]}..{run[-1]}" for run in runs
    )


_FILE_NUMBER = "-([0-9]{1,9})-of-[0-9]{1,9}"


def file_number(name: str) -> int | None:
    found = re.search(_FILE_NUMBER, name)
    return int(found[1]) if found else None


def _leaves(node: _Node) -> list[int]:
    # Without recursion, which would pass each leaf through all branches above it.
    found, nodes = list[int](), [node]
    while nodes:
        node = nodes.pop()
        if node.leaf is not None:
            found.append(node.leaf)
        nodes += reversed(node.children.values())
    return found


_MOST_LABELS = 3
"""Names of tensors, or of tensors with a shared label, on a line; it counts more."""
_LEAST_WIDE = 36
"""The fewest columns for the problem next to the file and the word; where there are fewer, it has
its own line."""
_BETWEEN = 2


def print_problems(
    problems: "Sequence[Damage]",
    everything: bool = False,
    indent: str = "",
    *,
    pipe: str,
    most: int | None = None,
) -> bool:
    """Print problems, at a terminal at most ``most`` causes; return True if each tensor was named."""
    from shardvar.verbs.problems import lines_of_problems

    if everything or not at_terminal():
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
    problems: "Sequence[Damage]", indent: str = "", most: int | None = None
) -> list[tuple[str, str]]:
    """Return the lines of problems for a terminal, each with its bold word, and the remedies."""
    causes = _causes(problems)
    more = len(causes[most:]) if most else 0
    causes = causes[:most]
    rows = []
    for each in causes:
        number = None if each.file is None else file_number(each.file)
        place = printable(each.file or "") if number is None else f"file {number}"
        rows.append((place, each.word, list(_details(each))))
    places = max((len(place) for place, _, _ in rows), default=0)
    words = max((len(word) for _, word, _ in rows), default=0)
    longest = max(
        (len(text) for _, _, details in rows for each in details for text in each.split()),
        default=0,
    )
    width = terminal_size().columns - len(indent)
    lines = []
    for place, word, details in rows:
        head = "  ".join(filter(None, (place.ljust(places), word.ljust(words))))
        first, *others = _cause_lines(head, details, width, max(longest, _LEAST_WIDE))
        lines += [(indent + first, word), *((indent + line, "") for line in others)]
    if more:
        lines.append((f"{indent}and {count(more, 'other cause')}", ""))
    remedies = dict.fromkeys(one_line(in_command(each.remedy)) for each in causes if each.remedy)
    if remedies:
        lines.append(("", ""))
    lines += [(line, "") for remedy in remedies for line in folded(indent + remedy)]
    return lines


def _causes(problems: "Sequence[Damage]") -> "list[Cause]":
    """Return the causes of problems, causes with a file first, in natural order."""
    from shardvar.verbs.problems import main_causes_of  # most checkpoints have no problem

    # The file and the word are not repeated for each tensor.
    told = main_causes_of(
        replace(each, cause="") if each.is_told_by_file else each for each in problems
    )
    return sorted(told, key=lambda each: (each.file is None, natural_key(each.file or "")))


def _details(cause: "Cause") -> Iterator[str]:
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


def _cause_lines(head: str, details: Sequence[str], width: int, least: int) -> Iterator[str]:
    """Details next to the head, or below it if that leaves fewer than ``least`` columns."""
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
