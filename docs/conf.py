"""Configuration of Sphinx for ``make docs``. Warnings are errors.

The pages are Markdown and also readable in the repository. Only the site has the API
reference, ``docs/api``. Its directive ``names`` lists the public names of a module, first in a
table and then one by one, so that the pages need not repeat them.
"""

import ast
import inspect
import re
import textwrap
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from numpydoc.xref import DEFAULT_LINKS
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

import shardvar

project = "shardvar"
author = "The shardvar authors"
project_copyright = "The shardvar authors"
version = release = shardvar.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
]
nitpicky = True
# The site does not document the types of Python, NumPy and inner layers in signatures.
nitpick_ignore_regex = [("py:.*", ".*")]

myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # format.md annotates its hexdumps

# The outputs are stored, and `make tour` compares them with a new run.
nb_execution_mode = "off"

add_module_names = False
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autosummary_generate = False
numpydoc_show_class_members = False
# Types in sections are words; those of the glossary and the public names of shardvar are links.
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"
numpydoc_xref_aliases = {
    **{name: name for name in DEFAULT_LINKS},  # into the sites of Python and NumPy
    **{name: f":term:`{name}`" for name in ("array_like", "dtype_like", "path_like")},
    **{name: f":py:obj:`~shardvar.{name}`" for name in shardvar.__all__ if name[0].isupper()},
}
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = f"shardvar {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["filter.js"]
html_copy_source = False
html_show_sourcelink = False
# The bar on the left lists the pages of a folder. Pages beside this file need no such bar.
_PAGES = Path(__file__).parent.glob("*.*")
html_sidebars: dict[str, list[str]] = {page.stem: [] for page in _PAGES}
html_theme_options = {
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "github-dark",
}


class Names(SphinxDirective):
    """List public names of a module, ``.. names:: MODULE``: those below it, or all of them."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        module = self.arguments[0]
        home = resolve_name(module)
        shorts = " ".join(self.content).split() or home.__all__
        names = [f"{module}.{name}" for name in shorts]
        lines = [".. autosummary::", "   :nosignatures:", "", *(f"   {name}" for name in names)]
        # From its module: a submodule may have the name of the function, as `layouts.fsdp`.
        for short, name in zip(shorts, names, strict=True):
            lines += ["", f".. {directive_of(getattr(home, short))}:: {name}", ""]
        where = nodes.section()
        where.document = self.state.document
        self.state.nested_parse(StringList(lines, source=self.env.docname), 0, where)
        return list(where.children)


def directive_of(value: Any) -> str:
    """Return the autodoc directive for a function, a class, an error or a value."""
    if inspect.isclass(value):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if inspect.isroutine(value) else "autodata"


def resolve_by_face(
    app: Any, env: Any, node: Any, inner: nodes.Element
) -> nodes.Element | None:
    """Link a type in a signature, named by its own module, to its public name."""
    name = node.get("reftarget", "").rpartition(".")[2]
    objects = env.get_domain("py").objects
    homes = [
        full for full in objects if re.fullmatch(rf"shardvar\.(\w+\.)?{re.escape(name)}", full)
    ]
    if node.get("refdomain") != "py" or len(homes) != 1:
        return None
    entry = objects[homes[0]]
    return make_refnode(
        app.builder, node["refdoc"], entry.docname, entry.node_id, inner, homes[0]
    )


def show_signature_as_written(
    app: Any, what: str, name: str, value: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Return the signature of a function as its source has it.

    An evaluated signature spells out what ``ArrayLike`` stands for, over many lines of NumPy's
    private types. Strategies, which Hypothesis makes at run time, have no source.
    """
    if what not in ("function", "method"):
        return None
    try:
        source = inspect.getsource(inspect.unwrap(value))
    except OSError:
        return None
    tree = ast.parse(textwrap.dedent(source))
    (node,) = tree.body
    if not isinstance(node, ast.FunctionDef):
        return None
    if what == "method" and node.args.args and node.args.args[0].arg in ("self", "cls"):
        del node.args.args[0]
    shown = [ast.unparse(node.args), ast.unparse(node.returns) if node.returns else ""]
    # The alias of a string or a path has the name of pathlib's class.
    shown = [re.sub(r"\bPath\b", "PathLike", text) for text in shown]
    arguments, result = (text.replace("npt.", "").replace("np.", "numpy.") for text in shown)
    return f"({arguments})", result


def convert_markdown(app: Any, docname: str, source: list[str]) -> None:
    """Convert anchors, and links to files outside the site, to Sphinx's forms."""
    folder = Path(app.env.doc2path(docname)).parent

    def as_file(link: re.Match[str]) -> str:
        is_page = (folder / link[1]).resolve().is_relative_to(app.srcdir)
        return link[0] if is_page else f"](path:{link[1]})"

    source[0] = re.sub(r'<a id="([^"]+)"></a>', r"[]{#\1}", source[0])
    source[0] = re.sub(r"\]\((\.\./[^)\s#]+\.md)\)", as_file, source[0])


def convert_docstring(
    app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Mark indented lines as programs and escape shapes like ``[*ids, dim]``.

    In sections of NumPy, such as Parameters, indented lines are descriptions. Errors are links.
    """
    shown: list[str] = []
    last = section = ""
    for number, line in enumerate(lines):
        if re.fullmatch("-{3,}", line):
            section = last
        is_list = section not in ("", "Notes", "Examples")
        if section == "Raises" and hasattr(shardvar.errors, line):
            line = f":py:exc:`~shardvar.errors.{line}`"
        is_indented = line.startswith("    ") and not is_list
        is_first = is_indented and number > 0 and not lines[number - 1]
        if is_first and not re.match(r"[ .\d-]", last) and not last.endswith("::"):
            shown += ["::", ""]
        is_prose = not line.startswith(">>>") and (is_list or not line.startswith(" "))
        shown.append(
            re.sub(r"\[[^\]`]*\]", lambda shape: shape[0].replace("*", "\\*"), line)
            if is_prose
            else line
        )
        last = line or last
    lines[:] = shown


def setup(app: Any) -> None:
    """Register the directive and the handlers above."""
    app.add_directive("names", Names)
    app.connect("source-read", convert_markdown)
    # Before numpydoc, which converts the sections.
    app.connect("autodoc-process-docstring", convert_docstring, priority=400)
    app.connect("autodoc-process-signature", show_signature_as_written)
    app.connect("missing-reference", resolve_by_face, priority=400)
