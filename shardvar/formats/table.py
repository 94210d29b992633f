"""The table of formats, open to other packages, and the names of files that tell one format from
another.

A package adds a format by an entry point in the group ``shardvar.formats``. The entry point's name
is the format's name, and its object is a ``Format``. A name that the table has cannot be added. No
format is imported until it is used.

Which formats can a path mean? The files of a checkpoint are named by its prefix and then by a
*mark* of the format: ``ck.svindex``, ``ck.data-00000-of-00001``. ``formats_of`` compares the names
in a directory with these marks and returns the formats that are worth asking, so a path that means
a native checkpoint imports and enters no other format. To add a built-in format, add a row to
``_BUILT_IN``.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.formats.protocol import Format
from shardvar.formats.unfinished import SHARE_MARK
from shardvar.pictures.words import similar
from shardvar.storage.posix import entry_points_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class _BuiltIn(NamedTuple):
    """Facts about a format that are known before it is imported."""

    module: str
    """The module whose ``FORMAT`` it is."""
    about: str
    """Its writer, in a few words."""
    suffixes: tuple[str, ...]
    """The endings of a target's name that mean this format."""
    mark: re.Pattern[str]
    """Matches the text after the checkpoint's name in the names of its files."""
    usual_name: str = ""
    """The name of a new checkpoint whose path is only a folder; empty if it must be given."""
    side: int = 0
    """0 if a directory means all such checkpoints in it. Files of rank 1 often lie next to another
    checkpoint, such as the ``optimizer.pt`` of a trainer, and a directory means them only if it
    means nothing else; files of rank 2, such as a model that was exported, only if it has none of
    rank 1 either."""
    extra: str = ""
    """The extra that all or some of its files need to be read; empty if NumPy is enough."""


_BUILT_IN = {
    "shardvar": _BuiltIn(
        "shardvar.formats.native",
        "native: index and data files",
        (".svindex",),
        re.compile(r"\.svindex|\.svdata-"),
    ),
    "tensorflow": _BuiltIn(
        "shardvar.formats.tensorflow",
        "TensorFlow, V2 checkpoints",
        (".index",),
        re.compile(r"\.index|\.data-|-\d{5}-of-"),
    ),
    "safetensors": _BuiltIn(
        "shardvar.formats.safetensors",
        "Hugging Face: a file or a set",
        (".safetensors", ".safetensors.index.json"),
        re.compile(r"\.safetensors|-\d{5,}-of-"),
        usual_name="model.safetensors",  # which from_pretrained of Hugging Face looks for
    ),
    "npz": _BuiltIn("shardvar.formats.npz", "NumPy, np.savez", (".npz",), re.compile(r"\.npz")),
    "zarr": _BuiltIn(
        "shardvar.formats.zarr",
        "Zarr, versions 2 and 3",
        (".zarr",),
        re.compile(r"zarr\.json|\.z(?:array|group|metadata)"),
        extra="orbax",
    ),
    "orbax": _BuiltIn(
        "shardvar.formats.zarr.orbax",
        "Orbax, of JAX and Flax",
        (),
        re.compile(r"_METADATA|_CHECKPOINT_METADATA|manifest\.ocdbt"),
        extra="orbax",
    ),
    "torch": _BuiltIn(
        "shardvar.formats.torch",
        "PyTorch, DCP folders",
        (".metadata",),
        re.compile(r"\.metadata|\.distcp"),
    ),
    "pt": _BuiltIn(
        "shardvar.formats.torch.saved",
        "PyTorch, torch.save",
        (".pt", ".pth", ".bin.index.json"),
        re.compile(
            r"\.pth?|\.bin|\.ckpt|-\d{5,}-of-|_rank_\d+\.pt|_\d+_mp_rank_\d+_|\.\d{2,4}\.pth"
        ),
        side=1,
    ),
    "gguf": _BuiltIn(
        "shardvar.formats.gguf", "llama.cpp", (".gguf",), re.compile(r"\.gguf|-\d{5}-of-"), side=1
    ),
    "keras": _BuiltIn(
        "shardvar.formats.keras",
        "Keras 3 and 2",
        (".keras", ".h5", ".hdf5", ".weights.json"),
        re.compile(r"\.keras|(\.weights)?\.h5|\.hdf5|\.weights\.json"),
        side=1,
        extra="keras",
    ),
    "flax": _BuiltIn(
        "shardvar.formats.flax",
        "Flax, msgpack",
        (".msgpack", ".msgpack.index.json"),
        re.compile(r"\.msgpack|-\d{5}-of-"),
        side=2,
    ),
    "onnx": _BuiltIn(
        "shardvar.formats.onnx",
        "ONNX, also external data",
        (".onnx",),
        re.compile(r"\.onnx"),
        side=2,
    ),
    "npy": _BuiltIn(
        "shardvar.formats.npy", "NumPy, np.save: one array", (".npy",), re.compile(r"\.npy"), side=1
    ),
}
"""In the order in which a path is offered to them."""

_ANY_NAME = {"tensorflow", "pt", "flax"}
"""The formats that find some checkpoints by the bytes of files of any name: V1 checkpoints,
``metadata.pkl``, ``checkpoint_10``."""

_LAYOUTS = {
    "orbax-plain": ("orbax", "PLAIN"),
    "universal": ("pt", "FOLDER"),
    "gguf-blocks": ("gguf", "BLOCKS_FORMAT"),
}
"""Names of layouts that are written on request and read as their format: the format, and the name
of the layout in its module."""

_PREFIX_INDEXES = (".svindex", ".index")
"""The endings of indexes whose checkpoints are named without them."""


COMMON = "common.pt"
"""Megatron's file of values that all ranks share; its path means its folder."""

_OTHER_FILES = (
    ".bin", ".distcp", ".tflite", ".pb", ".mlmodel", ".json", ".txt", ".html", ".csv", ".parquet",
    ".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z",
)  # fmt: skip
"""Endings of files that no format writes, or several formats or programs do."""

_COMPANION = (
    r"(data|dataloader|dl_state_dict|optimizer|(lr_)?scheduler|grad_scaler|scaler|sampler|rng_states?|recipe_state|"
    r"train(er|ing)?_(args|state))([_-]\d+)*\.(pth?|bin|safetensors)(\.index\.json)?"
)
"""Names of files that hold the state of a run and no model: the names of verl, Accelerate,
transformers and torchtune."""


def format_names() -> list[str]:
    return [*_BUILT_IN, *_added()]


def format_named(name: str) -> Format:
    """Return the format of that name; ``ArgumentError`` lists the known names."""
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"The format is {name!r}.", f"Give a name: {', '.join(format_names())}."
        )
    if name in _BUILT_IN:
        built_in: Format = import_module(_BUILT_IN[name].module).FORMAT
        return built_in
    if name in _LAYOUTS:
        form, layout = _LAYOUTS[name]
        written: Format = getattr(import_module(_BUILT_IN[form].module), layout)
        return written
    # Looked up only for other names, since this searches every installed package.
    point = _added().get(name)
    if point is not None:
        added: Format = point.load()
        return added
    known = ", ".join([*format_names(), *_LAYOUTS])
    nearest = similar(name, [*format_names(), *_LAYOUTS])
    remedy = "".join(f"Did you mean {near!r}? " for near in nearest)
    raise ArgumentError(f"Unknown format {name!r}.", f"{remedy}The formats are {known}.")


def all_formats() -> Iterator[Format]:
    """Every format, the built-in ones first."""
    # Lazy: a caller that stops early imports no further format.
    return map(format_named, format_names())


def formats_of(names: Sequence[str], name: str) -> Iterator[Format]:
    """The formats whose ``locate`` may find a checkpoint ``name`` in a directory that has the files
    ``names``.

    Law: ``locate`` of every other format returns an empty list, so asking these is asking all.

    Every format is asked if ``name`` is a file's, since its bytes can tell. If it is empty and means
    the whole directory, only those formats read bytes whose files may have any name, and only if
    a name tells nothing. Otherwise names decide. Formats of other packages are always asked.

    >>> [form.name for form in formats_of(["ck.svindex", "ck.svdata-1f-00000-of-00001", "old.npz"], "ck")]
    ['shardvar']
    """
    if not name:
        told = {name: format_of_name(name) for name in names}
        others = [name for name in names if not told[name]]
        marked = {*told.values()}
        marked |= {form for form, known in _BUILT_IN.items() if any(map(known.mark.search, others))}
        marks = "|".join(known.mark.pattern for known in _BUILT_IN.values())
        mark = re.compile(rf"(?:{marks})(?:\w*-?\d{{5}}-of-\d{{5}})?\Z")  # not of "a.npzx"
        # A Universal Checkpoint without the states of its model has folders and no file.
        if not names or not all(
            mark.search(name) or ending_of_other_files(name) for name in others
        ):
            marked |= _ANY_NAME
        return map(format_named, [*filter(marked.__contains__, _BUILT_IN), *_added()])
    return all_formats() if name in names else formats_named(names, name)


def formats_named(names: Sequence[str], name: str) -> Iterator[Format]:
    """The formats whose marks follow the prefix ``name`` in the names of a directory."""
    # ``name`` may have a mark itself. The prefix ends before its first one:
    # "ck.svdata-1f-00000-of-00002" stands for a checkpoint "ck", whose index is "ck.svindex". A
    # prefix that contains a mark, such as "a.npz" in "a.npz.npz", is cut too early by this; then
    # every file of the checkpoint has that same mark at that place, and the answer is right.
    built_in, ordered = [], sorted(names)
    for form, known in _BUILT_IN.items():
        first = known.mark.search(name)
        prefix = name[: first.start()] if first else name
        for at in range(bisect_left(ordered, prefix), len(ordered)):
            if not ordered[at].startswith(prefix):
                break
            # The mark must follow the prefix directly: "ck-2.svindex" is not a file of "ck".
            if known.mark.match(ordered[at], len(prefix)):
                built_in.append(form)
                break
    return map(format_named, [*built_in, *_added()])


def formats_marked(names: Sequence[str]) -> Iterator[Format]:
    """The formats whose mark a file in a directory has; including other packages' formats.

    A writer asks these, and not all: it looks at names, and leaves the bytes of files to readers.

    >>> [form.name for form in formats_marked(["ck.svindex", "README.md"])]
    ['shardvar']
    """
    # A share means no checkpoint, and its name has the numbers of another format's files.
    names = [name for name in names if SHARE_MARK not in name]
    marks = {form: known.mark for form, known in _BUILT_IN.items()}
    built_in = [form for form, mark in marks.items() if any(map(mark.search, names))]
    return map(format_named, [*built_in, *_added()])


def usual_name(name: str) -> str:
    """Return the name of a format's new checkpoint in a folder; empty if it must be given."""
    return _BUILT_IN[name].usual_name if name in _BUILT_IN else ""


def about_format(name: str) -> tuple[str, str]:
    """Return a format in a few words, and the extra that it needs; both are empty for formats of
    other packages.

    >>> about_format("keras")
    ('Keras 3 and 2', 'keras')
    """
    known = _BUILT_IN.get(name)
    return (known.about, known.extra) if known else ("", "")


def side_of(name: str) -> int:
    """Return the rank of the checkpoints of a format (``_BuiltIn.side``)."""
    return _BUILT_IN[name].side if name in _BUILT_IN else 0


def is_companion(name: str) -> bool:
    """Return True if a file has a name that a trainer gives to files next to its model."""
    return re.fullmatch(_COMPANION, name) is not None


def format_of_name(name: str) -> str | None:
    """Return the format that a target's ending means, or None if it means none.

    >>> format_of_name("model.safetensors"), format_of_name("model")
    ('safetensors', None)
    """
    for form, known in _BUILT_IN.items():
        if name.endswith(known.suffixes):
            return form
    return None


def ending_of_other_files(name: str) -> str | None:
    """Return the ending of a name that promises another kind of file than a checkpoint, or None.

    >>> ending_of_other_files("model.tflite"), ending_of_other_files("model-v1.2")
    ('.tflite', None)
    """
    if not name.lower().endswith(_OTHER_FILES):
        return None
    return next(each for each in _OTHER_FILES if name.lower().endswith(each))


def stem_of_name(name: str, format_name: str) -> str:
    """Return a checkpoint's name without its format's ending: the same stem for every name of one
    checkpoint.

    >>> stem_of_name("model.safetensors.index.json", "safetensors"), stem_of_name("model", "safetensors")
    ('model', 'model')
    """
    for suffix in sorted(_suffixes(format_name), key=len, reverse=True):
        if name.endswith(suffix):
            # A name that is nothing but an ending, such as ".npz", stays as it is.
            return name.removesuffix(suffix) or name
    return name


def name_of_target(name: str, format_name: str) -> str:
    """Return the name that a format gives a target: a prefix takes no ending of an index."""
    return stem_of_name(name, format_name) if name.endswith(_PREFIX_INDEXES) else name


def names_of_target(name: str, format_name: str) -> list[str]:
    """Return the names under which a person may know a checkpoint, ``name`` itself first."""
    return [name, *map(name.__add__, _suffixes(format_name))]


def _suffixes(format_name: str) -> tuple[str, ...]:
    return _BUILT_IN[format_name].suffixes if format_name in _BUILT_IN else ()


def _added() -> dict[str, "EntryPoint"]:
    """Return the entry points of other packages' formats, by name."""
    added: dict[str, EntryPoint] = {}
    for point in entry_points_of("shardvar.formats"):
        # A package must not replace a built-in format, so those names are left out.
        if point.name not in _BUILT_IN:
            added.setdefault(point.name, point)
    return added
