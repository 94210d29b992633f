"""Hostile sets of files that PyTorch's programs write and that are joined: Meta's Llama,
Universal Checkpoints of DeepSpeed, and torch_checkpointing."""

from collections.abc import Iterator

from spec_tests.hostile.case import Case, Evidence, Files
from spec_tests.hostile.torch import (
    RUN,
    VALUES,
    archive,
    index_cases,
    mapping,
    number,
    pair,
    rank_cases,
    saved_cases,
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


def llama_cases() -> Iterator[Case]:
    def case(name: str, error: str, why: str, files: Files) -> Case:
        return Case(f"torch_llama_{name}", "consolidated", error, why, files)

    part = mapping(**{"output.weight": tensor(2, 2)})
    yield case(
        "lost",
        "MissingFile",
        "A file has the number 9999: the names of all ranks before it are made, or one rank is taken "
        "for the whole.",
        {**llama(part), "consolidated.9999.pth": archive(part, RECORD)},
    )
    width = mapping(**{"layers.0.attention.wo.weight": tensor(2, 2)})
    yield case(
        "heads",
        "MissingFile",
        "The model has 2^30 heads, and so 2^30 ranks: each of their files is looked for.",
        llama(width, params=b'{"n_heads": 1073741824, "head_dim": 2}'),
    )
    experts = mapping(**{EXPERTS_OUT: tensor(2**40, 0)})
    yield case(
        "experts",
        "UnsupportedError",
        "The model has 2^40 experts of no elements: a slice is made of each.",
        llama(experts, experts, params=b'{"moe_args": {"num_experts": 1099511627776}}'),
    )
    yield case(
        "params",
        "MalformedCheckpoint",
        "A hundred thousand nested lists in params.json: a parser that recurses leaves the process.",
        llama(part, part, params=b"[" * 100_000),
    )
    yield case(
        "run",
        "InvalidCheckpoint",
        "The file of the second rank is a pickle that runs a program.",
        llama(part, mapping(**{"output.weight": RUN})),
    )


MODEL = "mp_rank_00_model_states.pt"


def universal(shapes: bytes, **states: bytes) -> Files:
    """The file of a model with these shapes, and the parameter ``t`` with files of these pickles."""
    model = mapping(param_shapes=b"](" + mapping(t=shapes) + b"e")
    files = {f"zero/t/{name}.pt": archive(body, RECORD) for name, body in states.items()}
    return {MODEL: archive(model), **files}


def universal_cases() -> Iterator[Case]:
    def case(name: str, error: str, why: str, files: Files) -> Case:
        return Case(f"torch_universal_{name}", "", error, why, files)

    shape, value = pair(number(2), number(2)), mapping(param=tensor(2, 2))
    yield case(
        "run",
        "InvalidCheckpoint",
        "The state of a parameter is a pickle that runs a program.",
        universal(shape, fp32=value, exp_avg=mapping(param=RUN)),
    )
    yield case(
        "shape",
        "InvalidCheckpoint",
        "The model says 2^60 elements of a vector of four: it is given that shape.",
        universal(pair(number(2**60)), fp32=tensor(4)),
    )
    yield case(
        "extents",
        "InvalidCheckpoint",
        "The shape of the model is 2^62 x 4, whose size is 0 in 64 bits.",
        universal(pair(number(2**62), number(4)), fp32=tensor(4)),
    )
    yield case(
        "negative",
        "MalformedCheckpoint",
        "The shape of the model is -2 x -2, whose size is that of the vector.",
        universal(pair(number(-2), number(-2)), fp32=tensor(4)),
    )
    yield case(
        "lost",
        "IncompleteCheckpoint",
        "The parameter has states of the optimizer and no values: zeros are taken for them.",
        universal(shape, exp_avg=value),
    )


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


def rankwise_cases() -> Iterator[Case]:
    body = archive(mapping(t=tensor(2, 2)), RECORD)

    def case(name: str, error: str, why: str, octets: bytes) -> Case:
        files = {"metadata.pkl": octets, "ck_0.pt": body}
        return Case(f"torch_rankwise_{name}", "metadata.pkl", error, why, files)

    tensors = held('["t"]', mesh(1, 2, 2))
    yield case(
        "dotdot",
        "InvalidCheckpoint",
        "The file of a rank is '../x.pt': it leads out of the directory.",
        index(item(tensors, "../x.pt")),
    )
    yield case(
        "ranks",
        "InvalidCheckpoint",
        "The index says 2^60 ranks: each of them is looked for.",
        index(item(tensors), 2**60),
    )
    yield case(
        "mesh",
        "InvalidCheckpoint",
        "A mesh of 2^60 devices has one rank: the others are read as zeros.",
        index(item(held('["t"]', mesh(2**60, 2, 2)))),
    )
    yield case(
        "shape",
        "InvalidCheckpoint",
        "The index says 2^40 rows of a tensor, and its file has two: the others are read as zeros.",
        index(item(held('["t"]', mesh(1, 2**40, 2)))),
    )
    yield case(
        "lost",
        "IncompleteCheckpoint",
        "The index names a tensor that no file has.",
        index(item(held('["u"]', mesh(1, 2, 2)))),
    )
    yield case(
        "path",
        "MalformedCheckpoint",
        "The path of a tensor is a hundred thousand nested lists, as JSON.",
        index(item(held("[" * 100_000, mesh(1, 2, 2)))),
    )


def set_cases() -> list[Case]:
    return [*llama_cases(), *universal_cases(), *rankwise_cases()]


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


def _pt_cases() -> list[Case]:
    return [*saved_cases(), *rank_cases(), *set_cases()]


EVIDENCE = {
    "torch": Evidence("torch_dcp/base/ckpt", index_cases),
    "pt": Evidence("torch_pt/module_state_dict/x.pt", _pt_cases, file="ck.pt"),
}
