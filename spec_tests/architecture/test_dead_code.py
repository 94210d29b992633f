"""Code that only tests use is dead: each function, class, method and field has a caller in the package, or a page.

Vulture finds names that nothing mentions in the package, its stub, the benchmarks and the examples. A name that a page
mentions is for users and may have no caller here.
"""

import re
from pathlib import Path

from spec_tests.helpers.known_offenders import check
from spec_tests.helpers.paths import DOCS, ROOT
from spec_tests.helpers.source_code import MODULES, PACKAGE, definitions, module_name, tree_of

CALLED_BY_OTHERS = ("__getattr__", "_repr_html_", "pytest_*", "runtest", "reportinfo", "Adapter", "atexit")
"""Names by which Python, notebooks and pytest call the package, and by which the kit finds an adapter."""
DECORATORS = ("@rule", "@invariant", "@initialize")
"""What registers a function: with the conformance kit, and with Hypothesis."""


OF_TENSORFLOW = {
    "batch_scatter_update", "enable_async", "experimental_io_device", "experimental_skip_slot_variables",
    "experimental_write_callbacks", "non_trainable_variables", "scatter_div", "scatter_max", "scatter_min",
    "scatter_mul", "scatter_sub", "submodules", "by_frequency", "ON_WRITE",
}  # fmt: skip
"""What users call because TensorFlow has it, or RFC 002."""


def users_words() -> set[str]:
    """Return the words of what users read, and the public names."""
    pages = [
        *DOCS.rglob("*.md"),
        *DOCS.rglob("*.rst"),
        *DOCS.rglob("*.ipynb"),
        ROOT / "README.md",
        PACKAGE / "__init__.pyi",
    ]
    words = {word for page in pages for word in re.findall(r"\w+", page.read_text(encoding="utf-8"))}
    packages = [path for path in MODULES if path.name == "__init__.py"]
    return words | {name for path in packages for name in exported(path)}


def exported(path: Path) -> set[str]:
    """Return the names in a package's `__all__`."""
    text = path.read_text(encoding="utf-8")
    listed = re.search(r"^__all__ = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)
    return set(re.findall(r"\w+", listed[1])) if listed else set(definitions(tree_of(path)))


def find_dead_code() -> set[str]:
    """Return "module.name" of what nothing uses; unused arguments are ruff's to find."""
    from vulture import Vulture  # the developer's environment alone has it

    finder = Vulture(ignore_names=list(CALLED_BY_OTHERS), ignore_decorators=list(DECORATORS))
    finder.scavenge([PACKAGE, ROOT / "benchmarks", ROOT / "examples"])
    known = users_words()
    return {
        f"{module_name(Path(item.filename))}.{item.name}"
        for item in finder.get_unused_code(min_confidence=60)
        if item.confidence < 100 and item.name not in known | OF_TENSORFLOW and PACKAGE in Path(item.filename).parents
    }


def test_no_code_is_dead() -> None:
    check("dead code", find_dead_code())
