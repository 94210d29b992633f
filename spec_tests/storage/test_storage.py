"""The local disk: bytes go where they are put, every refusal is the right error, and one writer
holds a prefix."""

import errno
import fcntl
import os
import pickle
import re
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import (
    ArgumentError,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    MissingFile,
    ShardvarError,
    StorageError,
)
from shardvar.storage import exchange, posix
from shardvar.storage.local import LocalStorage, split_path
from shardvar.storage.posix import HeldDirectory, inner_links, outer_links, reading, writing
from shardvar.storage.scratch import ScratchFile, map_scratch
from spec_tests.helpers.permissions import bound_by_permissions

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")

NOT_NAMES = ["", ".", "..", "a/b", "/etc/passwd", "../up", "a\0b", "x" * 256, "ä" * 128, "\ud800"]
SMALL_CALL = 7


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path))


def written(storage: LocalStorage, name: str, data: bytes) -> None:
    file = storage.create(name)
    file.write(0, data)
    file.close()


PIECES = st.lists(st.tuples(st.integers(0, 60), st.binary(max_size=40)), max_size=8)


@given(pieces=PIECES, start=st.integers(0, 70))
def test_a_scratch_file_has_what_was_written_and_leaves_the_rest_of_a_buffer(
    pieces: list[tuple[int, bytes]], start: int
) -> None:
    model = bytearray()
    with ScratchFile() as scratch:
        for first, data in filter(lambda piece: piece[1], pieces):
            scratch.write(first, data)
            model += bytes(max(0, first + len(data) - len(model)))
            model[first : first + len(data)] = data
        buffer = bytearray(b"~" * 120)
        scratch.read_into(start, memoryview(buffer))
    assert buffer == bytes(model[start:]).ljust(120, b"~")
    blocks = [data for _, data in pieces] + [b"end"]
    assert map_scratch(map(memoryview, blocks)) == b"".join(blocks)


@given(pieces=PIECES)
def test_bytes_are_read_where_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[int, bytes]]
) -> None:
    """What is read is what a byte array holds after the same writes; gaps are zeros. Calls of 7
    bytes make loops."""
    storage = LocalStorage(str(tmp_path_factory.mktemp("s")))
    model = bytearray()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(posix, "_CALL_NBYTES", SMALL_CALL)
        file = storage.create("f")
        for start, data in pieces:
            file.write(start, memoryview(data))
            if data:
                model.extend(bytes(max(0, start + len(data) - len(model))))
                model[start : start + len(data)] = data
        file.close()
        read = storage.open("f")
        assert read.size == len(model) and bytes(read.map()) == model
        for start in range(len(model) + 1):
            buffer = bytearray(len(model) - start)
            read.read_into(start, memoryview(buffer))
            assert buffer == model[start:] == read.read(start, len(model) - start)


@pytest.mark.parametrize(
    ("start", "nbytes"), [(0, 6), (5, 1), (6, 1), (2**62, 1), (0, 2**62), (2**70, 1)]
)
def test_no_byte_is_read_past_the_end(storage: LocalStorage, start: int, nbytes: int) -> None:
    """A range that the file does not have is refused, however large, before anything is
    allocated."""
    written(storage, "f", b"12345")
    file = storage.open("f")
    with pytest.raises(IncompleteCheckpoint, match=f"{nbytes} bytes at offset {start}"):
        file.read(start, nbytes)
    if nbytes < 10:
        with pytest.raises(IncompleteCheckpoint):
            file.read_into(start, memoryview(bytearray(nbytes)))
    for wrong in ((-1, 2), (0, -1)):
        with pytest.raises(ArgumentError):
            file.read(*wrong)


@pytest.mark.parametrize("nbytes", [0, 2, 5, 9])
def test_a_file_that_is_written_while_it_is_open_is_not_read(
    storage: LocalStorage, nbytes: int
) -> None:
    written(storage, "f", b"12345")
    os.utime(Path(storage.path) / "f", ns=(0, 0))
    file = storage.open("f")
    (Path(storage.path) / "f").write_bytes(b"1" * nbytes)
    for read in (
        lambda: file.read(0, 5),
        lambda: file.read_into(0, memoryview(bytearray(5))),
        file.map,
    ):
        with pytest.raises(CorruptCheckpoint, match="f was replaced while it was being read"):
            read()


def test_a_map_outlives_its_file(storage: LocalStorage) -> None:
    """Neither close nor the removal of the file invalidates a map; an empty file has an empty
    one."""
    written(storage, "f", b"12345")
    written(storage, "empty", b"")
    file, empty = storage.open("f"), storage.open("empty")
    view = file.map()
    file.close()
    storage.remove("f")
    assert bytes(view) == b"12345" and view.readonly
    assert bytes(empty.map()) == b""
    for use in (file.map, lambda: file.read(0, 1)):
        with pytest.raises(ArgumentError, match="closed"):
            use()


def test_closing_never_hands_a_reader_another_file(storage: LocalStorage) -> None:
    """A thread that reads while others close and open files reads its own file or is told that it
    was closed."""
    for name in "ab":
        written(storage, name, name.encode() * 4096)
    seen: set[bytes] = set()

    def read(file: posix.LocalReadableFile) -> None:
        try:
            for _ in range(20):
                seen.add(file.read(0, 4096))
        except ArgumentError:
            pass

    for _ in range(30):
        file = storage.open("a")
        thread = threading.Thread(target=read, args=(file,))
        thread.start()
        file.close()
        other = storage.open("b")
        thread.join()
        other.close()
    assert seen <= {b"a" * 4096}


def test_creating_leaves_the_old_file_to_those_who_have_it(storage: LocalStorage) -> None:
    """A file of the same name is a new file: readers and links of the old one keep the old
    bytes."""
    written(storage, "f", b"old")
    reader = storage.open("f")
    os.symlink("f", Path(storage.path) / "link")
    written(storage, "f", b"newer")
    written(storage, "link", b"own")
    assert reader.read(0, 3) == b"old"
    assert storage.open("f").read(0, 5) == b"newer" and storage.open("link").read(0, 3) == b"own"


def test_stamps_tell_contents_apart(storage: LocalStorage) -> None:
    written(storage, "f", b"same")
    first = storage.open("f")
    assert storage.open("f").stamp == first.stamp
    written(storage, "f", b"SAME")
    assert storage.open("f").stamp != first.stamp


def test_closing_a_written_file_syncs_it(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is forced to the disk once when it is closed; a rename forces its directory before
    and after."""
    synced: list[int] = []
    monkeypatch.setattr(posix, "sync", synced.append)
    file = storage.create("f")
    file.write(0, b"x")
    assert len(synced) == 0
    file.close()
    file.close()
    assert len(synced) == 1
    storage.rename("f", "g")
    assert len(synced) == 3 and storage.names() == ["g"]


def test_names_are_those_of_files(storage: LocalStorage) -> None:
    """Sorted, without directories; an absent directory holds no files."""
    for name in ("b", "a", "ä"):
        written(storage, name, b"")
    (Path(storage.path) / "d").mkdir()
    assert storage.names() == ["a", "b", "ä"]
    copy = pickle.loads(pickle.dumps(storage))
    assert copy == storage and hash(copy) == hash(storage)
    assert (
        LocalStorage(storage.path + "/none").names()
        == LocalStorage(storage.path + "/a").names()
        == []
    )


@pytest.mark.parametrize("name", NOT_NAMES)
def test_only_bare_names_are_opened(storage: LocalStorage, name: str) -> None:
    """No name leads out of the directory: read from an index it is the index's fault, else the
    caller's."""
    with pytest.raises(InvalidCheckpoint):
        storage.open(name)
    calls: list[Callable[[], object]] = [
        lambda: storage.rename(name, "x"),
        lambda: storage.rename("x", name),
        lambda: storage.lock(name),
    ]
    if name != "a/b":  # a path of bare names
        calls += [
            lambda: storage.create(name),
            lambda: storage.remove(name),
            lambda: storage.move("x", name),
        ]
        calls += [lambda: storage.create(f"a/{name}"), lambda: storage.sync(f"{name}/a")]
    for call in calls:
        with pytest.raises(ArgumentError):
            call()


def test_folders_are_there_as_long_as_there_are_files_in_them(storage: LocalStorage) -> None:
    """Writing a file by its path makes them, and removing the last file removes them; other folders
    stay."""
    (Path(storage.path) / "mine").mkdir()
    storage.create("a/b/x").close()
    storage.create("y").close()
    storage.move("y", "a/c/z")
    storage.sync("a/b")
    storage.sync("not there")
    assert [*storage.tree()] == ["a/b/x", "a/c/z"]
    storage.remove("a/b/x")
    storage.remove("a/b/x")
    storage.remove("mine/x")
    assert storage.folders() == ["a"] and storage.folder("a").folders() == ["c"]
    storage.remove("a/c/z")
    (Path(storage.path) / "link").symlink_to(os.path.dirname(storage.path))
    assert storage.folders() == []


def test_links_are_told_by_where_they_lead(storage: LocalStorage, tmp_path: Path) -> None:
    """Links to files and hidden links are not listed."""
    folder = Path(storage.path)
    for name in ("inside", "inside too"):
        (folder / name).mkdir()
    (folder / "file").write_bytes(b"")
    beside = tmp_path.with_name(f"{tmp_path.name}-beside")
    beside.mkdir()
    for name, target in {
        "in": folder / "inside",
        "out": beside,
        "lost": folder.parent / "none",
        "self": folder,
        ".hidden": beside,
        "to file": folder / "file",
    }.items():
        (folder / name).symlink_to(target)
    assert outer_links(storage.path) == ["lost", "out"]
    inner = {name: os.path.basename(path) for name, path in inner_links(storage.path, str(folder))}
    assert inner == {"in": "inside"}


def test_a_folder_that_a_killed_writer_had_renamed_is_put_back_and_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(exchange, "sync_path", synced.append)
    target = LocalStorage(str(tmp_path / "run"))
    was = tmp_path / f".run.{'0' * 16}.was.tmp"
    was.mkdir()
    (was / "file").write_bytes(b"12")
    target.make()
    assert target.names() == ["file"] and synced == [str(tmp_path)] and not was.exists()


@pytest.mark.parametrize("fate", ["stays", "moves", "is removed"])
@pytest.mark.parametrize("comes", [False, True])
def test_a_directory_that_is_held_knows_that_it_was_moved(
    tmp_path: Path, fate: str, comes: bool
) -> None:
    """Whether another comes in its place or none; one that was removed was not moved."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").touch()
    held = HeldDirectory(str(tmp_path / "run"))
    if fate == "is removed":
        (tmp_path / "run" / "mine").unlink()
        (tmp_path / "run").rmdir()
    elif fate == "moves":
        (tmp_path / "run").rename(tmp_path / "elsewhere")
    if comes:
        (tmp_path / "run").mkdir(exist_ok=fate == "stays")
    assert held.is_moved(str(tmp_path / "run")) == (fate == "moves")
    assert held.names() == ([] if fate == "is removed" else ["mine"])


def test_nothing_is_made_or_removed_behind_a_link_to_a_folder(
    storage: LocalStorage, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_bytes(b"mine")
    (Path(storage.path) / "link").symlink_to(tmp_path / "outside")
    storage.create("y").close()
    for call in (storage.create, storage.remove, lambda name: storage.move("y", name)):
        with pytest.raises(StorageError, match="symbolic link"):
            call("link/x")
    assert (tmp_path / "outside" / "x").read_bytes() == b"mine"


def test_what_is_no_regular_file_is_malformed(storage: LocalStorage) -> None:
    """Directories, fifos (which would never answer), sockets and devices are refused at once."""
    directory = Path(storage.path)
    (directory / "directory").mkdir()
    os.mkfifo(directory / "fifo")
    os.symlink("/dev/zero", directory / "device")
    short = LocalStorage(storage.path)
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(directory)  # a socket's path may be 108 bytes long
        try:
            server.bind("socket")
        finally:
            os.chdir(here)
        for name in ("directory", "fifo", "device", "socket"):
            with pytest.raises(MalformedCheckpoint, match=name):
                short.open(name)


def test_absent_files_are_missing(storage: LocalStorage) -> None:
    written(storage, "f", b"")
    os.symlink("nowhere", Path(storage.path) / "dangling")
    os.symlink("circle", Path(storage.path) / "circle")
    assert storage.names() == ["circle", "dangling", "f"]
    for place, name in (
        (storage, "none"),
        (storage, "dangling"),
        (storage, "circle"),
        (LocalStorage(storage.path + "/f"), "x"),
    ):
        with pytest.raises(MissingFile, match=name):
            place.open(name)
    with pytest.raises(
        MissingFile,
        match=f"it is a symbolic link to {os.path.realpath(storage.path)}/nowhere, which",
    ):
        storage.open("dangling")


def test_what_cannot_be_locked_is_named_and_not_its_lock(storage: LocalStorage) -> None:
    os.rmdir(storage.path)
    with (
        pytest.raises(StorageError, match=rf"^{re.escape(storage.path)}/f cannot be written"),
        storage.lock("f"),
    ):
        pass


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EROFS, errno.EPROTO]
)
def test_refusals_of_the_machine_name_the_path_and_the_remedy(number: int) -> None:
    for door in (reading, writing):
        with pytest.raises(StorageError) as caught, door("some/file"):
            raise OSError(number, os.strerror(number))
        assert "some/file" in caught.value.cause and caught.value.remedy.endswith(".")


def test_a_full_disk_is_a_storage_error(
    monkeypatch: pytest.MonkeyPatch, storage: LocalStorage
) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = storage.create("f")
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match="the disk is full"):
        file.write(0, b"x")
    monkeypatch.setattr(os, "pwrite", lambda *arguments: 0)
    with pytest.raises(StorageError, match="no more bytes"):
        file.write(0, b"x")


def test_denied_permission_is_a_storage_error() -> None:
    with bound_by_permissions() as place:
        storage = LocalStorage(str(place))
        written(storage, "f", b"x")
        os.chmod(place / "f", 0)
        with pytest.raises(StorageError, match="permission is denied"):
            storage.open("f")


def test_writing_into_an_absent_directory_is_a_storage_error(storage: LocalStorage) -> None:
    absent = LocalStorage(storage.path + "/none")
    with pytest.raises(StorageError, match="no such directory"):
        absent.create("f")
    with pytest.raises(StorageError, match="no such directory"), absent.lock("ck"):
        pass
    (Path(storage.path) / "d").mkdir()
    written(storage, "f", b"")
    with pytest.raises(StorageError, match="is a directory"):
        storage.rename("f", "d")


def test_a_prefix_has_one_writer_at_a_time(storage: LocalStorage) -> None:
    """The second is refused at once, in the same process too; other prefixes are free; no file is
    left behind."""
    with storage.lock("ck"):
        with pytest.raises(StorageError, match="ck is being written"), storage.lock("ck"):
            pass
        with storage.lock("other"):
            pass
    with storage.lock("ck"):
        pass
    assert storage.names() == []


def test_an_interrupt_while_locking_leaves_no_lock(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that goes on after Ctrl-C is not kept out by itself."""
    lock = fcntl.flock

    def lock_and_interrupt(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        lock(descriptor, operation)
        raise KeyboardInterrupt

    monkeypatch.setattr(fcntl, "flock", lock_and_interrupt)
    with pytest.raises(KeyboardInterrupt), storage.lock("ck"):
        pass
    assert storage.names() == []
    with storage.lock("ck"):
        pass


def test_many_writers_never_hold_a_prefix_together(storage: LocalStorage) -> None:
    """Between opening the lock file and locking it, its holder may remove it: such a lock does not
    count."""
    inside, most, refused = 0, 0, 0

    def write(_: int) -> None:
        nonlocal inside, most, refused
        for _ in range(200):
            try:
                with storage.lock("ck"):
                    inside += 1
                    most = max(most, inside)
                    inside -= 1
            except StorageError:
                refused += 1

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert most == 1 and refused < 800 and storage.names() == []


def test_a_lock_file_is_removed_while_the_lock_is_held(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Released first, it could be locked by the next writer, whose file would then be removed under
    its lock."""
    unlink, tries = os.unlink, []

    def lock_and_unlink(path: str) -> None:
        with pytest.raises(StorageError, match="being written"), storage.lock("ck"):
            pass
        tries.append(path)
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", lock_and_unlink)
        with storage.lock("ck"):
            pass
    assert len(tries) == 1 and storage.names() == []


def test_split_tells_directories_from_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is absolute, the name bare, and empty where the path is a directory; nothing is
    created."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    here = str(tmp_path)
    cases = {
        "ck": (here, "ck"),
        "./ck": (here, "ck"),
        "d": (here + "/d", ""),
        "d/": (here + "/d", ""),
        "d/ck": (here + "/d", "ck"),
        ".": (here, ""),
        "new/": (here + "/new", ""),
        "new/deep//ck": (here + "/new/deep", "ck"),
        "..": (here + "/..", ""),
        "d/../ck": (here + "/d/..", "ck"),
        "~": (here, "~"),
        "/": ("/", ""),
        "/ck": ("/", "ck"),
    }
    for text, (directory, name) in cases.items():
        assert split_path(text) == (LocalStorage(directory), name), text
        assert split_path(Path(text)) == split_path(str(Path(text)))
    assert os.listdir(here) == ["d"]


@pytest.mark.parametrize("text", ["", "a\0b", "x" * 256])
def test_split_refuses_what_is_no_path(text: str) -> None:
    with pytest.raises(ArgumentError):
        split_path(text)


def test_directories_are_made_and_measured(tmp_path: Path) -> None:
    """``make`` makes those above too, and may be called again; free space is told of a place that
    is not there yet."""
    storage = LocalStorage(str(tmp_path / "a" / "b"))
    assert storage.free_nbytes() > 0 and os.listdir(tmp_path) == []
    storage.make()
    storage.make()
    assert (tmp_path / "a" / "b").is_dir() and storage.free_nbytes() > 0
    written(storage, "f", b"")
    with pytest.raises(StorageError):
        LocalStorage(storage.path + "/f/below").make()


def test_errors_that_are_shardvars_pass_unchanged() -> None:
    """Some of shardvar's errors are OSErrors; a boundary that they cross does not translate them
    again."""
    error: ShardvarError = MissingFile("a", "b")
    for door in (reading, writing):
        with pytest.raises(MissingFile) as caught, door("p"):
            raise error
        assert caught.value is error and error.__cause__ is None


@pytest.mark.parametrize("count", [2, 40])
def test_each_of_few_or_many_paths_is_synced_once(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(exchange, "sync_path", synced.append)
    paths = [str(number) for number in range(count)]
    exchange.sync_all([*paths, *paths])
    assert sorted(synced) == sorted(paths)
