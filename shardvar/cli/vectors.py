"""``shardvar vectors``: write the published vectors for the tests of another implementation.

The steps: check that the directory may be written to, create it, write file by file. No file is
ever removed.
"""

from argparse import Namespace
from pathlib import Path

from shardvar import vectors
from shardvar.cli.output import count, human_size, print_json, print_table, printable, put
from shardvar.errors import ArgumentError, StorageError, TargetExists
from shardvar.storage.local import split_path
from shardvar.verbs.problems import SCHEMA


def execute(arguments: Namespace) -> int:
    split_path(arguments.out)  # which refuses a URL
    target = Path(arguments.out)
    try:
        is_other = target.exists() and not target.is_dir()
        is_filled = target.is_dir() and any(target.iterdir())
    except OSError as error:
        raise _refused(target, error) from error
    if is_other:
        raise ArgumentError(
            f"{target} is not a directory.", "Give a directory, or a path that does not exist yet."
        )
    if is_filled and not arguments.force:
        raise TargetExists(
            f"The directory {target} is not empty.",
            "Give another one, or pass --force: it replaces files of the same names and keeps "
            "all others.",
        )
    nbytes = 0
    try:
        for name in vectors.names():
            path = target.joinpath(*name.split("/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            nbytes += path.write_bytes(vectors.read(name))
    except OSError as error:
        raise _refused(target, error) from error
    headers = [vectors.group(name)["header"] for name in vectors.groups()]
    rows = [
        {"group": header["group"], "count": header["count"], "title": header["title"]}
        for header in headers
    ]
    if arguments.json:
        report = {
            "out": str(target),
            "num_files": len(vectors.names()),
            "nbytes": nbytes,
            "groups": rows,
        }
        print_json({"schema": SCHEMA, **report})
        return 0
    print_table(
        ["group", "vectors", "about"],
        [[row["group"], str(row["count"]), row["title"]] for row in rows],
        [1],
    )
    wrote = f"{count(len(vectors.names()), 'file')}, {human_size(nbytes)}"
    put(f"wrote {wrote}; start with {printable(str(target / 'README.md'))}")
    return 0


def _refused(target: Path, error: OSError) -> StorageError:
    cause = f"Cannot write {error.filename or target}: {error.strerror or error}."
    return StorageError(cause, "Check the path, the permissions and the free space.")
