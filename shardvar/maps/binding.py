"""The tensors that a rule computes with: which there are, their extents, and the plan of a piece.

A rule that computes stands for every choice of numbers, words and texts in keys for which all its
tensors are there, and are floats:

    match      a key of one tensor, which has all these parts
    bind       the keys of the others; for each value of an index that is summed over, if it is in a
               key; the extents of all indices
    compile    the expression with these tensors: numbers become one number a product, and a sum over
               an index of a key becomes the sum of its terms
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

from shardvar.errors import MapError
from shardvar.maps.expressions import (
    SizeOf,
    TermTree,
    bound_names,
    float_of,
    is_constant,
    number_of,
    operator_of,
    subtrees,
)
from shardvar.maps.language import MapRule, WordPart, names_of_part
from shardvar.maps.matching import (
    Match,
    MatchTable,
    find_matches,
    match_keys,
    nearest_key,
    write_keys,
)
from shardvar.maps.plan import Arithmetic, Piece, View
from shardvar.maps.proof import (
    Binding,
    Contribution,
    FittedRule,
    Problem,
    TensorAxes,
    TensorFacts,
    axes_of,
    merge,
)
from shardvar.pictures.words import human_shape
from shardvar.records import replace

_MOST_TERMS = 1 << 16
"""Tensors of one rule and target."""


def numbers_of_others(fitted: FittedRule, tensors: Mapping[str, TensorFacts]) -> dict[str, int]:
    """Return the extents of indices of the target in keys of tensors, and not in the source's key."""
    rule, numbers = fitted.rule, dict[str, int]()
    of_source, summed = {*rule.source.key.indices()}, rule.summed()
    for side, own in zip(rule.tensors, fitted.tensors, strict=True):
        names = side.free().intersection(side.key.indices()) - of_source - summed
        if names:
            hits = [(key, found[0][1]) for key, found in match_keys([side.key], tensors) if found]
            matches = find_matches(own, hits)
            for name in names:
                last = max(matches.indices.get(name, ()), default=-1)
                numbers[name] = max(numbers.get(name, 0), last + 1)
    if prod(numbers.values()) > _MOST_TERMS:
        raise MapError(f"{rule.text!r} stands for too many tensors.", "Write it in steps.")
    return numbers


def bind(
    fitted: FittedRule,
    match: Match,
    numbers: Mapping[str, int],
    tensors: Mapping[str, TensorFacts],
) -> Binding | None:
    """Return the tensors of a rule for a key of its source; None if one is not there, or not a float."""
    rule, summed = fitted.rule, fitted.rule.summed()
    keys, in_keys = dict[tuple[int, ...], str](), []
    for place, side in enumerate(rule.tensors):
        names = tuple(name for name in side.key.indices() if name in summed and name in side.free())
        in_keys.append(names)
        if prod(numbers.get(name, 1) for name in names) > _MOST_TERMS:
            raise MapError(f"{side.text!r} stands for too many tensors.", "Sum them in steps.")
        choices = [*product(*(range(numbers.get(name, 1)) for name in names))]
        indices = [{**match.indices, **dict(zip(names, each, strict=True))} for each in choices]
        rows = MatchTable.of([replace(match, indices=each) for each in indices])
        written = write_keys(fitted.tensors[place], rows, numbers)
        if any(key not in tensors or "float" not in tensors[key][0] for key in written):
            return None
        keys |= {(place, *each): key for each, key in zip(choices, written, strict=True)}
    return Binding(tuple(in_keys), keys, *_extents(fitted, keys, {**numbers}, tensors))


def _extents(
    fitted: FittedRule,
    keys: Mapping[tuple[int, ...], str],
    known: dict[str, int],
    tensors: Mapping[str, TensorFacts],
) -> tuple[tuple[TensorAxes, ...], dict[str, int]]:
    """The axes of the tensors, and the extents of all indices, which one tensor gives to another."""
    rule, found = fitted.rule, dict[int, TensorAxes]()
    owners: dict[str, str] = {}
    first = {place: key for (place, *_), key in reversed([*keys.items()])}
    left = sorted(first, key=lambda place: (rule.tensors[place] is not rule.source, place))
    while left:
        problem, before = None, len(left)
        for place in [*left]:
            side, key = rule.tensors[place], first[place]
            shape = tensors[key][1]
            here = f"{key!r} of {human_shape(shape)}"
            for axis, extent in zip(side.axes, shape, strict=False):
                name = axis[0] if len(axis) == 1 and len(side.axes) == len(shape) else ""
                if name in owners and name not in side.ranges and known[name] != extent:
                    raise _unlike(name, known[name], owners[name], extent, here)

            may_cut = side is rule.source and not rule.summed()
            try:
                fitted_side = fitted.tensors[place]
                placed, selected = axes_of(fitted_side, shape, key, known, may_cut=may_cut)
            except MapError as error:
                problem = problem or error
                continue
            left.remove(place)
            found[place] = placed
            for name, extent in selected.items():
                if known.setdefault(name, extent) != extent:
                    raise _unlike(name, known[name], owners.get(name, "keys"), extent, here)
                owners.setdefault(name, here)
        if problem is not None and len(left) == before:
            raise problem
    for (place, *_), key in keys.items():
        shape, other = tensors[key][1], tensors[first[place]][1]
        if shape != other:
            cause = (
                f"{first[place]!r} is of {human_shape(other)}, and {key!r} of {human_shape(shape)}."
            )
            raise MapError(cause, "Tensors that are summed have one shape.")
    return tuple(found[place] for place in range(len(rule.tensors))), known


def target_dtype(rule: MapRule, binding: Binding, tensors: Mapping[str, TensorFacts]) -> str:
    """Return the dtype of the target: ``as``, or the first tensor in the text, gives it."""
    if rule.dtype:
        return rule.dtype
    kinds = {
        tensors[key][0]: key for (place, *_), key in reversed([*binding.keys.items()]) if not place
    }
    if len(kinds) > 1:
        some = " and ".join(f"{key!r} is {kind}" for kind, key in [*kinds.items()][:2])
        raise MapError(
            f"The sources differ in dtype: {some}.", "Write 'as float32' after the target."
        )
    return next(iter(kinds))


def computed_piece(contribution: Contribution, target: TensorAxes) -> Piece:
    rule, binding = contribution.fitted.rule, contribution.binding
    if binding is None:
        raise TypeError("A rule that moves bits computes nothing.")
    free, extents = contribution.free(), contribution.selected
    unrolled = {name for names in binding.in_keys for name in names}
    in_axes = {name for placed in binding.axes for axis in placed.axes for name in axis}
    summed = [name for name in dict.fromkeys(bound_names(rule.tree)) if name not in unrolled]
    bound = [name for name in summed if name in in_axes]
    compiler = _Compiler(contribution, binding, [*bound, *free])
    tree = compiler.compiled(rule.tree, {})
    into = target.view(contribution.target, contribution.fixed, free)
    views = [View(v.key, v.start, v.steps[len(bound) :]) for v in compiler.views]
    shape, (filled, *merged) = merge([extents[name] for name in free], [into, *views])
    whole = tuple(
        View(view.key, view.start, (*old.steps[: len(bound)], *view.steps))
        for old, view in zip(compiler.views, merged, strict=True)
    )
    nothing = View("", (), ((-1, 0),) * len(shape))
    source = next((view for view in merged if view.key), nothing)
    arithmetic = Arithmetic(tree, whole, tuple(extents[name] for name in bound))
    return Piece(contribution.number, shape, source, filled, arithmetic)


class _Compiler:
    def __init__(self, contribution: Contribution, binding: Binding, names: Sequence[str]) -> None:
        self.contribution, self.binding, self.names = contribution, binding, names
        self.views = list[View]()
        self.rule = contribution.fitted.rule
        self.starts = contribution.fitted.target.starts()
        self.fixed = {n: self.starts.get(n, 0) + value for n, value in contribution.fixed.items()}

    def size_of(self, name: str) -> Any:
        extents = self.contribution.selected
        try:
            return self.contribution.fitted.target.size_of(name)
        except MapError as error:
            if name in extents:
                return extents[name]
            if error.cause.endswith("is not given.") and f" {name} " in error.cause:
                cause = f"{name} has no brackets, so it is a size, and it is not given."
                remedy = f"For a tensor, write {name}[...]. For a size: --size {name}=N."
                raise MapError(cause, remedy) from None
            raise

    def view(self, view: View) -> TermTree:
        if view not in self.views:
            self.views.append(view)
        return ("leaf", self.views.index(view))

    def compiled(self, tree: TermTree, at: Mapping[str, int]) -> TermTree:
        """Return a tree where indices ``at`` have a value."""
        if is_constant(tree):
            value = self.number(tree, at)
            return ("number", float(value)) if isinstance(value, Fraction) else value
        word, *parts = tree
        if word == "float":
            return self.compiled(parts[0], at)
        if word == "tensor":
            place = parts[0]
            values = (at[name] for name in self.binding.in_keys[place])
            fixed = {**self.contribution.fixed, **at}
            key = self.binding.keys[place, *values]
            return self.view(self.binding.axes[place].view(key, fixed, self.names))
        if word == "+":
            return (word, tuple((sign, self.compiled(part, at)) for sign, part in parts[0]))
        if word == "*":
            return self.product(parts[0], parts[1], at)
        if word in ("sum", "mean"):
            name, inner = parts
            count = self.contribution.selected[name]
            if name in self.names:
                return (word, self.names.index(name), self.compiled(inner, at), count)
            terms = tuple((1, self.compiled(inner, {**at, name: k})) for k in range(count))
            total = ("+", terms)
            return ("*", (((1, total),),), (), ("/", float(count))) if word == "mean" else total
        if word == "**":
            return (word, self.compiled(parts[0], at), self.exponent(parts[1], at))
        return (word, *(self.compiled(part, at) for part in parts))

    def product(
        self, factors: Sequence[tuple[int, TermTree]], summed: Sequence[str], at: Mapping[str, int]
    ) -> TermTree:
        numbers = tuple(each for each in factors if is_constant(each[1]))
        others = [each for each in factors if not is_constant(each[1])]
        keyed = [name for name in summed if name not in self.names]
        extents = self.contribution.selected
        terms = []
        for values in product(*(range(extents[name]) for name in keyed)):
            here = {**at, **dict(zip(keyed, values, strict=True))}
            terms.append(tuple((sign, self.compiled(part, here)) for sign, part in others))
        bound = tuple(self.names.index(name) for name in summed if name in self.names)
        number = self.number(("*", numbers, ()), at) if numbers else Fraction(1)
        if isinstance(number, Fraction):
            number = by_one_number(number)
        return ("*", tuple(terms), bound, number)

    def number(self, tree: TermTree, at: Mapping[str, int]) -> Any:
        """The value of a tree without tensors; a table, if it depends on an index of the piece."""
        here = {**self.fixed, **at}
        if set(_indices(tree)) <= here.keys():
            return float_of(tree, self.size_of, here)

        def resolved(part: TermTree) -> TermTree:
            if set(_indices(part)) <= here.keys():
                return number_of(part, self.size_of, here)
            word = part[0]
            if word == "index":
                return (word, self.place(part[1]))
            if word == "item":
                return (word, tuple(self.size_of(part[1])), self.place(part[2]))
            if word in "+*":
                return (word, tuple((sign, resolved(each)) for sign, each in part[1]))
            return (word, *map(resolved, part[1:]))

        return ("table", resolved(tree))

    def place(self, name: str) -> int:
        """The view of the numbers of an index."""
        extents = self.contribution.selected
        axes = TensorAxes(((name,),), {name: extents[name]}, self.starts)
        return int(self.view(axes.view("", self.contribution.fixed, self.names))[1])

    def exponent(self, tree: TermTree, at: Mapping[str, int]) -> float:
        value = self.number(tree, at) if is_constant(tree) else None
        if value == Fraction(1, 2):
            return 0.5
        if isinstance(value, Fraction) and value.denominator == 1 and abs(value) <= 8:
            return int(value)
        remedy = "Write an integer from -8 to 8, or 0.5; or exp and log."
        raise MapError("This power of a tensor is not computed.", remedy)


def by_one_number(value: Fraction) -> tuple[str, float] | None:
    """Return the operation of a product with its number: none for 1, a division by an integer if it is
    1 over one, else a multiplication."""
    if value == 1:
        return None
    is_part = value.numerator == 1
    return ("/", float(value.denominator)) if is_part else ("*", float(value))


def _indices(tree: TermTree) -> list[str]:
    """The indices on whose values a tree of numbers depends."""
    if operator_of(tree) in ("index", "item"):
        return [tree[-1]]
    found = [name for part in subtrees(tree) for name in _indices(part)]
    if operator_of(tree) in ("sum", "mean"):
        found = [name for name in found if name != tree[1]]
    return found


def _unlike(name: str, known: int, there: str, extent: int, here: str) -> MapError:
    cause = f"{name} is {known} in {there} and {extent} in {here}."
    return MapError(cause, "One index has one extent.")


def why_unused(
    key: str, rules: Sequence[MapRule], tensors: Mapping[str, TensorFacts], size_of: SizeOf
) -> Problem | None:
    """Return why a rule that computes leaves a key out, if one has its name."""
    for number, rule in enumerate(rules):
        where = f"rule {number + 1} {rule.text!r}"
        for partner in _partners(key, rule, size_of):
            if partner not in tensors:
                near = nearest_key(partner, tensors)
                nearest = f"; the nearest is {near!r}" if near else ""
                return Problem(
                    f"{key!r} is used by no rule; {where} would use it with {partner!r}, "
                    f"which is not there{nearest}.",
                    "Strip or add a prefix, map the names first, or correct the rule.",
                )
            if "float" not in (dtype := tensors[partner][0]):
                return Problem(
                    f"{key!r} is used by no rule: {partner!r} is of dtype {dtype}, and "
                    f"{where} computes.",
                    f"Write a rule that moves it: {key} -> NAME, or {key} -> nothing.",
                )
    return None


def _partners(key: str, rule: MapRule, size_of: SizeOf) -> Iterator[str]:
    """Yield the keys that a rule would use with a key: itself first, as one of the rule's tensors."""
    summed = rule.summed()
    for side in rule.tensors:
        ((_, hits),) = match_keys([side.key], [key])
        named = {
            names_of_part(part): part.words.index(text) if isinstance(part, WordPart) else text
            for _, texts in hits
            for part, text in zip(side.key.named_parts(), texts, strict=True)
        }
        for other in (side, *rule.tensors) if hits else ():
            choices = list[list[str]]()
            for part in other.key.parts:
                names = names_of_part(part)
                count = _count(names[0], size_of) if names and summed.issuperset(names) else 1
                values = range(count) if count > 1 else [named[names]] if names in named else []
                words = part.words if isinstance(part, WordPart) else ()
                written = [str(each) for each in values]
                if words:
                    written = [words[n] for n in map(int, values) if n < len(words)]
                choices.append([part] if isinstance(part, str) else written)
            yield from map("".join, product(*choices))


def _count(name: str, size_of: SizeOf) -> int:
    """The number of values of an index that is summed over, if a size gives it; else 1."""
    try:
        return int(size_of(name))
    except (MapError, TypeError):
        return 1
