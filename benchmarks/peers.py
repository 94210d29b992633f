"""The libraries that do the same job, behind one face. What they save they are made to sync, as shardvar does unasked.

``prepare`` turns arrays into what a library saves, so that conversions do not count. ``load`` gives fresh arrays, or
fills what was prepared where that is how the library restores.
"""

import os
import warnings
from collections.abc import Callable
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


class Npz:
    """NumPy's own, with CRC32."""

    def prepare(self, arrays: Arrays) -> Any:
        return arrays

    def save(self, directory: Path, state: Any) -> None:
        np.savez(directory / "model.npz", **state)

    def load(self, directory: Path, state: Any) -> Any:
        with np.load(directory / "model.npz") as file:
            return dict(file)


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


class TensorFlowKernels:
    """The kernels below it, without objects and variables; large tensors in 4 slices, restored as 3."""

    def __init__(self) -> None:
        self.library = import_tensorflow()

    def prepare(self, arrays: Arrays) -> Any:
        constant = self.library.constant
        slices = {(key, spec): constant(part) for key, array in arrays.items() for spec, part in _slices(array, 4)}
        wanted = [(key, spec, array.dtype) for key, array in arrays.items() for spec, _ in _slices(array, 3)]
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


PEERS: dict[str, Callable[[], Peer]] = {
    "safetensors": Safetensors,
    "npz": Npz,
    "DCP": Dcp,
    "TensorFlow": TensorFlow,
    "TensorFlow kernels": TensorFlowKernels,
    "Orbax": Orbax,
}


def find_peer(name: str) -> Peer | None:
    """The peer of that name, None where it is not installed."""
    try:
        return PEERS[name]()
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
