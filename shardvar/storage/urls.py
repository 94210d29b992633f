"""URLs: the bucket prefix or the remote folder that a URL means, and a bare name in it.

    s3://bucket/run/model     RemoteStorage s3://bucket/run, "model", or s3://bucket/run/model, ""
                              if that is a folder
    https://host/model.npz only the file: web servers list nothing
    hf://user/model/x.gguf    any scheme that fsspec knows

A URL with a user's name, a password, a query, a fragment or parameters is refused, and its text is
not repeated: these are where secrets are. Credentials come from the environment. ``http`` is used
only with this machine, because everyone between could change the bytes.

fsspec. Only this module imports it, for ``hf://``, ``sftp://``, ``hdfs://`` and others.
A read cannot ask for a version, so the facts of a file are asked for again after each read of it.
Nothing is written: fsspec cannot replace a file only if it is unchanged.

HTTP. Files of a web server are read by ranges. A redirect is followed only to the same scheme, host
and port. The user has named one server, and chosen encryption, or this machine; another server
could be anyone's, and be asked without it. obstore follows every redirect, so that it is not used
here.
"""

import os
import re
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException, responses
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from shardvar.errors import (
    COPY_AGAIN,
    AccessDenied,
    ArgumentError,
    MissingExtra,
    MissingFile,
    ServerError,
    ShardvarError,
    UnsupportedError,
    replaced_error,
)
from shardvar.extras import missing_extra
from shardvar.forks import new_lock
from shardvar.records import frozen
from shardvar.storage import requests, settings
from shardvar.storage.concurrency import Result
from shardvar.storage.objects import OBJECT_SCHEMES, ObjectClient
from shardvar.storage.rehearsal import counted
from shardvar.storage.remote import RemoteStorage
from shardvar.storage.requests import (
    FAULTS,
    Client,
    Fault,
    FolderListing,
    Head,
    Operation,
    RootClient,
    check_process,
    denied_error,
    first_line,
    join_key,
    odd_error,
    pause_of_header,
    whole_files_error,
)

_lock = new_lock()
_processes: dict[str, int] = {}  # the process that used fsspec first

_BROKEN = {
    "ConnectionError",
    "HTTPException",
    "ClientConnectionError",
    "ClientPayloadError",
    "ChunkedEncodingError",
}
"""Errors of connections, by their names in Python, requests and aiohttp."""

_TIMES = ("mtime", "last_modified", "LastModified", "created")
_TAGS = ("ETag", "etag", "blob_id", "sha256")
"""The names under which file systems give the time of the last change, and a version."""


@frozen
class FilesystemClient(RootClient):
    def head(self, key: str) -> Head:
        info = self._ask(key, lambda system, base: system.info(_below(base, key)))
        if info.get("type") != "file":
            raise MissingFile(f"{self.place(key)} is not a file.", COPY_AGAIN)
        return _head_of_info(info)

    def read(self, key: str, head: Head, start: int, nbytes: int) -> memoryview:
        stop = min(start + nbytes, head.nbytes)

        def cat(system: Any, base: str) -> tuple[Any, Any]:
            # Without this, files of systems that are not asynchronous read 5 MiB ahead.
            options = {} if getattr(system, "async_impl", False) else {"cache_type": "none"}
            path = _below(base, key)
            return system.cat_file(path, start=start, end=stop, **options), system.info(path)

        octets, info = self._ask(key, cat)
        if _head_of_info(info).stamp != head.stamp:
            raise replaced_error(self.place(key))
        return memoryview(octets)

    def listing(self, key: str) -> FolderListing:
        try:
            base, listed = self._ask(
                key, lambda system, base: (base, system.ls(_below(base, key), detail=True)), "list"
            )
        except MissingFile:
            return FolderListing({}, [])
        folder = _below(base, key).strip("/")
        paths = {str(info["name"]).strip("/"): info for info in listed}
        infos = {path.rpartition("/")[2]: paths[path] for path in paths if path != folder}
        files = {
            name: _head_of_info(info) for name, info in infos.items() if info["type"] == "file"
        }
        folders = sorted(name for name, info in infos.items() if info["type"] == "directory")
        return FolderListing(files, folders)

    def walk(self, key: str) -> dict[str, Head]:
        base, infos = self._ask(
            key, lambda system, base: (base, system.find(_below(base, key), detail=True)), "list"
        )
        first = len(_below(base, key).strip("/"))
        below = {name.strip("/")[first:].strip("/"): info for name, info in infos.items()}
        return {path: _head_of_info(info) for path, info in below.items() if path}

    def _ask(
        self, key: str, request: Callable[[Any, str], Result], operation: Operation = "get"
    ) -> Result:
        """Return the result of a request, given the file system and the root's path."""
        try:
            system, base = self._system()
            what = f"{operation} {self.place(key)}"
            return requests.PACE.ask(lambda _: request(system, base), _fault, what=what)
        except ShardvarError:
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFile(f"{self.place(key)} is missing.", COPY_AGAIN) from error
        except PermissionError:
            raise denied_error(self.place(key), operation) from None
        except Exception as error:  # noqa: BLE001 - each file system raises errors of its library
            raise odd_error(self.place(key), first_line(error)) from None

    def _system(self) -> tuple[Any, str]:
        with _lock:
            first = _processes.setdefault("first", os.getpid())
            check_process(first, "a remote file system")
            if "" not in self._opened:
                self._opened[""] = _open_system(self.root)
            opened: tuple[Any, str] = self._opened[""]
            return opened


def _open_system(root: str) -> tuple[Any, str]:
    scheme = root.partition("://")[0]
    try:
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations, registry

        if scheme == "hf":
            import huggingface_hub  # noqa: F401 - fsspec needs it
    except ImportError as error:
        cause = f"Reading {scheme}:// needs the package {error.name}, which is not installed."
        raise missing_extra(cause, "hub" if scheme == "hf" else "cloud") from None
    if scheme not in known_implementations and scheme not in registry:
        raise ArgumentError(
            f"The scheme {scheme}:// is not known.",
            "Use s3, gs, az, abfs, https, or a scheme that fsspec knows.",
        )
    try:
        system, base = url_to_fs(root, use_listings_cache=False)
    except ImportError as error:
        # The text of fsspec's error has the package; a failed import has the name of its module.
        remedy = f"Install it: pip install {error.name}" if error.name else f"{error}."
        raise MissingExtra(
            f"Reading {scheme}:// needs a package that is not installed.", remedy
        ) from None
    return system, base


def _fault(error: Exception) -> Fault | None:
    if isinstance(error, ShardvarError):
        return None
    # The libraries of HTTP have the answer at the error, or its status and headers.
    answer = getattr(error, "response", None)
    answer = error if answer is None else answer
    kind = FAULTS.get(getattr(answer, "status_code", getattr(answer, "status", None)))
    if kind:
        headers = (getattr(answer, "headers", None) or {}) if kind == "refused" else {}
        return Fault(kind, pause_of_header(headers.get("Retry-After")))
    # A certificate that is not trusted stays so; ``ssl.SSLError`` is an OSError of another kind.
    reason = error.reason if isinstance(error, URLError) else error
    kinds = {kind.__name__ for kind in type(reason).__mro__}
    if kinds & {"TimeoutError", "ReadTimeout"} and "ConnectTimeout" not in kinds:
        return Fault("stalled")
    return Fault("broken") if kinds & _BROKEN else None


def _below(base: str, key: str) -> str:
    return f"{base.rstrip('/')}/{key}" if key else base


def _head_of_info(info: Mapping[str, Any]) -> Head:
    time = next((info[name] for name in _TIMES if info.get(name) is not None), None)
    changed = time.timestamp() if isinstance(time, datetime) else None
    if isinstance(time, int | float):
        changed = float(time)
    tag = next((info[name] for name in _TAGS if info.get(name)), None)
    return Head(info["size"], str(tag or changed or ""), changed)


Taken = TypeVar("Taken")

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_PORTS = {"http": 80, "https": 443}


def _unlistable_error(place: str) -> UnsupportedError:
    return UnsupportedError(
        f"{place} is a folder of a web server, which cannot be listed.",
        "Give the URL of a file: the index of a checkpoint, or its only file.",
    )


@frozen
class WebClient(RootClient):
    def place(self, key: str) -> str:
        return join_key(self.root, quote(key))

    def head(self, key: str) -> Head:
        def facts(answer: Any) -> Head:
            length = answer.headers.get("Content-Length", "")
            if not re.fullmatch(r"\d{1,18}", length):
                what = "the server does not say how many bytes it has"
                raise odd_error(self.place(key), what)
            return Head(int(length), _version(answer.headers), _changed(answer.headers))

        return self._ask("HEAD", key, {}, facts)

    def read(self, key: str, head: Head, start: int, nbytes: int) -> memoryview:
        def take(answer: Any) -> memoryview:
            match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if answer.status != 206 or match is None:
                raise whole_files_error(self.place(key))
            if int(match[3]) != head.nbytes or _version(answer.headers) != head.version:
                raise replaced_error(self.place(key))
            if int(match[1]) != start:
                what = f"the server sends another range, from byte {match[1]}"
                raise odd_error(self.place(key), what)
            # A range that is cut short is for the caller to notice; one byte more is never taken.
            return memoryview(answer.read(nbytes))

        return self._ask("GET", key, {"Range": f"bytes={start}-{start + nbytes - 1}"}, take)

    def listing(self, key: str) -> FolderListing:
        raise _unlistable_error(self.place(key))

    def walk(self, key: str) -> dict[str, Head]:
        raise _unlistable_error(self.place(key))

    def _ask(
        self, method: str, key: str, headers: dict[str, str], take: Callable[[Any], Taken]
    ) -> Taken:
        place = self.place(key)
        # Plain requests are for this machine only, and not for a proxy.
        plain = [ProxyHandler({})] if place.startswith("http:") else []
        opener = build_opener(_SameServer(place), *plain)
        opener.addheaders = [("User-Agent", "shardvar"), ("Accept-Encoding", "identity")]

        def attempt(_: int) -> Taken:
            request = Request(place, headers=headers, method=method)
            try:
                with closing(
                    opener.open(request, timeout=settings.current().answer_seconds)
                ) as answer:
                    return take(answer)
            except HTTPError as error:
                error.close()
                raise

        try:
            return requests.PACE.ask(attempt, _fault, what=f"{method} {place}")
        except ShardvarError:
            raise  # some of them are OSErrors
        except HTTPError as error:
            if error.code in (404, 410):
                raise MissingFile(f"{place} is missing.", COPY_AGAIN) from None
            if error.code in (401, 403):
                raise denied_error(place, "get") from None
            what = f"the server answers {error.code} {responses.get(error.code, '')}".rstrip()
            raise odd_error(place, what) from None
        except (URLError, HTTPException, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            what = f"the connection failed ({type(reason).__name__})"
            raise odd_error(place, what) from None


class _SameServer(HTTPRedirectHandler):
    def __init__(self, place: str) -> None:
        self.place = place

    def redirect_request(
        self,
        req: Request,
        fp: Any,
        code: int,  # noqa: ARG002
        msg: str,  # noqa: ARG002
        headers: Any,  # noqa: ARG002
        newurl: str,
    ) -> Request:
        """Return the request to the new address; ``ServerError`` if another server has it."""
        origin = _origin(newurl)
        if origin is None or origin != _origin(self.place):
            fp.close()
            shown = "another address" if origin is None else "{}://{}:{}".format(*origin)
            raise ServerError(
                f"{self.place} leads to {shown}, which is not the server that was named.",
                "Give the address of the file there, if you trust it, or download the file.",
            )
        return Request(newurl, headers=dict(req.headers), method=req.get_method())


def _origin(url: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port of a URL; None if it has no such, or a user's name."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:  # such as a port that is not a number
        return None
    if not host or port is None or parts.scheme not in _PORTS or "@" in parts.netloc:
        return None
    return parts.scheme, host, port


def _changed(headers: Any) -> float | None:
    try:
        return parsedate_to_datetime(headers.get("Last-Modified")).timestamp()
    except (TypeError, ValueError):
        return None


def _version(headers: Any) -> str:
    """Return the entity tag of an answer, else the time of the last change."""
    tag = str(headers.get("ETag") or "").strip('"')
    return tag or f"time {_changed(headers)}"


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


def path_of_file(url: str) -> str:
    _check_url("file", url)
    place, _, rest = url.partition("://")[2].partition("/")
    if place not in ("", "localhost"):
        cause = f"{url!r} is a file of the machine {place!r}."
        raise ArgumentError(cause, "Give file:///PATH, or a path of this machine.")
    return f"/{unquote(rest)}"


def split_url(url: str) -> tuple[RemoteStorage, str]:
    """Return the storage and the bare name that a URL means, empty for a folder."""
    scheme = url.partition("://")[0].lower()
    _check_url(scheme, url)
    place, _, rest = url.partition("://")[2].partition("/")
    is_web = scheme in ("http", "https")
    key = (unquote(rest) if is_web else rest).strip("/")
    if not place:
        raise ArgumentError(f"{url!r} names no bucket or server.", f"Give {scheme}://NAME/PATH.")
    if (key and not {"", ".", ".."}.isdisjoint(key.split("/"))) or min(url) < " ":
        raise ArgumentError(
            f"{url!r} has empty steps, dots or control characters in its path.", "Leave them out."
        )
    is_folder, (folder, _, name) = not key or url.endswith("/"), key.rpartition("/")
    root = f"{scheme}://{place}"
    if is_web:
        if is_folder:
            raise _unlistable_error(url)
        return RemoteStorage(counted(WebClient(root)), folder, name), name
    kind = ObjectClient if scheme in OBJECT_SCHEMES else FilesystemClient
    client: Client = counted(kind(root))
    if is_folder:
        return RemoteStorage(client, key), ""
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


def _check_url(scheme: str, url: str) -> None:
    """Raise for URLs that may hold secrets, or that everyone between may change."""
    text = unquote(url)  # "%3Fsig=" is a query that was encoded once too often
    rest = text.partition("://")[2]
    place = rest.partition("/")[0]
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
    has_user |= "@" in place and not is_allowed
    elsewhere = "credentials come from the environment."
    for is_wrong, what, remedy in (
        (scheme == "local", "is a path of this machine", "Leave local:// out."),
        ("?" in text, "has a query", f"Leave it out; {elsewhere}"),
        (
            "#" in url,
            "has a fragment",
            "Leave it out; a # that belongs to the name of a file is written %23, of a web server.",
        ),
        ("://" in rest, "has another URL in it", "Give one without the other."),
        (has_user, "has a user's name or a password in it", elsewhere.capitalize()),
        (
            _PARAMETER.search(rest),
            "has parameters, which begin with ; or & and have an = sign",
            f"Leave them out; {elsewhere}",
        ),
    ):
        if is_wrong:
            raise ArgumentError(f"The URL {scheme}://... {what}.", remedy)
    host = urlsplit(url).hostname or "" if scheme in ("http", "https") else ""
    if scheme == "http" and host not in _LOOPBACK:
        raise ArgumentError(f"{url} is not protected from changes on its way.", "Use https.")
    if host.endswith(_CLOUD_HOSTS):
        raise ArgumentError(
            f"{url} is an address of a bucket.", "Give it as s3://bucket/... or az://container/...."
        )
