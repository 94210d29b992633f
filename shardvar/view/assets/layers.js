// Layers that repeat, as a heat map: a row for each layer, a column for each of its tensors.
//
// A key belongs to a layer by its first number that stands at the end of a part and of which there are at least three:
// "decoder/block_12/kernel" is "kernel" of layer 12 of the stack "decoder/block_". Where a layer numbers its own parts
// (experts), those share a column; where there are more layers than rows, neighbours share a row. A shared cell has the
// colour of its largest value, and the worst of its marks. Where no layer differs from the others, there is no heat map.

const LEAST_LAYERS = 3;
const MOST_LAYER_ROWS = 64;
const MOST_MODULES = 40;
const MOST_STACKS = 6;
const MOST_PARTS = 4; // of a module's name above its column
const NUMBERS = /(\d+)(?=[/.].)/g;
const COUNTED = /(?<=^|[/._])\d+(?=[/.]|$)/g; // "experts.3" and "unit_3" are counted, "w1" is a name

// The stacks of layers: the stack with the most tensors first, stacks of an optimizer last.
function findStacks(items) {
  const numbers = new Map(); // prefix before a number, and the numbers that follow it
  const found = items.map(({ name }) => numbersIn(name));
  for (const each of found) {
    for (const { prefix, digits } of each) {
      let there = numbers.get(prefix);
      if (!there) numbers.set(prefix, (there = new Set()));
      if (there.size < LEAST_LAYERS) there.add(digits);
    }
  }
  const stacks = new Map();
  const names = new Set(items.some(isOfOptimizer) ? items.map(({ name }) => name) : []);
  items.forEach((item, place) => {
    const first = found[place].find(({ prefix }) => numbers.get(prefix).size >= LEAST_LAYERS);
    if (!first) return;
    const { prefix, digits } = first;
    const isOptimizer = isOfOptimizer(item);
    const name = isOptimizer && isBelowVariable(item, names) ? `slots ${prefix}` : prefix; // slots have another scale
    let stack = stacks.get(name);
    if (!stack) stacks.set(name, (stack = { prefix, layers: new Map(), modules: new Map(), count: 0, isOptimizer }));
    addToStack(stack, item, digits, item.name.slice(prefix.length + digits.length + 1));
  });
  return [...stacks.values()].sort((a, b) => a.isOptimizer - b.isOptimizer || b.count - a.count).slice(0, MOST_STACKS).map(finishStack);
}

function isOfOptimizer(item) {
  const side = SIDES[sideOf(item)];
  return side.isOptimizer(item.rows[side.number]);
}

// Whether a tensor of an optimizer is named below its variable, as TensorFlow's slots are: "w/.OPTIMIZER_SLOT/optimizer/m".
function isBelowVariable({ name }, names) {
  for (let at = name.length; at > 0; at = name.lastIndexOf("/", at - 1)) if (at < name.length && names.has(name.slice(0, at))) return true;
  return false;
}

// The numbers at the ends of the parts of a name, each with the text before it.
function numbersIn(key) {
  const found = [];
  NUMBERS.lastIndex = 0;
  for (let match = NUMBERS.exec(key); match; match = NUMBERS.exec(key)) found.push({ prefix: key.slice(0, match.index), digits: match[0] });
  return found;
}

function addToStack(stack, item, digits, module) {
  let layer = stack.layers.get(digits);
  if (!layer) stack.layers.set(digits, (layer = []));
  if (!stack.modules.has(module)) stack.modules.set(module, stack.modules.size);
  layer.push({ item, column: stack.modules.get(module) });
  stack.count++;
}

function finishStack(stack) {
  const layers = [...stack.layers].sort(([a], [b]) => a - b || (a < b ? -1 : 1));
  const { modules, columnOf } = joinModules([...stack.modules.keys()]);
  const perRow = Math.ceil(layers.length / MOST_LAYER_ROWS);
  const rows = [];
  for (let at = 0; at < layers.length; at += perRow) {
    const joined = layers.slice(at, at + perRow);
    const cells = modules.map(() => []);
    for (const [, members] of joined) for (const { item, column } of members) cells[columnOf[column]].push(item);
    rows.push({ label: joined[0][0], cells });
  }
  return { prefix: stack.prefix, isOptimizer: stack.isOptimizer, layers, modules, rows };
}

// Columns for modules: one each, or if that would be too many, a few for modules that differ only in a number.
function joinModules(names) {
  if (names.length <= MOST_MODULES) return { modules: names, columnOf: names.map((_, column) => column) };
  const patterns = new Map();
  names.forEach((name, place) => {
    const pattern = name.replace(COUNTED, "*");
    if (!patterns.has(pattern)) patterns.set(pattern, []);
    patterns.get(pattern).push(place);
  });
  const most = Math.max(1, Math.floor(MOST_MODULES / patterns.size));
  const modules = [];
  const columnOf = new Array(names.length);
  for (const [pattern, places] of patterns) {
    if (modules.length >= MOST_MODULES - 1) modules[MOST_MODULES - 1] = "others";
    const [first, each] = [Math.min(modules.length, MOST_MODULES - 1), Math.ceil(places.length / most)]; // as many to each column
    places.forEach((place, at) => (columnOf[place] = Math.min(first + Math.floor(at / each), MOST_MODULES - 1)));
    if (first < MOST_MODULES - 1) modules.push(...columnNames(pattern, places.map((place) => names[place]), each));
  }
  return { modules, columnOf };
}

// The names of the columns that modules of one pattern share, with the first and the last number of each.
function columnNames(pattern, names, each) {
  return Array.from({ length: Math.ceil(names.length / each) }, (_, column) => {
    const members = names.slice(column * each, (column + 1) * each);
    const [from, to] = [members[0], members[members.length - 1]].map((name) => name.match(COUNTED)?.[0]);
    return pattern.split("*").length === 2 && from ? pattern.replace("*", from === to ? from : `${from}–${to}`) : pattern;
  });
}

// The layers of a stack by what they hold: each group has the same names, shapes and dtypes; the largest comes first.
function kindsOfLayers(stack) {
  if (stack.kinds) return stack.kinds;
  const kinds = new Map();
  for (const [digits, members] of stack.layers) {
    const parts = members.map(({ item, column }) => column + item.rows.map((row, side) => (row < 0 ? "-" : ` ${SIDES[side].dtype[row]} ${SIDES[side].shape[row]}`)).join());
    const kind = parts.sort().join();
    if (!kinds.has(kind)) kinds.set(kind, []);
    kinds.get(kind).push([digits, members]);
  }
  return (stack.kinds = [...kinds.values()].sort((a, b) => b.length - a.length));
}

// What the layers have in common: names, shapes and dtypes. Their values may differ, and may be damaged.
function layerSentence(stack) {
  const groups = kindsOfLayers(stack);
  const [[[, members]]] = groups;
  const each = `${count(members.length, "tensor")} and ${humanSize(members.reduce((sum, { item }) => sum + nbytesOf(item), 0))} each`;
  const some = groups.length === 1 ? "" : `${grouped(groups[0].length)} of `;
  const words = [groups[0].length > 1 ? `${some}${grouped(stack.layers.length)} layers have the same shapes: ${each}` : `${grouped(stack.layers.length)} layers, each with other shapes`];
  for (const group of groups[0].length > 1 ? groups.slice(1, 4) : []) words.push(`other shapes: ${ranges(group.map(([digits]) => digits))}`);
  if (groups[0].length > 1 && groups.length > 4) words.push(`and ${count(groups.length - 4, "more kind")}`);
  for (const [what, is] of [["cannot be read completely", isFaulty], ["have values that differ", ({ kind }) => IS_COMPARED && kind === "values"]]) {
    const number = stack.layers.filter(([, there]) => there.some(({ item }) => is(item))).length;
    if (number) words.push(`${grouped(number)} ${number === 1 ? what.replace(/^have/, "has") : what}`);
  }
  const there = new Set(stack.layers.map(([digits]) => Number(digits)));
  const [low, high] = [Number(stack.layers[0][0]), Number(stack.layers[stack.layers.length - 1][0])];
  const missing = [];
  for (let layer = low; layer < high && missing.length < 100 && high - low < 100_000; layer++) if (!there.has(layer)) missing.push(layer);
  if (missing.length) words.push(`missing numbers: ${ranges(missing)}`);
  return words.join(" · ");
}

// Whether a heat map shows something that differs from layer to layer. Bytes of equal layers do not.
function isTelling(stack) {
  return stack.modules.some((_, column) => {
    const cells = stack.rows.map(({ cells }) => cells[column]);
    if (cells.some((items) => !items.length || items.some((item) => isFaulty(item) || isOdd(item)))) return true;
    return MEASURES.some((measure) => new Set(cells.map((items) => measure.value(worstOf(items, measure)))).size > 1);
  });
}

// Only numbers that exist: "0–3, 7, 9–11".
function ranges(numbers, to = "–", between = ", ") {
  const runs = [];
  for (const number of numbers) {
    const last = runs[runs.length - 1];
    if (last && Number(last[1]) + 1 === Number(number)) last[1] = number;
    else runs.push([number, number]);
  }
  const shown = runs.slice(0, 8).map(([first, last]) => (first === last ? first : `${first}${to}${last}`)).join(between);
  return runs.length > 8 ? `${shown}${between}…` : shown;
}

// The item of a cell that is to be seen: the worst, else the one with the largest value.
function worstOf(items, measure) {
  let worst = null;
  let most = [-1, -1];
  for (const item of items) {
    const weight = [isFaulty(item) ? 3 : isOdd(item) ? 2 : 0, measure.value(item) ?? -1];
    if (worst === null || weight[0] > most[0] || (weight[0] === most[0] && weight[1] > most[1])) [worst, most] = [item, weight];
  }
  return worst;
}

const FLAG_MARKS = { NaN: "NaN", infinity: "inf", "all zeros": "0", constant: "=", "NaN or Inf": "!" };

function isOdd(item) {
  return LOUD_FLAGS.some((flag) => flagsOf(item).has(flag));
}

function flagMark(item) {
  const flags = flagsOf(item);
  return FLAG_MARKS[FLAGS.find((flag) => flags.has(flag))] ?? "";
}

// The prefix of a stack, with a word for an optimizer's stack that has the same prefix as the model's.
function stackLabel(stack, stacks) {
  const isShared = stack.isOptimizer && stacks.some((other) => other !== stack && other.prefix === stack.prefix);
  return shortened(printable(stack.prefix), 28) + (isShared ? " slots" : "") + stackMark(stack);
}

// Behind the name of a stack: what is wrong in its layers.
function stackMark(stack) {
  const items = stack.rows.flatMap(({ cells }) => cells.flat());
  return items.some(isFaulty) ? " ✗" : items.some(isOdd) ? " !" : "";
}

const LEFT = 46; // the labels of rows
const LEAST_MARKED = 11; // CSS pixels of a row with room for a mark
const BARS = 84; // the bars of whole layers, in a comparison
const TALLEST_ROW = 34;
const MAP_HEIGHT = 450; // CSS pixels of the rows of a heat map, which is about as high as the size map next to it

class LayerMap {
  constructor(actions) {
    Object.assign(this, { actions, stacks: [], stack: null, at: [0, 0], hovered: null });
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.holder = element("div", { class: "layers", role: "group", tabindex: "0" }, this.canvas);
    this.sentence = element("p", { class: "note" });
    this.tabs = element("div", { class: "segments", role: "group", "aria-label": "Stack of layers" });
    this.choices = element("div", { class: "segments", role: "group", "aria-label": "Measure" });
    this.legend = element("div", { class: "legend" });
    this.elements = [this.tabs, this.choices, this.sentence, this.holder, this.legend];
    this.draw = soon(() => this.drawNow());
    new ResizeObserver(this.draw).observe(this.holder);
    this.holder.addEventListener("mousemove", (event) => this.hover(event));
    this.holder.addEventListener("mouseleave", () => this.leave());
    this.holder.addEventListener("click", (event) => this.click(event));
    this.holder.addEventListener("keydown", (event) => this.key(event));
  }

  start() {
    this.stacks = findStacks(ITEMS);
    [this.stack = null] = this.stacks;
    this.isTelling = this.stacks.some(isTelling);
    this.showChoices();
  }

  showChoices() {
    if (!this.stack) return;
    const pick = (change) => () => (change(), this.showChoices(), this.draw(), remember());
    this.tabs.hidden = this.stacks.length < 2;
    this.tabs.replaceChildren(...this.stacks.map((stack) => segment(stackLabel(stack, this.stacks), stack === this.stack, pick(() => ((this.stack = stack), (this.at = [0, 0]))))));
    this.choices.hidden = MEASURES.length < 2;
    this.choices.replaceChildren(...MEASURES.map((measure) => segment(measure.name, measure === this.measure(), pick(() => (state.measure = measure.name)))));
    this.sentence.textContent = layerSentence(this.stack);
    this.holder.setAttribute("aria-label", `Heat map of ${grouped(this.stack.layers.length)} layers of ${printable(this.stack.prefix)}. Arrow keys move, Enter chooses.`);
    this.holder.style.height = `${this.top() + this.stack.rows.length * this.rowHeight() + 2}px`;
  }

  // The stack that has a tensor comes to the front.
  follow(item) {
    const place = this.placeOf(item);
    if (!place || place.stack === this.stack) return;
    Object.assign(this, { stack: place.stack, at: [0, 0] });
    this.showChoices();
  }

  // The stack of a tensor, its row and its column; null if it is in none.
  placeOf(item) {
    for (const stack of item ? this.stacks : []) {
      for (let column = 0; column < stack.modules.length; column++) {
        const row = stack.rows.findIndex(({ cells }) => cells[column].includes(item));
        if (row >= 0) return { stack, row, column };
      }
    }
    return null;
  }

  measure() {
    return MEASURES.find((measure) => measure.name === state.measure) ?? defaultMeasure();
  }

  // The ends of the scale, of the tensors of this stack: others would make all of them look alike.
  range() {
    const measure = this.measure();
    const { ranges = (this.stack.ranges = new Map()), rows } = this.stack;
    if (!ranges.has(measure)) ranges.set(measure, rangeOf(measure, rows.flatMap(({ cells }) => cells.flat())));
    return ranges.get(measure);
  }

  rowHeight() {
    const { length } = this.stack.rows;
    return Math.max(length > 48 ? 8 : 11, Math.min(TALLEST_ROW, Math.floor(MAP_HEIGHT / length)));
  }

  // The names above the columns: those parts of the modules that tell them apart.
  labels() {
    const { modules } = this.stack;
    const whole = modules.map((module) => module.split(/[/.]/).filter(Boolean));
    const isCommon = (part) => whole.length > 1 && whole.every((each) => each.includes(part));
    const parts = whole.map((each) => (each.every(isCommon) ? each.slice(-1) : each.filter((part) => !isCommon(part))));
    let length = 2;
    const labels = () => parts.map((each) => printable(each.slice(/^(\*|\d+(–\d+)?)$/.test(each[each.length - length]) ? -length - 1 : -length).join("."))).map(keyText);
    while (length < MOST_PARTS && new Set(labels()).size < new Set(modules).size) length++;
    return labels();
  }

  top() {
    return Math.min(160, 14 + Math.max(...this.labels().map((label) => label.length)) * 6);
  }

  cellWidth() {
    return (this.holder.clientWidth - LEFT - (IS_COMPARED ? BARS : 0)) / this.stack.modules.length;
  }

  drawNow() {
    if (!this.stack) return;
    const { clientWidth: width, clientHeight: height } = this.holder;
    const context = fitted(this.canvas, width, height);
    if (!context) return;
    const [w, h, top] = [this.cellWidth(), this.rowHeight(), this.top()];
    this.write(context, w, h, top);
    this.stack.rows.forEach(({ cells }, row) => {
      cells.forEach((items, column) => items.length && this.paint(context, items, LEFT + column * w, top + row * h, w, h));
      if (IS_COMPARED) this.bar(context, cells.flat(), LEFT + cells.length * w + 8, top + row * h, h);
    });
    this.mark(context, w, h, top);
    showScale(this.legend, this.measure(), this.range());
  }

  write(context, w, h, top) {
    context.font = '11px system-ui, "DejaVu Sans", sans-serif';
    context.fillStyle = theme.quiet;
    let last = -Infinity;
    this.labels().forEach((label, column, labels) => {
      if (label === labels[column - 1] || (column - last) * w < 12) return; // written already, or no room
      last = column;
      context.save();
      context.translate(LEFT + (column + 0.5) * w + 4, top - 6);
      context.rotate(-Math.PI / 2);
      context.fillText(fittedText(context, label, top - 8), 0, 0);
      context.restore();
    });
    const every = Math.ceil(14 / h);
    context.textAlign = "right";
    this.stack.rows.forEach(({ label }, row) => {
      if (row % every === 0) context.fillText(fittedText(context, label, LEFT - 8), LEFT - 6, top + row * h + Math.min(h, 14) - 2);
    });
    context.textAlign = "left";
    if (IS_COMPARED) context.fillText("whole layer", LEFT + this.stack.modules.length * w + 8, top - 6);
  }

  paint(context, items, x, y, w, h) {
    const item = worstOf(items, this.measure());
    const isMuted = !items.some((each) => this.actions.shown(each));
    context.globalAlpha = isMuted ? 0.18 : 1;
    context.fillStyle = measureColour(this.measure(), item, this.range());
    const [left, width, height] = [x + 0.75, Math.max(w - 1.5, 1), Math.max(h - 1.5, 1)];
    context.fillRect(left, y, width, height);
    if (isOneSided(item)) hatch(context, left, y, width, height, theme.card, 5);
    if (isFaulty(item)) {
      context.fillStyle = theme.card;
      context.fillRect(left, y, width, height);
      hatch(context, left, y, width, height, theme.bad, 5);
    }
    const isLoud = isOdd(item);
    const mark = items.length === 1 || isLoud ? flagMark(item) : "";
    if (mark && (isLoud || h >= LEAST_MARKED) && !isFaulty(item)) {
      context.strokeStyle = isLoud ? theme.flag : theme.quiet;
      context.lineWidth = 1.5;
      context.fillStyle = theme.card;
      context.fillRect(left + 0.75, y + 0.75, width - 1.5, height - 1.5);
      if (isLoud) context.strokeRect(left + 0.75, y + 0.75, width - 1.5, height - 1.5);
      context.fillStyle = isLoud ? theme.flag : theme.ink;
      context.font = `${isLoud ? "600 " : ""}${Math.min(11, h - 2)}px system-ui, "DejaVu Sans", sans-serif`;
      const extent = context.measureText(mark).width;
      if (extent < width - 2 && h >= LEAST_MARKED) context.fillText(mark, left + (width - extent) / 2, y + height / 2 + Math.min(4, h / 3.1));
    }
    context.globalAlpha = 1;
  }

  // The largest change of a layer, on a linear scale.
  bar(context, items, x, y, h) {
    const { value } = this.measure();
    const { high } = this.range();
    const most = Math.max(0, ...items.map((item) => value(item) ?? 0));
    context.fillStyle = rampColour("change", 0.6);
    if (most && high) context.fillRect(x, y + 1, Math.max(1, (BARS - 12) * Math.min(most / high, 1)), Math.max(h - 3, 1));
  }

  mark(context, w, h, top) {
    const chosen = this.actions.chosen();
    const spots = [];
    this.stack.rows.forEach(({ cells }, row) => cells.forEach((items, column) => chosen && items.includes(chosen) && spots.push([row, column, 2.5])));
    if (this.hovered) spots.push([...this.hovered, 1.5]);
    if (document.activeElement === this.holder) spots.push([...this.at, 1.5]);
    for (const [row, column, weight] of spots) outline(context, LEFT + column * w - 0.5, top + row * h - 1.25, w + 1, h + 1, weight);
  }

  placeAt(event) {
    const { left, top } = this.holder.getBoundingClientRect();
    const column = Math.floor((event.clientX - left - LEFT) / this.cellWidth());
    const row = Math.floor((event.clientY - top - this.top()) / this.rowHeight());
    return this.stack.rows[row]?.cells[column]?.length ? [row, column] : null;
  }

  lines([row, column]) {
    const items = this.stack.rows[row].cells[column];
    const measure = this.measure();
    const item = worstOf(items, measure);
    const value = measure.value(item);
    const about = `${measure.name} ${value === null ? "unknown" : measure.text(value)}`;
    const shared = items.length > 1 ? `${count(items.length, "tensor")} in this cell: this is the most remarkable` : "";
    return [printable(item.key), about, [...flagsOf(item)].join(", "), isFaulty(item) ? "cannot be read" : "", shared];
  }

  hover(event) {
    const place = this.placeAt(event);
    this.holder.classList.toggle("pointing", Boolean(place));
    if (place) showTip(event, this.lines(place));
    else hideTip();
    if (String(place) !== String(this.hovered)) {
      this.hovered = place;
      this.draw();
    }
  }

  leave() {
    hideTip();
    this.hovered = null;
    this.draw();
  }

  click(event) {
    const place = this.placeAt(event);
    if (!place) return;
    hideTip();
    this.at = place;
    this.choose();
  }

  choose() {
    const items = this.stack.rows[this.at[0]].cells[this.at[1]];
    if (items.length) this.actions.choose(worstOf(items, this.measure()));
  }

  key(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Enter" || event.key === " ") this.choose();
    else if (!step) return;
    else {
      const { rows, modules } = this.stack;
      const bound = (value, length) => Math.max(0, Math.min(length - 1, value));
      this.at = [bound(this.at[0] + step[0], rows.length), bound(this.at[1] + step[1], modules.length)];
      const items = rows[this.at[0]].cells[this.at[1]];
      document.getElementById("said").textContent = items.length ? this.lines(this.at).filter(Boolean).join("; ") : "empty";
      this.draw();
    }
    event.preventDefault();
  }
}

// A measure of a module over the layers, for the module of a tensor.
function layerCurve(item, measure) {
  const place = layerMap.placeOf(item);
  if (!place) return null;
  const { stack, row, column } = place;
  const values = stack.rows.map(({ cells }) => (cells[column].length ? measure.value(worstOf(cells[column], measure)) : null));
  return { values, row, name: stack.modules[column], labels: stack.rows.map(({ label }) => label) };
}
