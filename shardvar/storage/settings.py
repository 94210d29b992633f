"""The settings of transfers: parts, concurrency and patience, in one frozen value.

    the environment --first use--> current() <--use_storage_options-- a program

Every module of ``storage`` that transfers bytes asks ``current`` when it begins. A worker gets the
value with the storage that it is sent. A field is set by the variable ``SHARDVAR_`` and its name.
"""

import math
import os
import re
from typing import Any

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.records import fields, frozen

__all__ = ["StorageOptions", "use_storage_options"]


@frozen
class StorageOptions:
    """The settings of transfers from and to buckets and web servers.

    Raises ``ArgumentError`` for a value out of its range.
    """

    part_nbytes: int = 8 << 20
    """Bytes of a part of an upload, 5 MiB to 5 GiB: no service takes smaller ones. A file of more
    than 9,000 parts has larger ones."""
    parts_ahead: int = 3
    """The parts of a file that go up at a time, and are held in memory."""
    requests: int = 64
    """The requests for data that are under way at a time."""
    short_requests: int = 512
    """The same for requests of a few bytes, at most half of the files that may be open."""
    in_flight_nbytes: int = 64 << 20
    """The bytes of all reads that are under way, and of all uploads; at least ``upload_nbytes``."""
    answer_seconds: float = 20.0
    """The time in which a server must begin to answer a read."""
    upload_seconds: float = 30.0
    """The time for the first attempt at an upload. The second has twice, and later ones four times
    as much; a part of an upload has twice as much."""
    patience_seconds: float = 120.0
    """The time in which a request is repeated. Parts of an upload have 1.5 times as much."""
    broken_seconds: float = 30.0
    """The same for connections that break, or that cannot be made."""

    def __post_init__(self) -> None:
        for each in fields(StorageOptions):
            value: Any = getattr(self, each.name)
            least, most = _RANGES.get(each.name, _SECONDS)
            kinds = (int,) if each.name in _RANGES else (int, float)
            if type(value) not in kinds or not least <= value <= most:
                raise _bad_value(each.name, value)
        if self.upload_nbytes > self.in_flight_nbytes:
            cause = (
                f"{self.parts_ahead} parts of {self.part_nbytes:,} bytes are more than "
                f"in_flight_nbytes={self.in_flight_nbytes:,}."
            )
            raise ArgumentError(cause, f"Raise it to {self.upload_nbytes:,}, or upload less ahead.")

    @property
    def upload_nbytes(self) -> int:
        """The most bytes of a file that its upload holds in memory."""
        return max(self.part_nbytes * self.parts_ahead, ONE_PUT_NBYTES)


ONE_PUT_NBYTES = 16 << 20
"""A file of at most this size is uploaded in one request. A process that is killed leaves the parts
of an upload, and nothing of a request."""
_SECONDS = 0.1, 86_400.0
_RANGES: dict[str, tuple[float, float]] = {
    "part_nbytes": (5 << 20, 5 << 30),
    "parts_ahead": (1, 1024),
    "requests": (1, 1024),
    "short_requests": (1, 1024),
    "in_flight_nbytes": (ONE_PUT_NBYTES, 1 << 40),
}
"""The least and the most value of each field."""
_UNITS = {
    "": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}


def _bad_value(name: str, value: object, variable: str = "") -> ArgumentError:
    least, most = _RANGES.get(name, _SECONDS)
    what = "seconds" if name not in _RANGES else "a whole number"
    return ArgumentError(
        f"{variable or name}={value!r} is not {what} from {least:,} to {most:,}.",
        f"Give another value{', such as 64MiB' * name.endswith('_nbytes') * bool(variable)}.",
    )


def _from_environment() -> StorageOptions:
    values: dict[str, Any] = {}
    for each in fields(StorageOptions):
        variable = f"SHARDVAR_{each.name.upper()}"
        if (text := os.environ.get(variable)) is None:
            continue
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]i?B)?", text)
        number = float(match[1]) * _UNITS[match[2] or ""] if match else math.nan
        is_known = match is not None and (not match[2] or each.name.endswith("_nbytes"))
        least, most = _RANGES.get(each.name, _SECONDS)
        is_whole = each.name in _RANGES
        if not (is_known and least <= number <= most) or (is_whole and number % 1):
            raise _bad_value(each.name, text, variable)
        values[each.name] = int(number) if is_whole else number
    return StorageOptions(**values)


_current: list[StorageOptions] = []
"""The settings of this process, the last one; empty before the first use."""


def current() -> StorageOptions:
    """Return the settings of this process."""
    if not _current:
        _current.append(_from_environment())
    return _current[-1]


class use_storage_options:  # noqa: N801  # called as a function
    """Use settings for all transfers of this process, from now on or within a ``with`` block.

    Parameters
    ----------
    options : StorageOptions, optional
        The settings; without them, the environment's.

    Raises
    ------
    ArgumentTypeError
        If ``options`` is something else.

    Notes
    -----
    Files that are open keep their settings. Workers of an executor get the settings of the process
    that sends them their tasks.

    Examples
    --------
    >>> import shardvar as sv
    >>> with sv.use_storage_options(sv.StorageOptions(part_nbytes=16 << 20, parts_ahead=2)):
    ...     pass  # sv.save("s3://bucket/run/step-1", tensors)
    """

    def __init__(self, options: StorageOptions | None = None) -> None:
        given: object = options
        if not (given is None or isinstance(given, StorageOptions)):
            cause = f"options={options!r} is not a StorageOptions."
            raise ArgumentTypeError(cause, "Give sv.StorageOptions(patience_seconds=600), or none.")
        self._before = [*_current]
        _current[:] = [options or _from_environment()]

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        _current[:] = self._before
