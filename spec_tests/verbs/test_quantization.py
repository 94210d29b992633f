"""Codes in the place of numbers: by the libraries' own files, and by the nearest of all codes."""

import json
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.engine import quantised as engine
from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.verbs.quantization import quantised
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.format_protocol import Array

__all__ = ["run"]

GOLDEN = Path(__file__).parents[1] / "golden/quantised"
WRITTEN = json.loads((GOLDEN / "written.json").read_text())
"""Recipes of five libraries: a checkpoint of numbers, and the tensors that the library makes."""
SCHEMES = [case["quantize"].partition(":")[0] for case in WRITTEN]
BLOCKS = [name for name in SCHEMES if name[0] == "q"]
OTHERS = [name for name in SCHEMES if name[0] != "q"]
DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


def target(folder: Path, scheme: str) -> Path:
    return folder / ("out.gguf" if scheme in BLOCKS else "out")


@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: case["name"])
def test_the_bytes_are_the_librarys(tmp_path: Path, case: dict[str, Any]) -> None:
    with zipfile.ZipFile(GOLDEN / "written.zip") as cases:
        cases.extractall(
            tmp_path, [n for n in cases.namelist() if n.startswith(case["name"] + "/")]
        )
    source = tmp_path / case["name"] / "model.safetensors"
    out = target(tmp_path, case["quantize"])
    sv.reshard(source, out, quantize=case["quantize"])
    ours = sv.load(out)
    theirs = np.load(source.with_name("expected.npz"))
    assert ours.keys() == {*theirs}
    for key, array in theirs.items():
        assert ours[key].shape == array.shape
        assert ours[key].tobytes() == array.tobytes(), key


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Of several magnitudes, with zeros, a block of zeros and -0."""
    found = rng.standard_normal(shape) * np.exp2(rng.integers(-6, 3, (*shape[:-1], 1)))
    found.reshape(-1)[:64] = 0
    found.reshape(-1)[64:70] = [-0.0, 0.25, -0.25, 1.5, 0.75, 2.5]
    return found.astype(DTYPES[dtype])


def save(folder: Path, tensors: dict[str, Array]) -> Path:
    folder.mkdir(exist_ok=True)
    sv.save(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text('{"model_type": "llama", "dtype": "float32"}')
    return folder


VALUES = {
    "MX": np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]),
    "NV": np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]),
    "FP": np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64),
    "in": np.arange(129.0),
}


@settings(max_examples=6)
@given(seed=st.integers(0, 2**32), scheme=st.sampled_from(OTHERS))
def test_each_number_gets_the_nearest_code(
    seed: int, scheme: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """By brute force over all codes, with the scale that is stored."""
    folder, rng = tmp_path_factory.mktemp("nearest"), np.random.default_rng(seed)
    w = numbers(rng, (128, 256), "float32")
    sv.reshard(save(folder / "in", {"a.weight": w}), folder / "out", quantize=scheme)
    with sv.open_checkpoint(folder / "out", dequantize="float32") as reader:
        (tensor,) = reader.source.quantised.values()
        found = reader.read("a.weight").astype(np.float64)
    if scheme.startswith("mlx-") and scheme != "mlx-mxfp4":
        # Steps of one size from the larger end; what they do not reach is less than a step.
        groups = w.reshape(-1, 64).astype(np.float64)
        step = (groups.max(1) - groups.min(1)) / (2 ** int(scheme[4]) - 1)
        error = np.abs(found.reshape(groups.shape) - groups).max(1)
        assert (error <= step * 1.01 + 1e-6).all()
        return
    scale = {
        key: v.astype(np.float64) for key, v in sv.load(folder / "out").items() if "scale" in key
    }
    (stored,) = (v for key, v in scale.items() if key.endswith(("weight_scale", "_inv", ".scales")))
    if stored.max() > 2**16 or "mx" in scheme:
        stored = np.exp2(stored - 127)
    stored = stored / scale.get("a.weight_global_scale", 1) * scale.get("a.weight_scale_2", 1)
    each = np.kron(stored, np.ones((128 // stored.shape[0], 256 // stored.shape[1])))
    values = VALUES[tensor.kind.removeprefix("MLX ").upper()[:2].replace("IN", "in")]

    def distance(values: Array) -> Array:
        return np.abs(np.abs(w)[..., None] - values * each[..., None]).min(axis=-1)

    if most := {"int8": 127, "int4": 7}.get(scheme):  # the lowest code has no positive counterpart
        near = np.where(w > 0, distance(values[: most + 1]), distance(values[: most + 2]))
    else:
        near = distance(values)
    assert (np.abs(found - w) <= near * (1 + 1e-5) + each * 1e-4).all()


@pytest.mark.parametrize(
    "scheme", ["fp8-block-ue8m0", "fp8-channel", "mxfp4", "mlx-mxfp4", "q8_0", "q4_0"]
)
def test_numbers_of_codes_become_the_same_numbers(tmp_path: Path, scheme: str) -> None:
    w = numbers(np.random.default_rng(1), (256, 384), "float32")
    source, paths = save(tmp_path / "in", {"a.weight": w}), []
    for step in range(2):
        paths.append(target(tmp_path, scheme).with_stem(f"out{step}"))
        sv.reshard(source, paths[-1], quantize=scheme, dequantize="float32" if step else False)
        source = paths[-1]
    one, two = (sv.load(path, dequantize="float32")["a.weight"] for path in paths)
    assert np.array_equal(one, two)


@settings(max_examples=18)
@given(
    partition=st.integers(1, 3),
    scheme=st.sampled_from(["int8", "nvfp4", "q8_0"]),
    cast=st.sampled_from(["bfloat16", {"*b.weight": "float16"}, {"*norm": "float16", "*c*": "bfloat16"}]),
    rules=st.sampled_from([["{x:**} -> m.{x}"], ["{x:a|b|c}.weight[i j] -> {x:a|b|c}.weight[j i]", "norm -> norm"]]),
)  # fmt: skip
def test_one_stream_makes_what_a_map_a_cast_and_a_scheme_make_one_by_one(
    partition: int, scheme: str, cast: Any, rules: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:  # fmt: skip
    folder, rng = tmp_path_factory.mktemp("stream"), np.random.default_rng(partition)
    model = {f"{key}.weight": numbers(rng, (64, 64), "float32") for key in "abc"}
    sv.save(folder / "in", model | {"norm": model["a.weight"][0] + 1}, partition=partition)
    one, two = target(folder, scheme), target(folder, scheme).with_stem("two")
    sv.reshard(folder / "in", one, map=rules, cast=cast, quantize=scheme)
    sv.reshard(folder / "in", folder / "mapped", format="npz", map=rules)
    sv.reshard(folder / "mapped", folder / "cast", format="shardvar", cast=cast)
    sv.reshard(folder / "cast", two, quantize=scheme)
    assert sv.diff(one, two).equal


@settings(max_examples=6)
@given(data=st.data(), scheme=st.sampled_from([*OTHERS, "q5_1"]))
def test_any_portions_and_formats_have_the_same_bytes(
    data: st.DataObject, scheme: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, rng = tmp_path_factory.mktemp("portions"), np.random.default_rng(3)
    w = numbers(rng, (384, 256), data.draw(st.sampled_from([*DTYPES])))
    source = save(folder / "in", {"a.weight": w, "b.norm.weight": w[0]})
    sv.reshard(source, target(folder, scheme), quantize=scheme)
    expected = {key: array.tobytes() for key, array in sv.load(target(folder, scheme)).items()}
    with pytest.MonkeyPatch.context() as patch, sv.open_checkpoint(source) as reader:
        patch.setattr(engine, "_BAND", data.draw(st.integers(1, 1 << 16)))
        patch.setattr(engine, "_ENCODED_PORTION", data.draw(st.integers(1, 1 << 14)))
        entries, made = quantised(reader.source, reader.entries(), scheme, None)
        for row in range(len(entries)):
            key, nbytes = entries.slices.key(row), int(entries.slices.nbytes[row])
            first = data.draw(st.integers(0, nbytes))
            buffer = bytearray(data.draw(st.integers(0, nbytes - first)))
            made.read_into(entries, row, first, memoryview(buffer))
            assert buffer == expected[key][first : first + len(buffer)], key
        if scheme in BLOCKS:
            return
        form = data.draw(st.sampled_from(["shardvar", "pt", "zarr", "torch"]))
        parts = data.draw(st.integers(1, 3)) if form == "shardvar" else None
        try:
            sv.reshard(source, folder / "ck", format=form, quantize=scheme, partition=parts)
        except UnsupportedError as error:  # a dtype that it does not hold
            assert any(dtype in str(error) for dtype in ("float8", "bfloat16", "uint32"))
            return
        found = sv.load(folder / "ck")
        assert {key: array.tobytes() for key, array in found.items()} == expected


@pytest.mark.parametrize(
    ("first", "second"), [("fp8-block", "nvfp4"), ("mxfp4", "fp8-block"), ("int4", "q8_0")]
)
def test_from_one_scheme_to_another_in_one_stream_with_a_map(
    first: str, second: str, tmp_path: Path
) -> None:
    """As in two steps, with a copy of the numbers between."""
    w = numbers(np.random.default_rng(2), (256, 128), "bfloat16")
    one, out = tmp_path / "one", target(tmp_path, second)
    sv.reshard(save(tmp_path / "in", {"a.weight": w, "lm_head.weight": w}), one, quantize=first)
    rules = ["a.weight[o i] -> b.weight[o i]", "lm_head.weight -> lm_head.weight"]
    sv.reshard(one, out, dequantize="float32", map=rules, quantize=second)
    sv.reshard(one, tmp_path / "n", dequantize="float32")
    sv.reshard(tmp_path / "n", out.with_stem("two"), map=rules, quantize=second)
    found, expected = (
        {key: array.tobytes() for key, array in sv.load(path).items()}
        for path in (out, out.with_stem("two"))
    )
    assert found == expected and any(key.startswith("b.weight") for key in found)


def test_modules_that_stay_are_named_in_the_description(tmp_path: Path) -> None:
    w, kept = np.ones((64, 64), np.float32), ["embed_tokens", "lm_head", "mlp.gate", "q_norm", "b"]
    tensors = {f"{name}.weight": w for name in [*kept, "mlp.gate_proj", "a"]}
    report = sv.reshard(
        save(tmp_path / "in", tensors), tmp_path / "out", quantize="nvfp4", keep="b"
    )
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert {*config["quantization_config"]["ignore"]} == {*kept}
    assert report.changed[0] == "quantised 2 tensors to NVFP4"
    found = sv.load(tmp_path / "out")
    assert {k.partition(".weight")[0] for k in found if "scale" in k} == {"mlp.gate_proj", "a"}
    assert found["b.weight"].tobytes() == w.tobytes()


def test_in_gguf_stays_what_llama_cpp_does_not_quantise(tmp_path: Path) -> None:
    kept = ["blk.0.ffn_gate_inp", "blk.0.attn_norm", "position_embd", "token_types", "ssm_conv1d"]
    rest = ["token_embd", "blk.0.ffn_gate", "blk.0.attn_router", "lm_head", "output"]
    tensors = {f"{name}.weight": np.ones((32, 32), np.float32) for name in [*kept, *rest]}
    sv.reshard(save(tmp_path / "in", tensors), tmp_path / "out.gguf", quantize="q8_0")
    with sv.open_checkpoint(tmp_path / "out.gguf") as reader:
        assert {key.removesuffix(".weight") for key in reader.encodings} == {*rest}


def test_a_whole_gguf_is_quantised_with_its_metadata(tmp_path: Path) -> None:
    types, out = GOLDEN.parent / "gguf/every_type/m.gguf", tmp_path / "out.gguf"
    rename: dict[str, Any] = {"rename": {"*": "*_exps.weight"}, "exclude": "numbers*"}
    report = sv.reshard(types, out, dequantize=True, quantize="q4_0", **rename)
    assert "the tokenizer and settings are the same as in the source" in report.changed
    with sv.open_checkpoint(types) as before, sv.open_checkpoint(out) as after:
        old, new = before.metadata.user, after.metadata.user
        skipped = ("split.", "general.alignment", "general.file_type")
        assert new == {key: text for key, text in old.items() if not key.startswith(skipped)}
        assert {*after.encodings.values()} == {"Q4_0"}


def weight(
    shape: tuple[int, ...] = (2, 32), dtype: str = "f4", value: float = 1
) -> dict[str, Array]:
    return {"a.weight": np.full(shape, value, dtype)}


WRONG: dict[type[Exception], list[tuple[dict[str, Array], dict[str, Any], str]]] = {
    UnsupportedError: [
        (weight((2, 40)), {"quantize": "mxfp4"},
         "'a.weight' cannot be quantised to MXFP4: groups of 32 do not cut its rows of 40"),
        (weight(dtype="i4"), {"quantize": "int8"}, "int8: it is of int32"),
        (weight(dtype="f8"), {"quantize": "int8"}, "of float64"),
        (weight(value=np.nan), {"quantize": "int8"},
         "'a.weight' cannot be quantised to int8: the number in row 0, column 0 is nan"),
        (weight(value=np.inf), {"quantize": "q8_0"}, "is inf"),
        (weight() | {"a.weight_scale": np.ones(2, "f4")}, {"quantize": "int8"}, "'a.weight_scale' is there already"),
        (weight((1, 1 << 25), "f2"), {"quantize": "int8"}, "too long"),
    ],
    ArgumentError: [
        (weight(), {"quantize": "int9"}, "Did you mean 'int8'"),
        (weight(), {"quantize": "int4:7"}, "no groups of '7'"),
        (weight(), {"quantize": "int8:32"}, "Give 'int8'"),
        (weight(), {"quantize": "int8", "keep": "x*"}, "'x\\*'"),
        (weight(), {"keep": "a"}, "Nothing is quantised"),
        ({"norm.weight": weight()["a.weight"]}, {"quantize": "int8"}, "'norm' stay"),
        ({"a": weight()["a.weight"]}, {"quantize": "int8"}, "none is a matrix"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "tensors", "options", "words"),
    [(kind, *case) for kind, cases in WRONG.items() for case in cases],
)
def test_what_cannot_be_quantised_is_named_and_nothing_is_left(
    tmp_path: Path, kind: Any, tensors: dict[str, Array], options: dict[str, Any], words: str
) -> None:
    sv.save(tmp_path / "in.safetensors", tensors)
    out = target(tmp_path, options.get("quantize", ""))
    with pytest.raises(kind, match=words):
        sv.reshard(tmp_path / "in.safetensors", out, **options)
    assert [each.name for each in tmp_path.iterdir()] == ["in.safetensors"]


def test_other_formats_workers_and_codes_are_refused(tmp_path: Path, run: Run) -> None:
    source, out = (
        save(tmp_path / "in", {"a.weight": np.ones((128, 128), np.float32)}),
        tmp_path / "out",
    )
    for scheme, words, code, told in (
        ("q8_0", [], 3, "does not keep the type of blocks of Q8_0"),
        ("fp8-block", ["--workers", "2"], 3, "do not quantise"),
        ("int8", ["--format", "npz"], 0, ""),
        ("fp8-block", ["--keep", "lm_*"], 2, ""),
        ("fp8-block", ["--force"], 0, ""),
    ):
        done = run("reshard", source, out, "--quantize", scheme, *words)
        assert done.code == code and told in done.err
    done = run("reshard", out, tmp_path / "n", "--quantize", "int8")
    assert done.code == 2 and "is quantised already" in done.err
