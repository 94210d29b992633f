"""docs/reader.mjs, written in another language from docs/format.md alone, reads what this package
writes, and no less.

It stands for everybody who has only the page: where the two disagree, the page does not suffice.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import shardvar as sv
from spec_tests.helpers import paths
from spec_tests.helpers.native_checkpoints import CASES, GOLDEN

READER = paths.DOCS / "reader.mjs"
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(
    NODE is None, reason="node is not installed, so nobody else's reader was tried"
)

READ_ALL = """
const attempt = async (action) => {
  try {
    return await action();
  } catch (error) {
    if (!(error instanceof CheckpointError)) throw error;
    return error.message;
  }
};
const storage = await directory();
const found = {};
for (const [prefix, keys] of Object.entries(KEYS))
  found[prefix] = await attempt(async () => {
    const checkpoint = await openCheckpoint(storage, prefix);
    const read = async (key) => {
      const [{ octets }, { values }] = [await checkpoint.read(key), await checkpoint.values(key)];
      return [toHex(octets), values.map((each) => (each instanceof Uint8Array ? toHex(each) : each))];
    };
    const pairs = [];
    for (const key of keys ?? checkpoint.tensors.keys()) pairs.push([key, await attempt(() => read(key))]);
    if (!keys) checkpoint.damage.forEach((message, number) => pairs.push([`damage ${number}`, message]));
    return Object.fromEntries(pairs);
  });
console.log(toJson(found));
"""


FLIP_ALL = """
const disk = await directory();
const names = NAMES;
const octets = Object.fromEntries(names.map((name) => [name, disk.read(name, 0, disk.nbytes(name))]));
const storage = {
  nbytes: (name) => octets[name]?.length,
  read: (name, start, nbytes) => octets[name].slice(start, start + nbytes),
};
const all = async () => {
  const checkpoint = await openCheckpoint(storage, PREFIX);
  const found = [];
  for (const key of ["n", "t"]) found.push(toJson((await checkpoint.values(key)).values));
  return found.join();
};
const right = await all();
const counts = { refused: 0, harmless: [] };
for (const name of names)
  for (let at = 0; at < octets[name].length; at++)
    for (let bit = 0; bit < 8; bit++) {
      octets[name][at] ^= 1 << bit;
      try {
        if ((await all()) !== right) throw new Error(`${name}: bit ${bit} of byte ${at} gives wrong values`);
        counts.harmless.push([name, at]);
      } catch (error) {
        if (!(error instanceof CheckpointError)) throw error;
        counts.refused++;
      }
      octets[name][at] ^= 1 << bit;
    }
console.log(toJson(counts));
"""


def run(script: str, **constants: Any) -> Any:
    """What a script that has the reader at hand prints."""
    names = "{ CheckpointError, directory, openCheckpoint, toHex, toJson }"
    lines = [f"const {name} = {json.dumps(value)};" for name, value in constants.items()]
    program = "\n".join([f"import {names} from {json.dumps(READER.as_uri())};", *lines, script])
    command = [str(NODE), "--input-type=module", "-"]
    done = subprocess.run(command, input=program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def prefix(case: str) -> str:
    return str(GOLDEN / case / CASES[case]["prefix"])


def keys_of(case: str) -> list[str] | None:
    """The keys to try of a damaged checkpoint; None for all of a sound one."""
    if "bad" not in case:
        return None
    return ["n", "t"] if "a1" in "".join(CASES[case]["files"]) else ["t"]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Every golden checkpoint as the reader sees it: an error, or by key an error or bytes and
    values."""
    answer: dict[str, Any] = run(READ_ALL, KEYS={prefix(case): keys_of(case) for case in CASES})
    return answer


@pytest.mark.parametrize("case", CASES)
def test_both_readers_find_the_same_bits_in_the_golden_checkpoints(
    case: str, found: dict[str, Any]
) -> None:
    """Damage is refused by both: the same keys of the same checkpoints, and the others read."""
    expected, answer = CASES[case], found[prefix(case)]
    if "error" in expected:
        assert isinstance(answer, str)
        return
    refused = {key for key, value in answer.items() if isinstance(value, str)}
    with sv.open_checkpoint(prefix(case)) as reader:
        if "bad" in case:
            assert refused == {*expected["errors"]}
        else:
            assert {*answer} == {*reader.keys()}
        for key in answer:
            if key not in refused:
                check_same(reader.read(key), *answer[key])
            elif "bad" not in case:  # the dtypes that are carried, and have no values
                assert "Only TensorFlow" in answer[key]
                with pytest.raises(sv.errors.UnsupportedError):
                    reader.read(key)


def check_same(array: npt.NDArray[Any], octets: str, values: list[Any]) -> None:
    """The same bytes, and the same values, as far as JSON can say them."""
    flat = array.ravel()
    if array.dtype == object:
        assert [bytes.fromhex(each) for each in values] == flat.tolist()
        return
    assert octets == array.astype(array.dtype.newbyteorder("<")).tobytes().hex()
    if array.dtype.kind in "biu":
        assert values == flat.tolist()
        return
    wide = flat.view(flat.real.dtype) if array.dtype.kind == "c" else flat.astype(np.float64)
    theirs = np.array(values, np.float64).ravel()
    np.testing.assert_array_equal(theirs, wide.astype(np.float64))
    numbers = ~np.isnan(theirs)
    np.testing.assert_array_equal(np.signbit(theirs)[numbers], np.signbit(wide)[numbers])


def test_no_flipped_bit_gives_a_wrong_value() -> None:
    """Each bit of each file of a checkpoint: refused, or one of the zeros between two payloads."""
    files = sorted(
        str(path) for path in (GOLDEN / "tiny").iterdir() if path.name != "expected.json"
    )
    counts = run(FLIP_ALL, PREFIX=prefix("tiny"), NAMES=files)
    gap = {(f"{prefix('tiny')}.svdata-a1-00000-of-00002", at) for at in range(16, 64)}
    assert {tuple(each) for each in counts["harmless"]} == gap
    assert counts["refused"] == 8 * (sum(Path(name).stat().st_size for name in files) - len(gap))


def test_the_command_line_lists_prints_and_refuses() -> None:
    def node(*arguments: str) -> tuple[int, str]:
        done = subprocess.run([str(NODE), str(READER), *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    code, listing = node(prefix("tiny"))
    assert code == 0 and [each["key"] for each in json.loads(listing)["tensors"]] == ["n", "t"]
    t = '{"dtype": "float32", "shape": [3, 2], "values": [0, 1, 2, 3, 4, 5]}\n'
    assert node(prefix("tiny"), "t") == (0, t)
    n = '{"dtype": "int64", "shape": [], "hex": "0500000000000000"}\n'
    assert node(prefix("tiny"), "n", "--hex") == (0, n)
    code, listing = node(prefix("bad_hole"))
    assert code == 1 and "incomplete" in json.loads(listing)["tensors"][0]["fault"]
    assert node(prefix("bad_index_footer"))[0] == 1
    assert node(prefix("tiny"), "absent")[0] == 1
    assert node()[0] == 2
