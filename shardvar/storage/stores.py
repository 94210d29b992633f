"""The stores of obstore: the one module that imports it, and the patience of its clients.

A store is made from the environment. obstore's threads do not survive a fork: a child of a process
that has used it is refused, since it would wait for ever.
"""

import os
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.extras import missing_extra
from shardvar.forks import new_lock
from shardvar.storage.attempts import pause_of_header
from shardvar.storage.refusals import ALLOW_HTTP
from shardvar.storage.requests import first_line

CLIENTS: dict[str, dict[str, str]] = {
    "reading": {"timeout": "300s", "read_timeout": "20s"},
    "writing 0": {"timeout": "30s"},
    "writing 1": {"timeout": "60s"},
    "writing 2": {"timeout": "120s"},
    "parts": {"timeout": "60s"},
}
"""The patience with one attempt, by its kind; ``storage.attempts`` has that with a request.

An answer that comes slowly is not stalled. A body that goes up slowly cannot be told from one that
is stalled, so later attempts have more time: 16 MiB in the end at 140 KB/s.
"""

_ONCE: dict[str, Any] = {"max_retries": 0}
_PARTS: dict[str, Any] = {
    "max_retries": 1000,
    "retry_timeout": timedelta(seconds=180),
    "backoff": {
        "init_backoff": timedelta(seconds=0.5),
        "max_backoff": timedelta(seconds=8),
        "base": 3,
    },
}
"""obstore repeats the parts of an upload itself: nothing else knows them."""

_SIGNED = timedelta(seconds=60)
_LOOK_SECONDS = 5
"""The time for a look at the pause that a service asks for."""

_VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_"}
"""The beginnings of the variables that obstore reads, by scheme; else Azure's."""

_lock = new_lock()
_loaded: dict[str, Any] = {}
"""The module, and the process that imported it."""


def library() -> Any:
    """Return the module; ``MissingExtra`` if it is not installed."""
    with _lock:
        if not _loaded:
            try:
                import obstore
                import obstore.store
            except ImportError:
                cause = (
                    "Reading and writing in buckets needs the package obstore, which is not "
                    "installed."
                )
                raise missing_extra(cause, "cloud") from None
            _loaded.update(module=obstore, process=os.getpid())
        if _loaded["process"] != os.getpid():
            cause = (
                "This process was forked from one that has used a bucket, whose threads it does "
                "not have."
            )
            raise UnsupportedError(
                cause, "Start it with multiprocessing's method 'spawn', or fork before."
            )
        return _loaded["module"]


def variables_of(root: str) -> str:
    """Return the beginning of the names of a service's environment variables, by its URL."""
    return _VARIABLES.get(root.partition(":")[0], "AZURE_")


def asked_pause(root: str, store: Any) -> float:
    """Return the pause that a service asks for after it has refused a request; 0 if it names none.

    obstore does not show the header ``Retry-After``. So the service is asked once more, for a file
    that need not exist, by a URL that obstore signs.
    """
    from http.client import HTTPConnection, HTTPException, HTTPSConnection
    from urllib.request import getproxies, proxy_bypass

    # What cannot be signed or reached names no pause.
    with suppress(library().exceptions.BaseError, HTTPException, OSError, ValueError):
        is_web = root.startswith("http")
        url = urlsplit(root if is_web else library().sign(store, "HEAD", "none", _SIGNED))
        if url.scheme in getproxies() and not proxy_bypass(url.hostname or ""):
            return 0.0
        kind = HTTPConnection if url.scheme == "http" else HTTPSConnection
        with closing(kind(url.netloc, timeout=_LOOK_SECONDS)) as connection:
            connection.request("HEAD", f"{url.path or '/'}?{url.query}".removesuffix("?"))
            answer = connection.getresponse()
            if answer.status in (429, 503):
                return pause_of_header(answer.getheader("Retry-After"))
    return 0.0


def make_store(root: str, kind: str) -> Any:
    """Return a store for a URL, made from the environment; ``kind`` is one of ``CLIENTS``."""
    module = library()
    # These options replace what the environment says of the connection, so that is asked here.
    allowed = any(os.environ.get(name, "").lower() in ("true", "1") for name in ALLOW_HTTP)
    is_plain = any(url.startswith("http:") for url in (root, os.environ.get("GOOGLE_BASE_URL", "")))
    options = {
        "connect_timeout": "5s",
        "allow_http": allowed or is_plain,
        **CLIENTS[kind],
    }
    retries = _PARTS if kind == "parts" else _ONCE
    try:
        return module.store.from_url(root, client_options=options, retry_config=retries)
    except module.exceptions.BaseError as error:
        remedy = f"Set what the service needs in the environment, in the variables {variables_of(root)}*."
        raise ArgumentError(f"{root} cannot be used: {first_line(error)}.", remedy) from None
