"""Save and load the state of a training job, without messages between its processes.

save    leaves --> local shards and objects --> one share a process --> commit (``verbs.together``)
load    leaves of a template --> regions of this process's devices --> one plan --> a new pytree

One process writes formats that have no shares as ``sv.save`` does.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from shardvar.errors import ArgumentError, ShardvarError
from shardvar.formats.protocol import SharedFormat
from shardvar.jax.leaves import (
    HeldTree,
    StoredForm,
    assembled,
    connected_processes,
    copied_tree,
    device_regions,
    form_of,
    held_tree,
    is_jax_array,
    tree_leaves,
)
from shardvar.layout.dtypes import STRING, numpy_dtype
from shardvar.layout.region import Region
from shardvar.planning.index import KEY_IMPL
from shardvar.records import entity, replace
from shardvar.verbs.arguments import texts_of
from shardvar.verbs.background import Aftercare, PendingSave, Staging, Turn, save_next
from shardvar.verbs.load import open_checkpoint
from shardvar.verbs.locate import Location, Path, find_target
from shardvar.verbs.reader import Reader
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.together.fence import telling
from shardvar.verbs.together.run import Run, SaveOptions, find_run
from shardvar.verbs.together.share_hashes import find_older
from shardvar.verbs.together.shares import save_alone, save_with_objects, source_of_shards
from shardvar.verbs.training.states import (
    cast_array,
    check_stored_tensor,
    in_portions,
    objects_of,
    unmatched_keys,
)
from shardvar.verbs.writer_process import WRITER_PROCESS, SharedStaging, save_by_writer

_TURN = Turn()
"""The saves of this process: one in the background at a time."""
_MEMORY, _SHARED = Staging(), SharedStaging()
"""The memory for the values of such a save, by a thread and by a process."""


def job_processes() -> tuple[int, int]:
    """Return the number of this process, and the number of processes, as JAX knows them.

    Examples
    --------
    ``process, count = shardvar.jax.processes()``
    """
    return jax.process_index(), jax.process_count()


def save_pytree(
    path: Path,
    state: Any,
    *,
    run: str,
    format: str = "shardvar",
    metadata: Mapping[str, str] | None = None,
    replicas: str = "equal",
    force: bool = False,
    timeout: float = 600.0,
    digest: bool = False,
    background: bool | str = False,
    busy: str = "wait",
    staging_nbytes: int | None = None,
    base: Path | None = None,
    on_error: str = "raise",
    on_saved: Callable[[WriteReport], object] | None = None,
) -> WriteReport | PendingSave:
    """Save the state of a training job; every process calls this.

    Parameters
    ----------
    path : path_like
        The checkpoint, the same in every process: a path or a URL.
    state : pytree
        A tree of arrays of JAX and NumPy, random keys, numbers, and plain values such as texts:
        dicts, states of Flax and Optax, dataclasses, and any other class that is registered.
    run : str
        A text that no other save of this path has, the same in every process, such as the step.
    format : str, default 'shardvar'
        The format: ``'shardvar'`` or ``'torch'``; in a job of one process any that is written, such
        as ``'orbax'``.
    metadata : mapping of str to str, optional
        Texts to keep in the checkpoint.
    replicas : {'equal', 'first'}, default 'equal'
        Arrays that each process has for itself, and plain values, must be equal in all processes.
        With ``'first'``, the lowest process's is saved.
    force : bool, default False
        Replace an existing checkpoint also where the format cannot do that in one step.
    timeout : float, default 600.0
        The seconds to wait for other processes.
    digest : bool, default False
        Keep the digest of each tensor in the checkpoint, which is the same on any mesh, as in
        ``sv.save_shards``; in the native format.
    background : bool or 'process', default False
        Return, and save in another thread. The training may donate its arrays, and change arrays of
        NumPy. What can change, or lies on another device than the host, is copied first. Memory that
        an array of JAX shares with another library, as after ``jax.device_put``, must stay as it is
        until the save has ended, as JAX requires at any time. With ``'process'``, another process
        writes, as in ``shardvar.torch.save``, and all values are copied first.
    busy : {'wait', 'raise'}, default 'wait'
        Wait while a save in the background is under way, or raise ``StillSaving``.
    staging_nbytes : int, optional
        The most memory for the copy, which is kept for the next save; without a limit by default.
    base : path_like, optional
        A checkpoint in the same directory, such as the one before, the same in every process. Values
        that lie in it unchanged are not written, as in ``sv.save_shards``; in the native format.
    on_error : {'raise', 'warn'}, default 'raise'
        With ``'warn'``, a save that fails is a warning in the log, and its report has the ``error``, as in
        ``shardvar.torch.save``.
    on_saved : callable, optional
        Called with the report once the checkpoint is durable, or has failed; in the background by
        another thread.

    Returns
    -------
    WriteReport or PendingSave
        The report of this process's share; with ``background`` the save in progress, to be joined
        for the report.

    Raises
    ------
    ArgumentError
        If processes disagree on a value, two values have one key, an array was deleted, or the copy
        takes more than ``staging_nbytes``.
    StillSaving
        If a save is under way, and ``busy='raise'``.
    ArgumentTypeError
        If an array has no values yet, as in ``jax.jit``.
    IncompleteCheckpoint
        If a process did not save within ``timeout``, or no process has a region.
    TargetExists
        If the checkpoint exists, cannot be replaced in one step, and ``force`` is not set.
    UnsupportedError
        If a value cannot be saved, or several processes cannot write the format.
    StorageError
        If another writer has replaced the checkpoint, or the file system refuses.

    Notes
    -----
    Process and number of processes are JAX's. No computation is called on several processes: they
    meet in the directory, as in ``sv.save_shards``, and an error of one is an error of all. Each
    region is written once, by the device that has its first replica. Values that differ by process
    need a key for each process. Keys are as in Orbax: the steps on the way to a leaf, joined by
    dots. None and empty containers have no key.

    In the background, an error of the thread is raised by ``join`` of the handle, or else by the
    next save. An interpreter that ends waits for the thread; a process that is killed leaves the
    checkpoint that was there before.

    Examples
    --------
    ``shardvar.jax.save("run/step-7", {"params": params, "opt_state": opt_state, "step": 7}, run="7")``
    """
    process, count = job_processes()
    texts = texts_of(metadata)
    options = SaveOptions(replicas, force, timeout=timeout, digest=digest, base=base, is_state=True)

    def find() -> Run:
        return find_run(path, run, count, format, peers=connected_processes(), options=options)

    def save(placed: tuple[Location, HeldTree]) -> WriteReport:
        target, held = placed
        form, about, tensors = target.format, held.about, held.tensors
        has_shares = isinstance(form, SharedFormat) and form.adopts_objects()
        if count == 1 and not has_shares:
            if base is not None:
                find_older(base, target)  # which refuses a format without references
            source = source_of_shards(tensors)
            if background == "process":
                call = partial(save_alone, target, source, about, options)
                return WRITER_PROCESS.run(target.path, call, _SHARED)
            return save_alone(target, source, about, options)
        if form.name == "shardvar":  # whose index has the keys only
            about = replace(about, paths={})
        about = replace(about, empty={})
        if background == "process":
            with telling(find, process):
                source = source_of_shards(tensors)
            return save_by_writer(_SHARED, find(), process, source, about, tensors)
        return save_with_objects(find(), process, tensors, about)

    def held() -> tuple[Location, HeldTree]:
        target = find_target(path, format, otherwise="shardvar")
        with telling(find, process):
            found = held_tree(state, texts)
            if background:
                is_shared = background == "process"
                memory = _SHARED if is_shared else _MEMORY
                found = copied_tree(found, memory, staging_nbytes, is_shared=is_shared)
            return target, found

    after = Aftercare(on_error, on_saved)
    return save_next(_TURN, str(path), held, save, busy=busy, background=background, after=after)


@entity
class _Wanted:
    """A tensor that is read for a leaf of the template."""

    value: Any
    form: StoredForm
    devices: dict[Any, Region]
    """The region of each device; the whole for None, where no device is given."""

    @property
    def regions(self) -> list[Region]:
        return [*dict.fromkeys(self.devices.values())]

    @property
    def nbytes(self) -> int:
        size = numpy_dtype(self.form.dtype).itemsize
        return sum(region.size for region in self.regions) * size


def load_pytree(
    path: Path,
    like: Any,
    *,
    strict: bool = True,
    verify: str = "full",
    cast: bool = False,
    return_report: bool = False,
) -> Any:
    """Return a state with the values of a checkpoint, on any mesh and number of processes; every
    process calls this.

    Parameters
    ----------
    path : path_like
        The checkpoint, in any format, as for ``sv.open_checkpoint``: a path or a URL.
    like : pytree
        The template: a state as ``save`` takes it, or with a ``jax.ShapeDtypeStruct`` for an array,
        as ``jax.eval_shape`` makes them. Its shardings say which device gets which region.
    strict : bool, default True
        Raise if the template and the checkpoint differ in their keys. Otherwise the values of the
        template stay where the checkpoint has none.
    verify : {'full', 'auto'}, default 'full'
        With ``'full'``, compare all that is read with checksums. If the format has one only of a
        whole slice, the slice is read whole. With ``'auto'``, read only the part that is needed, and
        compare no such checksum.
    cast : bool, default False
        Cast tensors to the dtypes of the template. By default a dtype that differs is an error.
    return_report : bool, default False
        Also return the keys that only one of the two has.

    Returns
    -------
    pytree
        A new state of the structure of ``like``.
    LoadReport
        The keys that only one of the two has, with ``return_report``.

    Raises
    ------
    ArgumentError
        If keys, dtypes or shapes differ, a key is a tensor in only one of the two, a sharding does
        not divide an array, or random keys have another implementation.
    CheckpointNotFound
        If there is no checkpoint at ``path``.
    CheckpointError
        If the checkpoint is damaged or incomplete.

    Notes
    -----
    Each process reads only the regions of its devices, together, and each of them once. Keys, dtypes
    and shapes are compared before anything is read. An array of the template that JAX has placed
    itself, and a ``ShapeDtypeStruct`` without a sharding, give an array that JAX places. Numbers of
    Python are given back as numbers, arrays of NumPy as arrays of NumPy.

    Examples
    --------
    ``state = shardvar.jax.load("run/step-7", state)``
    """
    leaves, structure = tree_leaves(like)
    # The turn may be of the save of this checkpoint.
    with _TURN.taken(), open_checkpoint(path) as reader:
        # Check.
        report = unmatched_keys(reader, leaves.keys(), strict, count=job_processes()[1])
        missing = {*report.missing}
        for key in missing:
            if isinstance(leaves[key].value, jax.ShapeDtypeStruct):
                cause = f"{reader.path} lacks {key!r}, and the template has no values for it."
                raise ArgumentError(cause, "Give the template an array there.")
        wanted: dict[str, _Wanted] = {}
        objects: list[str] = []
        for key, leaf in sorted(leaves.items()):  # in one order in all processes
            if key in missing:
                continue
            tensor = _wanted(reader, key, leaf.value, cast)
            if tensor is None:
                objects.append(key)
            else:
                wanted[key] = tensor
        values = {key: leaves[key].value for key in missing} | objects_of(reader, objects)
        # Move.
        for batch in in_portions(wanted.items(), lambda item: item[1].nbytes):
            values |= _read(reader, dict(batch), verify)
    state = jax.tree_util.tree_unflatten(structure, [values[key] for key in leaves])
    return (state, report) if return_report else state


def _wanted(reader: Reader, key: str, value: Any, cast: bool) -> _Wanted | None:
    """Return the tensor to read for a leaf, None for an object; raise if the two differ."""
    stored = reader[key]
    if type(value) in _KINDS and stored.dtype == STRING:  # a number that no array holds
        return None
    try:
        form = form_of(value)
        if form is None:
            return None
        devices = device_regions(value, form)
        if form.key_impl is not None:
            stored_impl = reader.metadata.user.get(KEY_IMPL + key)
            if stored_impl not in (None, str(form.key_impl)):
                raise ArgumentError(
                    f"Its random keys are {stored_impl} in {reader.path}, and {form.key_impl} in the "
                    "template.",
                    "Give the template keys of the same implementation.",
                )
        elif is_jax_array(value) and jax.dtypes.canonicalize_dtype(value.dtype) != value.dtype:
            cause = f"JAX has no arrays of {form.dtype} as it is configured."
            raise ArgumentError(cause, "Set jax_enable_x64, or give the template another dtype.")
    except ShardvarError as error:
        raise error.at(repr(key)) from None
    if stored.dtype == STRING != form.dtype:
        cause = f"{key!r} is an array in the template, and has the dtype {STRING} in {reader.path}."
        raise ArgumentError(cause, "Give the template the same kind of value.")
    if type(value) in _KINDS and stored.dtype.startswith(_KINDS[type(value)]):
        form = replace(form, dtype=stored.dtype)
    facts = (stored.dtype, stored.shape), (form.dtype, form.shape)
    check_stored_tensor(reader.path, key, *facts, cast=cast)
    return _Wanted(value, form, devices)


_KINDS: dict[type, tuple[str, ...]] = {
    bool: ("bool",),
    int: ("int", "uint"),
    float: ("float", "bfloat"),
    complex: ("complex",),
}
"""The beginnings of the dtypes that have a number of Python exactly."""


def _read(reader: Reader, wanted: Mapping[str, _Wanted], verify: str) -> dict[str, Any]:
    """Return the values of leaves: all regions are read with one plan."""
    requests = [(key, region) for key, each in wanted.items() for region in each.regions]
    arrays = dict(zip(requests, reader.read_many(requests, verify), strict=True))
    values: dict[str, Any] = {}
    for key, each in wanted.items():
        parts = {
            device: cast_array(arrays[key, region], each.form.dtype, key)
            for device, region in each.devices.items()
        }
        if is_jax_array(each.value):
            values[key] = assembled(each.value, each.form, parts)
        elif isinstance(each.value, np.ndarray):
            values[key] = parts[None]
        elif isinstance(each.value, np.generic):
            values[key] = parts[None][()]
        else:
            values[key] = type(each.value)(parts[None].item())
    return values
