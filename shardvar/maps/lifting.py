"""Lift a map over a training state: master weights, moments and averages have the map's keys too.

    optimizer.state.{key}.exp_avg = moment      ``{key}`` stands for a key of the map
    ema.{key}                     = value

Each part is fitted by itself, and the plans are joined. A first moment of ``w * c`` is divided by
``c`` and a second one by ``c**2``, so moments have neither factors nor functions.

Put what a rule with a ``$`` target computes into the rules that use it.

    W[o i] + B[o r] A[r i] -> $v[o i]                  is not written, and stays float64
    $v[a b] / 2 -> half[a b]                           (W[a b] + B[a r] A[r b]) / 2 -> half[a b]

The indices of the definition get the names of its use. An index that is summed over in it gets a new
name, if the rule that uses it has one of its name.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from shardvar.errors import MapError
from shardvar.maps.expressions import TermTree, bound_names, is_constant, operator_of, replaced
from shardvar.maps.fitting import Fit
from shardvar.maps.language import (
    AxisNames,
    KeyPart,
    KeyPattern,
    MapRule,
    NumberPart,
    Side,
    anchor_of,
    names_of_part,
)
from shardvar.maps.plan import MapPlan, Piece, Target, View
from shardvar.maps.proof import Problem, TensorFacts
from shardvar.records import frozen, replace


def put_in(rules: Sequence[MapRule]) -> list[MapRule]:
    """Return rules where each ``$`` is the expression of its rule."""
    hidden = {number: rule for number, rule in enumerate(rules) if rule.is_hidden}
    used, found = set[int](), list[MapRule]()
    for number, rule in enumerate(rules):
        within = (number,) if rule.is_hidden else ()
        try:
            found.append(rule if rule.tree is None else _expand(rule, hidden, within, used))
        except MapError as error:
            raise error.at(f"Rule {number + 1}, {rule.text!r}") from None
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
                new |= dict(zip(names_of_part(part), names_of_part(own), strict=False))
        else:
            if [*map(len, target.axes)] == [*map(len, side.axes)] and not side.ranges:
                for of_target, of_side in zip(target.axes, side.axes, strict=True):
                    new |= dict(zip(of_target, of_side, strict=True))
                return number, new
    remedy = "Its rule has a target of this name, with as many axes."
    raise MapError(f"{side.text!r} is computed by no rule.", remedy)


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


_KINDS = ("value", "moment")
_KEY = "{key}"
_RANK = re.compile(r"((?:[0-9]+/)?)(.*)", re.DOTALL)


@frozen
class Lift:
    pattern: str
    kind: str = "value"
    """Of a ``value``, all rules are used; of a ``moment``, the rules that move."""

    def __post_init__(self) -> None:
        if self.pattern.count(_KEY) != 1 or self.kind not in _KINDS:
            cause = f"{self.pattern!r} = {self.kind!r} is not a lift."
            remedy = "Write {key} once, and value or moment: 'optimizer.{key}.exp_avg=moment'."
            raise MapError(cause, remedy)

    def inner(self, key: str) -> str | None:
        before, after = map(re.escape, self.pattern.split(_KEY))
        found = re.fullmatch(f"((?:[0-9]+/)?){before}(.+){after}", key, re.DOTALL)
        return found and found[1] + found[2]

    def outer(self, key: str) -> str:
        found = _RANK.fullmatch(key)
        return found[1] + self.pattern.replace(_KEY, found[2]) if found else key


_PLAIN = Lift(_KEY)
_Scalar = tuple[Lift, str, str]
"""The lift, the key of its tensor in the map, and its own key."""


def fit_lifted(
    rules: Sequence[MapRule],
    lifts: Mapping[str, str],
    tensors: Mapping[str, TensorFacts],
    objects: Collection[str],
    fit: Callable[[Sequence[MapRule], Mapping[str, str], Mapping[str, TensorFacts]], Fit],
) -> Fit:
    order = [*(Lift(*each) for each in lifts.items()), _PLAIN]
    parts: dict[Lift, dict[str, str]] = {lift: {} for lift in order}
    for key in (*tensors, *objects):
        found = ((lift, lift.inner(key)) for lift in order)
        lift, inner = next((lift, inner) for lift, inner in found if inner is not None)
        parts[lift][inner] = key

    def is_scalar(key: str) -> bool:
        return key not in tensors or not tensors[key][1]

    whole = {inner for keys in parts.values() for inner, key in keys.items() if not is_scalar(key)}
    scalars: list[_Scalar] = [
        (lift, inner, key)
        for lift, keys in parts.items()
        for inner, key in keys.items()
        if inner in whole and is_scalar(key)
    ]
    for lift, inner, _ in scalars:
        del parts[lift][inner]
    fits, goals = list[tuple[Lift, dict[str, str], Fit]](), dict[str, dict[str, int]]()
    for lift, keys in parts.items():
        if keys or (lift is _PLAIN and not fits):
            own = rules if lift.kind == "value" else [*map(_of_moment, rules)]
            some = {inner: tensors[key] for inner, key in keys.items() if key in tensors}
            each = fit(own, keys, some)
            for inner, name, number in _moves(each.plan):
                goals.setdefault(inner, {})[name] = number
            fits.append((lift, keys, each))
    joined = _joined(fits, tensors)
    lifted = {inner for lift, keys in parts.items() if lift is not _PLAIN for inner in keys}
    missed = _missed([key for key in parts[_PLAIN] if key not in lifted], goals)
    return _with_scalars(replace(joined, problems=(*joined.problems, *missed)), scalars, goals)


def _of_moment(rule: MapRule) -> MapRule:
    tree: TermTree = rule.tree
    if operator_of(tree) == "+":
        taken = [part for part in tree[1] if not is_constant(part[1])]
        tree = ("tensor", 0) if taken == [(1, ("tensor", 0))] else tree
    if tree is not None and tree != ("tensor", 0):
        cause = f"The rule {rule.text!r} computes, and moments do not follow it."
        raise MapError(cause, "Give the moments a map of their own, or leave them out.")
    if tree is not None and not rule.dtype:
        rule, tree = replace(rule, tensors=(), origins=()), None
    return replace(rule, tree=tree, fill=rule.fill and "0")


def _moves(plan: MapPlan) -> Iterator[tuple[str, str, int]]:
    for target in plan.targets:
        for each in target.pieces:
            for key in each.keys:
                yield key, target.key, each.rule
    for key, name in plan.names.items():
        yield key, name, plan.rules[key]
    for key, number in plan.left_out.items():
        yield key, "", number


def _missed(keys: Sequence[str], goals: Mapping[str, Mapping[str, int]]) -> Iterator[Problem]:
    for key in keys:
        words = key.split(".")
        for start in range(len(words)) if {*goals.get(key, ())} == {key} else ():
            for stop in range(start + 1, len(words) + 1):
                inner = ".".join(words[start:stop])
                if inner != key and not {*goals.get(inner, {inner: 0})} <= {inner, ""}:
                    pattern = ".".join([*words[:start], _KEY, *words[stop:]])
                    cause = f"{key!r} would keep its name, and {inner!r} gets another."
                    python = f"in Python Map.extended(lift={{{pattern!r}: 'moment'}})"
                    yield Problem(cause, f"Add --lift '{pattern}=moment', {python}.")
                    return


def _joined(
    fits: Sequence[tuple[Lift, Mapping[str, str], Fit]], tensors: Mapping[str, TensorFacts]
) -> Fit:
    """Join the plans of lifts, whose keys of the map stand for the keys of a state."""
    targets, left_out, names = list[Target](), dict[str, int](), dict[str, str]()
    rules, renamed, problems = dict[str, int](), dict[str, str](), list[Problem]()
    for lift, keys, fit in fits:
        plan = fit.plan
        targets += [_lifted(each, lift, keys) for each in plan.targets]
        left_out |= {keys[key]: number for key, number in plan.left_out.items()}
        rules |= {keys[key]: number for key, number in plan.rules.items()}
        names |= {keys[key]: lift.outer(name) for key, name in plan.names.items()}
        renamed |= {keys[key]: lift.outer(name) for key, name in fit.renamed.items()}
        of = "" if lift is _PLAIN else f"Of {lift.pattern!r}: "
        problems += [replace(each, cause=of + each.cause) for each in fit.problems]
    matches = tuple(map(sum, zip(*(fit.matches for _, _, fit in fits), strict=True)))
    plan = MapPlan(targets, left_out, names, rules, tensors)
    return Fit(plan, tuple(problems), matches, renamed)


def _lifted(target: Target, lift: Lift, keys: Mapping[str, str]) -> Target:
    def source(view: View) -> View:
        return replace(view, key=keys.get(view.key, view.key))

    def piece(each: Piece) -> Piece:
        values = each.arithmetic
        if values is not None:
            values = replace(values, views=tuple(map(source, values.views)))
        filled = replace(each.target, key=lift.outer(each.target.key))
        return replace(each, source=source(each.source), target=filled, arithmetic=values)

    return replace(target, key=lift.outer(target.key), pieces=tuple(map(piece, target.pieces)))


def _with_scalars(
    fit: Fit, scalars: Sequence[_Scalar], goals: Mapping[str, Mapping[str, int]]
) -> Fit:
    plan, copies, first = fit.plan, dict[str, str](), dict[str, str]()
    targets, left_out, renamed = [*plan.targets], {**plan.left_out}, {**fit.renamed}
    problems = [*fit.problems]
    for lift, inner, key in scalars:
        for name, number in goals.get(inner, {}).items():
            goal = lift.outer(name)
            if not name:
                left_out[key] = number
            elif key not in plan.tensors:
                if goal in first or key in renamed:
                    cause = f"{key!r} is an object, which cannot be copied or compared."
                    problems.append(Problem(cause, "Leave it out with --exclude."))
                renamed[key] = first[goal] = goal
            elif goal in first:
                copies[key], left_out[key] = first[goal], number
            else:
                first[goal] = key
                copied = Piece(number, (), View(key, (), ()), View(goal, (), ()))
                targets.append(Target(goal, plan.tensors[key][0], (), (copied,)))
    plan = replace(plan, targets=targets, left_out=left_out)
    return replace(fit, plan=plan, problems=tuple(problems), renamed=renamed, copies=copies)
