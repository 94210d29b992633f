"""Paths and URLs: the directory, bucket prefix or remote folder that a text means, and a bare name
in it.

    /data/run/model           LocalStorage /data/run, "model"                    (``storage.local``)
    s3://bucket/run/model     RemoteStorage s3://bucket/run, "model"             (``storage.urls``)

Nothing of the remote side is loaded before a URL asks for it.
"""

import os

from shardvar.storage.local import URL, split_path
from shardvar.storage.protocol import Storage


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is a URL: a scheme and "://".

    >>> is_url("s3://bucket/model"), is_url("/data/model")
    (True, False)
    """
    return isinstance(path, str) and URL.match(path) is not None


def split_place(path: str | os.PathLike[str]) -> tuple[Storage, str]:
    """Return the storage and the bare name that a path or URL means; empty for a folder."""
    if isinstance(path, str) and is_url(path):
        from shardvar.storage.urls import split_url

        return split_url(path)
    return split_path(path)
