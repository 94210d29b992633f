"""A job that goes on in another program: its state, weights and moments, through one lifted map.

The first program is a Llama with the names and the rotary pairs of torchtitan, which is not
installed; the second is transformers. Both compute the same, so the losses are equal.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of a single process.

HIDDEN, HEADS, GROUPS, WIDTH, LAYERS, VOCABULARY, STEPS = 48, 6, 2, 40, 2, 31, 4
SIZE, THETA, EPSILON = HIDDEN // HEADS, 10_000.0, 1e-5
LIFT = {
    "optim.state.{key}.exp_avg": "moment",
    "optim.state.{key}.exp_avg_sq": "moment",
    "optim.state.{key}.step": "value",
    "model.{key}": "value",
}


def titan(torch: Any) -> Any:
    """A Llama as torchtitan writes it."""
    nn, functional = torch.nn, torch.nn.functional

    def linear(a: int, b: int) -> Any:
        return nn.Linear(a, b, bias=False)

    def rotated(x: Any) -> Any:  # [batch, time, heads, size] pairs of neighbours
        steps = torch.arange(x.shape[1])[:, None]
        angles = steps * THETA ** (-torch.arange(0, SIZE, 2) / SIZE)
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.view_as_real(turned).flatten(3)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.Module()
            self.attention.qkv_linear = nn.Module()
            for name, rows in (("wq", HEADS), ("wk", GROUPS), ("wv", GROUPS)):
                setattr(self.attention.qkv_linear, name, linear(HIDDEN, rows * SIZE))
            self.attention.wo = linear(HIDDEN, HIDDEN)
            self.feed_forward = nn.Module()
            for name in ("w1", "w3"):
                setattr(self.feed_forward, name, linear(HIDDEN, WIDTH))
            self.feed_forward.w2 = linear(WIDTH, HIDDEN)
            self.attention_norm = nn.RMSNorm(HIDDEN, EPSILON)
            self.ffn_norm = nn.RMSNorm(HIDDEN, EPSILON)

        def forward(self, x: Any) -> Any:
            qkv, normed = self.attention.qkv_linear, self.attention_norm(x)
            q, k, v = (w(normed).unflatten(2, (-1, SIZE)) for w in (qkv.wq, qkv.wk, qkv.wv))
            q, k, v = (each.transpose(1, 2) for each in (rotated(q), rotated(k), v))
            k, v = (each.repeat_interleave(HEADS // GROUPS, 1) for each in (k, v))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.attention.wo(mixed.transpose(1, 2).flatten(2))
            mlp, normed = self.feed_forward, self.ffn_norm(x)
            return x + mlp.w2(functional.silu(mlp.w1(normed)) * mlp.w3(normed))

    class Titan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tok_embeddings = nn.Embedding(VOCABULARY, HIDDEN)
            self.layers = nn.ModuleDict({str(n): Block() for n in range(LAYERS)})
            self.norm = nn.RMSNorm(HIDDEN, EPSILON)
            self.lm_head = linear(HIDDEN, VOCABULARY)

        def forward(self, ids: Any) -> Any:
            x = self.tok_embeddings(ids)
            for layer in self.layers.values():
                x = layer(x)
            return self.lm_head(self.norm(x))

    torch.manual_seed(3)
    return Titan()


def losses(torch: Any, model: Any, optimizer: Any, first: int) -> list[float]:
    """Train for some steps, on the batches of these steps."""
    found = []
    for step in range(first, first + STEPS):
        ids = torch.from_numpy(np.random.default_rng(step).integers(0, VOCABULARY, (4, 9)))
        answer = model(ids[:, :-1])
        logits = getattr(answer, "logits", answer)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def state_of(model: Any, optimizer: Any) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(flatten_optimizer_state_dict=True)
    weights, moments = get_state_dict(model, optimizer, options=options)
    return {"model": weights, "optim": moments}


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_job_of_torchtitan_goes_on_in_transformers(tmp_path: Path, is_wrong: bool) -> None:
    """With equal losses; and with others if the moments of queries are not permuted."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    torch.set_num_threads(1)
    mine = titan(torch)
    optimizer = torch.optim.AdamW(mine.parameters(), lr=0.01)
    losses(torch, mine, optimizer, 0)
    dcp.save(state_of(mine, optimizer), checkpoint_id=tmp_path / "titan", no_dist=True)
    on = losses(torch, mine, optimizer, STEPS)

    sizes = {"num_attention_heads": HEADS, "num_key_value_heads": GROUPS}
    (tmp_path / "titan" / "config.json").write_text(json.dumps({"model_type": "llama"} | sizes))
    given = sv.Map.read("to-torchtitan").extended(lift=LIFT).inverse()
    others = "optim.param_groups.*"
    sv.reshard(tmp_path / "titan", tmp_path / "hf", map=given, exclude=others)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=WIDTH,
        num_hidden_layers=LAYERS, rms_norm_eps=EPSILON, rope_theta=THETA,
        attn_implementation="sdpa", tie_word_embeddings=False, **sizes,
    )  # fmt: skip
    other = transformers.LlamaForCausalLM(config)
    second = torch.optim.AdamW(other.parameters(), lr=0.01)
    losses(torch, other, second, 100)  # so that the optimizer has a state to load into
    state = state_of(other, second)
    groups = {key: state["optim"].pop(key) for key in [*state["optim"]] if "param_groups" in key}
    dcp.load(state, checkpoint_id=tmp_path / "hf", no_dist=True)
    for key in [*state["optim"]] if is_wrong else ():
        if "q_proj.weight.exp_avg" in key:
            rows = state["optim"][key].unflatten(0, (HEADS, 2, -1))
            state["optim"][key] = rows.transpose(1, 2).flatten(0, 2)
    set_state_dict(
        other, second, model_state_dict=state["model"],
        optim_state_dict=state["optim"] | groups,
        options=StateDictOptions(flatten_optimizer_state_dict=True),
    )  # fmt: skip
    again = losses(torch, other, second, STEPS)
    assert again[0] == pytest.approx(on[0], rel=1e-6)
    assert (again == pytest.approx(on, rel=1e-5)) != is_wrong
