// The columns of the page as checkpoints, items and texts. An item is a key, with its row in each checkpoint or -1.

const PAIRS = /[\ud800-\udfff]/;
const DATA = JSON.parse(document.getElementById("data").textContent);
const SIDES = DATA.checkpoints.map(readCheckpoint);
const PLAN = DATA.plan; // of a reshard: its numbers and its command
const IS_PLAN = PLAN !== null;
const IS_DIFF = SIDES.length === 2; // compared, or before and after
const IS_COMPARED = IS_DIFF && !IS_PLAN;
const SIDE_NAMES = IS_PLAN ? ["Before", "After"] : ["A", "B"];
const DTYPES = [...new Set(SIDES.flatMap((side) => side.dtypes))].sort();
const ITEMS = readItems();
nameItems();

// Formats such as safetensors store whole tensors. Their readers know no slices, so the page has none of that word.
const HAS_SLICES = SIDES.some((side) => side.cut.size || side.num_slices.some((number) => number > 1));
const PIECE = HAS_SLICES ? "slice" : "tensor";
const HAS_SETTINGS = SIDES.some((side) => side.numSettings);

// A column of numbers, which is written as runs where they repeat: each value, and how often it comes in a row.
function unpacked(column) {
  if (Array.isArray(column)) return column;
  const { runs } = column;
  const found = [];
  for (let at = 0; at < runs.length; at += 2) for (let left = runs[at + 1]; left; left--) found.push(runs[at]);
  return found;
}

// Keys, each of which is written without what it shares with the one before.
function frontDecoded({ shared, rest }) {
  const keys = new Array(rest.length);
  let before = "";
  // Python counts characters, JavaScript UTF-16 units: the two differ beyond the basic plane.
  const isPlain = !rest.some((each) => PAIRS.test(each));
  for (let row = 0; row < rest.length; row++) {
    const start = shared[row];
    before = (isPlain ? before.slice(0, start) : Array.from(before).slice(0, start).join("")) + rest[row];
    keys[row] = before;
  }
  return keys;
}

function readStatistics(raw) {
  const stats = { ...raw };
  for (const name of ["count", "nan", "inf", "zero", "peak"]) stats[name] = unpacked(raw[name]);
  return stats;
}

function readCheckpoint(raw, number) {
  for (const name of ["num_slices", "dtype", "shape", "nbytes"]) raw[name] = unpacked(raw[name]);
  raw.slices.file = unpacked(raw.slices.file);
  raw.slices.device = raw.slices.device && unpacked(raw.slices.device); // null if unknown
  if (raw.stats) raw.stats = readStatistics(raw.stats);
  const keys = frontDecoded(raw.keys);
  const first = new Int32Array(keys.length + 1);
  for (let row = 0; row < keys.length; row++) first[row + 1] = first[row] + raw.num_slices[row];
  const tensorOf = new Int32Array(first[keys.length]);
  const nbytes = new Float64Array(tensorOf.length);
  for (let row = 0; row < keys.length; row++) {
    for (let slice = first[row]; slice < first[row + 1]; slice++) {
      tensorOf[slice] = row;
      nbytes[slice] = raw.nbytes[row];
    }
  }
  raw.slices.cut.forEach(([slice], place) => (nbytes[slice] = raw.slices.nbytes[place]));
  raw.slices.nbytes = nbytes;
  raw.slices.start = startsOf(raw.slices);
  return {
    ...raw,
    number,
    keys,
    first,
    tensorOf,
    isOptimizer: (row) => isIn(raw.optimizer, row),
    isSetting: (row) => isIn(raw.settings ?? [], row),
    numSettings: (raw.settings ?? []).reduce((sum, [start, stop]) => sum + stop - start, 0),
    values: new Map(raw.values ?? []), // of settings and other scalars, as texts
    cut: new Map(raw.slices.cut.map(([slice, ...box]) => [slice, box])),
    encoded: new Set(raw.slices.encoded),
    faults: new Map(raw.faults.map(([row, cause]) => [row, { kind: raw.causes[cause][0], message: raw.causes[cause][1] }])),
    statistics: placesOfStatistics(raw.stats, keys.length),
    total: raw.nbytes.reduce((sum, nbytes) => sum + nbytes, 0),
    itemOf: new Int32Array(keys.length),
  };
}

function isIn(ranges, row) {
  return ranges.some(([start, stop]) => row >= start && row < stop);
}

function numTensors(side) {
  return side.keys.length - side.numSettings;
}

// Whether an item is a setting of the program that wrote it, and not a tensor.
function isSetting(item) {
  return HAS_SETTINGS && SIDES[sideOf(item)].isSetting(item.rows[sideOf(item)]);
}

// The value of a scalar or a setting as text; undefined for any other tensor.
function valueText(item, side = sideOf(item)) {
  return SIDES[side].values.get(item.rows[side]);
}

// Where each slice begins: a distance from the end of the slice before it in its file, or as text, a start that is too large
// for a number.
function startsOf({ file, gap, nbytes }) {
  const ends = [];
  return unpacked(gap).map((bytes, slice) => {
    const end = ends[file[slice]] ?? 0;
    const start = typeof bytes === "string" ? bytes : end + bytes;
    ends[file[slice]] = typeof start === "number" && start + nbytes[slice] <= Number.MAX_SAFE_INTEGER ? start + nbytes[slice] : end;
    return start;
  });
}

// Where the statistics of a row are, if it has some. Without a column of rows, each row has statistics.
function placesOfStatistics(stats, length) {
  if (!stats) return new Map();
  if (stats.row) return new Map(stats.row.map((row, place) => [row, place]));
  return { get: (row) => (row >= 0 && row < length ? row : undefined), has: (row) => row >= 0 && row < length };
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
  if (IS_DIFF) {
    const { compare } = new Intl.Collator("en", { numeric: true });
    items.sort((x, y) => compare(x.key, y.key)); // in natural order, as the keys of one checkpoint are
  }
  items.forEach((item, number) => {
    item.number = number;
    item.kind = kindOf(item);
    if (item.status === "equal") item.change = 0;
    item.rows.forEach((row, side) => row >= 0 && (SIDES[side].itemOf[row] = number));
  });
  return items;
}

// TensorFlow ends the key of each variable alike. A name is a key without that end, unless it is another key.
function nameItems() {
  const end = "/.ATTRIBUTES/VARIABLE_VALUE";
  const ended = ITEMS.filter(({ key }) => key.endsWith(end) && key.length > end.length);
  const keys = ended.length ? new Set(ITEMS.map(({ key }) => key)) : null;
  for (const item of ITEMS) item.name = item.key;
  for (const item of ended) {
    const name = item.key.slice(0, -end.length);
    if (!keys.has(name)) item.name = name;
  }
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
  const side = IS_PLAN && IS_DIFF ? 1 : 0;
  return item.rows[side] >= 0 ? side : 1 - side;
}

function dtypeOf(side, row) {
  return side.dtype[row] < 0 ? "" : side.dtypes[side.dtype[row]];
}

function shapeOf(side, row) {
  return side.shape[row] < 0 ? null : side.shapes[side.shape[row]];
}

function nbytesOf({ rows }) {
  const nbytes = rows[0] < 0 ? 0 : SIDES[0].nbytes[rows[0]];
  return rows.length < 2 || rows[1] < 0 ? nbytes : Math.max(nbytes, SIDES[1].nbytes[rows[1]]);
}

const HAS_FAULTS = SIDES.some((side) => side.faults.size) || Boolean(DATA.diff?.unreadable.length);

function isFaulty(item) {
  return HAS_FAULTS && (item.status === "unreadable" || item.rows.some((row, side) => row >= 0 && SIDES[side].faults.has(row)));
}

// A comparison knows only the values that differ: whether they are NaN or infinite on one side.
const FLAGS = IS_COMPARED ? ["NaN or Inf"] : ["NaN", "infinity", "all zeros", "constant"];

const LOUD_FLAGS = ["NaN", "infinity", "NaN or Inf"];

const FLAG_SETS = Array.from({ length: 1 << FLAGS.length }, (_, bits) => new Set(FLAGS.filter((_flag, at) => (bits >> at) & 1)));

// What is remarkable about the values of an item, by the words of FLAGS; nothing where they were not read. Items share
// the sets.
function flagsOf(item) {
  if (item.flags) return item.flags;
  const { stats, statistics } = SIDES[0];
  const place = IS_DIFF ? undefined : statistics.get(item.rows[0]);
  item.flags = FLAG_SETS[place !== undefined ? flagBits(stats, place) : IS_COMPARED && isNotFinite(item) ? 1 : 0];
  return item.flags;
}

function flagBits(stats, place) {
  const [count, nan, inf] = [stats.count[place], stats.nan[place], stats.inf[place]];
  const isZero = count > 0 && stats.zero[place] === count;
  const isOne = !isZero && count > 1 && !nan && !inf && stats.min[place] === stats.max[place];
  return (nan ? 1 : 0) + (inf ? 2 : 0) + (isZero ? 4 : 0) + (isOne ? 8 : 0);
}

// Whether an element is NaN or infinite on only one side.
function isNotFinite({ change, values }) {
  return change === "inf" && Boolean(values) && (values.without > 0 || values.relative === "inf");
}

// How many items have each flag.
function flagCounts() {
  const counts = new Map();
  for (const item of ITEMS) for (const flag of flagsOf(item)) counts.set(flag, (counts.get(flag) ?? 0) + 1);
  return counts;
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

// A key on a line of its own: in quotes if it is empty or has blanks at an end.
function shownKey(key) {
  const text = printable(key);
  return text && text === text.trim() ? text : `"${text}"`;
}

// A message on one line: quoted names in it are escaped already.
function oneLine(text) {
  return text.split("\\").map(printable).join("\\");
}

// Three digits, as the command line prints them; 999.5 and more would be rounded to 1000.
function threeDigits(number, units) {
  let size = number;
  let unit = "";
  for (unit of units) {
    size /= 1000;
    if (size < 999.5) break;
  }
  return [size.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0), unit];
}

function humanSize(nbytes) {
  return nbytes < 1000 ? `${nbytes} B` : threeDigits(nbytes, ["kB", "MB", "GB", "TB", "PB"]).join(" ");
}

// A count of elements: exact below 10,000, else three digits and a unit.
function humanCount(number) {
  return number < 10000 ? grouped(number) : threeDigits(number, ["K", "M", "B", "T"]).join("");
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
  if (part < whole && share >= 99.5) return "> 99 %"; // and not 100 %
  return share >= 10 ? `${share.toFixed(0)} %` : share >= 0.1 ? `${share.toFixed(1)} %` : share > 0 ? "< 0.1 %" : "0 %";
}

function regionText(offset, shape) {
  return `[${offset.map((start, axis) => `${start}:${Number(start) + Number(shape[axis])}`).join(", ")}]`;
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
