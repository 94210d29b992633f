"""Completion at the prompt: the scripts that shells load, and the answers that they ask for.

At each press of Tab a script runs ``shardvar __complete WORD…`` with the typed words (the last one
unfinished) and gets one candidate a line, followed by a tab and a description; without candidates
the shell completes names of files. The candidates come from the parser itself, so they always match
the installed version: commands, options, their choices, and the keys of the checkpoint on the line.
A press of Tab is never answered by an error.
"""

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from shardvar.cli.options import ALIASES, COMMANDS, TOPICS, commands_of, make_parser
from shardvar.cli.output import one_line
from shardvar.errors import ShardvarError

MANY = 100
"""The most keys that are offered at once; of more, their folders are offered."""

_PAIRS = ("OLD=NEW", "GLOB=AXIS", "[GLOB=]DTYPE", "[GLOB=]N")
"""The values of options that begin with a key and ``=``, as their help writes them."""

# bash inserts candidates as they are, so ``printf %q`` quotes spaces and patterns in keys. After a
# folder or ``KEY=`` no space is inserted (``nospace``), so that typing goes on there.
_BASH = """\
_shardvar() {
    local line candidate
    COMPREPLY=()
    while IFS= read -r line; do
        candidate=${line%%$'\\t'*}
        [[ $candidate == *[/.=] ]] && compopt -o nospace
        printf -v candidate %q "$candidate"
        COMPREPLY+=("$candidate")
    done < <(shardvar __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _shardvar shardvar
"""

# zsh passes words as typed; ``(Q)`` removes their quotes. Folders and ``KEY=`` are added apart,
# with an empty suffix (``-S ''``).
_ZSH = """\
#compdef shardvar
_shardvar() {
    local line
    local -a candidates folders described
    while IFS= read -r line; do
        if [[ ${line%%$'\\t'*} == *[/.=] ]]; then
            folders+=("${line%%$'\\t'*}")
        else
            candidates+=("${line%%$'\\t'*}")
            described+=("${line/$'\\t'/  }")
        fi
    done < <(shardvar __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)
    if (( $#candidates + $#folders == 0 )); then
        _files
    else
        compadd -l -d described -a -- candidates
        compadd -S '' -a -- folders
    fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _shardvar "$@"
else
    compdef _shardvar shardvar
fi
"""

# fish evaluates the condition first and keeps the answer; if that is empty, ``-f`` does not apply:
# files are offered. It inserts no space after a slash, a dot or an equals sign.
_FISH = """\
function __shardvar_candidates
    set -g __shardvar_found (shardvar __complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)
    test (count $__shardvar_found) -gt 0
end
complete -c shardvar -f -n __shardvar_candidates -a '(string join \\n -- $__shardvar_found)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def execute(arguments: Namespace) -> int:
    sys.stdout.write(SCRIPTS[arguments.shell])
    return 0


def candidates(words: Sequence[str]) -> Iterator[str]:
    """Return the lines that answer a press of Tab after these words; the last one is unfinished.

    An empty answer makes the shell complete names of files.

    >>> [line.split()[0] for line in candidates(["ins"])]
    ['inspect']
    >>> list(candidates(["show", "model", "b", "--verify", "f"]))
    ['full']
    """
    *before, word = _without_breaks(words) or [""]
    name = ALIASES.get(before[0], before[0]) if before else ""
    parser = make_parser([name] if name in COMMANDS else COMMANDS)
    # argparse offers no public way to list the commands and options of a parser.
    commands = commands_of(parser)
    if before in ([], ["help"]):
        helps = {each.dest: str(each.help) for each in commands._choices_actions}
        if before:
            helps |= TOPICS
        return (f"{command}\t{text}" for command, text in helps.items() if command.startswith(word))
    chosen = commands.choices.get(name)
    if chosen is None:
        return iter(())
    options = {name: action for action in chosen._actions for name in action.option_strings}
    positionals = [action for action in chosen._actions if not action.option_strings]
    given: list[str] = []
    pending = None  # the option whose value comes next
    for each in before[1:]:
        if pending is None and each in options:
            # Flags have ``nargs`` 0: no value follows them.
            pending = options[each] if options[each].nargs != 0 else None
        elif pending is not None:
            pending = None
        else:
            given.append(each)
    if pending is None and word.startswith("-"):
        # Long names only: they explain the short names.
        return (
            f"{name}\t{action.help}"
            for name, action in options.items()
            if name.startswith(word) and name[:2] == "--"
        )
    action = pending or next(iter(positionals[len(given) :]), None)
    if action is None:
        return iter(())
    choices: Iterable[str] = action.choices or ()
    if not choices and (action.metavar == "MAP" or action.dest == "name"):
        from shardvar.maps.map import shipped_maps

        choices = shipped_maps()  # else, files are offered
    elif not choices and action.metavar == "NAME":
        from shardvar.formats.table import format_names

        choices = format_names()
    if choices or not given or action.metavar not in ("KEY", "GLOB", *_PAIRS):
        return (choice for choice in choices if choice.startswith(word))
    keys = _keys(given[0], word)
    if action.metavar not in _PAIRS:
        return keys
    # A person types the part after the key of a pair.
    return (key if key.endswith(("/", ".")) else f"{key}=" for key in keys)


def _without_breaks(words: Sequence[str]) -> list[str]:
    """Return words as typed: bash passes ``--option=x`` and ``key=x`` as three words.

    >>> _without_breaks(["--format", "=", "sa"]), _without_breaks(["--cast", "w", "=", "bf"])
    (['--format', 'sa'], ['--cast', 'w=bf'])
    """
    kept: list[str] = []
    after = ""
    for word in words:
        if after == "=" and not kept[-1].startswith("--"):
            kept[-1] += word
        elif word != "=" or not kept:
            kept.append(word)
        elif not kept[-1].startswith("--"):
            kept[-1] += word
        after = word
    return [*kept, ""] if after == "=" and kept[-1].startswith("--") else kept


def _keys(path: str, word: str) -> Iterator[str]:
    """Yield the keys of a checkpoint that begin with a word, or their folders; nothing if it is unreadable."""
    # Imported only for keys: the reader brings NumPy, whose import would delay every other press of
    # Tab.
    from shardvar.verbs.load import open_checkpoint

    with suppress(ShardvarError, OSError), open_checkpoint(path) as reader:
        # A key with a newline would be taken for two candidates.
        found = [key for key in reader if key.startswith(word) and one_line(key) == key]
        if len(found) > MANY:
            found = list(dict.fromkeys(_folder(key, len(word)) for key in found))
        yield from found[: 10 * MANY]


def _folder(key: str, start: int) -> str:
    """Return a key up to the first separator at or after a position: a slash, or a dot in a key
    without one.

    >>> _folder("model.layers.3.w", 6), _folder("a.b/c.d", 0), _folder("bias", 0)
    ('model.layers.', 'a.b/', 'bias')
    """
    end = key.find("/" if "/" in key else ".", start)
    return key if end < 0 else key[: end + 1]
