// Files as rows, the tensors in them to scale, and the bytes of one file as closely as one likes.

// The slices of each file of a checkpoint, by their first byte; slices without a fixed byte offset are kept apart.
function slicesByFile(side) {
  if (side.byFile) return side.byFile;
  const { file, start } = side.slices;
  side.byFile = side.files.map(() => ({ plain: [], encoded: [], end: 0 }));
  file.forEach((number, slice) => {
    const there = side.byFile[number];
    if (!there) return;
    if (side.encoded.has(slice)) there.encoded.push(slice);
    else {
      there.plain.push(slice);
      there.end = Math.max(there.end, Number(start[slice]) + side.slices.nbytes[slice]);
    }
  });
  for (const there of side.byFile) there.plain.sort((a, b) => start[a] - start[b] || a - b);
  return side.byFile;
}

// How far a file is drawn: to its end, or to the last byte that the index gives to a slice.
function extentOf(side, file) {
  return Math.max(side.file_nbytes[file] ?? 0, slicesByFile(side)[file].end);
}

// The first of the sorted slices that may reach behind a place; slices of a sound file do not overlap.
function firstBehind(side, slices, place) {
  let low = 0;
  let high = slices.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (Number(side.slices.start[slices[middle]]) + side.slices.nbytes[slices[middle]] <= place) low = middle + 1;
    else high = middle;
  }
  return low;
}

function paintBytes(context, side, file, [low, high], width, height, actions) {
  const size = side.file_nbytes[file];
  const scale = width / Math.max(high - low, 1);
  const x = (place) => (place - low) * scale;
  const end = Math.min(x(extentOf(side, file)), width);
  context.fillStyle = theme.empty;
  context.fillRect(0, 0, end, height);
  hatch(context, 0, 0, end, height, theme.gap, 5);
  const { plain } = slicesByFile(side)[file];
  let painted = -1;
  const chosen = actions.chosen();
  const chosenRow = chosen ? chosen.rows[side.number] : -1;
  const byPlace = isByPlace();
  for (let place = firstBehind(side, plain, low); place < plain.length; place++) {
    const slice = plain[place];
    const start = Number(side.slices.start[slice]);
    if (start >= high) break;
    const right = Math.min(x(start + side.slices.nbytes[slice]), width);
    if (right < painted + 0.25 && side.tensorOf[slice] !== chosenRow) continue;
    const item = ITEMS[side.itemOf[side.tensorOf[slice]]];
    const isChosen = item === chosen;
    const left = Math.max(x(start), 0);
    painted = right;
    context.globalAlpha = actions.shown(item) || isChosen ? (place % 2 ? 0.82 : 1) : 0.2;
    context.fillStyle = isChosen ? theme.accent : byPlace ? sliceColour(side, slice) : itemColour(item, side.number);
    context.fillRect(left, 0, Math.max(right - left, isChosen ? 2 : 0.6), height);
    context.globalAlpha = 1;
    if (side.faults.has(item.rows[side.number])) {
      context.fillStyle = theme.bad;
      context.fillRect(left, 0, Math.max(right - left, 0.6), height > 30 ? 4 : 2);
    }
    context.fillStyle = theme.card;
    if (right - left > 4 && left > 0) context.fillRect(left, 0, 1, height);
  }
  if (size === null || size < extentOf(side, file)) {
    hatch(context, Math.max(x(size ?? 0), 0), 0, end, height, theme.bad, 8);
  }
}

// Who wrote the files, and by which policy.
function layoutParts(side) {
  const words = [side.writer && `Written by ${printable(side.writer)}.`, side.description && printable(side.description)];
  const text = words.filter(Boolean).join(" ");
  return text ? [element("p", { class: "written", text })] : [];
}

// How evenly the files are filled, and the command that evens them out.
function balance(side) {
  const sizes = side.file_nbytes.filter((nbytes) => nbytes !== null);
  if (sizes.length < 2) return [...layoutParts(side), ...deviceBalance(side)];
  const mean = meanOf(sizes);
  const most = sizes.reduce((high, nbytes) => Math.max(high, nbytes), 0);
  const largest = side.file_nbytes.indexOf(most);
  const sentence = `Largest: file ${largest}, ${humanSize(most)}, ${aboveMean(most, mean)} of ${humanSize(Math.round(mean))}${sizes.length < side.files.length ? ", without the missing files" : ""}.`;
  // In a format where each slice is a file, no command moves slices between files.
  const isMovable = side.tensorOf.length > side.files.length && !side.faults.size && sizes.length === side.files.length;
  const isOffered = most > 1.1 * mean && isMovable && !IS_DIFF;
  const parts = [...layoutParts(side), ...deviceBalance(side), element("p", { class: "balance", text: sentence + (isOffered ? " A reshard to the same number of files evens them out:" : "") })];
  if (isOffered) parts.push(copyLine("Command", `shardvar reshard ${quotedPath(side.path)} ${quotedPath(`${side.path.replace(/\/+$/, "")}-even`)} --files ${sizes.length}`, "Copy command"));
  return parts;
}

// How evenly the bytes are spread over the devices, if they are known.
function deviceBalance(side) {
  if (!side.holder || IS_PLAN) return [];
  const sums = new Map();
  side.slices.device.forEach((device, slice) => device >= 0 && sums.set(device, (sums.get(device) ?? 0) + side.slices.nbytes[slice]));
  const mean = meanOf([...sums.values()]);
  const [device, most] = [...sums].reduce((found, each) => (each[1] > found[1] ? each : found));
  return [element("p", { class: "balance", text: `Of ${count(sums.size, side.holder)}, ${side.holder} ${device} held the most: ${humanSize(most)}, ${aboveMean(most, mean)}.` })];
}

function aboveMean(most, mean) {
  const percentage = Math.round((most / Math.max(mean, 1) - 1) * 100);
  return percentage ? `${grouped(percentage)} % above the mean` : "about the mean";
}

function meanOf(sizes) {
  return sizes.reduce((sum, nbytes) => sum + nbytes, 0) / sizes.length;
}

class FileMap {
  constructor(number, actions) {
    this.side = SIDES[number];
    this.actions = actions;
    this.largest = 1;
    this.file = null;
    this.list = new VirtualList({
      label: `Data files${IS_DIFF ? ` of ${SIDE_NAMES[number]}` : ""}`,
      role: "grid",
      rowHeight: 34,
      head: null,
      renderRow: (row) => this.row(row),
      choose: (row) => this.open(row),
      hover: (row, event) => this.lines(row, event),
    });
    this.list.isChosen = (row) => row === this.file;
    this.layout = element("div", { class: "layout", hidden: true });
    const what = this.side.files.length ? this.list.element : element("p", { class: "none", text: "There are no data files." });
    this.outer = element("div", { class: "files" }, IS_DIFF ? sideName(number) : null, ...balance(this.side), what, this.layout);
    this.bytes = new ByteStrip(this.side, actions);
  }

  start() {
    const { files } = this.side;
    this.largest = files.reduce((most, _, file) => Math.max(most, extentOf(this.side, file)), 1);
    this.list.setLength(files.length);
    this.mean = meanOf(this.side.file_nbytes.filter((nbytes) => nbytes !== null)); // what a missing file had is not known
    if (files.length === 1 && this.largest > 1) this.open(0); // of an empty file there is nothing to see
  }

  update() {
    this.list.draw();
    if (this.file !== null) this.bytes.draw();
  }

  row(file) {
    const { side } = this;
    const size = side.file_nbytes[file];
    const name = printable(side.files[file]);
    const canvas = element("canvas", { "aria-hidden": "true" });
    const paint = () => {
      const width = canvas.clientWidth;
      const context = fitted(canvas, width, 18);
      if (!context) return;
      paintBytes(context, side, file, [0, this.largest], width, 18, this.actions);
      if (side.files.length < 2) return;
      context.fillStyle = theme.ink;
      context.fillRect((this.mean / this.largest) * width, 0, 1, 18);
    };
    const made = element(
      "div",
      {},
      element("div", { role: "gridcell", class: "mono key", title: name },
        colouring() === "Device" ? null : element("span", { class: "swatch", style: { background: fileColour(file) } }),
        element("span", { class: "start", text: name.slice(0, -14) }), element("span", { class: "end", text: name.slice(-14) })),
      element("div", { role: "gridcell", class: "bytes", "aria-label": count(this.numSlices(file), PIECE) }, canvas),
      element("div", { role: "gridcell", class: size === null ? "right bad" : "right num", text: size === null ? "missing" : humanSize(size) }),
    );
    return Object.assign(made, { paint });
  }

  numSlices(file) {
    const { plain, encoded } = slicesByFile(this.side)[file];
    return plain.length + encoded.length;
  }

  lines(file, event) {
    const canvas = event.target.closest("canvas");
    const { side } = this;
    const size = side.file_nbytes[file];
    if (canvas) {
      const { left, width } = canvas.getBoundingClientRect();
      const place = ((event.clientX - left) / width) * this.largest;
      if (place < extentOf(side, file)) return this.bytes.linesAt(file, place);
    }
    return [printable(side.files[file]), size === null ? "missing or unreadable" : `${grouped(size)} bytes`, count(this.numSlices(file), PIECE)];
  }

  open(file) {
    this.file = file;
    this.layout.hidden = false;
    this.bytes.open(file);
    if (!this.layout.firstChild) this.layout.append(...this.bytes.elements);
    this.list.draw();
  }
}

const MOST_LISTED = 60;

// One file's bytes in a window that is zoomed and moved, with a list of the tensors or slices in it.
class ByteStrip {
  constructor(side, actions) {
    Object.assign(this, { side, actions, file: 0, low: 0, high: 1 });
    const tool = (label, text, act) => element("button", { class: "tool", type: "button", "aria-label": label, text, onclick: act });
    this.where = element("span", { class: "mono" });
    this.tools = element("div", { class: "tools" }, this.where,
      tool("Earlier bytes", "◂", () => this.shift(-0.5)), tool("Later bytes", "▸", () => this.shift(0.5)),
      tool("Zoom out", "−", () => this.zoom(2)), tool("Zoom in", "+", () => this.zoom(0.5)),
      tool("The whole file", "Whole", () => this.open(this.file)));
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.strip = element("div", { class: "strip", tabindex: "0", role: "group" }, this.canvas);
    this.from = element("span");
    this.to = element("span");
    this.table = element("div", { class: "scroll" });
    this.details = element("details", {}, element("summary", { class: "quiet", text: `${PIECE}s` }), this.table);
    this.details.addEventListener("toggle", () => this.drawNow());
    this.elements = [this.tools, this.strip, element("div", { class: "ticks num" }, this.from, this.to), this.details];
    this.draw = soon(() => this.drawNow());
    new ResizeObserver(this.draw).observe(this.strip);
    this.strip.addEventListener("mousemove", (event) => showTip(event, this.linesAt(this.file, this.byteAt(event))));
    this.strip.addEventListener("mouseleave", hideTip);
    this.strip.addEventListener("click", (event) => this.click(event));
    this.strip.addEventListener("keydown", (event) => this.key(event));
    this.strip.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  open(file) {
    this.file = file;
    this.look(0, extentOf(this.side, file));
  }

  look(low, high) {
    const all = Math.max(extentOf(this.side, this.file), 1);
    const span = Math.min(Math.max(high - low, Math.min(16, all)), all);
    this.low = Math.max(0, Math.min(low, all - span));
    this.high = this.low + span;
    this.draw();
  }

  zoom(factor, middle = (this.low + this.high) / 2) {
    this.look(middle - (middle - this.low) * factor, middle + (this.high - middle) * factor);
  }

  shift(part) {
    const by = part * (this.high - this.low);
    this.look(this.low + by, this.high + by);
  }

  byteAt(event) {
    const { left, width } = this.strip.getBoundingClientRect();
    return this.low + ((event.clientX - left) / width) * (this.high - this.low);
  }

  key(event) {
    const act = {
      ArrowLeft: () => this.shift(-0.25), ArrowRight: () => this.shift(0.25), "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5), "-": () => this.zoom(2), Home: () => this.open(this.file), 0: () => this.open(this.file),
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  }

  wheel(event) {
    if (!event.ctrlKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return; // the page scrolls
    event.preventDefault();
    if (event.ctrlKey) this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.byteAt(event));
    else this.shift(event.deltaX / 600);
  }

  sliceAt(file, place) {
    const { plain } = slicesByFile(this.side)[file];
    const at = firstBehind(this.side, plain, place);
    return at < plain.length && this.side.slices.start[plain[at]] <= place ? plain[at] : null;
  }

  click(event) {
    const slice = this.sliceAt(this.file, this.byteAt(event));
    if (slice !== null) this.actions.choose(ITEMS[this.side.itemOf[this.side.tensorOf[slice]]]);
  }

  linesAt(file, place) {
    const { side } = this;
    const slice = this.sliceAt(file, place);
    const { plain } = slicesByFile(side)[file];
    if (slice === null) {
      const next = firstBehind(side, plain, place);
      const before = next ? plain[next - 1] : null;
      const low = before === null ? 0 : Number(side.slices.start[before]) + side.slices.nbytes[before];
      const high = next < plain.length ? Number(side.slices.start[plain[next]]) : extentOf(side, file);
      return ["not part of a tensor", `bytes ${grouped(low)} to ${grouped(high)}: ${humanSize(high - low)}`, this.gapText(file, low, high)];
    }
    const start = Number(side.slices.start[slice]);
    const row = side.tensorOf[slice];
    const [offset, shape] = boxOf(side, slice);
    return [
      printable(side.keys[row]),
      `${dtypeOf(side, row)} ${side.cut.has(slice) ? `${regionText(offset, shape)} of ` : ""}${humanShape(shapeOf(side, row))}`,
      `bytes ${grouped(start)} to ${grouped(start + side.slices.nbytes[slice])}: ${humanSize(side.slices.nbytes[slice])}`,
      side.faults.has(row) ? `${side.faults.get(row).kind}: cannot be read` : "",
    ];
  }

  gapText(file, low, high) {
    if (slicesByFile(this.side)[file].encoded.length) return `${PIECE}s without a fixed byte offset, or metadata of the file`;
    return high - low < 64 && low > 0 ? "padding" : "metadata of the file, or unused";
  }

  drawNow() {
    const { clientWidth: width, clientHeight: height } = this.strip;
    const context = fitted(this.canvas, width, height);
    if (!context) return;
    paintBytes(context, this.side, this.file, [this.low, this.high], width, height, this.actions);
    const name = printable(this.side.files[this.file]);
    this.where.textContent = name;
    this.from.textContent = `byte ${grouped(Math.round(this.low))}`;
    this.to.textContent = grouped(Math.round(this.high));
    this.strip.setAttribute("aria-label", `Bytes of ${name}. Arrow keys move, plus and minus zoom, Home shows all.`);
    this.listNow();
  }

  listNow() {
    const { side } = this;
    const { plain, encoded } = slicesByFile(side)[this.file];
    const first = firstBehind(side, plain, this.low);
    let last = first;
    while (last < plain.length && side.slices.start[plain[last]] < this.high) last++;
    const apart = encoded.length ? `, ${grouped(encoded.length)} more without a fixed byte offset` : "";
    this.details.firstChild.textContent = `${count(last - first, PIECE)} in view${apart}`;
    if (!this.details.open) return;
    const rows = [];
    const row = (...cells) => element("tr", {}, ...cells.map((cell, at) => element("td", { class: at === 1 || at === 2 ? "right num" : null }, cell)));
    let end = first ? Number(side.slices.start[plain[first - 1]]) + side.slices.nbytes[plain[first - 1]] : 0;
    for (const slice of plain.slice(first, Math.min(last, first + MOST_LISTED))) {
      const start = Number(side.slices.start[slice]);
      if (start > end) rows.push(row(element("span", { class: "quiet", text: "not part of a tensor" }), grouped(end), humanSize(start - end)));
      rows.push(row(this.keyButton(slice), grouped(start), humanSize(side.slices.nbytes[slice])));
      end = start + side.slices.nbytes[slice];
    }
    for (const slice of encoded.slice(0, MOST_LISTED)) {
      rows.push(row(this.keyButton(slice), "—", humanSize(side.slices.nbytes[slice])));
    }
    const head = element("tr", {}, element("th", { text: PIECE }), element("th", { class: "right", text: "first byte" }), element("th", { class: "right", text: "size" }));
    const more = last - first > MOST_LISTED ? element("p", { class: "note", text: `and ${grouped(last - first - MOST_LISTED)} more: zoom in` }) : "";
    this.table.replaceChildren(element("table", { class: "plain" }, element("thead", {}, head), element("tbody", {}, ...rows)), more);
  }

  keyButton(slice) {
    const item = ITEMS[this.side.itemOf[this.side.tensorOf[slice]]];
    const [offset, shape] = boxOf(this.side, slice);
    const part = this.side.cut.has(slice) ? ` ${regionText(offset, shape)}` : "";
    return element("button", { class: "link mono", type: "button", onclick: () => this.actions.choose(item) }, ...keyNodes(printable(item.key)), part);
  }
}
