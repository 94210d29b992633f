"""URLs: the bucket prefix or the remote folder that a URL means, and a bare name in it.

    s3://bucket/run/model     RemoteStorage s3://bucket/run, "model", or s3://bucket/run/model, ""
                              if that is a folder
    https://host/model.npz only the file: web servers list nothing
    hf://user/model/x.gguf    any scheme that fsspec knows

A URL with a user's name, a password, a query, a fragment or parameters is refused, and its text is
not repeated: these are where secrets are. Credentials come from the environment. ``http`` is used
only with this machine, because everyone between could change what is read.

fsspec. This is the one module that imports it, for ``hf://``, ``sftp://``, ``hdfs://`` and others.
A read cannot ask for a version, so the facts of a file are asked for again after each read of it.
Nothing is written: fsspec cannot replace a file only if it is unchanged.

HTTP. Files of a web server are read by ranges. A redirect is followed only to the same scheme, host
and port. The user has named one server, and chosen encryption, or this machine; another server
could be anyone's, and be asked without it. obstore follows every redirect, so that it is not used
here.
"""

import http.client
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Self, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from shardvar.errors import (
    COPY_AGAIN,
    AccessDenied,
    ArgumentError,
    MissingExtra,
    MissingFile,
    ServerError,
    ShardvarError,
    StorageError,
    UnsupportedError,
    replaced_error,
)
from shardvar.extras import missing_extra
from shardvar.forks import new_lock
from shardvar.storage import requests
from shardvar.storage.concurrency import Result
from shardvar.storage.objects import OBJECT_SCHEMES, ObjectClient
from shardvar.storage.remote import RemoteStorage
from shardvar.storage.requests import (
    Client,
    Fault,
    FolderListing,
    Head,
    Operation,
    denied_error,
    first_line,
    pause_of_header,
)

_lock = new_lock()
_processes: dict[str, int] = {}  # the process that used fsspec first

_BROKEN = {"ConnectionError", "ClientConnectionError", "ClientPayloadError", "ChunkedEncodingError"}
"""Errors of connections, by their names in Python, requests and aiohttp."""

_TIMES = ("mtime", "last_modified", "LastModified", "created")
"""The names under which file systems give the time of the last change."""


@dataclass(frozen=True, slots=True)
class FilesystemClient:
    """The requests to one file system."""

    root: str  # Scheme and server, or scheme and first step, without "/" at its end
    _opened: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (self.root,)  # a file system that is pickled may have keys in it

    @property
    def can_write(self) -> bool:
        return False

    def place(self, key: str) -> str:
        """Return the URL of a key, for messages and for users."""
        return f"{self.root}/{key}" if key else self.root

    def head(self, key: str) -> Head:
        """Return the facts of a file; ``MissingFile`` if it does not exist."""
        found = self._ask(key, lambda system, base: system.info(_below(base, key)))
        if found.get("type") != "file":
            raise MissingFile(f"{self.place(key)} is not a file.", COPY_AGAIN)
        return _head_of_info(found)

    def read(self, key: str, head: Head, start: int, nbytes: int) -> memoryview:
        """Return the bytes that the server sends for a range, up to the size from ``head``;
        ``CorruptCheckpoint`` if the file has another version."""
        stop = min(start + nbytes, head.nbytes)

        def cat(system: Any, base: str) -> tuple[Any, Any]:
            # Without this, files of systems that are not asynchronous read 5 MiB ahead.
            options = {} if getattr(system, "async_impl", False) else {"cache_type": "none"}
            path = _below(base, key)
            return system.cat_file(path, start=start, end=stop, **options), system.info(path)

        octets, found = self._ask(key, cat)
        if _head_of_info(found).stamp != head.stamp:
            raise replaced_error(self.place(key))
        return memoryview(octets)

    def listing(self, key: str) -> FolderListing:
        """Return the content of a folder; empty if it does not exist."""
        try:
            base, listed = self._ask(
                key, lambda system, base: (base, system.ls(_below(base, key), detail=True)), "list"
            )
        except MissingFile:
            return FolderListing({}, [])
        folder = _below(base, key).rpartition("/")[2]
        found = [each for each in listed if _name(each) != folder]
        files = {_name(each): _head_of_info(each) for each in found if each["type"] == "file"}
        return FolderListing(
            files, sorted(_name(each) for each in found if each["type"] == "directory")
        )

    def walk(self, key: str) -> dict[str, Head]:
        """Return the facts of all files below a folder, by their paths from it."""
        base, found = self._ask(
            key, lambda system, base: (base, system.find(_below(base, key), detail=True)), "list"
        )
        first = len(_below(base, key).strip("/"))
        return {
            name.strip("/")[first:].strip("/"): _head_of_info(each) for name, each in found.items()
        }

    def _ask(
        self, key: str, request: Callable[[Any, str], Result], operation: Operation = "get"
    ) -> Result:
        """Return the result of a request, which is made again where that may help; it gets the file
        system and the root's path."""
        with self._asking(key, operation):
            system, base = self._system()
            return requests.PACE.ask(lambda _: request(system, base), _library_fault)

    @contextmanager
    def _asking(self, key: str, operation: Operation) -> Iterator[None]:
        """Turn errors of a file system into shardvar's."""
        try:
            yield
        except ShardvarError:
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFile(f"{self.place(key)} is missing.", COPY_AGAIN) from error
        except PermissionError:
            raise denied_error(self.place(key), operation) from None
        except Exception as error:  # noqa: BLE001 - each file system raises errors of its library
            cause = f"{self.place(key)} does not answer as it should: {first_line(error)}."
            raise ServerError(
                cause, "Check address, credentials and connection, and try again."
            ) from None

    def _system(self) -> tuple[Any, str]:
        with _lock:
            if _processes.setdefault("first", os.getpid()) != os.getpid():
                cause = (
                    "This process was forked from one that has used a remote file system, whose "
                    "threads it lacks."
                )
                raise UnsupportedError(
                    cause, "Start it with multiprocessing's method 'spawn', or fork before."
                )
            if "" not in self._opened:
                self._opened[""] = _open_system(self.root)
            found: tuple[Any, str] = self._opened[""]
            return found


def _open_system(root: str) -> tuple[Any, str]:
    """Return a file system, and the path of the root in it."""
    scheme = root.partition("://")[0]
    try:
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations, registry
    except ImportError:
        cause = f"Reading {scheme}:// needs the package fsspec, which is not installed."
        raise missing_extra(cause, "cloud") from None
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


def _library_fault(error: Exception) -> Fault | None:
    """Return the fault of a request that failed with ``error``, if it may pass; None otherwise."""
    # The libraries of HTTP have the answer at the error, or its status and headers.
    answer = getattr(error, "response", None)
    answer = error if answer is None else answer
    status = getattr(answer, "status_code", getattr(answer, "status", None))
    if status in (429, 503):
        headers = getattr(answer, "headers", None) or {}
        return Fault("refused", pause_of_header(headers.get("Retry-After")))
    if status in (408, 500, 502, 504):
        return Fault("broken")
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"TimeoutError", "ReadTimeout"} and "ConnectTimeout" not in kinds:
        return Fault("stalled")
    return Fault("broken") if kinds & _BROKEN else None


def _below(base: str, key: str) -> str:
    return f"{base.rstrip('/')}/{key}" if key else base


def _name(found: Mapping[str, Any]) -> str:
    """Return the bare name of an item of a listing."""
    return str(found["name"]).rstrip("/").rpartition("/")[2]


def _head_of_info(found: Mapping[str, Any]) -> Head:
    """Return the facts that fsspec gives of a file; its version is all that is said of it."""
    time = next((found[name] for name in _TIMES if found.get(name) is not None), None)
    changed = (
        time.timestamp()
        if isinstance(time, datetime)
        else float(time)
        if isinstance(time, int | float)
        else None
    )
    tag = next(
        (found[name] for name in ("ETag", "etag", "blob_id", "sha256") if found.get(name)), None
    )
    return Head(found["size"], str(tag or changed or ""), changed)


Taken = TypeVar("Taken")

_SECONDS = 20.0  # the patience with a server that sends nothing
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_ENDED = (http.client.HTTPException, ConnectionError, TimeoutError)
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class WebClient:
    """The requests to one web server."""

    root: str  # the URL of the server, without "/" at its end

    @property
    def can_write(self) -> bool:
        return False

    def place(self, key: str) -> str:
        """Return the URL of a key, for messages and for users."""
        return f"{self.root}/{quote(key)}" if key else self.root

    def head(self, key: str) -> Head:
        return self._ask("HEAD", key, {}, lambda answer: self._facts(key, answer))

    def read(self, key: str, head: Head, start: int, nbytes: int) -> memoryview:
        """Return the bytes that the server sends for a range; ``CorruptCheckpoint`` if the file has
        another version."""

        def take(answer: Any) -> memoryview:
            found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if answer.status != 206 or found is None:
                raise ServerError(
                    f"{self.place(key)}: the server sends only whole files, and not the requested "
                    "ranges.",
                    "Download the file, or use a server that answers range requests.",
                )
            if int(found[3]) != head.nbytes or _version(answer.headers) != head.version:
                raise replaced_error(self.place(key))
            if int(found[1]) != start:
                raise self._odd(key, f"the server sends another range, from byte {found[1]}")
            # A range that is cut short is for the caller to notice; one byte more is never taken.
            return memoryview(answer.read(nbytes))

        return self._ask("GET", key, {"Range": f"bytes={start}-{start + nbytes - 1}"}, take)

    def listing(self, key: str) -> FolderListing:
        """Raise ``UnsupportedError``: a web server lists nothing."""
        raise UnsupportedError(
            f"{self.place(key)} is a folder of a web server, which cannot be listed.",
            "Give the URL of a file: the index of a checkpoint, or its only file.",
        )

    def walk(self, key: str) -> dict[str, Head]:
        """Raise ``UnsupportedError``, as ``listing``."""
        self.listing(key)
        return {}

    def _facts(self, key: str, answer: Any) -> Head:
        length = answer.headers.get("Content-Length", "")
        if not re.fullmatch(r"\d{1,18}", length):
            raise self._odd(key, "the server does not say how many bytes it has")
        changed = _changed(answer.headers)
        return Head(int(length), _version(answer.headers), changed)

    def _ask(
        self, method: str, key: str, headers: dict[str, str], take: Callable[[Any], Taken]
    ) -> Taken:
        """Return what ``take`` makes of the answer; the request is made again where that may
        help."""
        place = self.place(key)
        opener = _opener(place)

        def attempt(_: int) -> Taken:
            request = Request(place, headers=headers, method=method)
            try:
                with closing(opener.open(request, timeout=_SECONDS)) as answer:
                    return take(answer)
            except HTTPError as error:
                error.close()
                raise

        try:
            return requests.PACE.ask(attempt, _http_fault)
        except ShardvarError:
            raise  # some of them are OSErrors
        except HTTPError as error:
            raise self._refused(key, error.code) from None
        except (URLError, *_ENDED, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise self._odd(key, f"the connection failed ({type(reason).__name__})") from None

    def _refused(self, key: str, status: int) -> StorageError | MissingFile:
        if status in (404, 410):
            return MissingFile(f"{self.place(key)} is missing.", COPY_AGAIN)
        if status in (401, 403):
            return denied_error(self.place(key), "get")
        said = http.client.responses.get(status, "")
        return self._odd(key, f"the server answers {status} {said}".rstrip())

    def _odd(self, key: str, what: str) -> ServerError:
        return ServerError(
            f"{self.place(key)} does not answer as it should: {what}.",
            "Check address, credentials and connection, and try again.",
        )


class _SameServer(HTTPRedirectHandler):
    """Redirects, which may not leave the server."""

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


def _opener(place: str) -> OpenerDirector:
    # Plain requests are for this machine only, and not for a proxy.
    plain = [ProxyHandler({})] if place.startswith("http:") else []
    opener = build_opener(_SameServer(place), *plain)
    opener.addheaders = [("User-Agent", "shardvar"), ("Accept-Encoding", "identity")]
    return opener


def _http_fault(error: Exception) -> Fault | None:
    """Return the fault of a request that failed with ``error``, if it may pass; None otherwise."""
    if isinstance(error, ShardvarError):
        return None
    if isinstance(error, HTTPError):
        if error.code in (429, 503):
            after = error.headers.get("Retry-After", "")
            return Fault("refused", float(after) if re.fullmatch(r"\d{1,4}", after) else 0.0)
        return Fault("broken") if error.code in (408, 500, 502, 504) else None
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return Fault("stalled")
    # A certificate that is not trusted stays so; ``ssl.SSLError`` is an OSError of another kind.
    return Fault("broken") if isinstance(reason, _ENDED) else None


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


def split_url(url: str) -> tuple[RemoteStorage, str]:
    """Return the storage and the bare name that a URL means; the name is empty if it means a
    folder. One folder of a bucket is listed, and nothing else is asked for."""
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
