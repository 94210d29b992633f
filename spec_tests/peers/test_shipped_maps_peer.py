"""A model that a shipped map turned into a GGUF file gives the same outputs in transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.maps.map import Map, fit_map
from spec_tests.helpers.map_arrays import carry_out

gguf = pytest.importorskip("gguf", reason="gguf is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

SIZES = {
    "vocab_size": 53,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 80,
    "num_hidden_layers": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
}
MODELS = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "phi3": ("Phi3Config", "Phi3ForCausalLM"),
}


def tiny_model(family: str) -> Any:
    config, model = MODELS[family]
    torch.manual_seed(7)
    found = getattr(transformers, model)(getattr(transformers, config)(**SIZES, pad_token_id=0))
    with torch.no_grad():
        # Norms of 1 and small weights would hide a wrong order.
        for parameter in found.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return found.eval()


def write_gguf(path: Path, family: str, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_key_length(SIZES["head_dim"])
    writer.add_value_length(SIZES["head_dim"])
    writer.add_rope_dimension_count(SIZES["head_dim"])
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(SIZES["rms_norm_eps"])
    writer.add_vocab_size(SIZES["vocab_size"])
    for key, array in arrays.items():
        writer.add_tensor(key, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("family", MODELS)
def test_transformers_reads_the_gguf_file_as_the_same_model(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    arrays = {key: value.numpy() for key, value in model.state_dict().items()}
    about = {key: (array.dtype.name, array.shape) for key, array in arrays.items()}
    fit = fit_map(Map.read(f"{family}-hf-to-gguf"), about, (), {}, str(tmp_path))
    assert not fit.problems
    write_gguf(tmp_path / "model.gguf", family, carry_out(fit.plan, arrays))
    # The name of each tensor is that of the package's own table.
    kind = getattr(gguf.MODEL_ARCH, family.upper())
    table = gguf.get_tensor_name_map(kind, SIZES["num_hidden_layers"])
    named = {table.get_name(key, try_suffixes=(".weight", ".bias")) for key in arrays}
    assert named == {target.key for target in fit.plan.every_target()}
    # Read back, it is the same model: the same tensors, and the same outputs.
    (tmp_path / "config.json").unlink()
    back = type(model).from_pretrained(tmp_path, gguf_file="model.gguf", config=model.config)
    back.eval()
    for key, value in back.state_dict().items():
        assert np.array_equal(value.numpy(), arrays[key]), key
    tokens = torch.arange(11)[None]
    with torch.no_grad():
        assert torch.equal(back(tokens).logits, model(tokens).logits)


FAMILIES = {"bert": "BERT", "deepseek-v3": "DEEPSEEK2", "gpt2": "GPT2", "gemma3": "GEMMA3"}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_names_of_a_gguf_map_are_those_of_the_package(family: str) -> None:
    """Each key that a rule takes, with the numbers 0 and the first words, has the package's name."""
    table = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, FAMILIES[family]), 8)
    known = {name for _, name in table.mapping.values()}
    rules = Map.read(f"{family}-hf-to-gguf").parsed
    made = {name for rule in rules if rule.target for name in _names(rule.target.key.parts)}
    assert made
    for name in made:
        assert name.rpartition(".")[0] in known, name


def _names(parts: Any) -> list[str]:
    found = [""]
    for part in parts:
        words = [part] if isinstance(part, str) else getattr(part, "words", ("0",))
        found = [before + word for before in found for word in words]
    return found


@pytest.mark.parametrize(
    ("family", "kind"), [("T5", {"feed_forward_proj": "gated-gelu"}), ("UMT5", {})]
)
def test_t5_has_the_names_of_the_package(family: str, kind: dict[str, Any], tmp_path: Path) -> None:
    """llama.cpp's script moves no element of T5: each tensor has the bytes of its source."""
    sizes = {"vocab_size": 53, "d_model": 48, "d_kv": 8, "num_heads": 6, "d_ff": 20}
    config = getattr(transformers, f"{family}Config")(
        num_layers=11, num_decoder_layers=2, **sizes, **kind
    )
    torch.manual_seed(7)
    getattr(transformers, f"{family}ForConditionalGeneration")(config).save_pretrained(tmp_path)
    arrays = sv.load(tmp_path)
    arrays["lm_head.weight"] = arrays["shared.weight"] + 1  # older transformers stored it
    source = sv.save(tmp_path / "source.safetensors", arrays)
    given = Map.read("t5-hf-to-gguf")
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.T5, 11)
    made = sv.load(source, map=given)
    assert len(made) == len(arrays) and "output.weight" in made
    for key, array in arrays.items():
        name = table.get_name(key, try_suffixes=(".weight",))
        assert made[name].tobytes() == array.tobytes() and made[name].shape == array.shape
    sv.reshard(source, tmp_path / "made.safetensors", map=given)
    assert sv.diff(tmp_path / "made.safetensors", source, map=given.inverse()).equal
