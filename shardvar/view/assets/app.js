// The state of the page: what is searched for, filtered and selected; and the parts that are redrawn when it changes.

const state = { query: "", dtypes: new Set(), statuses: new Set(), flags: new Set(), onlyFaults: false, isFlat: false, prefix: "", item: null, sort: "key", down: false, by: "", measure: "" };
let shown = ITEMS;
let shownSet = null; // null: all
let lines = []; // of the table: the items that are shown, or groups of them
let tree = null; // of the groups, made when they are first shown
const openGroups = new Set();

let isTyping = false; // Back does not undo single letters

const actions = {
  chosen: () => state.item,
  shown: (item) => shownSet === null || shownSet.has(item),
  choose(item) {
    state.item = item;
    remember();
    const panel = document.getElementById("detail");
    layerMap.follow(item);
    showDetail(panel, item, actions);
    document.getElementById("said").textContent = itemLines(item, sideOf(item)).filter(Boolean).join("; ");
    if (isFolded()) {
      for (const group of groupsAround(tree, item) ?? []) openGroups.add(group);
      showLines();
    }
    const row = rowOf(item);
    if (row >= 0 && table.current !== row) table.move(row, false);
    else table.draw();
    for (const map of [...maps, layerMap]) map.draw();
    for (const files of fileMaps) files.update();
  },
  close() {
    if (!state.item) return;
    state.item = null;
    remember();
    pullSheet(false);
    showDetail(document.getElementById("detail"), null, actions);
    for (const part of [table, ...maps, layerMap]) part.draw();
    for (const files of fileMaps) files.update();
  },
  open(prefix) {
    state.prefix = prefix;
    for (const map of maps) map.zoom(prefix);
    showCrumbs();
    remember();
  },
  up() {
    const { root } = maps[0];
    const above = crumbsOf(root.prefix || state.prefix);
    actions.open(above.length > 1 ? above[above.length - 2] : "");
  },
};

const maps = [new Treemap(actions)];
const layerMap = new LayerMap(actions);
const fileMaps = SIDES.map((_, side) => new FileMap(side, actions));
const COLUMNS = tableColumns();
let fitting = COLUMNS;
const table = makeTable();

// The room that keys need, within bounds: some 8 pixels a letter.
function keyWidth() {
  const longest = ITEMS.reduce((most, { name }) => Math.max(most, name.length), 0);
  return Math.max(150, Math.min(300, longest * 7.7 + 20));
}

// The room of the longest name of a dtype, some 8 pixels a letter.
function dtypeWidth() {
  return Math.max(84, Math.max(...DTYPES.map((name) => name.length), 0) * 8 + 20);
}

// The room of "1,000 × 100 tensors", which a line of equal layers has in place of a shape.
function shapeWidth() {
  return Math.max(132, Math.min(180, (12 + grouped(ITEMS.length).length) * 7.2 + 20));
}

function tableColumns() {
  const side = (item) => SIDES[sideOf(item)];
  const row = (item) => item.rows[sideOf(item)];
  const stat = (name) => (item) => {
    const place = side(item).statistics.get(row(item));
    return place === undefined ? null : side(item).stats[name][place];
  };
  const slices = (item) => side(item).num_slices[row(item)];
  const columns = [
    { name: "key", least: keyWidth(), width: "minmax(0, 1fr)", value: (item) => item.key, cell: keyCell },
    { name: "dtype", least: dtypeWidth(), width: `${dtypeWidth()}px`, value: dtypeCell, group: (group) => dtypesText(new Set(itemsOf(group).map(dtypeCell))) },
    { name: "shape", least: shapeWidth(), width: `${shapeWidth()}px`, value: (item) => elements(shapeOf(side(item), row(item))), text: shapeCell, group: groupText },
    { name: "size", least: 88, width: "88px", right: true, value: nbytesOf, text: sizeCell, group: (group) => humanSize(sumOf(group, nbytesOf)) },
    ...(HAS_SLICES ? [{ name: "slices", least: 84, width: "84px", right: true, value: slices, group: (group) => grouped(sumOf(group, slices)) }] : []),
  ];
  if (IS_PLAN && IS_DIFF) return [columns[0], ...planColumns(), ...columns.slice(1, 4)];
  if (IS_DIFF) return [columns[0], ...differenceColumns(), columns[3]];
  if (SIDES.some((each) => each.stats)) {
    for (const name of ["min", "max", "mean"]) {
      const group = { min: (each) => shortNumber(extremeOf(each, stat("min"), 1)), max: (each) => shortNumber(extremeOf(each, stat("max"), -1)) }[name];
      columns.push({ name, least: 84, width: "84px", right: true, value: stat(name), text: (item) => shortNumber(stat(name)(item)), group });
    }
    columns.push({ name: "NaN", least: 58, width: "58px", right: true, value: stat("nan"), group: (group) => grouped(sumOf(group, (item) => stat("nan")(item) ?? 0)) });
  }
  return columns;
}

function dtypeCell(item) {
  return isSetting(item) ? "setting" : dtypeOf(SIDES[sideOf(item)], item.rows[sideOf(item)]);
}

// The shape of a tensor, or the value of a scalar.
function shapeCell(item) {
  const value = valueText(item);
  return value === undefined ? humanShape(shapeOf(SIDES[sideOf(item)], item.rows[sideOf(item)])) : `= ${printable(value)}`;
}

// The size of a tensor; in a table without room for shapes, the value of a scalar in its place.
function sizeCell(item) {
  const hasShapes = fitting.some(({ name }) => name === "shape");
  return hasShapes || IS_DIFF || valueText(item) === undefined ? humanSize(nbytesOf(item)) : shapeCell(item);
}

function dtypesText(names) {
  return names.size > 1 ? count(names.size, "dtype") : [...names][0];
}

const KIND_ORDER = ["unreadable", "shape", "a", "b", "dtype", "values", "equal"];

function planColumns() {
  const slices = (item) => item.rows.map((row, side) => (row < 0 ? "none" : SIDES[side].num_slices[row]));
  return [
    { name: "change", least: 150, width: "150px", value: (item) => KIND_ORDER.indexOf(item.kind), text: statusText },
    { name: "slices", least: 96, width: "96px", right: true, value: (item) => Number(slices(item)[1]) || 0, text: (item) => slices(item).join(" → ") },
  ];
}

function differenceColumns() {
  // Differences without a number come first, then values by their change.
  const weight = (item) => KIND_ORDER.indexOf(item.kind) + (item.kind === "values" ? 1 / (2 + (finite(item.change) ?? Infinity)) : 0);
  const numbers = (name, measure) => {
    const { value, text } = ALL_MEASURES.find((each) => each.name === measure);
    return { name, least: 84, width: "84px", right: true, value, text: (item) => (value(item) !== null ? text(value(item)) : item.kind === "values" && item.change === "inf" ? "NaN or Inf" : "") };
  };
  return [
    { name: "what differs", least: 190, width: "minmax(110px, 0.7fr)", value: weight, text: (item) => [...whatDiffers(item), ...(fitting.some(({ name }) => name === "change") || !item.values ? [] : [numbers("change", "Change").text(item)])].filter(Boolean).join(", ") },
    numbers("change", "Change"), numbers("largest", "Largest difference"), numbers("elements", "Elements"),
    { name: "where", least: 100, width: "100px", value: (item) => item.values?.absolute_at?.[0] ?? null, text: (item) => humanShape(item.values?.absolute_at ?? item.values?.first ?? null) },
  ];
}

// In words, what differs between the two sides of a tensor.
function whatDiffers(item) {
  if (item.status !== "differs") return [statusText(item)];
  const [a, b] = item.rows;
  const words = [];
  const shapes = [shapeOf(SIDES[0], a), shapeOf(SIDES[1], b)].map(humanShape);
  const dtypes = [dtypeOf(SIDES[0], a), dtypeOf(SIDES[1], b)];
  if (shapes[0] !== shapes[1]) words.push(`shape ${shapes[0]} → ${shapes[1]}`);
  if (dtypes[0] !== dtypes[1]) words.push(`dtype ${dtypes[0]} → ${dtypes[1]}`);
  if (item.values) words.push(item.values.only ? `only the ${item.values.only}` : "values");
  else if (item.kind === "dtype") words.push("same values");
  return words;
}

// A number in the room of a column: three digits, and an integer whole, as long as it has room.
function shortNumber(value) {
  const number = typeof value === "string" && /^-?\d+$/.test(value) ? Number(value) : value; // an integer too large to be sent as one
  if (typeof number !== "number") return number ?? "";
  const size = Math.abs(number);
  if (size >= 1e7 || (number && size < 0.001)) return number.toExponential(1);
  return size < 1000 && !Number.isInteger(number) ? String(Number(number.toPrecision(3))) : String(Math.round(number));
}

function elements(shape) {
  return shape === null ? -1 : shape.reduce((product, extent) => product * Number(extent), 1);
}

const MARKS = {
  OverlappingSlices: "overlapping", IncompleteCheckpoint: "incomplete", MissingFile: "file missing", OutOfBounds: "out of bounds",
  InconsistentTensor: "inconsistent", CorruptCheckpoint: "corrupt",
};

function keyCell(item, shown = 0) {
  const fault = item.errors?.[0] ?? item.rows.map((row, side) => SIDES[side].faults.get(row)).find(Boolean);
  const odd = [...flagsOf(item)].filter((flag) => LOUD_FLAGS.includes(flag));
  const flags = odd.map((flag) => element("span", { class: "mark flag", text: flag }));
  return [fault ? element("span", { class: "mark", text: MARKS[fault.kind] ?? "unreadable", title: oneLine(fault.message) }) : "", ...flags, ...keyParts(shownKey(item.name.slice(shown)))];
}

// Of a group: its label, and how many of its tensors cannot be read or have NaN or infinity.
function groupCell(line) {
  const items = itemsOf(line.group);
  const [faults, odd] = [items.filter(isFaulty).length, items.filter(isOdd).length];
  return [element("span", { class: "turn", "aria-hidden": "true", text: line.isOpen ? "▾" : "▸" }),
    faults ? element("span", { class: "mark", text: `✗ ${grouped(faults)}`, title: `${count(faults, "tensor")} cannot be read` }) : "",
    odd ? element("span", { class: "mark flag", text: `! ${grouped(odd)}`, title: `${count(odd, "tensor")} with NaN or infinity` }) : "",
    element("span", { class: "start" }, ...keyNodes(groupLabel(line)))];
}

// Where it does not fit, a key is cut before its last two parts, which tell it from its neighbours.
function keyParts(key) {
  const separator = key.includes("/") ? "/" : ".";
  const last = key.lastIndexOf(separator, key.length - 2);
  const before = last > 0 ? key.lastIndexOf(separator, last - 1) : -1;
  // The number of a layer also tells a key from its neighbours.
  const number = key.search(/(?<=[/._])\d{1,9}[/.]/);
  const cut = [number, before, last].find((at) => at > 0 && key.length - at < 30) ?? 0;
  return [element("span", { class: "start" }, ...keyNodes(key.slice(0, cut))), element("span", { class: "last" }, ...keyNodes(key.slice(cut)))];
}

// The columns that fit; the least telling is left out first. A dtype that all tensors have is on its button.
function fittingColumns() {
  let columns = COLUMNS;
  const width = document.getElementById("table").clientWidth || 1000;
  const common = DTYPES.length === 1 ? ["dtype"] : [];
  for (const names of [common, ["where"], ["elements"], ["largest"], ["change"], ["NaN"], ["slices"], ["mean"], ["shape"], ["dtype"], ["min", "max"], IS_COMPARED ? ["size"] : []]) {
    if (columns.reduce((sum, column) => sum + column.least, 0) <= width) break;
    columns = columns.filter((column) => !names.includes(column.name));
  }
  return columns;
}

function makeTable() {
  const head = element("div", { class: "head", role: "row" });
  const list = new VirtualList({
    label: "Tensors", role: "grid", rowHeight: 30, head,
    renderRow: (row) => tableRow(lines[row]),
    choose: (row) => lines[row].item && actions.choose(lines[row].item),
    turn,
  });
  list.isChosen = (row) => lines[row].item !== undefined && lines[row].item === state.item;
  const none = element("p", { class: "none", hidden: true }, ITEMS.length ? "No tensor matches. " : "This checkpoint has no tensors.", element("button", { type: "button", class: "link all", text: "Show all", hidden: true }));
  const isCut = ITEMS.some(({ key, name }) => key !== name);
  const about = isCut ? element("p", { class: "note", text: "Keys are shown without their end /.ATTRIBUTES/VARIABLE_VALUE." }) : "";
  document.getElementById("table").append(list.element, none, about);
  list.none = none;
  return list;
}

function tableRow(line) {
  const { item, group, shown: start, level } = line;
  const indent = level > 1 ? { paddingLeft: `${10 + (level - 1) * 16}px` } : {};
  const cell = (column, parts) => element("div", { role: "gridcell", class: column.right ? "right num" : column.name === "key" ? "mono key" : null, style: column.name === "key" ? indent : {} }, ...parts);
  const isTree = isFolded();
  if (group) return element("div", { class: "group", "aria-level": level, "aria-expanded": String(line.isOpen) }, ...fitting.map((column) => cell(column, column.name === "key" ? groupCell(line) : [String(column.group?.(group) ?? "")])));
  const title = [printable(item.key), IS_COMPARED && whatDiffers(item).join(", ")].filter(Boolean).join(": ");
  return element("div", { title, "aria-level": isTree ? level : null }, ...fitting.map((column) => cell(column, column.cell ? column.cell(item, start) : [String((column.text ?? column.value)(item) ?? "")])));
}

// Whether equal layers share a line: only while the table has all tensors, in the order of their keys.
function isFolded() {
  return !IS_DIFF && !state.isFlat && ITEMS.length > LEAST_FOLDED && state.sort === "key" && !state.down && shownSet === null;
}

function rowOf(item) {
  return lines.findIndex((line) => line.item === item);
}

function showLines() {
  if (isFolded()) lines = linesOf((tree ??= foldTree(ITEMS)), openGroups);
  else lines = shown.map((item) => ({ item, shown: 0, level: 1 }));
  table.element.setAttribute("role", isFolded() ? "treegrid" : "grid");
  table.setLength(lines.length);
}

// Opens or closes the group of a row; gives the row that is then the current one, or null where nothing is to be done.
function turn(row, isToOpen = !lines[row].isOpen) {
  const { group, isOpen, level } = lines[row];
  if (group && isOpen !== isToOpen) {
    if (isToOpen) openGroups.add(group);
    else openGroups.delete(group);
    showLines();
    return row;
  }
  if (group && isToOpen) return row + 1; // to its first member
  for (let above = row - 1; !isToOpen && level > 1 && above >= 0; above--) if (lines[above].level < level) return above;
  return null;
}

function showFold() {
  const box = document.getElementById("fold");
  const focused = [...box.children].indexOf(document.activeElement);
  const isUseful = !IS_DIFF && ITEMS.length > LEAST_FOLDED && lines.length && (state.isFlat || lines.length < shown.length);
  box.hidden = !isUseful || state.sort !== "key" || state.down || shownSet !== null;
  const pick = (isFlat) => () => ((state.isFlat = isFlat), apply());
  box.replaceChildren(segment("Folded", !state.isFlat, pick(false)), segment("All", state.isFlat, pick(true)));
  if (focused >= 0) box.children[focused].focus();
}

function showHead() {
  fitting = fittingColumns();
  document.getElementById("table").style.setProperty("--columns", fitting.map((column) => column.width).join(" "));
  const focused = table.head.contains(document.activeElement) ? document.activeElement.dataset.name : null;
  table.head.replaceChildren(...fitting.map((column) => {
    const isSorted = state.sort === column.name;
    const arrow = isSorted ? (state.down ? " ↓" : " ↑") : "";
    const button = element("button", { type: "button", "data-name": column.name, text: column.name + arrow, onclick: () => sortBy(column) });
    const order = isSorted ? (state.down ? "descending" : "ascending") : "none";
    return element("div", { role: "columnheader", "aria-sort": order, class: column.right ? "right" : null }, button);
  }));
  if (focused) table.head.querySelector(`[data-name="${focused}"]`)?.focus();
}

function sortBy(column) {
  state.down = state.sort === column.name ? !state.down : Boolean(column.right);
  state.sort = column.name;
  apply();
}

function sorted(items) {
  const column = COLUMNS.find((each) => each.name === state.sort);
  const value = column.name === "key" ? (item) => item.number : column.value; // items are in the order in which a model is read
  const values = new Map(items.map((item) => [item, value(item)]));
  const rank = (value) => (value === null || value === "" ? 1 : 0); // what has no value comes last, either way
  const sign = state.down ? -1 : 1;
  return [...items].sort((x, y) => {
    const [a, b] = [values.get(x), values.get(y)];
    if (rank(a) || rank(b)) return rank(a) - rank(b);
    return sign * (a < b ? -1 : a > b ? 1 : 0) || x.number - y.number;
  });
}

// Everything that follows from what is asked for.
function apply() {
  const matches = matcher(state.query.trim());
  const isAsked = (item) =>
    (!state.dtypes.size || item.rows.some((row, side) => row >= 0 && state.dtypes.has(dtypeOf(SIDES[side], row)))) &&
    (!state.statuses.size || state.statuses.has(item.kind)) &&
    (!state.flags.size || [...flagsOf(item)].some((flag) => state.flags.has(flag))) &&
    (!state.onlyFaults || isFaulty(item)) && matches(item.key);
  const isAll = !state.query.trim() && ![state.dtypes, state.statuses, state.flags].some((set) => set.size) && !state.onlyFaults;
  const found = isAll ? ITEMS : ITEMS.filter(isAsked);
  shownSet = found.length === ITEMS.length ? null : new Set(found);
  shown = sorted(found);
  showHead();
  table.none.hidden = shown.length > 0;
  table.element.hidden = !shown.length;
  showLines();
  table.current = Math.max(0, rowOf(state.item));
  showFold();
  for (const map of maps) map.update(found, state.prefix);
  for (const part of [layerMap, ...fileMaps]) (part.update ?? part.draw).call(part);
  const nbytes = isAll ? 0 : found.reduce((sum, item) => sum + nbytesOf(item), 0);
  document.getElementById("found").textContent = shownSet === null ? "" : `${grouped(found.length)} of ${count(ITEMS.length, HAS_SETTINGS ? "key" : "tensor")}, ${humanSize(nbytes)}`;
  for (const button of document.querySelectorAll(".all")) button.hidden = isAll;
  showCrumbs();
  remember(!isTyping);
}

// Searches for a text, as if it were typed.
function searchFor(text) {
  document.getElementById("query").value = state.query = text;
  apply();
}

// Clears the search and every filter.
function showAll() {
  document.getElementById("query").value = state.query = "";
  for (const set of [state.dtypes, state.statuses, state.flags]) set.clear();
  state.onlyFaults = false;
  showChips();
  apply();
  document.getElementById("query").focus(); // the button is gone
}

// The prefixes from the top to this one.
function crumbsOf(prefix) {
  const separator = prefix.includes("/") ? "/" : ".";
  const found = [""];
  for (let at = prefix.indexOf(separator); at >= 0; at = prefix.indexOf(separator, at + 1)) found.push(prefix.slice(0, at + 1));
  return found;
}

function showCrumbs() {
  const prefix = maps.map((map) => map.root.prefix).sort((a, b) => b.length - a.length)[0];
  const prefixes = crumbsOf(prefix);
  const hasFolders = maps.some((map) => map.root.children.some((child) => child.children));
  const crumb = (each, place) => {
    const text = place ? printable(each.slice(prefixes[place - 1].length)) : "all";
    if (place === prefixes.length - 1) return element("span", { class: "here", "aria-current": "location", text });
    return element("button", { type: "button", text: place ? text : `${text} / `, onclick: () => actions.open(each) });
  };
  document.getElementById("crumbs").replaceChildren(...(prefix ? prefixes.map(crumb) : [element("span", { class: "quiet", text: hasFolders ? "click a folder to open it" : "" })]));
}

function chip(text, number, colour, isOn, toggle) {
  const mark = colour === undefined ? null : element("i", { style: { background: colour } });
  return element("button", { class: "chip", type: "button", "aria-pressed": String(isOn), onclick: toggle }, mark, `${text} `, element("span", { class: "num", text: grouped(number) }));
}

function flip(set, value) {
  if (!set.delete(value)) set.add(value);
}

function showChips() {
  const counts = new Map();
  const statuses = new Map();
  const flags = flagCounts();
  let faults = 0;
  for (const item of ITEMS) {
    const [name, other] = item.rows.map((row, side) => (row < 0 ? "" : dtypeOf(SIDES[side], row)));
    if (name) counts.set(name, (counts.get(name) ?? 0) + 1);
    if (other && other !== name) counts.set(other, (counts.get(other) ?? 0) + 1);
    statuses.set(item.kind, (statuses.get(item.kind) ?? 0) + 1);
    if (isFaulty(item)) faults++;
  }
  const box = document.getElementById("chips");
  const focused = [...box.children].indexOf(document.activeElement);
  const made = [];
  const again = () => {
    showChips();
    apply();
  };
  if (IS_DIFF) {
    for (const name of Object.keys(KIND_COLOURS)) {
      if (!statuses.has(name)) continue;
      made.push(chip(KIND_TEXT[name] ?? name, statuses.get(name), kindMark(name), state.statuses.has(name), () => (flip(state.statuses, name), again())));
    }
  }
  for (const name of DTYPES) {
    made.push(chip(name, counts.get(name) ?? 0, undefined, state.dtypes.has(name), () => (flip(state.dtypes, name), again())));
  }
  if (faults && !IS_DIFF) {
    made.push(chip("cannot be read", faults, theme.bad, state.onlyFaults, () => ((state.onlyFaults = !state.onlyFaults), again())));
  }
  for (const flag of FLAGS) {
    if (flags.has(flag)) made.push(chip(flag, flags.get(flag), LOUD_FLAGS.includes(flag) ? theme.flag : undefined, state.flags.has(flag), () => (flip(state.flags, flag), again())));
  }
  box.replaceChildren(...made);
  if (focused >= 0) box.children[focused]?.focus();
}

// The ways to colour the size map, and what the colours of the one that is chosen mean.
function showColours() {
  const box = document.getElementById("colours");
  const focused = [...box.children].indexOf(document.activeElement);
  const pick = (name) => () => {
    state.by = name;
    showColours();
    for (const map of maps) map.draw();
    for (const files of fileMaps) files.update();
    remember();
  };
  const names = COLOURINGS;
  box.hidden = names.length < 2;
  box.replaceChildren(...names.map((name) => segment(name, name === colouring(), pick(name))));
  if (focused >= 0) box.children[focused]?.focus();
  showLegend(document.getElementById("legend"));
}

function showHeading() {
  const heading = document.getElementById("heading");
  heading.classList.toggle("two", IS_DIFF);
  for (const side of SIDES) {
    const title = printable(side.path);
    if (IS_DIFF) {
      const letter = element("span", { class: `letter ${side.number ? "b" : "a"}`, text: SIDE_NAMES[side.number] });
      heading.append(element("div", {}, element("h2", { title }, letter, " ", printable(side.name)), totalsLine(side)));
    } else {
      heading.append(element("h1", { title, text: printable(side.name) }), healthLine(side));
      document.getElementById("alerts").after(totalsRow(side)); // what is wrong comes first
    }
  }
  if (IS_PLAN) heading.before(...planParts());
  else if (IS_DIFF) heading.before(element("h1", { text: diffSentence() }), ...notFinite());
}

function totalsLine(side) {
  const parameters = side.num_parameters ? `${humanCount(side.num_parameters)} parameter${side.num_parameters === 1 ? "" : "s"}` : "";
  const facts = [parameters, count(numTensors(side), "tensor"), settingsText(side), HAS_SLICES && count(side.tensorOf.length, "slice"), count(side.files.length, "file"), humanSize(side.total), side.format];
  return element("p", { class: "totals num", text: facts.filter(Boolean).join(" · ") });
}

function settingsText(side) {
  return side.numSettings ? count(side.numSettings, "setting") : "";
}

// Below the number of tensors: their layers, those in slices, and the settings, which are not counted as tensors.
function tensorsAbout(side) {
  const numCut = side.num_slices.filter((number) => number > 1).length;
  const cut = numCut === side.keys.length ? "all in slices" : numCut ? `${grouped(numCut)} in slices` : "";
  const stack = layerMap.stacks.find((each) => !each.isOptimizer);
  const [alike] = stack ? kindsOfLayers(stack) : [];
  const all = alike?.length === stack?.layers.length ? "" : `${grouped(alike?.length ?? 0)} of `;
  const layers = alike?.length > 1 ? `${all}${grouped(stack.layers.length)} layers of ${grouped(alike[0][1].length)}, same shapes` : "";
  return [layers, cut, settingsText(side) && `and ${settingsText(side)}`].filter(Boolean).join("; ");
}

// The totals of the only checkpoint: a name, a large figure, and what it is made of.
function totalsRow(side) {
  const dtypes = side.dtypes.map((name) => ({ name, count: 0, nbytes: 0 }));
  side.dtype.forEach((dtype, row) => dtype >= 0 && !side.isSetting(row) && ((dtypes[dtype].count += 1), (dtypes[dtype].nbytes += side.nbytes[row])));
  const [most, ...others] = dtypes.filter((each) => each.count).sort((a, b) => b.nbytes - a.nbytes);
  const figures = [
    ["Parameters", humanCount(side.num_parameters), side.num_parameters < 10000 ? "" : grouped(side.num_parameters)],
    ["Size", humanSize(side.total), side.total < 1000 ? "" : `${grouped(side.total)} bytes`],
    ["Tensors", grouped(numTensors(side)), tensorsAbout(side)],
    ["Dtypes", most ? most.name : "none", others.length ? `${percent(most.nbytes, side.total)} of the bytes; ${[most, ...others].map((each) => `${grouped(each.count)} ${each.name}`).join(", ")}` : ""],
    ["Storage", count(side.files.length, "file"), [`${side.format} format`, HAS_SLICES && count(side.tensorOf.length, "slice")].filter(Boolean).join(", ")],
  ];
  const cell = ([name, figure, about]) => element("div", {}, element("dt", { text: name }), element("dd", { class: "figure", text: figure }), element("dd", { text: about }));
  return element("dl", { class: "totals cards num" }, ...figures.filter(([name]) => name !== "Parameters" || side.num_parameters).map(cell));
}

// What is known of its health, and the command that says the rest. A page of a comparison has read every value.
function healthLine(side) {
  const line = element("div", { class: "health" });
  if (IS_DIFF || IS_PLAN || !side.keys.length) return line;
  line.append(...verdict(side));
  const command = (words) => element("code", { text: printable(`shardvar ${words} ${quotedPath(side.path)}`) });
  if (!side.stats) {
    line.append("Values and checksums were not read. ", command("verify"), " compares the checksums. To find NaN, infinity and constants as well:");
    line.append(copyLine("Command", `shardvar view --stats ${quotedPath(side.path)}`, "Copy command"));
    return line;
  }
  const counts = flagCounts();
  const found = FLAGS.map((flag) => [flag, counts.get(flag)]).filter(([, number]) => number);
  const values = found.flatMap(([flag, number], place) => [place ? ", " : "", findingButton(findingText(flag, number), () => (state.flags = new Set([flag])))]);
  line.append(side.faults.size ? `${count(side.faults.size, "tensor")} cannot be read. ` : `All values were read. ${checksumSentence(side)} `);
  line.append(...(values.length ? ["Found: ", ...values] : ["No NaN, no infinity, no constants"]), ".");
  if (side.stats.num_left_out) line.append(` The page has no room for the statistics of ${count(side.stats.num_left_out, "more tensor")} without such values.`);
  return line;
}

function findingText(flag, number) {
  if (flag === "all zeros") return `${count(number, "tensor")} of zeros only`;
  return flag === "constant" ? count(number, "constant tensor") : `${count(number, "tensor")} with ${flag}`;
}

function checksumSentence({ stats, keys }) {
  if (!stats.num_unguarded) return "Every checksum matches.";
  return stats.num_unguarded === keys.length ? "There are no checksums to compare." : `${count(stats.num_unguarded, "tensor")} without a checksum; all other checksums match.`;
}

// The answer in a word, with a sign: the worst that is known. What was not read, or has no checksum, is not called healthy.
function verdict(side) {
  const counts = flagCounts();
  const isLost = side.file_nbytes.includes(null) || side.damaged.length;
  const [kind, text] = side.faults.size || isLost ? ["worst", "✗ Damaged"]
    : counts.has("NaN") || counts.has("infinity") ? ["odd", "! NaN or Inf"]
    : !side.stats ? ["open", "? Not checked"]
    : side.stats.num_unguarded ? ["open", "? No checksums"] : ["good", "✓ Healthy"];
  return [element("strong", { class: `verdict ${kind}`, text }), " "];
}

// NaN and infinity that a comparison found on only one side.
function notFinite() {
  const number = flagCounts().get("NaN or Inf");
  if (!number) return [];
  const finding = findingButton(`${count(number, "tensor")} with NaN or infinity`, () => (state.flags = new Set(["NaN or Inf"])));
  return [element("p", { class: "health" }, element("strong", { class: "verdict odd", text: "! NaN or Inf" }), " On only one side: ", finding, ".")];
}

// A finding as a button that shows its tensors.
function findingButton(text, ask) {
  return element("button", { type: "button", class: "link", text, onclick: () => (ask(), showChips(), apply()) });
}

// What a reshard would do, and the command that does it.
function planParts() {
  const { read_nbytes: read, num_copies: copies, peak_nbytes: peak, free_nbytes: free, command } = PLAN;
  const last = SIDES[SIDES.length - 1];
  const use = last.path.includes("://") ? " for temporary files" : "";
  const what = `reads ${humanSize(read)} in ${count(copies, "range")} · at most ${humanSize(peak)} of buffers in memory · ${humanSize(free)} free on the disk${use}`;
  return [element("h1", { text: `Preview of a reshard: ${count(last.tensorOf.length, PIECE)} in ${count(last.files.length, "file")}, nothing written yet` }),
    element("p", { class: "totals num", text: what }), copyLine("Command", command, "Copy command")];
}

function diffSentence() {
  const { differences, unreadable, num_equal: equal } = DATA.diff;
  const [onlyA, onlyB] = ["a", "b"].map((side) => ITEMS.filter((item) => item.status === side).length);
  const failed = new Set(unreadable.map(([row]) => row)).size;
  const numSettings = ITEMS.filter(isSetting).length;
  const settings = numSettings ? ` and ${count(numSettings, "setting")}` : "";
  if (!differences.length && !onlyA && !onlyB && !failed) return `Equal: ${count(equal - numSettings, "tensor")}${settings} in both`;
  return [[equal, "equal"], [differences.length, "changed"], [onlyA, "only in A"], [onlyB, "only in B"], [failed, "unreadable"]]
    .filter(([number]) => number).map(([number, what]) => `${grouped(number)} ${what}`).join(", ");
}

function showAlerts() {
  const box = document.getElementById("alerts");
  for (const side of SIDES) {
    const missing = side.files.filter((_, file) => side.file_nbytes[file] === null).map(printable);
    const where = IS_DIFF ? `${SIDE_NAMES[side.number]}: ` : "";
    const faults = faultsOf(side);
    const causes = causesOf(faults);
    const silent = missing.filter((name) => !causes.some(([message]) => message.includes(name)));
    if (silent.length) {
      const more = silent.length > 5 ? ` and ${grouped(silent.length - 5)} more` : "";
      box.append(element("div", { class: "alert", role: "alert" }, element("b", { text: `${where}${count(silent.length, "file")} missing: ` }),
        element("span", { class: "mono", text: silent.slice(0, 5).join(", ") + more })));
    }
    if (side.damaged.length) {
      const texts = side.damaged.slice(0, MOST_CAUSES).map((text) => element("li", { text: shortened(printable(text), 400) }));
      box.append(element("div", { class: "alert", role: "alert" }, element("b", { text: `${where}${count(side.damaged.length, "file")} damaged: ` }), element("ul", {}, ...texts)));
    }
    if (causes.length) {
      const show = element("button", { type: "button", text: "show them", onclick: () => ((state.onlyFaults = true), showChips(), apply()) });
      const { messages, shared } = partsOf(causes.slice(0, MOST_CAUSES).map(([message]) => message));
      const lines = messages.map((message, place) => {
        const [, { kind, number }] = causes[place];
        return element("li", {}, `${count(number, "tensor")}, ${MARKS[kind] ?? "unreadable"}: ${shortened(message, 400)}`);
      });
      if (causes.length > MOST_CAUSES) lines.push(element("li", { text: `and ${count(causes.length - MOST_CAUSES, "more cause")}` }));
      box.append(element("div", { class: "alert", role: "alert" }, element("b", { text: `${where}${count(faults.size, "tensor")} cannot be read: ` }), show, element("ul", {}, ...lines), shared ? element("p", { text: shared }) : ""));
    }
  }
}

const MOST_CAUSES = 4;

// What several messages say in the same sentence, such as a remedy, is said once, below them.
function partsOf(messages) {
  const sentences = messages.map((message) => message.split(/(?<=\.) (?=[A-Z`])/));
  const counts = new Map();
  for (const each of sentences) for (const sentence of new Set(each)) counts.set(sentence, (counts.get(sentence) ?? 0) + 1);
  const isShared = (sentence) => counts.get(sentence) > 1;
  const kept = sentences.map((each) => (each.every(isShared) ? each : each.filter((sentence) => !isShared(sentence))));
  const shared = [...counts.keys()].filter((sentence) => isShared(sentence) && kept.every((each) => !each.includes(sentence)));
  return { messages: kept.map((each) => each.join(" ")), shared: shared.join(" ") };
}

// The faults of the tensors that cannot be read: by the index, by the statistics, or by a comparison.
function faultsOf(side) {
  const faults = new Map(side.faults);
  for (const { rows, errors = [] } of ITEMS) {
    const found = errors.find((error) => error.side === SIDE_NAMES[side.number].toLowerCase());
    if (found) faults.set(rows[side.number], found);
  }
  return faults;
}

// What is wrong: one message for all tensors with the same cause, the most frequent cause first.
function causesOf(faults) {
  const causes = new Map();
  for (const { kind, message } of faults.values()) {
    const text = oneLine(message);
    if (!causes.has(text)) causes.set(text, { kind, number: 0 });
    causes.get(text).number++;
  }
  return [...causes].sort(([, a], [, b]) => b.number - a.number);
}

function start() {
  readTheme();
  layerMap.start();
  showHeading();
  showAlerts();
  for (const [id, parts] of [["maps", maps], ["files", fileMaps]]) {
    const box = document.getElementById(id);
    box.classList.toggle("two", parts.length > 1);
    box.append(...parts.map((part) => part.outer));
  }
  for (const files of fileMaps) files.start();
  if (IS_DIFF) state.sort = IS_PLAN ? "change" : "what differs";
  document.getElementById("layers").hidden = !layerMap.isTelling;
  if (layerMap.isTelling) document.getElementById("stacks").append(...layerMap.elements);
  else if (layerMap.stack) document.getElementById("legend").after(layerMap.sentence);
  document.getElementById("files-hint").textContent = SIDES.some(({ files }) => files.length > 1) ? "to scale; the line marks the mean" : "";
  restore();
  addEventListener("popstate", restore);
  const query = document.getElementById("query");
  let timer = 0;
  query.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      state.query = query.value;
      isTyping = true;
      apply();
      isTyping = false;
    }, ITEMS.length > 5000 ? 160 : 0);
  });
  const pull = document.getElementById("pull");
  const isPulled = () => pull.getAttribute("aria-expanded") === "true";
  pull.addEventListener("click", () => pullSheet(!isPulled()));
  document.getElementById("close").addEventListener("click", () => actions.close());
  for (const button of document.querySelectorAll(".all")) button.addEventListener("click", showAll);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address has the state of the page, and keeps it
    document.getElementById("tensors").focus();
  });
  const keys = document.getElementById("keys");
  document.getElementById("help").addEventListener("click", () => keys.showModal());
  document.addEventListener("keydown", (event) => {
    if (keys.open) return;
    if (event.key === "Escape" && !event.defaultPrevented && event.target.tagName !== "INPUT") {
      if (isPulled() && pull.offsetParent) pull.focus();
      else actions.close();
      pullSheet(false);
    }
    const act = { "/": () => query.focus(), "?": () => keys.showModal() }[event.key];
    if (!act || event.ctrlKey || event.metaKey || /^(INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
    event.preventDefault();
    act();
  });
  const repaint = () => {
    readTheme();
    showChips();
    showColours();
    showHead();
    table.draw();
    for (const part of [...maps, layerMap, ...fileMaps.map((files) => files.list), ...fileMaps.map((files) => files.bytes)]) part.draw();
    showDetail(document.getElementById("detail"), state.item, actions);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  new ResizeObserver(soon(() => {
    showHead();
    table.draw();
  })).observe(document.getElementById("table"));
  document.documentElement.dataset.ready = "true";
}

start();
