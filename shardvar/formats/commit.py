"""The steps that make a checkpoint of finished files visible, or take one away, the same for every format.

The index, or the only file, is renamed last: that is the step in which the new checkpoint takes the place of the old
one. An error or an interrupt before it leaves nothing of the new checkpoint, one in it or after it removes nothing that
may be in place. A process that is killed leaves what there is at that moment, and the next commit removes it.

Taking away goes the other way round: what makes the files a checkpoint goes first.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from shardvar.errors import StorageError
from shardvar.storage.protocol import Storage


def put_in_place(
    storage: Storage,
    renames: Sequence[tuple[str, str]],
    last: tuple[str, str],
    content: bytes | None = None,
    retired: Sequence[str] = (),
) -> None:
    """Rename data files, then the ``last`` file, from the names under which they were written to their own.

    ``content`` is what the last file is to hold where it is not written yet. A data file whose two names are the same
    stays where it is. ``retired`` are files of the old checkpoint that go before any data file is renamed, for formats
    whose new files take the places of old ones.
    """
    aside, final = last
    try:
        if content is not None:
            write_file(storage, aside, content)
        for name in retired:
            storage.remove(name)
        for old, new in renames:
            if old != new:
                storage.rename(old, new)
    except BaseException:
        _withdraw(storage, renames, aside)
        raise
    try:
        storage.rename(aside, final)
    except BaseException:
        # The rename may have been made and only forcing it to the disk have failed: then the new checkpoint is there.
        if aside in storage.names():
            _withdraw(storage, renames, aside)
        raise


def _withdraw(storage: Storage, renames: Sequence[tuple[str, str]], aside: str) -> None:
    """Remove the new files, each of which is under one of its two names."""
    with suppress(StorageError):
        there = set(storage.names())
        remove_files(storage, (aside, *(old if old in there else new for old, new in renames)))


def write_file(storage: Storage, name: str, content: bytes) -> None:
    """Write a small file whole."""
    file = storage.create(name)
    try:
        file.write(0, content)
    finally:
        file.close()


def remove_files(storage: Storage, names: Iterable[str]) -> None:
    """Remove files as far as the disk lets: what stays harms nobody, and the next commit removes it.

    An error here would hide the one that led here, or make a checkpoint that is in place look as if it were not.
    """
    for name in names:
        with suppress(StorageError):
            storage.remove(name)


def remove_unnamed(storage: Storage, unnamed: Callable[[list[str]], Iterable[str]]) -> None:
    """Once a checkpoint is in place, remove those files of the directory that it has left without a name."""
    with suppress(StorageError):
        remove_files(storage, unnamed(storage.names()))


def take_away(
    storage: Storage, indexes: Sequence[tuple[str, str]], unnamed: Callable[[list[str]], Iterable[str]]
) -> None:
    """Remove a checkpoint: its index (or its only file) in one step, and then whatever that leaves without a name.

    ``indexes`` are names with those that they have aside. A rename is forced to the disk and a removal is not: were the
    index removed, it could be there again after a crash, and files that it names could not.
    """
    there = storage.names()
    for name, aside in indexes:
        if name in there:
            storage.rename(name, aside)
    for name in unnamed(storage.names()):
        storage.remove(name)
