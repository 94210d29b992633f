"""Save and load the state of a training job, without messages between its processes.

save    leaves --> local shards and objects --> one share a process --> commit (``verbs.together``)
        in the background: leaves --> a copy (``held``) | in a thread, the rest
load    leaves --> regions that this process needs --> one plan --> into the tensors of the state
"""

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist

from shardvar.errors import ArgumentError
from shardvar.planning.index import Metadata
from shardvar.storage.concurrency import without_collection
from shardvar.torch.leaves import (
    CLASS,
    Copies,
    HeldState,
    Leaf,
    LoadedObject,
    check_class,
    check_has_memory,
    fit_lists,
    give_memory,
    held_by,
    held_state,
    is_on_meta,
    leaves_of_state,
    memory_of,
    new_slots,
    numeric_arrays,
    torch_dtype,
    with_memory,
)
from shardvar.torch.storage import TensorTarget, fill_tensors, items_of
from shardvar.verbs.arguments import texts_of
from shardvar.verbs.background import Aftercare, PendingSave, Turn, save_next
from shardvar.verbs.load import open_checkpoint
from shardvar.verbs.locate import Path
from shardvar.verbs.reader import Reader
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.together.fence import telling
from shardvar.verbs.together.run import Peers, Run, SaveOptions, find_run
from shardvar.verbs.together.shares import save_with_objects, source_of_shards
from shardvar.verbs.training.resuming import gather
from shardvar.verbs.training.states import LoadReport, check_stored_tensor, unmatched_keys
from shardvar.verbs.writer_process import save_by_writer

_TURN = Turn()
"""The saves of this process: one in the background at a time."""
_COPIES = Copies()
"""The memory for the values of such a save."""
_ALONE = ContextVar("alone", default=False)


def save_state(
    path: Path,
    state: Mapping[str, Any],
    *,
    run: str,
    format: str = "shardvar",
    metadata: Mapping[str, str] | None = None,
    replicas: str = "equal",
    overwrite: bool = True,
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
        The checkpoint, the same in every process: a path or a URL. An empty folder means a
        checkpoint in it.
    state : mapping of str to Any
        Any nesting of dicts, lists, and objects with ``state_dict``: tensors, DTensors,
        ShardedTensors, arrays of NumPy, and plain values such as settings of an optimizer.
    run : str
        A text that no other save of this path has, the same in every process, such as the step.
    format : str, default 'shardvar'
        The format: ``'shardvar'``; or ``'torch'``, which ``torch.distributed.checkpoint.load`` reads
        and which holds objects of any class; or ``'safetensors'``, for states of whole tensors and
        nothing else.
    metadata : mapping of str to str, optional
        Texts to keep in the checkpoint.
    replicas : {'equal', 'first'}, default 'equal'
        Tensors that are not divided, and plain values, must be equal in all processes. With
        ``'first'``, the lowest process's is saved.
    overwrite : bool, default True
        Replace a checkpoint that is there, or raise ``TargetExists``.
    timeout : float, default 600.0
        The seconds to wait for other processes.
    digest : bool, default False
        Keep the digest of each tensor in the checkpoint, which is the same on any mesh, as in
        ``sv.save_shards``; in the native format.
    background : bool or 'process', default False
        Copy the state, return, and save the copy in another thread. What the training changes
        after the call is not in the checkpoint. With ``'process'``, another process writes, which
        does not share Python's global lock with the training.
    busy : {'wait', 'raise'}, default 'wait'
        Wait while a save in the background is under way, or raise ``StillSaving``.
    staging_nbytes : int, optional
        The most memory for the copy, which is kept for the next save; without a limit by default.
    base : path_like, optional
        A checkpoint in the same directory, such as the one before, the same in every process. Values
        that lie in it unchanged are not written, as in ``sv.save_shards``; in the native format.
    on_error : {'raise', 'warn'}, default 'raise'
        With ``'warn'``, a save that fails, such as on a full disk or in a bucket that refuses, is a
        warning in the log, and its report has the ``error``. The other values of arguments are errors
        in any case.
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
        If processes disagree on a value, two values have one key, the copy takes more than
        ``staging_nbytes``, a tensor is on the device ``meta``, or there are several processes or
        DTensors on several, and ``torch.distributed`` is not initialized.
    TargetExists
        If a checkpoint is there, and ``overwrite=False``.
    StillSaving
        If a save is under way, and ``busy='raise'``.
    IncompleteCheckpoint
        If a process did not save within ``timeout``.
    UnsupportedError
        If a tensor or a value cannot be saved: a partial DTensor, or an object whose class is not
        plain, in the native format.
    StorageError
        If another writer has replaced the checkpoint, or the file system refuses.

    Notes
    -----
    Process and number of processes come from ``torch.distributed`` if it is initialized, otherwise
    there is one. No collective is called: the processes meet in the directory, as in
    ``sv.save_shards``, and an error of one is an error of all. Values that differ by process, such as
    states of random generators, need a key for each process. In the native format a tensor of 64 KiB
    or more with two keys, such as tied weights, is written once.

    In the background, an error of the thread is raised by ``join`` of the handle, or else by the
    next save. An interpreter that ends waits for the thread; a process that is killed leaves the
    checkpoint that was there before. Copies of tensors on a GPU go to pinned memory, and with
    ``'process'`` to memory that the processes share. The process that writes is a new interpreter, which
    runs nothing of the program. It is kept for the next save, and ends with the training. If it is
    killed, the save is the error ``WorkerLost``.

    Examples
    --------
    ``shardvar.torch.save("run/step-7", {"model": model, "optim": optimizer, "step": 7}, run="7")``
    """
    texts, (process, count), peers = texts_of(metadata), processes(), group_peers()
    copies = _COPIES if background else Copies()
    options = SaveOptions(
        replicas, overwrite=overwrite, timeout=timeout, digest=digest, base=base, is_state=True
    )

    def find() -> Run:
        return find_run(path, run, count, format, peers=peers, options=options)

    def held() -> HeldState:
        # The values of thousands of tensors make the collector look through all objects of the program
        # several times, which takes longer than the copy.
        with telling(find, process), without_collection() if background else nullcontext():
            state_of_process = held_state(leaves_of_state(state, []), format)
            most = staging_nbytes if background else None
            copied = copies.copy(state_of_process.tensors, most, background)
            return replace(state_of_process, tensors=copied)

    def save(held: HeldState) -> WriteReport:
        with telling(find, process):
            copies.wait()
            tensors = {each.key: each.shards(is_part=options.is_part) for each in held.tensors}
            objects = held.encoded(format)
            source = source_of_shards(tensors)
        paths = held.paths if format == "torch" else {}
        about = Metadata(user=texts, paths=paths, objects=objects, ties=held.ties)
        if background == "process":
            return save_by_writer(_COPIES.memory, find(), process, source, about, tensors)
        return save_with_objects(find(), process, source, about, tensors)

    after = Aftercare(on_error, on_saved)
    return save_next(_TURN, str(path), held, save, busy=busy, background=background, after=after)


def load_state(
    path: Path,
    state: Mapping[str, Any],
    *,
    strict: bool = True,
    verify: str = "full",
    cast: bool = False,
    trusted: bool = False,
) -> LoadReport:
    """Load a state in place, on any mesh and number of processes; every process calls this.

    Parameters
    ----------
    path : path_like
        The checkpoint, in any format, as for ``sv.open_checkpoint``: a path or a URL.
    state : mapping of str to Any
        A state as ``save`` takes it. Tensors are filled, plain values and arrays of NumPy are
        replaced, lists get their length in the checkpoint, and objects get their state by
        ``load_state_dict``. Tensors on the device ``meta`` get memory, in modules too.
    strict : bool, default True
        Raise if the state and the checkpoint differ in their keys. Otherwise load the keys that both
        have. Keys that only some processes had, such as of a stage of a pipeline, need not be in the
        states of all.
    verify : {'full', 'auto'}, default 'full'
        As in ``StorageReader``.
    cast : bool, default False
        Cast tensors to the dtypes of the state. By default a dtype that differs is an error.
    trusted : bool, default False
        Also load objects of classes that are not plain, which runs the code that they contain.

    Returns
    -------
    LoadReport
        The keys that only one of the two has.

    Raises
    ------
    ArgumentError
        If keys, dtypes or shapes differ, or a key is a tensor in only one of the two.
    CheckpointNotFound
        If there is no checkpoint at ``path``.
    CheckpointError
        If the checkpoint is damaged or incomplete.

    Notes
    -----
    Each process reads only the regions that it needs, together. Nothing is changed before keys,
    dtypes and shapes are compared. An optimizer that has not made a step gets the state that the
    checkpoint has for its parameters. A save in the background is waited for.

    Examples
    --------
    ``shardvar.torch.load("run/step-7", {"model": model, "optim": optimizer, "step": 0})``
    """
    with _TURN.taken():  # of the save of this checkpoint, perhaps
        pass
    owners, lists = list[LoadedObject](), dict[str, Leaf]()
    leaves = leaves_of_state(state, owners, lists)
    with open_checkpoint(path) as reader:
        # Check.
        leaves |= new_slots(reader, dict.fromkeys(reader), owners, leaves.keys())
        leaves, changed = fit_lists(reader, leaves, lists)
        report = unmatched_keys(reader, leaves.keys(), strict, count=processes()[1])
        missing = {*report.missing}
        both = {key: leaf for key, leaf in leaves.items() if key not in missing}
        facts = reader.listed().slices.tensors.facts()
        arrays = {
            key: both[key]._replace(value=torch.empty_like(array))
            for key, array in numeric_arrays(both).items()
            if key in facts and torch_dtype(facts[key][0]) is not None
        }
        tensors = {key: leaf for key, leaf in both.items() if isinstance(leaf.value, torch.Tensor)}
        bare = {
            key: leaf._replace(value=with_memory(leaf.value))
            for key, leaf in tensors.items()
            if is_on_meta(leaf.value) and f"{key.rpartition('.')[0]}.{CLASS}" not in leaves
        }
        tensors |= arrays | bare
        targets = _targets(reader, tensors, cast)
        items = items_of(reader, [key for key in both if key not in tensors], trusted)
        # Objects of any class may hold tensors of a GPU, which is perhaps not there.
        place = None if torch.accelerator.is_available() else "cpu"
        for key in items:
            if both[key].name == CLASS:
                check_class(key, both[key].value, torch.load(io.BytesIO(items[key])))
        # Move.
        fill_tensors(reader, targets, verify)
    for leaf in arrays.values():
        leaf.holder[leaf.name] = memory_of(leaf.value)
    for key, item in items.items():
        leaf, value = both[key], torch.load(io.BytesIO(item), place, weights_only=False)
        is_stream = type(value) is bytes and isinstance(leaf.value, io.BytesIO)
        leaf.holder[leaf.name] = io.BytesIO(value) if is_stream else value
    for values, fitted in changed:
        values[:] = fitted
    give_memory([*bare.values()], owners)
    for loaded in reversed(owners):
        loaded.owner.load_state_dict(loaded.state)
    return report


def _targets(reader: Reader, tensors: Mapping[str, Leaf], cast: bool) -> list[TensorTarget]:
    """Return the regions to read; raise if one of the tensors differs from the stored one."""
    facts, faults = reader.listed().slices.tensors.facts(), reader.listed_faults()
    targets: list[TensorTarget] = []
    for key, leaf in tensors.items():
        if key in faults:
            raise faults[key].at()
        stored, tensor = facts[key], leaf.value
        if torch_dtype(stored[0]) is None:
            cause = f"{key!r} is a tensor in the state, and has the dtype {stored[0]} in"
            remedy = "Give the state the same kind of value."
            raise ArgumentError(f"{cause} {reader.path}.", remedy)
        given = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        check_stored_tensor(reader.path, key, stored, given, cast=cast)
        held = held_by(key, tensor)
        check_has_memory(key, [each.values for each in held])
        targets += [
            TensorTarget(key, stored[0], each.region, each.values.detach()) for each in held
        ]
    return targets


@contextmanager
def alone() -> Iterator[None]:
    """Let this process save and load by itself inside, of whichever group it is."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def processes() -> tuple[int, int]:
    """Return the number of this process, and the number of processes.

    From ``torch.distributed`` if it is initialized; otherwise there is one.

    Raises
    ------
    ArgumentError
        If a launcher has started several (``WORLD_SIZE``), and ``torch.distributed`` is not
        initialized.

    Examples
    --------
    >>> processes()
    (0, 1)
    """
    if _ALONE.get():
        return 0, 1
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    started = os.environ.get("WORLD_SIZE", "")
    if started.isdecimal() and int(started) > 1:
        cause = f"This is one of {started} processes (WORLD_SIZE), and torch.distributed is not"
        remedy = "Call torch.distributed.init_process_group(), or unset WORLD_SIZE."
        raise ArgumentError(f"{cause} initialized.", remedy)
    return 0, 1


class _Group:
    """The default group of ``torch.distributed``: its store, and the connections of gloo."""

    def tell(self, key: str, text: str) -> None:
        _asked(lambda store: store.set(f"shardvar/{key}", text))

    def told(self, key: str) -> str | None:
        name = f"shardvar/{key}"
        octets = _asked(lambda store: store.check([name]) and store.get(name))
        return octets.decode() if octets else None

    def ended(self, processes: Sequence[int]) -> list[int]:
        # A receive is refused if the connection is closed, or else waits for a message that no process
        # sends. Nothing waits for it.
        ended = list[int]()
        if "cpu:gloo" not in dist.get_backend_config():
            return ended
        for process in processes:
            try:
                dist.irecv(torch.empty(1, dtype=torch.uint8), src=process, tag=_TAG)
            except RuntimeError as error:
                if " by peer" in str(error):
                    ended.append(process)
        return ended


_TAG = 0x5347
"""The tag of receives that ask for the connection."""


_ANSWER_SECONDS = 5.0
"""The most seconds to wait for the store, whose process may be stopped: its own time is half an hour."""


def _asked(call: Callable[[Any], Any]) -> Any:
    """Return the answer of the store; None if its process has ended, or does not answer."""
    store, answers = dist.distributed_c10d._get_default_store(), SimpleQueue[Any]()

    def ask() -> None:
        with suppress(RuntimeError):
            answers.put(call(store))

    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_ANSWER_SECONDS)
    return None if answers.empty() else answers.get()


def group_peers() -> Peers | None:
    is_alone = (
        _ALONE.get()
        or not (dist.is_available() and dist.is_initialized())
        or dist.get_world_size() == 1
    )
    return None if is_alone else _Group()


def gather_over_group(mine: Sequence[int], timeout: float = 600.0) -> list[list[int]]:
    """Return the integers that each process gives; every process calls this, in the same order.

    Through the store of ``torch.distributed``, which needs no directory.

    Parameters
    ----------
    mine : sequence of int
        The integers of this process.
    timeout : float, default 600.0
        The seconds to wait for other processes.

    Raises
    ------
    IncompleteCheckpoint
        If a process does not come within ``timeout``, or has ended.

    Examples
    --------
    >>> gather_over_group([7])
    [[7]]
    """
    return gather(group_peers(), processes(), mine, timeout)
