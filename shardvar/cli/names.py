"""Names of checkpoints on pages, and places of pages: both come from the folder of a model.

The files of a model have usual names, such as ``model.safetensors.index.json``, so the name of its
folder says more. A page is sent to others: a name has as much of the path as it takes to tell two
checkpoints apart, and no more.
"""

import os
import re
from collections.abc import Sequence

from shardvar.errors import ArgumentError
from shardvar.formats.table import stem_of_name
from shardvar.storage.local import is_url
from shardvar.verbs.locate import Location

_SET = ".index.json"
"""The ending of the index of a set of files, which is a model as long as it is in its folder."""

_SAYS_LITTLE = re.compile(
    r"\d+|default|ckpt|checkpoint|(model|pytorch_model|diffusion_pytorch_model|adapter_model)\.(safetensors|bin|pt|pth)"
)
"""Names of steps and of files that are in many folders; the folder is named with them."""


def names_of(*checkpoints: tuple[Location, str]) -> list[str]:
    """Return a name for each checkpoint, given with the path that was typed.

    Checkpoints at different places have different names.
    """
    places = [_place(found, typed) for found, typed in checkpoints]
    return _distinct(places)


def names_of_plan(sources: Sequence[tuple[Location, str]], target: str) -> list[str]:
    """Return the names of the sources of a reshard, and the name of its target."""
    places = [_place(found, typed) for found, typed in sources]
    return _distinct([*places, _place_of_file(target)])


def page_path(found: Location, typed: str) -> str:
    """Return the path of the page of a checkpoint: next to its files, or next to its folder.

    The folder of a model is uploaded as it is, so no page is put into it. The page of a checkpoint
    in a bucket is in the current directory.
    """
    if found.storage.local_path is None:
        name = found.stem if _folder(found, typed) is None else _place(found, typed)[-1]
        return f"{name}.html"
    folder = _folder(found, typed)
    if folder is None:
        return f"{os.path.join(found.storage.path, found.stem)}.html"
    path = os.path.normpath(folder)
    if os.path.basename(path) in ("", os.curdir, os.pardir):
        path = os.path.abspath(path)
    parent, name = os.path.split(path)
    if not name or not os.access(parent or os.curdir, os.W_OK):
        raise ArgumentError(
            f"No page can be written next to the folder {folder!r}.",
            "Choose a file with `--output FILE.html`.",
        )
    return f"{path}.html"


def _folder(found: Location, typed: str) -> str | None:
    """Return the folder that is the checkpoint; None for files of one prefix."""
    if _is_typed_folder(found, typed):
        return typed
    return found.storage.path if found.is_folder or found.name.endswith(_SET) else None


def _is_typed_folder(found: Location, typed: str) -> bool:
    if not is_url(typed):
        return os.path.isdir(typed)
    last = typed.rstrip("/").rpartition("/")[2]
    return stem_of_name(last, found.format.name) != found.stem


def _place(found: Location, typed: str) -> list[str]:
    """Return the parts of the path that names a checkpoint, from the top to the name itself."""
    folder = _folder(found, typed)
    return _parts(folder) if folder is not None else _place_of_file(found.path)


def _place_of_file(path: str) -> list[str]:
    parts = _parts(path)
    return parts[:-1] if parts[-1].endswith(_SET) and len(parts) > 1 else parts


def _parts(path: str) -> list[str]:
    whole = path if is_url(path) else os.path.abspath(path)
    return [part for part in whole.replace(os.sep, "/").split("/") if part] or ["/"]


def _length(place: Sequence[str]) -> int:
    """Return how many parts at the end of a path are a name that means something."""
    # The cache of Hugging Face: models--meta-llama--Llama-3.1-8B/snapshots/a hash.
    if place[-2:-1] == ["snapshots"]:
        return 3
    return 2 if _SAYS_LITTLE.fullmatch(place[-1]) else 1


def _distinct(places: Sequence[Sequence[str]]) -> list[str]:
    """Return the ends of some paths, which are equal only if the paths are.

    >>> _distinct([["a", "llama", "10"], ["b", "tuned"]]), _distinct([["a", "llama"], ["b", "llama"]])
    (['llama/10', 'tuned'], ['a/llama', 'b/llama'])
    """
    lengths = [_length(place) for place in places]
    different = {tuple(place) for place in places}
    most = max(map(len, places))

    def names() -> list[str]:
        ends = zip(places, lengths, strict=True)
        return ["/".join(place[-length:]) for place, length in ends]

    while len(set(names())) < len(different) and min(lengths) < most:
        lengths = [length + 1 for length in lengths]
    return names()
