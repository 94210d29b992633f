"""The shipped maps between the files of transformers 5 and its memory, against transformers itself."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.maps.map import Map, choose_map
from spec_tests.helpers.map_arrays import map_arrays
from spec_tests.map_generators.cases import Case, build, classes
from spec_tests.map_generators.tiny_models import model_of
from spec_tests.map_generators.transformers_maps import (
    FAMILIES,
    check_map,
    example_of,
    name_of,
    table_names,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of what is deprecated.

LISTED = json.loads(FAMILIES.read_text(encoding="utf-8"))
SOME = {
    "mixtral": {},
    "qwen3_moe": {},
    "deepseek_v3": {"num_key_value_heads": 4},  # As in all its models, each head has its own.
    "gpt_oss": {},
}
QUICK = 200_000
"""Parameters of a model that is made in much less than a second."""
QUICK_FAMILIES = [family for family, count in LISTED["maps"].items() if count <= QUICK]


@pytest.fixture(scope="module", autouse=True)
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed")


def arrays(state: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {key: value.detach().numpy() for key, value in state.items()}


def loaded(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    with sv.open_checkpoint(path) as reader:
        return {key: np.asarray(reader[key]) for key in reader}


def assert_equal(made: Any, right: Any) -> None:
    assert made.keys() == right.keys()
    for key, value in right.items():
        assert made[key].dtype == value.dtype
        np.testing.assert_array_equal(made[key], value, err_msg=key)


@pytest.mark.parametrize("family", SOME)
def test_files_and_memory_of_a_model_and_back_to_equal_outputs(family: str, tmp_path: Path) -> None:
    import torch
    from safetensors.numpy import save_file
    from torch.distributed import checkpoint as dcp

    model = model_of(family, {"tie_word_embeddings": False, **SOME[family]}, "cpu")
    with torch.no_grad():
        for each in model.parameters():
            each.normal_(std=0.3)
    files = Map(["{x:**} -> {x:**}"])
    if family != "gpt_oss":  # Its files have the names of its memory.
        files = Map.read(name_of(family))

    model.save_pretrained(tmp_path / "files", max_shard_size="100KB")
    memory = arrays(model.state_dict())
    assert_equal(map_arrays(files, loaded(tmp_path / "files")), memory)

    dcp.save(model.state_dict(), checkpoint_id=tmp_path / "trained", no_dist=True)
    back = map_arrays(files.inverse(), loaded(tmp_path / "trained"))
    assert_equal(back, loaded(tmp_path / "files"))
    (tmp_path / "back").mkdir()
    written = {key: np.ascontiguousarray(value) for key, value in back.items()}
    save_file(written, tmp_path / "back" / "model.safetensors")
    model.config.save_pretrained(tmp_path / "back")
    again = type(model).from_pretrained(tmp_path / "back").eval()
    ids = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)


def map_of(case: Case, path: Path) -> Map:
    """The map that `--map to-transformers` chooses."""
    config = {"model_type": case.family, "architectures": [case.of_model]}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return Map.read(choose_map("to-transformers", str(path)))


@pytest.mark.sample(2)
@pytest.mark.parametrize("family", QUICK_FAMILIES)
def test_a_map_and_its_inverse_do_what_transformers_does(family: str, tmp_path: Path) -> None:
    """For each class; the generator tried larger ones, and all settings, when it wrote the map."""
    count = 0
    for of_model in classes()[family]:
        case = Case(family, of_model)
        if f"{family} {of_model}" not in LISTED["not covered"]:
            with suppress(TypeError, ValueError, AttributeError, ImportError):
                check_map(map_of(case, tmp_path), build(case, "cpu"))
                count += 1
    assert count


@pytest.mark.parametrize("family", "deepseek_v2 deepseek_v3 dots1 jamba dinov2 nomic_bert".split())
def test_a_map_fits_all_heads_of_a_published_model(family: str, tmp_path: Path) -> None:
    """At default sizes, which have dense first layers, and attention between Mamba's layers."""
    for of_model in classes()[family]:
        case = Case(family, of_model, None, is_tiny=False)
        example_of(case).check(map_of(case, tmp_path))


def test_no_table_of_the_installed_transformers_is_missing() -> None:
    """A new version may have new ones: run the generator, and commit what it writes."""
    assert sorted(set(table_names()) - set(LISTED["tables"])) == []
