"""Random maps, and what they mean element by element: an oracle that reads no text and knows no
strides, and that also judges maps which are wrong."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any

import numpy as np
from hypothesis import strategies as st

Arrays = dict[str, np.ndarray[Any, Any]]
ODD = ["a", "model.layers", "it's", 'say "x"', "odd [k]", "{l}", "w`", "é", "x y", "0", "a->b", "@"]
WORDS = ["q", "qk", "k_proj", "V", "gate", "up-1", "x.y", "0", "10", "o@", "ab", "abc"]


@dataclass(frozen=True)
class Part:
    """A part of a key: the number that some indices make, plus a shift; or the word of one."""

    names: tuple[str, ...]
    shift: int = 0
    words: tuple[str, ...] = ()

    def text(self) -> str:
        if self.words:
            return f"{{{self.names[0]}:{'|'.join(self.words)}}}"
        inside = self.names[0] if len(self.names) == 1 else f"({' '.join(self.names)})"
        return f"{{{inside}{f'+{self.shift}' if self.shift else ''}}}"


@dataclass(frozen=True)
class Shape:
    """One side: the beginning of the key, its parts, its axes, ranges and full extents."""

    prefix: str
    parts: tuple[Part, ...]
    axes: tuple[tuple[str, ...], ...]
    full: Mapping[str, int]
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    single: str | None = None
    """An index that is fixed by one value, which the other side does not have."""

    def in_key(self) -> list[str]:
        return [name for part in self.parts for name in part.names]

    def in_axes(self) -> list[str]:
        return [name for axis in self.axes for name in axis]

    def text(self, *, elide: bool = False) -> str:
        key = (
            "'" + self.prefix.replace("'", "''") + "'" + "".join(f".{p.text()}" for p in self.parts)
        )
        axes = [f"({' '.join(a)})" if len(a) > 1 else "".join(a) or "1" for a in self.axes]
        ranges = [
            f"{name}={low}" if name == self.single else f"{name}={low or ''}:{stop}"
            for name, (low, stop) in self.ranges.items()
        ]
        at = f" @ {', '.join(ranges)}" if ranges else ""
        return f"{key}{'' if elide else '[' + ' '.join(axes) + ']'}{at}"

    def range(self, name: str) -> tuple[int, int]:
        return self.ranges.get(name, (0, self.full[name]))

    def key(self, at: Mapping[str, int]) -> str | None:
        """The key for the indices, counted in full; None where an index has no word."""
        written = [self.prefix]
        for part in self.parts:
            number = 0
            for name in part.names:
                number = number * max(self.full[name], 1) + at[name]
            if part.words and number >= len(part.words):
                return None
            written.append(part.words[number] if part.words else str(number + part.shift))
        return ".".join(written)

    def coordinates(self, at: Mapping[str, int]) -> tuple[int, ...]:
        found = []
        for axis in self.axes:
            number = 0
            for name in axis:
                number = number * self.full[name] + at[name]
            found.append(number)
        return tuple(found)

    def shape(self) -> tuple[int, ...]:
        return tuple(int(np.prod([self.full[n] for n in axis], initial=1)) for axis in self.axes)

    def cut(self, full: np.ndarray[Any, Any], names: Sequence[str]) -> Arrays:
        """The tensors of this side of an array with an axis for each name, by einops."""
        # The wheel is tested without it.
        from einops import rearrange

        in_key, found = self.in_key(), Arrays()
        axes = [f"({' '.join(axis)})" if axis else "1" for axis in self.axes]
        moved = rearrange(np.asarray(full), f"{' '.join(names)} -> {' '.join([*in_key, *axes])}")
        for at in np.ndindex(*moved.shape[: len(in_key)]):
            key = self.key(dict(zip(in_key, at, strict=True)))
            assert key is not None
            found[key] = np.array(moved[at], order="C")
        return found


@dataclass(frozen=True)
class Line:
    source: Shape
    target: Shape | None
    is_again: bool = False
    fill: str | None = None
    elide: bool = False
    """True to leave the brackets out, where both sides have the same axes."""

    def text(self) -> str:
        target = "nothing" if self.target is None else self.target.text(elide=self.elide)
        again = "also " if self.is_again else ""
        fill = "" if self.fill is None else f" else {self.fill}"
        return f"{again}{self.source.text(elide=self.elide)} -> {target}{fill}"

    def sizes(self) -> dict[str, int]:
        """The full extents, of the side with a range if only one side has one."""
        if self.elide:
            return {}
        found = dict(self.source.full)
        if self.target is not None:
            target = self.target.full.items()
            found |= {name: size for name, size in target if name not in self.source.ranges}
        return found


class Wrong(Exception):
    """The map breaks a law."""


def meaning(lines: Sequence[Line], sources: Arrays) -> Arrays:
    """The targets, element by element; ``Wrong`` if an element is not used once or filled once."""
    firsts = {key: np.zeros(array.shape, np.int64) for key, array in sources.items()}
    uses = {key: np.zeros(array.shape, np.int64) for key, array in sources.items()}
    matched = set[str]()
    filled: dict[str, np.ndarray[Any, Any]] = {}
    made, fills = Arrays(), dict[str, set[str]]()
    for line in lines:
        for key, target, pairs in _pairs(line, sources):
            matched.add(key)
            if target is not None and line.target is not None:
                shape, dtype = line.target.shape(), sources[key].dtype
                array = made.setdefault(target, np.zeros(shape, dtype))
                if array.shape != shape or array.dtype != dtype:
                    raise Wrong(f"{target} has two shapes")
                filled.setdefault(target, np.zeros(shape, np.int64))
                fills.setdefault(target, set()).update({line.fill} - {None})
            for at, into in pairs:
                uses[key][at] += 1
                firsts[key][at] += not line.is_again
                if target is not None:
                    made[target][into] = sources[key][at]
                    filled[target][into] += 1
    for key in sources:
        if key not in matched or (firsts[key] > 1).any() or (uses[key] < 1).any():
            raise Wrong(f"{key} is not used once")
    for key, counts in filled.items():
        if (counts > 1).any() or len(fills[key]) > 1 or ((counts < 1).any() and not fills[key]):
            raise Wrong(f"{key} is not filled once")
        if fills[key]:
            made[key][counts < 1] = np.array([float(next(iter(fills[key])))]).astype(
                made[key].dtype
            )[0]
    return made


def _pairs(line: Line, sources: Arrays) -> Iterator[tuple[str, str | None, list[tuple[Any, Any]]]]:
    source, target = _with_counted(line.source, line.target), line.target
    shared = [name for name in source.full if name != source.single]
    if target is not None:
        for name in shared:
            lengths = {stop - low for low, stop in (source.range(name), target.range(name))}
            if len(lengths) > 1:
                raise Wrong(f"{name} has two lengths")
    for side in (source, target):
        for name, (low, stop) in side.ranges.items() if side else ():
            if not 0 <= low <= stop <= side.full[name]:
                raise Wrong(f"{name} is out of its range")
    for part in source.parts:
        if not part.words:
            radix = [source.full[name] for name in part.names]
            most = int(np.prod(radix))
            for number in range(most, most + 40):  # a key past the extents
                others = [p.names for p in source.parts if p is not part]
                for at in product(*(range(source.full[n]) for names in others for n in names)):
                    known = dict(zip((n for names in others for n in names), at, strict=True))
                    first, rest = part.names[0], part.names[1:]
                    for name in reversed(rest):
                        number, known[name] = divmod(number, max(source.full[name], 1))
                    known[first] = number
                    if source.key(known) in sources:
                        raise Wrong("a key has a number past the extent")
    in_key = source.in_key()
    for at in product(*(range(*source.range(name)) for name in in_key)):
        mine = dict(zip(in_key, at, strict=True))
        key = source.key(mine)
        if key is None or key not in sources:
            continue
        if sources[key].shape != source.shape():
            raise Wrong(f"{key} has another shape")
        counted = {name: value - source.range(name)[0] for name, value in mine.items()}
        unstacked = (
            [n for n in target.in_key() if n not in counted and n != target.single]
            if target
            else []
        )
        for some in product(*(range(source.range(n)[1] - source.range(n)[0]) for n in unstacked)):
            fixed = {**counted, **dict(zip(unstacked, some, strict=True))}
            name = None
            if target is not None:
                there = {n: fixed.get(n, 0) + target.range(n)[0] for n in target.in_key()}
                name = target.key(there)
                if name is None:
                    raise Wrong("a number has no word")
            yield key, name, list(_elements(source, target, fixed))


def _with_counted(source: Shape, target: Shape | None) -> Shape:
    """The source, where numbers of keys that a range of the target limits count as far as it: a key
    may be missing."""
    if target is None:
        return source
    numbers = {name for part in source.parts if not part.words for name in part.names}
    limited = {
        name: stop - low
        for name, (low, stop) in target.ranges.items()
        if name in numbers and name not in source.ranges
    }
    return replace(source, full={**source.full, **limited})


def _elements(source: Shape, target: Shape | None, fixed: Mapping[str, int]) -> Iterator[Any]:
    free = [n for n in source.in_axes() if n not in fixed]
    for values in product(*(range(source.range(n)[1] - source.range(n)[0]) for n in free)):
        index = {**fixed, **dict(zip(free, values, strict=True))}
        at = source.coordinates({n: index[n] + source.range(n)[0] for n in source.in_axes()})
        if target is None:
            yield at, None
        else:
            there = {n: index.get(n, 0) + target.range(n)[0] for n in target.in_axes()}
            yield at, target.coordinates(there)


@dataclass(frozen=True)
class Case:
    """A random map that is right, and the tensors that it takes."""

    lines: tuple[Line, ...]
    sources: Arrays
    has_inverse: bool

    def rules(self) -> list[str]:
        return [line.text() for line in self.lines]

    def sizes(self) -> dict[str, int]:
        return {name: size for line in self.lines for name, size in line.sizes().items()}


@st.composite
def shapes(draw: st.DrawFn, prefix: str, full: Mapping[str, int], *, plain: bool) -> Shape:
    """A side with some indices, in its key and in axes."""
    order = list(draw(st.permutations(list(full))))
    keyable = [name for name in order if full[name]][: draw(st.integers(0, 2))]
    parts, left = list[Part](), [name for name in order if name not in keyable]
    if len(keyable) == 2 and draw(st.booleans()):
        parts.append(Part(tuple(keyable), draw(st.sampled_from([0, 0, 1, 9]))))
    else:
        for name in keyable:
            if full[name] <= len(WORDS) and draw(st.integers(0, 3)) == 0:
                words = tuple(draw(st.permutations(WORDS)))[: full[name]]
                parts.append(Part((name,), 0, words))
            else:
                parts.append(Part((name,), draw(st.sampled_from([0, 0, 1, 9]))))
    axes: list[tuple[str, ...]] = []
    for name in left:
        if axes and draw(st.booleans()):
            axes[-1] = (*axes[-1], name)
        else:
            if draw(st.integers(0, 9)) == 0:
                axes.append(())
            axes.append((name,))
    odd = "" if plain else " " + draw(st.sampled_from(ODD))
    return Shape(f"{prefix}{odd}", tuple(parts), tuple(axes), full)


@st.composite
def _groups(
    draw: st.DrawFn, number: int, dtype: Any, *, plain: bool
) -> tuple[list[Line], Arrays, bool]:
    """The rules of some tensors, each index of which has a name of its own."""
    letters = draw(st.sampled_from(["", "a", "ab", "abc", "abcd", "abcdef"]))
    most = {0: 1, 1: 12, 2: 12, 3: 4, 4: 3, 6: 3}[len(letters)]
    least = 0 if draw(st.integers(0, 7)) == 0 else 1
    sizes = {f"{each}{number}": draw(st.integers(least, most)) for each in letters}
    array = random_array(dtype, tuple(sizes.values()), draw(st.integers(0, 99)))
    names, kind = [*sizes], draw(st.sampled_from(["move", "move", "fill", "take", "keep"]))
    whole = draw(shapes(f"w{number}", sizes, plain=plain))
    if kind == "keep":
        # Only a new name, with brackets or without.
        other = replace(whole, prefix=f"k{number}")
        bare = replace(whole, parts=(), axes=tuple((n,) for n in names))
        if draw(st.booleans()):
            return (
                [Line(bare, replace(bare, prefix=other.prefix), elide=True)],
                bare.cut(array, names),
                True,
            )
        return [Line(whole, other)], whole.cut(array, names), True
    if kind == "move" or not any(sizes.values()):
        lines = [Line(whole, draw(shapes(f"m{number}", sizes, plain=plain)))]
        sources, invertible = whole.cut(array, names), True
        if draw(st.integers(0, 3)) == 0:
            lines.append(Line(whole, draw(shapes(f"x{number}", sizes, plain=plain)), is_again=True))
            invertible = False
        return lines, sources, invertible
    # Ranges of one index of the whole, each with the tensors of another side.
    along = draw(st.sampled_from([name for name in names if sizes[name]]))
    extent = sizes[along]
    cuts = sorted({0, extent, *draw(st.lists(st.integers(0, extent), max_size=2))})
    lines, sources, invertible = list[Line](), Arrays(), True
    for row, (low, stop) in enumerate(pairwise(cuts)):
        part = {**sizes, along: stop - low}
        other = draw(shapes(f"p{number}r{row}", part, plain=plain))
        ranged = replace(whole, ranges={along: (low, stop)})
        if (
            stop - low == 1
            and draw(st.booleans())
            and not any(along in p.names for p in other.parts)
        ):
            one = {name: size for name, size in part.items() if name != along}
            axes = tuple(
                a for axis in other.axes if (a := tuple(n for n in axis if n != along)) or not axis
            )
            other = replace(other, full=one, axes=axes)
            ranged = replace(ranged, single=along)
        picked = np.take(array, range(low, stop), axis=names.index(along))
        if kind == "fill":
            dropped = row > 0 and draw(st.integers(0, 3)) == 0
            if not dropped:
                lines.append(Line(other, ranged))
                there = picked.reshape([other.full[n] for n in names if n in other.full])
                sources |= other.cut(there, [n for n in names if n in other.full])
        elif row and draw(st.integers(0, 3)) == 0:
            lines.append(Line(ranged, None))
            invertible = False
        else:
            lines.append(Line(ranged, other))
    if kind == "take":
        return lines, whole.cut(array, names), invertible
    covered = sum(
        line.target.range(along)[1] - line.target.range(along)[0] for line in lines if line.target
    )
    if covered < extent:
        lines = [replace(line, fill="1") for line in lines]
        invertible = False
    return lines, sources, invertible


def random_array(dtype: Any, shape: Sequence[int], seed: int) -> np.ndarray[Any, Any]:
    """Any bits that a dtype has: NaNs with payloads, both zeros, infinities."""
    rng, kind = np.random.default_rng(seed), np.dtype(dtype)
    count = int(np.prod(shape))
    if kind.name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.name.startswith(("int", "uint")) and kind.itemsize == 1 and kind.name[-1] in "24":
        low = -1 if kind.name.startswith("int") else 0
        return rng.integers(low, 2, shape).astype(np.int8).astype(kind)
    bits = {"float4": 16, "float6": 64}.get(kind.name[:6], 256)
    return rng.integers(0, bits, count * kind.itemsize, np.uint8).view(kind).reshape(shape)


@st.composite
def cases(draw: st.DrawFn, dtype: Any, *, plain: bool) -> Case:
    """One to three groups; ``plain`` for keys without odd characters."""
    lines, sources, invertible = list[Line](), Arrays(), True
    for number in range(draw(st.integers(1, 3))):
        more, arrays, is_invertible = draw(_groups(number, dtype, plain=plain))
        lines += more
        sources |= arrays
        invertible &= is_invertible
    order = draw(st.permutations(list(sources)))
    return Case(tuple(lines), {key: sources[key] for key in order}, invertible)


@st.composite
def mutations(draw: st.DrawFn, case: Case) -> tuple[Line, ...]:
    """The rules with one of them removed, a range moved, or indices exchanged."""
    lines = list(case.lines)
    row = draw(st.integers(0, len(lines) - 1))
    line, what = lines[row], draw(st.sampled_from(["remove", "range", "swap", "again", "shift"]))
    is_target = line.target is not None and draw(st.booleans())
    side = line.target if is_target and line.target else line.source
    if what == "range" and side.ranges:
        (name, (low, stop)), *_ = side.ranges.items()
        step = draw(st.sampled_from([-1, 1]))
        if name == side.single:
            moved = (low + step, stop + step)
        else:
            moved = draw(
                st.sampled_from([(low + step, stop), (low, stop + step), (low + step, stop + step)])
            )
        if moved[0] < 0:
            moved = (0, moved[1] + 1)
        changed = replace(side, ranges={name: moved})
    elif what == "swap" and len(side.full) > 1 and not line.elide:
        a, b = draw(st.permutations(list(side.full)))[:2]
        swap = {a: b, b: a}
        changed = replace(
            side,
            parts=tuple(
                part
                if part.words
                else replace(part, names=tuple(swap.get(n, n) for n in part.names))
                for part in side.parts
            ),
            axes=tuple(tuple(swap.get(n, n) for n in axis) for axis in side.axes),
        )
        if sorted([*changed.in_key(), *changed.in_axes()]) != sorted(side.full):
            return tuple(lines)
    elif what == "shift" and side.parts and not side.parts[0].words:
        changed = replace(
            side, parts=(replace(side.parts[0], shift=side.parts[0].shift + 1), *side.parts[1:])
        )
    elif what == "again" and line.target is not None:
        lines[row] = replace(line, is_again=not line.is_again)
        return tuple(lines)
    else:
        return tuple(each for at, each in enumerate(lines) if at != row)
    lines[row] = (
        replace(line, target=changed) if side is line.target else replace(line, source=changed)
    )
    return tuple(lines)
