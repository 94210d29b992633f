"""What megatron-core saves of a small model on each rank: it records, and checks, the models of
``spec_tests/golden/layouts/megatron.json``.

A rank is a process group without others, so one process is all of them, one after the other. The
core of attention is left out: it has no parameters, and the one that needs no CUDA refuses context
parallelism. ``python -m spec_tests.helpers.megatron_models`` records the meshes of `MESHES` that the
table lacks.
"""

import json
import warnings
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import count
from typing import Any

from shardvar.layout.meshes.layout import Mesh
from spec_tests.helpers.layout_tables import Case
from spec_tests.helpers.paths import GOLDEN

TABLE = GOLDEN / "layouts" / "megatron.json"

AXES = ("pp", "dp", "cp", "tp")
EXPERT_AXES = ("pp", "expert_dp", "ep", "expert_tp")

_DENSE = {"hidden": 8, "heads": 4, "groups": 2, "ffn": 16, "vocab": 96, "layers": 4, "gated": True}
_EXPERTS = _DENSE | {"layers": 2, "experts": 4}

MESHES: list[tuple[tuple[int, ...], tuple[int, ...] | None]] = [
    ((1, 1, 2, 1), None),
    ((1, 3, 2, 1), None),
    ((1, 2, 3, 1), None),
    ((2, 1, 2, 2), None),
    ((1, 2, 2, 2), None),
    ((1, 2, 2, 1), (1, 2, 2, 1)),
    ((1, 1, 2, 2), (1, 1, 4, 1)),
    ((2, 1, 2, 2), (2, 1, 2, 2)),
]
"""Meshes with context parallelism, each with the mesh of the experts, if there are any."""


def models() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the mesh and the model of each group of cases to record."""
    for shape, expert_shape in MESHES:
        mesh: dict[str, Any] = {"axes": list(AXES), "shape": list(shape)}
        if expert_shape:
            mesh |= {"expert_axes": list(EXPERT_AXES), "expert_shape": list(expert_shape)}
        yield mesh, {**_EXPERTS} if expert_shape else {**_DENSE, "experts": None}


def record(mesh: dict[str, Any], model: dict[str, Any]) -> list[Case]:
    """Return the cases of one model on one mesh, without their ids, in the order of its keys."""
    found: dict[str, Case] = {}
    grids = [Mesh(mesh["shape"], mesh["axes"])]
    if "expert_shape" in mesh:
        grids.append(Mesh(mesh["expert_shape"], mesh["expert_axes"]))

    def coordinate_of(rank: int) -> dict[str, int]:
        return {
            name: number
            for grid in grids
            for name, number in zip(grid.axis_names or (), grid.coordinate(rank), strict=True)
        }

    ranks = [
        {"device": rank, "coordinate": coordinate_of(rank), "regions": [], "replica_id": []}
        for rank in range(grids[0].size)
    ]
    for rank in range(len(ranks)):
        for tensor in saved_by(rank, mesh, model):
            case = found.setdefault(tensor.key, _case_of(tensor, mesh, model, ranks))
            offset, shape = list(tensor.global_offset), list(tensor.local_shape)
            device = case["devices"][rank]
            device["regions"].append(
                {"offset": offset, "shape": [1] * tensor.prepend_axis_num + shape}
            )
            device["replica_id"].append(list(tensor.replica_id))
    for case in found.values():
        groups: dict[str, list[int]] = {}
        for device in case["devices"]:
            if device["regions"]:
                groups.setdefault(json.dumps(device["regions"]), []).append(device["device"])
        case["replicas"] = list(groups.values())
    return list(found.values())


def _case_of(
    tensor: Any, mesh: dict[str, Any], model: dict[str, Any], ranks: Sequence[dict[str, Any]]
) -> Case:
    return {
        "group": "model",
        "key": tensor.key,
        "shape": list(tensor.global_shape),
        "mesh": mesh,
        "layout": model,
        "axis_fragmentations": list(tensor.axis_fragmentations),
        "prepend_axis_num": tensor.prepend_axis_num,
        "allow_shape_mismatch": tensor.allow_shape_mismatch,
        "devices": deepcopy(ranks),
    }


def saved_by(rank: int, mesh: dict[str, Any], model: dict[str, Any]) -> list[Any]:
    """Return the ShardedTensors that a rank saves, but for norms inside of layers and biases of
    norms, which are whole everywhere."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
    from torch.testing._internal.distributed.fake_pg import FakeStore

    pp, dp, cp, tp = mesh["shape"]
    _, _, ep, expert_tp = mesh.get("expert_shape", (pp, dp, 1, tp))
    sizes = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "context_parallel_size": cp,
        "expert_model_parallel_size": ep,
        "expert_tensor_parallel_size": expert_tp,
    }
    torch.distributed.init_process_group(
        "fake", rank=rank, world_size=pp * dp * cp * tp, store=FakeStore()
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It warns of accelerators that are not here.
            parallel_state.initialize_model_parallel(**sizes, create_gloo_process_groups=False)
            state = _model(model, sizes).sharded_state_dict()
            apply_factories(state)
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
    tensors = [each for each in nested_values(state) if isinstance(each, ShardedTensor)]
    return [
        each for each in tensors if "layer_norm" not in each.key and "norm.bias" not in each.key
    ]


def _model(model: dict[str, Any], sizes: dict[str, int]) -> Any:
    """Return Megatron's model of this rank."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    class NoCore(torch.nn.Module):
        """Stands where the core of attention would."""

        def __init__(self, **_arguments: Any) -> None:
            super().__init__()

    experts = model["experts"]
    config = TransformerConfig(
        num_layers=model["layers"], hidden_size=model["hidden"], ffn_hidden_size=model["ffn"],
        num_attention_heads=model["heads"], num_query_groups=model["groups"],
        gated_linear_unit=model["gated"], num_moe_experts=experts, add_bias_linear=experts is None,
        moe_token_dispatcher_type="allgather", pipeline_dtype=torch.float32,
        use_cpu_initialization=True, **sizes,
    )  # fmt: skip
    spec = get_gpt_layer_local_spec(num_experts=experts, moe_grouped_gemm=False)
    spec.submodules.self_attention.submodules.core_attention = NoCore
    return GPTModel(
        config,
        spec,
        vocab_size=model["vocab"],
        max_sequence_length=16,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
    )


def main() -> None:
    """Append the cases of the meshes that the table lacks."""
    with TABLE.open(encoding="utf-8") as file:
        recorded = json.load(file)
    known = [(case["mesh"], case["layout"]) for case in recorded["cases"] if "mesh" in case]
    new = [
        each
        for mesh, model in models()
        if (mesh, model) not in known
        for each in record(mesh, model)
    ]
    for number, case in zip(count(len(recorded["cases"])), new, strict=False):
        recorded["cases"].append({"id": f"megatron-golden-{number:04}", **case})
    head = {name: value for name, value in recorded.items() if name != "cases"}
    rows = ",\n".join("  " + json.dumps(case, separators=(",", ":")) for case in recorded["cases"])
    text = json.dumps(head, indent=1).removesuffix("\n}")
    TABLE.write_text(f'{text},\n "cases": [\n{rows}\n ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
