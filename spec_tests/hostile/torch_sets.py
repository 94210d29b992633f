"""Hostile sets of files that PyTorch's programs write and that are joined: Meta's Llama,
Universal Checkpoints of DeepSpeed, and torch_checkpointing."""

from spec_tests.hostile.case import Evidence, Files
from spec_tests.hostile.torch import (
    VALUES,
    archive,
    mapping,
    number,
    pair,
    tensor,
    text,
    whole_pickle,
)

RECORD = ("data/0", VALUES)
EXPERTS_OUT = "layers.0.feed_forward.experts.moe_w_out_eF_D"


def llama(*ranks: bytes, params: bytes | None = None) -> Files:
    """Files of ranks with these pickles."""
    files = {f"consolidated.{n:02}.pth": archive(each, RECORD) for n, each in enumerate(ranks)}
    return files if params is None else {**files, "params.json": params}


MODEL = "mp_rank_00_model_states.pt"


def index(item: bytes, world: int = 1) -> bytes:
    """An index of torch_checkpointing of one item."""
    return whole_pickle(
        mapping(metadata=mapping(ck=item), world_size=number(world), version=text("2.0"))
    )


def item(tensors: bytes, path: str = "ck_0.pt") -> bytes:
    """An item of one rank in one file."""
    kind = mapping(type=text("TorchSerialization"))
    layout = mapping(file_path=text(path), serialization_format=kind)
    layouts = b"}(" + number(0) + layout + b"u"
    return mapping(nested_path_to_metadata=tensors, rank_to_layout_info=layouts)


def held(name: str, data: bytes) -> bytes:
    """How the rank holds a tensor."""
    sharding = mapping(type=text("DTensorShardingMetadata"), data=data)
    group = mapping(sharding_metadata=sharding, ranks=pair(number(0)))
    return b"}(" + text(name) + b"](" + group + b"eu"


def mesh(extent: int, *shape: int, dim: int = 0) -> bytes:
    """A mesh of one axis, which cuts a tensor; its one rank is 0."""
    spec = mapping(mesh_shape=pair(number(extent)), mesh_data=pair(number(0)))
    placement = mapping(type=text("Shard"), dim=number(dim))
    return mapping(
        global_shape=b"](" + b"".join(map(number, shape)) + b"e",
        dtype=text("torch.float32"),
        mesh_spec=spec,
        placements=b"](" + placement + b"e",
    )


def llama_keys(count: int) -> Files:
    """Keys of one tensor on two ranks."""
    keys = {f"layers.{n}.attention.wq.weight": tensor(2, 2) for n in range(count)}
    return llama(mapping(**keys), mapping(**keys))


def llama_experts(count: int) -> Files:
    """Layers of 1,024 experts without elements, each of which is a slice on each of two ranks."""
    keys = {EXPERTS_OUT.replace("0", f"{n}"): tensor(1024, 0) for n in range(count)}
    return llama(mapping(**keys), mapping(**keys), params=b'{"moe_args": {"num_experts": 1024}}')


def universal_parameters(count: int) -> Files:
    """Parameters, each in a folder."""
    names = [f"t{n}" for n in range(count)]
    shapes = {name: pair(number(2), number(2)) for name in names}
    body = archive(mapping(param=tensor(2, 2)), RECORD)
    model = mapping(param_shapes=b"](" + mapping(**shapes) + b"e")
    return {MODEL: archive(model), **{f"zero/{name}/fp32.pt": body for name in names}}


def rankwise_tensors(count: int) -> Files:
    """Tensors of the index, all of one file."""
    names = [f"t{n}" for n in range(count)]
    tensors = b"}" + b"".join(held(f'["{name}"]', mesh(1, 2, 2))[1:-1] + b"u" for name in names)
    body = archive(mapping(**dict.fromkeys(names, tensor(2, 2))), RECORD)
    return {"metadata.pkl": index(item(tensors)), "ck_0.pt": body}


EVIDENCE = {
    "torch": Evidence("torch_dcp/base/ckpt", "torch_"),
    "pt": Evidence("torch_pt/module_state_dict/x.pt", "torch_", file="ck.pt"),
}
