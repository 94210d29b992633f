"""The layers: imports go one way, only storage opens files, and pure layers know neither files nor
clocks.

`ALLOWED` is the table of imports of docs/design.md as data. Every import counts, wherever it is:
inside a function, under `TYPE_CHECKING`, or as a module's name in a string that is imported later.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spec_tests.helpers.layer_picture import (
    BOX_WIDTH,
    FACE,
    PICTURE,
    across,
    imported,
    picture,
    reduced,
    rows,
)
from spec_tests.helpers.layers import ALLOWED, FOUNDATION, REFERENCE, ROOF, TOOL
from spec_tests.helpers.source_code import (
    MODULES,
    PACKAGE,
    at,
    importers,
    imports,
    imports_of,
    layer_of,
    layer_of_module,
    module_name,
    reached,
    tree_of,
)

PURE = ("pictures", "layout", "layout.meshes", "reference.tracking", "planning", "wire")
CLOCKS_AND_DOORS = {"io", "mmap", "os", "pathlib", "shutil", "tempfile", "time"}

FILE_LAYERS = (
    "storage",
    "cli",
    "conformance",
    "vectors",
)  # the kit writes its reports, and damages what adapters wrote; vectors are unpacked for answers
OPENERS = {
    "open",
    "io.open",
    "os.open",
    "os.fdopen",
    "np.load",
    "np.save",
    "np.savez",
    "np.fromfile",
    "np.memmap",
}
OPENERS |= {
    f"os.{verb}"
    for verb in ("listdir", "makedirs", "mkdir", "remove", "rename", "replace", "scandir", "unlink")
}
DOOR_MODULES = {"fcntl", "glob", "mmap", "pathlib", "shutil", "tempfile"}

FORMATS = {path.parent.name for path in (PACKAGE / "formats").glob("*/__init__.py")}


def is_allowed(layer: str, target: str) -> bool:
    if target == "shardvar":
        return layer in ROOF
    inner = target.removeprefix("shardvar.")
    return layer_of_module(target) in (layer, *ALLOWED[layer]) or inner in ALLOWED[layer]


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
        assert {layer_of_module(f"shardvar.{arrow}") for arrow in arrows} <= seen, layer
        seen.add(layer)


def test_imports_go_one_way() -> None:
    broken = [
        f"{at(path, line)}: {layer_of(path)} may not import {target}"
        for path in outside_layers("")
        for line, target in imports_of(path)
        if target.split(".")[0] == "shardvar" and not is_allowed(layer_of(path), target)
    ]
    assert broken == []


def test_the_tool_never_imports_the_reference() -> None:
    """Two wings: the tool stays whole when the reference is taken away, but for `shardvar vectors`,
    which copies data."""
    broken = [
        f"{at(path, line)}: {target}"
        for path in in_layers(*FOUNDATION, *TOOL)
        for line, target in imports_of(path)
        if f"{target}.".startswith("shardvar.") and layer_of_module(target) in REFERENCE
        if (layer_of(path), target) != ("cli", "shardvar.vectors")
    ]
    assert broken == []


def test_every_layer_is_in_one_wing() -> None:
    """The wings are lists, and a layer that is in none of them would not be looked at."""
    assert {*FOUNDATION, *TOOL, *REFERENCE, "_version", "__main__", "layouts"} == ALLOWED.keys()


def format_of(module: str) -> str | None:
    """Return the format of a module: `shardvar.formats.npz.source` is of npz,
    `shardvar.formats.files` of none."""
    name = f"{module}...".split(".")[2]
    return name if module.startswith("shardvar.formats.") and name in FORMATS else None


def test_no_format_imports_another() -> None:
    """Formats are peers: they meet in the protocol and in the table that lists them, nowhere
    else."""
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
    assert importers(CLOCKS_AND_DOORS, in_layers(layer)) == []


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def openings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (
            dotted(node.func) in OPENERS or dotted(node.func).endswith(".tofile")
        ):
            yield node.lineno, dotted(node.func)


def test_only_storage_opens_files() -> None:
    paths = outside_layers(*FILE_LAYERS)
    opened = [
        f"{at(path, line)}: {what}" for path in paths for line, what in openings(tree_of(path))
    ]
    assert opened + importers(DOOR_MODULES, paths) == []


def test_rich_is_imported_by_the_command_line_alone() -> None:
    assert importers({"rich"}, outside_layers("cli")) == []


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


def test_the_picture_is_current() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(), (
        "docs/images/layers.svg is old: run `make layers`."
    )


def test_what_is_drawn_leads_exactly_where_the_imports_lead() -> None:
    """An arrow may be left out only where others say the same."""
    arrows = imported()
    drawn = reduced(arrows)
    assert all(reached(layer, drawn) == reached(layer, arrows) for layer in arrows)
    for layer, targets in drawn.items():
        for target in targets:
            fewer = {**drawn, layer: targets - {target}}
            assert target not in reached(layer, fewer), f"{layer} -> {target} follows from others"


def test_every_layer_is_drawn_once_and_above_what_it_imports() -> None:
    names = [
        each.text
        for each in ElementTree.fromstring(picture()).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert sorted(map(str, names)) == sorted(
        layer.removeprefix("reference.") for layer in ALLOWED if layer not in FACE
    )
    arrows = reduced(imported())
    height = {
        layer: number
        for number, row in enumerate(rows(arrows))
        for layer, passing in row
        if not passing
    }
    assert all(
        height[layer] > height[target] for layer, targets in arrows.items() for target in targets
    )


def test_no_arrow_passes_behind_a_box() -> None:
    """An arrow that goes in at the top of a box and out below would seem to begin there."""
    for row in rows(reduced(imported())):
        middles = dict(across(row))
        boxes = [x for (_, passing), x in middles.items() if not passing]
        passing_by = [x for (_, passing), x in middles.items() if passing]
        assert all(abs(x - middle) > BOX_WIDTH // 2 for x in passing_by for middle in boxes)
