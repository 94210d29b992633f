"""A docstring begins with an imperative or with a noun phrase, and those of the API reference have
NumPy's sections."""

import ast
import builtins
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shardvar import errors
from spec_tests.helpers.api_reference import (
    SECTIONS,
    Member,
    entries,
    head_of,
    members,
    names_in,
    sections,
    undocumented_fields,
    whole_sections,
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


def test_no_docstring_begins_with_a_question() -> None:
    found = {
        f"{module_name(path)}{name}: {opening[0]}"
        for path in MODULES
        for name, text in docstrings(tree_of(path))
        if (opening := QUESTION.match(text.strip()))
    }
    assert found == set()


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

PUBLIC_MODULES = {"shardvar.layouts", "shardvar.testing", "shardvar.errors", "shardvar.spec"}
"""The modules below `shardvar` whose names the pages import from there."""


GIVES = re.compile(r"(?:Return|Yield|Draw|Create|Open|Choose|Construct|The|An?|Each|Disjoint)\b")
"""First words of a docstring whose first line says what is returned. Its type is in the signature,
so that a section would say it twice."""


def problems(member: Member) -> Iterator[str]:
    """Yield in which points a docstring differs from its signature and from NumPy's form."""
    found = sections(member.docstring)
    whole = found if isinstance(member.value, property) else whole_sections(member.value)
    headings = [heading for heading in found if heading]
    if headings != [heading for heading in SECTIONS if heading in headings]:
        yield f"headings {headings}, not in the order and spelling of {SECTIONS}"
    if member.takes is not None:
        yield from differing_parameters(member.takes, whole.get("Parameters", ""))
    is_described = "Returns" in whole or "Yields" in whole
    if is_described and not member.gives and not isinstance(member.value, property):
        yield "a section Returns or Yields, and no value is returned"
    if member.gives and not is_described and not GIVES.match(member.docstring):
        yield "neither a section Returns or Yields, nor a first line that begins with the result"
    yield from repeated_entries(member)
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


def repeated_entries(member: Member) -> Iterator[str]:
    """Yield the entries of a docstring that the head of its family has word for word."""
    head = None if isinstance(member.value, property) else head_of(member.value)
    if head is None:
        return
    own, theirs = sections(member.docstring), whole_sections(head)
    for heading in own.keys() & theirs.keys() - {"", "Examples", "Notes"}:
        if both := set(entries(own[heading])).intersection(entries(theirs[heading])):
            yield f"{heading} repeats {sorted(both)} of the member that it refers to"


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


def test_sections_agree_with_the_signature() -> None:
    """Parameters names what the signature has, in its order, with its defaults; Raises names
    classes that exist."""
    found = {member.name: list(problems(member)) for member in REFERENCE}
    assert {name: each for name, each in found.items() if each} == {}


def test_functions_whose_module_has_their_name_are_compared_too() -> None:
    assert {"shardvar.layouts.fsdp", "shardvar.nn.matmul"} <= {member.name for member in members()}


def problems_of(function: Callable[..., Any]) -> list[str]:
    """Return the problems of a function that gives a value."""
    takes = list(inspect.signature(function).parameters.values())
    return list(problems(Member(function.__name__, __name__, function, takes, gives=True)))


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
        ("Returns\n    -------\n    int\n        The number.\n\n    ", "", None),
        ("Return a number.\n", "Add one; otherwise as ``documented``.\n", "repeats"),
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
    found = problems_of(documented)
    assert (found == []) if problem is None else any(problem in each for each in found)


def relative(first: int, second: str = "a") -> int:
    """Count a number; otherwise as ``documented``.

    Parameters
    ----------
    first : int
        Another number.

    Raises
    ------
    ValueError
        If it is odd.
    """
    return first + len(second)


def test_a_member_of_a_family_states_its_difference() -> None:
    """It has the other entries of the head, as far as it has the parameters, in its own order."""
    whole = whole_sections(relative)
    assert problems_of(relative) == []
    assert [entry[::2] for entry in entries(whole["Parameters"])] == [
        ("first", "Another number."),
        ("second", "A text."),
    ]
    assert [entry[0] for entry in entries(whole["Raises"])] == ["OutOfRange", "ValueError"]
    assert whole["Returns"].split() == ["int", "The", "number."]


def test_a_result_is_described_somewhere() -> None:
    def incremented(number: int) -> int:
        """Add one.

        Parameters
        ----------
        number : int
            The number.
        """
        return number + 1

    (problem,) = problems_of(incremented)
    assert "begins with the result" in problem
