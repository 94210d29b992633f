"""URLs: the bucket prefix or the remote folder that a URL means, and a bare name in it.

    s3://bucket/run/model     RemoteStorage s3://bucket/run, "model", or s3://bucket/run/model, ""
                              if that is a folder
    https://host/model.npz only the file: web servers list nothing
    hf://user/model/x.gguf    any scheme that fsspec knows

A URL with a user's name, a password, a query, a fragment or parameters is refused, and its text
is not repeated: these are where secrets are. Credentials come from the environment. ``http`` is
used only with this machine, because everyone between could change what is read.
"""

import re
from contextlib import suppress
from urllib.parse import unquote, urlsplit

from shardvar.errors import AccessDenied, ArgumentError, MissingFile, UnsupportedError
from shardvar.storage.filesystems import FilesystemClient
from shardvar.storage.objects import OBJECT_SCHEMES, ObjectClient
from shardvar.storage.remote import RemoteStorage
from shardvar.storage.requests import Client
from shardvar.storage.web import WebClient

_BUCKETS = frozenset(["s3", "gs", "az"])
_LOOPBACK = frozenset(["localhost", "127.0.0.1", "::1"])
_CLOUD_HOSTS = (
    ".amazonaws.com",
    ".cloudflarestorage.com",
    ".core.windows.net",
    ".fabric.microsoft.com",
)
_PARAMETER = re.compile(r"[;&][^/]*=")
"""A parameter in a path, such as ";sig=..." or "&sig=...", which may be a signature. "step=100" by
itself is a name."""


def split_url(url: str) -> tuple[RemoteStorage, str]:
    """Return the storage and the bare name that a URL means; the name is empty if it means a
    folder.

    ``ArgumentError`` for a URL that cannot be one of a checkpoint. One folder of a bucket is
    listed, and nothing else is asked for.
    """
    scheme = url.partition("://")[0].lower()
    _check_url(scheme, url)
    root, key = _split_key(scheme, url)
    if scheme in ("http", "https"):
        return _split_web(WebClient(root), key, url)
    client: Client = ObjectClient(root) if scheme in OBJECT_SCHEMES else FilesystemClient(root)
    if not key or url.endswith("/"):
        return RemoteStorage(client, key), ""
    folder, _, name = key.rpartition("/")
    above = RemoteStorage(client, folder)
    try:
        return (above.folder(name), "") if name in above.folders() else (above, name)
    except AccessDenied as error:
        # The right to read a file does not need the right to list its folder.
        with suppress(AccessDenied, MissingFile):
            client.head(key)
            return RemoteStorage(client, folder, name), name
        remedy = f"{error.remedy} Without it, give the URL of an index or of an only file."
        raise AccessDenied(error.cause, remedy) from None


def _split_web(client: WebClient, key: str, url: str) -> tuple[RemoteStorage, str]:
    """Return the storage of a web server, which lists nothing."""
    if not key or url.endswith("/"):
        raise UnsupportedError(
            f"{url} is a folder of a web server, which cannot be listed.",
            "Give the URL of a file: the index of a checkpoint, or its only file.",
        )
    folder, _, name = key.rpartition("/")
    return RemoteStorage(client, folder, name), name


def _check_url(scheme: str, url: str) -> None:
    """Raise for URLs that may hold secrets, or that everyone between may change."""
    shown = f"{scheme}://..."
    if scheme in ("file", "local"):
        raise ArgumentError(
            f"The URL {shown} is a path of this machine.", f"Leave {scheme}:// out."
        )
    text = unquote(url)  # "%3Fsig=" is a query that was encoded once too often
    if "?" in text:
        raise ArgumentError(
            f"The URL {shown} has a query.", "Leave it out; credentials come from the environment."
        )
    if "#" in url:
        raise ArgumentError(
            f"The URL {shown} has a fragment.",
            "Leave it out; a # that belongs to the name of a file is written %23, of a web server.",
        )
    rest = text.partition("://")[2]
    place = rest.partition("/")[0]
    if "://" in rest:
        raise ArgumentError(
            f"The URL {shown} has another URL in it.", "Give one without the other."
        )
    # A password may have a "/", which ends the name of the server too early. Only the port of a
    # server is digits.
    colon, port = place.rpartition(":")[1:]
    has_user = (
        bool(colon) and not place.endswith("]") and not (port.isdigit() and scheme not in _BUCKETS)
    )
    # abfs://container@account.dfs.core.windows.net names a container in this way; a password needs
    # a colon.
    is_allowed = (
        scheme in ("abfs", "abfss", "hdfs", "sftp", "ssh") and ":" not in place.rpartition("@")[0]
    )
    if has_user or ("@" in place and not is_allowed):
        raise ArgumentError(
            f"The URL {shown} has a user's name or a password in it.",
            "Credentials come from the environment.",
        )
    if _PARAMETER.search(rest):
        cause = f"The URL {shown} has parameters, which begin with ; or & and have an = sign."
        raise ArgumentError(cause, "Leave them out; credentials come from the environment.")
    host = urlsplit(url).hostname or "" if scheme in ("http", "https") else ""
    if scheme == "http" and host not in _LOOPBACK:
        raise ArgumentError(f"{url} is not protected from changes on its way.", "Use https.")
    if host.endswith(_CLOUD_HOSTS):
        raise ArgumentError(
            f"{url} is an address of a bucket.", "Give it as s3://bucket/... or az://container/...."
        )


def _split_key(scheme: str, url: str) -> tuple[str, str]:
    """Return the root of a URL, and the key below it without "/" at its ends."""
    place, _, rest = url.partition("://")[2].partition("/")
    if scheme in ("http", "https"):
        rest = unquote(rest)
    key = rest.strip("/")
    if not place:
        raise ArgumentError(f"{url!r} names no bucket or server.", f"Give {scheme}://NAME/PATH.")
    if (key and any(step in ("", ".", "..") for step in key.split("/"))) or any(
        ord(each) < 32 for each in url
    ):
        raise ArgumentError(
            f"{url!r} has empty steps, dots or control characters in its path.", "Leave them out."
        )
    return f"{scheme}://{place}", key
