"""The vectors of indexing, lookups and updates are enough for another language, and see the mistakes
that ports make in layouts, in numbers that are not finite, and in dtypes."""

import json
import re
import shutil
import subprocess

import pytest

from spec_tests.helpers.published_vectors import unpacked

NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(
    NODE is None, reason="node is not installed, so no other language was tried"
)

PROGRAM = """
import { readFileSync } from "node:fs";
const [data, mistake] = process.argv.slice(2);
const group = (name) => JSON.parse(readFileSync(`${data}/${name}.json`, "utf8")).cases;

// Numbers of each dtype: how one is read, rounded to the dtype, and told.
const toBits = (bits, least) => (x) => {  // so many bits after the first one, exponents from least
  if (!Number.isFinite(x) || x === 0) return x;
  const exponent = Math.max(Math.floor(Math.log2(Math.abs(x))), least);
  const unit = 2 ** (exponent - bits), scaled = Math.abs(x) / unit, low = Math.floor(scaled);
  const up = scaled - low > 0.5 || (scaled - low === 0.5 && low % 2 === 1);
  const found = (low + (up ? 1 : 0)) * unit;
  const most = bits === 10 ? 65504 : (2 - 2 ** -7) * 2 ** 127;
  return Math.sign(x) * (found > most ? Infinity : found) || (x < 0 ? -0 : 0);
};
const rounds = {
  float64: (x) => x, float32: Math.fround, float16: toBits(10, -14), bfloat16: toBits(7, -126),
};
const real = (dtype, mistake) => {
  const round = mistake === "float32" ? Math.fround : mistake === "wide" ? rounds.float64 : rounds[dtype];
  // fmin and fmax prefer a number to NaN; Math.min and Math.max do not.
  const fmin = (of) => (a, b) => (mistake !== "fmin" ? of(a, b) : Number.isNaN(a) ? b : Number.isNaN(b) ? a : of(a, b));
  return {
    read: (x) => {
      const number = Number({ inf: Infinity, "-inf": -Infinity, nan: NaN }[x] ?? x);
      return mistake === "float32" ? round(number) : mistake === "zero" ? number + 0 : number;
    },
    same: Object.is,
    add: (a, b) => round(a + b), sub: (a, b) => round(a - b), mul: (a, b) => round(a * b),
    div: (a, b) => round(a / b), min: fmin(Math.min), max: fmin(Math.max),
  };
};
const parts = (dtype, mistake) => {
  const of = real(dtype === "complex64" ? "float32" : "float64", mistake);
  const product = ([a, b], [c, d]) => [of.sub(of.mul(a, c), of.mul(b, d)), of.add(of.mul(a, d), of.mul(b, c))];
  return {
    read: ([a, b]) => (mistake === "real" ? [of.read(a), 0] : [of.read(a), of.read(b)]),
    same: (x, y) => of.same(x[0], y[0]) && of.same(x[1], y[1]),
    add: (x, y) => [of.add(x[0], y[0]), of.add(x[1], y[1])],
    sub: (x, y) => [of.sub(x[0], y[0]), of.sub(x[1], y[1])],
    mul: product,
    div: (x, [c, d]) => product(x, [c, -d]).map((part) => of.div(part, of.add(c * c, d * d))),
  };
};
const whole = (dtype, mistake) => {
  const bits = Number(dtype.match(/[0-9]+/)[0]);
  const signed = !dtype.startsWith("u") || mistake === "signed";
  const wrap = (x) => (signed ? BigInt.asIntN(bits, x) : BigInt.asUintN(bits, x));
  const read = (x) => wrap(mistake === "float32" ? BigInt(Math.fround(Number(x))) : BigInt(x));
  return {
    read, same: (a, b) => wrap(a) === wrap(b),
    add: (a, b) => wrap(a + b), sub: (a, b) => wrap(a - b), mul: (a, b) => wrap(a * b),
    div: (a, b) => wrap(a / b), min: (a, b) => (a < b ? a : b), max: (a, b) => (a > b ? a : b),
  };
};
const kind = (dtype, mistake) =>
  (rounds[dtype] ? real : dtype.startsWith("complex") ? parts : whole)(dtype, mistake);

// Variables in shards.
const dealt = (length, count) =>
  Array.from({ length: count }, (_, n) => Math.floor(length / count) + (n < length % count ? 1 : 0));
const starts = (sizes) => sizes.map((_, n) => sizes.slice(0, n).reduce((a, b) => a + b, 0));
const right = (row, first, sizes) => first.findIndex((start, n) => start <= row && row < start + sizes[n]);
const finders = {
  div: (row, first, sizes) => starts(dealt(first.at(-1) + sizes.at(-1), sizes.length)).findLastIndex((s) => s <= row),
  first: (row, first) => first.indexOf(Math.max(...first.filter((start) => start <= row))),
};
const table = ({ dtype, shape, data }, sizes) => {
  const [rows, width] = shape, first = starts(sizes), elements = data.map(kind(dtype, mistake).read);
  const shards = sizes.map((size, n) => elements.slice(first[n] * width, (first[n] + size) * width));
  const place = (row) => {
    if (row < 0 || row >= rows) throw new Error(`no row ${row}`);
    const shard = (finders[mistake] ?? right)(row, first, sizes);
    return [shards[shard], (row - first[shard]) * width];
  };
  return { width, shards, place };
};
const answer = ({ op, inputs }) => {
  const { width, shards, place } = table(inputs.table ?? inputs.value, inputs.shards);
  if (op === "embedding_lookup") {
    const rows = inputs.ids.data.map(Number).map(place);
    return rows.flatMap(([shard, at]) => Array.from({ length: width }, (_, column) => shard[at + column]));
  }
  const of = kind(inputs.value.dtype, mistake), name = op.split("_").at(-1);
  if (op === "read_value") return shards.flat();
  if (op === "getitem") {
    const [row, column] = inputs.key, [shard, at] = place(row);
    return column === undefined ? shard.slice(at, at + width) : [shard[at + column]];
  }
  if (inputs.other) {
    const other = inputs.other.data.map(of.read);
    return shards.flat().map((old, n) => (name === "assign" ? other[n] : of[name](old, other[n])));
  }
  inputs.indices.data.map(Number).map(place).forEach(([shard, at], n) => {
    for (let column = 0; column < width; column++) {
      const update = of.read(inputs.updates.data[n * width + column]);
      shard[at + column] = name === "update" ? update : of[name](shard[at + column], update);
    }
  });
  return shards.flat();
};
const claimed = ({ id, op, inputs }) =>
  /^(scatter_|assign|read_value)/.test(op) || (op === "embedding_lookup" && inputs.max_norm == null) ||
  (op === "getitem" && inputs.key.length && inputs.key.every((part) => Number.isInteger(part) && part >= 0) &&
    inputs.value.shape.length === 2 && !id.includes("bad"));
const failed = [];
let count = 0;
for (const one of ["indexing", "lookups", "updates"].flatMap(group)) {
  if (!claimed(one) || /bad-shape|bad-count|too-/.test(one.id)) continue;
  count++;
  let came;
  try { came = answer(one); } catch (error) { came = null; }
  const of = one.expected && kind(one.expected.dtype);
  const must = one.expected ? one.expected.data.map(of.read) : null;
  const agree = must === null || came === null ? must === came
    : came.length === must.length && came.every((each, n) => each !== undefined && of.same(each, must[n]));
  if (!agree) failed.push(one.id);
}
console.log(JSON.stringify([count, failed]));
"""


def failures(mistake: str) -> list[str]:
    """The vectors that an implementation with a mistake fails; at least 300 are tried."""
    done = subprocess.run(
        [str(NODE), "--input-type=module", "-", str(unpacked()), mistake],
        input=PROGRAM,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    count, failed = json.loads(done.stdout)
    assert count >= 300
    return list(failed)


def test_another_language_passes() -> None:
    assert failures("none") == []


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


@pytest.mark.parametrize(
    ("mistake", "seen"),
    [
        ("fmin", "updates-scatter_min-DTYPE-values updates-scatter_max-DTYPE-values"),
        ("float32", "updates-scatter_add-float64-values lookups-lookup-int64-values indexing-values-uint64-element"),
        ("wide", "updates-scatter_add-bfloat16-order updates-scatter_add-float16-order"),
        ("zero", "updates-read-DTYPE-values lookups-lookup-DTYPE-values indexing-values-DTYPE-row"),
        ("real", "updates-scatter_add-complex64-values lookups-lookup-complex128-values"),
        ("signed", "updates-scatter_min-uint8-values updates-scatter_max-uint64-values"),
    ],
)  # fmt: skip
def test_a_wrong_number_is_seen(mistake: str, seen: str) -> None:
    """NaN that loses, another dtype inside, a sign of zero, an imaginary part or a sign bit."""
    failed = failures(mistake)
    of_reals = {re.sub("b?float(16|32|64)", "DTYPE", one) for one in failed}
    assert of_reals | {*failed} >= {*seen.split()}, failed
