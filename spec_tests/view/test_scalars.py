"""The values of scalars and settings on a page, and that settings are not counted as tensors."""

from pathlib import Path

import numpy as np

import shardvar as sv
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.paths import GOLDEN
from spec_tests.helpers.view_pages import columns_of, keys_of

__all__ = ["run"]  # the fixture

TRAINED = GOLDEN / "torch_pt" / "training_checkpoint" / "x.pt"


def test_a_page_has_the_values_of_scalars_and_settings(tmp_path: Path, run: Run) -> None:
    outcome = run("view", TRAINED, "-o", tmp_path / "p.html")
    assert outcome.code == 0
    (columns,) = columns_of((tmp_path / "p.html").read_text(encoding="utf-8"))["checkpoints"]
    keys = keys_of(columns)
    values = {keys[row]: text for row, text in columns["values"]}
    assert values["epoch"] == "3" and values["args.lr"] == "0.001"
    settings = {keys[row] for start, stop in columns["settings"] for row in range(start, stop)}
    with sv.open_checkpoint(TRAINED) as reader:
        assert settings == {key for key in reader if reader[key].dtype == "string"}
        scalars = {key for key in reader if reader[key].shape == ()}
    assert settings < scalars == values.keys()
    number = len(keys) - len(settings)
    assert f": {number} tensors and {len(settings)} settings, " in outcome.out
    told = run("view", TRAINED, "-o", tmp_path / "p.html", "--json").json
    assert (told["num_tensors"], told["num_settings"]) == (len(keys), len(settings))


def test_a_long_text_is_cut_and_a_tensor_without_settings_has_none(
    tmp_path: Path, run: Run
) -> None:
    """A string of a checkpoint of TensorFlow is a tensor."""
    text = np.array(b"x" * 900, object)
    sv.save(tmp_path / "model", {"text": text, "step": np.array(7), "w": np.ones(2)})
    assert run("view", tmp_path / "model").code == 0
    (columns,) = columns_of((tmp_path / "model.html").read_text(encoding="utf-8"))["checkpoints"]
    keys = keys_of(columns)
    values = {keys[row]: text for row, text in columns["values"]}
    assert values["step"] == "7" and len(values["text"]) == 200 and values["text"].endswith("…")
    assert columns["settings"] == [] and values.keys() == {"step", "text"}
