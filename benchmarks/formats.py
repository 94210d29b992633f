"""Reading and writing each format of the table, as ratios to the same tensors in shardvar's own format.

The formats are those that `shardvar formats` lists, so a new one is measured as soon as it is in the table. A format
that is only read needs a row in ``MAKERS``: how another library writes such a checkpoint.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

import shardvar as sv
from benchmarks.figures import Figure
from benchmarks.places import Place, emptied
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import MIB
from benchmarks.timing import Run
from shardvar.formats.table import format_named, format_names

COUNT, SIDE = 64, 512
"""Matrices, and the rows and columns of each: 1 MiB of float32, as in a small model."""
OWN = "shardvar"
AGAINST = "the format shardvar"

Arrays = Mapping[str, npt.NDArray[np.float32]]


def make_npy(path: Path, state: Arrays) -> None:
    """One array with the bytes of all."""
    np.save(path.with_suffix(".npy"), np.concatenate(list(state.values())))


def make_keras(path: Path, state: Arrays) -> None:
    """Weights of layers, as Keras 3 nests them."""
    import h5py

    with h5py.File(path.with_suffix(".weights.h5"), "w") as file:
        for key, matrix in state.items():
            file[f"layers/{key}/vars/0"] = matrix


def make_gguf(path: Path, state: Arrays) -> None:
    """Matrices of llama.cpp, not quantised."""
    import gguf

    writer = gguf.GGUFWriter(path.with_suffix(".gguf"), "llama")
    for key, matrix in state.items():
        writer.add_tensor(key, matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_flax(path: Path, state: Arrays) -> None:
    """Parameters of Flax in one file of msgpack."""
    from flax.serialization import msgpack_serialize

    path.with_suffix(".msgpack").write_bytes(msgpack_serialize({"params": dict(state)}))


def make_onnx(path: Path, state: Arrays) -> None:
    """Initializers of ONNX with external data in one file."""
    import onnx
    from onnx import helper, numpy_helper

    tensors = [numpy_helper.from_array(matrix, key) for key, matrix in state.items()]
    graph = helper.make_graph([], "model", [], [], initializer=tensors)
    onnx.save_model(
        helper.make_model(graph),
        path.with_suffix(".onnx"),
        save_as_external_data=True,
        location=f"{path.name}.onnx.data",
    )


MAKERS: dict[str, Callable[[Path, Arrays], None]] = {
    "npy": make_npy,
    "keras": make_keras,
    "gguf": make_gguf,
    "flax": make_flax,
    "onnx": make_onnx,
}
"""The formats that shardvar only reads."""


def is_written(name: str) -> bool:
    """Return True if shardvar writes the format."""
    return bool(format_named(name).capabilities.dtypes)


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of all formats but shardvar's own, which is what they are compared with."""
    draws = np.random.default_rng(0)
    state = {f"layer{row}": draws.standard_normal((SIDE, SIDE), np.float32) for row in range(COUNT)}
    place = setting.quiet
    own = place.room("own") / "ck"
    sv.save(own, state)
    for name in format_names():
        if name != OWN:
            yield from _figures(setting, place, name, state, own)


def _figures(
    setting: Setting, place: Place, name: str, state: Arrays, own: Path
) -> Iterator[Figure]:
    size = f"{COUNT * SIDE * SIDE * 4 / MIB:g} MiB"
    target = place.room(name) / "ck"
    if is_written(name):
        again = place.room("again") / "ck"
        ours = Run(partial(sv.save, target, state, format=name), emptied(target.parent))
        theirs = Run(partial(sv.save, again, state), emptied(again.parent))
        yield setting.ratio(f"save {size}, {name}", AGAINST, place, ours, theirs, None)
    else:
        try:
            MAKERS[name](target, state)
        except ImportError as error:
            yield skipped(f"load {size}, {name}", AGAINST, f"{error.name} is not installed")
            return
    ours, theirs = Run(partial(sv.load, target)), Run(partial(sv.load, own))
    yield setting.ratio(f"load {size}, {name}", AGAINST, place, ours, theirs, None)
    place.room(name)
