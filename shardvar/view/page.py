"""Columns, style and script as one HTML file."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

from shardvar.errors import ArgumentError
from shardvar.pictures.words import human_size, printable
from shardvar.view.collect import Columns

SCHEMA = 1
"""The version of the columns; page and script are made together, so this is for whoever reads a page with a program."""

MARK = "<!doctype html>\n<!-- made by shardvar view -->\n"
"""How every page begins; a file that begins otherwise is never replaced."""

MOST_NBYTES = 15_000_000
"""No page is larger: a browser opens it at once, and it can be sent by mail."""

_SCRIPTS = ("data.js", "paint.js", "list.js", "treemap.js", "files.js", "slices.js", "detail.js", "app.js")
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def make_page(checkpoints: Sequence[Columns], diff: Columns | None = None) -> str:
    """The page of one checkpoint, or of two that were compared; the same columns give the same page.

    ``ArgumentError`` where it would be larger than ``MOST_NBYTES``.
    """
    style, script = _asset("page.css"), "\n".join(["'use strict';", *map(_asset, _SCRIPTS)])
    data = embedded_json({"schema": SCHEMA, "checkpoints": list(checkpoints), "diff": diff})
    title = " and ".join(printable(each["path"].rstrip("/").rpartition("/")[2]) for each in checkpoints)
    filled = {
        "title": escape(title),
        "policy": f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; "
        "form-action 'none'",
        "style": style,
        "script": script,
        "data": data,
    }
    # Split once: what is put in one place is never searched for another.
    pieces = _PLACE.split(_asset("page.html"))
    text = MARK + "".join(filled[piece] if number % 2 else piece for number, piece in enumerate(pieces))
    if len(text) > MOST_NBYTES:  # ASCII but for the assets
        raise ArgumentError(
            f"The page would have {human_size(len(text))}, and {human_size(MOST_NBYTES)} is the most.",
            f"Look at a part{' of each alone' if diff else ''}: `shardvar view --filter 'GLOB'`.",
        )
    return text


def embedded_json(value: Any) -> str:
    """JSON that may stand inside a script element: in it no tag, comment or character reference can begin.

    >>> embedded_json(["</script><!--", "\\u2028"])
    '["\\\\u003c/script\\\\u003e\\\\u003c!--","\\\\u2028"]'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return resources.files("shardvar.view").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
