"""The format of files that ``torch.save`` writes: state dicts and other values, in one file or a
set.

A file has a dict of tensors, which ``torch.load`` also reads with ``weights_only=True`` and
``mmap=True``. Keys are the keys of the dict: dots in them separate nothing. Each tensor is whole
and contiguous, and has its own storage, except for tied ones. Plain objects, such as steps and
parameter groups, follow the tensors in the dict. The same tensors make the same bytes. ``archive``
describes the file.

A Universal Checkpoint of DeepSpeed, which is written here too, is a folder for each parameter
(``deepspeed``). Each tensor is a file:

    NAME                        zero/NAME/fp32.pt: {"cat_dim": 0, "param": tensor}
    optimizer.state.NAME.STATE  zero/NAME/STATE.pt, the same; of a step only the number
    optimizer.step              in zero/optimizer_state.pt, where stage 3 looks for it
    mp_rank_00_model_states.pt  that file, as it is; if there is none, it is written as of a new run,
                                without a schedule, for all stages

Further files hold no tensor: ``zero/optimizer_state.pt`` has the groups of the optimizer, and what else
DeepSpeed reads of it; ``zero/NAME/step.pt`` has a step that is an object.

A parameter that is trained has states. All others, such as buffers, have only a file of values. A
checkpoint is whole if it has all groups of the optimizer, values and all states of each trained
parameter, and exactly the parameters and states that the files of DeepSpeed name. A lack is an
error that names it.

The folder is built next to its place and put there in one step (``storage.exchange``). Then
``latest_universal`` in the folder above names it, by which DeepSpeed finds it.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardvar.errors import IncompleteCheckpoint, StorageError, TargetExists, UnsupportedError
from shardvar.formats.files import first_bytes, look_into, put_in_place
from shardvar.formats.leaves import leaves_of
from shardvar.formats.protocol import FileChecksums, Format, NewCheckpoint
from shardvar.formats.sets import is_foreign
from shardvar.formats.sinks import (
    FolderSink,
    OneFileSink,
    check_one_file,
    check_uncut,
    one_file,
    remove_one_file,
    temporary_files,
)
from shardvar.formats.torch.archive import (
    ArchiveWriter,
    PackedRecord,
    build_file,
    build_frame,
    plan_starts,
    records_of,
    tensor_call,
)
from shardvar.formats.torch.dcp import DATA_SUFFIX
from shardvar.formats.torch.deepspeed import (
    GROUPS,
    OF_MODEL,
    OF_OPTIMIZER,
    RUN,
    SCALER,
    STATE,
    UNIVERSAL,
    find_universal,
    find_zero,
    open_universal,
    open_zero,
)
from shardvar.formats.torch.ranks import RANK, find_llama, find_ranks, open_llama, open_ranks
from shardvar.formats.torch.rankwise import RANKWISE, find_rankwise, open_rankwise
from shardvar.formats.torch.source import TorchSource
from shardvar.formats.torch.state_dict import open_file, open_set
from shardvar.formats.torch.values import DTYPES, is_tensor, pickled_of
from shardvar.layout.dtypes import Ints, dtype_name
from shardvar.limits import MAX_PICKLE_NBYTES
from shardvar.pictures.words import named
from shardvar.planning.slices import Capabilities, SliceTable, TensorTable, check_holds
from shardvar.records import entity, field, frozen
from shardvar.storage.exchange import FolderBeside
from shardvar.storage.local import LocalStorage
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.damage import LEGACY_MAGIC
from shardvar.wire.opcode_writer import Call, Instance, LazyDict, build_pickle
from shardvar.wire.plain import SIZE, OrderedMap, decode_value
from shardvar.wire.zip import LOCAL, first_name, local_nbytes

STEP, _WEIGHT = "optimizer.step", "fp32"
_MODELS = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")
"""The file of the model, as stages 1 and 2 and as stage 3 call it."""
_VERSION = "0.19.8"  # The release of DeepSpeed whose layout is written, where no file names one
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


@frozen
class UniversalPlan:
    run: Mapping[str, Any]
    """The content of ``zero/optimizer_state.pt``, without a step that is a tensor."""
    documents: Mapping[str, bytes]  # The files that hold no tensor of the source, by path

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
        run["param_groups"] = [groups[number] for number in range(len(groups))]
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
    for name, own in states.items():
        lacking = sorted(every - own)
        if name not in rows:
            raise IncompleteCheckpoint(f"The parameter {name!r} has states and no values.", _WHOLE)
        if lacking:
            cause = f"The parameter {name!r} lacks states that others have: {named(lacking)}."
            raise IncompleteCheckpoint(cause, _WHOLE)
        dtype = tensors.dtype(rows[name])
        if dtype != "float32":
            cause = f"The parameter {name!r} is {dtype}, and its file has float32."
            raise UnsupportedError(cause, "Cast it (--cast float32).")
        for state in sorted(own - {"step"}):
            row = rows.get(f"{STATE}{name}.{state}")
            if row is None or tensors.shape(row) != tensors.shape(rows[name]):
                cause = f"The state {state!r} of {name!r} has not the shape of the parameter."
                raise UnsupportedError(cause, _WHOLE)
    for kind, written in (("parameters", {*states}), ("states", every)):
        odd = sorted(written ^ {*about[kind]}) if about is not None else []
        if odd:
            cause = f"The files of DeepSpeed have other {kind} than are written: {named(odd)}."
            raise IncompleteCheckpoint(cause, "Write all of them, under their names.")


def with_step(run: Mapping[str, Any], step: Any) -> dict[str, Any]:
    """Return the value of the optimizer's file, which stage 3 reads in another place."""
    if step is None:
        return {**run}
    inner = {"state": {0: {"step": step}}, "param_groups": run["param_groups"]}
    return {**run, "optimizer_state_dict": inner}


def _with_number(make: Callable[[Any], Any], number: Any) -> bytes:
    """Return a file with the value that ``make`` makes of a number; a scalar becomes a tensor."""
    if not isinstance(number, np.generic):
        return build_file(make(pickled_of(number)))
    octets = np.asarray(number, number.dtype.newbyteorder("<")).tobytes()
    tensor = tensor_call(dtype_name(number.dtype), (), 0)
    records = [
        record._replace(content=octets) if record.content is None else record
        for record in records_of(build_pickle(make(tensor)), [len(octets)])
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
    return build_file(state)


_LATEST = "latest_universal"
_OWN = re.compile(rf"{UNIVERSAL}/(?:[^/]+/[^/]+|optimizer_state)\.pt", re.DOTALL)
_ASIDE = r"universal-\d+"


@frozen
class UniversalWriter(ArchiveWriter):
    run: Mapping[str, Any]  # The content of ``zero/optimizer_state.pt``, without the step

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes around the elements in a file; nothing surrounds a file of the model."""
        records = self.records(slices, 0)
        return build_frame(records, checksums.payload.tolist()) if records else iter(())

    def records(self, slices: SliceTable, row: int) -> list[PackedRecord]:
        """Return the records of the file of a slice; none if its bytes are the file."""
        key, number = slices.key(row), slices.tensor[row]
        if OF_MODEL.fullmatch(key):
            return []
        tensor = tensor_call(slices.tensors.dtype(number), slices.tensors.shape(number), 0)
        value: Any = {"cat_dim": 0, "param": tensor}
        if key == STEP:
            value = with_step(self.run, tensor)
        elif key.startswith(STATE) and key.endswith(".step"):
            value = tensor
        return records_of(build_pickle(value), [int(slices.nbytes[row])])


def _owned(storage: Storage) -> set[str]:
    paths = [*storage.tree()]
    models = filter(OF_MODEL.fullmatch, paths)
    return {*models, *filter(_OWN.fullmatch, paths), *temporary_files(_ASIDE, storage.names())}


@entity(kw_only=True)
class UniversalSink(FolderSink):
    def own(self, folder: str) -> set[str]:
        return _owned(LocalStorage(folder))

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Put the folder in place, and name it in the folder above."""
        self.new.storage.claim()
        beside = FolderBeside(self.new.storage.path)
        self.exchange(beside)
        above, aside = LocalStorage(os.path.dirname(beside.place)), f"{_LATEST}.{beside.token}.tmp"
        name = os.path.basename(beside.place)
        try:
            put_in_place(above, [], (aside, _LATEST), os.fsencode(name), is_checkpoint=False)
        except StorageError as error:
            cause = f"{self.new.storage.path}: it is in place, but {_LATEST} does not name it."
            remedy = f"Write {name!r} into {os.path.join(above.path, _LATEST)}."
            raise StorageError(f"{cause} {error.cause}", remedy) from None


_FOLDER_CAPABILITIES = Capabilities(
    dtypes=frozenset(DTYPES.values()),
    slice_dtypes=frozenset(),
    atomic_overwrite=False,
    holds_objects=True,
    holds_ties=True,
    is_grid=True,
    is_separate=True,
    folder_index=UNIVERSAL,
    folders=frozenset({UNIVERSAL}),
)
"""Whole tensors of the dtypes that torch has, each in a file."""


@frozen
class UniversalFormat(Format):
    """A Universal Checkpoint of DeepSpeed, which is written under this name and read as ``pt``."""

    reads: Format  # The format as which files of ``torch.save`` are read to become one
    name: str = "pt"
    capabilities: Capabilities = _FOLDER_CAPABILITIES

    def locate(self, storage: Storage, name: str) -> list[str]:
        return find_universal(storage, name, storage.names())

    def open(self, storage: Storage, name: str) -> TorchSource:
        return open_universal(storage, name)

    def lay_out(self, new: NewCheckpoint) -> UniversalSink:
        assignment, slices = new.assignment, new.assignment.slices
        check_holds(slices, self.capabilities, "universal")
        check_uncut(slices, "universal")
        if new.storage.local_path is None:
            cause = f"{new.storage.path}: A Universal Checkpoint is written on a disk."
            raise UnsupportedError(cause, "Write it there, and copy the folder.")
        other = next(filter(OF_OPTIMIZER.fullmatch, new.storage.names()), "")
        if other:
            cause = f"{new.storage.path} has files of ZeRO: {other}."
            raise TargetExists(cause, "Write into another folder.")
        if os.path.isdir(new.storage.local_path):
            reason, remedy = FolderBeside(new.storage.local_path).complaint()
            if reason:
                cause = f"{new.storage.path} cannot be put in place in one step: {reason}."
                raise StorageError(cause, remedy)
        objects = {
            key: decode_value(encoding.decode("ascii"))
            for key, encoding in new.metadata.objects.items()
        }
        plan = UniversalPlan.of(slices.tensors, objects, new.metadata.ties)
        writer = UniversalWriter(plan.run)
        records = [writer.records(slices, row) for row in range(len(slices))]
        start = [plan_starts(of_slice)[2] if of_slice else 0 for of_slice in records]
        of_file = [""] * assignment.num_files
        for number, row in zip(assignment.file.tolist(), slices.tensor.tolist(), strict=True):
            of_file[number] = path_of(slices.tensors.keys[row])
        return UniversalSink(
            new=new,
            paths=of_file,
            start=np.array(start, np.int64),
            writer=writer,
            documents=plan.documents,
            stem="universal",
        )

    def remove(self, storage: Storage, name: str) -> None:
        self.reads.remove(storage, name)

    def owned(self, folder: Storage) -> set[str]:
        return _owned(folder)


_MODEL = re.compile(r"model_world_size_")
SET_INDEX_SUFFIX = ".bin.index.json"
SAVE_SUFFIXES = (".pt", ".pth")  # The endings of files that are torch's, with any content
_SHARED_SUFFIXES = (".bin", ".ckpt")
SAVED_SUFFIXES = (*SAVE_SUFFIXES, *_SHARED_SUFFIXES)  # The endings that files of torch.save have
_INDEX = re.compile(r"(.*)\.bin\.index(\.[^.]+)?\.json", re.DOTALL)
_PART = re.compile(r"(.*)-\d{5,}-of-\d{5,}\.bin", re.DOTALL)
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_PICKLE_RECORD = b"/data.pkl"


def set_of(name: str) -> str | None:
    """Return the prefix of the files of a set by the name of its index; None for other names.

    >>> set_of("pytorch_model.bin.index.json"), set_of("pytorch_model.bin.index.fp16.json"), set_of("model.bin")
    ('pytorch_model', 'pytorch_model.fp16', None)
    """
    index = _INDEX.fullmatch(name)
    return index[1] + (index[2] or "") if index else None


class FileDialect(NamedTuple):
    """A checkpoint in several files of ``torch.save``, from another program."""

    find: Callable[[Storage, str, Sequence[str]], list[str]]
    """Returns the checkpoints that a name may mean in a folder with these files."""
    open: Callable[..., TorchSource]  # Opens a checkpoint of that name
    is_deepspeed: bool = False
    """True if a Universal Checkpoint can be written of its contents (``is_whole``)."""


DIALECTS = (
    FileDialect(find_zero, open_zero, is_deepspeed=True),
    FileDialect(find_llama, open_llama),
    FileDialect(find_universal, open_universal, is_deepspeed=True),
    FileDialect(find_rankwise, open_rankwise),
    FileDialect(find_ranks, open_ranks),
)
"""In the order in which a name is offered to them. Files of the last may lie next to other files."""


def find_saved(storage: Storage, name: str) -> list[str]:
    names = storage.names()
    indexes = [file for file in names if set_of(file) is not None]
    for dialect in DIALECTS[:-1]:
        if joined := dialect.find(storage, name, names):
            return joined
    ranks = find_ranks(storage, name, names)
    if not name:
        # An index speaks for its folder: the files next to it belong to it.
        single = (file for file in names if not RANK.fullmatch(file) and _is_saved(storage, file))
        # The ranks of a trainer also save their optimizers and states: the model speaks for them.
        return indexes or [*([*filter(_MODEL.match, ranks)] or ranks), *single]
    part = _PART.fullmatch(name)
    own = [index for index in indexes if part and set_of(index) == part[1]]
    own = [index for index in own if not is_foreign(storage, index)]
    if own and name in names:
        return own
    if ranks:
        return ranks
    if name in names:
        if name in indexes or _is_saved(storage, name):
            return [name]
        # Items of distributed checkpoints are archives too.
        is_other = name.endswith(DATA_SUFFIX)
        return [name] if not is_other and _begins_as_saved(storage, name, (LEGACY_MAGIC,)) else []
    endings = (*SAVED_SUFFIXES, SET_INDEX_SUFFIX)
    files = (name + ending for ending in endings)
    return [file for file in files if file in names and find_saved(storage, file)]


def _is_saved(storage: Storage, name: str) -> bool:
    """Return True if a file is torch's by its name, or by its name and its first bytes."""
    return name.endswith(SAVE_SUFFIXES) or (
        name.endswith(_SHARED_SUFFIXES) and _begins_as_saved(storage, name, _PICKLES)
    )


def _begins_as_saved(storage: Storage, name: str, pickles: tuple[bytes, ...]) -> bool:
    """Return True if a file begins as a pickle, or as an archive with a pickle first."""

    def look(file: ReadableFile) -> bool:
        first = first_bytes(file, LOCAL.size)
        if first.startswith(pickles):
            return True
        local = file.read(0, local_nbytes(first)) if len(first) == LOCAL.size else b""
        return first_name(local).endswith(_PICKLE_RECORD)

    return look_into(storage, name, look, False)


@frozen
class SavedWriter(ArchiveWriter):
    objects: Mapping[str, Any]
    """The objects in addition to the tensors, as ``build_pickle`` takes them."""
    ties: Mapping[str, str] = field(default_factory=dict)
    """Further keys, each with the key of the tensor whose storage it has."""

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Iterator[tuple[int, bytes]]:
        return build_frame(_records(slices, self), checksums.payload.tolist())


def file_name(name: str) -> str:
    """Return the file of a target's name.

    >>> file_name("model"), file_name("model.pth")
    ('model.pt', 'model.pth')
    """
    if set_of(name) is not None:
        cause = f"{name} is the index of a set of files, which is read and not written."
        raise UnsupportedError(
            cause, "Choose a name that ends with .pt, or the format safetensors."
        )
    return name if name.endswith(SAVED_SUFFIXES) else f"{name}.pt"


def _records(slices: SliceTable, writer: SavedWriter) -> list[PackedRecord]:
    tensors, rows = slices.tensors, slices.tensor.tolist()

    def call_of(number: int) -> Call:
        row = rows[number]
        return tensor_call(*tensors.fact(row), number)

    def values() -> Iterator[tuple[str, Any]]:
        for number, row in enumerate(rows):
            yield tensors.keys[row], call_of(number)
        firsts = {*writer.ties.values()}
        numbers = {
            tensors.keys[row]: number
            for number, row in enumerate(rows)
            if tensors.keys[row] in firsts
        }
        for key, first in writer.ties.items():
            yield key, call_of(numbers[first])
        yield from writer.objects.items()

    pickle = build_pickle(LazyDict(values))
    return records_of(pickle, slices.nbytes.tolist(), _entered(writer.objects))


def _entered(objects: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values a reader would take for several keys."""
    # A dict, or a list with one in it; torch has such tuples as one object.
    return [
        key
        for key, value in objects.items()
        if isinstance(value, dict | list | tuple)
        and [*leaves_of({key: value}, is_tensor)[0]] != [key]
    ]


__all__ = ["FOLDER", "FORMAT"]

CAPABILITIES = Capabilities(
    dtypes=frozenset(DTYPES.values()),
    slice_dtypes=frozenset(),
    many_files=False,
    holds_objects=True,
    holds_texts=False,
    holds_ties=True,
    folders=frozenset({RANKWISE, UNIVERSAL}),
)
"""Whole tensors of the dtypes that torch has, in one file."""


@frozen
class SavedFormat(Format):
    """torch.save: a file; a set of files with an index, or of all ranks, which is only read."""

    name: str = "pt"
    capabilities: Capabilities = CAPABILITIES  # The dtypes that torch can read back
    is_whole: bool = False
    """True to list all that a Universal Checkpoint of DeepSpeed is written of."""

    locate = staticmethod(find_saved)

    def open(self, storage: Storage, name: str) -> TorchSource:
        names = storage.names()
        for dialect in DIALECTS:
            if name in dialect.find(storage, name, names):
                options = {"is_whole": self.is_whole} if dialect.is_deepspeed else {}
                return dialect.open(storage, name, **options)
        return open_set(storage, name) if set_of(name) is not None else open_file(storage, name)

    def lay_out(self, new: NewCheckpoint) -> OneFileSink:
        """Lay out a file, whose metadata are only objects: a state dict has no more room."""
        slices, final, there = new.assignment.slices, file_name(new.name), new.storage.names()
        check_one_file(new, self)
        if new.name not in there and find_ranks(new.storage, new.name, there):
            cause = (
                f"{new.storage.path} has files of single ranks of {new.name}, which are read and not "
                "written."
            )
            raise UnsupportedError(cause, "Choose another name.")
        writer = SavedWriter(
            {
                key: pickled_of(decode_value(encoding.decode("ascii")))
                for key, encoding in new.metadata.objects.items()
            },
            new.metadata.ties,
        )
        records = _records(slices, writer)
        if records[0].nbytes > MAX_PICKLE_NBYTES:
            cause = (
                f"The pickle of {len(slices)} tensors has {records[0].nbytes} bytes, more than "
                f"{MAX_PICKLE_NBYTES}"
            )
            raise UnsupportedError(
                f"{cause} (MAX_PICKLE_NBYTES).", "Choose the format safetensors."
            )
        placed = zip(records, plan_starts(records), strict=True)
        starts = [start for record, start in placed if record.content is None]
        return one_file(
            new,
            final,
            starts,
            writer,
            lambda: build_file({**writer.objects}, _entered(writer.objects)),
        )

    def remove(self, storage: Storage, name: str) -> None:
        names = storage.names()
        is_joined = name in (RANKWISE, UNIVERSAL) or find_ranks(storage, name, names)
        if is_joined or any(name in dialect.find(storage, name, names) for dialect in DIALECTS):
            cause = f"{storage.path}: The checkpoint {name} is several files of another program."
            raise UnsupportedError(cause, "Remove the files, or the folder.")
        remove_one_file(storage, file_name(name))


FORMAT = SavedFormat()
WHOLE = SavedFormat(is_whole=True)
FOLDER = UniversalFormat(reads=WHOLE)
