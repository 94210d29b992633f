// What a tensor can be coloured by: one palette for each meaning, each with its legend.

// [light, middle, dark] of the ramps: both keep their order in grey.
const RAMPS = {
  scale: [[226, 243, 240], [64, 160, 166], [16, 62, 84]],
  change: [[253, 230, 205], [222, 130, 48], [104, 36, 12]],
};

function rampColour(name, share) {
  const stops = RAMPS[name];
  const at = theme.isDark ? 1 - share * 0.9 : 0.06 + share * 0.94; // what is small has nearly the colour of the page
  const [from, to] = at < 0.5 ? [stops[0], stops[1]] : [stops[1], stops[2]];
  const part = at < 0.5 ? at * 2 : at * 2 - 1;
  return `rgb(${from.map((value, place) => Math.round(value + (to[place] - value) * part)).join(" ")})`;
}

function statistic(item, name) {
  const side = SIDES[sideOf(item)];
  const place = side.statistics.get(item.rows[side.number]);
  const value = place === undefined || side.stats[name][place] === null ? NaN : Number(side.stats[name][place]);
  return Number.isFinite(value) ? value : null;
}

function largest(item) {
  const [low, high] = [statistic(item, "min"), statistic(item, "max")];
  return low === null || high === null ? null : Math.max(Math.abs(low), Math.abs(high));
}

const number3 = (value) => shortNumber(value);
const ALL_MEASURES = [
  { name: "Change", hint: "norm of B − A over the larger norm", ramp: "change", is: IS_COMPARED, value: (item) => finite(item.change), text: share },
  { name: "Largest difference", hint: "largest |B − A|", ramp: "change", is: IS_COMPARED, value: (item) => finite(item.values?.absolute), text: number3 },
  { name: "Elements", hint: "share of elements that differ", ramp: "change", is: IS_COMPARED, value: (item) => shareOfElements(item), text: share },
  { name: "Spread", hint: "standard deviation", ramp: "scale", is: !IS_DIFF && SIDES[0].stats, value: (item) => statistic(item, "std"), text: number3 },
  { name: "Scale", hint: "largest absolute value", ramp: "scale", is: !IS_DIFF && SIDES[0].stats, value: largest, text: number3 },
  { name: "Bytes", hint: "size", ramp: "scale", is: !IS_COMPARED, value: (item) => nbytesOf(item) || null, text: humanSize },
];
const MEASURES = ALL_MEASURES.filter((measure) => measure.is).map(withRange);

// The first measure with anything to show: the spread of constants is zero.
function defaultMeasure() {
  return IS_COMPARED ? MEASURES[0] : MEASURES.find(({ high }) => high) ?? MEASURES[0];
}

function finite(value) {
  return value === null || value === undefined || value === "" || !Number.isFinite(Number(value)) ? null : Number(value);
}

function share(value) {
  return value === 0 ? "0 %" : value < 1e-5 ? `${(value * 100).toExponential(1)} %` : `${Number((value * 100).toPrecision(value < 1e-3 ? 2 : 3))} %`;
}

function shareOfElements(item) {
  if (!item.values) return item.status === "equal" ? 0 : null;
  const number = elements(shapeOf(SIDES[0], item.rows[0]));
  return number > 0 ? item.values.count / number : null;
}

// With the least and the largest value above zero, the ends of its logarithmic scale, found when they are asked for.
function withRange(measure) {
  let range = null;
  const found = () => (range ??= rangeOf(measure));
  return Object.defineProperties({ ...measure }, { low: { get: () => found().low }, high: { get: () => found().high } });
}

function rangeOf(measure, items = ITEMS) {
  let low = Infinity;
  let high = 0;
  for (const item of items) {
    const value = measure.value(item);
    if (value > 0 && value < low) low = value;
    if (value > high) high = value;
  }
  return { low: high ? low : 0, high };
}

// Colours show the scale of values, and not their noise. Values within LEAST_SPREAD of each other share one colour. Below
// FULL_SPREAD a scale takes only part of the ramp, around its middle, so that the least value never looks like no value.
// A doubling is half a ramp.
const LEAST_SPREAD = 1.1;
const FULL_SPREAD = 4;

function isOneColour({ low, high }) {
  return !(high > low * LEAST_SPREAD);
}

// The place of a value on a ramp, from 0 to 1, by the least and the largest value.
function placeOnRamp(value, { low, high }) {
  if (isOneColour({ low, high })) return 0.5;
  const [from, to] = [Math.log(low), Math.log(high)];
  return 0.5 + (Math.log(value) - (from + to) / 2) / Math.max(to - from, Math.log(FULL_SPREAD));
}

// On the scale of these ends, which are those of all tensors unless given.
function measureColour(measure, item, range = measure) {
  const value = measure.value(item);
  if (value === null) return IS_DIFF && item.status !== "equal" ? statusColour(item) : theme.empty;
  if (value <= 0) return IS_DIFF && item.kind === "dtype" ? KIND_COLOURS.dtype() : theme.same;
  return rampColour(measure.ramp, placeOnRamp(value, range));
}

// What differs, of a tensor that has no number for it.
const KIND_COLOURS = {
  equal: () => theme.same, values: () => rampColour("change", 0.6), dtype: () => theme.dtype, shape: () => theme.shape,
  a: () => theme["side-a"], b: () => theme["side-b"], unreadable: () => theme.bad,
};

// A tensor on only one side, which is hatched: the colour of B is like that of a change.
function isOneSided(item) {
  return IS_COMPARED && (item.kind === "a" || item.kind === "b");
}

function statusColour(item) {
  return KIND_COLOURS[item.kind]();
}

// The ways to colour the size map.
const COLOURINGS = colourings();

function colourings() {
  const by = MEASURES.map(({ name }) => name);
  const places = ["File", ...(SIDES.some(({ holder }) => holder) ? ["Device"] : [])];
  if (IS_PLAN && IS_DIFF) return ["After", "Before", "Slices"];
  if (IS_DIFF) return [...by, ...places];
  return [...places, ...by.filter((name) => name !== "Bytes"), "Dtype"];
}

function colouring() {
  return COLOURINGS.includes(state.by) ? state.by : defaultColouring();
}

// Whether it is the place of a slice that colours: its file, or the device that held it.
function isByPlace() {
  return ["File", "Device", ...SIDE_NAMES].includes(colouring());
}

// The side whose regions are drawn of an item; -1 if it is not there.
function regionSide(item) {
  const named = SIDE_NAMES.indexOf(colouring());
  const side = named < 0 ? sideOf(item) : named;
  return item.rows[side] >= 0 ? side : -1;
}

// The colour of a slice by its place.
function sliceColour(side, slice) {
  if (colouring() !== "Device") return fileColour(side.slices.file[slice]);
  const device = side.slices.device ? side.slices.device[slice] : -1;
  return device < 0 ? theme.same : fileColour(device);
}

// The word for that place: "file 3", "rank 3", "device 3".
function placeText(side, slice) {
  if (colouring() !== "Device") return `file ${side.slices.file[slice]}`;
  return deviceText(side, slice);
}

function deviceText(side, slice) {
  const device = side.slices.device ? side.slices.device[slice] : -1;
  return device < 0 ? "unknown" : `${side.holder} ${device}`;
}

function defaultColouring() {
  if (IS_PLAN && IS_DIFF) return "After";
  if (IS_DIFF) return "Change";
  if (SIDES[0].files.length > 1) return "File";
  if (SIDES[0].holder) return "Device";
  return SIDES[0].stats && defaultMeasure().name !== "Bytes" ? defaultMeasure().name : "Dtype";
}

function itemColour(item, side = sideOf(item)) {
  const by = colouring();
  if (by === "Dtype") return tint(dtypeHue(dtypeOf(SIDES[side], item.rows[side])));
  if (by === "Slices") return statusColour(item);
  if (SIDE_NAMES.includes(by)) {
    side = SIDE_NAMES.indexOf(by);
    if (item.rows[side] < 0) return theme.empty;
  }
  if (isByPlace()) {
    const slice = SIDES[side].first[item.rows[side]];
    return slice < SIDES[side].first[item.rows[side] + 1] ? sliceColour(SIDES[side], slice) : theme.empty;
  }
  return measureColour(MEASURES.find(({ name }) => name === by), item);
}

function segment(text, isOn, act) {
  return element("button", { type: "button", "aria-pressed": String(isOn), text, onclick: act });
}

function shortened(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function legendEntry(colour, text, title) {
  return element("span", { class: "entry", title }, element("i", { style: { background: colour } }), text);
}

function showScale(legend, measure, range = measure) {
  const { low, high } = range;
  if (!high && IS_COMPARED) return legend.replaceChildren("no values that differ", ...kindEntries());
  if (!high) return legend.replaceChildren(legendEntry(theme.same, "0"), element("span", { text: measure.hint }));
  const [least, most] = [low, high].map((value) => measure.text(value));
  const others = IS_COMPARED ? kindEntries() : [];
  if (isOneColour(range)) {
    const ends = least === most ? least : `${least} to ${most}`;
    const why = low === high ? "" : ", one colour because the range is below 10\u00a0%";
    return legend.replaceChildren(legendEntry(rampColour(measure.ramp, 0.5), ends), element("span", { text: measure.hint + why }), ...others);
  }
  const places = [0, 0.25, 0.5, 0.75, 1].map((at) => placeOnRamp(low, range) * (1 - at) + placeOnRamp(high, range) * at);
  const stops = places.map((place) => rampColour(measure.ramp, place)).join(", ");
  const scale = element("span", { class: "ramp", style: { background: `linear-gradient(to right, ${stops})` } });
  return legend.replaceChildren(least, scale, most, element("span", { text: `${measure.hint}, log scale` }), ...others);
}

const KIND_TEXT = IS_PLAN
  ? { equal: "same slices", values: "cut differently", a: PLAN.made ? "source of the map" : "left out or renamed", b: PLAN.made ? "made by the map" : "new" }
  : { equal: "equal", shape: "shape", dtype: "dtype", a: "only in A", b: "only in B", unreadable: "unreadable" };

function kindEntries() {
  return Object.keys(KIND_TEXT).filter((kind) => ITEMS.some((item) => item.kind === kind)).map((kind) => legendEntry(kindMark(kind), KIND_TEXT[kind]));
}

function kindMark(kind) {
  const colour = KIND_COLOURS[kind]();
  return IS_COMPARED && (kind === "a" || kind === "b") ? `repeating-linear-gradient(135deg, ${colour} 0 3px, ${theme.card} 3px 4.5px)` : colour;
}

function deviceEntries() {
  const side = SIDES.find(({ holder }) => holder);
  const numbers = [...new Set(SIDES.flatMap(({ slices }) => [...new Set(slices.device ?? [-1])]))].sort((a, b) => a - b);
  const told = numbers.filter((number) => number >= 0);
  const entries = told.slice(0, FILE_COLOURS.length).map((number) => legendEntry(fileColour(number), `${side.holder} ${number}`));
  const more = told.length > FILE_COLOURS.length ? [`and ${grouped(told.length - FILE_COLOURS.length)} more, in the same colours`] : [];
  const whole = numbers[0] < 0 ? [legendEntry(theme.same, "unknown")] : [];
  const how = side.holder === "rank" ? "from the file names" : "inferred from the order of the slices";
  return [...entries, ...more, ...whole, element("span", { text: how })];
}

// The legend of the size map.
function showLegend(legend) {
  const by = colouring();
  if (by === "Dtype") legend.replaceChildren(...DTYPES.map((name) => legendEntry(tint(dtypeHue(name)), name)));
  else if (by === "Device") legend.replaceChildren(...deviceEntries());
  else if (by === "Slices") legend.replaceChildren(...kindEntries());
  else if (by === "File" || SIDE_NAMES.includes(by)) {
    const { files } = SIDES[by === "Before" ? 0 : SIDES.length - 1];
    const entries = files.slice(0, FILE_COLOURS.length).map((name, file) => legendEntry(fileColour(file), `file ${file}`, printable(name)));
    legend.replaceChildren(...entries, files.length > FILE_COLOURS.length ? `and ${grouped(files.length - FILE_COLOURS.length)} more, in the same colours` : "");
  } else showScale(legend, MEASURES.find(({ name }) => name === by));
}
