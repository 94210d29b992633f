"""Random maps with what rules have besides places: arithmetic, ``...``, texts in keys, and ranks.

Each draws an array with an axis for each index, and cuts it into the tensors of both sides with
transposes and reshapes of NumPy: an oracle that knows only whole arrays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.layout.dtypes import numpy_dtype
from spec_tests.helpers.nearest import nearest
from spec_tests.helpers.random_maps import Arrays, Shape, random_array, shapes

Array = np.ndarray[Any, Any]
KINDS = (
    *(
        "move",
        "dots",
        "text",
        "text **",
        "times",
        "plus",
        "factor",
        "two factors",
        "factor by key",
        "factor by text",
    ),
    *(
        "factor of a range",
        "blocks",
        "cut blocks",
        "blocks of a range",
        "read ranks",
        "read copies",
        "made ranks",
    ),
    *("made copies", "one rank", "ranks to ranks", "sizes left out", "odd keys"),
)
"""What a drawn map may have."""
FLOATS = ["float16", "float32", "float64"]
_CONSTANTS = {
    "2": Fraction(2),
    "0.5": Fraction(1, 2),
    "-3": Fraction(-3),
    "1/3": Fraction(1, 3),
    "c": Fraction(2),
    "(c + 1) * 0.25": Fraction(3, 4),
}


@dataclass(frozen=True)
class Operation:
    """The rules of some tensors, and the tensors on both sides."""

    rules: tuple[str, ...]
    sizes: Mapping[str, int | str]
    sources: Arrays
    targets: Arrays
    kinds: frozenset[str]
    """What it has, of ``KINDS``."""
    has_inverse: bool = False
    """True if the map has an inverse that needs no other sizes."""
    reads: int | None = None
    """The number of sources; None for one whose keys have no number before them."""
    makes: int | None = None
    """The number of targets; None for one."""


@dataclass(frozen=True)
class End:
    """One side: where its number of a checkpoint and its text are, and its other indices."""

    shape: Shape
    rank: str | None = None
    """The index before the key."""
    text: str = ""
    """The part of the key that is any text, such as ``{x:*}``."""
    hidden: tuple[str, ...] | None = None
    """The indices that ``...`` stands for, which follow each other; None without it."""
    at: int = 0
    """The place of ``...`` among the axes."""

    def written(self) -> str:
        shape = self.shape
        if self.hidden is not None:
            axes = [*shape.axes[: self.at], ("...",), *shape.axes[self.at + len(self.hidden) :]]
            shape = replace(shape, axes=tuple(axes))
        text = shape.text()
        if self.text:
            quoted = "'" + shape.prefix.replace("'", "''") + "'"
            text = text.replace(quoted, f"{quoted}.{self.text}", 1)
        return text if self.rank is None else f"{{{self.rank}}}/{text}"

    def tensors(self, full: Array, names: Sequence[str], text: str = "") -> Arrays:
        shape = self.shape
        if self.text:
            shape = replace(shape, prefix=f"{shape.prefix}.{text}")
        sizes = dict(zip(names, full.shape, strict=True))
        shape = replace(shape, full={name: sizes[name] for name in shape.full})
        if self.rank is None:
            return shape.cut(full, names)
        axis = names.index(self.rank)
        others = [name for name in names if name != self.rank]
        return {
            f"{number}/{key}": array
            for number in range(sizes[self.rank])
            for key, array in shape.cut(full.take(number, axis), others).items()
        }


@st.composite
def _ends(
    draw: st.DrawFn,
    prefix: str,
    full: Mapping[str, int],
    rank: str | int | None,
    hidden: Sequence[str] | None = None,
    *,
    plain: bool,
    text: str = "",
) -> End:
    """A side of some indices; ``rank`` is one before the key, or a number that stands there."""
    if isinstance(rank, int):
        prefix = f"{rank}/{prefix}"
    inside = {name: size for name, size in full.items() if name != rank}
    shown = {name: size for name, size in inside.items() if name not in (hidden or ())}
    shape = draw(shapes(prefix, shown, plain=plain))
    index = rank if isinstance(rank, str) else None
    if hidden is None:
        return End(shape, index, text)
    at = draw(st.integers(0, len(shape.axes)))
    axes = (*shape.axes[:at], *((name,) for name in hidden), *shape.axes[at:])
    return End(replace(shape, full=inside, axes=axes), index, text, tuple(hidden), at)


@dataclass(frozen=True)
class _Room:
    """What all operations of a map share."""

    number: int
    dtype: str
    plain: bool
    reads: int | None
    """The number of sources; None for one without a number."""
    makes: int | None
    """The number of targets."""

    def target_rank(self, draw: st.DrawFn, names: Mapping[str, int]) -> str | int | None:
        """Return the index or the number before the key of a target."""
        if self.makes is None:
            return None
        if "rank" in names and self.reads == self.makes and draw(st.booleans()):
            return "rank"
        return "tp" if "tp" in names else draw(st.integers(0, self.makes - 1))


@st.composite
def _indices(draw: st.DrawFn, room: _Room, most: int = 4) -> dict[str, int]:
    """Indices and their extents, among them the numbers of checkpoints; the first has all of them."""
    letters = "abcdef"[: draw(st.integers(1, most))]
    largest = 12 if len(letters) < 3 else 3
    found = {f"{each}{room.number}": draw(st.integers(1, largest)) for each in letters}
    if room.reads is not None and (not room.number or draw(st.booleans())):
        found["rank"] = room.reads
    if room.makes is not None and (not room.number or draw(st.booleans())):
        found["tp"] = room.makes
    return found


def _source_rank(draw: st.DrawFn, room: _Room, names: Mapping[str, int]) -> str | int | None:
    if room.reads is None:
        return None
    return "rank" if "rank" in names else draw(st.integers(0, room.reads - 1))


def _left_out(draw: st.DrawFn, source: End, full: Mapping[str, int]) -> set[str]:
    """The sizes that shapes and keys give: the indices that are an axis or a number themselves."""
    alone = {axis[0] for axis in source.shape.axes if len(axis) == 1}
    alone |= {part.names[0] for part in source.shape.parts if len(part.names) == 1}
    some = {name for name in alone if name in full and name not in ("rank", "tp")}
    return draw(st.sets(st.sampled_from(sorted(some)))) if some else set()


def _array(draw: st.DrawFn, dtype: str, shape: Sequence[int]) -> Array:
    return random_array(numpy_dtype(dtype), shape, draw(st.integers(0, 99)))


def _ranked(source: End, target: End, *starts: str | int | None) -> set[str]:
    kinds = {"one rank"} if any(isinstance(each, int) for each in starts) else set[str]()
    kinds |= {"read ranks"} if source.rank else set()
    kinds |= {"made ranks"} if target.rank else set()
    return kinds | ({"ranks to ranks"} if source.rank and target.rank else set())


@st.composite
def moves(draw: st.DrawFn, room: _Room) -> Operation:
    """Elements that move: with ``...``, and with texts in keys whose tensors have other shapes."""
    full = draw(_indices(room))
    names, hidden, text = list(full), None, ""
    if draw(st.booleans()):
        hidden = [f"z{n}{room.number}" for n in range(draw(st.integers(0, 3)))]
        full |= {name: draw(st.integers(1, 3)) for name in hidden}
        names = list(full)
    if draw(st.booleans()):
        text = draw(st.sampled_from(["{x:*}", "{x:**}"]))
    options = {"plain": room.plain, "text": text}
    starts = _source_rank(draw, room, full), room.target_rank(draw, full)
    source = draw(_ends(f"w{room.number}", full, starts[0], hidden, **options))
    options["text"] = draw(st.sampled_from([text, "{x}"])) if text else ""
    target = draw(_ends(f"m{room.number}", full, starts[1], hidden, **options))
    kinds = {"move"} | _ranked(source, target, *starts)
    kinds |= set() if hidden is None else {"dots"}
    kinds |= {"text" if text == "{x:*}" else "text **"} if text else set()
    words = ["x"] if not text else ["enc", "dec-1", "q k"] if text == "{x:*}" else ["a.b", "a/b.c"]
    chosen = draw(st.lists(st.sampled_from(words), min_size=1, unique=True))
    left = _left_out(draw, source, full)
    # A tensor of each text has shapes of its own, where no size says otherwise.
    parts = (*source.shape.parts, *target.shape.parts)
    counted = {name for part in parts if part.words for name in part.names}
    free = {*left, *(hidden or ())} - counted
    sources, targets = Arrays(), Arrays()
    for each in chosen:
        sizes = {n: draw(st.integers(1, 3)) if text and n in free else full[n] for n in names}
        array = _array(draw, room.dtype, list(sizes.values()))
        sources |= source.tensors(array, names, each)
        targets |= target.tensors(array, names, each)
    given = {n: full[n] for n in names if n not in left and n not in (hidden or ())}
    if left:
        kinds.add("sizes left out")
    rule = f"{source.written()} -> {target.written()}"
    return Operation((rule,), given, sources, targets, frozenset(kinds), not left)


def _finite(draw: st.DrawFn, dtype: str, shape: Sequence[int]) -> Array:
    """Numbers whose products no dtype rounds to infinity."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return (rng.normal(size=shape) * 3).astype(numpy_dtype(dtype))


@st.composite
def computations(draw: st.DrawFn, room: _Room) -> Operation:
    """Arithmetic of one tensor or of a range of it, with up to two factors."""
    dtype = draw(st.sampled_from(FLOATS if room.plain else [*FLOATS, "bfloat16"]))
    full = draw(_indices(room, 3))
    names = list(full)
    starts = _source_rank(draw, room, full), room.target_rank(draw, full)
    source = draw(_ends(f"w{room.number}", full, starts[0], plain=room.plain))
    values = _finite(draw, dtype, list(full.values()))
    kinds, sizes, sources = set[str](), dict[str, int | str](full), Arrays()
    sources |= source.tensors(values, names)
    words, factors, ends = "", list[tuple[list[str], Array]](), list[End]()
    for number in range(draw(st.integers(0, 2))):
        some = [name for name in names if draw(st.booleans())]
        rank = _source_rank(draw, room, {n: full[n] for n in some})
        some_full = {n: full[n] for n in some}
        end = draw(_ends(f"f{room.number}x{number}", some_full, rank, plain=room.plain))
        factor = _finite(draw, draw(st.sampled_from(FLOATS)), [full[n] for n in some])
        sources |= end.tensors(factor, some)
        words += f" times {end.written()}"
        factors.append((some, factor))
        ends.append(end)
        kinds |= {"factor"} | ({"two factors"} if number else set())
        kinds |= {"factor by key"} if end.shape.parts or end.rank else set()
    times, plus = Fraction(1), Fraction(0)
    constants = draw(st.lists(st.sampled_from(sorted(_CONSTANTS)), max_size=2))
    for text in constants:
        words, times = f"{words} times {text}", times * _CONSTANTS[text]
        kinds.add("times")
    if not words or draw(st.booleans()):
        text = draw(st.sampled_from(sorted(_CONSTANTS)))
        words, plus = f"{words} plus {text}", _CONSTANTS[text]
        constants.append(text)
        kinds.add("plus")
    if any("c" in text for text in constants):
        sizes["c"] = "5 - 3"
    with np.errstate(all="ignore"):
        found = values.astype(np.float64)
        for some, factor in factors:
            extents = [full[name] if name in some else 1 for name in names]
            found = found * factor.astype(np.float64).reshape(extents)
        # Numbers are exact until one multiplication, or one division if they make 1 over an integer.
        is_part = times.numerator == 1
        found = found / times.denominator if is_part else found * float(times)
        if plus:  # -0 + 0 is 0
            found = found + float(plus)
    made = nearest(found, numpy_dtype(dtype))
    along = draw(st.sampled_from(names))
    if along in ("rank", "tp") or full[along] < 2 or draw(st.booleans()):
        target = draw(_ends(f"m{room.number}", full, starts[1], plain=room.plain))
        kinds |= _ranked(source, target, *starts)
        rule = f"{source.written()}{words} -> {target.written()}"
        targets = target.tensors(made, names)
        return Operation((rule,), sizes, sources, targets, frozenset(kinds))
    # Only a range of an index is computed, and the rest is moved.
    cut = draw(st.integers(1, full[along] - 1))
    order = draw(st.booleans())
    ranges = [(cut, full[along]), (0, cut)] if order else [(0, cut), (cut, full[along])]
    rules, targets = list[str](), Arrays()
    for row, (low, stop) in enumerate(ranges):
        part = {**full, along: stop - low}
        target = draw(_ends(f"m{room.number}r{row}", part, starts[1], plain=room.plain))
        ranged = replace(source, shape=replace(source.shape, ranges={along: (low, stop)}))
        rules.append(f"{ranged.written()}{'' if row else words} -> {target.written()}")
        whole = values if row else made
        targets |= target.tensors(whole.take(range(low, stop), names.index(along)), names)
    # The rest of a factor is left out by name.
    rest = {along: ranges[1]}
    for end in ends:
        if along in end.shape.full:
            ranged = replace(end, shape=replace(end.shape, ranges=rest))
            rules.append(f"{ranged.written()} -> nothing")
    kinds |= _ranked(source, target, *starts) | ({"factor of a range"} if factors else set())
    return Operation(tuple(rules), sizes, sources, targets, frozenset(kinds))


@st.composite
def block_scales(draw: st.DrawFn, room: _Room) -> Operation:
    """A scale for each block of a matrix, whose last blocks may be cut; also of some of its rows."""
    n = room.number
    p, q = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rows, columns = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    blocks = -(-rows // p), -(-columns // q)
    dtype, text = draw(st.sampled_from(FLOATS)), draw(st.booleans())
    w, scale = _finite(draw, dtype, (rows, columns)), _finite(draw, "float32", blocks)
    wide = scale.repeat(p, 0)[:rows].repeat(q, 1)[:, :columns]
    made = nearest(w.astype(np.float64) * wide, numpy_dtype(dtype))
    starts = _source_rank(draw, room, {}), room.target_rank(draw, {})
    before, after = ("" if each is None else f"{each}/" for each in starts)
    name, again, filled = ("{x:*}.w", "{x}.s", "{x}.m") if text else ("w", "s", "m")
    key = "any." if text else ""
    sources = {f"{before}{key}w{n}": w, f"{before}{key}s{n}": scale}
    kinds = {"blocks", "factor"} | ({"cut blocks"} if rows % p or columns % q else set())
    kinds |= {"factor by text"} if text else set()
    rules, targets, half = list[str](), Arrays(), draw(st.integers(0, blocks[0]))
    for row, (low, stop) in enumerate([(0, half), (half, blocks[0])] if half else [(0, None)]):
        is_turned = draw(st.booleans())
        axes = [f"(a{n} p{n})", f"(b{n} q{n})"]
        at = f" @ a{n}={low}:{stop}" if stop is not None else ""
        into = " ".join(axes[::-1] if is_turned else axes)
        rules.append(
            f"{before}{name}{n}[{' '.join(axes)}]{at} times {before}{again}{n}[a{n} b{n}] -> "
            f"{after}{filled}{n}.{row}[{into}]"
        )
        part = made[low * p : None if stop is None else stop * p]
        if len(part):
            part = np.ascontiguousarray(part.T) if is_turned else part
            targets[f"{after}{key}m{n}.{row}"] = part
        kinds |= {"blocks of a range"} if at else set()
    if half == blocks[0]:  # no blocks are left
        del rules[1]
    sizes: dict[str, int | str] = {f"p{n}": p, f"q{n}": q}
    return Operation(tuple(rules), sizes, sources, targets, frozenset(kinds))


@st.composite
def copies(draw: st.DrawFn, room: _Room) -> Operation:
    """A tensor that each source has, or that each target gets."""
    n = room.number
    array = _array(draw, room.dtype, draw(st.lists(st.integers(1, 4), max_size=2)))
    kinds, after = set[str](), ""
    if room.makes is not None:
        after, kinds = "{tp}/", {"made copies"}
    also = "also " if after else ""
    targets = {f"{k}/m{n}" if after else f"m{n}": array for k in range(room.makes or 1)}
    sizes: dict[str, int | str] = {"tp": room.makes} if room.makes else {}
    if room.reads is None:
        rules = (f"{also}w{n}[...] -> {after}m{n}[...]",)
        return Operation(rules, sizes, {f"w{n}": array}, targets, frozenset(kinds))
    sources = {f"{rank}/w{n}": array for rank in range(room.reads)}
    rules = (
        f"{also}{{rank}}/w{n} @ rank=0 -> {after}m{n}",
        f"{{rank}}/w{n} @ rank=1: -> nothing",
    )
    sizes["rank"] = room.reads
    return Operation(rules, sizes, sources, targets, frozenset(kinds | {"read copies"}))


@st.composite
def operations(draw: st.DrawFn, dtypes: Sequence[str], *, plain: bool) -> Operation:
    """One map of one to three operations, in any order; the first has all ranks."""
    ranks = st.sampled_from([None, None, 1, 2, 3])
    reads, makes = draw(ranks), draw(ranks)
    found = list[Operation]()
    for number in range(draw(st.integers(1, 3))):
        room = _Room(number, draw(st.sampled_from(dtypes)), plain, reads, makes)
        kinds = [moves, computations, block_scales] + ([copies] if reads or makes else [])
        if not number and (reads or makes):
            kinds = [moves, computations]
        found.append(draw(draw(st.sampled_from(kinds))(room)))
    return Operation(
        tuple(draw(st.permutations([rule for each in found for rule in each.rules]))),
        {name: size for each in found for name, size in each.sizes.items()},
        {key: array for each in found for key, array in each.sources.items()},
        {key: array for each in found for key, array in each.targets.items()},
        frozenset().union(*(each.kinds for each in found), () if plain else ("odd keys",)),
        all(each.has_inverse for each in found),
        reads,
        makes,
    )


def by_rank(tensors: Arrays, count: int | None) -> list[Arrays]:
    """Return the tensors of each number, without it; all tensors, if there are no numbers."""
    if count is None:
        return [tensors]
    ranks: list[Arrays] = [{} for _ in range(count)]
    for key, array in tensors.items():
        number, _, name = key.partition("/")
        ranks[int(number)][name] = array
    return ranks
