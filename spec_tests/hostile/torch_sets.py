"""Hostile sets of files that PyTorch's programs write and that are joined: Meta's Llama, and
Universal Checkpoints of DeepSpeed."""

from collections.abc import Iterator

from spec_tests.hostile.case import Case, Files
from spec_tests.hostile.torch import RUN, VALUES, archive, mapping, number, pair, tensor

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


def set_cases() -> list[Case]:
    return [*llama_cases(), *universal_cases()]


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
