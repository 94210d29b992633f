"""Write the maps from Hugging Face's files of decoders to the tensors of llama.cpp.

`python -m spec_tests.map_generators.gguf_maps` writes one map a family. The recordings in
``spec_tests/golden/maps/llama_cpp.json`` have what llama.cpp's converter makes of tiny models.
"""

import json
import re
from collections.abc import Mapping

from shardvar.records import dataclass, field
from spec_tests.map_generators.rules import map_file
from spec_tests.map_generators.transformers_maps import MAPS

_LAYER, _BLOCK = "model.layers.{l}.", "blk.{l}."
Rules = dict[str, str]
"""The sides of rules: Hugging Face's, and llama.cpp's."""

_ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_NORMS = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
}
_POST_NORMS = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
}
_OLMO_NORMS = {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
}
_GLM_NORMS = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_self_attn_layernorm.weight": "post_attention_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "post_mlp_layernorm.weight": "post_ffw_norm.weight",
}
_OUTPUT = {"self_attn.o_proj.{x:*}": "attn_output.{x}"}
_ATTENTION = {"self_attn.{s:q|k|v}_proj.{x:*}": "attn_{s:q|k|v}.{x}", **_OUTPUT}
# llama.cpp has rotary pairs, where Hugging Face has halves.
_PAIRS = {
    "self_attn.q_proj.weight[(n two d) i]": "attn_q.weight[(n d two) i]",
    "self_attn.k_proj.weight[(g two d) i]": "attn_k.weight[(g d two) i]",
    "self_attn.q_proj.bias[(n two d)]": "attn_q.bias[(n d two)]",
    "self_attn.k_proj.bias[(g two d)]": "attn_k.bias[(g d two)]",
    "self_attn.v_proj.{x:*}": "attn_v.{x}",
    **_OUTPUT,
}
_QK_NORMS = {"self_attn.{s:q|k}_norm.weight": "attn_{s:q|k}_norm.weight"}
_LATENT = {
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.q_{s:a|b}_proj.weight": "attn_q_{s:a|b}.weight",
    "self_attn.{s:q|kv}_a_layernorm.weight": "attn_{s:q|kv}_a_norm.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_b_proj.weight[(n d) c] @ d=0:nope": "attn_k_b.weight[n c d]",
    "self_attn.kv_b_proj.weight[(n d) c] @ d=nope:": "attn_v_b.weight[n d c]",
    "self_attn.o_proj.weight": "attn_output.weight",
}
_GATED = "{s:gate|up|down}_proj"
_DENSE = {f"mlp.{_GATED}.{{x:*}}": "ffn_{s:gate|up|down}.{x}"}
_FUSED = {"mlp.{s:gate_up|down}_proj.weight": "ffn_{s:up|down}.weight"}
_EXPERTS = {
    "mlp.gate.weight": "ffn_gate_inp.weight",
    f"mlp.experts.{{e}}.{_GATED}.weight[o i]": "ffn_{s:gate|up|down}_exps.weight[e o i]",
}
_BIAS = {"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"}


def _shared(name: str) -> Rules:
    return {f"{name}.{_GATED}.weight": "ffn_{s:gate|up|down}_shexp.weight"}


_HEADS: dict[str, int | str] = {
    "two": 2,
    "n": "config:num_attention_heads",
    "g": "config:num_key_value_heads",
}
_KIND = "rope_parameters.rope_type|rope_scaling.rope_type|rope_scaling.type"
_ROTARY: dict[str, tuple[list[str], dict[str, int | str]]] = {
    "llama3": (
        [
            "clip((old / (2 * pi * theta ** (index(f) / f)) - low) / (high - low + 1e-30), 0, 1) -> $smooth[f]",
            "1 / ((1 - $smooth[f]) / factor + $smooth[f]) -> rope_freqs.weight[f] as float32",
        ],
        {
            "f": "config:head_dim / 2",
            "theta": "config:rope_parameters.rope_theta|rope_theta",
            **{
                name: f"config:rope_parameters.{entry}|rope_scaling.{entry}"
                for name, entry in {
                    "factor": "factor",
                    "low": "low_freq_factor",
                    "high": "high_freq_factor",
                    "old": "original_max_position_embeddings",
                }.items()
            },
        },
    ),
    "longrope": (
        [f"{kind}(f) -> rope_factors_{kind}.weight[f] as float32" for kind in ("long", "short")],
        {
            kind: f"config:rope_parameters.{kind}_factor|rope_scaling.{kind}_factor"
            for kind in ("long", "short")
        },
    ),
}
"""By the kind of rotary embedding, the rules and the sizes that make its tensors."""
_PAIR_NOTE = (
    "llama.cpp permutes the rows of q and k: pairs for each head, where Hugging Face has halves."
)
_FP8_NOTE = "Files of FP8 blocks are dequantized first."


@dataclass(frozen=True)
class Family:
    about: str
    """What the map converts."""
    models: tuple[str, ...]
    """The model types of Hugging Face, and the architecture of GGUF."""
    module: str
    """The converter's module."""
    layer: Rules
    """The rules of a layer."""
    notes: tuple[str, ...] = ()
    """What its users should know."""
    sizes: Mapping[str, int | str] = field(default_factory=dict)
    plus_one: bool = False
    """True if llama.cpp adds 1 to the norms."""
    rotary: str = ""
    """The kind of rotary embedding whose tensors rules make of the configuration."""
    is_nested: bool = False
    """True if a configuration may have these entries in ``text_config``."""

    def entries(self, spellings: str) -> str:
        names = spellings.split("|")
        nested = [f"text_config.{name}" for name in names] if self.is_nested else []
        return "|".join([*nested, *names])


FAMILIES = {
    "llama": Family(
        "Llama of Hugging Face to the names of llama.cpp, with rotary pairs.",
        ("llama", "mistral", "gguf:llama"),
        "llama",
        {**_NORMS, **_PAIRS, **_DENSE},
        (_PAIR_NOTE, "Blocks of a row stay whole, so the map also moves quantized tensors."),
        _HEADS,
        rotary="llama3",
    ),
    "mixtral": Family(
        "Mixtral of Hugging Face to the names of llama.cpp: rotary pairs, stacked experts.",
        ("mixtral", "gguf:llama"),
        "llama",
        {
            **_NORMS,
            **_PAIRS,
            "block_sparse_moe.gate.weight": "ffn_gate_inp.weight",
            "block_sparse_moe.experts.{e}.{s:w1|w3|w2}.weight[o i]": "ffn_{s:gate|up|down}_exps.weight[e o i]",
        },
        ("w1 is the gate, w3 up, w2 down. Rows of q and k are permuted, as for Llama.",),
        _HEADS,
    ),
    "llama4": Family(
        "Llama 4 (text) of Hugging Face to the names of llama.cpp: experts split in gate and up.",
        ("llama4_text", "llama4", "gguf:llama4"),
        "llama",
        {
            **_NORMS,
            **_ATTENTION,
            f"feed_forward.{_GATED}.weight": "ffn_{s:gate|up|down}.weight",
            "feed_forward.router.weight": "ffn_gate_inp.weight",
            "feed_forward.experts.gate_up_proj[e i (s o)]": "ffn_{s:gate|up}_exps.weight[e o i]",
            "feed_forward.experts.down_proj[e i o]": "ffn_down_exps.weight[e o i]",
            **_shared("feed_forward.shared_expert"),
        },
        (
            "Rotary components are stored alike. Of a model that also sees, the map takes the text:",
            "give --filter 'language_model.*' and --strip-prefix language_model.",
        ),
        rotary="llama3",
        is_nested=True,
    ),
    "qwen2": Family(
        "Qwen2 and Qwen2.5 of Hugging Face to the names of llama.cpp.",
        ("qwen2", "gguf:qwen2"),
        "qwen",
        {**_NORMS, **_ATTENTION, **_DENSE},
        ("Only names change: llama.cpp does not permute the rows of Qwen.",),
    ),
    "qwen2-moe": Family(
        "Qwen2-MoE of Hugging Face to the names of llama.cpp: stacked experts.",
        ("qwen2_moe", "gguf:qwen2moe"),
        "qwen",
        {
            **_NORMS,
            **_ATTENTION,
            **_EXPERTS,
            **_shared("mlp.shared_expert"),
            "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
        },
        ("Experts are stacked on axis 0.",),
    ),
    "qwen3": Family(
        "Qwen3 of Hugging Face to the names of llama.cpp.",
        ("qwen3", "gguf:qwen3"),
        "qwen",
        {**_NORMS, **_ATTENTION, **_QK_NORMS, **_DENSE},
        ("Only names change: llama.cpp does not permute the rows of Qwen.",),
    ),
    "qwen3-moe": Family(
        "Qwen3-MoE of Hugging Face to the names of llama.cpp: stacked experts.",
        ("qwen3_moe", "gguf:qwen3moe"),
        "qwen",
        {**_NORMS, **_ATTENTION, **_QK_NORMS, **_EXPERTS},
        ("Experts are stacked on axis 0.",),
    ),
    "phi3": Family(
        "Phi-3 and Phi-4 of Hugging Face to the names of llama.cpp.",
        ("phi3", "gguf:phi3"),
        "phi",
        {**_NORMS, "self_attn.qkv_proj.weight": "attn_qkv.weight", **_OUTPUT, **_FUSED},
        (
            "Only names change: queries, keys and values are one tensor in both, and gate and up another.",
        ),
        rotary="longrope",
    ),
    "gpt-oss": Family(
        "GPT-OSS of Hugging Face to the names of llama.cpp: experts split in gate and up.",
        ("gpt_oss", "gguf:gpt-oss"),
        "gpt_oss",
        {
            **_POST_NORMS,
            **_ATTENTION,
            "self_attn.sinks": "attn_sinks.weight",
            "mlp.router.{x:*}": "ffn_gate_inp.{x}",
            "mlp.experts.gate_up_proj[e i (o s)]": "ffn_{s:gate|up}_exps.weight[e o i]",
            "mlp.experts.gate_up_proj_bias[e (o s)]": "ffn_{s:gate|up}_exps.bias[e o]",
            "mlp.experts.down_proj[e i o]": "ffn_down_exps.weight[e o i]",
            "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
        },
        ("Rows of gate and up alternate. Files of MXFP4 blocks are dequantized first.",),
    ),
    "glm4": Family(
        "GLM-4 and GLM-Z1 of 0414 of Hugging Face to the names of llama.cpp.",
        ("glm4", "gguf:glm4"),
        "glm",
        {**_GLM_NORMS, **_ATTENTION, **_FUSED},
        ("Only names change.",),
    ),
    "glm4-moe": Family(
        "GLM-4.5 to 4.7 of Hugging Face to the names of llama.cpp: stacked experts.",
        ("glm4_moe", "gguf:glm4moe"),
        "glm",
        {
            **_POST_NORMS,
            **_ATTENTION,
            **_QK_NORMS,
            **_DENSE,
            **_EXPERTS,
            **_BIAS,
            **_shared("mlp.shared_experts"),
            "{s:eh_proj|enorm|hnorm|embed_tokens}.weight": "nextn.{s:eh_proj|enorm|hnorm|embed_tokens}.weight",
            "shared_head.{s:head|norm}.weight": "nextn.shared_head_{s:head|norm}.weight",
        },
        ("Experts are stacked on axis 0. The layer of multi-token prediction is the last block.",),
    ),
    "olmo": Family(
        "OLMo 1 of Hugging Face to the names of llama.cpp, with rotary pairs.",
        ("olmo", "gguf:olmo"),
        "olmo",
        {**_PAIRS, **_DENSE},
        (_PAIR_NOTE, "Its norms have no weights."),
        _HEADS,
    ),
    "olmo2": Family(
        "OLMo 2 and 3 of Hugging Face to the names of llama.cpp.",
        ("olmo2", "olmo3", "gguf:olmo2"),
        "olmo",
        {**_OLMO_NORMS, **_ATTENTION, **_QK_NORMS, **_DENSE},
        ("Only names change.",),
    ),
    "olmoe": Family(
        "OLMoE of Hugging Face to the names of llama.cpp: stacked experts.",
        ("olmoe", "gguf:olmoe"),
        "olmo",
        {**_NORMS, **_ATTENTION, **_QK_NORMS, **_EXPERTS},
        ("Experts are stacked on axis 0.",),
    ),
    "qwen3-next": Family(
        "Qwen3-Next of Hugging Face to the names of llama.cpp: stacked experts, norms plus 1.",
        ("qwen3_next", "gguf:qwen3next"),
        "qwen",
        {
            **_POST_NORMS,
            **_ATTENTION,
            **_QK_NORMS,
            **_EXPERTS,
            **_shared("mlp.shared_expert"),
            "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
            "linear_attn.in_proj_qkvz.weight[(a s d) i] @ s=0": "attn_qkv.weight[(a d) i] @ a=0:k",
            "linear_attn.in_proj_qkvz.weight[(a s d) i] @ s=1": "attn_qkv.weight[(a d) i] @ a=k:2*k",
            "linear_attn.in_proj_qkvz.weight[(b s d) i] @ s=2:v+2": "attn_qkv.weight[(b s d) i] @ b=2*k/v:b",
            "linear_attn.in_proj_qkvz.weight[(c s d) i] @ s=v+2:": "attn_gate.weight[(c s d) i]",
            "linear_attn.A_log": "ssm_a",
            "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
            "linear_attn.conv1d.weight[o 1 i]": "ssm_conv1d.weight[o i]",
            "linear_attn.dt_bias": "ssm_dt.bias",
            "linear_attn.norm.weight": "ssm_norm.weight",
            "linear_attn.out_proj.weight": "ssm_out.weight",
        },
        (
            "Norms are stored around 0 at Hugging Face and around 1 in GGUF, except the norm of linear attention.",
            "in_proj_qkvz has for each head of a key: its query, its key, v values and v gates of d rows.",
            "llama.cpp leaves multi-token prediction out: --rule 'mtp.{x:**} -> nothing'.",
        ),
        {
            "k": "config:linear_num_key_heads",
            "d": "config:linear_key_head_dim",
            "v": "config:linear_num_value_heads * config:linear_value_head_dim / (k * d)",
            "s": "2 * v + 2",
            "a": "(v + 2) * k",
            "b": "2 * k / v + k",
        },
        plus_one=True,
    ),
    "deepseek-v3": Family(
        "DeepSeek-V2, V3 and Kimi K2 of Hugging Face to the names of llama.cpp (deepseek2).",
        ("deepseek_v3", "deepseek_v2", "kimi_k2", "glm4_moe_lite", "gguf:deepseek2"),
        "deepseek",
        {**_NORMS, **_LATENT, **_DENSE, **_EXPERTS, **_BIAS, **_shared("mlp.shared_experts")},
        (
            "kv_b_proj is split: the rows of each head are first those of the key, which llama.cpp transposes,",
            "then the value's. Rotary components are stored alike. " + _FP8_NOTE,
            "Neither this map nor llama.cpp has the layer of multi-token prediction.",
        ),
        {"n": "config:num_attention_heads", "nope": "config:qk_nope_head_dim"},
    ),
}


def rules_of(family: Family) -> list[str]:
    """Return the rules of a family's map."""
    rules = []
    layer = ((_LAYER + left, _BLOCK + right) for left, right in family.layer.items())
    for left, right in [*_ENDS.items(), *layer]:
        if left.endswith("norm.weight") and family.plus_one and "linear_attn" not in left:
            left, right = f"{left} + 1", f"{right} as float32"
        if left.endswith("A_log"):
            left, right = f"-exp({left})", f"{right} as float32"
        rules.append(f"{left} -> {right}")
    if family.rotary:
        hidden = [rule for rule in _ROTARY[family.rotary][0] if "$" in rule.split(" -> ")[1]]
        for rule in _ROTARY[family.rotary][0]:
            switch = (
                "" if rule in hidden else f" if config:{family.entries(_KIND)} = {family.rotary}"
            )
            rules.append(rule + switch)
    return rules


def text_of(name: str) -> str:
    """Return the file of a map."""
    family = FAMILIES[name]
    lacks = ["rope_freqs.weight"] * (family.rotary != "llama3")
    lacks += [f"rope_factors_{k}.weight" for k in ("long", "short") if family.rotary != "longrope"]
    kinds = ["none", "default", "linear", "dynamic", "yarn", *[family.rotary] * bool(family.rotary)]
    of_rotary = _ROTARY[family.rotary][1] if family.rotary else {}
    of_rotary = {
        name: re.sub(r"(?<=config:)\S+", lambda found: family.entries(found[0]), str(size))
        for name, size in of_rotary.items()
    }
    return map_file(
        [
            "Generated by spec_tests/map_generators/gguf_maps.py; do not edit.",
            *family.notes,
            f"Tried against llama.cpp's convert_hf_to_gguf.py of May 2026, conversion/{family.module}.py, on tiny",
            "models: the same names, shapes and bits.",
            "llama.cpp stores norms and other tensors of one axis as float32: cast them with --cast.",
            "A map moves tensors. Writing a whole model also needs GGUF's metadata and tokenizer.",
        ],
        family.about,
        family.models,
        rules_of(family),
        "# Without them, llama.cpp runs such a model and gives other answers. It computes them when it converts.",
        f"lacks = {json.dumps(lacks)}",
        requires={f'"{_KIND}"': kinds},
        sizes={**family.sizes, **of_rotary},
    )


def main() -> None:
    """Write all maps."""
    for name in FAMILIES:
        (MAPS / f"{name}-hf-to-gguf.toml").write_text(text_of(name), encoding="utf-8")


if __name__ == "__main__":
    main()
