"""Write the maps from Hugging Face's files of decoders to MaxText's scanned layers.

`python -m spec_tests.map_generators.maxtext_maps` writes one map a family. The recordings in
``spec_tests/golden/maps/maxtext.json`` have what MaxText's tables and hooks make of tiny models.
"""

from collections.abc import Mapping

from shardvar.records import dataclass, field
from spec_tests.map_generators.rules import map_file
from spec_tests.map_generators.transformers_maps import MAPS

Rules = dict[str, str]
"""The sides of rules for a layer ``l``: Hugging Face's, and MaxText's."""

_ENDS = {
    "model.embed_tokens.weight": "token_embedder.embedding",
    "model.norm.weight": "decoder.decoder_norm.scale",
    "lm_head.weight[v i]": "decoder.logits_dense.kernel[i v]",
}
_NORMS = {
    "input_layernorm.weight[i]": "pre_self_attention_layer_norm.scale[i l]",
    "post_attention_layernorm.weight[i]": "post_self_attention_layer_norm.scale[i l]",
}
_OLMO_NORMS = {
    "post_attention_layernorm.weight[i]": "post_self_attention_layer_norm.scale[i l]",
    "post_feedforward_layernorm.weight[i]": "post_mlp_layer_norm.scale[i l]",
}


_INPUTS = (("q", "query", "n"), ("k", "key", "g"), ("v", "value", "g"))
"""Of each input of attention: its name at Hugging Face and in MaxText, and the index of its heads."""


def _attention(name: str) -> Rules:
    found = {
        f"self_attn.{short}_proj.weight[({n} d) i]": f"{name}.{word}.kernel[i l {n} d]"
        for short, word, n in _INPUTS
    }
    return {**found, "self_attn.o_proj.weight[o (n d)]": f"{name}.out.kernel[n l d o]"}


def _biases(name: str) -> Rules:
    return {
        f"self_attn.{short}_proj.bias[({n} d)]": f"{name}.{word}.bias[{n} l d]"
        for short, word, n in _INPUTS
    }


def _qk_norms(name: str) -> Rules:
    return {"self_attn.{s:q|k}_norm.weight[i]": f"{name}.{{s:query|key}}_norm.scale[i l]"}


def _mlp(source: str, target: str) -> Rules:
    return {
        f"{source}.{{s:gate|up}}_proj.weight[o i]": f"{target}.wi_{{s:0|1}}.kernel[i l o]",
        f"{source}.down_proj.weight[o i]": f"{target}.wo.kernel[i l o]",
    }


def _experts(block: str) -> Rules:
    return {
        "mlp.gate.weight[e i]": f"{block}.gate.kernel[i l e]",
        "mlp.experts.{e}.{s:gate|up}_proj.weight[o i]": f"{block}.wi_{{s:0|1}}[e l i o]",
        "mlp.experts.{e}.down_proj.weight[o i]": f"{block}.wo[e l i o]",
    }


_MLA = {
    **_NORMS,
    "self_attn.q_proj.weight[(n d) i]": "self_attention.query.kernel[i l n d]",
    "self_attn.q_a_proj.weight[o i]": "self_attention.wq_a.kernel[i l o]",
    "self_attn.q_a_layernorm.weight[i]": "self_attention.q_norm.scale[i l]",
    "self_attn.q_b_proj.weight[(n d) i]": "self_attention.wq_b.kernel[i l n d]",
    "self_attn.kv_a_proj_with_mqa.weight[o i]": "self_attention.wkv_a.kernel[i l o]",
    "self_attn.kv_a_layernorm.weight[i]": "self_attention.kv_norm.scale[i l]",
    "self_attn.kv_b_proj.weight[(n d) i]": "self_attention.wkv_b.kernel[i l n d]",
    "self_attn.o_proj.weight[o (n d)]": "self_attention.out.kernel[n l d o]",
}
_MOE = "DeepSeekMoeBlock_0"
_GPT_OSS = {
    **_NORMS,
    **_attention("GptOssAttention"),
    **_biases("GptOssAttention"),
    "self_attn.o_proj.bias[o]": "GptOssAttention.out.bias[o l]",
    "self_attn.sinks[n]": "GptOssAttention.sinks[n l]",
    "mlp.router.weight[e i]": "GptOssMlp.gate.kernel[i l e]",
    "mlp.router.bias[e]": "GptOssMlp.gate.bias[e l]",
    "mlp.experts.gate_up_proj[e i (o s)]": "GptOssMlp.wi_{s:0|1}[e l i o]",
    "mlp.experts.gate_up_proj_bias[e (o s)]": "GptOssMlp.wi_{s:0|1}_bias[e l o]",
    "mlp.experts.down_proj[e i o]": "GptOssMlp.wo[e l i o]",
    "mlp.experts.down_proj_bias[e o]": "GptOssMlp.wo_bias[e l o]",
}
_HEADS = {"n": "config:num_attention_heads", "g": "config:num_key_value_heads"}


@dataclass(frozen=True)
class Family:
    title: str
    """Its name for people."""
    models: tuple[str, ...]
    """The model types of Hugging Face."""
    layers: Mapping[str, Rules]
    """The rules of a layer, by the name of MaxText's layers, with the range of Hugging Face's."""
    sizes: Mapping[str, int | str] = field(default_factory=lambda: _HEADS)
    notes: tuple[str, ...] = ()
    """What its users should know."""


def _cycle(rules: Rules) -> dict[str, Rules]:
    return {"layers.layers_{p}": rules}


_QWEN2 = {**_NORMS, **_attention("self_attention"), **_biases("self_attention")}
_QWEN3 = {**_NORMS, **_qk_norms("self_attention"), **_attention("self_attention")}
_OLMO = {**_OLMO_NORMS, **_qk_norms("attention"), **_attention("attention")}
_CYCLE_NOTE = "Every p-th layer is in one tensor (inhomogeneous_layer_cycle_interval)."
FAMILIES = {
    "qwen2": Family(
        "Qwen2 and Qwen2.5",
        ("qwen2",),
        {"layers": {**_QWEN2, **_mlp("mlp", "mlp")}},
    ),
    "qwen3": Family(
        "Qwen3",
        ("qwen3",),
        {"layers": {**_QWEN3, **_mlp("mlp", "mlp")}},
    ),
    "qwen3-moe": Family(
        "Qwen3-MoE",
        ("qwen3_moe",),
        {"layers": {**_QWEN3, **_experts("moe_block")}},
        notes=("Experts are stacked along axis 0.",),
    ),
    "olmo3": Family(
        "OLMo 3",
        ("olmo3",),
        _cycle({**_OLMO, **_mlp("mlp", "mlp")}),
        {**_HEADS, "p": 4},
        (_CYCLE_NOTE,),
    ),
    "gpt-oss": Family(
        "GPT-OSS",
        ("gpt_oss",),
        _cycle(_GPT_OSS),
        {**_HEADS, "p": 2},
        (_CYCLE_NOTE, "Files of MXFP4 blocks are dequantized first."),
    ),
    "deepseek-v3": Family(
        "DeepSeek-V2, V3 and Kimi K2",
        ("deepseek_v3", "deepseek_v2", "kimi_k2"),
        {
            "dense_layers @ l=0:k": {**_MLA, **_mlp("mlp", "mlp")},
            "moe_layers @ l=k:": {
                **_MLA,
                **_experts(f"{_MOE}.MoeBlock_0"),
                "mlp.gate.e_score_correction_bias[e]": f"{_MOE}.MoeBlock_0.gate.bias[e l]",
                **_mlp("mlp.shared_experts", f"{_MOE}.shared_experts"),
            },
        },
        {"n": "config:num_attention_heads", "k": "config:first_k_dense_replace"},
        (
            "Files of FP8 blocks are dequantized first. The layer of multi-token prediction is not in it.",
        ),
    ),
}


def rules_of(family: Family) -> list[str]:
    """Return the rules of a family's map."""
    top = "params.params."
    rules = [f"{left} -> {top}{right}" for left, right in _ENDS.items()]
    for name, layer in family.layers.items():
        block, at, limits = name.partition(" @ ")
        number = "{(l p)}" if "{p}" in block else "{l}"
        # A rule that takes few layers leaves the others to another rule.
        rules += [
            f"model.layers.{number}.{left}{at}{limits} -> {top}decoder.{block}.{right}"
            for left, right in layer.items()
        ]
    return rules


def text_of(name: str) -> str:
    """Return the file of a map."""
    family = FAMILIES[name]
    return map_file(
        [
            "Generated by spec_tests/map_generators/maxtext_maps.py; do not edit.",
            *family.notes,
            "Layers are scanned: they are stacked along axis 1. Keys are those of the tree in an Orbax folder;",
            "files of NNX have one 'params.' less. Only views: no value changes.",
            "Tried against the tables and hooks of AI-Hypercomputer/maxtext of August 2026,",
            "checkpoint_conversion/utils/param_mapping.py, on tiny models.",
        ],
        f"{family.title} of Hugging Face to MaxText's scanned layers.",
        family.models,
        rules_of(family),
        sizes=family.sizes,
    )


def main() -> None:
    """Write all maps."""
    for name in FAMILIES:
        (MAPS / f"{name}-hf-to-maxtext.toml").write_text(text_of(name), encoding="utf-8")


if __name__ == "__main__":
    main()
