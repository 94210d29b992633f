"""The command line: arguments in, calls of ``shardvar.checkpoint``, text or JSON out.

Results go to standard output; errors, notes and progress to standard error. A person at a terminal gets tables and
trees, a pipe gets the same lines without colour, cut or wrapped nowhere. Nothing that a checkpoint says is trusted with
the terminal: what cannot be printed is escaped, and no markup is interpreted.

Nothing heavy is imported before a verb is known to need it.
"""

from shardvar.cli.main import main as main
