// The columns of the page as checkpoints, items and texts. An item is a key, with its row in each checkpoint or -1.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SIDES = DATA.checkpoints.map(readCheckpoint);
const PLAN = DATA.plan; // of a reshard: its numbers and its command
const IS_PLAN = PLAN !== null;
const IS_DIFF = SIDES.length === 2; // compared, or before and after
const SIDE_NAMES = IS_PLAN ? ["Before", "After"] : ["A", "B"];
const DTYPES = [...new Set(SIDES.flatMap((side) => side.dtypes))].sort();
const ITEMS = readItems();

// A column of numbers, which is written as one number where all are the same.
function unpacked(column) {
  return Array.isArray(column) ? column : new Array(column.length).fill(column.every);
}

function readStatistics(raw) {
  const stats = { ...raw };
  for (const name of ["count", "nan", "inf", "zero"]) stats[name] = unpacked(raw[name]);
  return stats;
}

function readCheckpoint(raw, number) {
  raw.num_slices = unpacked(raw.num_slices);
  raw.dtype = unpacked(raw.dtype);
  raw.slices.file = unpacked(raw.slices.file);
  if (raw.stats) raw.stats = readStatistics(raw.stats);
  const { shared, rest } = raw.keys;
  const keys = new Array(rest.length);
  let before = "";
  for (let row = 0; row < rest.length; row++) {
    // Python counts characters, JavaScript UTF-16 units: the two differ beyond the basic plane.
    const start = shared[row];
    before = (isPlain(before) ? before.slice(0, start) : Array.from(before).slice(0, start).join("")) + rest[row];
    keys[row] = before;
  }
  const first = new Int32Array(keys.length + 1);
  for (let row = 0; row < keys.length; row++) first[row + 1] = first[row] + raw.num_slices[row];
  const tensorOf = new Int32Array(first[keys.length]);
  for (let row = 0; row < keys.length; row++) tensorOf.fill(row, first[row], first[row + 1]);
  const cut = new Map(raw.slices.cut.map(([slice, ...box], place) => [slice, { box, nbytes: raw.slices.nbytes[place] }]));
  raw.slices.nbytes = Array.from(tensorOf, (row, slice) => (cut.has(slice) ? cut.get(slice).nbytes : raw.nbytes[row]));
  return {
    ...raw,
    number,
    keys,
    first,
    tensorOf,
    cut: new Map([...cut].map(([slice, { box }]) => [slice, box])),
    encoded: new Set(raw.slices.encoded),
    faults: new Map(raw.faults.map(([row, kind, message]) => [row, { kind, message }])),
    statistics: new Map((raw.stats ? raw.stats.row ?? keys : []).map((row, place) => [raw.stats.row ? row : place, place])),
    total: raw.nbytes.reduce((sum, nbytes) => sum + nbytes, 0),
    itemOf: new Int32Array(keys.length),
  };
}

function isPlain(text) {
  for (let at = 0; at < text.length; at++) if ((text.charCodeAt(at) & 0xf800) === 0xd800) return false;
  return true;
}

function readItems() {
  const items = SIDES[0].keys.map((key, row) => ({ key, rows: [row], status: "equal" }));
  const find = new Map();
  if (IS_DIFF) {
    for (const item of items) {
      find.set(item.key, item);
      item.rows.push(-1);
      item.status = "a";
    }
    SIDES[1].keys.forEach((key, row) => {
      const item = find.get(key);
      if (item) {
        item.rows[1] = row;
        item.status = "equal";
      } else {
        items.push({ key, rows: [-1, row], status: "b" });
      }
    });
    for (const [row, change, ...values] of DATA.diff?.differences ?? []) {
      items[row].status = "differs";
      items[row].change = change;
      items[row].values = values.length ? Object.fromEntries(DATA.diff.fields.map((name, place) => [name, values[place]])) : null;
    }
    for (const [row, side, kind, message] of DATA.diff?.unreadable ?? []) {
      items[row].status = "unreadable";
      (items[row].errors ||= []).push({ side, kind, message });
    }
  }
  items.forEach((item, number) => {
    item.number = number;
    item.kind = kindOf(item);
    if (item.status === "equal") item.change = 0;
    item.rows.forEach((row, side) => row >= 0 && (SIDES[side].itemOf[row] = number));
  });
  return items;
}

// The most telling thing that differs: "values" where shapes and dtypes are the same.
function kindOf(item) {
  if (IS_PLAN && item.status === "equal") return isCutAlike(item) ? "equal" : "values";
  if (item.status !== "differs") return item.status;
  const [a, b] = item.rows;
  if (String(shapeOf(SIDES[0], a)) !== String(shapeOf(SIDES[1], b))) return "shape";
  return dtypeOf(SIDES[0], a) === dtypeOf(SIDES[1], b) ? "values" : "dtype";
}

// Whether a reshard leaves a tensor's regions as they are.
function isCutAlike({ rows }) {
  if (IS_PLAN && !IS_DIFF) return true;
  const cuts = rows.map((row, number) => {
    const side = SIDES[number];
    const [first, last] = slicesOf(side, row);
    return Array.from({ length: last - first }, (_, at) => String(boxOf(side, first + at))).sort().join(";");
  });
  return cuts[0] === cuts[1];
}

// Of the side that has it, the first by preference; of a plan, what it would write.
function sideOf(item) {
  const [side, other] = IS_PLAN && IS_DIFF ? [1, 0] : [0, 1];
  return item.rows[side] >= 0 ? side : other;
}

function dtypeOf(side, row) {
  return side.dtype[row] < 0 ? "" : side.dtypes[side.dtype[row]];
}

function shapeOf(side, row) {
  return side.shape[row] < 0 ? null : side.shapes[side.shape[row]];
}

function nbytesOf(item) {
  return Math.max(...item.rows.map((row, side) => (row < 0 ? 0 : SIDES[side].nbytes[row])));
}

function isFaulty(item) {
  return item.status === "unreadable" || item.rows.some((row, side) => row >= 0 && SIDES[side].faults.has(row));
}

const FLAGS = ["NaN", "infinity", "zeros alone", "one value"];

// What is remarkable about the values of an item, by the words of FLAGS; nothing where they were not read.
function flagsOf(item) {
  if (item.flags) return item.flags;
  const found = new Set();
  item.rows.forEach((row, number) => {
    const { stats, statistics } = SIDES[number];
    const place = statistics.get(row);
    if (place === undefined) return;
    const [count, nan, inf, zero] = ["count", "nan", "inf", "zero"].map((name) => stats[name][place]);
    if (nan) found.add("NaN");
    if (inf) found.add("infinity");
    if (count && zero === count) found.add("zeros alone");
    else if (count > 1 && !nan && !inf && stats.min[place] === stats.max[place]) found.add("one value");
  });
  item.flags = found;
  return found;
}

// [offset, shape] of a slice; of one that is its whole tensor, the tensor's.
function boxOf(side, slice) {
  const shape = shapeOf(side, side.tensorOf[slice]);
  const box = side.cut.get(slice);
  return box ? [box.slice(0, shape.length), box.slice(shape.length)] : [shape.map(() => 0), shape];
}

// How many slices the tensor is drawn as; the index of a format may tell of none.
function slicesOf(side, row) {
  return [side.first[row], side.first[row + 1]];
}

const HIDDEN = /[\\\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;

// As the command line prints it: nothing that a name says moves a cursor, turns text around or fakes a line.
function printable(text) {
  return text.replace(HIDDEN, (found) => {
    if (found === "\\") return "\\\\";
    const code = found.codePointAt(0);
    const hex = (width, value = code) => value.toString(16).padStart(width, "0");
    if (code >= 0xdc80 && code <= 0xdcff) return `\\x${hex(2, code - 0xdc00)}`;
    return code < 0x80 ? `\\x${hex(2)}` : code < 0x10000 ? `\\u${hex(4)}` : `\\U${hex(8)}`;
  });
}

// A message on one line: quoted names in it are escaped already.
function oneLine(text) {
  return text.split("\\").map(printable).join("\\");
}

function humanSize(nbytes) {
  if (nbytes < 1000) return `${nbytes} B`;
  let size = nbytes;
  for (const unit of ["kB", "MB", "GB", "TB"]) {
    size /= 1000;
    if (size < 999.95) return `${size.toFixed(1)} ${unit}`;
  }
  return `${(size / 1000).toFixed(1)} PB`;
}

// A count of elements as the command line prints it: exact below 10,000, else three digits and a unit.
function humanCount(number) {
  if (number < 10000) return grouped(number);
  let size = number;
  let unit = "";
  for (unit of ["K", "M", "B", "T"]) {
    size /= 1000;
    if (size < 999.5) break;
  }
  return size.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0) + unit;
}

function humanShape(shape) {
  return shape === null ? "" : `[${shape.join(", ")}]`;
}

function grouped(number) {
  return Number(number).toLocaleString("en-US");
}

function count(number, noun) {
  return `${grouped(number)} ${noun}${number === 1 ? "" : "s"}`;
}

function percent(part, whole) {
  if (!whole) return "";
  const share = (100 * part) / whole;
  return share >= 10 ? `${share.toFixed(0)} %` : share >= 0.1 ? `${share.toFixed(1)} %` : share > 0 ? "< 0.1 %" : "0 %";
}

function regionText(offset, shape) {
  return `[${offset.map((start, axis) => `${start}:${Number(start) + Number(shape[axis])}`).join(", ")}]`;
}

function baseName(path) {
  return path.replace(/\/+$/, "").split("/").pop();
}

// Whether a key is asked for: it contains the text, or the glob matches all of it as fnmatch has it.
function matcher(text) {
  if (!text) return () => true;
  if (!/[*?[]/.test(text)) {
    const lower = text.toLowerCase();
    return text === lower
      ? (key) => key.toLowerCase().includes(lower) || printable(key).toLowerCase().includes(lower)
      : (key) => key.includes(text);
  }
  const glob = globPattern(text);
  return (key) => glob.test(key) || key.includes(text);
}

function globPattern(glob) {
  let pattern = "";
  for (let at = 0; at < glob.length; at++) {
    const letter = glob[at];
    if (letter === "*") pattern += "[^]*";
    else if (letter === "?") pattern += "[^]";
    else if (letter === "[") {
      // A bracket right behind the opening one (or its "!") is a member, not the end.
      const negated = glob[at + 1] === "!";
      const begin = at + 1 + negated;
      const end = glob.indexOf("]", begin + 1);
      if (end < 0) {
        pattern += "\\[";
      } else {
        pattern += `[${negated ? "^" : ""}${glob.slice(begin, end).replace(/[\\\]^&~|[]/g, "\\$&")}]`;
        at = end;
      }
    } else pattern += letter.replace(/[\\^$.|+(){}/\]]/g, "\\$&");
  }
  try {
    return new RegExp(`^${pattern}$`, "u");
  } catch {
    return /$^/; // a range that runs backwards matches nothing, as in fnmatch
  }
}
