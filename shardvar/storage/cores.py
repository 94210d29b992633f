"""The cores that this process may use: the ones that its affinity leaves it, and no more than its
control groups pay for.

A container on a machine of 64 cores may be bound to some of them (affinity), or be given the time
of some of them (a quota of its control group, on Linux). More threads than that wait for each
other.

    version 2   /sys/fs/cgroup/GROUP/cpu.max holds "QUOTA PERIOD", or "max PERIOD" for none; the
                least of a group and of those above it counts
    version 1   /sys/fs/cgroup/cpu/GROUP/cpu.cfs_quota_us and cpu.cfs_period_us, -1 for none

A container often sees its own group as the root. Files that are missing, or hold something else,
limit nothing.
"""

import os
from collections.abc import Iterator

_MOST_LEVELS = 32
"""Groups above one that are looked at: deeper trees than any scheduler makes."""


def usable_cores(root: str = "/") -> int:
    """Return the number of cores, at least 1. ``root`` holds ``proc`` and ``sys``."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    # A quota of 1.5 cores means two threads, one of them often waiting, and not a single one.
    quotas = [-(-quota // period) for quota, period in _quotas(root) if quota > 0 and period > 0]
    return max(1, min([cores, *quotas]))


def _quotas(root: str) -> Iterator[tuple[int, int]]:
    """The quotas of this process's groups and their parents, with periods, in microseconds."""
    for line in _read(root, "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        parts = [part for part in group.split("/") if part not in ("", ".", "..")][:_MOST_LEVELS]
        folders = ["/".join(parts[:count]) for count in range(len(parts) + 1)]
        if number == "0" and not controllers:
            yield from (
                _numbers(_read(root, "sys/fs/cgroup", folder, "cpu.max")) for folder in folders
            )
        elif "cpu" in controllers.split(","):
            for folder in folders:
                texts = [
                    _read(root, "sys/fs/cgroup/cpu", folder, f"cpu.cfs_{name}_us")
                    for name in ("quota", "period")
                ]
                yield _numbers(" ".join(texts))


def _numbers(text: str) -> tuple[int, int]:
    """A quota and a period; zeros for none."""
    words = text.split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return 0, 0
    return int(words[0]), int(words[1])


def _read(*path: str) -> str:
    """The text of a small file of the kernel; empty if it cannot be read."""
    try:
        with open(os.path.join(*path), encoding="ascii", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""
