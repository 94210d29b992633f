"""The notebooks of docs/notebooks are executed from top to bottom, each once for all tests, in a
kernel of its own.

Behind each scratch cell come others, which try what "Something to change" tells the reader to try,
and one that takes every name away: what follows must be as it is stored all the same. Behind each
exercise comes a wrong answer.
"""

from functools import cache
from typing import Any

import pytest

from spec_tests.helpers.notebooks import (
    NAMES,
    execute,
    pictures,
    printed,
    shown,
    source,
    stored_cells,
    tags,
)

TRIED = {
    "geometry": {
        "div-12": "draw_div(13, 13), draw_div(13, 20);",
        "mod-11": "draw_loads(10_000, 2), draw_loads(50, 2, seed=5);",
        "partitioner-8": "draw_partitions(sv.min_max_variable_partitioner(10, min_slice_size=64 * 10**6), "
        "shapes)",
        "moves-10": "draw_elastic(600, 5, 3), draw_elastic(600, 3, 4);",
    },
    "parallelism": {
        "rules-9": "draw_rules(12, 4), draw_rules(3, 4);",
        "mesh-11": "draw_layouts({'copies': copies, 'grid': grid, 'fsdp': fsdp((8, 4), mesh, tp_dim=1)})",
        "steps-12": "draw_steps(256, 10_240, 4), draw_steps(2560, 1024, 8);",
    },
    "training": {
        "concat-11": "draw_matmul_cost(scratch, most_columns=20)",
        "seeds-9": "draw_seeds(servers=[8])",
        "snapshots-8": "draw_reads(steps=3, keep=float)",
        "sparse-9": "draw_sparse(sv.nn.vjp(sv.nn.embedding_lookup, table, [])[1](np.ones((0, 8), "
        "np.float32))[0])",
        "slots-8": "draw_slots({'words': scratch_words})",
    },
    "checkpoints": {
        "slices-10": "draw_reads('first', 4, 5), draw_reads('first', 4, 4);",
    },
}
"""By notebook and scratch cell: what a reader is told to draw with other numbers."""

WRONG = {
    "geometry": (
        "check_1(lambda length, num_servers: tuple((0, 0) for _ in range(num_servers)))",
        "check_2(lambda server, place, length, num_servers: place)",
        "check_3(lambda length, before, after: [(0, 0, length)])",
    ),
    "parallelism": (
        "check_1(lambda row, column: row)",
        "check_2(lambda nbytes, num_devices: nbytes)",
    ),
    "training": (
        "check_1(lambda rows, width, columns, num_servers: 'concat')",
        "check_2(lambda shape, offset, part_shape: "
        "np.random.default_rng(offset[0]).random(part_shape))",
        "check_3(lambda ids, upstream, length: [0.0] * length)",
    ),
    "checkpoints": (
        "check_1(lambda length, before, after, target: [(0, 0, length)])",
        "check_2(lambda tensors: [{each.checkpoint_key: {each.slice_spec: each.tensor} for each "
        "in tensors}])",
    ),
}
"""By notebook: a wrong answer to each exercise. The policy loses two of three slices, which a save
refuses."""

CONSTANT = "check_2(lambda shape, offset, part_shape: np.zeros(part_shape))"
"""An answer to the second exercise of training that fits together, and is not random."""

UNUSUAL = {
    "geometry": (
        (
            "check_1(lambda length, num_servers: np.array(sv.div(length, num_servers)))",
            "Right, in 321 cases.",
        ),
        ("check_1(lambda *case: [list(each) for each in sv.div(*case)])", "Right, in 321 cases."),
        (
            "check_1(lambda length, num_servers: 1 // (length - 12) and sv.div(length, "
            "num_servers))",
            "Not right for 12, 1: your function raised",
        ),
        (
            "check_1(lambda length: length)",
            "Not right for 13, 5: your function raised an exception.",
        ),
        (
            "check_1(lambda length, num_servers: ((0, 10**8),))",
            "Not right for 13, 5: you give [[0, 100000000]].",
        ),
        ("check_2(lambda *case: '7')", "Not right for 2, 1, 13, 5: you give '7'. It is 7."),
        ("law('None is tried.', lambda: True, [])", "NOT tried: None is tried."),
        (
            "law('Nothing is returned.', lambda length: None, range(3))",
            "Broken for 0: nothing is returned,",
        ),
    ),
    "parallelism": (
        (
            "check_2(lambda nbytes, num_devices: 'many')",
            "Not right for 960, 4: you give 'many'. It is 1440.",
        ),
    ),
    "training": (
        (
            "check_2(lambda shape, offset, part_shape: 3.0)",
            "zero-dimensional arrays cannot be concatenated",
        ),
        ("check_2(lambda *case: 1.7 * solved_initializer(*case))", "leaves the range from 0 to 1."),
        ("check_3(lambda *case: np.array(solved_gradient(*case)))", "Right, in 3 cases."),
        (
            "check_3(lambda ids, upstream, length: ids.clear() or [0.0] * length)",
            "Not right for [1, 4, 1], [2, 3, 5], 6:",
        ),
    ),
    "checkpoints": (
        ("check_2(lambda tensors: 1 / 0)", "Not right: your function raised an exception."),
    ),
}
"""By notebook: answers and laws of other types, that raise or that change their arguments, and what
must be printed."""

NO_PICTURE = "check_1(lambda length, num_servers: 'neither a tuple nor a number')"
"""An answer to the first exercise of geometry that cannot be drawn."""


SPOILED = (
    "# Scratch: all names.\nfor name in [name for name in globals() if name[0] != '_']:\n    "
    "globals()[name] = None"
)
"""A scratch cell that leaves no name its value."""


@cache
def executed(name: str) -> dict[str, Any]:
    """The cells of a notebook by their ids, executed; those that were added have the ids of their
    tests."""
    added = {place: {f"tried-{place}": text} for place, text in TRIED[name].items()}
    for number, text in enumerate(WRONG[name], start=1):
        added[f"exercise-{number}-answer"] = {f"wrong-{number}": text}
    for cell in stored_cells(name):
        if "scratch" in tags(cell):
            added.setdefault(cell["id"], {})[f"spoiled-{cell['id']}"] = SPOILED
    last = [cell["id"] for cell in stored_cells(name) if cell["cell_type"] == "code"][-1]
    added.setdefault(last, {}).update(
        {f"unusual-{n}": text for n, (text, _) in enumerate(UNUSUAL[name])}
    )
    if name == "training":
        added["solution-2"] = {"constant": CONSTANT}
    if name == "geometry":
        added["solution-1"] = {"no-picture": NO_PICTURE}
        added["intro-2"] = {
            "elsewhere": "try:\n    show('shardvar.layout:div')\nexcept ValueError as error:\n    "
            "print(error)"
        }
    return execute(name, added)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_stored_is_what_a_new_run_shows(name: str) -> None:
    """Also after scratch cells that take every name away, and wrong answers. To store outputs anew:
    make outputs."""
    for cell in stored_cells(name):
        if cell["cell_type"] == "code":
            assert shown(executed(name)[cell["id"]]) == shown(cell), f"{name}: {cell['id']}"


@pytest.mark.parametrize("name", NAMES)
def test_it_warns_of_nothing(name: str) -> None:
    for cell in executed(name).values():
        assert not [each for each in cell.get("outputs", ()) if each.get("name") == "stderr"], (
            cell.id
        )


@pytest.mark.parametrize("name", NAMES)
def test_each_law_is_checked_on_at_least_one_case(name: str) -> None:
    for cell in stored_cells(name):
        if cell["cell_type"] == "code" and "def law" not in source(cell):
            said = printed(executed(name)[cell["id"]])
            assert said.count("Law: ") + said.count("NOT a law: ") == source(cell).count(
                "law(\n"
            ) + sum(line.startswith('law("') for line in source(cell).splitlines()), cell["id"]
            assert "Held in 0" not in said


@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name in NAMES for place in TRIED[name]]
)
def test_what_the_reader_is_told_to_change_can_be_changed(name: str, place: str) -> None:
    assert pictures(executed(name)[f"tried-{place}"])


@pytest.mark.parametrize(
    ("name", "number"), [(name, n + 1) for name in NAMES for n in range(len(WRONG[name]))]
)
def test_a_wrong_answer_is_told_what_is_wrong_and_drawn_beside_the_right_one(
    name: str, number: int
) -> None:
    cell = executed(name)[f"wrong-{number}"]
    assert printed(cell).startswith("Not right") and len(pictures(cell)) == 1
    assert all(title in " ".join(shown(cell)) for title in ("your answer", "the right one"))


def test_an_answer_that_fits_together_must_also_look_random() -> None:
    assert "does not look random" in printed(executed("training")["constant"])


@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name in NAMES for n in range(len(UNUSUAL[name]))]
)
def test_an_answer_of_any_type_is_judged_by_its_values(name: str, number: int) -> None:
    """Arrays and lists are as good as tuples; no answer stops the check or changes the question."""
    assert UNUSUAL[name][number][1] in printed(executed(name)[f"unusual-{number}"])


def test_an_answer_that_cannot_be_drawn_is_told_so() -> None:
    assert "not a picture" in " ".join(shown(executed("geometry")["no-picture"]))


def test_source_is_shown_from_the_module_that_defines_it() -> None:
    assert "is defined in shardvar.layout.partition" in printed(executed("geometry")["elsewhere"])


def test_a_name_that_a_scratch_cell_has_made_is_its_own() -> None:
    """It keeps its last value, so that a scratch cell can be run again; a name of the notebook
    keeps the notebook's."""
    cells = {
        "once": "# Scratch\nmine = sv = 1",
        "again": "# Scratch\nmine = sv = 2",
        "seen": "print(mine, sv.__name__)",
    }
    cells |= {"taken": "mine = 3", "late": "# Scratch\nmine = 4", "last": "print(mine)"}
    done = execute("geometry", {"intro-2": cells})
    assert (printed(done["seen"]), printed(done["last"])) == ("2 shardvar\n", "3\n")
