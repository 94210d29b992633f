"""Files of a web server, read by ranges: the one module that speaks HTTP itself.

A redirect is followed only to the same scheme, host and port. The user has named one server, and
chosen encryption, or this machine; another server could be anyone's, and be asked without it.
obstore follows every redirect, so that it is not used here.
"""

import http.client
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from shardvar.errors import (
    COPY_AGAIN,
    MissingFile,
    ServerError,
    ShardvarError,
    StorageError,
    UnsupportedError,
    replaced_error,
)
from shardvar.storage import attempts
from shardvar.storage.attempts import Fault
from shardvar.storage.refusals import denied_error
from shardvar.storage.requests import FolderListing, Head

Taken = TypeVar("Taken")

_SECONDS = 20.0
"""The patience with a server that sends nothing."""
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_ENDED = (http.client.HTTPException, ConnectionError, TimeoutError)
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class WebClient:
    """The requests to one web server."""

    root: str
    """The URL of the server, without "/" at its end."""

    @property
    def can_write(self) -> bool:
        """Return False."""
        return False

    def place(self, key: str) -> str:
        """Return the URL of a key, for messages and for users."""
        return f"{self.root}/{quote(key)}" if key else self.root

    def head(self, key: str) -> Head:
        """Return the facts of a file; ``MissingFile`` if it does not exist."""
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
            return attempts.PACE.ask(attempt, _passing_fault)
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
    """Return scheme, host and port of a URL; None if it has no such, or a user's name.

    >>> _origin("https://Host/x?sig=1"), _origin("http://[::1]:8080/"), _origin("ftp://host/x")
    (('https', 'host', 443), ('http', '::1', 8080), None)
    """
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


def _passing_fault(error: Exception) -> Fault | None:
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
