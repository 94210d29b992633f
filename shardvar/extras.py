"""Packages that only some parts of shardvar need, and the command that installs them.

The command depends on how shardvar was installed. Python's metadata says so (PEP 610): a package
from an index has no ``direct_url.json``, and any other has the address of its source there.
"""

import json
import os
import shlex
import sys
from urllib.parse import unquote, urlsplit

from shardvar.errors import MissingExtra

_PACKAGE = "shardvar"

_TOOLS = {
    "pipx_metadata.json": "pipx install --force",
    "uv-receipt.toml": "uv tool install --force",
}
"""Files in the environment of a program that a tool installed, and the command of that tool."""


def missing_extra(cause: str, extra: str) -> MissingExtra:
    """Return the error for a package that is not installed; ``extra`` brings it. Nothing follows
    the command in its remedy, so that it can be copied."""
    return MissingExtra(cause, f"Install it: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that installs shardvar again with an extra, from where it came. In a
    clone, ``pip install -e '.[cloud]'``; with the folder or the address for ``.`` elsewhere."""
    tools = (
        tool for file, tool in _TOOLS.items() if os.path.exists(os.path.join(sys.prefix, file))
    )
    tool = next(tools, "pip install")
    editable, source = _source()
    if source is None:
        what = f"{_PACKAGE}[{extra}]"
    elif "://" in source:
        what = f"{_PACKAGE}[{extra}] @ {source}"
    else:
        what = f"{source}[{extra}]"
    return f"{tool}{' -e' * editable} {shlex.quote(what)}"


def _source() -> tuple[bool, str | None]:
    """Return if shardvar is installed in editable mode, and its source: a folder, an address, None.
    None means an index. The folder is ``.`` for the working directory, and where the source is not
    known or no longer there: then the command works in a clone."""
    from importlib import metadata  # not above: it needs many modules, and few runs need it

    try:
        text = metadata.distribution(_PACKAGE).read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # imported from a folder
        return False, "."
    if text is None:
        return False, None
    try:
        origin = json.loads(text)
        url, folder, archive = origin["url"], origin.get("dir_info"), origin.get("vcs_info")
        if archive is not None:
            return False, f"{archive['vcs']}+{url}@{archive['commit_id']}"
    except (ValueError, TypeError, KeyError):
        return False, "."
    path = unquote(urlsplit(url).path)
    if folder is None:
        return False, url if not url.startswith("file:") or os.path.exists(path) else "."
    if not os.path.isdir(path):
        return False, "."
    is_here = os.path.realpath(path) == os.path.realpath(".")
    return bool(folder.get("editable")), "." if is_here else path
