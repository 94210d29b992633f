"""What is quantised loads in transformers, compressed-tensors and gguf, with the same numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("compressed_tensors")
gguf = pytest.importorskip("gguf")

import shardvar as sv  # noqa: E402


def octets(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=384,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        dtype="bfloat16",
        tie_word_embeddings=False,
    )
    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("model")
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore:You passed")
@pytest.mark.parametrize(
    "scheme",
    ["fp8-block", "fp8-block-ue8m0", "fp8-channel", "int8", "int4", "int4:64", "mxfp4", "nvfp4"],
)
def test_transformers_loads_the_same_numbers(tmp_path: Path, model: Path, scheme: str) -> None:
    sv.reshard(model, tmp_path / "out", quantize=scheme, keep="*.v_proj")
    ours = sv.load(tmp_path / "out", dequantize=True)
    # Without a GPU, transformers dequantizes FP8 blocks by itself.
    more = {}
    if not scheme.startswith("fp8-block"):
        more["quantization_config"] = transformers.CompressedTensorsConfig(dequantize=True)
    path, kind = tmp_path / "out", transformers.AutoModelForCausalLM
    loaded = kind.from_pretrained(path, dtype="auto", **more).eval()
    theirs = loaded.state_dict()
    assert theirs.keys() == ours.keys()
    for key, tensor in theirs.items():
        assert octets(tensor) == ours[key].tobytes(), key
    with torch.no_grad():
        assert torch.isfinite(loaded(torch.tensor([[1, 2, 3]])).logits).all()


@pytest.mark.parametrize("scheme", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_gguf_has_the_same_bytes_and_numbers(tmp_path: Path, scheme: str) -> None:
    rng = np.random.default_rng(6)
    w = (rng.standard_normal((64, 256)) * np.exp2(rng.integers(-8, 8, (64, 1)))).astype("f4")
    sv.save(tmp_path / "in.safetensors", {"blk.0.a.weight": w, "blk.0.a_norm.weight": w[0]})
    sv.reshard(tmp_path / "in.safetensors", tmp_path / "out.gguf", quantize=scheme)
    kind = gguf.GGMLQuantizationType[scheme.upper()]
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    assert found["blk.0.a.weight"].tensor_type == kind
    assert found["blk.0.a.weight"].data.tobytes() == gguf.quantize(w, kind).tobytes()
    assert found["blk.0.a_norm.weight"].data.tobytes() == w[0].tobytes()
    ours = sv.load(tmp_path / "out.gguf", dequantize=True)["blk.0.a.weight"]
    assert ours.tobytes() == gguf.dequantize(found["blk.0.a.weight"].data, kind).tobytes()
