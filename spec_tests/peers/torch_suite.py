"""PyTorch's own tests of distributed checkpoints, with the reader and writer of ``shardvar.torch`` in their place.

`python -m spec_tests.peers.torch_suite FOLDER [NAME ...]` runs the modules of FOLDER twice, and prints each test that
passes only without shardvar. FOLDER is test/distributed/checkpoint of PyTorch's sources. A difference belongs on
the page docs/howto/replace-dcp-save-in-a-trainer.md.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def replace() -> None:
    """Let torch make shardvar's readers and writers; in each process of a test."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import _storage_utils, filesystem

    from shardvar.torch import StorageReader, StorageWriter

    class Writer(StorageWriter):  # type: ignore[misc]
        def __init__(self, path: Any, *_args: Any, overwrite: bool = True, **_kwargs: Any) -> None:
            super().__init__(path, overwrite=overwrite)

    class Reader(StorageReader):  # type: ignore[misc]
        def __init__(self, path: Any, *_args: Any, **_kwargs: Any) -> None:
            super().__init__(path, cast=True, trusted=True)

    for each in (Writer, Reader):  # a save by a process of its own pickles the writer
        each.__qualname__ = each.__name__
        globals()[each.__name__] = each
    for module in (dcp, filesystem, _storage_utils):  # the last makes them from a checkpoint_id
        module.FileSystemWriter, module.FileSystemReader = Writer, Reader


def passing(module: Path, start: str) -> set[str]:
    """Return the tests of a module that pass in processes which first run a line of Python."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(start)
        paths = os.pathsep.join([folder, str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-c", os.devnull, str(module)],
            capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths}, cwd=folder, timeout=3600,
        )  # fmt: skip
    return {
        each.rpartition("::")[2] for each in re.findall(r"^PASSED (.*)$", done.stdout, re.MULTILINE)
    }


def differences(folder: Path, names: list[str]) -> list[str]:
    modules = sorted(folder.rglob("test_*.py"))
    start = "import spec_tests.peers.torch_suite as suite; suite.replace()"
    return [
        f"{module.stem}: {test}"
        for module in modules
        if not names or module.stem in names
        for test in sorted(passing(module, "") - passing(module, start))
    ]


if __name__ == "__main__":
    for difference in differences(Path(sys.argv[1]), sys.argv[2:]):
        print(difference)
