"""Which tensors of a checkpoint are taken, and under which keys?

    keys --filter, exclude--> --strip_prefix--> --rename--> --add_prefix--> new keys

Each pattern must match something, and no two tensors may get one key: a mapping of names that is
wrong is noticed before anything is read. These are forms of a name to rename, and of its new name:

    old             new             "layers.3.w" becomes
    layers.3.w      w               "w": only that key
    layers.*.*      h.*.ln_*        "h.3.ln_w": each * takes the text of the same * of the old name;
                                    the first ones are as short as possible
    re:layers\\.(?P<n>\\d+)\\.(\\w+)   \\2_\\g<n>     "w_3": a regular expression of Python, which
                                                      matches whole keys
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from shardvar.errors import ArgumentError
from shardvar.verbs.arguments import check_mapping, check_string, strings_of

REGULAR = "re:"
"""The beginning of an old name that is a regular expression."""

Globs = str | Iterable[str] | None
"""A glob, several, or none."""

_NAMED = 8
"""Keys that an error names; it counts the others."""


def matches_any(key: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(key, glob) for glob in globs)


def matching(keys: Iterable[str], glob: str) -> list[str]:
    return [key for key in keys if fnmatchcase(key, glob)]


def select_keys(keys: Sequence[str], filter: Globs, exclude: Globs) -> set[str]:
    """``ArgumentError`` if a list selects nothing, or a glob of ``exclude`` leaves nothing out."""
    if filter is None and exclude is None:
        return set(keys)
    wanted = ["*"] if filter is None else strings_of(filter, "globs")
    unwanted = [] if exclude is None else strings_of(exclude, "globs")
    kept = set(keys)
    if filter is not None:
        kept = {key for key in keys if matches_any(key, wanted)}
    if not wanted:
        raise ArgumentError(
            "No tensor matches a filter without globs.", "Give some, or leave it out."
        )
    if not kept and keys:
        raise ArgumentError(
            f"No tensor matches {' or '.join(wanted)}.", "`shardvar inspect` lists the keys."
        )
    for glob in unwanted:
        out = matching(keys, glob)
        if not out:
            raise ArgumentError(
                f"No tensor matches {glob!r}, so none is left out.",
                "`shardvar inspect` lists the keys.",
            )
        kept.difference_update(out)
    if not kept and keys:
        raise ArgumentError(
            f"Every tensor matches {' or '.join(unwanted)}: none is left.", "Exclude fewer."
        )
    return kept


def new_names(
    keys: Sequence[str],
    rename: Mapping[str, str],
    strip_prefix: str | None = None,
    add_prefix: str | None = None,
) -> list[str]:
    """The last old name that matches a key counts. A key without the prefix to strip stays."""
    check_mapping(rename, "names to names")
    for text in (*rename, *rename.values()):
        check_string(text, "names")
    for prefix in (strip_prefix, add_prefix):
        check_string(prefix or "", "prefixes")
    names = list(keys)
    if strip_prefix:
        if not any(key.startswith(strip_prefix) for key in keys):
            cause = f"No key begins with {strip_prefix!r}."
            raise ArgumentError(cause, "`shardvar inspect` lists the keys.")
        if strip_prefix in keys:
            cause = f"{strip_prefix!r} is a key itself, and nothing would be left of it."
            raise ArgumentError(cause, "Exclude or rename it.")
        names = [key.removeprefix(strip_prefix) for key in keys]
    renamed = list(names)
    for old, new in rename.items():
        new_name = _naming(old, new)
        found = {row: name for row, key in enumerate(names) if (name := new_name(key)) is not None}
        if not found:
            cause = f"No tensor is named {old!r}, so none is renamed to {new!r}."
            without = "Names are those without the prefix to strip. " if strip_prefix else ""
            raise ArgumentError(cause, without + such_as(names))
        for row, name in found.items():
            renamed[row] = name
    if add_prefix:
        renamed = [add_prefix + name for name in renamed]
    if len(set(renamed)) < len(renamed):
        sources: dict[str, list[str]] = {}
        for key, name in zip(keys, renamed, strict=True):
            sources.setdefault(name, []).append(key)
        twice = [(name, claimants) for name, claimants in sources.items() if len(claimants) > 1]
        name, claimants = twice[0]
        listed = ", ".join(map(repr, claimants[:_NAMED]))
        more = f" and {len(claimants) - _NAMED} more" if len(claimants) > _NAMED else ""
        also = f"; {len(twice) - 1} more names would be given twice" if len(twice) > 1 else ""
        raise ArgumentError(
            f"{len(claimants)} tensors would be named {name!r}: {listed}{more}{also}.",
            "Choose names that differ.",
        )
    return renamed


def such_as(keys: Sequence[str]) -> str:
    """Return a remedy for a pattern that matches none of the keys."""
    return f"Match a key such as {keys[0]!r}." if keys else "Leave it out: there are no keys."


def _naming(old: str, new: str) -> Callable[[str], str | None]:
    if old.startswith(REGULAR):
        pattern = old.removeprefix(REGULAR)

        def substituted(key: str) -> str | None:
            try:
                found = re.fullmatch(pattern, key, re.DOTALL)
                return None if found is None else found.expand(new)
            except (re.error, IndexError) as error:
                cause = (
                    f"{pattern!r} and {new!r} are not a regular expression and its replacement: "
                    f"{error}."
                )
                raise ArgumentError(cause, r"Such as 're:layers\.(\d+)\.(.*)=h.\1.\2'.") from None

        return substituted
    if "*" not in old:
        return lambda key: new if key == old else None
    if new.count("*") > old.count("*"):
        raise ArgumentError(
            f"{new!r} has more * than {old!r}, whose texts they take.",
            "Leave out one, or use a regular expression.",
        )
    parts, (head, *rest) = old.split("*"), new.split("*")

    def with_stars(key: str) -> str | None:
        # Each part is found as early as can be, so none is tried twice: a regular expression may
        # take hours.
        first, *middle, last = parts
        start, stop = len(first), len(key) - len(last)
        if stop < start or not (key.startswith(first) and key.endswith(last)):
            return None
        texts = []
        for part in middle:
            place = key.find(part, start, stop)
            if place < 0:
                return None
            texts.append(key[start:place])
            start = place + len(part)
        pairs = zip([*texts, key[start:stop]], rest, strict=False)
        return head + "".join(text + part for text, part in pairs)

    return with_stars
