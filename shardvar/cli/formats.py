"""``shardvar formats``: the formats that are read and written, and what a write promises, also in a
bucket.

The facts are those by which a write is planned and refused (``planning.slices``), so the
table cannot promise what the code does not do.
"""

from argparse import Namespace
from typing import Any

from shardvar.cli.output import print_json, print_table
from shardvar.formats.table import about_format, all_formats
from shardvar.verbs.problems import SCHEMA

_LEAST_NEEDED = (1, 5, 3)
"""The columns that a narrow terminal leaves out, first to last: the words about a format, its
extra, slices."""


def execute(arguments: Namespace) -> int:
    rows: list[dict[str, Any]] = []
    for form in all_formats():
        (about, extra), capabilities = about_format(form.name), form.capabilities
        row = {
            "format": form.name,
            "about": about,
            "read": True,
            "written": bool(capabilities.dtypes),
            "slices": bool(capabilities.slice_dtypes),
            "atomic": capabilities.atomic_overwrite,
            "in_buckets": bool(capabilities.dtypes),
            "extra": extra or None,
        }
        rows.append(row)
    if arguments.json:
        print_json({"schema": SCHEMA, "formats": rows})
        return 0
    cells = [
        [
            row["format"],
            row["about"],
            "read, write" if row["written"] else "read",
            "yes" if row["slices"] else "no",
            # What replacing a checkpoint in a bucket promises.
            "read" if not row["in_buckets"] else "write, atomic" if row["atomic"] else "write",
            row["extra"] or "-",
        ]
        for row in rows
    ]
    print_table(
        ["format", "about", "access", "slices", "in a bucket", "extra"], cells, drop=_LEAST_NEEDED
    )
    return 0
