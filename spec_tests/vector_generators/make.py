"""Write the published vectors: ``python -m spec_tests.vector_generators.make [DIR]``, by default
into the package.

README.md and schema.json in that directory are written by hand; everything else in it is written
here.
"""

import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from spec_tests.helpers.paths import ROOT
from spec_tests.vector_generators.case import Group

DATA = ROOT / "shardvar" / "vectors" / "data"
BY_HAND = ("README.md", "schema.json")
GROUPS = (
    "div", "regions", "layouts", "partitioning", "slice_text", "indexing", "lookups", "updates", "random_numbers",
    "initializers", "optimizers", "policies", "checkpoints",
)  # fmt: skip


def groups() -> Iterator[Group]:
    """Every group, in the order of the README."""
    for name in GROUPS:
        yield import_module(f"spec_tests.vector_generators.{name}").GROUP


def files() -> dict[str, bytes]:
    """Path -> bytes of every file that is generated."""
    found: dict[str, bytes] = {}
    for group in groups():
        found[f"{group.name}.json"] = group.to_bytes()
        found.update(group.files)
    return found


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    made = files()
    target.mkdir(parents=True, exist_ok=True)
    for path in target.iterdir():
        if path.name not in BY_HAND:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, octets in made.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(octets)


if __name__ == "__main__":
    main()
