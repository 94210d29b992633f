"""The order in which pages list the tensors of a model."""

import random

import pytest

from shardvar.pictures.words import natural_key
from shardvar.verbs.parameters import reading_key

LAYER = """input_layernorm mlp.gate_proj mlp.up_proj mlp.down_proj post_attention_layernorm self_attn.q_proj
    self_attn.k_proj self_attn.v_proj self_attn.o_proj""".split()
LLAMA = [
    "model.embed_tokens.weight",
    *(f"model.layers.{n}.{name}.weight" for n in (0, 2, 10) for name in LAYER),
    *("model.norm.weight", "lm_head.weight"),
    "optimizer.state.model.embed_tokens.weight.exp_avg",
    "optimizer.state.model.layers.0.mlp.up_proj.weight.exp_avg",
]
NEOX = """gpt_neox.embed_in.weight gpt_neox.layers.0.attention.query_key_value.weight
    gpt_neox.final_layer_norm.weight embed_out.weight""".split()
KERAS = """token_embedding/embeddings block_2/dense/kernel block_10/dense/kernel value_head/kernel
    optimizer/m""".split()
UNET = ["down_blocks.0.w", "down_blocks.1.w", "mid_block.w", "up_blocks.0.w"]


@pytest.mark.parametrize("keys", [LLAMA, NEOX, KERAS, UNET])
def test_a_model_is_listed_as_it_is_read(keys: list[str]) -> None:
    """Embeddings, layers in natural order, norms, heads, and last what is of an optimizer."""
    mixed = random.Random(1).sample(keys, len(keys))
    assert sorted(mixed, key=reading_key) == keys


def test_names_that_no_table_has_are_in_natural_order() -> None:
    """A projection or an embedding is a whole part of a key; what only resembles one is a name like
    others."""
    keys = ["a/w10", "a/w9", "a/up", "a/q", "embedded/x", "header/x", "normal/x", "", "a//b"]
    keys.append("9" * 5000)
    assert sorted(keys, key=reading_key) == sorted(keys, key=natural_key)
