"""Numbers of quantised tensors are those of transformers and of torch's own reader, bit for bit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.distributed.checkpoint as dcp  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch.distributed.checkpoint.quantized_hf_storage import (  # noqa: E402
    QuantizedHuggingFaceStorageReader,
)
from transformers import GptOssConfig, GptOssForCausalLM  # noqa: E402
from transformers.integrations.finegrained_fp8 import Fp8Dequantize  # noqa: E402
from transformers.integrations.mxfp4 import convert_moe_packed_tensors  # noqa: E402

import shardvar as sv  # noqa: E402

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchsReader(QuantizedHuggingFaceStorageReader):
    """torch's reader, which reads all numbers.

    torch 2.13 gives blocks of MXFP4 the size of their numbers, and leaves their chunk the size of
    the bytes. Of a row of 96 numbers in 3 groups, it would fill the first 3.
    """

    def read_metadata(self) -> Any:
        metadata = super().read_metadata()
        for tensor in metadata.state_dict_metadata.values():
            (chunk,) = tensor.chunks
            if len(chunk.sizes) > len(tensor.size):
                chunk.sizes = tensor.size
        return metadata


def octets(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def weights(*shape: int) -> Any:
    """Random weights of 8 bits, without NaNs, whose bits do not say their sign and payload."""
    codes = torch.randint(0, 256, shape, dtype=torch.uint8)
    codes[(codes & 127) == 127] = 0
    return codes.view(torch.float8_e4m3fn)


def write(folder: Path, tensors: dict[str, Any]) -> Path:
    """Write tensors as two files with an index, scales in another file than weights."""
    names = sorted(tensors)
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    places = {name: files["scale" in name] for name in names}
    for file in files:
        save_file({name: tensors[name] for name in names if places[name] == file}, folder / file)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("dtype", DTYPES)
def test_torchs_reader_has_the_same_numbers(tmp_path: Path, dtype: str) -> None:
    """Of blocks of 128 x 128 with cut last ones, and of MXFP4, which torch does not transpose."""
    torch.manual_seed(1)
    tensors = {
        "a.weight": weights(300, 520),
        "a.weight_scale_inv": torch.rand(3, 5),
        "x_blocks": torch.randint(0, 256, (2, 12, 3, 16), dtype=torch.uint8),
        "x_scales": torch.randint(1, 250, (2, 12, 3), dtype=torch.uint8),
        "norm.weight": torch.rand(7),
    }
    write(tmp_path, tensors)
    found = {
        "a.weight": torch.empty(300, 520, dtype=DTYPES[dtype]),
        "x_blocks": torch.empty(2, 12, 96, dtype=DTYPES[dtype]),
        "norm.weight": torch.empty(7),
    }
    reader = TorchsReader(path=str(tmp_path), thread_count=1, target_dtype=DTYPES[dtype])
    dcp.load(found, storage_reader=reader)
    ours = sv.load(tmp_path, dequantize=dtype)
    assert ours.keys() == {"a.weight", "x", "norm.weight"}
    assert ours["a.weight"].tobytes() == octets(found["a.weight"])
    assert ours["x"].swapaxes(1, 2).tobytes() == octets(found["x_blocks"])
    assert ours["norm.weight"].tobytes() == octets(found["norm.weight"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_transformers_has_the_same_numbers_of_eight_bits(tmp_path: Path, dtype: str) -> None:
    """Of float32 scales and of exponents, of matrices and of stacked ones, and of packed FP4."""
    torch.manual_seed(2)
    exponents = torch.randint(100, 140, (2, 2, 3), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    packed = torch.randint(-128, 128, (6, 64), dtype=torch.int8)
    tensors = {
        "a.weight": (weights(256, 384), "a.weight_scale_inv", torch.rand(2, 3)),
        "e.gate_up_proj": (weights(2, 256, 384), "e.gate_up_proj_scale_inv", exponents),
        "p.weight": (packed, "p.weight_scale_inv", exponents.view(3, 4).repeat(2, 1)),
        "t.weight": (weights(5, 9), "t.weight_scale_inv", torch.tensor(0.37)),
    }
    write(
        tmp_path,
        {key: each[0] for key, each in tensors.items()} | {e[1]: e[2] for e in tensors.values()},
    )
    ours = sv.load(tmp_path, dequantize=dtype)
    assert ours.keys() == tensors.keys()
    for key, (weight, _, scale) in tensors.items():
        theirs = Fp8Dequantize(None)._dequantize_one(
            weight, scale if scale.ndim else scale.reshape(1, 1), DTYPES[dtype]
        )
        assert ours[key].tobytes() == octets(theirs), key


@pytest.mark.parametrize("dtype", DTYPES)
def test_transformers_has_the_same_numbers_of_four_bits(tmp_path: Path, dtype: str) -> None:
    """All bytes of two numbers with all exponents that have finite numbers."""
    blocks = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 1, 16).repeat(253, 1, 1, 1)
    scales = torch.arange(253, dtype=torch.uint8).reshape(253, 1, 1).repeat(1, 16, 1)
    save_file({"x_blocks": blocks, "x_scales": scales}, tmp_path / "model.safetensors")
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=DTYPES[dtype])
    ours = sv.load(tmp_path, dequantize=dtype)["x"]
    assert ours.shape == tuple(theirs.shape)
    assert ours.tobytes() == octets(theirs)


def test_a_model_of_transformers_runs_the_same(tmp_path: Path) -> None:
    """GPT-OSS: the dequantized file is what transformers makes of the quantised one."""
    config = GptOssConfig(
        num_hidden_layers=1,
        hidden_size=64,
        intermediate_size=64,
        num_local_experts=2,
        num_experts_per_tok=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        vocab_size=32,
        dtype="bfloat16",
    )
    torch.manual_seed(3)
    state = GptOssForCausalLM(config).to(torch.bfloat16).state_dict()
    rng = np.random.default_rng(4)
    for key in [key for key in state if key.endswith(("gate_up_proj", "down_proj"))]:
        experts, rows, columns = state.pop(key).shape
        shape = (experts, columns, rows // 32)
        state[f"{key}_blocks"] = torch.from_numpy(rng.integers(0, 256, (*shape, 16), np.uint8))
        state[f"{key}_scales"] = torch.from_numpy(rng.integers(118, 124, shape, np.uint8))
    quantised, plain = tmp_path / "quantised", tmp_path / "plain"
    for folder in (quantised, plain):
        folder.mkdir()
        config.save_pretrained(folder)
    save_file(
        {key: each.contiguous() for key, each in state.items()},
        quantised / "model.safetensors",
        metadata={"format": "pt"},
    )
    described = json.loads((quantised / "config.json").read_text())
    described["quantization_config"] = {"quant_method": "mxfp4"}
    (quantised / "config.json").write_text(json.dumps(described))
    sv.reshard(quantised, plain / "model.safetensors", dequantize=True)
    model = GptOssForCausalLM.from_pretrained(plain, dtype="auto").eval()
    loaded = model.state_dict()
    for key, array in sv.load(plain).items():
        assert octets(loaded[key]) == array.tobytes(), key
    for key in [key for key in loaded if key.endswith(("gate_up_proj", "down_proj"))]:
        theirs = convert_moe_packed_tensors(state[f"{key}_blocks"], state[f"{key}_scales"])
        assert octets(loaded[key]) == octets(theirs), key
    with torch.no_grad():
        assert torch.isfinite(model(torch.tensor([[1, 2, 3]])).logits).all()
