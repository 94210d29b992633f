"""The smallest random model of a family of transformers that still shows all its names.

The configuration of a family is its default one with small numbers. Heads have eight dimensions,
there are eleven experts or more, and sizes differ, so that a wrong order shows.
"""

import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

NUMBERS = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim"), 32),
    **dict.fromkeys(("projection_dim", "out_hidden_size", "image_size"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 40),
    **dict.fromkeys(("d_ff", "ffn_hidden_size", "mlp_dim"), 40),
    **dict.fromkeys(("moe_intermediate_size", "expert_intermediate_size"), 24),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "depth"), 4),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "index_n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts"), 11),
    **dict.fromkeys(("n_routed_experts", "moe_num_experts"), 12),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "patch_size"), 8),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "n_group"), 2),
    **dict.fromkeys(("linear_num_key_heads", "n_shared_experts"), 2),
    **dict.fromkeys(("topk_group", "first_k_dense_replace"), 1),
    "vocab_size": 99,
    "shared_expert_intermediate_size": 28,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_head_dim": 16,
    "index_head_dim": 16,
    "num_channels": 3,
    "max_position_embeddings": 64,
    "num_mel_bins": 8,
    "linear_num_value_heads": 4,
}
"""The number that replaces a larger one of the same name."""
SETTINGS: dict[str, dict[str, Any]] = {
    "dots1": {"n_routed_experts": 12, "n_shared_experts": 2, "num_experts_per_tok": 2},
    "esm": {"vocab_size": 99},
    "hunyuan_v1_moe": {"head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
}
"""What the default configurations of some families lack."""


def shrink(config: Any) -> None:
    """Replace the numbers of a configuration, and of those inside it, by small ones."""
    from transformers import PreTrainedConfig

    for name, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            shrink(value)
        elif name in NUMBERS and type(value) is int and (value > NUMBERS[name] or "head" in name):
            setattr(config, name, NUMBERS[name])
    for name in ("layer_types", "mlp_layer_types"):
        types = getattr(config, name, None)
        if isinstance(types, list):
            kinds = [*dict.fromkeys(types), *types]
            # Of some families it is computed from other settings.
            with suppress(AttributeError):
                setattr(config, name, kinds[: getattr(config, "num_hidden_layers", 4)])
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, 0)


def model_of(family: str, variant: Mapping[str, Any], device: str) -> Any:
    """Return a tiny model of a family: the one that generates, if there is one."""
    import torch
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto as auto

    of_config = CONFIG_MAPPING[family]
    config = of_config()
    shrink(config)
    for name, value in SETTINGS.get(family, {}).items():
        setattr(config, name, value)
    for name, value in variant.items():
        if not hasattr(config, name):
            raise LookupError(f"{family} has no {name}")
        setattr(config, name, value)
    for table in (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        auto.MODEL_FOR_MASKED_LM_MAPPING,
        auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
        auto.MODEL_FOR_OBJECT_DETECTION_MAPPING,
        auto.MODEL_FOR_PRETRAINING_MAPPING,
        auto.MODEL_MAPPING,
    ):
        try:
            found = table[of_config]
        except (KeyError, ImportError):
            continue
        of_model = found[0] if isinstance(found, list | tuple) else found
        with torch.device(device), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(17)
            return of_model(config).eval()
    raise LookupError(f"transformers has no model for {family}")


def num_elements(model: Any) -> int:
    """Return the number of a model's parameters."""
    return sum(each.numel() for each in model.parameters())


def conversions(model: Any) -> list[Any]:
    """Return what transformers does between a model's files and its memory."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import PrefixChange

    found = get_model_conversion_mapping(model, add_legacy=False)
    # Of a model that was not loaded, save_pretrained leaves these out.
    return [each for each in found if not isinstance(each, PrefixChange)]
