// The panel: the chosen tensor, or before one is chosen, the checkpoint.

const panels = []; // parts that other scripts add, as functions from an item to elements

function showDetail(panel, item, actions) {
  const aside = panel.closest("aside");
  aside.classList.toggle("idle", item === null);
  aside.scrollTop = 0;
  if (item === null) {
    panel.replaceChildren(...overview(actions));
    return;
  }
  showSheet(item);
  const parts = titleOf(item);
  if (IS_DIFF) parts.push(...difference(item), ...overlay(item));
  item.rows.forEach((row, number) => {
    if (IS_DIFF) parts.push(element("h3", { text: `${SIDE_NAMES[number]}: ${printable(SIDES[number].name)}` }));
    if (row < 0) parts.push(element("p", { class: "quiet", text: `not in ${SIDE_NAMES[number]}` }));
    else parts.push(...tensor(SIDES[number], row));
  });
  for (const more of panels) parts.push(...more(item));
  parts.push(...curve(item), ...copies(item));
  panel.replaceChildren(...parts);
}

// In a narrow window the panel is a sheet at the bottom: one line, which is pulled up.
function showSheet(item) {
  const side = SIDES[sideOf(item)];
  const row = item.rows[side.number];
  const facts = [`${dtypeOf(side, row)} ${humanShape(shapeOf(side, row))}`.trim(), humanSize(nbytesOf(item)), IS_DIFF ? statusText(item) : ""];
  const marks = [isFaulty(item) ? "✗ cannot be read" : "", ...flagsOf(item)];
  const pull = document.getElementById("pull");
  pull.replaceChildren(element("b", {}, ...keyParts(shortened(shownKey(item.name), LONGEST_TITLE))), element("div", { text: [...facts, ...marks].filter(Boolean).join(" · ") }));
  pull.removeAttribute("aria-label"); // it was for a panel without a tensor
}

function pullSheet(isOpen) {
  document.querySelector("aside").classList.toggle("open", isOpen);
  document.getElementById("pull").setAttribute("aria-expanded", String(isOpen));
}

const LONGEST_TITLE = 300;

// The key, cut if it would fill the panel, with a way to see all of it.
function titleOf(item) {
  const key = shownKey(item.key);
  const title = element("h2", { id: "detail-title" }, ...breakable(shortened(key, LONGEST_TITLE)));
  if (key.length <= LONGEST_TITLE) return [title];
  return [title, element("details", {}, element("summary", { text: `all ${grouped(item.key.length)} characters` }), element("p", { class: "mono" }, ...breakable(key)))];
}

function overview(actions) {
  const changed = IS_COMPARED ? ITEMS.filter((item) => item.kind === "values" && finite(item.change)).sort((a, b) => b.change - a.change).slice(0, MOST_LARGEST) : [];
  const rows = changed.map((item) => element("tr", {},
    element("td", {}, element("button", { class: "link mono", type: "button", title: printable(item.key), onclick: () => actions.choose(item) }, ...breakable(ends(shownKey(item.name))))),
    element("td", { class: "right num", text: share(finite(item.change)) }),
    element("td", { class: "right num quiet", text: humanSize(nbytesOf(item)) })));
  return [
    element("h2", { id: "detail-title", class: "idle", text: "Select a tensor" }),
    element("p", { class: "facts", text: `in a map or in the table to see ${whatIsSeen()}.` }),
    ...(changed.length ? [element("h3", { text: "Changed most" }), element("table", { class: "plain overview changed" }, element("tbody", {}, ...rows))] : largestParts()),
    ...scalarParts(actions),
    ...metadataParts(),
  ];
}

// What the panel has of a tensor, in words for the pages of any checkpoint.
function whatIsSeen() {
  if (IS_COMPARED) return "what changed";
  if (IS_PLAN && PLAN.made) return "what it is made of";
  if (IS_PLAN) return `its ${PIECE === "slice" ? "slices" : "place"} before and after`;
  return SIDES[0].stats ? `its values${HAS_SLICES ? ", slices" : ""} and files` : HAS_SLICES ? "its slices and files" : "where it is stored";
}

const MOST_LARGEST = 8;

// The tensors with the most bytes. Tensors that differ only in numbers and have the same size are one line, as the
// layers of a model are, so that ties are no ranking.
function largestParts() {
  const total = Math.max(...SIDES.map((side) => side.total));
  const all = groupsBySize();
  const groups = all.slice(0, MOST_LARGEST);
  if (!groups.length) return [];
  const { size: least } = groups[groups.length - 1];
  const numTies = all.slice(MOST_LARGEST).filter(({ size }) => size === least).length;
  const note = numTies ? [element("p", { class: "note", text: `and ${grouped(numTies)} more of this size` })] : [];
  const rows = groups.map(({ pattern, items, nbytes, size }) => {
    const [item] = items;
    const isOne = items.length === 1;
    const name = ends(shownKey(isOne ? item.name : pattern));
    const act = isOne ? () => actions.choose(item) : () => searchFor(globOf(pattern));
    return element("tr", {},
      element("td", {}, element("button", { class: "link mono", type: "button", title: printable(isOne ? item.key : pattern), onclick: act }, ...breakable(name))),
      element("td", { class: "right num", text: isOne ? humanSize(nbytes) : `${grouped(items.length)} × ${humanSize(nbytes)}` }),
      element("td", { class: "right num quiet", text: percent(size, total) }));
  });
  return [element("h3", { text: "The largest" }), element("table", { class: "plain overview" }, element("tbody", {}, ...rows)), ...note];
}

// Groups of tensors with the same size and the same name except for numbers; the group with the most bytes comes first.
// Numbers that are parts of words, as in "w1" and "block07", tell groups apart unless that leaves more ties than lines.
function groupsBySize() {
  const narrow = groupsByPattern(COUNTED);
  const isTied = narrow.length > MOST_LARGEST && narrow[MOST_LARGEST - 1].size === narrow[MOST_LARGEST].size;
  return isTied ? groupsByPattern(/\d+/g) : narrow;
}

function groupsByPattern(numbers) {
  const groups = new Map();
  for (const item of ITEMS) {
    const nbytes = nbytesOf(item);
    if (!nbytes) continue;
    const pattern = item.name.replace(numbers, "*");
    const name = `${nbytes} ${pattern}`;
    let group = groups.get(name);
    if (!group) groups.set(name, (group = { pattern, nbytes, items: [], size: 0 }));
    group.items.push(item);
    group.size += nbytes;
  }
  return [...groups.values()].sort((a, b) => b.size - a.size || a.items[0].number - b.items[0].number);
}

// A pattern of names as a glob, in which "?" and "[" mean themselves. Its stars match the numbers, and the stars of names
// that have some.
function globOf(pattern) {
  return pattern.replace(/[?[]/g, "[$&]");
}

const MOST_SCALARS = 10;
const SOUGHT = /(^|[./_])(lr|learning_rate|epochs?|global_step|step|loss|seed|best\w*)$/;

// Scalars and settings, such as a learning rate, with their values.
function scalarParts(actions) {
  const found = ITEMS.filter((item) => SIDES.some((_, side) => item.rows[side] >= 0 && valueText(item, side) !== undefined));
  if (!found.length) return [];
  // The values that people look for come first, then other settings, then counters of an optimizer and the like.
  const rank = (item) => (SOUGHT.test(item.name) && !isOfOptimizer(item) ? 0 : SOUGHT.test(item.name) && isSetting(item) ? 1 : isSetting(item) ? 2 : 3);
  const shown = found.map((item) => [rank(item), item]).sort(([a, x], [b, y]) => a - b || x.number - y.number).slice(0, MOST_SCALARS).map(([, item]) => item);
  const valueOf = (item, side) => (item.rows[side] < 0 ? "—" : printable(valueText(item, side) ?? "—"));
  const rows = shown.map((item) => element("tr", {},
    element("td", {}, element("button", { class: "link mono", type: "button", onclick: () => actions.choose(item) }, ...breakable(ends(shownKey(item.name))))),
    ...SIDES.map((_, side) => element("td", { class: "right mono", text: shortened(valueOf(item, side), 40) }))));
  const more = found.length > shown.length ? element("p", { class: "note", text: `and ${grouped(found.length - shown.length)} more in the table` }) : "";
  return [element("h3", { text: HAS_SETTINGS ? "Settings and scalars" : "Scalars" }), element("table", { class: "plain scalars" }, sidesHead(), element("tbody", {}, ...rows)), more];
}

// What a writer noted: a column for each side.
function metadataParts() {
  const names = [...new Set(SIDES.flatMap((side) => Object.keys(side.metadata)))];
  const rows = names.map((name) => element("tr", {}, element("td", { class: "quiet", text: printable(name) }),
    ...SIDES.map((side) => element("td", { class: "mono", text: Object.hasOwn(side.metadata, name) ? printable(side.metadata[name]) : "—" }))));
  return rows.length ? [element("h3", { text: "Metadata" }), element("table", { class: "plain" }, sidesHead(), element("tbody", {}, ...rows))] : [];
}

// The head of a table with a column for each side, of one checkpoint none.
function sidesHead() {
  return IS_DIFF ? element("thead", {}, element("tr", {}, element("th", {}), ...SIDE_NAMES.map((text) => element("th", { text, scope: "col" })))) : "";
}

// Of a long key, its two ends.
function ends(key) {
  return key.length > 90 ? `${key.slice(0, 44)}…${key.slice(-44)}` : key;
}

// A key that breaks between its parts, and inside them only where a part is longer than a line.
function breakable(key) {
  return key.split(/(?<=[/.])/).flatMap((part) => [...keyNodes(part), element("wbr")]);
}

function tensor(side, row) {
  const shape = shapeOf(side, row);
  const fault = side.faults.get(row);
  const parts = [facts(side, row)];
  if (fault) parts.push(faultBox(fault.kind, fault.message));
  const [first, last] = slicesOf(side, row);
  if (shape === null) {
    parts.push(element("p", { class: "note", text: "The index does not contain its dtype, shape and slices." }));
  } else if (last > first) {
    const isWhole = isStoredWhole(side, row);
    parts.push(element("h3", { text: isWhole ? "Where it is stored" : `${count(last - first, "slice")}, coloured by ${colouring() === "Device" ? side.holder ?? "device" : "file"}` }));
    if (shape.some((extent) => !Number(extent))) parts.push(element("p", { class: "note", text: "It has no elements." }));
    else if (!isWhole || fault) parts.push(new SliceDrawing(side, row).element);
    parts.push(sliceTable(side, row));
  }
  parts.push(...statistics(side, row));
  return parts;
}

function facts(side, row) {
  const line = element("p", { class: "facts num" });
  const shape = shapeOf(side, row);
  if (shape !== null) line.append(element("b", { text: `${dtypeOf(side, row)} ${humanShape(shape)}` }), " · ");
  if (side.values.has(row)) line.append(element("b", { text: `= ${printable(side.values.get(row))}` }), " · ");
  line.append(`${humanSize(side.nbytes[row])}, ${percent(side.nbytes[row], side.total) || "0 %"} of all`);
  return line;
}

// The chosen measure of a tensor's module, layer by layer.
function curve(item) {
  const measure = layerMap.stack && layerMap.measure();
  const line = measure && measure.name !== "Bytes" && layerCurve(item, measure);
  const known = line ? line.values.filter((value) => value !== null) : [];
  if (known.length < 2) return [];
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const at = (value, place) => [(300 * place) / (line.values.length - 1), high > low ? 44 - (40 * (value - low)) / (high - low) : 24];
  const points = line.values.map((value, place) => (value === null ? null : at(value, place))).filter(Boolean);
  const drawing = svgElement("svg", { class: "curve", viewBox: "-5 0 310 48", preserveAspectRatio: "none", role: "img", "aria-label": `${measure.name} over the layers, from ${measure.text(low)} to ${measure.text(high)}` },
    svgElement("polyline", { points: points.map((point) => point.join()).join(" "), "vector-effect": "non-scaling-stroke" }));
  const here = line.values[line.row];
  if (here !== null) {
    const [x] = at(here, line.row);
    drawing.append(svgElement("line", { x1: x, x2: x, y1: 0, y2: 48, "vector-effect": "non-scaling-stroke" }));
  }
  return [element("h3", { text: `${measure.name} of ${shortened(printable(line.name), 40)} over the layers` }), drawing,
    element("div", { class: "axis num" }, element("span", { text: line.labels[0] }), element("span", { text: `${measure.text(low)} to ${measure.text(high)}` }), element("span", { text: line.labels[line.labels.length - 1] }))];
}

function faultBox(kind, message) {
  return element("div", { class: "alert fault" }, element("b", { text: kind }), ` ${oneLine(message)}`);
}

function statistics(side, row) {
  const place = side.statistics.get(row);
  if (place === undefined) return [];
  const stats = side.stats;
  const names = { min: "min", max: "max", mean: "mean", std: "std", NaN: "nan", inf: "inf", zero: "zero", elements: "count" };
  const numbers = Object.entries(names).map(([label, name]) => [label, stats[name][place]]);
  const parts = [element("h3", { text: "Values" }), element("dl", { class: "pairs" }, ...numberPairs(numbers))];
  const heights = heightsOf(side, row);
  // In a comparison, both are drawn over each other.
  if (heights && !IS_DIFF) parts.push(...histogram(heights, stats.peak[place], stats.min[place], stats.max[place]));
  return parts;
}

// Names and numbers of statistics; counts of NaN and infinity are marked if they are not zero.
function numberPairs(numbers) {
  return numbers.flatMap(([name, value]) => [element("dt", { text: name }),
    element("dd", { class: (name === "NaN" || name === "inf") && value ? "odd" : null, text: numberText(value) })]);
}

// A character for each bar, "" without a histogram.
function heightsOf(side, row) {
  const place = side.statistics.get(row);
  if (place === undefined) return "";
  const { histogram: all, bins } = side.stats;
  return all.slice(place * bins, (place + 1) * bins).trim();
}

// The histograms of a tensor in A and B, over each other, with the same bins and the same scale.
function overlay(item) {
  const sides = [0, 1].filter((number) => item.rows[number] >= 0 && heightsOf(SIDES[number], item.rows[number]));
  if (!sides.length && item.status === "differs" && item.values) {
    const { stats } = SIDES[0];
    const why = !stats ? "diff --html FILE --stats draws the values of A and B over each other."
      : stats.num_left_out && !item.rows.some((row, number) => SIDES[number].statistics.has(row)) ? "The page has no room for its histograms. Choose fewer tensors with diff --filter." : "";
    return why ? [element("p", { class: "note", text: why })] : [];
  }
  if (!sides.length) return [];
  const statOf = (name) => sides.map((number) => Number(SIDES[number].stats[name][SIDES[number].statistics.get(item.rows[number])] ?? NaN)).filter((value) => !Number.isNaN(value));
  const [low, high, peak] = [Math.min(...statOf("min")), Math.max(...statOf("max")), Math.max(...statOf("peak"), 1)];
  const shapes = sides.map((number, at) => {
    const levels = [...heightsOf(SIDES[number], item.rows[number])].map((height) => (parseInt(height, 36) / 35) * (statOf("peak")[at] / peak));
    const points = levels.flatMap((level, bar) => [[bar * 10, 70 - 68 * level], [bar * 10 + 10, 70 - 68 * level]]);
    const outline = [[0, 70], ...points, [levels.length * 10, 70]].map((point) => point.join()).join(" ");
    return svgElement("polyline", { class: number ? "b" : "a", points: outline, "vector-effect": "non-scaling-stroke" });
  });
  const names = sides.map((number) => SIDE_NAMES[number]).join(" and ");
  const numBars = SIDES[sides[0]].stats.bins;
  return [element("h3", { text: `Values of ${names}, in the same bins` }),
    svgElement("svg", { class: "overlay", viewBox: `0 0 ${10 * numBars} 72`, preserveAspectRatio: "none", role: "img", "aria-label": `Histograms of ${names} over each other, from ${numberText(low)} to ${numberText(high)}; the highest bar has ${count(peak, "value")}.` }, ...shapes),
    element("div", { class: "axis num" }, element("span", { text: numberText(low) }), element("span", { text: peakText(peak) }), element("span", { text: numberText(high) })),
    element("div", { class: "legend" }, ...sides.map((number) => legendEntry(theme[number ? "side-b" : "side-a"], `${SIDE_NAMES[number]}${number ? ", dashed" : ""}`)))];
}

function numberText(value) {
  if (value === null) return "—";
  if (typeof value === "string") return value;
  if (Number.isInteger(value)) return grouped(value);
  return Math.abs(value) < 1e-3 ? value.toExponential(3) : String(Number(value.toPrecision(6)));
}

function histogram(heights, peak, low, high) {
  const numBars = heights.length;
  const levels = [...heights].map((height) => parseInt(height, 36));
  const bars = levels.map((level, bar) => svgElement("rect", { x: bar * 10 + 0.5, y: 70 - 2 * level, width: 9, height: 2 * level }));
  const drawing = svgElement("svg", { class: "histogram", viewBox: `0 0 ${10 * numBars} 72`, preserveAspectRatio: "none", role: "img",
    "aria-label": `Histogram from ${numberText(low)} to ${numberText(high)}; the highest bar has ${count(peak, "value")}.` },
  ...bars, svgElement("line", { x1: 0, x2: 10 * numBars, y1: 71, y2: 71, "vector-effect": "non-scaling-stroke" }));
  drawing.addEventListener("mousemove", (event) => {
    const { left, width } = drawing.getBoundingClientRect();
    const bar = Math.max(0, Math.min(numBars - 1, Math.floor(((event.clientX - left) / width) * numBars)));
    const edge = (at) => Number(low) + ((Number(high) - Number(low)) * at) / numBars;
    const about = Math.round((levels[bar] / 35) * peak);
    const some = levels[bar] === 35 ? grouped(peak) : levels[bar] ? `at most ${grouped(about)}` : "none";
    showTip(event, [`${numberText(edge(bar))} to ${numberText(edge(bar + 1))}`, `${some} of the values`]);
  });
  drawing.addEventListener("mouseleave", hideTip);
  return [drawing, element("div", { class: "axis num" },
    element("span", { text: numberText(low) }), element("span", { text: peakText(peak) }), element("span", { text: numberText(high) }))];
}

function peakText(peak) {
  return `tallest bar: ${count(peak, "value")}`;
}

function difference(item) {
  const [a, b] = item.rows;
  const parts = [element("p", { class: "facts" }, element("b", { text: statusText(item) }))];
  for (const { side, kind, message } of item.errors ?? []) parts.push(faultBox(`${side.toUpperCase()}: ${kind}`, message));
  if (item.status !== "differs") return parts;
  const rows = [];
  const row = (name, value) => rows.push(element("tr", {}, element("td", { class: "quiet", text: name }), element("td", { class: "num", text: value })));
  if (dtypeOf(SIDES[0], a) !== dtypeOf(SIDES[1], b)) row("dtype, A → B", `${dtypeOf(SIDES[0], a)} → ${dtypeOf(SIDES[1], b)}`);
  const shapes = [shapeOf(SIDES[0], a), shapeOf(SIDES[1], b)].map(humanShape);
  if (shapes[0] !== shapes[1]) row("shape, A → B", `${shapes[0]} → ${shapes[1]}`);
  if (item.values) {
    const { count: number, first, absolute, absolute_at: at, relative, without, cosine, norm, only } = item.values;
    const part = shareOfElements(item);
    const others = without ? " of the others" : ""; // an element with NaN has no distance
    if (without) row("with NaN", grouped(without));
    if (norm !== null) row(`relative norm${others}`, share(norm));
    if (cosine !== null) row(`cosine${others}`, numberText(cosine));
    row("elements that differ", `${grouped(number)}${part === null || part > 1 ? "" : `, ${share(part)}`}`);
    if (only) row("only in the", only);
    if (absolute !== null) row("by at most", `${numberText(absolute)}${at ? ` at ${humanShape(at)}` : ""}`);
    if (relative !== null) row("relative", numberText(relative));
    if (first !== null) row("first at", humanShape(first));
  }
  parts.push(element("table", { class: "plain" }, element("tbody", {}, ...rows)));
  return parts;
}
