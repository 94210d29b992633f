"""Numbers in the place of quantised tensors: the product of a weight and the scale of its block,
rounded once.

The oracle takes each element by itself: its code, by the definition of the format, times its scale,
in float64, where the product of two floats is exact.
"""

import json
import re
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from math import inf, nan, prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli import main
from shardvar.errors import (
    CheckpointError,
    InvalidCheckpoint,
    MalformedCheckpoint,
    UnsupportedError,
)
from shardvar.formats.listing import ListedSource
from shardvar.layout.dtypes import HALVES, NAMES, has_values, numpy_dtype
from shardvar.verbs.parameters import count_parameters
from spec_tests.helpers.damage import flip
from spec_tests.helpers.format_protocol import Array

E4M3, E5M2, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu
DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


def float8(code: int, bits: int, bias: int, *, has_infinity: bool) -> float:
    """The value of a float of 8 bits with so many bits of mantissa (OCP, 8-bit floating point)."""
    sign = -1.0 if code & 128 else 1.0
    exponent, mantissa = (code & 127) >> bits, code & ((1 << bits) - 1)
    if has_infinity and exponent == (127 >> bits):
        return nan if mantissa else sign * inf
    if not has_infinity and code & 127 == 127:
        return nan
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - bits)
    return sign * (mantissa + (1 << bits)) * 2.0 ** (exponent - bias - bits)


VALUES = {
    E4M3: np.array([float8(code, 3, 7, has_infinity=False) for code in range(256)]),
    E5M2: np.array([float8(code, 2, 15, has_infinity=True) for code in range(256)]),
}
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def by_definition(weights: Array, scales: Array, block: tuple[int, int]) -> Array:
    """[..., rows, columns] the products, each taken by itself."""
    numbers = np.empty(weights.shape)
    for index in np.ndindex(weights.shape):
        *stack, row, column = index
        code = int(weights[index].view(np.uint8))
        scale = scales[(*stack, row // block[0], column // block[1])]
        numbers[index] = VALUES[weights.dtype.type][code] * float(scale)
    return numbers


def fp4_by_definition(blocks: Array, scales: Array) -> Array:
    """[..., rows, 32 * groups] numbers of 4 bits, the low ones of a byte first."""
    numbers = np.empty((*blocks.shape[:-2], 32 * blocks.shape[-2]))
    for index in np.ndindex(numbers.shape):
        *row, column = index
        group, place = divmod(column, 32)
        octet = int(blocks[(*row, group, place // 2)])
        nibble = octet >> 4 if place % 2 else octet & 15
        value = FP4[nibble & 7] * (-1 if nibble & 8 else 1)
        numbers[index] = value * 2.0 ** (int(scales[(*row, group)]) - 127)
    return numbers


def same(found: Array, exact: Array, dtype: str) -> bool:
    """Return True if the numbers are the exact ones, rounded to float32 and then to the dtype."""
    expected = exact.astype(np.float32).astype(DTYPES[dtype])
    nans = np.isnan(expected.astype(np.float32))
    bits = f"u{expected.itemsize}"
    return bool(
        found.dtype == expected.dtype
        and found.shape == expected.shape
        and np.array_equal(np.isnan(found.astype(np.float32)), nans)
        and np.array_equal(found.view(bits)[~nans], expected.view(bits)[~nans])
    )


def config(folder: Path, **values: Any) -> None:
    (folder / "config.json").write_text(json.dumps(values))


def random_bytes(data: st.DataObject, shape: tuple[int, ...], most: int = 255) -> Array:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    return rng.integers(0, most, shape, np.uint8, endpoint=True)


PLACES = ["m.safetensors", "m", "m.pt", "m.index"]
"""One file without checksums, slices with checksums of runs, an archive, a table of TensorFlow."""


def save(path: Path, tensors: dict[str, Array], parts: int) -> None:
    if path.suffix == ".index":
        # TensorFlow has these dtypes, but for exponents.
        sv.save(path.with_suffix(""), tensors, format="tensorflow", partition=parts)
    else:
        sv.save(path, tensors, partition=parts if not path.suffix else None)


def check_everywhere(
    folder: Path, key: str, exact: Array, dtype: str, place: str, data: st.DataObject
) -> None:
    """Read the tensor whole, a part of it, and from another checkpoint."""
    path = folder / place
    with sv.open_checkpoint(path, dequantize=dtype) as reader:
        assert list(reader) == [key]
        assert same(reader.read(key), exact, dtype)
        region = tuple(
            slice(*sorted((data.draw(st.integers(0, extent)), data.draw(st.integers(0, extent)))))
            for extent in exact.shape
        )
        assert same(reader.read(key, region), exact[region], dtype)
    target = folder / "copy.safetensors"
    sv.reshard(path, target, dequantize=dtype, force=True)
    assert same(sv.load(target)[key], exact, dtype)
    assert sv.diff(path, target, dequantize=dtype).equal


@settings(max_examples=25)
@given(data=st.data())
def test_a_number_is_its_weight_times_the_scale_of_its_block(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("fp8")
    rank = data.draw(st.integers(2, 3))
    shape = tuple(data.draw(st.integers(1, 9)) for _ in range(rank))
    block = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    kind = data.draw(st.sampled_from([E4M3, E5M2]))
    weights = random_bytes(data, shape).view(kind)
    grid = (*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1]))
    place = data.draw(st.sampled_from(PLACES))
    if place != "m.index" and data.draw(st.booleans()):
        scales = random_bytes(data, grid, 140).view(E8M0)
        dtype = "float32"
    else:
        scales = (random_bytes(data, grid).astype(np.float32) + 1) / 97
        dtype = data.draw(st.sampled_from(["float32", "bfloat16"]))
    config(folder, quantization_config={"weight_block_size": block})
    key = data.draw(st.sampled_from(["x.weight", "experts.gate_up_proj"]))
    save(folder / place, {key: weights, f"{key}_scale_inv": scales}, data.draw(st.integers(1, 3)))
    exact = by_definition(weights, scales.astype(np.float64), block)
    check_everywhere(folder, key, exact, dtype, place, data)


@settings(max_examples=25)
@given(data=st.data())
def test_a_number_of_four_bits_is_its_value_times_a_power_of_two(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The numbers of experts are transposed, as transformers has them in memory."""
    folder = tmp_path_factory.mktemp("mxfp4")
    rank = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.integers(1, 4)) for _ in range(rank))
    groups = data.draw(st.integers(1, 3))
    blocks = random_bytes(data, (*shape, groups, 16))
    scales = random_bytes(data, (*shape, groups), 200)
    place = data.draw(st.sampled_from(PLACES))
    point = data.draw(st.sampled_from("_."))
    tensors = {f"x{point}blocks": blocks, f"x{point}scales": scales}
    save(folder / place, tensors, data.draw(st.integers(1, 3)))
    exact = fp4_by_definition(blocks, scales)
    if rank == 2 and point == "_":
        exact = exact.swapaxes(1, 2)
    dtype = data.draw(st.sampled_from(["float32", "bfloat16"]))
    check_everywhere(folder, "x", exact, dtype, place, data)
    with sv.open_checkpoint(folder / place) as reader:
        assert exact.shape in reader.columns()["shape"]


@pytest.mark.parametrize("kind", [E4M3, E5M2])
def test_every_weight_of_eight_bits_with_every_exponent(tmp_path: Path, kind: Any) -> None:
    """256 weights, in blocks of 1 x 32, with the exponents of all scales but NaN."""
    weights = np.tile(np.arange(256, dtype=np.uint8), (255, 1)).view(kind)
    scales = np.tile(np.arange(255, dtype=np.uint8)[:, None], (1, 8)).view(E8M0)
    exact = VALUES[kind][None, :] * 2.0 ** (np.arange(255.0) - 127)[:, None]
    fits = np.abs(np.nan_to_num(exact[:, np.isfinite(exact[0])])).max(axis=1) < 2.0**128
    sv.save(
        tmp_path / "m.safetensors", {"w.weight": weights[fits], "w.weight_scale_inv": scales[fits]}
    )
    found = sv.load(tmp_path / "m.safetensors", dequantize="float32")["w.weight"]
    assert same(found, exact[fits], "float32")
    assert fits.sum() > 230


W = np.arange(12, dtype=np.uint8).reshape(3, 4).view(E4M3)


I8 = np.full((3, 4), 3, np.int8)


@pytest.mark.parametrize(
    ("name", "scale", "weight"),
    [("weight_scale", np.float32(2), W), ("weight_scale", np.array([2], np.float32), W),
     ("weight_scale", np.array([[2], [3], [5]], np.float32), W), ("weight_scale_inv", np.float32(2), W),
     ("weight_scale", np.array([2, 3, 5], ml_dtypes.bfloat16), W), ("scale", np.array([[3]], np.float32), W),
     ("qscale_weight", np.float32(3), W), ("weight_scale", np.full((), 2, "f4"), I8)],
)  # fmt: skip
def test_one_scale_of_a_tensor_or_one_for_each_row(
    tmp_path: Path, name: str, scale: Array, weight: Array
) -> None:
    """Of integers too, if the model says so."""
    config(
        tmp_path,
        **{"quantization_config": {"quant_method": "compressed-tensors"}} if weight is I8 else {},
    )
    tensors = {"w.weight": weight, f"w.{name}": scale}
    sv.save(tmp_path / "m", tensors | ({"w.input_scale": np.float32(1)} if weight is W else {}))
    numbers = VALUES[E4M3][weight.view(np.uint8)] if weight is W else weight.astype(np.float64)
    found = sv.load(tmp_path / "m", dequantize=True)
    assert list(found) == ["w.weight"]
    assert same(
        found["w.weight"], numbers * np.reshape(scale.astype(np.float64), (-1, 1)), "bfloat16"
    )


@pytest.mark.parametrize(
    ("structure", "is_right"),
    [([2, 3], True), ("2x3", True), (None, False), (2, False), ([2], False), ([2, 3, 1], False),
     ([2, 0], False), ([2, 3.0], False), ([True, 3], False), ("2", False), ("", False)],
)  # fmt: skip
def test_the_block_of_a_group_is_two_extents(
    tmp_path: Path, structure: Any, is_right: bool
) -> None:
    weights = {"type": "int", "strategy": "block", "block_structure": structure}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    config(
        tmp_path,
        quantization_config={"quant_method": "compressed-tensors", "config_groups": groups},
    )
    scales = np.array([[2, 3], [5, 7]], np.float32)
    sv.save(tmp_path / "m", scaled(scales, I8, "_scale"))
    if is_right:
        found = sv.load(tmp_path / "m", dequantize="float32")["w.weight"]
        assert found.tolist() == [[6, 6, 6, 9], [6, 6, 6, 9], [15, 15, 15, 21]]
    else:
        with pytest.raises(InvalidCheckpoint, match="groups that do not cut rows of 4 numbers"):
            sv.load(tmp_path / "m", dequantize=True)


def check_parts(path: Path, key: str, exact: Array, part: tuple[slice, ...]) -> None:
    with sv.open_checkpoint(path, dequantize="float32") as reader:
        assert same(reader.read(key), exact, "float32")
        assert same(reader.read(key, part), exact[part], "float32")


def test_each_of_stacked_matrices_has_tiles_of_scales(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    weights = rng.integers(0, 120, (2, 130, 64), np.uint8).view(E4M3)
    scales = rng.integers(120, 130, (2, 256, 4), np.uint8)
    tiles = scales.reshape(2, 2, 4, 32, 1, 4).transpose(0, 1, 4, 3, 2, 5).reshape(scales.shape)
    described = {"_type": "MXTensor", "_data": {"block_size": 32, "is_swizzled_scales": True}}
    tensors = {"_w_qdata": weights, "_w_scale": tiles.view(E8M0)}
    path = tmp_path / "m.safetensors"
    sv.save(path, tensors, metadata={"w": json.dumps(described)})
    exact = by_definition(weights, scales.view(E8M0).astype(np.float64), (1, 32))
    check_parts(path, "w", exact, np.s_[1:, 100:129, 3:40])


def test_packed_numbers_without_an_axis_of_blocks(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    packed = rng.integers(-128, 128, (4, 48), np.int8)
    scales = rng.integers(100, 150, (4, 3), np.uint8)
    sv.save(tmp_path / "m", {"w.weight": packed, "w.scale": scales.view(E8M0)}, partition=2)
    exact = fp4_by_definition(packed.view(np.uint8).reshape(4, 3, 16), scales)
    check_parts(tmp_path / "m", "w.weight", exact, np.s_[1:4, 7:91])


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", None])
def test_the_dtype_is_the_models(tmp_path: Path, name: str, dtype: str | None) -> None:
    sv.save(tmp_path / "m", scaled(np.float32(1)))
    config(tmp_path, text_config={name: dtype})
    for given_dtype, found in ((True, dtype if dtype in DTYPES else "bfloat16"), ("float32",) * 2):
        loaded = sv.load(tmp_path / "m", dequantize=given_dtype)
        assert loaded["w.weight"].dtype == DTYPES[str(found)]


def test_a_slice_reads_only_its_blocks_and_their_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    blocks = rng.integers(0, 256, (8, 256, 8, 16), np.uint8)
    tensors = scaled(np.ones((8, 8), "f4"), rng.integers(0, 120, (1024, 1024), np.uint8).view(E4M3))
    tensors |= {"x_blocks": blocks, "x_scales": np.full((8, 256, 8), 127, np.uint8)}
    sv.save(tmp_path / "m.safetensors", tensors)
    read, read_span = list[int](), ListedSource.read_span

    def counted(self: Any, number: int, start: int, buffer: memoryview) -> None:
        read.append(len(buffer))
        read_span(self, number, start, buffer)

    with sv.open_checkpoint(tmp_path / "m.safetensors", dequantize="float32") as reader:
        monkeypatch.setattr(ListedSource, "read_span", counted)
        for key, part, nbytes in (
            ("w.weight", np.s_[130:140], 10 * 1024 + 8 * 4),
            ("w.weight", np.s_[5, 200:204], 4 + 4),
            ("x", np.s_[3], blocks[3].nbytes + 256 * 8),
        ):
            reader.read(key, part)
            assert sum(read) == nbytes
            read.clear()


@pytest.mark.parametrize("key", ["w.weight", "w.weight_scale_inv"])
def test_damaged_weights_and_scales_are_found(key: str, tmp_path: Path) -> None:
    """Of the native format every byte is guarded, and so is every number."""
    sv.save(tmp_path / "m", scaled(np.ones((1, 1), np.float32)))
    with sv.open_checkpoint(tmp_path / "m") as reader:
        entries = reader.find(key)
        file, start = reader.index.files[int(entries.file[0])], int(entries.start[0])
    flip(tmp_path / file, start)
    for verb in (sv.load, lambda path, **more: sv.reshard(path, tmp_path / "n", **more)):
        with pytest.raises(CheckpointError, match="checksum"):
            verb(tmp_path / "m", dequantize=True)
    assert not list(tmp_path.glob("n*"))


ONE = np.ones((1, 1), np.float32)

B = np.ones((2, 2, 16), np.uint8)
"""Blocks of MXFP4."""


def scaled(scale: Any, weight: Array = W, suffix: str = "_scale_inv") -> dict[str, Array]:
    """A weight and its scales."""
    return {"w.weight": weight, f"w.weight{suffix}": scale}


def packed(*shapes: tuple[int, ...]) -> dict[str, Array]:
    """Codes and zeros of GPTQ or AWQ, and scales."""
    codes, zeros, scales = (np.ones(shape, np.int32) for shape in shapes)
    return {"w.qweight": codes, "w.qzeros": zeros, "w.scales": scales.astype("f4")}


def test_of_the_exceptions_of_gptq_the_first_that_matches_a_module_counts(tmp_path: Path) -> None:
    sv.save(tmp_path / "m", packed((1, 8), (1, 1), (1, 8)))
    described: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": -1}
    found = []
    for more in (
        {},
        {
            "bits": 2,
            "dynamic": {"-:w": {}, "+:x": {"bits": 3}, "w": {"bits": 4}, "+:.*": {"bits": 8}},
        },
    ):
        text = json.dumps({"quantization_config": described | more})
        (tmp_path / "config.json").write_text(text)
        found.append(sv.load(tmp_path / "m", dequantize=True)["w.weight"])
    assert found[0].shape == (8, 8) and np.array_equal(*found)


WRONG: dict[type[Exception], list[tuple[dict[str, Array], str]]] = {
    InvalidCheckpoint: [
        ({"w.weight": W}, "'w.weight' is of float8_e4m3fn, and its scales, such as 'w.weight_scale_inv'"),
        ({"w.weight_scale_inv": ONE}, "holds scales, and there is no 'w.weight'"),
        (scaled(ONE, np.ones(3, np.float32), "_scale"), "holds scales, and 'w.weight' is float32"),
        ({"x_scales": B[0]}, "there is no 'x_blocks'"),
        ({"x_blocks": B}, "'x_scales' is not there"),
        ({"x_blocks": B, "x_scales": np.ones((2, 3), np.uint8)}, r"shape \[2, 3\]"),
        ({"x": ONE, "x.blocks": B, "x.scales": B[..., 0]}, "would become 'x', which is there"),
        (scaled(np.ones((1, 2), np.float32)), r"shape \[1, 2\].* need \[1, 1\]"),
        (scaled(np.ones((3, 1), np.float32)), r"shape \[3, 1\]"),
        (scaled(np.ones((1, 1), np.int32), suffix="_scale"), "int32"),
        (scaled(ONE) | {"w.weight_scale": ONE}, "two sets of scales"),
        (scaled(ONE * nan), r"scale nan at \[0, 0\] of 'w.weight_scale_inv'"),
        (scaled(ONE * inf), "not a finite number"),
        (scaled(np.full((1, 1), 255, np.uint8).view(E8M0)), "not a finite number"),
        (scaled(ONE, np.ones((2, 2), np.int32), "_scale") | {"w.weight_packed": np.ones((2, 2), np.int32)},
         "compressed-tensors.*weight_shape' is not there"),
        ({"w.weight_packed": np.ones((2, 2), np.int32), "w.weight_scale": ONE, "w.weight_shape": np.ones(5000, int)},
         "'w.weight_packed'.*values of 'w.weight_shape' cannot be read"),
        (scaled(ONE, np.ones((2, 2), np.uint8), ".absmax"),
         "bitsandbytes.*quant_state.bitsandbytes__nf4' is not there"),
        ({"w.weight": np.ones((2, 2), np.int8), "w.SCB": ONE}, "LLM.int8"),
        ({"w.weight": np.array(3, np.int8), "w.scale": np.array(1).astype(E8M0)},
         "Rows of 1 elements hold no codes of 4 bits"),
    ],
    UnsupportedError: [
        (scaled(ONE * 3e38, np.full((1, 1), 126, np.uint8).view(E4M3)), "beyond float32"),
        (packed((2, 8), (1, 1), (1, 8)), "GPTQ"),
        (packed((2, 2), (1, 2), (1, 16)), "AWQ"),
        (scaled(ONE.astype(E4M3), np.ones((1, 8), np.uint8), "_scale") | {"w.weight_scale_2": ONE}, "NVFP4"),
        (scaled(ONE, np.ones((2, 2), np.int8), "_scale"), "integers of 8 bits"),
        ({"w.weight": W, "w.scale_weight": ONE}, "ComfyUI"),
        ({"w.weight": np.ones((8, 1), np.uint8), "w.weight.absmax": ONE[0], "w.weight.quant_map": np.ones(16, "f4"),
          "w.weight.quant_state.bitsandbytes__nf4": np.frombuffer(
            b'{"quant_type": "nf4", "blocksize": 64, "shape": [4, 4], "dtype": "float64"}', np.uint8)},
         "bitsandbytes.*its numbers are 'float64'"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("error", "tensors", "message"),
    [(error, *case) for error, cases in WRONG.items() for case in cases],
)
def test_what_is_wrong_or_of_another_scheme_is_refused_by_name(
    tmp_path: Path, error: type[Exception], tensors: dict[str, Array], message: str
) -> None:
    """Other tensors can be read all the same, and nothing is written."""
    sv.save(tmp_path / "m", {"other": ONE, **tensors})
    for verb in (sv.load, lambda path, **more: sv.reshard(path, tmp_path / "n", **more)):
        with pytest.raises(error, match=message):
            verb(tmp_path / "m", dequantize=True)
    assert not list(tmp_path.glob("n*"))
    assert sv.load(tmp_path / "m", "other", dequantize=True)["other"] == 1
    assert sv.load(tmp_path / "m").keys() == {"other", *tensors}


@pytest.mark.parametrize(
    ("name", "described", "words"),
    [
        ("config.json", {"quantization_config": {"quant_method": "quip"}}, "quip"),
        ("config.json", {"quantization": {"group_size": 64, "bits": 4}}, "MLX"),
        ("config.json", {"quantization_config": {"group_size": 64, "bits": 4}}, "MLX"),
        ("config.json", {"a": {"text": {"quantization_config": {"quant_method": "odd"}}}}, "odd"),
        ("config.json", {"quantization": "int4"}, "int4"),
        ("config.json", {"quantization": [4, 8]}, "an unknown scheme"),
        ("config.json", {"compression_config": {"format": "dense"}}, "an unknown scheme"),
        ("config.json", {"quantization": {"quant_algo": "W4A16_AWQ", "group_size": 128}}, "W4A16_AWQ"),
        ("hf_quant_config.json", {"producer": {"name": "modelopt"}}, "hf_quant_config.*modelopt"),
        ("quantize_config.json", {"bits": 4, "group_size": 128}, "quantize_config.*gptq"),
        ("quant_config.json", {"w_bit": 4}, "quant_config.*awq"),
    ],
)  # fmt: skip
def test_a_scheme_that_only_the_model_names_is_refused(
    name: str, described: dict[str, Any], words: str, tmp_path: Path
) -> None:
    sv.save(tmp_path / "m", {"w.odd": ONE})
    (tmp_path / name).write_text(json.dumps(described))
    with pytest.raises(UnsupportedError, match=words):
        sv.load(tmp_path / "m", dequantize=True)
    as_tensorrt = {"quantization": {"quant_algo": None, "group_size": 128}}
    others = {"quantization_config": None}, {"quantization": False}, {"q": [1]}, as_tensorrt
    for nothing in ({}, *others * (name == "config.json")):
        (tmp_path / name).write_text(json.dumps(nothing))
        assert sv.load(tmp_path / "m", dequantize=True)["w.odd"] == 1


@pytest.mark.parametrize("form", ["m", "m.safetensors", "m.npz", "m.pt"])
@given(
    weights=st.sampled_from(["weight", "kernel", "weight_packed", "qweight", "W_q", "weight._data", "_weight_qdata",
                             "weight:qdata", "q_weight", "kernel_quantized"]),
    dtype=st.sampled_from(["int8", "uint8", "int16", "int32", "uint32"]),
    scales=st.sampled_from(["scales", "scale", "weight_scale", "weight_scales", "scale_weight", "dequant_scale",
                            "absmax", "qzeros", "weight_scale_inv", "SCB", "per_channel_scale", "wscales",
                            "weights_scaling_factor"]),
    layer=st.sampled_from(["", "model.layers.0.q.", "x.", "a/b/"]),
)  # fmt: skip
@settings(max_examples=25)
def test_integers_with_scales_next_to_them_are_never_called_numbers(
    form: str, weights: str, dtype: str, scales: str, layer: str
) -> None:
    """By the names of no scheme; a copy keeps the bits, and what is counted is the rest."""
    scale_layer = layer + weights.removesuffix("_data") if weights.endswith("_data") else layer
    scale_layer += "weight:" if ":" in weights else ""
    scale = scale_layer + ("_scale" if weights.endswith("_data") else scales)
    tensors = {f"{layer}{weights}": np.ones((4, 2), dtype), scale: np.ones((4, 1), np.float32),
               "norm.scale": np.ones(3, np.float32), "norm.mask": np.ones((3, 3), "uint8")}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / form
        sv.save(path, tensors)
        with pytest.raises(
            (UnsupportedError, InvalidCheckpoint), match=re.escape(repr(next(iter(tensors))))
        ):
            sv.load(path, dequantize=True)
        copy = Path(folder) / "copy.safetensors"
        sv.reshard(path, copy)
        assert sv.diff(path, copy).equal
        described = [(key, str(each.dtype), each.shape) for key, each in tensors.items()]
        counted = count_parameters(described)
        assert set(counted.counted) == {"norm.scale"}
        assert set(counted.left_out) == {f"{layer}{weights}", "norm.mask"}


def test_ordinary_integers_next_to_scales_are_not_weights(tmp_path: Path) -> None:
    tensors = {"norm.scale": ONE, "norm.mask": np.ones((3, 3), np.uint8), "a.weight": ONE,
               "a.index": np.ones((2, 2), np.int32), "a.num_batches": np.ones((), np.int32),
               "e.weight": np.ones((2, 2), np.int64), "e.scale": ONE}  # fmt: skip
    sv.save(tmp_path / "m", tensors)
    assert sv.load(tmp_path / "m", dequantize=True).keys() == tensors.keys()


def test_descriptions_that_refuse(tmp_path: Path) -> None:
    """One that is no JSON, and metadata of ComfyUI beside scales that another scheme has by their name."""
    sv.save(tmp_path / "m.safetensors", scaled(ONE), metadata={"_quantization_metadata": "{}"})
    with pytest.raises(UnsupportedError, match="ComfyUI"):
        sv.load(tmp_path / "m.safetensors", dequantize=True)
    sv.save(tmp_path / "m.safetensors", {"w.odd": ONE})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(MalformedCheckpoint, match="config.json"):
        sv.load(tmp_path / "m.safetensors", dequantize=True)


def test_a_cast_rounds_once(tmp_path: Path) -> None:
    """Numbers of a reshard that casts have not lost bits before."""
    scale = np.float32(1.2345678)
    sv.save(tmp_path / "m", {"w.weight": W, "w.weight_scale": scale})
    exact = by_definition(W, np.array([[np.float64(scale)]]), (3, 4))
    casts: list[Any] = ["float32", {"w*": "float32"}]
    for number, cast in enumerate(casts):
        sv.reshard(tmp_path / "m", tmp_path / f"n{number}", dequantize=True, cast=cast)
        assert same(sv.load(tmp_path / f"n{number}")["w.weight"], exact, "float32")


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_cast_to_eight_bits_says_that_it_writes_no_scales(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dry_run: bool
) -> None:
    """And names the tensors that it makes so small, only these."""
    tensors = {"a": np.ones(2), "b": np.ones(2, np.float32), "n": np.ones(2, int), "w.weight": W}
    sv.save(tmp_path / "m", tensors)
    for dtype in NAMES:
        is_small = dtype.startswith("float") and has_values(dtype) and dtype != HALVES
        if is_small and numpy_dtype(dtype).itemsize == 1:
            caplog.clear()
            cast = {"a": dtype, "b": "bfloat16", "w*": "float8_e5m2"}
            sv.reshard(tmp_path / "m", tmp_path / dtype, cast=cast, dry_run=dry_run)
            assert f"no scales are written with 'a', cast to {dtype}. " in caplog.text
    caplog.clear()
    sv.reshard(tmp_path / "m", tmp_path / "large", cast="float16", dry_run=dry_run)
    assert not caplog.text


def test_workers_and_joined_sources_dequantize_too(tmp_path: Path) -> None:
    """Each rank has scales of its own for its rows."""
    sources = [tmp_path / str(half) / "m.safetensors" for half in range(2)]
    for half, source in enumerate(sources):
        source.parent.mkdir()
        sv.save(source, {"w.weight": W, "w.weight_scale": np.float32(half + 1)})
    sv.reshard(sources, tmp_path / "joined.safetensors", dequantize=True, concat={"*": 0})
    scales = np.array([[1.0]] * 3 + [[2.0]] * 3)
    exact = by_definition(np.concatenate([W, W]), scales, (1, 4))
    assert same(sv.load(tmp_path / "joined.safetensors")["w.weight"], exact, "bfloat16")
    with ThreadPoolExecutor(2) as executor:
        target = tmp_path / "n.safetensors"
        sv.reshard(sources[1], target, dequantize=True, executor=executor)
        assert sv.diff(sources[1], target, dequantize=True, executor=executor).equal
    assert same(sv.load(target)["w.weight"], exact[3:], "bfloat16")


def test_the_command_line_says_what_it_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sv.save("m.safetensors", {"w.weight": W, "w.weight_scale": np.float32(2)})
    config(tmp_path, quantization_config={"quant_method": "fp8"})
    said = (
        "note: dequantized 1 tensor of FP8 to bfloat16",
        "note: left out 1 tensor of scales: 'w.weight_scale'",
    )
    for words in (
        ["reshard", "m.safetensors", "n.safetensors", "--dequantize"],
        ["show", "m.safetensors", "w.weight", "--dequantize"],
        ["inspect", "m.safetensors", "--dequantize", "--stats"],
        ["view", "m.safetensors", "--dequantize", "-o", "p.html"],
        ["diff", "m.safetensors", "m.safetensors", "--dequantize"],
    ):
        assert main(words) == 0
        output = capsys.readouterr()
        assert all(each in output.out + output.err for each in said), words
    assert sv.load("n.safetensors")["w.weight"].dtype == ml_dtypes.bfloat16
    words = ["reshard", "m.safetensors", "c.safetensors", "--dequantize", "--cast", "float32"]
    assert main(words) == 0
    assert "to float32" in capsys.readouterr().err
    assert sv.load("c.safetensors")["w.weight"].dtype == np.float32
    assert main(["show", "m.safetensors", "w.weight", "0", "--dequantize-to", "float32"]) == 0
    assert "float32" in capsys.readouterr().out
    (tmp_path / "config.json").unlink()
    assert main(["show", "n.safetensors", "w.weight", "0", "--dequantize"]) == 0
    assert "nothing to dequantize" in capsys.readouterr().err


QUANTISED = Path(__file__).parents[1] / "golden/quantised"
CASES = {case["name"]: case for case in json.loads((QUANTISED / "index.json").read_text())}
"""Checkpoints of eleven libraries, with their numbers. In ``float32.npz`` these are computed in float32 and rounded
once, where the library rounds twice."""


def unpack(name: str, folder: Path) -> tuple[Path, list[dict[str, Array]]]:
    """The checkpoint, and its numbers: by the library, or rounded once."""
    with zipfile.ZipFile(QUANTISED / "cases.zip") as cases:
        members = [each for each in cases.namelist() if each.startswith(f"{name}/")]
        cases.extractall(folder, members)
    files = [folder / each for each in members]
    numbers = [dict(np.load(each)) for each in files if each.suffix == ".npz"]
    for each in files:
        if each.suffix == ".npz":
            each.unlink()
    return folder / name / "model.safetensors", numbers


def check_listing(
    path: Path, numbers: dict[str, Array], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the option tensors are listed with the shapes of their numbers, and shown by these."""
    assert main(["inspect", str(path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["num_parameters"] == sum(prod(each.shape) for each in numbers.values())
    rows = [row for row in listed["tensors"] if row["num_parameters"]]
    assert sorted(row["shape"] for row in rows) == sorted(
        [*each.shape] for each in numbers.values()
    )
    with sv.open_checkpoint(path) as reader:
        assert [[*reader[row["key"]].shape] for row in rows] == [
            row["stored_shape"] for row in rows
        ]
        columns = reader.columns()
    assert columns["shape"] == [tuple(row["shape"]) for row in listed["tensors"]]
    key = next(row["key"] for row in rows if row["encoding"] or row["dtype"].startswith("float8"))
    row = next(row for row in rows if row["key"] == key)
    for words, shape in ([], row["shape"]), (["--raw"], row["stored_shape"]):
        assert main(["show", str(path), key, "--json", *words]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["full_shape"] == shape
        assert shown["key"] == key if words else str(numbers[shown["key"]].dtype) == shown["dtype"]
    assert main(["view", str(path), "-o", str(path.parent / "page.html")]) == 0


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["kind"] == "read"])
def test_numbers_are_those_of_the_library(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whole, in a copy, and read in portions that begin and end within bytes, blocks and tiles."""
    path, numbers = unpack(name, tmp_path)
    tensors = CASES[name]["tensors"]
    found = sv.load(path, dequantize=True)
    assert {key: [str(each.dtype), [*each.shape]] for key, each in found.items()} == tensors
    for key, array in found.items():
        expected = [each[key].tobytes() for each in numbers if key in each]
        assert array.tobytes() in expected, key
    sv.reshard(path, tmp_path / "copy.safetensors", dequantize=True)
    assert sv.diff(path, tmp_path / "copy.safetensors", dequantize=True).equal
    check_listing(path, found, capsys)
    for portion in (37, 300):
        for step in ("_PORTION", "_TALL_PORTION", "_BAND_NBYTES", "_TALL"):
            value = 1 if step == "_TALL" else portion
            monkeypatch.setattr(f"shardvar.engine.quantised.{step}", value)
        key = max(tensors, key=lambda each: "norm" not in each and prod(found[each].shape) < 600)
        with sv.open_checkpoint(path, dequantize=True) as reader:
            assert reader.read(key).tobytes() == found[key].tobytes()
            assert reader.read(key, np.s_[1:-1, 3:-2]).tobytes() == found[key][1:-1, 3:-2].tobytes()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["kind"] == "read"])
def test_without_a_part_of_a_tensor_it_is_refused(name: str, tmp_path: Path) -> None:
    """Or the part means nothing for the numbers. Weights under ComfyUI's mark may have no scale."""
    path, numbers = unpack(name, tmp_path)
    with sv.open_checkpoint(path) as reader:
        metadata, tensors = (
            reader.metadata.user,
            {key: each.numpy() for key, each in reader.items()},
        )
    parts = [key for key in tensors if key not in numbers[0] or tensors[key].dtype.itemsize == 1]
    for part in {re.sub(r"\d", "0", key): key for key in parts}.values():
        if not part.endswith("scale_weight"):
            rest = {key: array for key, array in tensors.items() if key != part}
            sv.save(path, rest, force=True, metadata=metadata)
            try:
                found = sv.load(path, dequantize=True)
            except (InvalidCheckpoint, UnsupportedError):
                continue
            for key, array in found.items():
                assert array.tobytes() in [each[key].tobytes() for each in numbers if key in each]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("gptq_3bit_v1", "GPTQ 3-bit"), ("awq_gemm", "AWQ 4-bit"), ("modelopt_nvfp4", "NVFP4")],
)
def test_without_a_description_tensors_are_refused_and_counted(
    name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their shapes tell how many numbers they have, and not how these are computed."""
    path, _ = unpack(name, tmp_path)
    for description in path.parent.glob("*.json"):
        description.unlink()
    with pytest.raises(UnsupportedError, match="does not dequantize"):
        sv.load(path, dequantize=True)
    assert main(["inspect", str(path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    shapes = [shape for _, shape in CASES[name]["tensors"].values()]
    assert (
        listed["num_parameters"] == sum(map(prod, shapes)) and kind in listed["parameters_by_dtype"]
    )
    key = next(
        key for key in sv.load(path) if "weight" in key and "proj" in key and "scale" not in key
    )
    assert main(["show", str(path), key]) == 0
    assert "values as they are stored: " in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["kind"] == "bad"])
def test_tensors_that_do_not_fit_are_refused_by_name_and_all_others_are_read(
    name: str, tmp_path: Path
) -> None:
    path, (numbers,) = unpack(name, tmp_path)
    names = "|".join(re.escape(repr(key)) for key in CASES[name]["refused"])
    for verb in (sv.load, lambda *_, **more: sv.reshard(path, tmp_path / "copy", **more)):
        with pytest.raises((InvalidCheckpoint, UnsupportedError), match=names):
            verb(path, dequantize=True)
    assert not list(tmp_path.glob("copy*"))
    found = sv.load(path, [*CASES[name]["tensors"]], dequantize=True)
    assert all(array.tobytes() == numbers[key].tobytes() for key, array in found.items())
