"""Paths and URLs: the directory, bucket prefix or remote folder that a text means, and a bare name in it.

    /data/run/model           LocalStorage /data/run, "model"                    (``storage.local``)
    s3://bucket/run/model     RemoteStorage s3://bucket/run, "model"             (``storage.urls``)

Nothing of the remote side is loaded before a URL asks for it.
"""

import os
import re

from shardvar.errors import ArgumentError
from shardvar.storage.local import URL, split_path
from shardvar.storage.protocol import Storage

_LOST_SLASH = re.compile(r"(s3|gs|az|abfss?|https?|hf):/[^/]")


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is a URL: a scheme and "://".

    >>> is_url("s3://bucket/model"), is_url("/data/model")
    (True, False)
    """
    return isinstance(path, str) and URL.match(path) is not None


def split_place(path: str | os.PathLike[str]) -> tuple[Storage, str]:
    """Return the storage and the bare name that a path or a URL means; the name is empty if it means a folder."""
    if isinstance(path, str) and is_url(path):
        from shardvar.storage.urls import split_url

        return split_url(path)
    text = os.fsdecode(path) if isinstance(path, os.PathLike) else ""
    if _LOST_SLASH.match(text) and not os.path.lexists(text):
        raise ArgumentError(f"{text!r} is a URL that lost a slash.", "Give URLs as text, not as pathlib.Path.")
    return split_path(path)
