"""The notebook docs/tour.ipynb is executed from top to bottom, once for all tests, in a kernel of its own.

After its last cell come others, which try what "Something to change" tells the reader to try, and what a wrong answer
to an exercise is told.
"""

import copy
import os
import re
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from spec_tests.helpers import paths

NOTEBOOK = paths.DOCS / "tour.ipynb"

TRIED = {
    "div with other numbers": "draw_div(13, 4), draw_div(13, 13), draw_div(13, 20);",
    "a small vocabulary, another shuffle": "draw_loads(50, 2, seed=3);",
    "finer partitions": "draw_partitions(sv.min_max_variable_partitioner(40, min_slice_size=16 << 20), shapes)",
    "few columns": "draw_matmul_cost(most_columns=20)",
    "seeds on 3 and 5 servers": "draw_seeds(servers=[3, 5])",
    "more slots": "draw_slots({'words': words})",
    "fewer servers": "draw_elastic(600, 5, 3), draw_elastic(600, 4, 8);",
    "every byte of a line": "_ = draw_flips(every=5)",
}
"""What a reader is told to draw with other numbers."""

RAISED = {
    "a law that does not hold": (
        "law('All numbers are small.', lambda n: n < 3, [(1,), (2,), (3,)])",
        "AssertionError",
    ),
    "a place that is another module's": ("show('shardvar.layout:div')", "ValueError"),
    "files that mix servers": ("save_with(sv.AllInOnePolicy(), 'mixed')", "PolicyError"),
}
"""What a reader is told to try and see fail, with the error; and helpers that must be able to say no."""

WRONG = {
    1: "check_1(lambda length, num_shards: tuple((0, 0) for _ in range(num_shards)))",
    2: "check_2(lambda shard, row, length, num_shards: row)",
    3: "check_3(lambda rows, width, columns, num_servers: 'concat')",
    4: "check_4(lambda length, before, after: [(0, 0, length)])",
    5: "check_5(lambda shape, offset, part_shape: np.zeros(part_shape))",
    6: "check_6(lambda tensors: [{each.checkpoint_key: {each.slice_spec: each.tensor} for each in tensors}])",
}
"""A wrong answer to each exercise."""

CANNOT_HOLD = """
plain_file = os.path.join(directory, "plain.safetensors")
sv.Checkpoint(model=model, optimizer=optimizer).write(plain_file, format="safetensors")
report = sv.diff(by_task, plain_file)
print(report.only_in_a, report.only_in_b)
"""
"""Section 13: what safetensors cannot hold is the graph of objects, which is a string."""

WITHOUT_OPTIMIZER = """
forgetful, fresh_optimizer = make(5)
sv.Checkpoint(model=forgetful).read(saved).expect_partial()
print(train(forgetful, fresh_optimizer, STEPS, STEPS + 3) == on_three[:3])
"""
"""Section 10: leave the optimizer out."""

CUT_ALL = """
def make(num_servers):
    strategy = sv.ParameterServerStrategy(num_servers, sv.FixedShardsPartitioner(num_servers))
    with strategy.scope():
        return Recommender(), sv.optimizers.Adam(0.05)


print(is_the_plain_one(3))
"""
"""Section 9: cut everything, and bits differ."""

ALSO_TRIED = {"cannot-hold": CANNOT_HOLD, "without-optimizer": WITHOUT_OPTIMIZER, "cut-all": CUT_ALL}


@pytest.fixture(scope="module")
def executed() -> dict[str, Any]:
    """The cells by their ids, executed; those that were added have the ids of their tests."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    notebook = copy.deepcopy(notebook)
    added = {f"tried-{name}": source for name, source in TRIED.items()}
    added |= {f"raised-{name}": source for name, (source, _) in RAISED.items()}
    added |= {f"wrong-{number}": source for number, source in WRONG.items()}
    for name, source in (added | ALSO_TRIED).items():
        cell = nbformat.v4.new_code_cell(source, id=re.sub(r"\W+", "-", name)[:64])
        cell.metadata.tags = ["raises-exception"] if name.startswith("raised") else []
        notebook.cells.append(cell)
    resources = {"metadata": {"path": os.fspath(NOTEBOOK.parent)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    return {cell.id: cell for cell in notebook.cells}


def added(executed: dict[str, Any], name: str) -> Any:
    return executed[re.sub(r"\W+", "-", name)[:64]]


def printed(cell: Any) -> str:
    return "".join(
        output.text for output in cell.get("outputs", []) if output.output_type == "stream" and output.name == "stdout"
    )


def pictures(cell: Any) -> list[Any]:
    return [output for output in cell.outputs if "image/png" in output.get("data", {})]


def test_it_runs_from_top_to_bottom_and_warns_of_nothing(executed: dict[str, Any]) -> None:
    for cell in executed.values():
        outputs = cell.get("outputs", []) if not cell.id.startswith("raised") else []
        assert [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"] == []


def test_each_picture_is_drawn(executed: dict[str, Any]) -> None:
    drawing = [cell for cell in executed.values() if "mystnb" in cell.metadata]
    assert len(drawing) >= 13 and all(pictures(cell) for cell in drawing)


def test_each_law_is_checked_on_at_least_one_case(executed: dict[str, Any]) -> None:
    for cell in executed.values():
        claimed = len(re.findall(r"^law\(", cell.source, re.MULTILINE)) if not cell.id.startswith("raised") else 0
        assert len(re.findall(r"^Law: .*\n     Held in [1-9]\d* cases?\.$", printed(cell), re.MULTILINE)) == claimed, (
            cell.id
        )


def test_each_exercise_waits_for_its_reader_and_each_solution_is_right(executed: dict[str, Any]) -> None:
    said = [printed(cell).strip() for cell in executed.values() if cell.id.startswith(("exercises", "solutions"))]
    for number in WRONG:
        mine = [text for text in said if text.startswith(f"Exercise {number}:")]
        assert mine[0] == f"Exercise {number}: not written yet."
        assert mine[1].startswith(f"Exercise {number}: right") and len(mine) == 2


@pytest.mark.parametrize("number", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(executed: dict[str, Any], number: int) -> None:
    said = printed(added(executed, f"wrong-{number}"))
    assert said.startswith(f"Exercise {number}: ") and "right" not in said and "not written" not in said


@pytest.mark.parametrize("name", TRIED)
def test_what_the_reader_is_told_to_change_can_be_changed(executed: dict[str, Any], name: str) -> None:
    assert pictures(added(executed, f"tried-{name}"))


@pytest.mark.parametrize("name", RAISED)
def test_what_must_fail_fails(executed: dict[str, Any], name: str) -> None:
    errors = [output for output in added(executed, f"raised-{name}").outputs if output.output_type == "error"]
    assert [error.ename for error in errors] == [RAISED[name][1]]


def test_a_model_whose_kernels_are_cut_rounds_differently(executed: dict[str, Any]) -> None:
    """Section 9 says so: a product with a cut kernel is a sum over servers."""
    assert printed(executed["cut-all"]).strip() == "False"


def test_safetensors_holds_all_but_the_graph_of_objects(executed: dict[str, Any]) -> None:
    assert "_CHECKPOINTABLE_OBJECT_GRAPH" in printed(executed["cannot-hold"])


def test_without_its_optimizer_training_goes_on_differently(executed: dict[str, Any]) -> None:
    assert printed(executed["without-optimizer"]).strip() == "False"
