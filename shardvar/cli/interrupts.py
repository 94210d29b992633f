"""The end of a command that Ctrl-C cannot end by itself, because it waits for a server.

Python handles Ctrl-C in its main thread, between two instructions. A library that waits there for a
server returns when that has answered, or after minutes; and a command whose threads wait for
servers ends when they do. So a thread learns of the signal at once. It gives the command
``GRACE_SECONDS`` to end in order, which it does where the servers answer, and then ends the
process, as a kill would: nothing is committed, and what is left is what a crash leaves.

Only commands that were given a URL are ended so. A disk answers, and syncing a large file may take
longer.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable

GRACE_SECONDS = 2.0
"""The time from the first interrupt to the end of the process; a second ends it at once."""


def end_after_interrupt(say: Callable[[], object]) -> None:
    """Watch for Ctrl-C until the process ends; ``say`` prints the last line, before it ends with
    code 130.

    It is for the main thread of a program.
    """
    pair = socket.socketpair()
    pair[1].setblocking(False)
    signal.set_wakeup_fd(pair[1].fileno(), warn_on_full_buffer=False)
    threading.Thread(
        target=_watch, args=(pair, say), name="shardvar interrupts", daemon=True
    ).start()


def _watch(pair: tuple[socket.socket, socket.socket], say: Callable[[], object]) -> None:
    """Wait for an interrupt, then for the end of the process or another interrupt."""
    reader, _writer = pair  # both stay open for as long as the thread
    _next_interrupt(reader)
    reader.settimeout(GRACE_SECONDS)
    try:
        _next_interrupt(reader)
    except TimeoutError:
        say()
    os._exit(128 + signal.SIGINT)


def _next_interrupt(reader: socket.socket) -> None:
    while signal.SIGINT not in reader.recv(1):
        pass
