"""Check that a .safetensors or .npz file is what a statement makes of others, with only Python and NumPy.

    python derivation.py RESULT STATEMENT SOURCE...

It was written from maps.md and the page on certificates, and it knows maps that only move: rules with one
side left of the arrow, numbers, words and texts in keys, composed axes, and ranges. It holds one target
and its sources. Exit codes: 0 derived; 1 not derived; 2 a file cannot be read; 3 the statement has more
than this program knows.
"""

import json
import os
import re
import sys
from hashlib import sha256
from itertools import product
from math import prod
from typing import Any

import numpy as np

SAFETENSORS = {
    "BOOL": ("bool", 1), "I8": ("int8", 1), "I16": ("int16", 2), "I32": ("int32", 4), "I64": ("int64", 8),
    "U8": ("uint8", 1), "U16": ("uint16", 2), "U32": ("uint32", 4), "U64": ("uint64", 8), "F16": ("float16", 2),
    "BF16": ("bfloat16", 2), "F32": ("float32", 4), "F64": ("float64", 8), "C64": ("complex64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1), "F8_E8M0": ("float8_e8m0fnu", 1),
}  # fmt: skip
"""The names of dtypes in safetensors: the name in a digest, and the bytes of an element."""

Tensors = dict[str, tuple[str, Any]]
"""The dtype of each tensor and its elements, as raw bytes: of dtype V1 to V16."""
Sizes = dict[str, int]


class Unreadable(Exception):
    """A file that cannot be read."""


class Unknown(Exception):
    """A statement that has more than this program knows."""


class NotDerived(Exception):
    """A difference."""


def read_tensors(path: str) -> Tensors:
    """Return the tensors of a file, mapped into memory where they can be."""
    if path.endswith(".npz"):
        with np.load(path, allow_pickle=False) as arrays:
            found = {key: arrays[key] for key in arrays.files}
        if any(each.dtype.kind not in "biufc" for each in found.values()):
            raise Unknown(f"{path} has other elements than numbers")
        little = {
            key: np.asarray(a, a.dtype.newbyteorder("<"), order="C") for key, a in found.items()
        }
        return {key: (a.dtype.name, a.view(f"V{a.itemsize}")) for key, a in little.items()}
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > os.path.getsize(path) - 8:
            raise Unreadable(f"{path} ends within its header.")
        header = json.loads(file.read(length))
    data = (
        np.memmap(path, np.uint8, "r", 8 + length)
        if os.path.getsize(path) > 8 + length
        else b""
    )
    tensors: Tensors = {}
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        if entry["dtype"] not in SAFETENSORS:
            raise Unknown(f"{key!r} is of dtype {entry['dtype']}")
        (dtype, itemsize), (start, stop) = SAFETENSORS[entry["dtype"]], entry["data_offsets"]
        if stop - start != prod(entry["shape"]) * itemsize or not 0 <= start <= stop <= len(
            data
        ):
            raise Unreadable(f"{key!r} does not lie in {path}.")
        raw = (
            np.frombuffer(data[start:stop], f"V{itemsize}")
            if stop > start
            else np.zeros(0, f"V{itemsize}")
        )
        tensors[key] = dtype, raw.reshape(entry["shape"])
    return tensors


def digest(tensors: Tensors) -> str:
    """Return the digest of a checkpoint, as digest.md defines it."""
    found = []
    for key, (dtype, array) in tensors.items():
        data, name = array.tobytes(), key.encode()
        leaves = b"".join(
            sha256(data[at : at + 2**20]).digest() for at in range(0, len(data), 2**20)
        )
        head = f"shardvar digest 1\n{dtype}\n{','.join(map(str, array.shape))}\n{len(name)}\n"
        found.append(sha256(head.encode() + name + leaves).digest())
    return sha256(b"".join(sorted(found))).hexdigest()


# --- Rules

PART = re.compile(r"'((?:[^']|'')*)'|\{(\w+)(?:([+-][0-9]+)|:([^{}]*))?\}|([^\[\]' ()*{}]+)")
SIDE = re.compile(rf"((?:{re.sub(r'[(](?![?])', '(?:', PART.pattern)})+)(?:\[([^\[\]]*)\])?")


class Side:
    """One side of a rule: the parts of its key, its axes, and the ranges of indices."""

    def __init__(self, text: str, sizes: Sizes) -> None:
        text, _, ranges = text.partition(" @ ")
        found = SIDE.fullmatch(text.strip())
        if found is None or re.fullmatch("-?[0-9][-+/0-9.eE]*", text.strip()):
            raise Unknown(f"the side {text!r}")
        self.parts: list[Any] = []  # texts, and (name, kind, more)
        for quoted, name, shift, words, plain in PART.findall(found[1]):
            if name:
                kind = words if words in ("*", "**") else "words" if words else "number"
                self.parts.append((name, kind, words.split("|") if words else int(shift or 0)))
            else:
                self.parts.append(plain or quoted.replace("''", "'"))
        self.axes: list[list[str]] | None = None
        if found[2] is not None:
            words = re.findall(r"\([^()]*\)|[^\s()]+", found[2])
            self.axes = [[n for n in each.strip("()").split() if n != "1"] for each in words]
            if any("..." in axis for axis in self.axes):
                raise Unknown("the axes '...'")
        self.ranges: dict[str, tuple[int, int | None]] = {}
        for each in filter(None, (each.strip() for each in ranges.split(","))):
            name, _, value = each.partition("=")
            first, colon, last = (number.strip() for number in value.partition(":"))
            start = number_of(first or "0", sizes)
            self.ranges[name] = (
                start,
                number_of(last, sizes) if last else None if colon else start + 1,
            )

    def match(self, key: str, texts: dict[str, str]) -> dict[str, Any] | None:
        """Return the numbers and texts of a key that matches; None for another one."""
        pattern, seen = "", list[Any]()
        for part in self.parts:
            if isinstance(part, str):
                pattern += re.escape(part)
                continue
            name, kind, more = part
            words = "|".join(map(re.escape, more)) if kind == "words" else ""
            text = {
                "number": "(0|[1-9][0-9]*)",
                "*": "([^./]*)",
                "**": "(.*)",
                "words": f"({words})",
            }[kind]
            pattern += re.escape(texts[name]) if kind == "number" and name in texts else text
            seen += [part] * (not (kind == "number" and name in texts))
        found = re.fullmatch(pattern, key, re.DOTALL)
        if found is None:
            return None
        values: dict[str, Any] = {}
        for (name, kind, more), text in zip(seen, found.groups(), strict=True):
            value: Any = text
            if kind == "number":
                value = int(text) - more
            elif kind == "words":
                value = more.index(text)
            if values.setdefault(name, value) != value:
                return None
        return values

    def key_of(self, values: dict[str, Any]) -> str:
        """Return the key for some numbers and texts."""
        found = ""
        for part in self.parts:
            if isinstance(part, str):
                found += part
            else:
                name, kind, more = part
                if name not in values:
                    raise Unknown(f"the index {name!r}")
                value = values[name]
                found += (
                    more[value]
                    if kind == "words"
                    else str(value + more if isinstance(value, int) else value)
                )
        return found

    @property
    def names(self) -> list[str]:
        """The indices in the key."""
        return [part[0] for part in self.parts if not isinstance(part, str)]


def number_of(text: Any, sizes: Sizes) -> int:
    """Return a size: a number, a name, or one of these plus or minus a number."""
    found = re.fullmatch(r"(\w+)\s*(?:([+-])\s*(\w+))?", str(text).strip())
    if found is None:
        raise Unknown(f"the size {text!r}")
    values = []
    for each in (found[1], found[3] or "0"):
        if not each.isdigit() and each not in sizes:
            raise Unknown(f"the size {each!r}")
        values.append(int(each) if each.isdigit() else number_of(sizes[each], sizes))
    return values[0] - values[1] if found[2] == "-" else values[0] + values[1]


def extents_of(axes: list[list[str]], shape: tuple[int, ...], known: Sizes) -> Sizes:
    """Return the extents of the indices of some axes; one of an axis may be left to division."""
    if len(axes) != len(shape):
        raise NotDerived(f"the axes {axes} do not fit the shape {shape}")
    found: Sizes = {}
    for axis, extent in zip(axes, shape, strict=True):
        free = [name for name in axis if name not in known]
        rest = prod(known[name] for name in axis if name in known)
        if len(free) > 1 or (free and not rest):
            raise Unknown(f"the extents of {free}")
        if free and rest and extent % rest == 0:
            found[free[0]] = extent // rest
        elif free or rest != extent:
            raise NotDerived(f"the axis {axis} does not fit the extent {extent}")
    return {**{name: known[name] for axis in axes for name in axis if name in known}, **found}


class Run:
    """What rules make of sources."""

    def __init__(self, sources: Tensors, result: Tensors, sizes: Sizes) -> None:
        self.sources, self.result, self.sizes = sources, result, sizes
        self.used: dict[str, Any] = {
            key: np.zeros(a.shape, bool) for key, (_, a) in sources.items()
        }
        self.filled: dict[str, Any] = {
            key: np.zeros(a.shape, bool) for key, (_, a) in result.items()
        }
        self.taken: set[str] = set()

    def rule(self, text: str) -> None:
        """Compare what one rule makes, and note what it uses and fills."""
        words = text.split(" ", 1)
        kind = words[0] if words[0] in ("also", "rest") else ""
        left, arrow, right = (words[1] if kind else text).partition(" -> ")
        if not arrow or re.search(r" (if|else|as) ", f"{right} ") or right.startswith("$"):
            raise Unknown(f"the rule {text!r}")
        source = Side(left, self.sizes)
        target = None if right == "nothing" else Side(right, self.sizes)
        found = {
            key: source.match(key, {})
            for key in self.sources
            if not (kind == "rest" and key in self.taken)
        }
        matches = {key: values for key, values in found.items() if values is not None}
        ranged = source.ranges.items() & {
            (n, r) for n, r in source.ranges.items() if n in source.names
        }
        for name, (start, stop) in ranged:
            matches = {
                k: v
                for k, v in matches.items()
                if start <= v[name] < (stop if stop is not None else v[name] + 1)
            }
        numbers: Sizes = {}
        for name, part_kind, more in (
            part for part in source.parts if not isinstance(part, str)
        ):
            if part_kind == "words":
                taken = {v[name] for v in matches.values()}
                numbers[name] = len(taken) if name in source.ranges else len(more)
            elif part_kind == "number" and matches:
                values = {v[name] for v in matches.values()}
                start = source.ranges.get(name, (0, None))[0]
                numbers[name] = len(values)
                if (
                    target
                    and values != set(range(start, start + len(values)))
                    and name not in target.names
                ):
                    raise NotDerived(f"{text!r}: numbers of {name} are missing")
        for name, part_kind, more in (
            part for part in (target.parts if target else ()) if not isinstance(part, str)
        ):
            if part_kind == "words" and name not in source.ranges:
                numbers[name] = len(more)
        for name, (start, stop) in (target.ranges if target else {}).items():
            if stop is not None:  # the other side counts a range from 0
                numbers[name] = stop - start
        for key, values in matches.items():
            self.taken.add(key)
            self.move(text, key, values, source, target, numbers, kind == "also")

    def move(
        self,
        text: str,
        key: str,
        values: dict[str, Any],
        source: Side,
        target: Side | None,
        numbers: Sizes,
        again: bool,
    ) -> None:
        dtype, array = self.sources[key]
        sizes = {name: number_of(size, self.sizes) for name, size in self.sizes.items()}
        sizes |= {name: numbers[name] for name in source.ranges if name in source.names}
        known = sizes | numbers
        axes = (
            source.axes if source.axes is not None else [[f".{n}"] for n in range(array.ndim)]
        )
        extents = extents_of(axes, array.shape, known)
        order = [name for axis in axes for name in axis]
        view, used = (
            a.reshape([extents[name] for name in order]) for a in (array, self.used[key])
        )
        cut = tuple(slice(*source.ranges.get(name, (0, None))) for name in order)
        view, part = view[(*cut, ...)], used[(*cut, ...)]
        if not again and part.any():
            raise NotDerived(f"{text!r} uses elements of {key!r} again")
        part[...] = True
        if target is None:
            return
        free = {**dict(zip(order, view.shape, strict=True))}
        fixed = {name: value - source.ranges.get(name, (0, None))[0] if isinstance(value, int) else value
                 for name, value in values.items()}  # fmt: skip
        shape_axes = target.axes if target.axes is not None else axes
        inner = {name for axis in shape_axes for name in axis}
        loops = [
            name for name in dict.fromkeys(target.names) if name in free and name not in inner
        ]
        for index in product(*(range(free[name]) for name in loops)):
            at = dict(zip(loops, index, strict=True))
            shifts = {name: start for name, (start, _) in target.ranges.items()}
            named: dict[str, Any] = {
                n: low for n, (low, stop) in target.ranges.items() if stop == low + 1
            }
            named |= {name: value + shifts.get(name, 0) if isinstance(value, int) else value
                      for name, value in {**fixed, **at}.items()}  # fmt: skip
            self.fill(
                text,
                target.key_of(named),
                dtype,
                view,
                order,
                at,
                fixed,
                shape_axes,
                target,
                free,
                sizes,
            )

    def fill(
        self, text: str, key: str, dtype: str, view: Any, order: list[str], at: Sizes, fixed: dict[str, Any],
        axes: list[list[str]], target: Side, free: Sizes, known: Sizes,
    ) -> None:  # fmt: skip
        if key not in self.result:
            raise NotDerived(f"{key!r}, made by {text!r}, is not in the result")
        stored, array = self.result[key]
        if stored != dtype:
            raise NotDerived(f"{key!r} is of dtype {stored}, and {text!r} makes {dtype}")
        exact = {
            name: size for name, size in {**known, **free}.items() if name not in target.ranges
        }
        exact |= {
            name: known[name] for name in target.ranges if name in known and name not in fixed
        }
        extents = extents_of(axes, array.shape, exact)
        names = [name for axis in axes for name in axis]
        place, there = (
            a.reshape([extents[name] for name in names]) for a in (array, self.filled[key])
        )
        cut: list[Any] = []
        kept: list[str] = []
        for name in names:
            start, stop = target.ranges.get(name, (0, None))
            if name in fixed:
                cut.append(start + fixed[name])
            elif name not in free and stop == start + 1:
                cut.append(start)
            else:
                cut.append(slice(start, stop))
                kept.append(name)
        moved = view[(*(at.get(name, slice(None)) for name in order), ...)]
        left = [name for name in order if name not in at]
        if sorted(left) != sorted(kept):
            raise Unknown(f"the indices of {text!r}")
        moved, place, there = (
            moved.transpose([left.index(name) for name in kept]),
            place[(*cut, ...)],
            there[(*cut, ...)],
        )
        if moved.shape != place.shape:
            raise NotDerived(f"{key!r} has other extents than {text!r} makes")
        if there.any():
            raise NotDerived(f"{text!r} fills elements of {key!r} again")
        there[...] = True
        if moved.tobytes() != place.tobytes():
            raise NotDerived(f"{key!r} differs from what {text!r} makes")


def check(result_path: str, statement_path: str, paths: list[str]) -> str:
    """Return a sentence about a derivation; raise ``NotDerived`` or ``Unknown``."""
    with open(statement_path, encoding="utf-8") as file:
        statement = json.load(file)
    predicate, options = statement["predicate"], statement["predicate"]["options"]
    if predicate["definition"] != 1 or predicate["files"]:
        raise Unknown("another definition, or files of a model")
    if more := sorted(options.keys() - {"map", "add_prefix"}):
        raise Unknown(f"the option {more[0]!r}")
    if len(paths) != len(predicate["sources"]):
        raise Unreadable(f"The statement has {len(predicate['sources'])} sources.")
    result, sources = read_tensors(result_path), list(map(read_tensors, paths))
    claims = [*predicate["sources"], statement["subject"][0]]
    for path, tensors, claim in zip(
        [*paths, result_path], [*sources, result], claims, strict=True
    ):
        if digest(tensors) != claim["digest"]["shardvarDigest1"]:
            raise NotDerived(f"{path} is another checkpoint than the statement names")
    prefix = options.get("add_prefix") or ""
    result = {
        key.removeprefix(prefix): each for key, each in result.items() if key.startswith(prefix)
    }
    rules, sizes = (
        options.get("map", {}).get("rules", ["{x:**} -> {x}"]),
        options.get("map", {}).get("sizes", {}),
    )
    one = {key: each for tensors in sources for key, each in tensors.items()}
    if len(sources) > 1 and ("map" in options or len(one) < sum(map(len, sources))):
        one = {
            f"{n}/{key}": each
            for n, tensors in enumerate(sources)
            for key, each in tensors.items()
        }
    run = Run(one, result, sizes)
    for text in sorted(rules, key=lambda rule: rule.startswith("rest ")):
        run.rule(text)
    for what, found in (("used", run.used), ("filled", run.filled)):
        for key, each in found.items():
            if not each.all() or (what == "used" and key not in run.taken):
                raise NotDerived(f"{key!r} is not {what} whole")
    none = {"moved": 0, "rounded": 0, "computed": 0}
    if {**none, **predicate["classes"]} != {**none, "moved": len(result)}:
        raise NotDerived(
            f"{len(result)} tensors are moved, and the statement has other numbers"
        )
    return f"derived: {len(result)} tensors, all moved"


def main(words: list[str]) -> int:
    """Print the verdict."""
    if len(words) < 3:
        print("usage: python derivation.py RESULT STATEMENT SOURCE...", file=sys.stderr)
        return 2
    try:
        print(check(words[0], words[1], words[2:]))
    except NotDerived as error:
        print(f"not derived: {error}")
        return 1
    except Unknown as error:
        print(f"cannot be decided: this program does not know {error}")
        return 3
    except (Unreadable, OSError, ValueError, KeyError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
