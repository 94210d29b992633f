"""A model that a shipped map converted gives the same outputs in the library that it goes to.

Files are written and read by the libraries themselves; between them is only ``sv.reshard``.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")  # The libraries warn of what is deprecated.

DECODER = {
    "vocab_size": 53,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "tie_word_embeddings": False,
}
ENCODER = {
    "vocab_size": 53,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "max_position_embeddings": 31,
}
TOKENS = np.arange(12).reshape(2, 6)


def saved(model: str, config: str, folder: Path, **sizes: Any) -> Any:
    """Return a random model of transformers, saved in a folder."""
    torch.manual_seed(7)
    found = getattr(transformers, model)(getattr(transformers, config)(**sizes)).eval()
    with torch.no_grad():
        # Norms of 1, and small weights, would hide a wrong order.
        for parameter in found.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    found.save_pretrained(folder)
    return found


def assert_goes_back(name: str, made: Path, folder: Path) -> None:
    """The inverse gives back the bits of each tensor, from what the other library reads."""
    back = Path(f"{made}.back.safetensors")
    (made.parent / "config.json").write_bytes((folder / "config.json").read_bytes())
    sv.reshard(made, back, map=sv.Map.read(name).inverse())
    assert sv.diff(folder, back).equal


def keras_file(folder: Path, name: str) -> Path:
    """Return a file of Keras with what a map makes of a folder: shardvar reads these files, and
    writes other ones."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    file = folder.parent / "made" / "model.weights.h5"
    file.parent.mkdir()
    with h5py.File(file, "w") as opened:
        for key, array in sv.load(folder, map=name).items():
            opened[key] = array
    return file


def hidden(outputs: Any) -> np.ndarray[Any, Any]:
    return np.asarray(outputs.detach().numpy(), dtype=np.float32)


def keras_model(kind: str, **sizes: Any) -> Any:
    keras_hub = pytest.importorskip("keras_hub", reason="keras-hub is not installed")
    return getattr(keras_hub.models, kind)(vocabulary_size=53, num_layers=3, **sizes)


def keras_numbers(tensor: Any) -> np.ndarray[Any, Any]:
    import keras

    return np.asarray(keras.ops.convert_to_numpy(tensor))


KERAS_DECODER = {
    "num_query_heads": 6,
    "num_key_value_heads": 2,
    "hidden_dim": 48,
    "intermediate_dim": 20,
}


LLAMA: dict[str, Any] = {**DECODER, "rms_norm_eps": 1e-5}
KERAS: dict[str, Any] = {**KERAS_DECODER, "layer_norm_epsilon": 1e-5}
FAR = {"rope_max_wavelength": 10_000}
KERASHUB: dict[str, tuple[str, str, dict[str, Any], str, dict[str, Any]]] = {
    "llama": (
        *("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "rope_theta": 10_000}),
        *("Llama3Backbone", {**KERAS, **FAR, "tie_word_embeddings": False}),
    ),
    "qwen3": (
        *("Qwen3ForCausalLM", "Qwen3Config", LLAMA),
        *("Qwen3Backbone", {**KERAS, **FAR, "head_dim": 8, "tie_word_embeddings": False}),
    ),
    "mixtral": (
        *("MixtralForCausalLM", "MixtralConfig"),
        {**LLAMA, "num_local_experts": 11, "num_experts_per_tok": 2, "sliding_window": None,
         "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
        *("MixtralBackbone", {**KERAS, **FAR, "num_experts": 11, "top_k": 2}),
    ),
    "gemma3": (
        *("Gemma3ForCausalLM", "Gemma3TextConfig"),
        {**LLAMA, "tie_word_embeddings": True, "query_pre_attn_scalar": 8, "rms_norm_eps": 1e-6},
        "Gemma3Backbone",
        {**KERAS, "head_dim": 8, "image_size": 16, "use_query_key_norm": True,
         "use_post_ffw_norm": True, "use_post_attention_norm": True,
         "layer_norm_epsilon": 1e-6, "use_sliding_window_attention": True},
    ),
    "gpt2": (
        *("GPT2LMHeadModel", "GPT2Config"),
        {"vocab_size": 53, "n_embd": 48, "n_head": 6, "n_inner": 20, "n_layer": 3,
         "n_positions": 31},
        "GPT2Backbone",
        {"num_heads": 6, "hidden_dim": 48, "intermediate_dim": 20, "max_sequence_length": 31},
    ),
}  # fmt: skip
"""A family -> the classes and sizes of transformers, and those of KerasHub."""


@pytest.mark.parametrize("family", KERASHUB)
def test_a_decoder_of_kerashub(family: str, tmp_path: Path) -> None:
    kind, config, sizes, hub, of_keras = KERASHUB[family]
    model = saved(kind, config, tmp_path / "hf", **sizes)
    name = f"{family}-hf-to-kerashub"
    file = keras_file(tmp_path / "hf", name)
    assert_goes_back(name, file, tmp_path / "hf")
    other = keras_model(hub, **of_keras)
    other.load_weights(file)
    given = {"token_ids": TOKENS, "padding_mask": np.ones_like(TOKENS)}
    with torch.no_grad():
        wanted = hidden(model.base_model(torch.tensor(TOKENS)).last_hidden_state)
    np.testing.assert_allclose(keras_numbers(other(given)), wanted, rtol=1e-3, atol=1e-4)


def test_bert_of_kerashub(tmp_path: Path) -> None:
    model = saved(
        "BertForPreTraining", "BertConfig", tmp_path / "hf", hidden_act="gelu_new", **ENCODER
    )
    file = keras_file(tmp_path / "hf", "bert-hf-to-kerashub")
    other = keras_model(
        "BertBackbone", num_heads=6, hidden_dim=48, intermediate_dim=20, max_sequence_length=31
    )
    other.load_weights(file)
    segments = TOKENS % 2
    given = {
        "token_ids": TOKENS,
        "segment_ids": segments,
        "padding_mask": np.ones_like(TOKENS),
    }
    with torch.no_grad():
        wanted = model.bert(torch.tensor(TOKENS), token_type_ids=torch.tensor(segments))
    made = other(given)
    for key, value in (
        ("sequence_output", wanted.last_hidden_state),
        ("pooled_output", wanted.pooler_output),
    ):
        np.testing.assert_allclose(keras_numbers(made[key]), hidden(value), rtol=1e-3, atol=1e-4)
    (tmp_path / "made" / "config.json").write_bytes((tmp_path / "hf/config.json").read_bytes())
    back = tmp_path / "back.safetensors"
    sv.reshard(file, back, map="bert-kerashub-to-hf")
    assert sv.diff(tmp_path / "hf", back, exclude="cls.*").equal


def test_whisper_of_openai(tmp_path: Path) -> None:
    whisper = pytest.importorskip("whisper.model", reason="openai-whisper is not installed")
    sizes = {
        "num_mel_bins": 8,
        "max_source_positions": 20,
        "d_model": 32,
        "vocab_size": 53,
        "max_target_positions": 17,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 1),
        "decoder_start_token_id": 1,
    }
    model = saved("WhisperForConditionalGeneration", "WhisperConfig", tmp_path / "hf", **sizes)
    dims = whisper.ModelDimensions(
        n_mels=8, n_audio_ctx=20, n_audio_state=32, n_audio_head=4, n_audio_layer=2,
        n_vocab=53, n_text_ctx=17, n_text_state=32, n_text_head=4, n_text_layer=3,
    )  # fmt: skip
    other = whisper.Whisper(dims).eval()
    given = sv.Map.read("whisper-openai-to-hf")
    torch.save(other.state_dict(), tmp_path / "openai.pt")
    sv.reshard(tmp_path / "hf", tmp_path / "made.safetensors", map=given.inverse())
    made = sv.load(tmp_path / "made.safetensors")
    other.load_state_dict({key: torch.tensor(value) for key, value in made.items()})
    torch.save(other.state_dict(), tmp_path / "openai.pt")
    sv.reshard(tmp_path / "openai.pt", tmp_path / "back.safetensors", map=given)
    assert sv.diff(tmp_path / "hf", tmp_path / "back.safetensors").equal
    sound, tokens = torch.randn(2, 8, 40), torch.tensor(TOKENS)
    with torch.no_grad():
        wanted = model(input_features=sound, decoder_input_ids=tokens).logits
        np.testing.assert_allclose(
            hidden(other(sound, tokens)), hidden(wanted), rtol=1e-3, atol=1e-4
        )


def test_vit_of_timm(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed")
    sizes = {"hidden_size": 48, "num_attention_heads": 6, "num_hidden_layers": 3}
    sizes |= {"intermediate_size": 192, "image_size": 32, "patch_size": 8}
    model = saved("ViTForImageClassification", "ViTConfig", tmp_path / "hf", num_labels=5, **sizes)
    other = timm.models.VisionTransformer(
        img_size=32,
        patch_size=8,
        embed_dim=48,
        depth=3,
        num_heads=6,
        num_classes=5,
        norm_layer=None,
    ).eval()
    given = sv.Map.read("vit-timm-to-hf")
    sv.reshard(tmp_path / "hf", tmp_path / "made.safetensors", map=given.inverse())
    made = sv.load(tmp_path / "made.safetensors")
    other.load_state_dict({key: torch.tensor(value) for key, value in made.items()})
    sv.reshard(tmp_path / "made.safetensors", tmp_path / "back.safetensors", map=given)
    assert sv.diff(tmp_path / "hf", tmp_path / "back.safetensors").equal
    image = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        wanted = hidden(model(image).logits)
        np.testing.assert_allclose(hidden(other(image)), wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("groups", "kind"),
    [
        (2, {"new_decoder_architecture": True, "num_kv_heads": 2}),
        (1, {"multi_query": True}),
        (6, {"multi_query": False, "bias": True}),
    ],
    ids=["40b", "7b", "rw"],
)
def test_falcon_splits_its_heads_as_the_map_does(
    groups: int, kind: dict[str, Any], tmp_path: Path
) -> None:
    """The model's own function splits the rows of its weight and of its bias."""
    sizes = {"vocab_size": 53, "hidden_size": 48, "num_attention_heads": 6}
    source, target = tmp_path / "model", tmp_path / "made" / "split.safetensors"
    model = saved(
        "FalconForCausalLM", "FalconConfig", source, num_hidden_layers=11, **sizes, **kind
    )
    given = sv.Map.read("falcon-hf-to-split").extended(sizes={"g": groups})
    sv.reshard(source, target, map=given)
    made, stored = sv.load(target), sv.load(source)
    others = {key for key in stored if "query_key_value" not in key}
    assert all(np.array_equal(made[key], stored[key]) for key in others)
    assert len(made) == len(others) + 3 * (len(stored) - len(others))
    for number, block in enumerate(model.transformer.h):
        at, attention = f"transformer.h.{number}.self_attention.", block.self_attention
        for name, value in attention.query_key_value.named_parameters():
            # [1, columns, rows], as the outputs of the layer are
            parts = attention._split_heads(value.detach().reshape(len(value), -1).T[None])
            for part, array in zip(("query", "key", "value"), parts, strict=True):
                heads = array[0].numpy()  # [columns, heads, size]
                # The model repeats the key and the value of a group for each of its queries.
                is_shared = part != "query" and heads.shape[1] > groups
                kept = heads[:, :: 6 // groups] if is_shared else heads
                wanted = np.moveaxis(kept, 0, -1).reshape(-1, *value.shape[1:])
                assert np.array_equal(made[f"{at}{part}.{name}"], wanted), (number, part)
    (target.parent / "config.json").write_bytes((source / "config.json").read_bytes())
    assert sv.diff(target, source, map=given.inverse()).equal
