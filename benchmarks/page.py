"""The tables and curves of docs/performance.md, and the README's, from the results that are stored.

    python -m benchmarks.page       writes them from docs/performance.json, without measuring

The page has a place for each table, between ``<!-- table: NAME -->`` and ``<!-- end of table -->``;
the text around it is written by people and has no figures. The same results give the same bytes.
"""

import re
from pathlib import Path

from benchmarks.child import ROOT
from benchmarks.curves import FAMILIES, curves_of
from benchmarks.drawing import picture
from benchmarks.figures import Figure
from benchmarks.results import Groups, groups_to_json, read_groups
from benchmarks.tables import TABLES, unlisted

README = ROOT / "README.md"
PLACE = re.compile(
    r"(?<=<!-- table: )(?P<name>[^\n]+)(?P<open> -->\n).*?(?P<close>(?<=\n)<!-- end of table -->)",
    re.DOTALL,
)

SHOWN = "TensorFlow", "DCP", "Orbax", "safetensors", "npz"
"""The libraries of the README's table."""


def write_page(docs: Path, folder: Path, groups: Groups) -> None:
    """Write results, page and curves of a folder: of ``docs`` itself, or a copy of its page."""
    left = list(unlisted(groups))
    if left:
        raise ValueError(f"No table of benchmarks/tables.py has these figures: {', '.join(left)}.")
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    (folder / "performance.json").write_text(groups_to_json(groups), "utf-8")
    (folder / "performance.md").write_text(
        page((docs / "performance.md").read_text("utf-8"), groups), "utf-8"
    )
    for name, drawn in pictures(groups).items():
        (images / name).write_text(drawn, "utf-8")
    if folder.resolve() == docs.resolve():
        README.write_text(readme(README.read_text("utf-8"), groups), "utf-8")


def page(text: str, groups: Groups) -> str:
    """The page with the tables of these results."""
    return PLACE.sub(
        lambda hit: f"{hit['name']}{hit['open']}\n{table(hit['name'], groups)}\n\n{hit['close']}",
        text,
    )


def table(name: str, groups: Groups) -> str:
    """A table by name, its curves, and when it was measured."""
    shown = TABLES[name]
    lines = []
    figures = shown.figures(groups)
    family = name.removeprefix("growth of ")
    if any(picture_name(family) == drawn for drawn in pictures(groups)):
        lines += [
            f"![{FAMILIES[family].title}: time over their number](images/{picture_name(family)})",
            "",
        ]
    lost = [figure for figure in figures if figure.failed and figure.subject in shown.chosen]
    rest = [figure for figure in figures if figure not in lost]
    if rest:
        lines += [*shown.lines(rest), ""]
    for subject in shown.chosen:
        command = f"`python -m benchmarks {subject}`"
        lines.append(
            f"{command}: {groups[subject].caption() if subject in groups else 'not measured yet.'}"
        )
        lines += [
            f"It failed: {each.note.removeprefix('failed: ')}."
            for each in lost
            if each.subject == subject
        ]
        lines.append("")
    return "\n".join(lines).rstrip()


def picture_name(family: str) -> str:
    """The file name of a family's curves."""
    return f"growth-of-{family}.svg"


def pictures(groups: Groups) -> dict[str, str]:
    """The curves that were measured, by file name."""
    found = {}
    for family, axis in FAMILIES.items():
        curves = curves_of(TABLES[f"growth of {family}"].figures(groups))
        if curves:
            found[picture_name(family)] = picture(f"Time over {axis.title}", curves)
    return found


def readme(text: str, groups: Groups) -> str:
    """The README with the table of these results; as it is while one of its subjects is not
    measured."""
    if not {"table", "tiny", "partial"} <= groups.keys():
        return text
    large = [figure for figure in groups["table"].figures if figure.place == "memory"]
    rows = [
        _row("save a table of 512 MiB", large, "save"),
        _row("load it", large, "load"),
        _row("save 20,000 tensors of 16 floats (Orbax: 2,000)", groups["tiny"].figures, "save"),
        _row("load them", groups["tiny"].figures, "load"),
    ]
    part = {
        each.against: each.measured
        for each in groups["partial"].figures
        if each.subject.endswith("beyond it")
    }
    extra = (
        "extra data read to load a 2.4 MB slice of a 256 MB tensor (shardvar: "
        f"{part.get('shardvar', '-')})"
    )
    rows.append([extra, *(part.get(name, "-") for name in SHOWN)])
    lines = [
        f"| {' | '.join(row)} |" for row in (["what", *SHOWN], ["---"] * (1 + len(SHOWN)), *rows)
    ]
    body = "\n".join(lines)
    return PLACE.sub(lambda hit: f"{hit['name']}{hit['open']}\n{body}\n\n{hit['close']}", text)


def _row(head: str, figures: list[Figure], verb: str) -> list[str]:
    found = {each.against: each.measured for each in figures if each.subject.startswith(f"{verb} ")}
    return [head, *(found.get(name) or "-" for name in SHOWN)]


if __name__ == "__main__":
    docs = ROOT / "docs"
    write_page(docs, docs, read_groups(docs / "performance.json"))
