"""Keys as a tree: cut after each ``/``, or after each ``.`` in keys without ``/``.

A chain of single branches is one line. At a terminal, numbered siblings that are otherwise the same, such as the
layers of a deep model, share a line too.
"""

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

_MOST_LEVELS = 32
"""The most times that a key is cut; the rest stays together, which bounds the recursion."""

_FEWEST_ALIKE = 4
"""The fewest numbered siblings that share a line; fewer are shown one by one."""

# At most nine digits, since ``int`` refuses texts of more than 4,300 digits, which a hostile key may hold.
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the tree."""

    label: str
    """The end of the key, without what the lines above it show."""
    guide: str
    """The branches drawn in front of it."""
    leaf: int | None
    """The position of the key that ends here; None for a branch."""
    leaves: tuple[int, ...]
    """The positions of all keys at or below it, including those of siblings that share the line."""


@dataclass(slots=True)
class _Node:
    leaf: int | None = None
    children: dict[str, "_Node"] = field(default_factory=dict)


def tree_lines(keys: Sequence[str], kinds: Sequence[Hashable] | None = None) -> Iterator[Line]:
    """Yield the lines of the tree, branches first.

    ``kinds`` describes the tensor of each key. With it, siblings that differ in a number only share a line.

    >>> [line.guide + line.label for line in tree_lines(["a/b/c", "a/b/d", "e"])]
    ['├─ a/b/', '│  ├─ c', '│  └─ d', '└─ e']
    """
    root = _Node()
    for position, key in enumerate(keys):
        node = root
        for label in _labels(key):
            node = node.children.setdefault(label, _Node())
        node.leaf = position
    return _lines(root, "", kinds)


def _labels(key: str) -> list[str]:
    """Return the labels on the way to a key, separators included: ``a/b`` has ``a/`` and ``b``."""
    separator = "/" if "/" in key else "."
    words = key.split(separator, _MOST_LEVELS)
    labels = [word + separator for word in words[:-1]]
    # A key that ends in its separator has no further label: ``a/`` is one label and not two.
    return labels + words[-1:] if words[-1] or not labels else labels


def _lines(node: _Node, guide: str, kinds: Sequence[Hashable] | None) -> Iterator[Line]:
    groups = _groups(node, kinds)
    for number, (label, child, alike) in enumerate(groups, 1):
        is_last = number == len(groups)
        # A chain of single branches is one line: ``a/`` above ``b/`` alone becomes ``a/b/``.
        while child.leaf is None and len(child.children) == 1:
            (more, child), *_ = child.children.items()
            label += more
            alike = [each for sibling in alike for each in sibling.children.values()]
        leaves = tuple(leaf for sibling in alike for leaf in _leaves(sibling))
        yield Line(label, guide + ("└─ " if is_last else "├─ "), child.leaf, leaves)
        yield from _lines(child, guide + ("   " if is_last else "│  "), kinds)


def _groups(node: _Node, kinds: Sequence[Hashable] | None) -> list[tuple[str, _Node, list[_Node]]]:
    """Return the lines of a node's children: (label, the child that is shown, all children that share the line)."""
    if kinds is None:
        return [(label, child, [child]) for label, child in node.children.items()]
    alike: dict[Hashable, list[tuple[str, _Node]]] = {}
    for label, child in node.children.items():
        # A tuple for numbered labels and a text for others, so that a ``#`` in a key is never taken for a number.
        shape: Hashable = (_NUMBER.sub("#", label, count=1), _kind(child, kinds)) if _NUMBER.search(label) else label
        alike.setdefault(shape, []).append((label, child))
    groups: list[tuple[str, _Node, list[_Node]]] = []
    for members in alike.values():
        if len(members) < _FEWEST_ALIKE:
            groups.extend((label, child, [child]) for label, child in members)
        else:
            groups.append((_range_label([label for label, _ in members]), members[0][1], [m for _, m in members]))
    return groups


def _range_label(labels: Sequence[str]) -> str:
    """Return ``layer_{0..11}/`` for labels that differ in their first number."""
    # Gaps do not show: layers 0, 1, 5 and 6 are {0..6}, and only the number of tensors says that some are missing.
    numbers = [int(found.group()) for label in labels if (found := _NUMBER.search(label))]
    return _NUMBER.sub(f"{{{min(numbers)}..{max(numbers)}}}", labels[0], count=1)


def _kind(node: _Node, kinds: Sequence[Hashable]) -> Hashable:
    """Return a value that is equal for branches with the same names below them and the same kinds of tensors."""
    own = None if node.leaf is None else kinds[node.leaf]
    return own, tuple((label, _kind(child, kinds)) for label, child in node.children.items())


def _leaves(node: _Node) -> Iterator[int]:
    if node.leaf is not None:
        yield node.leaf
    for child in node.children.values():
        yield from _leaves(child)
