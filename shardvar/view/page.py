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
from shardvar.view.collect import JsonColumns

SCHEMA = 4
"""The version of the columns, for programs that read them from a page; the page's own script is of
the same version.

It grows with every change by which a program that reads the columns would be misled or fail: a
column that goes, moves or means something else. A new column leaves it as it is. Version 1 had a
number for each row in every column, the bytes of every slice, and the absolute path of the
checkpoint; version 2 the kind and message of every fault in its row; version 3 shortened only
columns of which all numbers are the same.
"""

MARK = "<!doctype html>\n<!-- made by shardvar view -->\n"
"""The beginning of every page; a file that begins otherwise is never replaced."""

SERVED_POLICY = "; connect-src 'self'"
"""An addition to the policy of a page that is served: it may ask its own server."""

MOST_NBYTES = 15_000_000
"""The largest page, so that a browser opens it at once and it can be sent by mail."""

_SCRIPTS = (
    "data",
    "paint",
    "measures",
    "list",
    "layers",
    "treemap",
    "strip",
    "fold",
    "files",
    "slices",
    "detail",
    "address",
    "app",
)
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def make_page(
    checkpoints: Sequence[JsonColumns],
    diff: JsonColumns | None = None,
    served: bool = False,
    plan: JsonColumns | None = None,
) -> str:
    """A page that is ``served`` may ask its server; another has at most ``MOST_NBYTES``."""
    more = ["served"] if served else ["made"] if plan is not None and "made" in plan else []
    scripts = (*_SCRIPTS[:-1], *more, _SCRIPTS[-1])
    style, script = (
        _asset("page.css"),
        "\n".join(["'use strict';", *(_asset(f"{name}.js") for name in scripts)]),
    )
    data = embedded_json(
        {"schema": SCHEMA, "checkpoints": list(checkpoints), "diff": diff, "plan": plan}
    )
    title = " and ".join(printable(each["name"]) for each in checkpoints)
    # The policy lets only this script and this style run, by their hashes, and loads nothing: a
    # name in a hostile checkpoint cannot add code even if its escaping failed.
    filled = {
        "title": escape(title),
        "policy": f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri "
        f"'none'; form-action 'none'{SERVED_POLICY if served else ''}",
        "style": style,
        "script": script,
        "data": data,
    }
    # The template is split once, so that a text that fills one place is never searched for other
    # places. ``split`` returns the texts between the places at even numbers and the names of the
    # places at odd ones.
    parts = _PLACE.split(_asset("page.html"))
    text = MARK + "".join(filled[part] if number % 2 else part for number, part in enumerate(parts))
    # All is ASCII except for a few characters of the assets, so that characters are bytes.
    if len(text) > MOST_NBYTES and not served:
        remedy = (
            "Show part of it with --filter 'GLOB', or all of it with `shardvar view PATH --serve`."
        )
        if plan is not None:
            remedy = "Leave out --html: the answer of --dry-run has the numbers of the plan."
        elif len(checkpoints) > 1:
            remedy = "Show part of each checkpoint: `shardvar diff A B --filter 'GLOB'`."
        raise ArgumentError(
            f"The page would have {human_size(len(text))}; the limit is {human_size(MOST_NBYTES)}.",
            remedy,
        )
    return text


def room_left(page: str) -> int:
    return MOST_NBYTES - len(page)


def embedded_json(value: Any) -> str:
    """For a script element: no tag, comment or character reference can begin in it."""
    # A browser ends a script element at ``</script`` even inside a JSON string.
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return resources.files("shardvar.view").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    # The single quotes belong to the syntax of Content-Security-Policy.
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
