"""The tables of docs/performance.md: which figures each has, and in what form.

    listing       a figure a row
    by_peer       a library a row, what is done a column
    by_workers    a store a row, a number of workers a column
    by_count      what is counted a row, a number of processes a column
    by_size       a program a row, three sizes a column, and how the time grows

Every figure that is measured is in a table; ``unlisted`` finds those that are in none.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.curves import Curve, curves_of
from benchmarks.figures import Figure
from benchmarks.results import Groups

Choice = Callable[[Figure], bool]
Lines = list[str]

RAW = frozenset(["write and fsync", "readinto", "cp and fsync"])


def everything(_figure: Figure) -> bool:
    """Choose all figures."""
    return True


def raw(figure: Figure) -> bool:
    """Choose comparisons with raw input and output."""
    return figure.against in RAW


def of_memory(figure: Figure) -> bool:
    """Choose figures of memory."""
    return "memory" in figure.subject


def of_peers(figure: Figure) -> bool:
    """Choose comparisons with libraries."""
    return not raw(figure) and not of_memory(figure)


def starting(*starts: str) -> Choice:
    """Choose figures of subjects that begin so."""
    return lambda figure: figure.subject.startswith(starts)


def unless(choice: Choice) -> Choice:
    """Choose the other figures."""
    return lambda figure: not choice(figure)


def listing(figures: list[Figure]) -> Lines:
    """A figure a row; columns that are empty everywhere are left out."""
    heads = ["what", "against", "where", "measured", "target", "details"]
    rows = [
        [
            figure.cells()[0],
            figure.against,
            figure.place,
            _measured(figure),
            _target(figure),
            _note(figure),
        ]
        for figure in figures
    ]
    used = [number for number in range(len(heads)) if any(row[number] for row in rows)]
    return _grid([[row[number] for number in used] for row in [heads, *rows]])


def by_peer(figures: list[Figure]) -> Lines:
    """A library a row; a column for each thing that is done, and where."""
    if all(figure.failed for figure in figures):
        return _failures(figures)
    rows = dict.fromkeys(figure.against for figure in figures if not figure.failed)
    columns = dict.fromkeys(_column(figure) for figure in figures if figure.value is not None)
    cells = {(figure.against, _column(figure)): _cell(figure) for figure in figures}
    body = [[row, *(cells.get((row, column), "-") for column in columns)] for row in rows]
    return [*_grid([["against", *columns], *body]), *_failures(figures)]


def by_workers(figures: list[Figure]) -> Lines:
    """A store and an amount a row, a number of workers a column; the last columns say where more do
    not help."""
    times: dict[str, dict[str, str]] = {}
    for figure in figures:
        amount, _, rest = figure.subject.partition(" in files of 1 GiB, ")
        if rest:
            workers, _, store = rest.partition(" workers, ")
            row = times.setdefault(f"{amount.removeprefix('predicted: ')}, {store}", {})
            row[f"{int(workers):,}"] = figure.measured
        elif figure.subject.startswith("most useful workers: "):
            times[figure.subject.removeprefix("most useful workers: ")] |= {
                "most useful": f"{figure.value:,.0f}",
                "then the limit is": figure.note.removeprefix("then: "),
            }
    heads = list(next(iter(times.values()), {}))
    return [
        *_grid([["store", *heads], *([row, *cells.values()] for row, cells in times.items())]),
        *_failures(figures),
    ]


def by_size(figures: list[Figure]) -> Lines:
    """A curve a row; the first, the middle and the last size a column, and the exponent of its end.

    The picture and the JSON have all sizes.
    """
    curves = curves_of(figures)
    sizes = sorted({size for curve in curves for size in curve.points})
    sizes = sorted({*sizes[:1], *sizes[len(sizes) // 2 :][:1], *sizes[-1:]})
    heads = (
        ["what", "program", *(curves[0].axis.label(size) for size in sizes), "exponent"]
        if curves
        else ["what"]
    )
    body = [
        [curve.verb, curve.program, *(_point(curve, size) for size in sizes), curve.exponent_text()]
        for curve in curves
    ]
    return [*_grid([heads, *body]), *_notes(figures), *_failures(figures)]


def by_count(figures: list[Figure]) -> Lines:
    """What is counted a row, a number of processes a column."""
    counts = sorted({figure.size for figure in figures if figure.size is not None})
    cells = {(figure.subject, figure.against, figure.size): figure.measured for figure in figures}
    body = [
        [
            subject.partition(": ")[2],
            how,
            *(cells.get((subject, how, each), "-") for each in counts),
        ]
        for subject, how in dict.fromkeys(key[:2] for key in cells if key[2] is not None)
    ]
    heads = ["what", "how", *(f"{each:,}" for each in counts)]
    return [*_grid([heads, *body]), *_notes(figures), *_failures(figures)]


def _point(curve: Curve, size: int) -> str:
    return seconds_text(curve.points[size]) if size in curve.points else "-"


def seconds_text(seconds: float) -> str:
    """A time in the unit in which it is easily read."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def _notes(figures: list[Figure]) -> Lines:
    """Why a curve ends before the others, once for each reason."""
    ends: dict[str, list[str]] = {}
    for figure in figures:
        if figure.value is None and not figure.failed:
            ends.setdefault(figure.note, []).append(
                f"{figure.subject.partition(': ')[2]}, {figure.against}"
            )
    return [
        line
        for why, which in ends.items()
        for line in ("", f"Ends there, {why}: {'; '.join(which)}.")
    ]


def _failures(figures: list[Figure]) -> Lines:
    return [line for figure in figures if figure.failed for line in ("", _failure(figure))]


def _failure(figure: Figure) -> str:
    what = ", ".join(filter(None, [figure.subject, figure.against]))
    return f"{what}: {_escaped(figure.note)}."


def _column(figure: Figure) -> str:
    return f"{figure.subject}, {figure.place}" if figure.place else figure.subject


def _cell(figure: Figure) -> str:
    return _measured(figure) + (", missed" if figure.verdict == "miss" else "")


def _measured(figure: Figure) -> str:
    return figure.measured or ("failed" if figure.failed else "skipped")


def _target(figure: Figure) -> str:
    return figure.cells()[4] + (", missed" if figure.verdict == "miss" else "")


def _note(figure: Figure) -> str:
    return _escaped(figure.note)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _grid(rows: list[list[str]]) -> Lines:
    head, *body = rows
    return (
        [f"| {' | '.join(row)} |" for row in [head]]
        + ["|" + "---|" * len(head)]
        + [f"| {' | '.join(row)} |" for row in body]
    )


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the page."""

    chosen: dict[str, Choice]
    """The subjects, and which of their figures."""
    lines: Callable[[list[Figure]], Lines] = listing
    """The form."""

    def figures(self, groups: Groups) -> list[Figure]:
        """Its figures, and the failures of its subjects."""
        return [
            figure
            for name, choice in self.chosen.items()
            if name in groups
            for figure in groups[name].figures
            if figure.failed or choice(figure)
        ]


def _of(*subjects: str) -> Table:
    return Table(dict.fromkeys(subjects, everything))


_CHECKED = starting("simulate", "predicted / measured")

TABLES: dict[str, Table] = {
    "raw": Table({"table": raw, "reshard": raw}),
    "libraries": Table({"table": of_peers}, by_peer),
    "tiny": Table({"tiny": everything}, by_peer),
    "partial": _of("partial"),
    "startup": _of("startup", "lookup"),
    "memory": Table({"table": of_memory, "reshard": of_memory}),
    "columns": Table({"reshard": lambda figure: not raw(figure) and not of_memory(figure)}),
    "plans": _of("plan", "layouts"),
    "redistribution": _of("redistribution"),
    "formats": _of("torch_checkpoints", "orbax_checkpoints"),
    "jobs": _of("jobs", "tiny_jobs", "orbax_jobs"),
    "joint": Table({"joint": everything}, by_count),
    "each format": _of("formats"),
    "loaders": _of("loaders"),
    "latency": _of("latency"),
    **{f"growth of {family}": Table({"growth": starting(f"{family}: ")}, by_size)
       for family in ("tensors", "bytes", "files", "slices", "workers")},
    "simulated": Table({"simulate": unless(_CHECKED)}, by_workers),
    "checked": Table({"simulate": _CHECKED}),
    "sharded": _of("sharded"),
    "training": _of("training"),
    "objects": _of("objects"),
    "policies": _of("policies"),
    "conversions": _of("conversions"),
    "deltas": _of("deltas"),
    "maps": _of("maps"),
    "quantised": _of("quantised"),
}  # fmt: skip
"""The tables by the names of their places on the page."""


def unlisted(groups: Groups) -> Iterable[str]:
    """The figures that no table has."""
    for name, group in groups.items():
        choices = [table.chosen[name] for table in TABLES.values() if name in table.chosen]
        for figure in group.figures:
            if not figure.failed and not any(choice(figure) for choice in choices):
                yield f"{name}: {figure.subject}"
