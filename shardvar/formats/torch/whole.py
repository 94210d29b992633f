"""All that a Universal Checkpoint of DeepSpeed is written of, as keys of an open checkpoint.

Readers of ZeRO and of Universal Checkpoints list parameters, buffers and states. To write one
(``parameter_folders``), they also list these:

    mp_rank_00_model_states.pt, …     a file of the model as it is, as its bytes: a vector of uint8.
                                      It has what the run has saved next to the model
    optimizer.param_groups.0.lr, …    the groups of the optimizer
    zero/optimizer_state.pt           an object: what else DeepSpeed reads of the optimizer's file,
                                      and the names of the trained parameters and of the states
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from shardvar.errors import READ_ERRORS, MalformedCheckpoint, UnsupportedError
from shardvar.formats.files import DataFiles
from shardvar.formats.objects import payload_of
from shardvar.formats.torch.archive import Record
from shardvar.formats.torch.items import StoredObject, TensorView, read_view
from shardvar.formats.torch.names import UNIVERSAL
from shardvar.formats.torch.objects import plain_of
from shardvar.formats.torch.places import Stored
from shardvar.formats.torch.shares import whole_of
from shardvar.formats.torch.source import SavedContents
from shardvar.formats.torch.state_dict import Unpickled
from shardvar.formats.torch.tensors import StoredTensor, is_tensor
from shardvar.layout.dtypes import numpy_dtype
from shardvar.planning.index import NO_CHECKSUM
from shardvar.wire.damage import WRITE_AGAIN
from shardvar.wire.inert import Node
from shardvar.wire.plain import encode_value

RUN = f"{UNIVERSAL}/optimizer_state.pt"
"""The file of the optimizer, and the key of what DeepSpeed reads of it."""
STATE, GROUPS = "optimizer.state.", "optimizer.param_groups."
SCALERS = tuple(f"deepspeed.runtime.fp16.loss_scaler.{kind}LossScaler" for kind in ("", "Dynamic"))
"""The classes that hold the scale of losses in float16; no other class is written."""
SCALER = "loss_scaler"
_READ = ("dynamic_loss_scale", "overflow", "clip_grad", "ds_version")
"""The values of the optimizer's file that DeepSpeed reads in addition to groups and states."""


def stored_object(value: Any) -> StoredObject:
    """Return a plain value as a stored object."""
    return StoredObject(payload_of(value), encode_value(value).encode("ascii"))


def number_of(part: Unpickled, data: DataFiles, file: int, key: str) -> Any:
    """Return a number of a data file, or a tensor of one number, which is read."""
    value = part.value(key)
    if not is_tensor(value):
        return plain_of(value, part.room)
    view = whole_of(value, part.view)
    if view.tensor.count != 1:
        raise MalformedCheckpoint(f"{key!r} is not one number.", WRITE_AGAIN)
    octets = bytearray(view.nbytes)
    read_view(view, data, file, 0, memoryview(octets))
    return np.frombuffer(octets, numpy_dtype(view.tensor.dtype))[0]


def add_groups(contents: SavedContents, part: Unpickled, number: int, below: str) -> None:
    """Add the groups of the optimizer; ``below`` is the beginning of their keys in the file."""
    for key in part.leaves:
        if key.startswith(f"{below}param_groups."):
            name = f"optimizer.{key.removeprefix(below)}"
            try:
                contents.stored[name] = [Stored(number, part.object(key))]
            except READ_ERRORS as error:
                contents.faults[name] = error.at(RUN, repr(name))


def add_models(contents: SavedContents, data: DataFiles, numbers: Iterable[int]) -> None:
    """Add the files of the model as they are."""
    for number in numbers:
        nbytes = data.open(number).size
        record = Record(0, nbytes, NO_CHECKSUM)
        tensor = StoredTensor("uint8", (nbytes,), (1,), 0, "", nbytes, False, False)
        view = TensorView(tensor, record, is_big_endian=False)
        contents.stored[data.names[number]] = [Stored.whole(number, view)]


def add_module(contents: SavedContents, part: Unpickled, number: int) -> None:
    """Add the tensors of the module that have no other values: of frozen parameters, for
    example."""
    for key, value in part.leaves.items():
        name = key.removeprefix("module.")
        if name != key and is_tensor(value) and name not in contents.stored:
            contents.stored[name] = [Stored.whole(number, whole_of(part.value(key), part.view))]


def add_run(
    contents: SavedContents,
    number: int,
    leaves: Mapping[str, Any],
    groups: Iterable[Mapping[str, Any]],
) -> None:
    """Add what DeepSpeed reads of the optimizer's file, and the names of parameters and states,
    after these."""
    run = {key: plain_of(leaves[key]) for key in _READ if leaves.get(key) is not None}
    scaler = leaves.get(SCALER)
    if type(scaler) is Node:
        if scaler.name not in SCALERS or scaler.args not in ((), None) or scaler.items:
            cause = f"The scale of losses is an object of {str(scaler.name)[:200]!r}."
            raise UnsupportedError(cause, "Convert the checkpoint with ds_to_universal.py.")
        run[SCALER] = [scaler.name, plain_of(scaler.state)]
    states = {key.rpartition(".")[2] for key in contents.stored if key.startswith(STATE)}
    names = [key for group in groups for key in group]
    value = {"run": run, "parameters": names, "states": sorted(states)}
    contents.stored[RUN] = [Stored(number, stored_object(value))]
