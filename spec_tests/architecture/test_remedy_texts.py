"""The remedies of the source: each is of a class that has a scenario, and a parser knows all commands,
options and names in them."""

import ast
import inspect
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import shardvar as sv
import shardvar.errors
from shardvar.cli.options import parse_arguments
from spec_tests.helpers.cli_pages import parsers
from spec_tests.helpers.paths import SPEC_TESTS
from spec_tests.helpers.source_code import MODULES, PACKAGE, tree_of
from spec_tests.verbs.test_remedies import SCENARIOS

CLASSES = {
    "another program": r"[Pp]rogram|DeepSpeed|Megatron|TensorFlow|llama\.cpp|with (onnx|PEFT)|torch\.|torch\b.*saved|"
    r"Export|h5repack|numpy|other files of its writer|was (built|converted|exported) from|"
    r"lifecycle",
    "newer release": r"[Rr]elease|Update|[Ii]nstall|version of shardvar|It is read by",
    "certify": r"--certify",
    "force": r"force=True|--force",
    "exclude": r"exclude|filter|[Ll]eave .*\bout\b|Exclude",
    "rename": r"--rename|[Rr]ename (it\.|one|the tensor)|Choose a (name without|shorter key)|"
    r"under other names",
    "cast": r"[Cc]ast|numeric dtype|wider dtype",
    "dequantize": r"[Dd]equantize|weight_block_size",
    "concat": r"--concat|sources of one run|of one model|other axes|all ranks|one checkpoint|each other|"
    r"sources|one adapter",
    "delta": r"shardvar (apply|delta)|[Dd]elta|[Pp]ublish|base|was made of",
    "manifest": r"shardvar digest|manifest|sv\.digest",
    "own name": r"own name|the ending|its bare|Name the parts|[Rr]ename it back|name that it had|"
    r"end the name|another ending|names of",
    "fetch": r"[Ff]etch|[Dd]ownload",
    "unpack": r"[Uu]npack|Join (it to|all parts)|archive again|unzip",
    "commit": r"commit_shards|same `run`|new run",
    "save again": r"[Ss]av(e|ed) |[Ww]rite .*again|Write again|write again|Restart|[Rr]estore again|"
    r"start again|run (it|the same)|Run it",
    "wait": r"[Ww]ait|finish|Join (it|that)|Let (it|one)|Open .*again|lease|[Tt]ry again|Look at",
    "copy again": r"[Cc]op(y|ied)|whole|damage|missing file|[Ff]ind the file|Add the file|Mend|Repair|"
    r"several saves|were mixed|Take it",
    "path": r"[Pp]ath|[Gg]ive (its|the|their|another)|Name (a|the|one)|another (folder|step|name|directory)|"
    r"Hugging Face Hub|folder|[Uu]se (a|the)|elsewhere|Use",
    "format": r"format|Choose another|[Dd]type|into|Write|Give|Known|Protocols|constants|Join some|"
    r"Re(duce|distribute)|Choose|Do not change|supported|bytes|axes|Reshape|Encode|Spread",
    "machine": r"[Dd]isk|permission|[Cc]heck|bucket|right|server|service|credential|lock|Create|Free|"
    r"[Mm]emory|Change|Make the directory|Start",
    "distrust": r"trust",
    "remove": r"[Rr]emove",
    "look": r"shardvar (verify|inspect)|Find out|Read |to see where|Did you mean",
}
"""The classes of remedies, by what a user does; the first that matches is the class of a text."""

NO_CLASS = (
    "ArgumentError",
    "ArgumentTypeError",
    "OutOfRange",
    "LayoutError",
    "MapError",
    "PolicyError",
)
"""Errors whose remedy is another argument, and those of the reference, which change a program."""

KINDS = {name for name in dir(shardvar.errors) if name[0].isupper()} | {"FileKind"}


@cache
def remedies() -> dict[str, set[str]]:
    """Return the remedies of the source, with {} for what is filled in, and their errors."""
    trees = [tree_of(path) for path in MODULES if "reference" not in path.parts]
    public: dict[str, list[ast.expr]] = defaultdict(list)
    found: dict[str, set[str]] = defaultdict(set)
    for tree in trees:
        for name, value in assignments(tree):
            if name.isupper() and name[0] != "_":
                public[name].append(value)
    for tree in trees:
        own = defaultdict(list, public)
        for name, value in assignments(tree):
            own[name].append(value)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and len(node.args) > 1:
                kind = getattr(node.func, "id", "")
                for text in texts(node.args[1], own) if kind in KINDS else ():
                    if re.search(r"[a-z]{2}.*[a-z ]{4}", text.replace("untruly", "")):
                        found[text].add(kind)
    return found


def assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        if isinstance(node, ast.FunctionDef) and "remed" in node.name + ast.unparse(node.args):
            yield from (
                (node.name, each.value)
                for each in ast.walk(node)
                if isinstance(each, ast.Return) and each.value
            )


def texts(node: ast.AST, own: dict[str, list[ast.expr]], depth: int = 0) -> set[str]:
    """Return the texts that an expression may give."""
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.JoinedStr(values=parts):
            return {
                "".join(
                    str(each.value) if isinstance(each, ast.Constant) else "{}" for each in parts
                )
            }
        case ast.IfExp(body=first, orelse=second):
            return texts(first, own, depth) | texts(second, own, depth)
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)) if depth < 3:
            return set().union(*(texts(value, own, depth + 1) for value in own.get(name, ())))
    return set()


def class_of(text: str) -> str:
    return next((name for name, pattern in CLASSES.items() if re.search(pattern, text)), "")


ELSEWHERE = {
    "another program": "peers",
    "newer release": "wire/test_block_file.py",
    "dequantize": "verbs/test_dequantization.py",
    "save again": "verbs/test_share_fence.py",
    "wait": "storage/test_concurrency.py",
    "machine": "storage/test_denied.py",
    "distrust": "formats/test_hostile_files.py",
    "remove": "verbs/test_removal.py",
    "certify": "verbs/test_derivation.py",
}
"""By class of remedies that are not one command: the tests that do them."""


def options() -> set[str]:
    """Return the options of all commands, and of ``python -m shardvar.vectors``."""
    return {"--without"} | {
        option for parser in parsers().values() for option in parser._option_string_actions
    }


def test_commands_options_and_names_in_remedies_exist() -> None:
    """Each command parses, each option is one of a command, each name is one of the package."""
    known = options()
    wrong = []
    for text in remedies():
        wrong += [
            each for each in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text) if each not in known
        ]
        for command in re.findall(r"`shardvar ([a-z]+ [^`]*)`", text):
            filled = command.replace("DTYPE", "float32").replace("GLOB=AXIS", "*=0")
            parse_arguments(shlex.split(filled.replace("{}", "x")))
        for path in re.findall(r"\b(?:sv|shardvar)\.([A-Za-z_]\w*)", text):
            if not (hasattr(sv, path) or (PACKAGE / path).exists()):
                wrong.append(path)
    assert not wrong and len(remedies()) > 500


def test_keywords_in_remedies_are_those_of_functions() -> None:
    """Of ``name= (--option)``, both exist."""
    keywords = {
        name
        for verb in (
            sv.load,
            sv.save,
            sv.reshard,
            sv.verify,
            sv.diff,
            sv.digest,
            sv.apply,
            sv.delta,
        )
        for name in inspect.signature(verb).parameters
    }
    named = {
        each
        for text in remedies()
        for each in re.findall(r"(\w+)=?\S* \(--", text)
        if each + "=" in text
    }
    assert named and named <= keywords


def test_every_remedy_is_of_a_class_and_every_class_has_a_scenario() -> None:
    without = [
        text
        for text, kinds in remedies().items()
        if not class_of(text) and not kinds <= {*NO_CLASS}
    ]
    assert without == []
    assert CLASSES.keys() == SCENARIOS.keys() | ELSEWHERE.keys()
    assert all((SPEC_TESTS / path).exists() for path in ELSEWHERE.values())
