"""The API reference as data: the public names of its pages, and the NumPy sections of their
docstrings.

A family of functions states its parameters, results and errors once, at its first member. Another
member ends its summary with "otherwise as ``scatter_add``", a class with "See ``RandomUniform`` for
the other parameters", and has entries only where it differs. ``whole_sections`` puts the two
together, for the tests and for the pages.
"""

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

from spec_tests.helpers.face_stand_ins import import_faces
from spec_tests.helpers.paths import ROOT

import_faces()

FAMILY = re.compile(
    r"otherwise as\s+``([\w.]+)``|See\s+``([\w.]+)``\s+for\s+the\s+(?:other\s+)?parameters",
    re.IGNORECASE,
)
"""The words by which a docstring leaves sections to another member of its family."""

PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))

SECTIONS = (
    "Parameters",
    "Returns",
    "Yields",
    "Raises",
    "See Also",
    "Notes",
    "References",
    "Examples",
)
"""The headings of numpydoc in its order, as far as they are used here."""


def names_of(page: Path) -> Iterator[str]:
    """Yield the public names of a page: those of its directives ``names``, and all of a module with
    ``automodule``."""
    text = page.read_text(encoding="utf-8")
    for module, names in re.findall(
        r"^\.\. names:: (\S+)\n((?:\n|   .*\n)*)", text, flags=re.MULTILINE
    ):
        yield from (f"{module}.{name}" for name in names.split() or resolve_name(module).__all__)
    for module in re.findall(r"automodule:: (\S+)$", text, flags=re.MULTILINE):
        yield from (f"{module}.{name}" for name in resolve_name(module).__all__)


class Member(NamedTuple):
    """A documented function, class, method or property."""

    name: str
    module: str
    """The module that defines it, or its class."""
    value: Any
    takes: list[inspect.Parameter] | None
    """The parameters that its docstring must name; None where the docstring need not name them."""
    gives: bool
    """True if it is a function that returns a value."""

    @property
    def docstring(self) -> str:
        return inspect.getdoc(self.value) or ""


def members() -> Iterator[Member]:
    """Yield every documented function, class, method and property of the reference."""
    for name in sorted({name for page in PAGES for name in names_of(page)}):
        # From its module: a submodule may have the name of the function, as `layouts.fsdp`.
        home, _, short = name.rpartition(".")
        value = getattr(resolve_name(home), short)
        if inspect.isclass(value):
            yield Member(name, value.__module__, value, constructor_parameters(value), gives=False)
            yield from _members_of(name, value)
        elif callable(value) and value.__module__.startswith("shardvar"):
            yield _function(name, value.__module__, value, bound=False)


def _members_of(name: str, owner: type) -> Iterator[Member]:
    for key, value in vars(owner).items():
        # Hypothesis calls the rules and invariants of a machine.
        is_rule = any(
            key.startswith("hypothesis_stateful") for key in getattr(value, "__dict__", {})
        )
        if key.startswith("_") or is_rule or not inspect.getdoc(value):
            continue
        if isinstance(value, property | cached_property):
            yield Member(f"{name}.{key}", owner.__module__, value, None, gives=False)
        elif isinstance(value, classmethod | staticmethod):
            bound = isinstance(value, classmethod)
            yield _function(f"{name}.{key}", owner.__module__, value.__func__, bound=bound)
        elif inspect.isfunction(value):
            yield _function(f"{name}.{key}", owner.__module__, value, bound=True)


def _function(name: str, module: str, value: Callable[..., Any], *, bound: bool) -> Member:
    signature = inspect.signature(value)
    nothing = (None, "None", "NoReturn", "Never", "Iterator[None]", inspect.Signature.empty)
    returns = signature.return_annotation
    gives = returns not in nothing and not str(returns).endswith(
        ("NoReturn", "Never", "Iterator[None]")
    )
    return Member(name, module, value, list(signature.parameters.values())[bound:], gives)


def constructor_parameters(owner: type) -> list[inspect.Parameter] | None:
    """Return the parameters of a constructor that a person wrote.

    The fields of dataclasses and named tuples have docstrings, which Sphinx shows; protocols are
    not constructed.
    """
    params = getattr(owner, "__dataclass_params__", None)
    if (
        getattr(owner, "_is_protocol", False)
        or (params and params.init)
        or hasattr(owner, "_fields")
    ):
        return None
    if hasattr(owner, "__signature__"):  # a metaclass says how it is called
        return list(inspect.signature(owner).parameters.values())
    home = next(each for each in owner.__mro__ if "__init__" in vars(each) or each is object)
    inherits_an_error = issubclass(owner, BaseException) and home is not owner
    if not home.__module__.startswith("shardvar") or inherits_an_error:
        return None
    return list(inspect.signature(home.__init__).parameters.values())[1:]  # type: ignore[misc]


def undocumented_fields(owner: type) -> list[str]:
    """Return the public fields of a dataclass that have no docstring, unless a section Parameters
    names them all."""
    if not dataclasses.is_dataclass(owner):
        return []
    source = inspect.getsource(owner)
    fields = [
        field.name
        for field in dataclasses.fields(owner)
        if field.name in vars(owner).get("__annotations__", {})
    ]
    documented = re.findall(
        r"^    (\w+): .*(?:\n(?:     .*|    [)\]}].*))*\n    \"\"\"", source, flags=re.MULTILINE
    )
    named = names_in(whole_sections(owner).get("Parameters", ""))
    return [
        name for name in fields if not name.startswith("_") and name not in {*documented, *named}
    ]


def head_of(value: Any) -> Any | None:
    """Return the member that a docstring leaves sections to: of its class, of its module, or
    public."""
    found = FAMILY.search(inspect.getdoc(value) or "")
    if found is None:
        return None
    name, module = found[1] or found[2], sys.modules[value.__module__]
    owner = value.__qualname__.rpartition(".")[0].rpartition("<locals>")[2].strip(".")
    for home in (attrgetter(owner)(module) if owner else module, module):
        if hasattr(home, name.partition(".")[0]):
            return attrgetter(name)(home)
    raise LookupError(f"{value.__qualname__} refers to {name}, which {module.__name__} lacks")


def whole_sections(value: Any) -> dict[str, str]:
    """Return the sections of a member, with those that it leaves to the head of its family, which
    may leave some to another.

    Parameters come in the order of the signature, and only those that it has. Of the head's errors,
    those of a class that the member names itself are left out.
    """
    own, head = sections(inspect.getdoc(value) or ""), head_of(value)
    if head is None or head is value:
        return own
    theirs = whole_sections(head)
    order = [name.lstrip("*") for name in inspect.signature(value).parameters]
    merged = {
        "Parameters": _merged(theirs, own, "Parameters", order),
        "Raises": _merged(theirs, own, "Raises", None),
        **{name: own.get(name, theirs.get(name, "")) for name in ("Returns", "Yields")},
    }
    found = {**own, **{name: text for name, text in merged.items() if text}}
    return {name: found[name] for name in ("", *SECTIONS) if name in found}


def _merged(theirs: dict[str, str], own: dict[str, str], name: str, order: list[str] | None) -> str:
    """Return the entries of both, the own ones where both have one: in an order, or theirs first."""
    found: dict[str, str] = {}
    for section in (theirs.get(name, ""), own.get(name, "")):
        for part in re.split(r"\n(?=\S)", section.strip("\n")):
            first, _, below = part.partition("\n")
            heads, colon, type_ = first.partition(" : ")
            # "a, b : int" are two entries, and one of them may be the member's own.
            for head in filter(None, map(str.strip, heads.split(", "))):
                found[head] = f"{head}{colon}{type_}\n{below}"
    names = found if order is None else [f for key in order for f in found if f.lstrip("*") == key]
    return "\n".join(found[each].rstrip("\n") for each in names)


def sections(docstring: str) -> dict[str, str]:
    """Return the text below each heading of a docstring, in order; the text before the first one as
    ``""``."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}$", inspect.cleandoc(docstring), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def entries(section: str) -> list[tuple[str, str, str]]:
    """Return (name, type, description) of each entry of a section: ``name : type`` with indented
    lines below."""
    found = []
    for part in re.split(r"\n(?=\S)", section.strip("\n")):
        head, _, description = part.partition("\n")
        name, _, type_ = head.partition(" : ")
        found.append((name.strip(), type_.strip(), description.strip()))
    return [entry for entry in found if entry[0]]


def names_in(section: str) -> list[str]:
    """Return the names of a section's entries; ``a, b : int`` are two."""
    return [name for entry in entries(section) for name in entry[0].split(", ")]
