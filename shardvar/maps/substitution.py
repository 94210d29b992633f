"""Put what a rule with a ``$`` target computes into the rules that use it.

    W[o i] + B[o r] A[r i] -> $v[o i]                  is not written, and stays float64
    $v[a b] / 2 -> half[a b]                           (W[a b] + B[a r] A[r b]) / 2 -> half[a b]

The indices of the definition get the names of its use. An index that is summed over in it gets a new
name, if the rule that uses it has one of its name.
"""

from collections.abc import Mapping, Sequence

from shardvar.errors import MapError
from shardvar.maps.expressions import TermTree, bound_names, is_constant, operator_of, replaced
from shardvar.maps.language import (
    AxisNames,
    KeyPart,
    KeyPattern,
    MapRule,
    NumberPart,
    Side,
    anchor_of,
)
from shardvar.records import replace


def put_in(rules: Sequence[MapRule]) -> list[MapRule]:
    """Return rules where each ``$`` is the expression of its rule."""
    hidden = {number: rule for number, rule in enumerate(rules) if rule.is_hidden}
    used, found = set[int](), list[MapRule]()
    for number, rule in enumerate(rules):
        within = (number,) if rule.is_hidden else ()
        try:
            found.append(rule if rule.tree is None else _expand(rule, hidden, within, used))
        except MapError as error:
            raise MapError(
                f"Rule {number + 1}, {rule.text!r}: {error.cause}", error.remedy
            ) from None
    for number in hidden.keys() - used:
        cause = f"Rule {number + 1}, {rules[number].text!r}: its target is used by no rule."
        raise MapError(cause, "Use it, or write its name without '$'.")
    return found


def _expand(
    rule: MapRule, hidden: Mapping[int, MapRule], within: tuple[int, ...], used: set[int]
) -> MapRule:
    tensors, origins, names = list[Side](), list[int | None](), set(rule.names())

    def change(tree: TermTree) -> TermTree:
        if operator_of(tree) != "tensor":
            return tree
        side = rule.tensors[tree[1]]
        if not side.key.text.startswith("$"):
            tensors.append(side)
            origins.append(rule.origins[tree[1]])
            return ("tensor", len(tensors) - 1)
        number, new = _definition(side, hidden)
        used.add(number)
        if number in within:
            some = {hidden[n].text.split(" -> ")[-1] for n in within}
            cause = f"{' and '.join(sorted(some))} depend on each other."
            raise MapError(cause, "Compute one of them otherwise.")
        inner = _expand(hidden[number], hidden, (*within, number), used)
        for name in (*inner.summed(), *bound_names(inner.tree)):
            fresh = name
            while name not in new and fresh in names:
                fresh += "_"
            new.setdefault(name, fresh)
        first = len(tensors)
        tensors.extend(_renamed_side(each, new) for each in inner.tensors)
        origins.extend(number if each is None else each for each in inner.origins)

        def rename(part: TermTree) -> TermTree:
            if operator_of(part) == "tensor":
                return ("tensor", first + part[1])
            return new.get(part, part) if isinstance(part, str) else part

        put = replaced(inner.tree, rename)
        return ("float", put) if is_constant(put) else put

    tree = replaced(rule.tree, change)
    if tree == rule.tree and tuple(tensors) == rule.tensors:
        return rule
    anchor = anchor_of(tensors, rule.target)
    return replace(rule, tree=tree, tensors=tuple(tensors), origins=tuple(origins), source=anchor)


def _definition(side: Side, hidden: Mapping[int, MapRule]) -> tuple[int, dict[str, str]]:
    """The rule that computes a ``$``, and its names with their names in a rule that uses it."""
    for number, rule in hidden.items():
        target = rule.target
        if target is None or len(target.key.parts) != len(side.key.parts):
            continue
        new = dict[str, str]()
        pairs = list(zip(target.key.parts, side.key.parts, strict=True))
        for part, own in pairs:
            if isinstance(part, str) or isinstance(own, str):
                if part != own:
                    break
            else:
                new |= dict(zip(_names_of_part(part), _names_of_part(own), strict=False))
        else:
            if [*map(len, target.axes)] == [*map(len, side.axes)] and not side.ranges:
                for of_target, of_side in zip(target.axes, side.axes, strict=True):
                    new |= dict(zip(of_target, of_side, strict=True))
                return number, new
    remedy = "Its rule has a target of this name, with as many axes."
    raise MapError(f"{side.text!r} is computed by no rule.", remedy)


def _names_of_part(part: KeyPart) -> AxisNames:
    if isinstance(part, NumberPart):
        return part.axis
    return () if isinstance(part, str) else (part.name,)


def _renamed_side(side: Side, new: Mapping[str, str]) -> Side:
    def axis(names: AxisNames) -> AxisNames:
        return tuple(new.get(name, name) for name in names)

    parts: list[KeyPart] = [
        part
        if isinstance(part, str)
        else replace(part, axis=axis(part.axis))
        if isinstance(part, NumberPart)
        else replace(part, name=new.get(part.name, part.name))
        for part in side.key.parts
    ]
    ranges = {new.get(name, name): each for name, each in side.ranges.items()}
    key = KeyPattern(side.key.text, tuple(parts))
    return Side(side.text, key, tuple(map(axis, side.axes)), ranges)
