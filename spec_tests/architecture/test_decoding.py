"""No reader of a format swallows an error of shardvar's own.

Those derive from the builtins that a caller expects: a refusal of a checkpoint is a ``ValueError``
too. So ``except ValueError`` around a decoder also catches what a hook of the decoder has refused,
and gives it another meaning. ``wire.damage.decoding`` lets such errors through.
"""

import ast
import builtins
from collections.abc import Iterator

import pytest

from shardvar import errors
from spec_tests.helpers.source_code import MODULES, at, importers, layer_of, module_name, tree_of

OWN = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.ShardvarError)
}
CATCHES_OURS = {
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and kind is not ImportError  # of an import, which raises none of ours
    and any(issubclass(own, kind) for own in OWN.values())
}
"""The builtin exceptions that some error of shardvar derives from, ``Exception`` included."""


def caught(handler: ast.ExceptHandler) -> set[str]:
    """Return the last names of the classes that a handler catches."""
    found = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {
        each.attr if isinstance(each, ast.Attribute) else ast.unparse(each)
        for each in found
        if each
    }


def raises_again(handler: ast.ExceptHandler) -> bool:
    """Return True if the last step of a handler raises what it caught."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def traps(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of handlers that may swallow an error of shardvar's."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Try):
            continue
        passed = False
        for handler in node.handlers:
            # All of them pass, or the ones that a reader raises.
            passed |= raises_again(handler) and not caught(handler).isdisjoint(
                {"ShardvarError", "CheckpointError"}
            )
            if not passed and not raises_again(handler) and caught(handler) & CATCHES_OURS:
                yield handler.lineno


KEPT = {"shardvar.formats.zarr.source"}
"""Modules that keep any error and raise it later, as it is."""


def test_no_reader_swallows_an_error_of_ours() -> None:
    found = [
        at(path, line)
        for path in MODULES
        if layer_of(path) in ("formats", "wire")
        for line in traps(tree_of(path))
        if module_name(path) not in KEPT
    ]
    assert found == []


def test_the_builtins_that_catch_ours_are_known() -> None:
    assert {"ValueError", "KeyError", "OSError", "Exception"} <= CATCHES_OURS
    assert "UnicodeDecodeError" not in CATCHES_OURS


@pytest.mark.parametrize(
    ("handlers", "expected"),
    [
        ("except ValueError: pass", [3]),
        ("except (IndexError, KeyError) as e: raise other() from e", [3]),
        ("except ShardvarError: raise\nexcept ValueError: pass", []),
        ("except UnicodeDecodeError: pass", []),
        ("except ValueError: raise", []),
        ("except ShardvarError: pass\nexcept ValueError: pass", [4]),
    ],
)
def test_a_trap_is_seen(handlers: str, expected: list[int]) -> None:
    assert list(traps(ast.parse(f"try:\n    f()\n{handlers}"))) == expected


PARSERS = {
    ("json", "loads"): {
        "shardvar.wire.strict_json",
        "shardvar.wire.digests",  # a string between quotation marks; keys may be halves of pairs
        "shardvar.extras",  # the metadata of this installation
        "shardvar.vectors",  # the wheel's own files
    },
    ("tomllib", "loads"): {
        "shardvar.maps.map",
        "shardvar.cli.usage",
        "shardvar.verbs.quantization",
    },
}
"""The parsers of texts that nest, by module and function, and the modules that may call them."""
FORBIDDEN = {"ast", "configparser", "csv", "marshal", "pickle", "plistlib", "shelve", "xml", "yaml"}
"""Modules of other parsers, which the tool does not need: some of them run code, or recurse."""


def test_foreign_json_has_one_parser() -> None:
    """SECURITY.md: "A bad file that causes a `KeyError`, `struct.error`, `RecursionError` or
    `MemoryError` is also a security bug." """
    calls = {
        ((node.value.id, node.attr), module_name(path))
        for path in MODULES
        if layer_of(path) not in ("conformance", "testing")  # they read what they wrote themselves
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.attr in ("load", "loads", "raw_decode", "JSONDecoder")
        if node.value.id in ("json", "tomllib")
    }
    assert calls == {(parser, name) for parser, names in PARSERS.items() for name in names}
    strangers = [
        path
        for path in MODULES
        # Nor what a process sends to the one that it has started.
        if layer_of(path) not in ("conformance", "testing") and path.name != "writer_process.py"
    ]
    assert importers(FORBIDDEN, strangers) == []


PRINTERS = {"shardvar.cli.output"}
"""The modules that print texts, each through ``one_line``."""
PLAIN = {
    "shardvar.cli.options",  # help and usage, which argparse has made
    "shardvar.cli.completion",  # the script of a shell, which is in the module
    "shardvar.cli.main",  # candidates for a shell, each through one_line
}


def test_texts_are_printed_in_one_place() -> None:
    """SECURITY.md: "Errors, findings, log lines and all that the commands print contain no control
    characters"."""
    found = [
        at(path, node.lineno)
        for path in MODULES
        if layer_of(path) not in ("conformance", "testing", "vectors", "reference", "spec")
        if module_name(path) not in PRINTERS | PLAIN
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        if (isinstance(node.func, ast.Name) and node.func.id == "print" and node.args)
        or (
            isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func)
            in ("sys.stdout.write", "sys.stderr.write", "console.print", "warnings.warn")
        )
    ]
    assert found == []


def is_filtered(text: ast.expr) -> bool:
    """Return True for a constant, and for what ``message`` returns."""
    if isinstance(text, ast.JoinedStr):
        return all(isinstance(each, ast.Constant) for each in text.values)
    return not isinstance(text, ast.Call) or ast.unparse(text.func) == "message"


def test_sentences_of_a_file_pass_the_filter() -> None:
    """Kinds of files are constants or filtered."""
    found = []
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            texts = node.args[:1] if name == "FileKind" else []
            found += [at(path, node.lineno) for text in texts if not is_filtered(text)]
    assert found == []


def test_no_group_is_possessive() -> None:
    """Python 3.11.2, which Debian 12 has, does not go back to the start of such a group."""
    # This one is right there: its alternatives differ in their first bytes, and fail at the second
    # only where the whole text does.
    known = {"shardvar.wire.sstable"}
    found = {module_name(path) for path in MODULES if ")*+" in path.read_text(encoding="utf-8")}
    assert found == known
