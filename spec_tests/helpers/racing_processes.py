"""Two writers and two readers of one checkpoint, each a process.

`python -m spec_tests.helpers.racing_processes DIRECTORY FORM`

Prints how many saves were made, how many were refused since the other writer was at it, how many
loads were whole, and how many found nothing. Anything else ends a process with a traceback, and
this program with an error.
"""

import os
import sys
import traceback
from collections import Counter
from pathlib import Path

import shardvar as sv
from shardvar.errors import CheckpointNotFound, CorruptCheckpoint, LockHeld, MissingFile
from spec_tests.helpers.faulty_storage import FORMATS, NEW, OLD, is_same, save

ATTEMPTS = 60
"""The number of times that each writer tries."""


def write(place: Path, form: str, tensors: dict[str, object]) -> Counter[str]:
    """Save as fast as can be."""
    count = Counter(attempts=0, saves=0, refused=0)
    for _ in range(ATTEMPTS):
        try:
            save(place, form, tensors, force=True)
            count["saves"] += 1
        except LockHeld:
            count["refused"] += 1
    return count


def read(place: Path, form: str, stop: int) -> Counter[str]:
    """Load until the other end of the pipe is closed, by each of the ways that there are to
    read."""
    count = Counter(loads=0, nothing=0)
    os.set_blocking(stop, False)
    while _is_open(stop):
        try:
            found = sv.load(place / FORMATS[form][1])
            assert is_same(found, OLD) or is_same(found, NEW), "a mixture"
            with sv.open_checkpoint(place) as reader:
                one = {key: reader.read(key) for key in reader}
                assert is_same(one, OLD) or is_same(one, NEW), "a mixture"
            count["loads"] += 2
        except (CheckpointNotFound, MissingFile, CorruptCheckpoint) as error:
            if count["nothing"] == 0:
                print(f"# {error!r}", file=sys.stderr)
            count["nothing"] += 1
    return count


def _is_open(pipe: int) -> bool:
    try:
        return os.read(pipe, 1) != b""
    except BlockingIOError:
        return True


def main(place: Path, form: str) -> int:
    save(place, form, OLD)
    stop, go_on = os.pipe()
    told, tell = os.pipe()
    children = []
    for number in range(4):
        child = os.fork()
        if child:
            children.append(child)
            continue
        code = 1
        try:
            os.close(go_on)
            count = (
                write(place, form, (OLD, NEW)[number]) if number < 2 else read(place, form, stop)
            )
            os.write(
                tell, "".join(f"{name}: {number}\n" for name, number in count.items()).encode()
            )
            code = 0
        finally:
            if code:
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(code)
    codes = [os.waitpid(child, 0)[1] for child in children[:2]]
    os.close(go_on)
    codes += [os.waitpid(child, 0)[1] for child in children[2:]]
    os.close(tell)
    total: Counter[str] = Counter(attempts=ATTEMPTS)
    with os.fdopen(told) as lines:
        for line in lines:
            name, number = line.split(": ")
            total[name] += int(number)
    for name, count in total.items():
        print(f"{name}: {count}")
    return 0 if codes == [0] * 4 and sv.load(place / FORMATS[form][1]) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
