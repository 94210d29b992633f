"""The command line: arguments in, calls of ``shardvar.verbs``, text or JSON out.

Results go to standard output; errors, notes and progress to standard error. A person at a terminal
gets tables and trees, a pipe gets the same lines without colour, cut or wrapped nowhere. Nothing
that a checkpoint contains is trusted with the terminal: unprintable characters are escaped, and no
markup is interpreted.

To start quickly, the command line imports the module of the command that was given, and no other
command's.
"""

from shardvar.cli.main import main as main
