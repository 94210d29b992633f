"""Small random checkpoints of model families as Hugging Face names them, of which all sizes differ.

A head has 8 elements or more, because with 4 rotary halves and pairs are in one order.
"""

from functools import partial
from typing import Any

import numpy as np

from spec_tests.helpers.megatron_checkpoints import (
    EXPERTS,
    GROUPS,
    HEAD,
    HEADS,
    LAYERS,
    VOCABULARY,
    WIDTH,
    hugging_face,
)

Arrays = dict[str, np.ndarray[Any, Any]]

D, H, G, h, F, V, L, E = 48, HEADS, GROUPS, HEAD, WIDTH, VOCABULARY, LAYERS, EXPERTS
"""Hidden size, heads, key/value heads, size of a head, width, vocabulary, layers, experts."""
CONFIG = {
    "hidden_size": D,
    "num_attention_heads": H,
    "num_key_value_heads": G,
    "num_hidden_layers": L,
}

llama, qwen3, qwen3_moe, mixtral, gemma3 = (
    partial(hugging_face, family, hidden=D)
    for family in ("llama", "qwen3", "qwen3-moe", "mixtral", "gemma3")
)


def _arrays(
    ends: dict[str, tuple[int, ...]], prefix: str, each: dict[str, tuple[int, ...]]
) -> Arrays:
    """Return the tensors outside of layers, and those of each layer below a prefix."""
    layers = {f"{prefix}.{n}.{name}": shape for n in range(L) for name, shape in each.items()}
    rng = np.random.default_rng(0)
    shapes = ends | layers
    return {key: rng.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}


def _encoder_layer(attention: str) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a layer of BERT, of which the attention has another name in ViT."""
    inputs = [f"attention.{attention}.{name}" for name in ("query", "key", "value")]
    return {
        **{f"{name}.weight": (D, D) for name in inputs},
        **{f"{name}.bias": (D,) for name in inputs},
        "attention.output.dense.weight": (D, D),
        "intermediate.dense.weight": (F, D),
        "output.dense.weight": (D, F),
    }


def gpt2() -> Arrays:
    ends: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (V, D),
        "transformer.wpe.weight": (13, D),
        "transformer.ln_f.weight": (D,),
        "transformer.ln_f.bias": (D,),
    }
    each: dict[str, tuple[int, ...]] = {}
    for name, into, out in (
        ("attn.c_attn", D, 3 * D),
        ("attn.c_proj", D, D),
        ("mlp.c_fc", D, F),
        ("mlp.c_proj", F, D),
    ):
        each |= {f"{name}.weight": (into, out), f"{name}.bias": (out,)}
    for name in ("ln_1", "ln_2"):
        each |= {f"{name}.weight": (D,), f"{name}.bias": (D,)}
    return _arrays(ends, "transformer.h", each)


def bert() -> Arrays:
    ends = {
        "bert.embeddings.word_embeddings.weight": (V, D),
        "bert.pooler.dense.weight": (D, D),
        "cls.predictions.bias": (V,),
    }
    return _arrays(ends, "bert.encoder.layer", _encoder_layer("self"))


def vit() -> Arrays:
    ends = {
        "vit.embeddings.cls_token": (1, 1, D),
        "vit.layernorm.weight": (D,),
        "classifier.weight": (V, D),
    }
    each = {**_encoder_layer("attention"), "layernorm_before.weight": (D,)}
    return _arrays(ends, "vit.encoder.layer", each)


def gpt_neox() -> Arrays:
    ends = {
        "gpt_neox.embed_in.weight": (V, D),
        "gpt_neox.final_layer_norm.bias": (D,),
        "embed_out.weight": (V, D),
    }
    each = {
        "attention.query_key_value.weight": (3 * D, D),
        "attention.query_key_value.bias": (3 * D,),
        "attention.dense.weight": (D, D),
        "mlp.dense_h_to_4h.bias": (F,),
        "input_layernorm.weight": (D,),
    }
    return _arrays(ends, "gpt_neox.layers", each)
