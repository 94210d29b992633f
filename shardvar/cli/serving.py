"""The answers of ``shardvar view --serve``: values and statistics of one tensor, read when the page
asks.

A tensor is named by its row in the page, so that no key is written into an address.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from shardvar.cli.output import note, print_json, put
from shardvar.cli.show import describe_selection, has_checksums
from shardvar.errors import ArgumentError
from shardvar.forks import new_lock
from shardvar.verbs.compare.blocks import Statistics, measure
from shardvar.verbs.numbers import is_number, json_number
from shardvar.verbs.reader import Reader
from shardvar.verbs.reports import SCHEMA
from shardvar.view.serve import PageAnswer, PageServer

_WIDTH = 100
"""Characters of a line of values; the page scrolls longer ones."""

_FIELDS = ("min", "max", "mean", "std", "NaN", "inf", "zero", "elements")


def serve_page(page: str, reader: Reader, keys: Sequence[str], as_json: bool, show: bool) -> None:
    """Print the address and serve until an interrupt; with ``show``, open a browser."""
    import webbrowser

    with PageServer(page, answers_of(reader, keys)) as server:
        if as_json:
            print_json({"schema": SCHEMA, "url": server.url})
        else:
            put(f"serving {server.url}")
            sys.stdout.flush()
            note("Ctrl-C ends it. Only this machine can open the address, and only with its token.")
        if show and not webbrowser.open(server.url):
            note("note: no browser was found; open the address yourself.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            note("ended")


def answers_of(reader: Reader, keys: Sequence[str]) -> dict[str, PageAnswer]:
    """Return the answers by name: ``values`` of a tensor's part, and its ``statistics``."""
    # One answer of a kind at a time: a page may ask again before the first is done. A statistic
    # reads a whole tensor, so values do not wait for it.
    reading, measuring = new_lock(), new_lock()

    def key_of(fields: Mapping[str, str]) -> str:
        row = fields.get("tensor", "")
        if not (row.isascii() and row.isdigit() and len(row) <= 12 and int(row) < len(keys)):
            raise ArgumentError(
                f"The page has no tensor {row[:20]!r}.", f"Give a number from 0 to {len(keys) - 1}."
            )
        return keys[int(row)]

    def values(fields: Mapping[str, str]) -> dict[str, Any]:
        with reading:
            reader.unverified.clear()  # what was noted of the answer before
            key = key_of(fields)
            heading, text, caution = describe_selection(
                reader, key, fields.get("index", ""), _WIDTH
            )
            if not has_checksums(reader, key):
                caution = f"not verified: {reader.format} has no checksum of it"
        return {"heading": heading, "text": text, "note": caution}

    def statistics(fields: Mapping[str, str]) -> dict[str, Any]:
        key = key_of(fields)
        if not is_number(reader[key].dtype):
            raise ArgumentError(
                f"{reader[key].dtype} has no statistics.", "Choose a tensor of numbers."
            )
        with measuring:
            ((_, found),) = measure(reader, [key])
        if not isinstance(found, Statistics):
            raise found
        numbers = (
            found.minimum,
            found.maximum,
            found.mean,
            found.std,
            found.nan,
            found.inf,
            found.zero,
            found.count,
        )
        return dict(zip(_FIELDS, map(json_number, numbers), strict=True))

    return {"values": values, "statistics": statistics}
