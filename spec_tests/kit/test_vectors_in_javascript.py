"""The vectors of lookups and updates are enough for another language, and see the layouts that it
gets wrong."""

import json
import shutil
import subprocess
from typing import Any

import pytest

from spec_tests.helpers.published_vectors import unpacked

NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(
    NODE is None, reason="node is not installed, so no other language was tried"
)

PROGRAM = """
import { readFileSync } from "node:fs";
const [data, find] = process.argv.slice(2);
const group = (name) => JSON.parse(readFileSync(`${data}/${name}.json`, "utf8")).cases;
const dealt = (length, count) =>
  Array.from({ length: count }, (_, n) => Math.floor(length / count) + (n < length % count ? 1 : 0));
const starts = (sizes) => sizes.map((_, n) => sizes.slice(0, n).reduce((a, b) => a + b, 0));
const finders = {
  right: (row, first, sizes) => first.findIndex((start, n) => start <= row && row < start + sizes[n]),
  div: (row, first, sizes) => starts(dealt(first.at(-1) + sizes.at(-1), sizes.length)).findLastIndex((s) => s <= row),
  first: (row, first) => first.indexOf(Math.max(...first.filter((start) => start <= row))),
};
const ops = {
  scatter_add: (a, b) => a + b, scatter_sub: (a, b) => a - b, scatter_mul: (a, b) => a * b,
  scatter_div: (a, b) => a / b, scatter_min: Math.min, scatter_max: Math.max, scatter_update: (a, b) => b,
};
const table = ({ shape, data }, sizes) => {
  const [rows, width] = shape, first = starts(sizes);
  const shards = sizes.map((size, n) => data.slice(first[n] * width, (first[n] + size) * width));
  const place = (row) => {
    if (row < 0 || row >= rows) throw new Error(`no row ${row}`);
    const shard = finders[find](row, first, sizes);
    return [shards[shard], (row - first[shard]) * width];
  };
  return { width, shards, place };
};
const answer = ({ op, inputs }) => {
  if (op === "embedding_lookup") {
    const { width, place } = table(inputs.table, inputs.shards);
    const rows = inputs.ids.data.map(Number).map(place);
    return rows.flatMap(([shard, at]) => Array.from({ length: width }, (_, column) => shard[at + column]));
  }
  const { width, shards, place } = table(inputs.value, inputs.shards);
  inputs.indices.data.map(Number).map(place).forEach(([shard, at], n) => {
    for (let column = 0; column < width; column++) {
      const update = inputs.updates.data[n * width + column];
      shard[at + column] = Math.fround(ops[op](shard[at + column], update));
    }
  });
  return shards.flat();
};
const failed = [];
for (const one of [...group("lookups"), ...group("updates")]) {
  const given = one.inputs.table ?? one.inputs.value;
  if (!(one.op === "embedding_lookup" || one.op in ops) || one.inputs.max_norm != null) continue;
  if (given.dtype !== "float32" || one.id.includes("bad-shape") || one.id.includes("bad-count")) continue;
  let came;
  try { came = answer(one); } catch (error) { came = null; }
  const must = one.expected ? one.expected.data : null;
  if (JSON.stringify(came) !== JSON.stringify(must)) failed.push(one.id);
}
console.log(JSON.stringify(failed));
"""


def failures(find: str) -> Any:
    """The vectors that an implementation fails which finds shards in some way."""
    done = subprocess.run(
        [str(NODE), "--input-type=module", "-", str(unpacked()), find],
        input=PROGRAM,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)


def test_another_language_passes() -> None:
    assert failures("right") == []


@pytest.mark.parametrize(("find", "layouts"), [("div", {"uneven", "empty"}), ("first", {"empty"})])
def test_a_wrong_layout_is_seen_by_lookups_and_by_updates(find: str, layouts: set[str]) -> None:
    """Both were certified while all vectors had the layouts of the div rule."""
    failed = failures(find)
    for group in ("lookups", "updates"):
        found = {
            name
            for name in ("uneven", "empty")
            for one in failed
            if one.startswith(group) and name in one
        }
        assert layouts <= found, failed
