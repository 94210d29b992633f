"""Quantised tensors: their numbers beside the libraries that read them, writing them beside the same reshard
without, and the memory of both."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import shardvar as sv
from benchmarks.child import call, peak_nbytes
from benchmarks.figures import Figure
from benchmarks.places import Place, emptied
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import GIB, MIB
from benchmarks.timing import Run
from shardvar.layout.dtypes import numpy_dtype

WRITE_TARGET, READ_TARGET, PEAK_TARGET = 3.0, 1.0, 256.0
SCHEMES = ("fp8-block", "fp8-channel", "int8", "int4", "mxfp4", "nvfp4", "mlx-4bit", "q8_0")
READ = {"fp8-block": "transformers", "int4": "compressed_tensors", "nvfp4": "compressed_tensors"}
"""Schemes whose numbers are compared, and the library that computes them."""
SIDE = 4096
"""Rows and columns of each matrix of bfloat16: 32 MiB."""


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of quantised tensors."""
    place, nbytes = setting.quiet, setting.sizes.reshard_nbytes // 8
    size = f"{nbytes / GIB:g} GiB"
    if not place.has_room_for(4 * nbytes):
        yield skipped(f"quantised tensors of {size}", "reshard", f"no room in {place.name}")
        return
    source, target = place.room("source"), place.room("target")
    call(write_matrices, str(source), nbytes, 1)
    for scheme in SCHEMES:
        out = target / ("out.gguf" if scheme[0] == "q" else "out.safetensors")
        ours = Run(partial(sv.reshard, source, out, quantize=scheme), emptied(target))
        theirs = Run(partial(sv.reshard, source, target / "t.safetensors"), emptied(target))
        subject = f"quantise {size} to {scheme}"
        yield setting.ratio(subject, "reshard", place, ours, theirs, WRITE_TARGET)
    yield from _numbers(setting, place, source, size)
    call(write_matrices, str(source), nbytes * 4, 4)
    for scheme in ("fp8-block", "nvfp4"):
        made, numbers = place.room("target"), place.room("numbers")
        whole = f"{nbytes * 4 / GIB:g} GiB"
        peak = call(peak_of, str(source), str(made), {"quantize": scheme})
        subject = f"quantise {whole} to {scheme}: peak memory of the process"
        yield Figure(subject, "", place.name, peak / MIB, "MiB", PEAK_TARGET)
        peak = call(peak_of, str(made / "out"), str(numbers), {"dequantize": True})
        subject = f"dequantise {whole} from {scheme}: peak memory of the process"
        yield Figure(subject, "", place.name, peak / MIB, "MiB", PEAK_TARGET)
    for name in ("source", "target", "numbers"):
        place.room(name)


def _numbers(setting: Setting, place: Place, source: Path, size: str) -> Iterator[Figure]:
    for scheme, library in READ.items():
        subject = f"load the numbers of {size} from {scheme}"
        if find_spec(library) is None or find_spec("torch") is None:
            yield skipped(subject, library, f"{library} is not installed")
            continue
        folder = place.room("target")
        sv.reshard(source, folder / "out", quantize=scheme)
        ours = Run(partial(sv.load, folder / "out", dequantize=True))
        theirs = Run(partial(_READERS[library], folder / "out/model.safetensors", scheme))
        yield setting.ratio(subject, f"{library} and torch", place, ours, theirs, READ_TARGET)


def _by_transformers(path: Path, _scheme: str) -> int:
    import torch
    from safetensors.torch import load_file
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    found, one = load_file(path), Fp8Dequantize(None)._dequantize_one
    keys = [key for key in found if f"{key}_scale_inv" in found]
    return len([one(found[key], found[f"{key}_scale_inv"], torch.bfloat16) for key in keys])


def _by_compressed_tensors(path: Path, scheme: str) -> int:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
    from safetensors.torch import load_file

    preset, form = {"int4": ("W4A16", "pack"), "nvfp4": ("NVFP4A16", "nvfp4-pack")}[scheme]
    compressor = BaseCompressor.get_value_from_registry(f"{form}-quantized")
    found, layers = load_file(path), dict[str, dict[str, Any]]()
    for key, tensor in found.items():
        layer, _, name = key.rpartition(".")
        layers.setdefault(layer, {})[name] = tensor
    given = preset_name_to_scheme(preset, ["Linear"])
    return len([compressor.decompress(each, given) for each in layers.values()])


_READERS: dict[str, Callable[[Path, str], int]] = {
    "transformers": _by_transformers,
    "compressed_tensors": _by_compressed_tensors,
}


def write_matrices(room: str, nbytes: int, tall: int) -> None:
    """A model folder of matrices of bfloat16."""
    rng, shape = np.random.default_rng(0), (SIDE * tall, SIDE)
    some = rng.standard_normal(shape, np.float32).astype(numpy_dtype("bfloat16"))
    state = {f"layers.{n}.q.weight": some for n in range(max(1, nbytes // some.nbytes))}
    sv.save(Path(room, "model.safetensors"), state, force=True)
    Path(room, "config.json").write_text('{"dtype": "bfloat16"}')


def peak_of(source: str, target: str, options: dict[str, Any]) -> int:
    """The most memory of a process that only does this."""
    sv.reshard(source, Path(target, "out"), **options)
    return peak_nbytes()
