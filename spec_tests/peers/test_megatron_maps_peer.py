"""The shipped maps to Megatron-core make the keys and the shapes of models that it builds itself.

Its models are built on the CPU, without Transformer Engine. Their local modules give a few norms
other names, which `local` has. Values are tested in ``maps/test_shipped_megatron.py``.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from shardvar.maps.map import Map
from spec_tests.helpers import megatron_checkpoints as tiny
from spec_tests.helpers.map_arrays import map_arrays

SHAPE = {
    "num_layers": tiny.LAYERS,
    "hidden_size": tiny.HIDDEN,
    "ffn_hidden_size": tiny.WIDTH,
    "num_attention_heads": tiny.HEADS,
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "normalization": "RMSNorm",
    "use_cpu_initialization": True,
}
GROUPED = {"num_query_groups": tiny.GROUPS, "kv_channels": tiny.HEAD}
EXPERTS = {
    "num_moe_experts": tiny.EXPERTS,
    "moe_ffn_hidden_size": tiny.EXPERT_WIDTH,
    "moe_token_dispatcher_type": "allgather",
}
SHARED = {
    "moe_layer_freq": [0, 1, 1],
    "moe_shared_expert_intermediate_size": tiny.SHARED_WIDTH,
    "moe_router_enable_expert_bias": True,
    "moe_router_score_function": "sigmoid",
    "qk_layernorm": True,
}
LATENT = {
    **SHARED,
    "multi_latent_attention": True,
    "q_lora_rank": tiny.LATENT_Q,
    "kv_lora_rank": tiny.LATENT_KV,
    "qk_head_dim": tiny.NOPE,
    "qk_pos_emb_head_dim": tiny.ROPE,
    "v_head_dim": tiny.VALUE,
    "rope_type": "rope",
}


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    """One rank, whose groups need no other one, and no accelerator."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    torch = pytest.importorskip("torch")
    from megatron.core import parallel_state
    from megatron.core.transformer import multi_latent_attention
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_device", lambda: "cpu")
        patch.setattr(multi_latent_attention, "TELinear", type("TELinear", (), {}))
        try:
            parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
            yield
        finally:
            parallel_state.destroy_model_parallel()
            torch.distributed.destroy_process_group()


def stored_by_megatron(family: str, is_stacked: bool) -> dict[str, tuple[int, ...]]:
    """The keys and shapes that Megatron-core stores of its model of a family."""
    import torch
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import (
        MLATransformerConfig,
        TransformerConfig,
    )

    class NoCore(torch.nn.Module):
        """Stands where the core of attention would, which has no parameters."""

        def __init__(self, **_arguments: Any) -> None:
            super().__init__()

    spec: Any
    if family in tiny.DENSE_FIRST:
        config: Any = (
            MLATransformerConfig(**SHAPE, **EXPERTS, **LATENT)
            if family == "deepseek-v3"
            else TransformerConfig(**SHAPE, **GROUPED, **EXPERTS, **SHARED, add_qkv_bias=True)
        )
        spec = specs.get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization="RMSNorm"
        )
        layers = spec.layer_specs
    else:
        experts = EXPERTS if family in ("mixtral", "qwen3-moe", "gpt-oss") else {}
        has_norms = family in ("qwen3", "qwen3-moe", "gemma3")
        sinks = (
            {"add_bias_linear": True, "softmax_type": "learnable"} if family == "gpt-oss" else {}
        )
        config = TransformerConfig(
            **{**SHAPE, **GROUPED, **experts, **sinks}, qk_layernorm=has_norms
        )
        spec = specs.get_gpt_layer_local_spec(
            num_experts=experts.get("num_moe_experts"),
            moe_grouped_gemm=False,
            qk_layernorm=has_norms,
            normalization="RMSNorm",
        )
        layers = [spec]
    for layer in layers if family != "gpt-oss" else ():
        layer.submodules.self_attention.submodules.core_attention = NoCore
    model = GPTModel(
        config,
        spec,
        vocab_size=tiny.PADDED,
        max_sequence_length=16,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=family == "gemma3",
    )
    state = model.sharded_state_dict(metadata={"non_homogeneous_layers": not is_stacked})
    apply_factories(state)
    tensors = [each for each in nested_values(state) if isinstance(each, ShardedTensor)]
    return {each.key: tuple(each.global_shape) for each in tensors}


def local(key: str) -> str:
    """A key with the names of the norms that the local modules have."""
    key = re.sub(r"self_attention\.linear_qkv\.layer_norm_weight", "input_layernorm.weight", key)
    key = re.sub(r"mlp\.linear_fc1\.layer_norm_weight", "pre_mlp_layernorm.weight", key)
    return re.sub(r"linear_(q|kv)_up_proj\.layer_norm_weight", r"\1_layernorm.weight", key)


@pytest.mark.filterwarnings("ignore")  # It warns of accelerators that are not here.
@pytest.mark.parametrize("layout", ["megatron", "megatron-layers"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_map_makes_the_keys_and_shapes_of_a_model(family: str, layout: str) -> None:
    is_stacked = layout == "megatron"
    if family in tiny.DENSE_FIRST and is_stacked:
        pytest.skip("a model with dense layers is stored layer by layer")
    stored = stored_by_megatron(family, is_stacked)
    given = Map.read(f"{family}-hf-to-{layout}")
    sizes = {name: size for name, size in tiny.SIZES.items() if name in given.sizes}
    files = tiny.hugging_face(family, num_dense=1 if family in tiny.DENSE_FIRST else 0)
    made = map_arrays(given.extended(sizes=sizes), files)
    shapes = {local(key): array.shape for key, array in made.items()}
    if family == "gemma3":
        # These two norms are modules of Megatron-Bridge, which Megatron-core does not have.
        shapes = {key: shape for key, shape in shapes.items() if ".post_layernorm." not in key}
    assert shapes == {local(key): shape for key, shape in stored.items()}
