"""The shape of the code: imports go one way, only storage opens files, a file is a sitting and a function a screen.

``ALLOWED`` is the table of arrows of docs/design.md as data. Every import counts, wherever it stands: inside a
function, under ``TYPE_CHECKING``, or as a module's name in a string that is imported later.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from spec_tests.helpers import paths

ROOT = paths.ROOT
PACKAGE = ROOT / "shardvar"
MODULES = sorted(PACKAGE.rglob("*.py"))

_MEMORY = ("errors", "layout", "tracking", "devices", "random", "variables", "nn")
_DISK = ("errors", "layout", "planning", "wire", "storage", "formats", "engine")
_BELOW_ROOF = (*_MEMORY, "training", *_DISK[2:], "checkpoint")

# layer -> what its modules may import besides themselves; a dotted name allows that one module of a layer
ALLOWED: dict[str, tuple[str, ...]] = {
    "_version": (),
    "errors": (),
    "pictures": (),
    "layout": ("errors", "pictures"),
    "tracking": ("errors",),
    "devices": ("errors", "layout"),
    "random": ("errors", "layout"),
    "variables": ("errors", "layout", "tracking", "devices", "random"),
    "nn": ("errors", "layout", "tracking", "devices", "random", "variables"),
    "training": _MEMORY,
    "planning": ("errors", "layout", "pictures"),
    "wire": ("errors",),
    "storage": ("errors",),
    "formats": ("errors", "layout", "planning", "wire", "storage"),
    "engine": ("errors", "layout", "planning", "formats.protocol", "storage.protocol", "wire.crc", "wire.strings"),
    "checkpoint": (*_MEMORY, *_DISK[2:], "pictures", "_version"),
    "view": ("errors", "layout", "planning", "pictures", "storage.protocol", "checkpoint"),
    "vectors": ("errors",),
    "cli": (*_BELOW_ROOF, "pictures", "view", "vectors"),
    "__main__": ("cli",),
    "testing": _BELOW_ROOF,
    "conformance": (*_BELOW_ROOF, "testing"),
}
ROOF = ("cli", "testing", "conformance")  # the only layers that may use the face, ``import shardvar as sv``

PURE = ("pictures", "layout", "tracking", "planning", "wire")
CLOCKS_AND_DOORS = {"io", "mmap", "os", "pathlib", "shutil", "tempfile", "time"}

FILE_LAYERS = ("storage", "cli", "conformance")  # the kit writes its reports, and damages what adapters wrote
OPENERS = {"open", "io.open", "os.open", "os.fdopen", "np.load", "np.save", "np.savez", "np.fromfile", "np.memmap"}
OPENERS |= {
    f"os.{verb}" for verb in ("listdir", "makedirs", "mkdir", "remove", "rename", "replace", "scandir", "unlink")
}
DOOR_MODULES = {"fcntl", "glob", "mmap", "pathlib", "shutil", "tempfile"}

FORMATS = ("native", "npz", "safetensors", "tensorflow", "torch")

MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(path: Path) -> str:
    """``shardvar/formats/npz.py`` -> ``formats``; the face has none."""
    return [*module_name(path).split("."), ""][1]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def submodules() -> set[str]:
    return {module_name(path) for path in MODULES}


def imports(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """(line, module) of everything imported; ``package`` is what a relative import is relative to."""
    known = submodules()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                deeper = f"{base}.{alias.name}"
                yield node.lineno, deeper if deeper in known else base
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known - {"shardvar"}:
            yield node.lineno, node.value


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    name = module_name(path)
    return imports(tree_of(path), name if path.name == "__init__.py" else name.rpartition(".")[0])


def is_allowed(layer: str, target: str) -> bool:
    if target == "shardvar":
        return layer in ROOF
    inner = target.removeprefix("shardvar.")
    return any(inner == arrow or inner.startswith(arrow + ".") for arrow in (layer, *ALLOWED[layer]))


def at(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def in_layers(*layers: str) -> list[Path]:
    return [path for path in MODULES if layer_of(path) in layers]


def outside_layers(*layers: str) -> list[Path]:
    return [path for path in MODULES if layer_of(path) not in layers]


def test_every_layer_has_a_row_in_the_table() -> None:
    assert {layer_of(path) for path in MODULES} - {""} <= ALLOWED.keys()


def test_the_table_has_no_cycle() -> None:
    """Rows stand in order: a layer may import only layers whose rows stand above its own."""
    seen: set[str] = set()
    for layer, arrows in ALLOWED.items():
        assert {arrow.split(".")[0] for arrow in arrows} <= seen, layer
        seen.add(layer)


def test_imports_go_one_way() -> None:
    broken = [
        f"{at(path, line)}: {layer_of(path)} may not import {target}"
        for path in outside_layers("")
        for line, target in imports_of(path)
        if target.split(".")[0] == "shardvar" and not is_allowed(layer_of(path), target)
    ]
    assert broken == []


def format_of(module: str) -> str | None:
    """``shardvar.formats.tensorflow_bundle`` -> ``tensorflow``; None for a module that all formats share."""
    words = module.split(".")[2].split("_") if module.startswith("shardvar.formats.") else []
    return next((name for name in FORMATS if name in words), None)


def test_no_format_imports_another() -> None:
    """Formats are peers: they meet in the protocol and in the table that lists them, nowhere else."""
    broken = [
        f"{at(path, line)}: {target}"
        for path in in_layers("formats")
        if format_of(module_name(path)) or path.name == "protocol.py"
        for line, target in imports_of(path)
        if format_of(target) not in (None, format_of(module_name(path)))
    ]
    assert broken == []


@pytest.mark.parametrize("layer", PURE)
def test_pure_layers_know_no_file_and_no_clock(layer: str) -> None:
    broken = [
        f"{at(path, line)}: {target}"
        for path in in_layers(layer)
        for line, target in imports_of(path)
        if target.split(".")[0] in CLOCKS_AND_DOORS
    ]
    assert broken == []


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def openings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (dotted(node.func) in OPENERS or dotted(node.func).endswith(".tofile")):
            yield node.lineno, dotted(node.func)


def test_only_storage_opens_files() -> None:
    broken = [
        f"{at(path, line)}: {what}"
        for path in outside_layers(*FILE_LAYERS)
        for line, what in [
            *openings(tree_of(path)),
            *((line, target) for line, target in imports_of(path) if target.split(".")[0] in DOOR_MODULES),
        ]
    ]
    assert broken == []


def test_rich_is_imported_by_the_command_line_alone() -> None:
    broken = [
        at(path, line)
        for path in outside_layers("cli")
        for line, target in imports_of(path)
        if target.split(".")[0] == "rich"
    ]
    assert broken == []


def test_no_file_is_longer_than_a_sitting() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES_OF_A_FILE} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    lengths = {
        f"{at(path, node.lineno)} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: length for name, length in lengths.items() if length > MOST_LINES_OF_A_FUNCTION} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import shardvar.errors",
        "import shardvar.errors as e",
        "from shardvar import errors",
        "from shardvar.errors import LayoutError",
        "from . import errors",
        "from .errors import LayoutError",
        "def f():\n    from shardvar import errors",
        "if TYPE_CHECKING:\n    import shardvar.errors",
        "import_module('shardvar.errors')",
    ],
)
def test_every_spelling_of_an_import_is_seen(source: str) -> None:
    """The tests above are worth what ``imports`` sees."""
    assert "shardvar.errors" in {target for _, target in imports(ast.parse(source), "shardvar")}


def test_every_spelling_of_opening_is_seen() -> None:
    source = "open(p)\nos.open(p, 0)\nnp.load(p)\narray.tofile(p)\nstorage.open(p)"
    assert [line for line, _ in openings(ast.parse(source))] == [1, 2, 3, 4]
