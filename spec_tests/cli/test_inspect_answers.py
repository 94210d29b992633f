"""The first answer about a checkpoint: it is on the screen, its numbers add up, and it says what it
leaves out."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli.tensors import Table, Tensor, fit, positions_of
from shardvar.cli.tree import tree_lines
from shardvar.errors import CorruptCheckpoint, StorageError
from shardvar.verbs.compare.blocks import ScalarValue
from shardvar.verbs.parameters import count_parameters
from spec_tests.helpers.command_line import Run, run, terminal
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.paths import GOLDEN

__all__ = ["run"]

TRAINING_STATE = GOLDEN / "torch_pt" / "training_checkpoint" / "x.pt"
SIZES = [(80, 24), (60, 24), (120, 40)]
_PROMPTS = 2


def llama(layers: int = 32) -> dict[str, np.ndarray]:
    """Nine tensors a layer and three more: 291 tensors, as many as Llama 2 has."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (50, 8),
        "model.norm.weight": (8,),
        "lm_head.weight": (50, 8),
    }
    for layer in range(layers):
        place = f"model.layers.{layer}."
        shapes |= {f"{place}self_attn.{word}_proj.weight": (8, 8) for word in "qkvo"}
        shapes |= {f"{place}mlp.{word}_proj.weight": (20, 8) for word in ("gate", "up")}
        shapes |= {f"{place}mlp.down_proj.weight": (8, 20)}
        shapes |= {f"{place}{word}_layernorm.weight": (8,) for word in ("input", "post_attention")}
    rng = np.random.default_rng(0)
    return {key: rng.normal(size=shape).astype(ml_dtypes.bfloat16) for key, shape in shapes.items()}


def with_adam() -> dict[str, np.ndarray]:
    """A model, and the slots of an optimizer of each of its tensors."""
    model = {f"model.{key}": value.astype("f4") for key, value in llama(4).items()}
    slots = {
        f"optim.state.{key}.{slot}": value
        for key, value in model.items()
        for slot in ("exp_avg", "exp_avg_sq")
    }
    return model | slots | {f"optim.state.{key}.step": np.float32(100) for key in model}


def saved(path: Path, kind: str) -> tuple[Path, list[str]]:
    """A checkpoint of a kind, and the options to inspect it with."""
    match kind:
        case "values":
            tensors = llama()
            tensors["model.layers.7.mlp.up_proj.weight"][0, 0] = np.nan
            sv.save(path, tensors, policy=sv.MaxShardSizePolicy(20_000))
            return path, ["--stats"]
        case "many":
            sv.save(path, {f"b{n // 100:03}/u_{n % 100:02}/w": np.ones(8) for n in range(2_000)})
        case "adam":
            sv.save(path, with_adam(), format="torch")
    return (TRAINING_STATE if kind == "state" else path), []


@pytest.mark.parametrize("kind", ["values", "many", "adam", "state"])
def test_name_totals_and_tree_are_on_one_screen(
    kind: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command above them and the prompt below; no line is longer than the screen, and all
    lines are used."""
    monkeypatch.chdir(tmp_path)
    path, options = saved(tmp_path / "model", kind)
    for columns, height in SIZES:
        with terminal(columns, lines=height):
            lines = run("inspect", path, *options).out.splitlines()
        assert len(lines) <= height - _PROMPTS, lines
        assert max(map(len, lines)) <= columns
        assert str(path).split("/")[-1] in " ".join(lines[:2])
        assert any(re.search(r"\bparameters?,", line) for line in lines[:5])
        assert sum("─ " in line for line in lines) >= 1


@given(
    st.lists(
        st.from_regex(r"[abc]\.([xyz]\.){0,3}[pqrs]", fullmatch=True),
        unique=True,
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 30),
)
def test_lines_that_fit_stand_for_every_tensor_once(keys: list[str], most: int) -> None:
    """However few lines there are: no tensor is lost, and none is counted twice."""
    lines = list(tree_lines(keys))
    kept = fit(lines, [len(line.alike) for line in lines], most)
    assert len(kept) <= max(most, 1)
    closed = [each for each in kept if each.is_folded or each.others or each.line.leaf is not None]
    found = [leaf for each in closed for leaf in positions_of(each)]
    assert sorted(found) == list(range(len(keys)))
    assert len(kept) == len(lines) or len(lines) > most


@given(
    st.lists(st.from_regex(r"[ab1]{0,2}([./]{1,2}[ab12]{0,2}){0,4}", fullmatch=True), unique=True)
)
def test_lines_of_keys_alone_are_those_of_tensors_that_all_differ(keys: list[str]) -> None:
    """Where no two tensors are of one kind, no siblings share a line."""
    assert list(tree_lines(keys)) == list(tree_lines(keys, range(len(keys))))


def test_numbers_that_do_not_vary_are_no_reason_to_part_a_line() -> None:
    keys = [f"w_{number}_h2" for number in range(3)]
    assert [line.label for line in tree_lines(keys, "fff")] == ["w_{0..2}_h2"]


CHANGES = [
    {"key": "step"},
    {"dtype": "uint8"},
    {"shape": (3, 2)},
    {"nbytes": 7},
    {"num_slices": 2},
    {"files": ("a", "b")},
    {"fault": CorruptCheckpoint("It is damaged.")},
    {"encoding": "Q8_0"},
    {"num_parameters": 6},
    {"is_setting": True},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: str(*change))
@pytest.mark.parametrize("numbers", [{}, {"a": 1, "b": 2}])
def test_a_row_is_the_same_whichever_other_row_was_made_before_it(
    change: dict[str, object], numbers: dict[str, int]
) -> None:
    """Rows of tensors that are alike are made once, and differ in their labels only."""
    one = Tensor("w", "int8", (2, 3), 6, 1, ("a",), None, ())
    other = one._replace(**change)  # type: ignore[arg-type]
    table = Table(None, [], {"step": ScalarValue("7", 7)}, False, 9, numbers)  # type: ignore[arg-type]
    alone = [[*replace(table, known={}).of_tensors("label", [each])] for each in (one, other)]
    assert alone[0] != alone[1]
    for order in ([one, other], [other, one]):
        shared = replace(table, known={})
        rows = {id(each): [*shared.of_tensors("label", [each])] for each in order}
        assert [rows[id(one)], rows[id(other)]] == alone


NUMBER = {"": 1, "K": 1e3, "M": 1e6, "k": 1e3}


def number(text: str) -> float:
    """A number as people read it, such as 1.59M or 3.17 MB, without its unit."""
    found = re.fullmatch(r"([0-9.,]+) ?([KMk]?)B?", text)
    assert found, text
    return float(found[1].replace(",", "")) * NUMBER[found[2]]


@pytest.mark.parametrize("kind", ["values", "adam"])
def test_the_lines_below_a_branch_add_up_to_it(kind: str, tmp_path: Path, run: Run) -> None:
    """Bytes and numbers of parameters, whether or not lines stand for several tensors."""
    path, _ = saved(tmp_path / "model", kind)
    with terminal(120, lines=40):
        out = run("inspect", path).out
    rows = re.findall(
        r"^([│ ]*)[├└]─ .*?  .*?([\d.,]+[KM]?)  +([\d.,]+ [kM]?B)  ", out, flags=re.MULTILINE
    )
    levels = [len(guide) // 3 for guide, _, _ in rows]
    assert rows
    for place, (level, row) in enumerate(zip(levels, rows, strict=True)):
        end = next((n for n in range(place + 1, len(rows)) if levels[n] <= level), len(rows))
        below = [rows[n] for n in range(place + 1, end) if levels[n] == level + 1]
        for column in (1, 2) if below else ():
            assert sum(number(each[column]) for each in below) == pytest.approx(
                number(row[column]), rel=0.01
            )


def test_the_state_of_an_optimizer_and_of_callbacks_has_no_parameters() -> None:
    steps = [(f"state.{n}.{slot}", "float32", ()) for n in range(3) for slot in ("step", "exp_avg")]
    assert count_parameters(steps).total == 0
    score = ("callbacks.ModelCheckpoint.best_model_score", "float32", ())
    assert count_parameters([score, ("state_dict.w", "float32", (2, 3))]).total == 6
    slots = [(f"optimizer_weights/Adam/{slot}/dense/kernel", "float32", (5, 7)) for slot in "mv"]
    assert count_parameters([("model_weights/dense/kernel", "float32", (5, 7)), *slots]).total == 35


def test_a_list_opens_only_so_many_tensors(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of many tensors hides nothing about the others until then."""
    sv.save(tmp_path / "a.safetensors", {"w": np.ones(3)})
    sv.save(tmp_path / "many", {f"w{number}": np.ones(1) for number in range(2_000)})
    listed = run("inspect", tmp_path, "--json").json["checkpoints"]
    assert {each["num_tensors"] for each in listed} == {1, 2_000}
    monkeypatch.setattr("shardvar.cli.listing._MOST_TENSORS", 2_000)
    listed = run("inspect", tmp_path, "--json").json["checkpoints"]
    told = {each["path"].rpartition("/")[2]: (each["opened"], each["problem"]) for each in listed}
    assert told == {"a.safetensors": (False, "not opened"), "many": (True, "")}
    out = run("inspect", tmp_path).out
    assert re.search(r"a\.safetensors .* not opened$", out, flags=re.MULTILINE)


def test_a_list_has_everything_below_a_folder(tmp_path: Path, run: Run) -> None:
    """As ``verify`` judges it, without the state of a run next to the only model of a folder."""
    for name in ("a.npz", "b.safetensors", "one/model.safetensors", "two/step-1/m", "two/step-2/m"):
        sv.save(tmp_path / name, {"w": np.ones(3)})
    for name in ("c.pt", "one/optimizer.pt", "two/d.pt"):
        shutil.copy(TRAINING_STATE, tmp_path / name)
    sv.save(tmp_path / "native", {"w": np.ones(3)})
    judged = {each["path"] for each in run("verify", tmp_path, "--json").json["others"]}
    listed = run("inspect", tmp_path, "--json").json["checkpoints"]
    assert {each["path"] for each in listed} == judged - {str(tmp_path / "one" / "optimizer.pt")}
    assert len(listed) == 8 and {each["format"] for each in listed} >= {"npz", "pt", "shardvar"}


def test_a_list_of_a_bucket_opens_no_checkpoint(run: Run) -> None:
    with in_bucket(MemoryBucket()):
        for name in ("a", "b"):
            sv.save(f"s3://bucket/run/{name}.npz", {"w": np.ones(3)})
        found = run("inspect", "s3://bucket/run/")
        listed = run("inspect", "s3://bucket/run/", "--json").json["checkpoints"]
    assert found.code == 0
    for name, each in zip("ab", listed, strict=True):
        assert re.search(rf"^ *s3://bucket/run/{name}\.npz  npz  ", found.out, flags=re.MULTILINE)
        assert (each["format"], each["opened"], each["num_tensors"]) == ("npz", False, None)


def test_values_that_may_not_be_read_leave_a_shape(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`inspect` needs only the index, so neither damage nor a lack of permission ends it."""

    def refuse(*_: object) -> None:
        raise StorageError("data cannot be read: permission denied.", "Ask for it.")

    sv.save(tmp_path / "model", {"step": np.int64(7), "w": np.ones(2)})
    monkeypatch.setattr("shardvar.verbs.compare.blocks.Blocks.read", refuse)
    found = run("inspect", tmp_path / "model")
    assert found.code == 0 and re.search(r"step +int64 +\[\] ", found.out)
    monkeypatch.undo()
    (data,) = tmp_path.glob("*.svdata*")
    data.write_bytes(bytes(byte ^ 1 for byte in data.read_bytes()))
    found = run("inspect", tmp_path / "model")
    assert found.code == 0 and re.search(r"step +int64 +\[\] ", found.out)
