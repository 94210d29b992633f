"""Small random checkpoints of model families as Hugging Face names them, of which all sizes differ.

A head has 8 elements or more, because with 4 rotary halves and pairs are in one order.
"""

from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]

D, H, G, h, F, V, L, E = 48, 6, 2, 8, 20, 37, 3, 11
"""Hidden size, heads, key/value heads, size of a head, width, vocabulary, layers, experts."""
NOPE = 10
"""Rows of a head's key without a position, of DeepSeek-V3; its value has 8."""
CONFIG = {
    "qk_nope_head_dim": NOPE,
    "hidden_size": D,
    "num_attention_heads": H,
    "num_key_value_heads": G,
    "num_hidden_layers": L,
}


def _arrays(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {key: rng.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}


def _decoder(mlp: dict[str, tuple[int, ...]], more: dict[str, tuple[int, ...]]) -> Arrays:
    """A decoder: attention with grouped queries, an MLP and ``more`` in each layer."""
    layer = {
        "input_layernorm.weight": (D,),
        "post_attention_layernorm.weight": (D,),
        "self_attn.q_proj.weight": (H * h, D),
        "self_attn.k_proj.weight": (G * h, D),
        "self_attn.v_proj.weight": (G * h, D),
        "self_attn.o_proj.weight": (D, H * h),
        **mlp,
        **more,
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (V, D),
        "model.norm.weight": (D,),
        "lm_head.weight": (V, D),
    }
    for number in range(L):
        shapes |= {f"model.layers.{number}.{key}": shape for key, shape in layer.items()}
    return _arrays(shapes)


_MLP: dict[str, tuple[int, ...]] = {
    "mlp.gate_proj.weight": (F, D),
    "mlp.up_proj.weight": (F, D),
    "mlp.down_proj.weight": (D, F),
}
_NORMS: dict[str, tuple[int, ...]] = {
    "self_attn.q_norm.weight": (h,),
    "self_attn.k_norm.weight": (h,),
}


def _experts(prefix: str, names: str) -> dict[str, tuple[int, ...]]:
    gate, up, down = names.split()
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}.gate.weight": (E, D)}
    for number in range(E):
        shapes |= {
            f"{prefix}.experts.{number}.{gate}.weight": (F, D),
            f"{prefix}.experts.{number}.{up}.weight": (F, D),
            f"{prefix}.experts.{number}.{down}.weight": (D, F),
        }
    return shapes


def llama() -> Arrays:
    return _decoder(_MLP, {})


def qwen3() -> Arrays:
    return _decoder(_MLP, _NORMS)


def qwen3_moe() -> Arrays:
    return _decoder(_experts("mlp", "gate_proj up_proj down_proj"), _NORMS)


def mixtral() -> Arrays:
    return _decoder(_experts("block_sparse_moe", "w1 w3 w2"), {})


def gemma3() -> Arrays:
    names = ("pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight")
    found = _decoder(_MLP, {**_NORMS, **dict.fromkeys(names, (D,))})
    del found["lm_head.weight"]
    return found


def gpt2() -> Arrays:
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (V, D),
        "transformer.wpe.weight": (13, D),
        "transformer.ln_f.weight": (D,),
        "transformer.ln_f.bias": (D,),
    }
    for number in range(L):
        at = f"transformer.h.{number}."
        for name, into, out in (
            ("attn.c_attn", D, 3 * D),
            ("attn.c_proj", D, D),
            ("mlp.c_fc", D, F),
            ("mlp.c_proj", F, D),
        ):
            shapes |= {f"{at}{name}.weight": (into, out), f"{at}{name}.bias": (out,)}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"{at}{name}.weight": (D,), f"{at}{name}.bias": (D,)}
    return _arrays(shapes)


def bert() -> Arrays:
    shapes: dict[str, tuple[int, ...]] = {
        "bert.embeddings.word_embeddings.weight": (V, D),
        "bert.pooler.dense.weight": (D, D),
        "cls.predictions.bias": (V,),
    }
    for number in range(L):
        at = f"bert.encoder.layer.{number}."
        for name in ("query", "key", "value"):
            shapes[f"{at}attention.self.{name}.weight"] = (D, D)
            shapes[f"{at}attention.self.{name}.bias"] = (D,)
        shapes[f"{at}attention.output.dense.weight"] = (D, D)
        shapes[f"{at}intermediate.dense.weight"] = (F, D)
        shapes[f"{at}output.dense.weight"] = (D, F)
    return _arrays(shapes)


def vit() -> Arrays:
    shapes: dict[str, tuple[int, ...]] = {
        "vit.embeddings.cls_token": (1, 1, D),
        "vit.layernorm.weight": (D,),
        "classifier.weight": (V, D),
    }
    for number in range(L):
        at = f"vit.encoder.layer.{number}."
        for name in ("query", "key", "value"):
            shapes[f"{at}attention.attention.{name}.weight"] = (D, D)
            shapes[f"{at}attention.attention.{name}.bias"] = (D,)
        shapes[f"{at}attention.output.dense.weight"] = (D, D)
        shapes[f"{at}intermediate.dense.weight"] = (F, D)
        shapes[f"{at}output.dense.weight"] = (D, F)
        shapes[f"{at}layernorm_before.weight"] = (D,)
    return _arrays(shapes)


def gpt_neox() -> Arrays:
    shapes: dict[str, tuple[int, ...]] = {
        "gpt_neox.embed_in.weight": (V, D),
        "gpt_neox.final_layer_norm.bias": (D,),
        "embed_out.weight": (V, D),
    }
    for number in range(L):
        at = f"gpt_neox.layers.{number}."
        shapes[f"{at}attention.query_key_value.weight"] = (3 * D, D)
        shapes[f"{at}attention.query_key_value.bias"] = (3 * D,)
        shapes[f"{at}attention.dense.weight"] = (D, D)
        shapes[f"{at}mlp.dense_h_to_4h.bias"] = (F,)
        shapes[f"{at}input_layernorm.weight"] = (D,)
    return _arrays(shapes)


def deepseek_v3() -> Arrays:
    dense = {"mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"}
    experts = _experts("mlp", "gate_proj up_proj down_proj")
    experts["mlp.gate.e_score_correction_bias"] = (E,)
    for name in ("gate_proj", "up_proj"):
        experts[f"mlp.shared_experts.{name}.weight"] = (2 * F, D)
    experts["mlp.shared_experts.down_proj.weight"] = (D, 2 * F)
    attention: dict[str, tuple[int, ...]] = {
        "self_attn.q_a_proj.weight": (14, D),
        "self_attn.q_a_layernorm.weight": (14,),
        "self_attn.q_b_proj.weight": (H * 12, 14),
        "self_attn.kv_a_proj_with_mqa.weight": (13, D),
        "self_attn.kv_a_layernorm.weight": (9,),
        "self_attn.kv_b_proj.weight": (H * (NOPE + 8), 9),
    }
    found = _decoder(_MLP, {**attention, **experts})
    for key in [*found]:
        number, _, name = key.removeprefix("model.layers.").partition(".")
        is_plain = name in ("self_attn.q_proj.weight", "self_attn.k_proj.weight")
        # One dense layer, then layers of experts.
        is_other = number.isdigit() and (
            name in dense if int(number) else name.startswith("mlp.") and name not in dense
        )
        if is_plain or is_other or name == "self_attn.v_proj.weight":
            del found[key]
    return found
