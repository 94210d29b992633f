"""Shipped maps make what the converters of other programs were recorded to make of tiny models.

``spec_tests/golden/maps`` has a file a converter: of each model its configuration, the keys and
shapes of its files, and the keys, shapes and CRC32s of what the converter made of them.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import MapError
from shardvar.maps.map import choose_map
from spec_tests.map_generators import gguf_maps, maxtext_maps

GOLDEN = Path(__file__).parents[1] / "golden" / "maps"
CASES = {
    f"{path.stem}-{name}": case
    for path in sorted(GOLDEN.glob("*.json"))
    for name, case in json.loads(path.read_text("utf-8"))["cases"].items()
}


def values(key: str, shape: list[int]) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(zlib.crc32(key.encode()))
    return (random.standard_normal(shape) * 0.3).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_a_map_makes_what_the_converter_made_and_goes_back(name: str, tmp_path: Path) -> None:
    case, source = CASES[name], tmp_path / "model.safetensors"
    sv.save(source, {key: values(key, shape) for key, shape in case["files"].items()})
    (tmp_path / "config.json").write_text(json.dumps(case["config"]), encoding="utf-8")
    assert choose_map(f"to-{case['map'].partition('-to-')[2]}", str(source)) == case["map"]
    made = sv.load(source, map=case["map"])
    assert sorted(made) == sorted(case["made"])
    for key, (shape, recorded) in case["made"].items():
        assert list(made[key].shape) == shape, key
        if isinstance(recorded, list):  # the converter computed them in float32
            np.testing.assert_allclose(made[key].ravel(), recorded, rtol=3e-7, err_msg=key)
        else:
            assert f"{zlib.crc32(made[key].tobytes()):08x}" == recorded, key
    given = sv.Map.read(case["map"])
    try:
        back = given.inverse()
    except MapError:
        assert any(rule.has_arithmetic and rule.tensors for rule in given.parsed)
        return
    sv.save(tmp_path / "made.safetensors", made)
    assert sv.diff(tmp_path / "made.safetensors", source, map=back).equal


def test_the_files_are_what_the_generators_write() -> None:
    for target, of in (("gguf", gguf_maps), ("maxtext", maxtext_maps)):
        for name in of.FAMILIES:
            path = of.MAPS / f"{name}-hf-to-{target}.toml"
            assert path.read_text("utf-8") == of.text_of(name)


def test_configurations_are_read_as_they_were_published(tmp_path: Path) -> None:
    """Llama 3.1 leaves the size of a head out, and its table of rotary embeddings has another name."""
    case, source = CASES["llama_cpp-llama31"], tmp_path / "model.safetensors"
    config = {key: value for key, value in case["config"].items() if key != "head_dim"}
    config["rope_scaling"] = config.pop("rope_parameters")
    config["rope_theta"] = config["rope_scaling"].pop("rope_theta")
    sv.save(source, {key: values(key, shape) for key, shape in case["files"].items()})
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    made = sv.load(source, map="to-gguf")
    wanted = case["made"]["rope_freqs.weight"][1]
    np.testing.assert_allclose(made["rope_freqs.weight"], wanted, rtol=3e-7)
    (tmp_path / "config.json").unlink()  # the entry counts as missing
    given = sv.Map.read(case["map"]).extended(sizes={"n": 6, "g": 2})
    assert made.keys() - sv.load(source, map=given).keys() == {"rope_freqs.weight"}


def test_the_text_of_a_llama_4_that_sees(tmp_path: Path) -> None:
    case, source = CASES["llama_cpp-llama4-rope"], tmp_path / "model.safetensors"
    files = {f"language_model.{key}": values(key, shape) for key, shape in case["files"].items()}
    sv.save(source, files | {"vision_model.class_embedding": np.ones(3, np.float32)})
    config = {"model_type": "llama4", "text_config": case["config"]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    options = {"filter": "language_model.*", "strip_prefix": "language_model."}
    sv.reshard(source, tmp_path / "made.safetensors", map=case["map"], **options)
    made = sv.load(tmp_path / "made.safetensors")
    assert sorted(made) == sorted(case["made"])
    np.testing.assert_allclose(made["rope_freqs.weight"], case["made"]["rope_freqs.weight"][1])
