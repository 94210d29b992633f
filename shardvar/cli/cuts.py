"""Cuts and joins from typed text: ``--mesh``, ``--shards`` and ``--concat``. Other text is an
``ArgumentError``."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from shardvar.cli.usage import parse_count, parse_pairs
from shardvar.errors import ArgumentError
from shardvar.layout.cutting import Cut
from shardvar.layout.meshes import Layout, named_sharding, parameter_servers
from shardvar.layout.meshes.mesh import Mesh
from shardvar.verbs.joining import Join, Spec

_MESH = "Give the axes of the mesh, the slowest first: --mesh 'dp=2,tp=4'."


def parse_mesh(text: str) -> Mesh:
    """Return the mesh of ``NAME=SIZE`` pairs, the axis that varies slowest first.

    >>> str(parse_mesh("dp=2,tp=4"))
    '(dp=2, tp=4)'
    """
    names, sizes = [], []
    for word in text.split(","):
        name, equals, size = (part.strip() for part in word.partition("="))
        if not (equals and re.fullmatch(r"[^\W\d]\w*", name)):
            raise ArgumentError(
                f"Invalid --mesh {text!r}: {word.strip()!r} is not NAME=SIZE.", _MESH
            )
        if not re.fullmatch(r"0*[1-9][0-9]{0,8}", size):
            raise ArgumentError(
                f"Invalid --mesh {text!r}: the size {size!r} is not an integer >= 1.", _MESH
            )
        names.append(name)
        sizes.append(int(size))
    return Mesh(sizes, names)


def parse_joins(texts: Sequence[str], mesh: Mesh | None = None) -> dict[str, Join]:
    """Return, by glob, the axis along which parts follow each other, or the mesh with an entry for
    each axis.

    >>> parse_joins(["*.weight=0", "*.out.*=-1"])
    {'*.weight': 0, '*.out.*': -1}
    >>> parse_joins(["*.weight=-,tp"], parse_mesh("tp=2"))["*.weight"][1]
    (None, ('tp',))
    """
    joins: dict[str, Join] = {}
    for glob, text in parse_pairs(texts, "--concat", "GLOB=AXIS").items():
        if re.fullmatch(r"-?[0-9]{1,3}", text):
            joins[glob] = int(text)
        elif mesh is None:
            raise ArgumentError(
                f"Invalid axis {text!r} of --concat.",
                f"For example: --concat '{glob}=0', or also give --mesh.",
            )
        else:
            joins[glob] = mesh, _read_entries(text, mesh, "--concat")
    return joins


def parse_shards(
    texts: Sequence[str],
    mesh: Mesh | None = None,
    *,
    on_devices: bool = False,
    joins: Mapping[str, Join] = MappingProxyType({}),
) -> dict[str, Cut]:
    """Return the cuts by glob: ``CUT`` is for every tensor, ``GLOB=CUT`` for the tensors that
    match.

    A cut is a number of shards, or with a mesh its axes: an entry for each axis of the tensor,
    ``-`` for one that stays whole, names joined by ``+``. Of several globs that match a tensor the
    last one counts, so a cut without a glob is put first. ``on_devices`` also makes a number a
    layout, with shard ``i`` on device ``i``. A mesh is refused that neither a cut names, nor one of
    ``joins``.

    >>> parse_shards(["emb*=8", "2"])
    {'*': 2, 'emb*': 8}
    >>> layout = parse_shards(["*.weight=-,tp"], parse_mesh("tp=2"))["*.weight"]((3, 4), "float32")
    >>> [str(layout.regions(device)[0]) for device in range(2)]
    ['[0:3, 0:2]', '[0:3, 2:4]']
    """
    general: dict[str, Cut] = {}
    special: dict[str, Cut] = {}
    named = []
    for text in texts:
        glob, equals, given = text.rpartition("=")
        is_count = re.fullmatch(r"[0-9]*", given) is not None
        named += [] if is_count else [given]
        cut = (
            _counted(parse_count(given, "--shards"), on_devices)
            if is_count
            else _along_mesh(given, mesh)
        )
        (special if equals else general)[glob or "*"] = cut
    if (
        mesh is not None
        and not named
        and not any(isinstance(rule, tuple) for rule in joins.values())
    ):
        raise ArgumentError(
            f"Neither --shards nor --concat uses an axis of the mesh {mesh}.",
            "Use one: --shards '*.weight=tp,-'.",
        )
    if on_devices and not texts:
        raise ArgumentError(
            "--files-by device is given without --shards.",
            "Cut tensors: --shards 4, or --mesh 'tp=4' --shards '*.weight=tp,-'.",
        )
    return general | special


def _counted(count: int, on_devices: bool) -> Cut:
    if not on_devices:
        return count

    def on_servers(shape: tuple[int, ...], _dtype: str) -> Layout:
        return parameter_servers(shape, Mesh((count,)))

    return on_servers


def _along_mesh(text: str, mesh: Mesh | None) -> Cut:
    """The cut by the axes of a mesh that an entry for each axis of a tensor names."""
    if mesh is None:
        raise ArgumentError(
            f"Invalid --shards {text!r}: expected an integer >= 1.",
            "To cut along the axes of a mesh, also give --mesh.",
        )
    spec = _read_entries(text, mesh, "--shards")

    def along_axes(shape: tuple[int, ...], _dtype: str) -> Layout:
        return named_sharding(shape, mesh, spec)

    return along_axes


def _read_entries(text: str, mesh: Mesh, option: str) -> Spec:
    """The mesh axes by the entry of each tensor axis; None for an axis that stays whole."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ArgumentError(
            f"Invalid {option} {text!r}: an entry is empty.",
            "Write - for an axis that stays whole.",
        )
    spec = tuple(
        None if word == "-" else tuple(name.strip() for name in word.split("+")) for word in words
    )
    for name in (name for names in spec if names for name in names):
        mesh.axis(name)
    return spec
