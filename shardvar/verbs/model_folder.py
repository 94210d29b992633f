"""Model folders: the small files next to the weights, from which libraries load a model.

The commit of the weights copies them from the source's folder (``formats.sinks``); others are named as
not copied. Only a folder with a description is a model folder, and only a target that is a folder
gets its files. A link is followed within the folder, and into the store of a cache.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

from shardvar.engine.quantised import EncodedSource
from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.formats.files import look_into, put_in_place
from shardvar.formats.sinks import SideFile
from shardvar.formats.table import names_of_target, usual_name
from shardvar.layout.dtypes import is_floating
from shardvar.pictures.words import count, human_size
from shardvar.planning.slices import TensorTable
from shardvar.records import field, mutable, replace
from shardvar.storage.posix import check_stays_inside
from shardvar.storage.protocol import Storage
from shardvar.verbs.coded import CONFIG
from shardvar.verbs.dequantization import (
    QUANTIZATION,
    SIDE_FILES,
    described_parts,
    keys_of_numbers,
    read_json,
)
from shardvar.verbs.locate import (
    Location,
    SplitPath,
    below,
    exact_path,
    find_target,
    look_at,
)
from shardvar.verbs.mapping import join_reports
from shardvar.verbs.newest import FolderContents, contents_of
from shardvar.verbs.reader import Reader
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.writing import WritePlan, check_free, rehearse

PIPELINE = "model_index.json"
DESCRIPTIONS = (CONFIG, "adapter_config.json", PIPELINE)
_TEXTS = re.compile(
    r"(?s).+\.(?:jsonl?|txt|model|jinja|py|md|bpe|vocab|tiktoken|spm|ya?ml)|(?:LICENSE|NOTICE).*"
)
_INDEX = re.compile(r"(?s).+\.index(?:\.[^.]+)?\.json")  # of a set of files
# Tokenizers have up to 40 MB.
_MAX_NBYTES, _MAX_FILES, _MAX_FOLDERS = 1 << 27, 1_000, 100
_OF_GGUF = "the tokenizer and settings of GGUF"
_DTYPES = ("float16", "bfloat16", "float32", "float64")  # that models are loaded in
_NAMES_OF_DTYPES = ("dtype", "torch_dtype")


@mutable
class ModelFiles:
    copied: list[SideFile] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    def add_to(self, report: WriteReport) -> WriteReport:
        copied = tuple(each.path for each in self.copied)
        return replace(report, copied=copied, changed=tuple(self.changed), not_copied=self.left)


def with_model_files(
    work: WritePlan,
    found: Sequence[Location],
    reader: Reader,
    *,
    is_cast: bool,
) -> tuple[WritePlan, ModelFiles]:
    goal, payloads, source, files = work.target, work.source, found[0].storage, ModelFiles()
    tensors, described = work.entries.slices.tensors, dict[str, Any]()
    if isinstance(payloads, EncodedSource):
        tensors, described = payloads.stored.slices.tensors, {**payloads.config}
        files.changed += payloads.notes
    if goal.format.name == "gguf" and reader.metadata.native:
        files.changed.append("the tokenizer and settings are the same as in the source")
    elif goal.format.name == "gguf":
        files.left[_OF_GGUF] = "the source has none; the package gguf writes a whole file"
    elif found[0].format.name == "gguf":
        files.left[_OF_GGUF] = "texts of the metadata are kept, and tensors"
    elif any(key.startswith("blk.") for key in tensors.keys):
        files.left[_OF_GGUF] = "only tensors have its names; the package gguf writes a whole file"
    is_model = usual_name(goal.format.name) and not {*DESCRIPTIONS}.isdisjoint(source.names())
    if described and not is_model:
        # Only the description, which readers of the codes need.
        file = SideFile(CONFIG, source, CONFIG)
        if usual_name(goal.format.name) and goal.owns_folder:
            files.copied.append(_adapted(file, tensors, files.changed, described))
            return replace(work, side_files=files.copied), files
        files.left[CONFIG] = "only a folder of safetensors gets the description of the quantisation"
    if not is_model or os.path.realpath(source.path) == os.path.realpath(goal.storage.path):
        return work, files
    places = reader.source.places or [(source, name) for name in reader.index.files]
    own = {os.path.join(folder.path, name) for folder, name in places}
    for each in found:
        names = [each.name, *names_of_target(each.stem, each.format.name)]
        own.update(os.path.join(each.storage.path, name) for name in names)
    is_dequantized = bool(keys_of_numbers(reader.source))
    place = SplitPath(source.path, source, "", was_folder=True)
    _choose(files, contents_of(place, found[:1], _MAX_FOLDERS), own, is_dequantized)
    if not goal.owns_folder:
        reason = "the target is a file, not a folder"
        left = dict.fromkeys((each.path for each in files.copied), reason)
        return work, ModelFiles(left=files.left | left)
    for each in found:
        if each.storage != source and not {*DESCRIPTIONS}.isdisjoint(each.storage.names()):
            files.left[os.path.join(each.storage.path, "")] = "the first source's are copied"
    for number, file in enumerate(files.copied):
        if file.path == CONFIG and (is_cast or is_dequantized or described):
            change = files.changed, described, is_dequantized
            files.copied[number] = _adapted(file, tensors, *change)
    return replace(work, side_files=files.copied), files


def _choose(
    files: ModelFiles, contents: FolderContents, own: set[str], is_dequantized: bool
) -> None:
    root = contents.place.storage
    apart = {os.path.relpath(each.storage.path, root.path) for each in contents.all} - {"."}
    out = "a link that leads out of the folder"
    left, more = files.left | dict.fromkeys(contents.links, out), 0
    for path in contents.unread(own):
        *folders, name = path.split("/")
        storage, reason = root, ""
        for folder in folders:
            storage = storage.folder(folder)
        status = storage.status(name) if name else None
        inside = [each for each in apart if path.startswith(f"{each}/")]
        if inside or not name:
            path, reason = f"{inside[0]}/" if inside else path, "a folder of another checkpoint"
        elif is_dequantized and path in SIDE_FILES:
            reason = "it describes the quantisation"
        elif not _TEXTS.fullmatch(name) or _INDEX.fullmatch(name):
            reason = "another kind of file"
        elif status is None or _leads_out(root, path):
            reason = out
        elif not look_into(storage, name, lambda _: True, otherwise=False):
            reason = "it cannot be read"
        elif status.nbytes > _MAX_NBYTES:
            reason = f"larger than {human_size(_MAX_NBYTES)}"
        elif len(files.copied) == _MAX_FILES:
            reason = f"more than {_MAX_FILES:,} files"
        if not reason:
            files.copied.append(SideFile(path, storage, name))
        elif len(left) < _MAX_FILES:
            left[path] = reason
        else:
            more += 1
    files.left = left | ({f"{more:,} more": "too many to list"} if more else {})


def _leads_out(root: Storage, path: str) -> bool:
    try:
        if root.local_path is not None:
            check_stays_inside(root.local_path, path)
    except UnsupportedError:
        return True
    return False


def _adapted(
    file: SideFile,
    written: TensorTable,
    changed: list[str],
    described: dict[str, Any],
    is_dequantized: bool = False,
) -> SideFile:
    sizes = Counter[str]()
    for dtype, shape in written.facts().values():
        sizes[dtype] += prod(shape) * is_floating(dtype)
    main = max(sizes, key=sizes.__getitem__, default="")
    config = read_json(file.storage, CONFIG) or {}
    levels = described_parts(config)
    whole = _dtype_of(levels[0]) if levels else ""
    sentences = dict[str, None]()
    for level in levels:
        for name in [each for each in QUANTIZATION if is_dequantized and each in level]:
            del level[name]
            if name not in described:
                sentences[f"{file.path}: {name} is left out"] = None
        # A part of a model may keep another dtype, which the cast left as it was.
        old = _dtype_of(level)
        if old in ("", main) or main not in _DTYPES or (old != whole and sizes[old]):
            continue
        for name in _NAMES_OF_DTYPES:
            told = level.get(name)
            if isinstance(told, str) and told.removeprefix("torch.") == old:
                level[name] = told.replace(old, main)
                sentences[f"{file.path}: {name} is {main}, and was {old}"] = None
    if described and isinstance(config, dict):
        config |= described
        sentences |= {f"{file.path}: {name} is written": None for name in described}
    if not sentences:
        return file
    changed += sentences
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    return file._replace(content=text.encode())


def _dtype_of(level: dict[str, Any]) -> str:
    told = (level.get(name) for name in _NAMES_OF_DTYPES)
    names = (each.removeprefix("torch.") for each in told if isinstance(each, str))
    return next((each for each in names if each in _DTYPES), "")


# Pipelines.


def components_of(places: Sequence[SplitPath]) -> dict[str, Location]:
    # The models of a pipeline of diffusers, by their folders.
    if len(places) != 1 or places[0].name or PIPELINE not in places[0].storage.names():
        return {}
    root = places[0].storage
    return {os.path.relpath(each.storage.path, root.path): each for each in below(root)}


def paths_of_components(sources: Iterable[str]) -> list[str]:
    paths = ((source, components_of([look_at(source)])) for source in sources)
    return [
        each for source, found in paths for each in [*map(exact_path, found.values())] or [source]
    ]


def write_pipeline(
    components: Mapping[str, Location],
    place: SplitPath,
    write: Callable[..., WriteReport],
    options: dict[str, Any],
) -> WriteReport:
    """Plan all models before one is written; the file that makes them a pipeline comes last."""
    del options["source"]
    force, dry_run = options["force"], options.pop("dry_run")
    form = next(iter(components.values())).format.name
    goal = find_target(options.pop("target"), options["format"], form)
    if not goal.owns_folder:
        cause = f"{place.path} is a pipeline of {count(len(components), 'model')}."
        raise ArgumentError(cause, "Give a folder as the target, and safetensors as the format.")
    pairs = [
        (exact_path(found), os.path.join(goal.storage.path, folder))
        for folder, found in components.items()
    ]
    reports = [write(*pair, dry_run=True, **options) for pair in pairs]
    files = ModelFiles()
    contents = contents_of(place, [*components.values()], _MAX_FOLDERS)
    _choose(files, contents, set(), is_dequantized=False)
    files.copied.sort(key=lambda each: each.path == PIPELINE)
    if not force:
        check_free(files.copied, goal.storage)
    if not dry_run:
        reports = [write(*pair, **options) for pair in pairs]
        _put(files.copied, goal.storage)
    else:
        from shardvar.storage.rehearsal import current_rehearsal  # only of a dry run

        if rehearsal := current_rehearsal():
            rehearsal.asked[1].extend(rehearsal.asked[0])  # a write looks twice
        if goal.storage.traits is not None:
            rehearse(lambda: _put(files.copied, goal.storage))
    joined = join_reports(goal.storage.path, reports)
    by_folder = [*zip(components, reports, strict=True)]
    copied = [f"{folder}/{name}" for folder, each in by_folder for name in each.copied]
    changed = [f"{folder}/{text}" for folder, each in by_folder for text in each.changed]
    left = {name: why for name, why in files.left.items() if name.rstrip("/") not in components}
    for folder, each in by_folder:
        left |= {f"{folder}/{name}": why for name, why in each.not_copied.items()}
    copied += [each.path for each in files.copied]
    return replace(joined, copied=tuple(copied), changed=tuple(changed), not_copied=left)


def _put(files: Sequence[SideFile], storage: Storage) -> None:
    moves = list[tuple[str, str]]()
    with storage.lock(PIPELINE):
        for each in files:
            if not each.is_at(storage):
                # The names are the same in each run, which so replaces what a killed one left.
                moves.append((f"{PIPELINE}-{len(moves):05}.{0:016}.tmp", each.path))
                each.write(storage, moves[-1][0])
        if moves:
            put_in_place(storage, moves[:-1], moves[-1], is_checkpoint=False)
