"""The libraries that do the same job, behind one face. What they save they are made to sync, as
shardvar does unasked.

No library compresses, since shardvar does not, but for Orbax, whose default does. Checksums are
each library's default: npz and Orbax have them, TensorFlow's kernels too; safetensors, TensorStore,
Zarr and DCP do not compare any.

``prepare`` turns arrays into what a library saves, so that conversions do not count. ``load`` gives
fresh arrays, or fills what was prepared where that is how the library restores.
"""

import os
import warnings
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Arrays = dict[str, np.ndarray]


class Peer(Protocol):
    """A library that saves and loads arrays."""

    def prepare(self, arrays: Arrays) -> Any:
        """The arrays as the library has them."""

    def save(self, directory: Path, state: Any) -> None:
        """Write them."""

    def load(self, directory: Path, state: Any) -> Any:
        """Read them; ``state``, what ``prepare`` gave, tells names, shapes and dtypes."""

    def names(self, directory: Path) -> Iterable[str]:
        """Open what was saved, and return the names of its arrays, as the library has them."""


class Safetensors:
    """One file, no checksums, no slices."""

    def __init__(self) -> None:
        from safetensors import numpy

        self.library = numpy

    def prepare(self, arrays: Arrays) -> Any:
        return arrays

    def save(self, directory: Path, state: Any) -> None:
        self.library.save_file(state, directory / "model.safetensors")

    def load(self, directory: Path, state: Any) -> Any:
        return self.library.load_file(directory / "model.safetensors")

    def names(self, directory: Path) -> Iterable[str]:
        from safetensors import safe_open

        with safe_open(directory / "model.safetensors", "np") as file:
            return list(file.keys())


class Npz:
    """NumPy's own, with CRC32."""

    def prepare(self, arrays: Arrays) -> Any:
        return arrays

    def save(self, directory: Path, state: Any) -> None:
        np.savez(directory / "model.npz", **state)

    def load(self, directory: Path, state: Any) -> Any:
        with np.load(directory / "model.npz") as file:
            return dict(file)

    def names(self, directory: Path) -> Iterable[str]:
        with np.load(directory / "model.npz") as file:
            return list(file.files)


class Dcp:
    """torch.distributed.checkpoint, in one process."""

    def __init__(self) -> None:
        import torch
        import torch.distributed.checkpoint

        self.torch = torch

    def prepare(self, arrays: Arrays) -> Any:
        return {key: self.torch.from_numpy(array) for key, array in arrays.items()}

    def save(self, directory: Path, state: Any) -> None:
        with warnings.catch_warnings(action="ignore"):
            self.torch.distributed.checkpoint.save(state, checkpoint_id=directory, no_dist=True)

    def load(self, directory: Path, state: Any) -> Any:
        fresh = {key: self.torch.empty_like(tensor) for key, tensor in state.items()}
        with warnings.catch_warnings(action="ignore"):
            self.torch.distributed.checkpoint.load(fresh, checkpoint_id=directory, no_dist=True)
        return fresh

    def names(self, directory: Path) -> Iterable[str]:
        reader = self.torch.distributed.checkpoint.FileSystemReader(directory)
        return reader.read_metadata().state_dict_metadata.keys()


class TensorFlow:
    """``tf.train.Checkpoint`` of variables, which a restore fills."""

    def __init__(self) -> None:
        self.library = import_tensorflow()

    def prepare(self, arrays: Arrays) -> Any:
        variables = {key: self.library.Variable(array) for key, array in arrays.items()}
        return self.library.train.Checkpoint(**variables)

    def save(self, directory: Path, state: Any) -> None:
        state.write(str(directory / "model"))

    def load(self, directory: Path, state: Any) -> Any:
        state.read(str(directory / "model")).assert_consumed()

    def names(self, directory: Path) -> Iterable[str]:
        return self.library.train.load_checkpoint(
            str(directory / "model")
        ).get_variable_to_shape_map()


class TensorFlowKernels:
    """The kernels below it, without objects and variables; large tensors in 4 slices, restored as
    3."""

    def __init__(self) -> None:
        self.library = import_tensorflow()

    def prepare(self, arrays: Arrays) -> Any:
        constant = self.library.constant
        slices = {
            (key, spec): constant(part)
            for key, array in arrays.items()
            for spec, part in _slices(array, 4)
        }
        wanted = [
            (key, spec, array.dtype)
            for key, array in arrays.items()
            for spec, _ in _slices(array, 3)
        ]
        return slices, wanted

    def save(self, directory: Path, state: Any) -> None:
        names, specs = zip(*state[0], strict=True)
        self.library.raw_ops.SaveV2(
            prefix=str(directory / "model"),
            tensor_names=list(names),
            shape_and_slices=list(specs),
            tensors=list(state[0].values()),
        )

    def load(self, directory: Path, state: Any) -> Any:
        names, specs, dtypes = zip(*state[1], strict=True)
        return self.library.raw_ops.RestoreV2(
            prefix=str(directory / "model"),
            tensor_names=list(names),
            shape_and_slices=list(specs),
            dtypes=[self.library.as_dtype(dtype) for dtype in dtypes],
        )

    def names(self, directory: Path) -> Iterable[str]:
        return self.library.train.load_checkpoint(
            str(directory / "model")
        ).get_variable_to_shape_map()


class Orbax:
    """Orbax, as it is used with JAX."""

    def __init__(self) -> None:
        import orbax.checkpoint

        self.checkpointer = orbax.checkpoint.PyTreeCheckpointer()

    def prepare(self, arrays: Arrays) -> Any:
        return arrays

    def save(self, directory: Path, state: Any) -> None:
        self.checkpointer.save(directory / "model", state)

    def load(self, directory: Path, state: Any) -> Any:
        return self.checkpointer.restore(directory / "model")

    def names(self, directory: Path) -> Iterable[str]:
        return self.checkpointer.metadata(directory / "model").item_metadata.tree


class OrbaxPlain(Orbax):
    """Orbax, which writes each chunk as a file."""

    def __init__(self) -> None:
        import orbax.checkpoint as library

        handler = library.PyTreeCheckpointHandler(use_ocdbt=False)
        self.checkpointer = library.Checkpointer(handler)


class TensorStore:
    """An array of Zarr version 3 for each, all of them at the same time; it syncs its files
    itself."""

    def __init__(self) -> None:
        import tensorstore

        self.library = tensorstore

    def prepare(self, arrays: Arrays) -> Any:
        return arrays

    def save(self, directory: Path, state: Any) -> None:
        opened = [
            (self._open(directory, key, state[key], create=True), array)
            for key, array in state.items()
        ]
        for written in [array.result().write(values) for array, values in opened]:
            written.result()

    def load(self, directory: Path, state: Any) -> Any:
        opened = {key: self._open(directory, key, array, open=True) for key, array in state.items()}
        read = {key: array.result().read() for key, array in opened.items()}
        return {key: values.result() for key, values in read.items()}

    def names(self, directory: Path) -> Iterable[str]:
        store = self.library.KvStore.open({"driver": "file", "path": f"{directory}/"}).result()
        found = [key.decode() for key in store.list().result()]
        return [key.removesuffix("/zarr.json") for key in found if key.endswith("/zarr.json")]

    def _open(self, directory: Path, key: str, array: np.ndarray, **how: bool) -> Any:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{directory}/{key}/"}}
        return self.library.open(
            spec, dtype=self.library.dtype(array.dtype), shape=array.shape, **how
        )


class Zarr:
    """zarr-python: a group, with an array for each."""

    def __init__(self) -> None:
        import zarr

        self.library = zarr

    def prepare(self, arrays: Arrays) -> Any:
        return arrays

    def save(self, directory: Path, state: Any) -> None:
        group = self.library.open_group(directory / "model", mode="w")
        for key, array in state.items():
            group.create_array(key, data=array, compressors=None)

    def load(self, directory: Path, state: Any) -> Any:
        group = self.library.open_group(directory / "model", mode="r")
        return {key: array[...] for key, array in group.arrays()}

    def names(self, directory: Path) -> Iterable[str]:
        return list(self.library.open_group(directory / "model", mode="r").array_keys())


LAYOUTS: dict[str, Callable[[], Peer]] = {"Orbax plain": OrbaxPlain}
"""Other ways in which a library writes, which only some measurements ask for."""

PEERS: dict[str, Callable[[], Peer]] = {
    "safetensors": Safetensors,
    "npz": Npz,
    "DCP": Dcp,
    "TensorFlow": TensorFlow,
    "TensorFlow kernels": TensorFlowKernels,
    "Orbax": Orbax,
    "TensorStore": TensorStore,
    "Zarr": Zarr,
}


def find_peer(name: str) -> Peer | None:
    """The peer of that name, None where it is not installed."""
    try:
        return {**PEERS, **LAYOUTS}[name]()
    except ImportError:
        return None


def import_tensorflow() -> Any:
    """TensorFlow, as quiet as it can be."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow

    return tensorflow


def _slices(array: np.ndarray, count: int) -> list[tuple[str, np.ndarray]]:
    """Slices of whole rows, each with TensorFlow's text for it; a small array is whole."""
    if array.nbytes < 1 << 20:
        return [("", array)]
    shape, rest = " ".join(map(str, array.shape)), "".join(":-" for _ in array.shape[1:])
    bounds = [number * len(array) // count for number in range(count + 1)]
    return [(f"{shape} {a},{b - a}{rest}", array[a:b]) for a, b in pairwise(bounds)]
