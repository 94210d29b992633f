"""Tiny checkpoints of Hugging Face, and what Megatron-core stores of them, written in NumPy.

The formulas are those of Megatron's own modules: attention.py for the rows of ``linear_qkv``, mlp.py
for the halves of ``linear_fc1``, experts.py for the experts.
"""

from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]

LAYERS, HIDDEN, HEADS, GROUPS, HEAD, WIDTH, EXPERTS, EXPERT_WIDTH = 3, 32, 6, 2, 8, 40, 11, 24
SHARED_WIDTH, VOCABULARY, PADDED = 28, 99, 128
LATENT_Q, LATENT_KV, NOPE, ROPE, VALUE = 20, 16, 8, 8, 8
SIZES = {"vocab": VOCABULARY, "v": PADDED, "g": GROUPS, "r": HEADS // GROUPS, "k": 1}
CONFIG = {
    "vocab_size": VOCABULARY,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "first_k_dense_replace": 1,
}
FAMILIES = (
    *("llama", "qwen3", "qwen3-moe", "mixtral", "gemma3", "deepseek-v3", "glm4-moe", "gpt-oss"),
)
DENSE_FIRST = ("deepseek-v3", "glm4-moe")
"""Families whose first layers may be dense."""


def hugging_face(family: str, num_dense: int = 0, hidden: int = HIDDEN) -> Arrays:
    """Return the files of a tiny model with random values."""
    rng = np.random.default_rng(7)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    if family != "gemma3":
        shapes["lm_head.weight"] = (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        each = _attention(family) | _mlp(family, layer < num_dense)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if family == "gemma3":
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        each |= {f"{norm}.weight": (HIDDEN,) for norm in norms}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in each.items()}
    # No other extent is as large as the hidden size.
    sizes = {key: [{HIDDEN: hidden}.get(n, n) for n in shape] for key, shape in shapes.items()}
    return {key: rng.normal(size=size).astype(np.float32) for key, size in sizes.items()}


def _attention(family: str) -> dict[str, tuple[int, ...]]:
    if family == "deepseek-v3":
        rows = {
            "q_a_proj": (LATENT_Q, HIDDEN),
            "q_b_proj": (HEADS * (NOPE + ROPE), LATENT_Q),
            "kv_a_proj_with_mqa": (LATENT_KV + ROPE, HIDDEN),
            "kv_b_proj": (HEADS * (NOPE + VALUE), LATENT_KV),
            "o_proj": (HIDDEN, HEADS * VALUE),
            "q_a_layernorm": (LATENT_Q,),
            "kv_a_layernorm": (LATENT_KV,),
        }
    else:
        rows = {
            "q_proj": (HEADS * HEAD, HIDDEN),
            "k_proj": (GROUPS * HEAD, HIDDEN),
            "v_proj": (GROUPS * HEAD, HIDDEN),
            "o_proj": (HIDDEN, HEADS * HEAD),
        }
    found = {f"self_attn.{name}.weight": shape for name, shape in rows.items()}
    if family in ("glm4-moe", "gpt-oss"):
        biased = ("q_proj", "k_proj", "v_proj", *(["o_proj"] if family == "gpt-oss" else []))
        found |= {f"self_attn.{name}.bias": rows[name][:1] for name in biased}
    if family == "gpt-oss":
        found["self_attn.sinks"] = (HEADS,)
    if family in ("qwen3", "qwen3-moe", "gemma3", "glm4-moe"):
        found |= {f"self_attn.{name}_norm.weight": (HEAD,) for name in "qk"}
    return found


def _gated(prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj.weight": (width, HIDDEN),
        f"{prefix}.up_proj.weight": (width, HIDDEN),
        f"{prefix}.down_proj.weight": (HIDDEN, width),
    }


def _mlp(family: str, is_dense: bool) -> dict[str, tuple[int, ...]]:
    if is_dense or family in ("llama", "qwen3", "gemma3"):
        return _gated("mlp", WIDTH)
    if family == "mixtral":
        found: dict[str, tuple[int, ...]] = {"block_sparse_moe.gate.weight": (EXPERTS, HIDDEN)}
        for e in range(EXPERTS):
            prefix = f"block_sparse_moe.experts.{e}"
            found |= {f"{prefix}.{w}.weight": (EXPERT_WIDTH, HIDDEN) for w in ("w1", "w3")}
            found[f"{prefix}.w2.weight"] = (HIDDEN, EXPERT_WIDTH)
        return found
    if family == "gpt-oss":
        return {
            "mlp.router.weight": (EXPERTS, HIDDEN),
            "mlp.router.bias": (EXPERTS,),
            "mlp.experts.gate_up_proj": (EXPERTS, HIDDEN, 2 * EXPERT_WIDTH),
            "mlp.experts.gate_up_proj_bias": (EXPERTS, 2 * EXPERT_WIDTH),
            "mlp.experts.down_proj": (EXPERTS, EXPERT_WIDTH, HIDDEN),
            "mlp.experts.down_proj_bias": (EXPERTS, HIDDEN),
        }
    found = {"mlp.gate.weight": (EXPERTS, HIDDEN)}
    for e in range(EXPERTS):
        found |= _gated(f"mlp.experts.{e}", EXPERT_WIDTH)
    if family in DENSE_FIRST:
        found["mlp.gate.e_score_correction_bias"] = (EXPERTS,)
        found |= _gated("mlp.shared_experts", SHARED_WIDTH)
    return found


def megatron(family: str, files: Arrays, is_stacked: bool) -> Arrays:
    """Return what Megatron-core stores of a model, with Transformer Engine's names."""
    found: Arrays = {"decoder.final_layernorm.weight": files["model.norm.weight"]}
    for left, right in (
        ("model.embed_tokens.weight", "embedding.word_embeddings.weight"),
        ("lm_head.weight", "output_layer.weight"),
    ):
        if left in files:
            zeros = np.zeros((PADDED - VOCABULARY, HIDDEN), np.float32)
            found[right] = np.concatenate([files[left], zeros])
    layers = []
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        layers.append(
            _layer(family, {k.removeprefix(prefix): v for k, v in files.items() if prefix in k})
        )
    for layer, each in enumerate(layers):
        for name, value in each.items():
            if is_stacked:
                found[f"decoder.layers.{name}"] = np.stack([one[name] for one in layers])
            else:
                found[f"decoder.layers.{layer}.{name}"] = value
    return found


def _layer(family: str, files: Arrays) -> Arrays:
    found: Arrays = {}
    if family == "deepseek-v3":
        for left, right in {
            "q_a_proj.weight": "linear_q_down_proj.weight",
            "q_b_proj.weight": "linear_q_up_proj.weight",
            "kv_a_proj_with_mqa.weight": "linear_kv_down_proj.weight",
            "kv_b_proj.weight": "linear_kv_up_proj.weight",
            "q_a_layernorm.weight": "linear_q_up_proj.layer_norm_weight",
            "kv_a_layernorm.weight": "linear_kv_up_proj.layer_norm_weight",
        }.items():
            found[f"self_attention.{right}"] = files[f"self_attn.{left}"]
        found["input_layernorm.weight"] = files["input_layernorm.weight"]
    else:
        for kind in ("weight", "bias") if "self_attn.q_proj.bias" in files else ("weight",):
            parts = [files[f"self_attn.{name}_proj.{kind}"] for name in "qkv"]
            rows = [part.reshape(GROUPS, -1, *part.shape[1:]) for part in parts]
            joined = np.concatenate(rows, 1).reshape(-1, *parts[0].shape[1:])
            found[f"self_attention.linear_qkv.{kind}"] = joined
        of = "self_attention.linear_qkv.layer_norm_weight"
        found[of] = files["input_layernorm.weight"]
    for name in "qk":
        if f"self_attn.{name}_norm.weight" in files:
            found[f"self_attention.{name}_layernorm.weight"] = files[
                f"self_attn.{name}_norm.weight"
            ]
    found["self_attention.linear_proj.weight"] = files["self_attn.o_proj.weight"]
    is_dense = "mlp.gate_proj.weight" in files
    norm = "mlp.linear_fc1.layer_norm_weight" if is_dense else "pre_mlp_layernorm.weight"
    if family == "gemma3":
        found[norm] = files["pre_feedforward_layernorm.weight"]
        after = {"attention": "self_attention.linear_proj", "feedforward": "mlp.linear_fc2"}
        for left, right in after.items():
            found[f"{right}.post_layernorm.weight"] = files[f"post_{left}_layernorm.weight"]
    else:
        found[norm] = files["post_attention_layernorm.weight"]
    return found | _megatron_mlp(family, files, is_dense)


def _halves(files: Arrays, prefix: str, names: tuple[str, str, str]) -> list[Any]:
    gate, up, down = (files[f"{prefix}.{name}.weight"] for name in names)
    return [np.concatenate([gate, up]), down]


def _megatron_mlp(family: str, files: Arrays, is_dense: bool) -> Arrays:
    names = ("gate_proj", "up_proj", "down_proj")
    if is_dense:
        first, second = _halves(files, "mlp", names)
        return {"mlp.linear_fc1.weight": first, "mlp.linear_fc2.weight": second}
    if family == "gpt-oss":
        first = {
            kind: np.concatenate([both[..., ::2], both[..., 1::2]], -1)
            for kind, both in (
                ("weight", files["mlp.experts.gate_up_proj"]),
                ("bias", files["mlp.experts.gate_up_proj_bias"]),
            )
        }
        return {
            "self_attention.linear_proj.bias": files["self_attn.o_proj.bias"],
            "self_attention.core_attention.softmax_offset": files["self_attn.sinks"],
            "mlp.router.weight": files["mlp.router.weight"],
            "mlp.router.bias": files["mlp.router.bias"],
            "mlp.experts.experts.linear_fc1.weight": first["weight"].swapaxes(1, 2),
            "mlp.experts.experts.linear_fc1.bias": first["bias"],
            "mlp.experts.experts.linear_fc2.weight": files["mlp.experts.down_proj"].swapaxes(1, 2),
            "mlp.experts.experts.linear_fc2.bias": files["mlp.experts.down_proj_bias"],
        }
    block = "block_sparse_moe" if family == "mixtral" else "mlp"
    names = ("w1", "w3", "w2") if family == "mixtral" else names
    experts = [_halves(files, f"{block}.experts.{e}", names) for e in range(EXPERTS)]
    found = {
        "mlp.router.weight": files[f"{block}.gate.weight"],
        "mlp.experts.experts.linear_fc1.weight": np.stack([first for first, _ in experts]),
        "mlp.experts.experts.linear_fc2.weight": np.stack([second for _, second in experts]),
    }
    if family in DENSE_FIRST:
        first, second = _halves(files, "mlp.shared_experts", names)
        found |= {
            "mlp.router.expert_bias": files["mlp.gate.e_score_correction_bias"],
            "mlp.shared_experts.linear_fc1.weight": first,
            "mlp.shared_experts.linear_fc2.weight": second,
        }
    return found
