"""From ``argv`` to an exit code.

    0  done
    1  the answer is no: verify found damage, diff found differences
    2  wrong usage
    3  the checkpoint cannot be read or written

An error is two lines on standard error, ``error:`` with its cause and ``hint:`` with its remedy;
never a traceback.

A command that was given a URL may wait for a server, and then Ctrl-C cannot end it: a thread learns
of the signal at once, gives the command ``GRACE_SECONDS`` to end in order, and then ends the process,
as a kill would. A disk answers, and syncing a large file may take longer.
"""

import gc
import os
import re
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardvar.cli.options import Usage, parse_arguments, without_alias
from shardvar.cli.output import (
    asked,
    drop_notes,
    drop_output,
    note,
    notes_about,
    one_line,
    paths_as_typed,
    print_json,
    replace_closed_streams,
)
from shardvar.errors import (
    ArgumentError,
    MapError,
    ShardvarError,
    TargetExists,
    UnknownKey,
    UnsupportedError,
)
from shardvar.pictures.words import in_command

if TYPE_CHECKING:
    from socket import socket

GRACE_SECONDS = 2.0
"""The time from the first interrupt to the end of the process; a second ends it at once."""


def end_after_interrupt(say: Callable[[], object]) -> None:
    """Watch for Ctrl-C until the process ends with code 130; ``say`` prints the last line."""
    import socket  # not above, likewise threading: no command on files needs them
    import threading

    reader, writer = socket.socketpair()  # both stay open for as long as the thread
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        """Wait for an interrupt, then for the end of the process or another interrupt."""
        _ = writer
        _next_interrupt(reader)
        reader.settimeout(GRACE_SECONDS)
        try:
            _next_interrupt(reader)
        except TimeoutError:
            say()
        os._exit(128 + signal.SIGINT)

    threading.Thread(target=watch, name="shardvar interrupts", daemon=True).start()


def _next_interrupt(reader: "socket") -> None:
    while signal.SIGINT not in reader.recv(1):
        pass


DONE, WRONG_USAGE, UNUSABLE = 0, 2, 3  # a command that answers "no" returns 1 itself

_SCHEMA = 1
_TRACEBACK = "SHARDVAR_TRACEBACK"


def main(argv: Sequence[str] | None = None) -> int:
    replace_closed_streams()
    try:
        return _main(argv)
    finally:
        drop_notes()


def _main(argv: Sequence[str] | None) -> int:
    """Run one command, and turn each error into its message and code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A locale that lacks a character of a key must not end the command with an encoding
            # error.
            stream.reconfigure(errors="backslashreplace")
    if argv is None:
        # A long listing is a million values without a cycle, which the collector would walk again
        # and again, for a quarter of the command's time.
        gc.set_threshold(100_000, 50, 50)
    words = without_alias(sys.argv[1:] if argv is None else argv)
    if argv is None and any("://" in word for word in words):
        end_after_interrupt(lambda: note(_interrupted(words, of_server=True)))
    try:
        code = _run(words)
        sys.stdout.flush()
    except ShardvarError as error:
        return _say(error, exit_code(error), words)
    except KeyboardInterrupt:
        note(_interrupted(words))
        return 128 + signal.SIGINT
    except BrokenPipeError:
        drop_output()
        return 128 + signal.SIGPIPE
    except MemoryError:
        return _say(
            ShardvarError("Out of memory.", "Select less: --filter, or an INDEX."), UNUSABLE, words
        )
    except OSError as error:
        drop_output()
        # An error of another file names it.
        what = (
            "write the output" if error.filename is None else f"use {os.fsdecode(error.filename)}"
        )
        cause = f"Cannot {what}: {error.strerror or error}."
        return _say(
            ShardvarError(cause, "Check the file or the pipe that receives it."), UNUSABLE, ()
        )
    except Exception as error:
        # A bug, and the only place where one is caught: without it Python would leave with 1, which
        # here means "no".
        if _TRACEBACK in os.environ:
            raise
        cause = f"This is a bug in shardvar: {type(error).__name__}: {error}."
        return _say(
            ShardvarError(cause, f"Set {_TRACEBACK}=1 to see where, and report it."),
            UNUSABLE,
            words,
        )
    return code


def _interrupted(words: Sequence[str], of_server: bool = False) -> str:
    if words[:1] not in (["reshard"], ["apply"]) or "--dry-run" in words:
        return "interrupted"
    # A reshard keeps the data files that it finished, and reads them back instead of writing them
    # again.
    text = "interrupted; the same command continues"
    if not of_server:
        return text
    return (
        f"{text}. The server did not answer: a claim or files without an index may be left there."
    )


def _run(words: Sequence[str]) -> int:
    if words[:1] == ["__complete"]:
        from shardvar.cli.completion import candidates

        for line in candidates(words[1:]):
            # The shell takes the text after a tab for a description.
            sys.stdout.write("\t".join(map(one_line, line.split("\t"))) + "\n")
        return DONE
    try:
        arguments = parse_arguments(words)
    except Usage as usage:
        return _say(usage.error, WRONG_USAGE, words) if usage.error else usage.code
    arguments.words = words
    asked.color, asked.tree = getattr(arguments, "color", "auto"), "--tree" in words
    # Before the command, which may write into the folder, and leaves room for them on the screen.
    arguments.notes = notes_about(arguments)
    try:
        return execute(arguments)
    finally:
        # Also after an error: the note may name the checkpoint that was meant.
        for each in arguments.notes:
            note(each)


def execute(arguments: Namespace) -> int:
    """Execute the parsed command and return its exit code."""
    if getattr(arguments, "latest", False):
        from shardvar.cli.listing import take_newest

        take_newest(arguments)
    # Only the module of the command is imported.
    module = import_module(f"shardvar.cli.{_MODULES.get(arguments.command, arguments.command)}")
    rehearsal: Any = nullcontext
    if getattr(arguments, "dry_run", False):
        from shardvar.storage.rehearsal import rehearsing

        rehearsal = rehearsing  # also of what the command looks up itself
    with rehearsal():
        code: int = module.execute(arguments)
    return code


_MODULES = {"apply": "reshard", "help": "json_keys"}
"""The modules of commands that have no module of their name."""


def exit_code(error: ShardvarError) -> int:
    """Return 2 for a mistake on the command line, 3 for a failure to read or write."""
    if isinstance(error, (UnsupportedError, TargetExists)):
        return UNUSABLE
    return WRONG_USAGE if isinstance(error, (ArgumentError, UnknownKey)) else UNUSABLE


def _without_secrets(text: str) -> str:
    """Return a text without the users, passwords and queries of URLs.

    >>> _without_secrets("Invalid size 'https://user:secret@host/m?sig=1'.")
    "Invalid size 'https://...@host/m?...'."
    """

    def hide(user: re.Match[str]) -> str:
        # abfs://container@account.dfs.core.windows.net and sftp://user@host are shown as they are.
        is_plain = user[1] in ("abfs", "abfss", "hdfs", "sftp", "ssh") and ":" not in user[3]
        return user[0] if is_plain else f"{user[1]}{user[2]}...@"

    text = re.sub(r"\b(\w+)(:/{1,2})([^\s'\"@]+)@", hide, text)
    return re.sub(r"(://[^\s?'\"]*)\?[^\s'\"]+", r"\1?...", text)


def _problems(error: ShardvarError, first: int) -> list[str]:
    if not isinstance(error, MapError) or len(error.problems) <= first:
        return []
    from shardvar.maps.report import first_problems

    return first_problems(error.problems[first:])


def _say(error: ShardvarError, code: int, words: Sequence[str]) -> int:
    """Print the error of a command, with ``--json`` also for programs; return the code."""
    # An argument that is refused for another reason may be a URL with a secret in it.
    cause = _without_secrets(error.cause)
    remedy = _without_secrets(in_command(error.remedy)) or "`shardvar --help` lists the commands."
    if "--json" in words:
        fields: dict[str, Any] = {"kind": type(error).__name__, "cause": cause, "remedy": remedy}
        if isinstance(error, MapError) and error.problems:
            fields["problems"] = _problems(error, 0)
        try:
            print_json({"schema": _SCHEMA, "error": fields})
            sys.stdout.flush()
        except OSError:
            drop_output()  # the code and the lines below report it
    note(f"error: {paths_as_typed(one_line(cause), words)}")
    note(f"hint: {paths_as_typed(one_line(remedy), words)}")
    for line in _problems(error, 1):
        note(f"also: {paths_as_typed(line, words)}")
    return code
