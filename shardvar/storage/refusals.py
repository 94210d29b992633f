"""Errors of a request to a bucket or a web server, from the errors that obstore raises.

obstore's errors have one line and then pages of the server's answer; only the line is kept, without
what may be secret in it (``requests.first_line``).
"""

import os
import re
from typing import Any, Literal

from shardvar.errors import (
    COPY_AGAIN,
    AccessDenied,
    ArgumentError,
    MissingFile,
    ServerError,
    ShardvarError,
    StorageError,
)
from shardvar.storage.attempts import Fault, FaultKind
from shardvar.storage.requests import first_line

ALLOW_HTTP = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP")
"""The variables by which obstore allows an unencrypted service."""

_CODE = re.compile(r"<Code>(\w{1,80})</Code>")
"""The word by which a service names an error, in its answer."""


_STATUS = re.compile(r"\bstatus: (\d{3})\b")
_KIND = re.compile(r"\bkind: (Timeout|Connect|Request|Interrupted|Decode|Body)\b")
"""The words of obstore for the status of an answer, and for what happened to a connection."""

_FAULTS: dict[str, FaultKind] = {
    "429": "refused",
    "503": "refused",
    "408": "broken",
    "500": "broken",
    "502": "broken",
    "504": "broken",
}

_BUSY = {"SlowDown", "ServerBusy", "TooManyRequests", "RequestLimitExceeded", "Throttling"}
"""Words of services for too many requests, with any status."""


def passing_fault(kinds: Any, error: Exception, *, conflicts_pass: bool) -> Fault | None:
    """Return the fault of a request that failed with ``error``, if it may pass; None otherwise.

    With ``conflicts_pass``, 409 is the answer to two requests at the same moment.
    """
    text = str(error)
    status = found[1] if (found := _STATUS.search(text)) else ""
    if isinstance(error, kinds.AlreadyExistsError):
        return Fault("broken") if conflicts_pass and status == "409" else None
    if not isinstance(error, kinds.GenericError):
        return None
    if status:
        code = found[1] if (found := _CODE.search(text)) else ""
        if code in _BUSY:
            return Fault("refused")
        if code == "RequestTimeout":
            return Fault("broken")
        return Fault(_FAULTS[status]) if status in _FAULTS else None
    if "invalid list response" in text or "invalid DeleteObjects response" in text:
        return Fault("odd")
    if (found := _KIND.search(text)) is None:
        return None
    # A connection that cannot be made in time is not a request that has no answer.
    is_stalled = found[1] == "Timeout" and "ConnectError" not in text
    return Fault("stalled" if is_stalled else "broken")


Operation = Literal["list", "get", "put", "delete"]
"""A kind of request for which a service has a right; facts of a file are got."""
_RIGHTS: dict[str, dict[Operation, str]] = {
    scheme: dict(zip(("list", "get", "put", "delete"), rights.split(), strict=True))
    for scheme, rights in (
        ("s3", "s3:ListBucket s3:GetObject s3:PutObject s3:DeleteObject"),
        (
            "gs",
            "storage.objects.list storage.objects.get storage.objects.create storage.objects.delete",
        ),
        ("az", "List Read Write Delete"),
    )
}
"""The name of the right by the scheme of a URL."""


def denied_error(place: str, operation: Operation, code: str = "") -> AccessDenied:
    """Return the error for an operation that a service denies; ``code`` is its word for the reason.

    >>> print(denied_error("s3://b/run", "list", "ExpiredToken").cause)
    s3://b/run: permission is denied to list (ExpiredToken).
    """
    scheme = {"abfs": "az", "abfss": "az"}.get(found := place.partition("://")[0], found)
    right = (
        f"the right {_RIGHTS[scheme][operation]}"
        if scheme in _RIGHTS
        else f"the right to {operation}"
    )
    cause = f"{place}: permission is denied to {operation}{code and f' ({code})'}."
    remedy = f"Check the credentials in the environment, that they have {right}, and the clock of this machine."
    return AccessDenied(cause, remedy)


def refused_error(
    kinds: Any, place: str, error: Exception, operation: Operation = "get"
) -> ShardvarError:
    """Return the error for a request that failed with ``error``; ``kinds`` are obstore's classes of
    errors, and ``place`` is the URL of a file."""
    line = first_line(error)  # errors of listings have the status only in it
    if isinstance(error, FileNotFoundError) or "404 Not Found" in line:
        return MissingFile(f"{place} is missing.", COPY_AGAIN)
    # The service's word for the reason, such as ExpiredToken or RequestTimeTooSkewed; HEAD
    # answers have none.
    code = f" ({found[1]})" if (found := _CODE.search(str(error))) else ""
    if isinstance(error, kinds.PreconditionError):
        cause = (
            f"{place}: the service refuses the request, since a condition of the service does "
            f"not hold{code}."
        )
        return StorageError(
            cause, "End the lease or the hold that is on the file, or write under another name."
        )
    is_denied = isinstance(error, kinds.PermissionDeniedError | kinds.UnauthenticatedError)
    if is_denied or "403 Forbidden" in line or "401 Unauthorized" in line:
        return denied_error(place, operation, code.strip(" ()"))
    if "Range request not supported" in line:
        cause = f"{place}: the server sends only whole files, and not the requested ranges."
        return ServerError(cause, "Download the file, or use a server that answers range requests.")
    cause = f"{place} does not answer as it should: {line}."
    if "builder error" in line:
        allow = f"If it is not encrypted, set {' or '.join(ALLOW_HTTP)} to true."
        return ServerError(cause, f"Check the address of the service in the environment. {allow}")
    fault = passing_fault(kinds, error, conflicts_pass=False)
    if fault is not None and fault.kind == "refused":
        remedy = (
            "It has refused all attempts of some minutes. Wait, or send fewer requests at a time."
        )
        return ServerError(cause, remedy)
    return ServerError(cause, "Check address, credentials and connection, and try again.")


def broken_error(root: str, place: str, variables: str, error: BaseException) -> ShardvarError:
    """Return the error for a value in the environment, or an answer, with which obstore fails and
    says no more.

    ``variables`` is the beginning of the names of the service's environment variables.
    """
    failed = f"obstore failed ({first_line(error)})."
    named = sorted(
        name for name, value in os.environ.items() if name.startswith(variables) and "\n" in value
    )
    if named:
        remedy = (
            f"Look at {' and '.join(named)} in the environment. Keys and tokens have no line ends."
        )
        return ArgumentError(f"{root} cannot be used: {failed}", remedy)
    remedy = (
        f"Look at what the service answers, and at the variables {variables}* in the environment."
    )
    return ServerError(f"{place}: {failed}", remedy)
