"""A docstring begins with an imperative or with a noun phrase, and those of the API reference have
NumPy's sections."""

import ast
import builtins
import inspect
import re
from collections.abc import Iterator

import pytest

from shardvar import errors
from spec_tests.helpers.api_reference import (
    SECTIONS,
    Member,
    entries,
    members,
    names_in,
    sections,
    undocumented_fields,
)
from spec_tests.helpers.source_code import MODULES, module_name, tree_of

QUESTION = re.compile(r"(What|Whether|How|Who|Whom|Whose|Where|Why)\b")


def docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each docstring: of the module, its classes and functions, and their
    attributes."""
    names = {tree: ""}
    for node in ast.walk(tree):
        body = getattr(node, "body", [])
        for number, child in enumerate(body if isinstance(body, list) else []):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names[child] = f"{names.get(node, '')}.{child.name}"
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                before = (
                    ast.unparse(body[number - 1]).split(":")[0].split(" =")[0] if number else ""
                )
                if isinstance(child.value.value, str):
                    yield (
                        f"{names.get(node, '')}{f'.{before}' if before else ''}",
                        child.value.value,
                    )


def find_docstring_openings() -> set[str]:
    return {
        f"{module_name(path)}{name}: {opening[0]}"
        for path in MODULES
        for name, text in docstrings(tree_of(path))
        if (opening := QUESTION.match(text.strip()))
    }


def test_no_docstring_begins_with_a_question() -> None:
    assert find_docstring_openings() == set()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('"""Why."""', ""),
        ('class C:\n    """Why."""', ".C"),
        ('class C:\n    def f(self):\n        """Why."""', ".C.f"),
        ('class C:\n    x: int\n    """Why."""', ".C.x"),
        ('X = 3\n"""Why."""', ".X"),
    ],
)
def test_every_kind_of_docstring_is_seen(source: str, name: str) -> None:
    """The test above is worth what `docstrings` sees."""
    assert list(docstrings(ast.parse(source))) == [(name, "Why.")]


REFERENCE = list(members())

PUBLIC_MODULES = {"shardvar.layouts", "shardvar.testing", "shardvar.errors"}
"""The modules below `shardvar` whose names the pages import from there."""


def problems(member: Member) -> Iterator[str]:
    """Yield in which points a docstring differs from its signature and from NumPy's form."""
    found = sections(member.docstring)
    headings = [heading for heading in found if heading]
    if headings != [heading for heading in SECTIONS if heading in headings]:
        yield f"headings {headings}, not in the order and spelling of {SECTIONS}"
    if member.takes is not None:
        yield from differing_parameters(member.takes, found.get("Parameters", ""))
    if member.gives != ("Returns" in found or "Yields" in found) and not isinstance(
        member.value, property
    ):
        yield "a section Returns or Yields exactly if a value is returned"
    for name, type_, description in entries(found.get("Raises", "")):
        value = getattr(errors, name, getattr(builtins, name, None))
        if (
            type_
            or not description
            or not (isinstance(value, type) and issubclass(value, BaseException))
        ):
            yield (
                f"Raises {name!r}, which is neither in shardvar.errors nor Python's, or has no "
                "description"
            )
    if any(">>>" in text for heading, text in found.items() if heading != "Examples"):
        yield "examples outside the section Examples"
    for module in re.findall(
        r"^(?:>>>|\.\.\.) +(?:from|import) (shardvar\.[\w.]+)", member.docstring, flags=re.MULTILINE
    ):
        if module not in PUBLIC_MODULES:
            yield f"an example imports {module}, which a user of the library does not know"
    if inspect.isclass(member.value) and (fields := undocumented_fields(member.value)):
        yield f"fields without a docstring: {fields}"


def differing_parameters(takes: list[inspect.Parameter], section: str) -> Iterator[str]:
    """Yield in which points a section Parameters differs from a signature: names, order, types and
    defaults."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    expected = {
        stars.get(parameter.kind, "") + parameter.name: parameter.default for parameter in takes
    }
    if names_in(section) != list(expected):
        yield f"Parameters are {names_in(section)}, the signature has {list(expected)}"
        return
    for names, type_, description in entries(section):
        if not type_ or not description:
            yield f"{names}: no type or no description"
        default = expected[names.split(", ")[-1]]
        stated = re.search(r", (?:optional|default (.+))$", type_)
        if (default is inspect.Parameter.empty) != (stated is None):
            yield (
                f"{names}: ', optional' or ', default VALUE' ends the type exactly if there is a "
                "default"
            )
        elif stated and stated[1] and stated[1].replace('"', "'") != repr(default):
            yield f"{names}: the default is {default!r}, not {stated[1]}"


@pytest.mark.parametrize("member", REFERENCE, ids=lambda member: member.name)
def test_sections_agree_with_the_signature(member: Member) -> None:
    """Parameters names what the signature has, in its order, with its defaults; Raises names
    classes that exist."""
    assert list(problems(member)) == []


def test_functions_whose_module_has_their_name_are_compared_too() -> None:
    assert {"shardvar.layouts.fsdp", "shardvar.nn.matmul"} <= {member.name for member in members()}


def documented(first: int, *rest: str, second: str = "a") -> int:
    """Return a number.

    Parameters
    ----------
    first : int
        A number.
    *rest : str
        Texts.
    second : str, default 'a'
        A text.

    Returns
    -------
    int
        The number.

    Raises
    ------
    OutOfRange
        If it is negative.

    Examples
    --------
    >>> documented(1)
    1
    """
    return first


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("", "", None),
        ("first : int", "one : int", "the signature has"),
        ("first : int\n", "first\n", "no type"),
        ("default 'a'", "default 'b'", "the default is 'a'"),
        ("str, default 'a'", "str", "exactly if there is a default"),
        ("first : int", "first : int, optional", "exactly if there is a default"),
        ("OutOfRange", "OutOfRanges", "Raises"),
        ("Returns\n    -------", "Notes\n    -----", "Returns or Yields"),
        ("Examples\n    --------", "", "examples outside"),
        (">>> documented(1)", ">>> from shardvar.layout.region import Region", "does not know"),
        (">>> documented(1)", ">>> from shardvar.layouts import Layout", None),
        ("Raises\n    ------", "Errors\n    ------", "headings"),
    ],
)
def test_every_kind_of_problem_is_seen(
    monkeypatch: pytest.MonkeyPatch, before: str, after: str, problem: str | None
) -> None:
    """The test above is worth what `problems` sees."""
    text = documented.__doc__
    assert text is not None and before in text
    monkeypatch.setattr(documented, "__doc__", text.replace(before, after))
    takes = list(inspect.signature(documented).parameters.values())
    found = list(problems(Member("documented", __name__, documented, takes, gives=True)))
    assert (found == []) if problem is None else any(problem in each for each in found)
