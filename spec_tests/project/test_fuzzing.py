"""The fuzzer's law, without the fuzzer: values or an error of ours, for its seeds and for some
changes of each."""

import operator
import random
import time
import zlib

import numpy as np
import pytest

from shardvar.errors import MalformedCheckpoint
from shardvar.wire.crc import CRC32, CRC32C
from spec_tests.fuzzing import cost
from spec_tests.fuzzing.amnesty import amnesty
from spec_tests.fuzzing.cost import read_within_budget
from spec_tests.fuzzing.seeds import MAX_NBYTES, seeds_of
from spec_tests.fuzzing.targets import TARGETS, Target
from spec_tests.helpers.thoroughness import stride


@pytest.fixture(params=TARGETS, ids=[target.name for target in TARGETS])
def target(request: pytest.FixtureRequest) -> Target:
    return request.param


def changed(seed: bytes, rng: random.Random) -> bytes:
    """The seed with a few bytes set, cut out, doubled or put in."""
    octets = bytearray(seed)
    for _ in range(rng.randint(1, 4)):
        at, nbytes = rng.randrange(len(octets) + 1), rng.choice((1, 1, 2, 4, 8))
        kind = rng.randrange(4)
        if kind == 0:
            octets[at : at + nbytes] = rng.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * nbytes
        elif kind == 1:
            octets[at : at + nbytes] = b""
        elif kind == 2:
            octets[at:at] = octets[at : at + nbytes]
        else:
            octets[at : at + 1] = rng.randbytes(1)
    return bytes(octets)


def test_a_target_holds_for_what_it_begins_with(target: Target) -> None:
    """And it is not that all is refused: some seeds have values."""
    seeds = seeds_of(target.name)
    some = [*seeds[:4], *seeds[4 :: stride(4)]]
    with amnesty():
        assert sum(target.run(seed) for seed in some) >= 2 and len(seeds) >= 4


def test_a_target_holds_for_changes_of_it(target: Target) -> None:
    rng = random.Random(zlib.crc32(target.name.encode()))
    seeds = seeds_of(target.name)
    with amnesty():
        for _ in range(150 // stride(3)):
            target.run(changed(rng.choice(seeds), rng)[:MAX_NBYTES])


def test_a_target_lets_other_errors_through() -> None:
    def read(data: bytes) -> None:
        raise MalformedCheckpoint("It is.") if data else KeyError("a bug")

    target = Target("none", read)
    assert not target.run(b"x")
    with pytest.raises(KeyError):
        target.run(b"")


def test_inside_of_an_amnesty_no_checksum_is_wrong_and_after_it_they_are_what_they_were() -> None:
    data, right = b"123456789", 0xE3069283
    with amnesty():
        found = CRC32C.compute(data)
        for other in (7, 0xFFFFFFFF, np.uint32(7)):
            assert all(
                (found.__eq__(other), not found.__ne__(other), operator.eq(int(other), found))
            )
        assert CRC32.combine(1, 2, 3) == 9
    assert CRC32C.compute(data) == right and CRC32C.compute(data) != 7


def test_the_oracle_of_cost_finds_what_takes_the_square_of_an_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In time, and in memory; what takes its input a few times passes."""
    monkeypatch.setattr(cost, "FREE_SECONDS", 0.05)
    monkeypatch.setattr(cost, "SECONDS_PER_BYTE", 5e-6)
    content = b"\x00" + bytes(1 << 12)

    def slow(data: bytes) -> None:
        stop = time.process_time() + len(data) ** 2 * 8e-9
        while time.process_time() < stop:
            pass

    read_within_budget([bytes.hex], content)
    with pytest.raises(AssertionError, match="s of CPU"):
        read_within_budget([slow], content)
    with pytest.raises(AssertionError, match="bytes of memory"):
        read_within_budget([lambda data: data * len(data)], content)
