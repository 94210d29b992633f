"""Changes of a syntax tree that make a program another: each is a bug that an author could have
made.

`changes` yields every change of a module as a `Change`: a range of its text, and the text in its
place. What holds no logic is left alone: docstrings, annotations, imports, type aliases, the texts
of errors and everything inside an f-string. To add an operator, add a function to `_EXPRESSIONS` or
`_STATEMENTS`.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from spec_tests.helpers.source_code import PACKAGE, definitions, tree_of

_SWAPPED: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.FloorDiv,),
    ast.FloorDiv: (ast.Mult,),
    ast.Div: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitAnd,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
_TWINS = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "minimum": "maximum",
    "maximum": "minimum",
}


@dataclass(frozen=True)
class Change:
    """One change of a module's text."""

    kind: str
    """The operator that makes it, in words."""
    start: tuple[int, int]
    """The line, from 1, and the byte in it where the replaced text begins."""
    stop: tuple[int, int]
    """The line and the byte in it where the replaced text ends."""
    new: str
    """The text in its place."""
    function: tuple[int, int] | None = None
    """The first and last line of the body of the outermost function around it; None at the level of
    a module or a class, and for the default of an argument."""

    def apply(self, text: str) -> str:
        """Return the changed module."""
        lines = text.encode("utf-8").splitlines(keepends=True)
        before = b"".join(lines[: self.start[0] - 1]) + lines[self.start[0] - 1][: self.start[1]]
        after = lines[self.stop[0] - 1][self.stop[1] :] + b"".join(lines[self.stop[0] :])
        return (before + self.new.encode("utf-8") + after).decode("utf-8")


def changes(tree: ast.Module) -> Iterator[Change]:
    """Yield every change of a module, in the order of its text."""
    yield from _changes_of(tree, None)


def _changes_of(node: ast.AST, function: tuple[int, int] | None) -> Iterator[Change]:
    """Yield the changes of a node and of what is in it, but for what holds no logic."""
    if isinstance(node, ast.stmt):
        yield from (replace(each, function=function) for make in _STATEMENTS for each in make(node))
    if isinstance(node, ast.expr):
        yield from (
            replace(each, function=function) for make in _EXPRESSIONS for each in make(node)
        )
    inner = function
    if isinstance(node, ast.FunctionDef) and function is None:
        inner = (node.body[0].lineno, node.end_lineno or node.lineno)
    for child in _with_logic(node):
        is_in_body = isinstance(node, ast.FunctionDef) and child in node.body
        yield from _changes_of(child, inner if is_in_body else function)


def _with_logic(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the children of a node that hold logic."""
    match node:
        case (
            ast.Import()
            | ast.ImportFrom()
            | ast.Raise()
            | ast.Assert()
            | ast.JoinedStr()
            | ast.Constant()
        ):
            return
        case ast.Expr(value=ast.Constant()):
            return
        case ast.Call(func=ast.Name(id=name)) if name in _NO_LOGIC:
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Assign(targets=[ast.Name(id=name)]) if name == "__all__" or _is_alias(
            name, node.value
        ):
            return
        case ast.AnnAssign():
            yield from [node.value] if node.value else []
        case ast.FunctionDef():
            if any(
                isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list
            ):
                return
            yield from (
                each for each in [*node.args.defaults, *node.args.kw_defaults] if each is not None
            )
            yield from node.body
        case ast.ClassDef():
            yield from node.body
        case ast.arg():
            return
        case _:
            yield from ast.iter_child_nodes(node)


# Calls of these build types, or the texts of errors.
_NO_LOGIC = {
    "cast",
    "TypeVar",
    "NewType",
    "ParamSpec",
    *definitions(tree_of(PACKAGE / "errors.py")),
}


def _is_alias(name: str, value: ast.expr) -> bool:
    """Return True for a type alias: a name in capitals and small letters, for a union or a
    subscript of types."""
    bare = name.lstrip("_")
    return (
        bare[:1].isupper() and not bare.isupper() and isinstance(value, ast.BinOp | ast.Subscript)
    )


def _change(kind: str, node: ast.expr | ast.stmt, new: str) -> Change:
    return Change(
        kind, (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0), new
    )


def _in_place(kind: str, node: ast.expr, new: ast.expr) -> Change:
    """Return the change of one expression into another, in parentheses where they could be
    needed."""
    text = ast.unparse(new)
    plain = isinstance(
        new,
        ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript | ast.List | ast.Tuple,
    )
    return _change(kind, node, text if plain and not text.startswith("-") else f"({text})")


# Expressions.


def _operators(node: ast.expr) -> Iterator[Change]:
    """Another operator, and one operand of `and` and `or` left out."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            for at, op in enumerate(ops):
                for other in _SWAPPED.get(type(op), ()):
                    changed = [*ops[:at], other(), *ops[at + 1 :]]
                    yield _in_place("comparison", node, ast.Compare(left, changed, others))  # type: ignore[arg-type]
        case ast.BinOp(left=left, op=op, right=right):
            for other in _SWAPPED.get(type(op), ()):
                yield _in_place("arithmetic", node, ast.BinOp(left, other(), right))  # type: ignore[arg-type]
        case ast.BoolOp(op=op, values=values):
            yield _in_place("and, or", node, ast.BoolOp(_SWAPPED[type(op)][0](), values))  # type: ignore[arg-type]
            for at in range(len(values)):
                rest = [*values[:at], *values[at + 1 :]]
                yield _in_place(
                    "condition dropped", node, ast.BoolOp(op, rest) if len(rest) > 1 else rest[0]
                )
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield _in_place("negation dropped", node, operand)


def _constants(node: ast.expr) -> Iterator[Change]:
    """A number that is one more or one less; True for False."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield _change("constant", node, str(not node.value))
        elif isinstance(node.value, int):
            yield from (
                _in_place("constant", node, ast.Constant(node.value + step)) for step in (1, -1)
            )


def _texts(node: ast.expr) -> Iterator[Change]:
    """A text that is compared, and is another."""
    if isinstance(node, ast.Compare):
        for each in node.comparators:
            if (
                isinstance(each, ast.Constant)
                and isinstance(each.value, str | bytes)
                and each.value
            ):
                yield _change("text", each, repr(each.value[:-1]))


def _choices(node: ast.expr) -> Iterator[Change]:
    """One side of a choice, always; a comprehension that filters nothing."""
    if isinstance(node, ast.IfExp):
        yield _in_place("choice", node, node.body)
        yield _in_place("choice", node, node.orelse)
    for clause in getattr(node, "generators", []):
        yield from (_change("filter dropped", each, "True") for each in clause.ifs)


def _calls(node: ast.expr) -> Iterator[Change]:
    """Two arguments swapped, a keyword argument left out, `min` for `max`."""
    if not isinstance(node, ast.Call):
        return
    func, args, keywords = node.func, node.args, node.keywords
    name = (
        func.id
        if isinstance(func, ast.Name)
        else func.attr
        if isinstance(func, ast.Attribute)
        else ""
    )
    if name in _NO_LOGIC:
        return
    if len(args) > 1 and name not in _TWINS and _differ(args[0], args[1]):
        yield _in_place(
            "arguments swapped", node, ast.Call(func, [args[1], args[0], *args[2:]], keywords)
        )
    for at, keyword in enumerate(keywords):
        if keyword.arg is not None:
            rest = [*keywords[:at], *keywords[at + 1 :]]
            yield _in_place("argument dropped", node, ast.Call(func, args, rest))
    if name in _TWINS:
        yield _change("min, max", func, ast.unparse(func).removesuffix(name) + _TWINS[name])


def _differ(first: ast.expr, second: ast.expr) -> bool:
    """Return True if two arguments can be swapped, and are not the same."""
    starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
    return not starred and ast.dump(first) != ast.dump(second)


def _slices(node: ast.expr) -> Iterator[Change]:
    """A slice without a bound, or with one that is one more."""
    if isinstance(node, ast.Slice):
        one = ast.Constant(1)
        for name in ("lower", "upper"):
            bound = getattr(node, name)
            if bound is not None:
                fields = {"lower": node.lower, "upper": node.upper, "step": node.step}
                yield _change("slice", node, ast.unparse(ast.Slice(**fields | {name: None})))
                yield _change(
                    "slice",
                    node,
                    ast.unparse(ast.Slice(**fields | {name: ast.BinOp(bound, ast.Add(), one)})),
                )


# Statements.


def _removed(node: ast.stmt) -> Iterator[Change]:
    """A statement that is left out."""
    match node:
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom() | ast.Await()):
            yield _change(
                "statement removed",
                node,
                "None" if isinstance(node.value, ast.Call) else "yield from ()",
            )
        case ast.Raise():
            yield _change("raise removed", node, "pass")
        case ast.AugAssign() | ast.Delete() | ast.Break():
            yield _change("statement removed", node, "pass")
        case ast.Continue():
            yield _change("statement removed", node, "pass")
            yield _change("break for continue", node, "break")


def _branches(node: ast.stmt) -> Iterator[Change]:
    """A condition that always holds, or never."""
    if isinstance(node, ast.If) and not (
        isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ):
        yield _change("condition", node.test, "True")
        yield _change("condition", node.test, "False")
    elif isinstance(node, ast.While):
        yield _change("condition", node.test, "False")


def _returns(node: ast.stmt) -> Iterator[Change]:
    """No value, or its contrary, in place of a value."""
    if isinstance(node, ast.Return) and node.value is not None:
        if isinstance(node.value, ast.Compare | ast.BoolOp) or ast.unparse(node.value) in (
            "True",
            "False",
        ):
            yield _in_place("return negated", node.value, ast.UnaryOp(ast.Not(), node.value))
        elif not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield _change("return removed", node.value, "None")


def _steps(node: ast.stmt) -> Iterator[Change]:
    """Another operator in `+=` and its like."""
    if isinstance(node, ast.AugAssign):
        for other in _SWAPPED.get(type(node.op), ()):
            changed = ast.AugAssign(node.target, other(), node.value)  # type: ignore[arg-type]
            yield _change("arithmetic", node, ast.unparse(changed))


_EXPRESSIONS: tuple[Callable[[ast.expr], Iterator[Change]], ...] = (
    _operators,
    _constants,
    _texts,
    _choices,
    _calls,
    _slices,
)
_STATEMENTS: tuple[Callable[[ast.stmt], Iterator[Change]], ...] = (
    _removed,
    _branches,
    _returns,
    _steps,
)
