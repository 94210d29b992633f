"""Lift a map over a training state: master weights, moments and averages have the map's keys too.

    optimizer.state.{key}.exp_avg = moment      ``{key}`` stands for a key of the map
    ema.{key}                     = value

Each part is fitted by itself, and the plans are joined. A first moment of ``w * c`` is divided by
``c`` and a second one by ``c**2``, so moments have neither factors nor functions.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from shardvar.errors import MapError
from shardvar.maps.expressions import TermTree, is_constant, operator_of
from shardvar.maps.fitting import Fit
from shardvar.maps.language import MapRule
from shardvar.maps.plan import MapPlan, Piece, Target, View
from shardvar.maps.proof import Problem, TensorFacts
from shardvar.records import frozen, replace

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
