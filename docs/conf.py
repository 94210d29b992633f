"""Configuration of Sphinx for ``make docs``. Warnings are errors.

The pages are Markdown and also readable in the repository. Only the site has the API
reference, ``docs/api``. Its directive ``names`` lists the public names of a module, first in a
table and then one by one, so that the pages need not repeat them.
"""

import ast
import copy
import dataclasses
import inspect
import re
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from numpydoc.xref import DEFAULT_LINKS
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

import shardvar

sys.path.insert(0, str(Path(__file__).parents[1]))
from spec_tests.helpers.api_reference import head_of, whole_sections

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
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autosummary_generate = False
numpydoc_show_class_members = False
# Types in sections are words. The glossary's types and the public names of shardvar are links.
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
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")
html_copy_source = False
html_show_sourcelink = False
# The bar on the left lists the pages of a folder. Pages next to this file need no such bar.
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


class Chapter(SphinxDirective):
    """Show a module of ``shardvar.spec`` as a chapter: each rule below its sentence."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        path = Path(shardvar.__file__).parent / "spec" / f"{self.arguments[0]}.py"
        self.env.note_dependency(str(path))
        source = path.read_text(encoding="utf-8")
        shown = self.parse_text_to_nodes(str(ast.get_docstring(ast.parse(source))))
        parent = shown
        for block in source.split('"""', 2)[2].split("\n\n\n"):
            comment, code = split_comment(block.strip("\n"))
            if name := re.match(r"def ([a-z]\w*)", code):
                section = nodes.section(ids=[name[1]])
                section += nodes.title(text=name[1])
                shown.append(section)
                parent = section
            elif not comment and re.match(r"from|import|def _", code):
                # Helpers, which the rule above them calls, and what follows the imports: names of
                # types and constants.
                code = code if code.startswith("def _") else after_imports(code)
            parent += self.parse_text_to_nodes(as_quotations(comment))
            if code:
                parent += nodes.literal_block(code, code, language="python")
        return shown


def after_imports(code: str) -> str:
    """Return the code below the imports and the list of public names.

    >>> after_imports("import sys\\n\\n__all__ = ['X']\\n\\nX = 1\\n'A number.'")
    "X = 1\\n'A number.'"
    """
    for node in ast.parse(code).body:
        is_list = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if not is_list and not isinstance(node, ast.Import | ast.ImportFrom):
            return "\n".join(code.split("\n")[node.lineno - 1 :])
    return ""


def split_comment(block: str) -> tuple[str, str]:
    """Return the comment at the top of a block of code as one line, and the code below it."""
    lines = block.split("\n")
    count = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return " ".join(line.lstrip("# ") for line in lines[:count]), "\n".join(
        lines[count:]
    ).strip("\n")


def as_quotations(comment: str) -> str:
    """Return a comment as Markdown: a quotation for each sentence of an RFC, with a link to its rule.

    >>> as_quotations('Words. R-DIV-1 (RFC 000): "one two"')
    'Words.\\n\\n> "one two"\\n>\\n> [R-DIV-1](../rules.md#r-div-1), RFC 000'
    """
    first, *rest = re.split(r"(R-[A-Z]+-\d+) \((RFC \d+)\): ", comment)
    found = [first.strip()]
    for rule, rfc, text in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        link = f"[{rule}](../rules.md#{rule.lower()}), {rfc}"
        found.append(f"> {text.strip()}\n>\n> {link}")
    return "\n\n".join(filter(None, found))


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
    """Return the signature of a function or a constructor as its source has it.

    An evaluated signature spells out what ``ArrayLike`` stands for, over many lines of NumPy's
    private types, and the values of default constants.
    """
    if what == "class":
        node = constructor_of(value)
    elif what in ("function", "method"):
        node = definition_of(value)
    else:
        return None
    if not isinstance(node, ast.FunctionDef):
        return None
    decorators = [ast.unparse(each) for each in node.decorator_list]
    # Hypothesis calls a composite strategy with ``draw``, which callers leave out.
    is_strategy = "st.composite" in decorators
    arguments = copy.deepcopy(node.args)
    if is_strategy or [each.arg for each in arguments.args[:1]] in (["self"], ["cls"]):
        del arguments.args[0]
    result = ast.unparse(node.returns) if node.returns and what != "class" else ""
    result = f"SearchStrategy[{result}]" if is_strategy else result
    return f"({as_documented(ast.unparse(arguments))})", as_documented(result)


def as_documented(text: str) -> str:
    """Return a type as users of NumPy write it."""
    # The alias of a string or a path has the name of pathlib's class.
    text = re.sub(r"\bPath\b", "PathLike", text)
    return text.replace("npt.", "").replace("np.", "numpy.").replace("st.Search", "Search")


def definition_of(value: Any) -> ast.AST | None:
    """Return the syntax tree of a function or a class, found by its name in its module."""
    path = getattr(sys.modules.get(value.__module__), "__file__", None)
    if path is None:
        return None
    node: Any = ast.parse(Path(path).read_text(encoding="utf-8"))
    # Hypothesis makes its strategies in functions that are local.
    for part in value.__qualname__.rpartition("<locals>.")[2].split("."):
        # The last of several: those before are overloads.
        node = next((each for each in reversed(node.body) if is_called(each, part)), None)
        if node is None:
            return None
    return node


def is_called(node: ast.AST, name: str) -> bool:
    """Return True for the definition of a function or a class of that name."""
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name


def constructor_of(owner: type) -> ast.AST | None:
    """Return the constructor of a class, as it is written or made of a dataclass's fields."""
    home = next(each for each in owner.__mro__ if "__init__" in vars(each))
    node = definition_of(home)
    if not isinstance(node, ast.ClassDef) or not home.__module__.startswith("shardvar"):
        return None
    written = next((each for each in node.body if is_called(each, "__init__")), None)
    if written is not None or not dataclasses.is_dataclass(home):
        return written
    shown = []
    for field in dataclasses.fields(home):
        if not field.init or field.name.startswith("_"):
            continue
        declared = next((each for each in node.body if is_field(each, field.name)), None)
        if declared is None:  # inherited: as it is evaluated
            return None
        has_default = declared.value is not None and not required(field)
        default = "" if not has_default else " = " + default_of(field, declared)
        shown.append(f"{field.name}: {ast.unparse(declared.annotation)}{default}")
    return ast.parse(f"def __init__({', '.join(shown)}): ...").body[0]


def is_field(node: ast.AST, name: str) -> bool:
    """Return True for the declaration of a field."""
    return (
        isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == name
    )


def required(field: Any) -> bool:
    """Return True for a field without a default."""
    return field.default is field.default_factory is dataclasses.MISSING


def default_of(field: Any, declared: Any) -> str:
    """Return the default of a field as it is written; ``...`` for one that a factory makes."""
    if field.default is dataclasses.MISSING:
        return "..."
    is_call = isinstance(declared.value, ast.Call)
    return repr(field.default) if is_call else ast.unparse(declared.value)


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

    In sections of NumPy, such as Parameters, indented lines are descriptions. Errors are links. A
    member of a family gets the sections that its docstring leaves to another one.
    """
    if what in ("class", "function", "method") and head_of(value) is not None:
        whole = whole_sections(value)
        text = whole.pop("").rstrip()
        for name, section in whole.items():
            underline = "-" * len(name)
            text += f"\n\n{name}\n{underline}\n" + section.strip("\n")
        lines[:] = text.split("\n")
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


GENERATED = ("conformance", "mutation", "performance", "rules")
"""Pages of tables that programs write: every word is in them, and few readers look for them."""


def leave_out_of_the_search(app: Any, env: Any) -> None:
    for page in GENERATED:
        env.metadata[page]["nosearch"] = True


def setup(app: Any) -> None:
    """Register the directive and the handlers above."""
    app.add_directive("names", Names)
    app.add_directive("chapter", Chapter)
    app.connect("source-read", convert_markdown)
    # Before numpydoc, which converts the sections.
    app.connect("autodoc-process-docstring", convert_docstring, priority=400)
    app.connect("autodoc-process-signature", show_signature_as_written)
    app.connect("missing-reference", resolve_by_face, priority=400)
    app.connect("env-updated", leave_out_of_the_search)
