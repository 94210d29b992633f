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


def _arrays(shapes: dict[str, tuple[int, ...]]) -> Arrays:
    rng = np.random.default_rng(0)
    return {key: rng.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}


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
