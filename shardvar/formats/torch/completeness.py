"""The content of a Universal Checkpoint of DeepSpeed, and whether it is whole.

    the file of each tensor         by its key (``path_of``)
    ``zero/optimizer_state.pt``     the groups of the optimizer, and what else DeepSpeed reads of it
    steps that are objects          ``zero/NAME/step.pt``
    the files of the model          unless they are copied as they are (``whole``)

A checkpoint is whole if it has all groups of the optimizer, values and all states of each trained
parameter, and exactly the parameters and states that the files of DeepSpeed name.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.errors import IncompleteCheckpoint, UnsupportedError
from shardvar.formats.torch.archive import build_frame, records_of, tensor_call
from shardvar.formats.torch.deepspeed import GROUPS, OF_MODEL, RUN, SCALER, STATE, UNIVERSAL
from shardvar.formats.torch.values import pickled_of
from shardvar.layout.dtypes import dtype_name
from shardvar.pictures.words import named
from shardvar.planning.slices import TensorTable
from shardvar.wire.inert import SIZE, OrderedMap
from shardvar.wire.opcode_writer import Call, Instance, build_pickle

STEP, _WEIGHT = "optimizer.step", "fp32"
_MODELS = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")
"""The file of the model, as stages 1 and 2 and as stage 3 call it."""
_VERSION = "0.19.8"
"""The release of DeepSpeed whose layout is written, where no file names one."""
_MAX_NAME_NBYTES = 255
_WHOLE = "Convert a checkpoint of the whole training state, such as a folder of ZeRO."


def path_of(key: str) -> str:
    if key == STEP:
        return RUN
    if OF_MODEL.fullmatch(key):
        return key
    name, state = _parts_of(key)
    return f"{UNIVERSAL}/{name}/{state}.pt"


def _parts_of(key: str) -> tuple[str, str]:
    """Return the parameter and the state of a key.

    >>> _parts_of("lin.weight"), _parts_of("optimizer.state.lin.weight.exp_avg")
    (('lin.weight', 'fp32'), ('lin.weight', 'exp_avg'))
    """
    if not key.startswith(STATE):
        return key, _WEIGHT
    name, _, state = key.removeprefix(STATE).rpartition(".")
    return name, state


@dataclass(frozen=True, slots=True)
class UniversalPlan:
    """The files that are written in addition to the tensors."""

    run: Mapping[str, Any]
    """The content of ``zero/optimizer_state.pt``, without a step that is a tensor."""
    documents: Mapping[str, bytes]
    """The files that hold no tensor of the source, by path."""

    @classmethod
    def of(
        cls, tensors: TensorTable, objects: dict[str, Any], ties: Mapping[str, str]
    ) -> "UniversalPlan":
        models = [key for key in tensors.keys if OF_MODEL.fullmatch(key)]
        others = [key for key in tensors.keys if key != STEP and key not in models]
        states: dict[str, set[str]] = {}  # of the parameters that are trained
        for key in (*others, *objects):
            if key.startswith(STATE):
                name, state = _parts_of(key)
                states.setdefault(name, set()).add(state)
        _check_keys(tensors, models, others, ties)
        about = objects.pop(RUN, None)
        _check_whole(tensors, states, about)
        run: dict[str, Any] = {"ds_version": _VERSION}
        if about:
            run |= about["run"]
        if SCALER in run:
            name, state = run[SCALER]
            run[SCALER] = Instance(name, pickled_of(state))
        run["param_groups"] = _groups_of(objects)
        documents = {}
        step = objects.pop(STEP, None)
        if STEP not in tensors.keys:
            documents[RUN] = _with_number(lambda number: with_step(run, number), step)
        for key in [key for key in objects if key.startswith(STATE)]:
            documents[path_of(key)] = _with_number(lambda number: number, objects.pop(key))
        if models and objects:
            cause = f"The files of the model have no room for {named(sorted(objects))}."
            raise UnsupportedError(cause, "Leave it out with exclude= (--exclude).")
        if not models:
            trained = {name: tensors.shape(tensors.rows()[name]) for name in states}
            documents |= dict.fromkeys(_MODELS, _model_of(trained, objects, ties))
        return cls(run, documents)


def _check_keys(
    tensors: TensorTable, models: Sequence[str], others: Sequence[str], ties: Mapping[str, str]
) -> None:
    for key in models:
        row = tensors.rows()[key]
        if tensors.dtype(row) != "uint8" or len(tensors.shape(row)) != 1:
            raise UnsupportedError(f"{key!r} is a file, and not a tensor.", "Do not change it.")
    for key in (*others, *ties):
        name, state = _parts_of(key)
        is_odd = key.startswith("optimizer.") and not key.startswith(STATE)
        is_odd |= key.startswith(STATE) and key in ties
        if is_odd or "_model_states.pt" in key:
            cause = f"{key!r} is neither a parameter nor a state of one."
            raise UnsupportedError(cause, "Rename it (--rename), or leave it out (--exclude).")
        for step in (name, f"{state}.pt"):
            if step in ("", ".", "..", ".pt", "optimizer_state.pt") or {*step} & {"/", "\0", "\\"}:
                cause = f"{key!r}: {step!r} cannot be the name of a file or a folder."
                raise UnsupportedError(cause, "Rename it (--rename).")
            if len(os.fsencode(step)) > _MAX_NAME_NBYTES:
                cause = f"{key!r}: {step!r} has more than {_MAX_NAME_NBYTES} bytes."
                raise UnsupportedError(cause, "Rename it (--rename).")


def _check_whole(tensors: TensorTable, states: Mapping[str, set[str]], about: Any) -> None:
    rows = tensors.rows()
    if not states:
        cause = (
            "A Universal Checkpoint needs states of the optimizer, and the source has no key like"
        )
        raise IncompleteCheckpoint(f"{cause} 'optimizer.state.NAME.exp_avg'.", _WHOLE)
    every = set[str]().union(*states.values())
    for name, mine in states.items():
        lacking = sorted(every - mine)
        if name not in rows:
            raise IncompleteCheckpoint(f"The parameter {name!r} has states and no values.", _WHOLE)
        if lacking:
            cause = f"The parameter {name!r} lacks states that others have: {named(lacking)}."
            raise IncompleteCheckpoint(cause, _WHOLE)
        dtype = tensors.dtype(rows[name])
        if dtype != "float32":
            cause = f"The parameter {name!r} is {dtype}, and its file has float32."
            raise UnsupportedError(cause, "Cast it (--cast float32).")
        for state in sorted(mine - {"step"}):
            row = rows.get(f"{STATE}{name}.{state}")
            if row is None or tensors.shape(row) != tensors.shape(rows[name]):
                cause = f"The state {state!r} of {name!r} has not the shape of the parameter."
                raise UnsupportedError(cause, _WHOLE)
    for kind, mine in (("parameters", {*states}), ("states", every)):
        odd = sorted(mine ^ {*about[kind]}) if about is not None else []
        if odd:
            cause = f"The files of DeepSpeed have other {kind} than are written: {named(odd)}."
            raise IncompleteCheckpoint(cause, "Write all of them, under their names.")


def _groups_of(objects: dict[str, Any]) -> list[dict[str, Any]]:
    """Take the groups of the optimizer out of objects."""
    groups: dict[int, dict[str, Any]] = {}
    for key in [key for key in objects if key.startswith(GROUPS)]:
        number, _, name = key.removeprefix(GROUPS).partition(".")
        if not name or not number.isdecimal():
            raise UnsupportedError(f"{key!r} is of no group.", "Leave it out (--exclude).")
        groups.setdefault(int(number), {})[name] = pickled_of(objects.pop(key))
    if not groups or sorted(groups) != [*range(len(groups))]:
        cause = (
            "A Universal Checkpoint needs all groups of the optimizer, and there are "
            f"{named([*map(str, sorted(groups))]) if groups else 'none'}: objects like '{GROUPS}0.lr'."
        )
        raise IncompleteCheckpoint(cause, _WHOLE)
    return [groups[number] for number in range(len(groups))]


def with_step(run: Mapping[str, Any], step: Any) -> dict[str, Any]:
    """Return the value of the optimizer's file, which stage 3 reads in another place."""
    if step is None:
        return {**run}
    inner = {"state": {0: {"step": step}}, "param_groups": run["param_groups"]}
    return {**run, "optimizer_state_dict": inner}


def _with_number(make: Callable[[Any], Any], number: Any) -> bytes:
    """Return a file with the value that ``make`` makes of a number; a scalar becomes a tensor."""
    if not isinstance(number, np.generic):
        records = records_of(build_pickle(make(pickled_of(number))), [])
        return b"".join(octets for _, octets in build_frame(records, []))
    octets = np.asarray(number, number.dtype.newbyteorder("<")).tobytes()
    tensor = tensor_call(dtype_name(number.dtype), (), 0)
    records = [
        each._replace(content=octets) if each.content is None else each
        for each in records_of(build_pickle(make(tensor)), [len(octets)])
    ]
    return b"".join(octets for _, octets in build_frame(records, []))


def _model_of(
    shapes: Mapping[str, tuple[int, ...]], objects: Mapping[str, Any], ties: Mapping[str, str]
) -> bytes:
    sizes = OrderedMap((key, Call(SIZE, (shape,))) for key, shape in shapes.items())
    state = {key: pickled_of(value) for key, value in objects.items()} | {
        "module": OrderedMap(),
        "buffer_names": [],
        "optimizer": None,
        "param_shapes": [sizes],
        "frozen_param_shapes": None,
        "shared_params": dict(ties),
        "frozen_param_fragments": None,
        "lr_scheduler": None,
        "skipped_steps": 0,
        "global_steps": 0,
        "global_samples": 0,
        "dp_world_size": 1,
        "mp_world_size": 1,
        "ds_version": _VERSION,
    }
    records = records_of(build_pickle(state), [])
    return b"".join(octets for _, octets in build_frame(records, []))
