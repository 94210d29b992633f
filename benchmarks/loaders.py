"""Load a folder of safetensors into memory, beside the loaders of inference engines.

Each loads in a process that has loaded before and in a fresh one, from the page cache and from the
disk, and from a bucket. The bucket is a folder of this disk behind a server on this machine
(``served``), so that no network is measured.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import shardvar as sv
from benchmarks import loading
from benchmarks.child import ROOT, environment
from benchmarks.figures import Figure
from benchmarks.setting import Setting, failed, skipped
from benchmarks.sizes import GIB, MIB
from benchmarks.timing import Run
from spec_tests.helpers.bucket_servers import running

TENSOR_NBYTES = 8 * MIB
TARGET = 1.0
LOADERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "safetensors": ("safetensors", loading.load_safetensors),
    "runai-model-streamer": ("runai_model_streamer", loading.load_runai),
    "fastsafetensors": ("fastsafetensors", loading.load_fastsafetensors),
}
"""The peers: the module that each needs, and how it loads a folder."""
_S3 = ("runai_model_streamer_s3", "obstore")


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of the loaders."""
    nbytes = setting.sizes.loaded_nbytes
    folder = setting.disk.room("loaders")
    _write(folder, nbytes)
    what = f"load {nbytes / GIB:g} GiB of safetensors"
    for name, (module, load) in LOADERS.items():
        if not find_spec(module):
            yield skipped(what, name, f"{name} is not installed")
            continue
        load(str(folder))  # what it imports is there when it is timed
        for way, timed in _WAYS.items():
            ours, theirs = (timed(each, folder) for each in (loading.load_shardvar, load))
            yield _compare(setting, what + way, name, ours, theirs)
    name, what = "runai-model-streamer", f"{what} from a bucket"
    if all(map(find_spec, _S3)):
        with _bucket(folder):
            loads = loading.load_shardvar, loading.load_runai
            ours, theirs = (Run(partial(load, "s3://bucket")) for load in loads)
            yield _compare(setting, what, name, ours, theirs)
    else:
        yield skipped(what, name, f"{' or '.join(_S3)} is not installed")
    shutil.rmtree(folder)


def _compare(setting: Setting, what: str, name: str, ours: Run, theirs: Run) -> Figure:
    try:
        return setting.ratio(what, name, setting.disk, ours, theirs, TARGET)
    except Exception as error:  # noqa: BLE001 - whatever a library raises, the others are measured
        return failed(what, name, error)


@contextmanager
def _bucket(folder: Path) -> Iterator[None]:
    """Serve the folder, and say in the environment where it is."""
    with running([sys.executable, "-m", "benchmarks.served", str(folder), "PORT"]) as port:
        access = {
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
        }
        with patch.dict(os.environ, access):
            yield


def _write(folder: Path, nbytes: int) -> None:
    """Write float32 tensors of 8 MiB as a set of files with an index, as transformers does."""
    chooser = np.random.default_rng(0)
    shape = (1024, TENSOR_NBYTES // 4096)
    tensors = {
        f"model.layers.{row}.weight": chooser.random(shape, np.float32)
        for row in range(nbytes // TENSOR_NBYTES)
    }
    whole = folder / "whole.safetensors"
    sv.save(whole, tensors)
    policy = sv.MaxShardSizePolicy(nbytes // len(loading.NAMES) + MIB)
    sv.reshard(whole, folder / "model.safetensors.index.json", policy=policy)
    whole.unlink()
    if sorted(path.name for path in folder.glob("*.safetensors")) != loading.NAMES:
        raise ValueError("These are not the files that the loaders are given.")


def _forget(folder: Path) -> None:
    """Take the files out of the page cache."""
    for path in loading.files(str(folder)):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _here(load: Callable[[str], Any], folder: Path) -> Run:
    return Run(partial(load, str(folder)))


def _fresh(load: Callable[[str], Any], folder: Path) -> Run:
    """A load in a new process, its imports included."""
    script = f"from {load.__module__} import {load.__name__} as load; load({str(folder)!r})"
    command = [sys.executable, "-c", script]
    return Run(partial(subprocess.run, command, env=environment(), cwd=ROOT, check=True))


def _cold(timed: Callable[..., Run], load: Callable[[str], Any], folder: Path) -> Run:
    return replace(timed(load, folder), before=partial(_forget, folder))


_WAYS = {
    "": _here,
    ", fresh process": _fresh,
    ", cold": partial(_cold, _here),
    ", fresh process, cold": partial(_cold, _fresh),
}
