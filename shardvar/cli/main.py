"""From ``argv`` to an exit code.

    0  done
    1  the answer is no: verify found damage, diff found differences
    2  wrong usage
    3  the checkpoint cannot be read or written

An error is two lines on standard error, ``error:`` and its cause, ``hint:`` and its remedy; never a traceback.
"""

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress

from shardvar.cli.output import note, one_line, print_json
from shardvar.cli.parser import Usage, parse
from shardvar.errors import ArgumentError, ShardvarError, TargetExists, UnknownKey, UnsupportedError

DONE, NO, WRONG_USAGE, UNUSABLE = range(4)

_SCHEMA = 1
_TRACEBACK = "SHARDVAR_TRACEBACK"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. ``argv`` is without the program's name, and ``sys.argv`` where it is None."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # no locale may keep a name from being printed
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    try:
        if words[:1] == ["__complete"]:
            return _complete(words[1:])
        code = run(parse(words))
        sys.stdout.flush()
    except Usage as usage:
        return _say(usage.error, WRONG_USAGE, as_json) if usage.error else usage.code
    except ShardvarError as error:
        return _say(error, exit_code(error), as_json)
    except KeyboardInterrupt:
        note("interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        return _leave_pipe()
    except MemoryError:
        return _say(ShardvarError("The memory is full.", "Ask for a part: --filter, or an index."), UNUSABLE, as_json)
    except OSError as error:
        cause = f"The output cannot be written: {error.strerror or error}."
        return _say(ShardvarError(cause, "Look at where it goes."), UNUSABLE, as_json=False)
    except Exception as error:
        # A bug, and the only place where one is caught: without it Python would leave with 1, which here means "no".
        if _TRACEBACK in os.environ:
            raise
        cause = f"This is a bug in shardvar: {type(error).__name__}: {error}."
        return _say(ShardvarError(cause, f"Set {_TRACEBACK}=1 to see where, and report it."), UNUSABLE, as_json)
    return code


def run(arguments: Namespace) -> int:
    """Run the verb that was parsed. Only its own module is imported."""
    match arguments.verb:
        case "inspect":
            from shardvar.cli.inspect import run
        case "show":
            from shardvar.cli.show import run
        case "view":
            from shardvar.cli.view import run
        case "verify":
            from shardvar.cli.verify import run
        case "diff":
            from shardvar.cli.diff import run
        case "vectors":
            from shardvar.cli.vectors import run
        case "completion":
            from shardvar.cli.completion import run
        case _:
            from shardvar.cli.reshard import run
    return run(arguments)


def _complete(words: Sequence[str]) -> int:
    """Answer a shell at whose prompt Tab was pressed."""
    from shardvar.cli.completion import candidates

    for line in candidates(words):
        print(line)
    return DONE


def exit_code(error: ShardvarError) -> int:
    """2 for what the caller got wrong on the command line, 3 for a checkpoint that cannot be read or written."""
    if isinstance(error, (UnsupportedError, TargetExists)):
        return UNUSABLE
    return WRONG_USAGE if isinstance(error, (ArgumentError, UnknownKey)) else UNUSABLE


def _say(error: ShardvarError, code: int, as_json: bool) -> int:
    """Tell an error to the person, and to a program that asked for JSON."""
    remedy = error.remedy or "`shardvar --help` shows what there is."
    if as_json:
        told = {"kind": type(error).__name__, "cause": error.cause, "remedy": remedy}
        print_json({"schema": _SCHEMA, "error": told})
    note(f"error: {one_line(error.cause)}")
    note(f"hint: {one_line(remedy)}")
    return code


def _leave_pipe() -> int:
    """Whoever read the output has gone. Python would complain once more when it flushes, so that is led nowhere."""
    with suppress(OSError, ValueError):  # standard output may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE
