"""The guides about conversions, on small real models: the outputs after each command are those
before it.

The command is the one that the guide prints. Weights stay the same bits, so models of one library
give the same bits; another library adds in another order, and gives nearly the same numbers.
"""

import json
import shlex
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.planning.policies import BalancedPolicy
from spec_tests.helpers.documents import ROOT, read, run_command
from spec_tests.helpers.programs import run_together

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")

IDS = torch.arange(12).reshape(2, 6)
"""[2, 6] tokens."""
VALUES = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
"""[5, 16] inputs of a perceptron."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guides' paths are relative."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


def run_of(guide: str, target: str, containing: str = "reshard") -> None:
    """Run the command of a guide that writes ``target``."""
    lines = [
        line.removeprefix("$ ")
        for line in read(ROOT / "docs" / "howto" / f"{guide}.md").splitlines()
    ]
    commands = [
        shlex.split(line)
        for line in lines
        if line.startswith("shardvar reshard") and containing in line
    ]
    (command,) = [words for words in commands if target in words]
    code, printed = run_command(command)
    assert code == 0, printed


def llama(**changes: Any) -> Any:
    """A Llama of two layers with random weights, whose heads share keys and values in pairs."""
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**sizes, **heads, **changes)
    ).eval()


def gpt2() -> Any:
    """A GPT-2 of two layers, whose last layer is tied to the embedding."""
    sizes = {"vocab_size": 96, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    ).eval()
    for (
        tensor
    ) in model.state_dict().values():  # biases begin as zeros, which would hide one that is lost
        tensor.uniform_(-1, 1)
    return model


def logits_of(model: Any) -> Any:
    """[2, 6, 96] the outputs for ``IDS``."""
    with torch.no_grad():
        return model(IDS).logits


def check_folder(model: Any, folder: str) -> None:
    """The folder, with the model's configuration, is a model for transformers that gives the same
    bits."""
    model.config.save_pretrained(folder)
    again, report = type(model).from_pretrained(folder, dtype=model.dtype, output_loading_info=True)
    assert (
        not report["missing_keys"]
        and not report["unexpected_keys"]
        and not report["mismatched_keys"]
    )
    assert torch.equal(logits_of(again.eval()), logits_of(model))


RANK = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

rank, whole, folder, meeting = int(sys.argv[1]), *sys.argv[2:]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
state = {key: distribute_tensor(value, mesh, [Shard(0)]) for key, value in torch.load(whole).items()}
moments = {key: {"exp_avg": value, "step": torch.tensor(100.0)} for key, value in state.items()}
dcp.save({"model": state, "optimizer": {"state": moments}, "step": 100}, checkpoint_id=folder)
dist.barrier()
os._exit(0)  # a thread of gloo that is not done yet aborts an interpreter that ends
"""
"""One of two ranks, which saves its rows of a model and of the moments of an optimizer, as FSDP
does."""


def test_a_llama_of_two_ranks_becomes_a_folder_of_hugging_face_and_goes_back(
    tmp_path: Path,
) -> None:
    """Parameters, names and dtype, and the same logits; then torch.distributed.checkpoint loads it
    again."""
    from torch.distributed import checkpoint as dcp

    model = llama()
    torch.save(model.state_dict(), "whole.pt")
    places = [str(tmp_path / name) for name in ("whole.pt", "run/step-100", "meeting")]
    Path("run").mkdir()
    command = [sys.executable, "-W", "ignore", "-c", RANK]
    run_together([[*command, rank, *places] for rank in range(2)])
    run_of("pytorch-to-hugging-face", "hf/model.safetensors")
    before = logits_of(model)
    # Loaded, since ``bfloat16()`` also rounds the frequencies of positions, which a loaded model
    # has in float32.
    model.bfloat16().save_pretrained("by-transformers")
    model = type(model).from_pretrained("by-transformers").eval()
    assert model.dtype == torch.bfloat16 and torch.allclose(
        logits_of(model).float(), before, atol=0.02
    )
    check_folder(model, "hf")
    run_of("pytorch-to-hugging-face", "run/new")
    template = {
        "model": {key: torch.zeros_like(value) for key, value in model.state_dict().items()}
    }
    dcp.load(template, checkpoint_id="run/new", no_dist=True)
    assert all(
        torch.equal(value, template["model"][key]) for key, value in model.state_dict().items()
    )


def test_a_gpt2_of_torch_save_is_loaded_and_tied_again() -> None:
    model = gpt2()
    Path("bin").mkdir()
    torch.save(model.state_dict(), "bin/pytorch_model.bin")
    run_of("torch-files-to-safetensors", "hf/model.safetensors")
    check_folder(model, "hf")


def test_a_gpt2_with_linear_layers_takes_the_transposed_weights() -> None:
    """``Conv1D`` is ``[in, out]``, ``Linear`` is ``[out, in]``; both add the same products in
    another order."""
    model = gpt2()
    Path("bin").mkdir()
    torch.save(model.state_dict(), "bin/pytorch_model.bin")
    run_of("torch-files-to-safetensors", "linear.safetensors")
    stored = safetensors_torch.load_file("linear.safetensors")
    other = gpt2()
    for layer in other.transformer.h:
        for part, name in (
            (layer.attn, "c_attn"),
            (layer.attn, "c_proj"),
            (layer.mlp, "c_fc"),
            (layer.mlp, "c_proj"),
        ):
            setattr(part, name, torch.nn.Linear(*getattr(part, name).weight.shape))
    other.transformer.load_state_dict(stored, strict=True)
    assert torch.allclose(logits_of(other), logits_of(model), rtol=1e-4, atol=1e-4)
    assert logits_of(model).std() > 0.1


def cut_of(key: str) -> int | None:
    """The axis along which a tensor-parallel Llama cuts a parameter, as its layers do; None if
    every rank has it."""
    name = key.split(".")[-2]
    rows = {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head"}
    return 0 if name in rows else 1 if name in {"o_proj", "down_proj"} else None


def test_the_files_of_two_tensor_parallel_ranks_become_one_llama() -> None:
    model = llama()
    Path("tp").mkdir()
    for rank in range(2):
        axes = {key: (value, cut_of(key)) for key, value in model.state_dict().items()}
        part = {
            key: value if axis is None else value.chunk(2, axis)[rank]
            for key, (value, axis) in axes.items()
        }
        torch.save({key: value.clone() for key, value in part.items()}, f"tp/rank{rank}.pt")
    run_of("join-tensor-parallel-files", "hf/model.safetensors", "lm_head")
    check_folder(model, "hf")


def test_a_perceptron_of_flax_in_orbax_gives_the_same_numbers_in_torch(tmp_path: Path) -> None:
    linen = pytest.importorskip("flax.linen", reason="Flax is not installed")
    jax, ocp = pytest.importorskip("jax"), pytest.importorskip("orbax.checkpoint")
    layers = [linen.Embed(50, 16), linen.Dense(32), linen.LayerNorm(epsilon=1e-5), linen.Dense(10)]
    names = ["Embed_0", "Dense_0", "LayerNorm_0", "Dense_1"]
    keys = jax.random.split(jax.random.key(0), 4)
    x, params = IDS[0].numpy(), {}
    for name, layer, key in zip(names, layers, keys, strict=True):
        variables = layer.init(key, x)["params"]
        params[name] = jax.tree.map(
            lambda each, key=key: each + jax.random.uniform(key, each.shape), variables
        )
        x = layer.apply({"params": params[name]}, x)
    with ocp.StandardCheckpointer() as writer:
        writer.save(tmp_path / "run" / "100", {"params": params})
    run_of("flax-to-pytorch", "model.safetensors")
    modules = [
        torch.nn.Embedding(50, 16),
        torch.nn.Linear(16, 32),
        torch.nn.LayerNorm(32),
        torch.nn.Linear(32, 10),
    ]
    model = torch.nn.Sequential(OrderedDict(zip(names, modules, strict=True)))
    model.load_state_dict(safetensors_torch.load_file("model.safetensors"), strict=True)
    assert np.allclose(model(IDS[0]).detach().numpy(), x, rtol=1e-4, atol=1e-4)


def test_a_perceptron_of_keras_in_tensorflow_gives_the_same_numbers_in_torch() -> None:
    tf, keras = pytest.importorskip("tensorflow"), pytest.importorskip("keras")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras runs on another backend.")
    layers = [keras.layers.Dense(32, "relu", bias_initializer="uniform"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((16,)), *layers])
    tf.train.Checkpoint(model=model).save("keras")
    run_of("tensorflow-to-safetensors", "linear.safetensors")
    parts = {
        "hidden": torch.nn.Linear(16, 32),
        "relu": torch.nn.ReLU(),
        "out": torch.nn.Linear(32, 10),
    }
    other = torch.nn.Sequential(OrderedDict(parts))
    other.load_state_dict(safetensors_torch.load_file("linear.safetensors"), strict=True)
    found = other(torch.from_numpy(VALUES)).detach().numpy()
    assert np.allclose(found, model(VALUES).numpy(), rtol=1e-4, atol=1e-5)


def test_libraries_load_the_folders_that_are_written(tmp_path: Path) -> None:
    """A model with its tokenizer and template, in a set and in another dtype; an adapter of it; a
    pipeline of diffusers. Each is a folder of the library's own before."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    model = llama()
    model.save_pretrained("hf", max_shard_size="20KB")
    words = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    Path("words.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "model": words})
    )
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file="words.json")
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained("hf")
    report = sv.reshard("hf", "half", cast="bfloat16", policy=BalancedPolicy(3))
    assert {*report.copied} == {
        each.name for each in Path("hf").iterdir() if "model" not in each.name
    }
    half = llama_of("half")
    assert half.dtype == torch.bfloat16
    assert torch.equal(half(IDS).logits, llama_of("hf", torch.bfloat16)(IDS).logits)
    loaded = transformers.AutoTokenizer.from_pretrained("half")
    assert (loaded("b")["input_ids"], loaded.chat_template) == ([1], tokenizer.chat_template)

    config = peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules=["q_proj"], init_lora_weights=False
    )
    adapted = peft.get_peft_model(llama_of("half"), config)
    adapted.save_pretrained("lora")
    sv.reshard("lora", "again")
    again = peft.PeftModel.from_pretrained(llama_of("half"), "again")
    assert torch.equal(again(IDS).logits, adapted(IDS).logits)

    blocks = {"block_out_channels": (32, 32), "layers_per_block": 1, "sample_size": 8}
    kinds = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    unet, scheduler = diffusers.UNet2DModel(**blocks, **kinds), diffusers.DDPMScheduler()
    diffusers.DDPMPipeline(unet, scheduler).save_pretrained("ddpm")
    sv.reshard("ddpm", "pipe/", policy=BalancedPolicy(2))
    written = diffusers.DDPMPipeline.from_pretrained("pipe")
    assert (
        written.scheduler.config == diffusers.DDPMPipeline.from_pretrained("ddpm").scheduler.config
    )
    for key, tensor in unet.state_dict().items():
        assert torch.equal(written.unet.state_dict()[key], tensor)


def llama_of(path: str, dtype: Any = "auto") -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
