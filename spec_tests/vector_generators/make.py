"""Write the published vectors: ``python -m spec_tests.vector_generators.make [DIR]``.

Without ``DIR`` they are packed into the package, as ``shardvar/vectors/vectors.zip``. README.md and
schema.json next to this file are written by hand; everything else is made here.

Two builds of zlib may compress the same bytes differently. So the archive is written again only if
the files in it change, and a test compares the files, not the archive's bytes.
"""

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from spec_tests.helpers.paths import ROOT
from spec_tests.vector_generators.case import Group

ARCHIVE = ROOT / "shardvar" / "vectors" / "vectors.zip"
HERE = Path(__file__).parent
BY_HAND = ("README.md", "schema.json")
GROUPS = (
    "div", "regions", "layouts", "partitioning", "slice_text", "indexing", "lookups", "updates",
    "random_numbers", "initializers", "optimizers", "policies", "checkpoints", "deltas",
)  # fmt: skip


def groups() -> Iterator[Group]:
    """Every group, in the order of the README."""
    for name in GROUPS:
        yield import_module(f"spec_tests.vector_generators.{name}").GROUP


def files() -> dict[str, bytes]:
    """Path -> bytes of every file."""
    found = {name: (HERE / name).read_bytes() for name in BY_HAND}
    for group in groups():
        found[f"{group.name}.json"] = group.to_bytes()
        found.update(group.files)
    return found


def packed(contents: Mapping[str, bytes]) -> bytes:
    """Return an archive of the files in the order of their names, with neither times nor owners."""
    octets = BytesIO()
    with ZipFile(octets, "w") as archive:
        for name in sorted(contents):
            member = ZipInfo(name)  # of 1980-01-01, the first time that the format can hold
            member.create_system, member.external_attr = 3, 0o100644 << 16  # a regular file of Unix
            archive.writestr(member, contents[name], ZIP_DEFLATED, compresslevel=9)
    return octets.getvalue()


def unpacked(archive: Path) -> dict[str, bytes]:
    """Path -> bytes of every file of an archive; empty if it does not exist."""
    if not archive.exists():
        return {}
    with ZipFile(archive) as found:
        return {name: found.read(name) for name in found.namelist()}


def update(archive: Path, made: Mapping[str, bytes]) -> list[str]:
    """Write the archive if its files differ from those that were made; return the names that do."""
    before = unpacked(archive)
    changed = sorted(
        name for name in made.keys() | before.keys() if made.get(name) != before.get(name)
    )
    if changed:
        archive.write_bytes(packed(made))
    return changed


def main() -> None:
    made = files()
    if len(sys.argv) == 1:
        changed = update(ARCHIVE, made)
        print(*changed, f"{len(changed)} of {len(made)} files changed", sep="\n")
        return
    for name, octets in made.items():
        path = Path(sys.argv[1], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(octets)


if __name__ == "__main__":
    main()
