"""Write the maps between Hugging Face's files and the `torch_dist` checkpoints of Megatron-core.

`python -m spec_tests.map_generators.megatron_maps` writes four maps a family: both directions, for
both ways that Megatron-core stores layers. ``spec_tests/peers/test_megatron_maps_peer.py`` compares
keys and shapes with the models that Megatron-core builds.
"""

import re
from dataclasses import dataclass

from spec_tests.map_generators.rules import map_file
from spec_tests.map_generators.transformers_maps import MAPS

_LAYER = "model.layers.{l}."
_VOCABULARY = {
    "model.embed_tokens.weight": "embedding.word_embeddings.weight",
    "lm_head.weight": "output_layer.weight",
}
_NORMS = [
    ("input_layernorm.weight[i]", "self_attention.linear_qkv.layer_norm_weight[i]"),
    ("post_attention_layernorm.weight[i]", "mlp.linear_fc1.layer_norm_weight[i]"),
]
_MOE_NORMS = [
    ("input_layernorm.weight[i]", "self_attention.linear_qkv.layer_norm_weight[i]"),
    ("post_attention_layernorm.weight[i]", "pre_mlp_layernorm.weight[i]"),
]
_DEEPSEEK_NORMS = [
    ("input_layernorm.weight[i]", "input_layernorm.weight[i]"),
    ("post_attention_layernorm.weight[i] @ l=0:k", "mlp.linear_fc1.layer_norm_weight[i] @ l=0:k"),
    ("post_attention_layernorm.weight[i] @ l=k:", "pre_mlp_layernorm.weight[i] @ l=k:"),
]
_GLM_NORMS = [_NORMS[0], *_DEEPSEEK_NORMS[1:]]
_GEMMA_NORMS = [
    ("input_layernorm.weight[i]", "self_attention.linear_qkv.layer_norm_weight[i]"),
    ("post_attention_layernorm.weight[i]", "self_attention.linear_proj.post_layernorm.weight[i]"),
    ("pre_feedforward_layernorm.weight[i]", "mlp.linear_fc1.layer_norm_weight[i]"),
    ("post_feedforward_layernorm.weight[i]", "mlp.linear_fc2.post_layernorm.weight[i]"),
]
# The rows of each group of heads: r query heads, the key head, the value head.
_ATTENTION = [
    (f"self_attn.{name}_proj.{leaf}[{left}]", f"self_attention.linear_qkv.{leaf}[{right}] @ {at}")
    for leaf, more in (("weight", " i"), ("bias", ""))
    for name, axis, at in (
        ("q", "(g s d)", "s=0:r"),
        ("k", "(g d)", "s=r"),
        ("v", "(g d)", "s=r+1"),
    )
    for left, right in ((axis + more, "(g s d)" + more),)
] + [("self_attn.o_proj.weight[o i]", "self_attention.linear_proj.weight[o i]")]
_QK_NORMS = [
    ("self_attn.{w:q|k}_norm.weight[i]", "self_attention.{w:q|k}_layernorm.weight[i]"),
]
_LATENT = [
    (f"self_attn.{left}.weight[o i]", f"self_attention.{right}.weight[o i]")
    for left, right in (
        ("q_proj", "linear_q_proj"),
        ("q_a_proj", "linear_q_down_proj"),
        ("q_b_proj", "linear_q_up_proj"),
        ("kv_a_proj_with_mqa", "linear_kv_down_proj"),
        ("kv_b_proj", "linear_kv_up_proj"),
        ("o_proj", "linear_proj"),
    )
] + [
    (
        "self_attn.{w:q|kv}_a_layernorm.weight[i]",
        "self_attention.linear_{w:q|kv}_up_proj.layer_norm_weight[i]",
    ),
]
_DENSE = [
    ("mlp.{w:gate|up}_proj.weight[o i]", "mlp.linear_fc1.weight[(w o) i]"),
    ("mlp.down_proj.weight[o i]", "mlp.linear_fc2.weight[o i]"),
]


def _experts(router: str, gated: str, down: str) -> list[tuple[str, str]]:
    return [
        (f"{router}[e i]", "mlp.router.weight[e i]"),
        (f"{gated}[o i]", "mlp.experts.experts.linear_fc1.weight[e (w o) i]"),
        (f"{down}[o i]", "mlp.experts.experts.linear_fc2.weight[e o i]"),
    ]


_MIXTRAL = _experts(
    "block_sparse_moe.gate.weight",
    "block_sparse_moe.experts.{e}.w{w:1|3}.weight",
    "block_sparse_moe.experts.{e}.w2.weight",
)
_MOE = _experts(
    "mlp.gate.weight",
    "mlp.experts.{e}.{w:gate|up}_proj.weight",
    "mlp.experts.{e}.down_proj.weight",
)
_SHARED = [
    ("mlp.gate.e_score_correction_bias[e]", "mlp.router.expert_bias[e]"),
    (
        "mlp.shared_experts.{w:gate|up}_proj.weight[o i]",
        "mlp.shared_experts.linear_fc1.weight[(w o) i]",
    ),
    ("mlp.shared_experts.down_proj.weight[o i]", "mlp.shared_experts.linear_fc2.weight[o i]"),
]
# Rows of gate and up alternate.
_GPT_OSS = [
    ("self_attn.o_proj.bias[o]", "self_attention.linear_proj.bias[o]"),
    ("self_attn.sinks[n]", "self_attention.core_attention.softmax_offset[n]"),
    ("mlp.router.weight[e i]", "mlp.router.weight[e i]"),
    ("mlp.router.bias[e]", "mlp.router.bias[e]"),
    ("mlp.experts.gate_up_proj[e i (o w)]", "mlp.experts.experts.linear_fc1.weight[e (w o) i]"),
    ("mlp.experts.gate_up_proj_bias[e (o w)]", "mlp.experts.experts.linear_fc1.bias[e (w o)]"),
    ("mlp.experts.down_proj[e i o]", "mlp.experts.experts.linear_fc2.weight[e o i]"),
    ("mlp.experts.down_proj_bias[e o]", "mlp.experts.experts.linear_fc2.bias[e o]"),
]
_HEADS: dict[str, int | str] = {
    "g": "config:num_key_value_heads",
    "r": "config:num_attention_heads / config:num_key_value_heads",
    "s": "r + 2",
}


@dataclass(frozen=True)
class Family:
    title: str
    """Its name for people."""
    layers: list[tuple[str, str]]
    """[rules] the sides for one layer: Hugging Face's, and Megatron-core's."""
    sizes: dict[str, int | str]
    """The sizes that its rules need, besides those of the vocabulary."""
    notes: tuple[str, ...] = ()
    """What its users should know."""


MODELS = {
    "llama": ["llama", "mistral", "qwen2"],
    "gemma3": ["gemma3_text"],
    "deepseek-v3": ["deepseek_v3", "kimi_k2"],
}
"""The model types of Hugging Face whose names are others than the family's."""
_NORM_NOTE = (
    "The norm before the experts has the name that Transformer Engine gives it, as in training.",
)
FAMILIES = {
    "llama": Family("Llama 2 and 3, Mistral", [*_NORMS, *_ATTENTION, *_DENSE], _HEADS),
    "qwen3": Family("Qwen3", [*_NORMS, *_ATTENTION, *_QK_NORMS, *_DENSE], _HEADS),
    "qwen3-moe": Family(
        "Qwen3-MoE", [*_MOE_NORMS, *_ATTENTION, *_QK_NORMS, *_MOE], _HEADS, _NORM_NOTE
    ),
    "mixtral": Family("Mixtral", [*_MOE_NORMS, *_ATTENTION, *_MIXTRAL], _HEADS, _NORM_NOTE),
    "gemma3": Family(
        "Gemma 3 (text)",
        [*_GEMMA_NORMS, *_ATTENTION, *_QK_NORMS, *_DENSE],
        _HEADS,
        (
            "Both store norms as their distance from 1 (layernorm_zero_centered_gamma).",
            "The norms after attention and MLP have Megatron-Bridge's names.",
        ),
    ),
    "gpt-oss": Family(
        "GPT-OSS",
        [*_MOE_NORMS, *_ATTENTION, *_GPT_OSS],
        {**_HEADS, "w": 2},
        (*_NORM_NOTE, "Weights in MXFP4 are dequantized first."),
    ),
    "glm4-moe": Family(
        "GLM-4.5 to 4.7",
        [*_GLM_NORMS, *_ATTENTION, *_QK_NORMS, *_DENSE, *_MOE, *_SHARED],
        {**_HEADS, "k": "config:first_k_dense_replace"},
        (
            "The layers of multi-token prediction are not in it. Megatron-core stores a model with",
            "dense layers layer by layer, so that only models without them have stacked layers.",
        ),
    ),
    "deepseek-v3": Family(
        "DeepSeek-V3, Kimi K2",
        [*_DEEPSEEK_NORMS, *_LATENT, *_DENSE, *_MOE, *_SHARED],
        {"k": "config:first_k_dense_replace"},
        (
            "Weights in FP8 are dequantized first. The layers of multi-token prediction are not",
            "in it. Megatron-core stores a model with dense layers layer by layer, so that",
            "only models without them have stacked layers.",
        ),
    ),
}


def _stacked(side: str) -> str:
    """A side of one layer with the layers as the first axis."""
    return side.replace("[", "[l ", 1)


def rules_of(family: Family, is_stacked: bool, to_megatron: bool) -> list[str]:
    """Return the rules of one of a family's four maps."""
    rules = []
    for left, right in _VOCABULARY.items():
        if to_megatron:
            rules.append(f"{left}[v i] -> {right}[v i] @ v=0:vocab else 0")
        else:
            rules.append(f"{right}[v i] @ v=0:vocab -> {left}[v i]")
            rules.append(f"{right}[v i] @ v=vocab: -> nothing")
    for left, right in [
        ("model.norm.weight", "decoder.final_layernorm.weight"),
        *_layer_rules(family, is_stacked, to_megatron),
    ]:
        rules.append(f"{left} -> {right}" if to_megatron else f"{right} -> {left}")
    if to_megatron:
        return [*rules, "model.layers.{l}.self_attn.rotary_emb.inv_freq -> nothing"]
    return [
        *rules,
        "optimizer.state.{x:**} -> nothing",
        "{x:**}/shard_{i}_{n} -> nothing",
        "{x:**}/shard_{i}.{j}_{n}.{m} -> nothing",
    ]


def _layer_rules(family: Family, is_stacked: bool, to_megatron: bool) -> list[tuple[str, str]]:
    found = []
    for left, right in family.layers:
        if is_stacked and "l=0:k" in right:
            continue  # Stacked layers are all alike: none of them is dense.
        if is_stacked and "k" in family.sizes and (left, right) in _DENSE:
            continue
        if is_stacked or not to_megatron:
            left, right = (re.sub(r" @ l=(0:k|k:)$", "", side) for side in (left, right))
        key = f"decoder.layers.{_stacked(right)}" if is_stacked else f"decoder.layers.{{l}}.{right}"
        found.append((_LAYER + left, key))
    return found


def text_of(name: str, is_stacked: bool, to_megatron: bool) -> str:
    """Return the file of a map."""
    family = FAMILIES[name]
    where = "with all layers in one tensor" if is_stacked else "layer by layer"
    sides = ["Hugging Face files", f"Megatron-core's torch_dist ({where})"]
    if not to_megatron:
        sides.reverse()
    rules = rules_of(family, is_stacked, to_megatron)
    sizes = {"vocab": "config:vocab_size"}
    if to_megatron:
        sizes["v"] = "vocab"
    text = " ".join(rules)
    sizes |= {n: s for n, s in family.sizes.items() if n != "k" or "l=k" in text}
    vocabulary = (
        "Megatron-core pads the vocabulary: give the rows that it has, --size v=32128."
        if to_megatron
        else "config.json of the Hugging Face model must lie in the folder of the source."
    )
    return map_file(
        [
            "Generated by spec_tests/map_generators/megatron_maps.py; do not edit.",
            "",
            "Facts: names and shapes of megatron-core 0.16.1, of models that it builds; the rows of",
            "linear_qkv are r query heads, a key head and a value head for each group (attention.py);",
            "linear_fc1 is the gate, then the up projection (mlp.py).",
            vocabulary,
            *family.notes,
        ],
        f"{family.title}: from {sides[0]} to {sides[1]}.",
        MODELS.get(name, [name.replace("-", "_")]),
        rules,
        sizes=sizes,
    )


def main() -> None:
    """Write all maps."""
    for name in FAMILIES:
        for is_stacked in (True, False):
            other = "megatron" if is_stacked else "megatron-layers"
            for to_megatron in (True, False):
                ends = ("hf", other) if to_megatron else (other, "hf")
                path = MAPS / f"{name}-{ends[0]}-to-{ends[1]}.toml"
                path.write_text(text_of(name, is_stacked, to_megatron), encoding="utf-8")


if __name__ == "__main__":
    main()
