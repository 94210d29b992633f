// A tensor's full shape as a rectangle with its stored slices, each in the colour of its file.

const MOST_COMPARED = 1500;

// The two axes to draw: first those along which the tensor is cut, then the others.
function drawnAxes(side, row) {
  const shape = shapeOf(side, row);
  const [first, last] = slicesOf(side, row);
  const isCut = shape.map(() => false);
  for (let slice = first; slice < last; slice++) {
    const box = side.cut.get(slice);
    if (box) shape.forEach((extent, axis) => (isCut[axis] ||= box[shape.length + axis] !== extent));
  }
  const axes = shape.map((_, axis) => axis);
  const cut = axes.filter((axis) => isCut[axis]);
  const chosen = [...cut, ...axes.filter((axis) => !isCut[axis])].slice(0, 2).sort((a, b) => a - b);
  return { axes: chosen, hidden: cut.length > 2 };
}

// The regions that two slices both hold, in the coordinates of the tensor.
function overlapsOf(side, row) {
  const [first, last] = slicesOf(side, row);
  if (last - first > MOST_COMPARED) return [];
  const boxes = [];
  for (let slice = first; slice < last; slice++) boxes.push(boxOf(side, slice).map((numbers) => numbers.map(Number)));
  const found = [];
  for (let a = 0; a < boxes.length; a++) {
    for (let b = a + 1; b < boxes.length; b++) {
      const offset = boxes[a][0].map((start, axis) => Math.max(start, boxes[b][0][axis]));
      const stop = boxes[a][0].map((start, axis) =>
        Math.min(start + boxes[a][1][axis], boxes[b][0][axis] + boxes[b][1][axis]));
      if (offset.every((start, axis) => start < stop[axis])) found.push([offset, stop.map((end, axis) => end - offset[axis])]);
    }
  }
  return found;
}

// Where a box of a tensor lies in a rectangle that shows these axes: [x, y, width, height].
function placeOf([offset, extents], shape, axes, width, height) {
  const part = (axis, pixels) => {
    const all = Math.max(Number(shape[axis]), 1);
    return [(Number(offset[axis]) / all) * pixels, (Number(extents[axis]) / all) * pixels];
  };
  if (!axes.length) return [0, 0, width, height];
  const [x, w] = part(axes[axes.length - 1], width);
  const [y, h] = axes.length < 2 ? [0, height] : part(axes[0], height);
  return [x, y, w, h];
}

const LEAST_REGION = 2; // CSS pixels; smaller regions are told by their number

// The regions of a tensor in a rectangle: each in the colour of its place, or with ``isFilled`` false, the lines that
// part them.
function paintRegions(context, side, row, left, top, width, height, isFilled = true) {
  const shape = shapeOf(side, row);
  const { axes } = drawnAxes(side, row);
  const [first, last] = slicesOf(side, row);
  for (let slice = first; slice < last; slice++) {
    const [x, y, w, h] = placeOf(boxOf(side, slice), shape, axes, width, height);
    const file = side.slices.file[slice];
    if (isFilled) {
      context.fillStyle = sliceColour(side, slice);
      context.fillRect(left + x, top + y, Math.max(w, 0.5), Math.max(h, 0.5));
    }
    if (isFilled && side.file_nbytes[file] === null) hatch(context, left + x, top + y, w, h, theme.card, 7);
    context.fillStyle = theme.card; // a line on its first edges parts it from its neighbours
    if (w > 5 && x > 0) context.fillRect(left + x, top + y, 0.75, h);
    if (h > 5 && y > 0) context.fillRect(left + x, top + y, w, 0.75);
  }
}

// Whether the regions of a tensor can be told apart in a rectangle of this size, on the average.
function areRegionsSeen(side, row, width, height) {
  const [first, last] = slicesOf(side, row);
  if (last - first < 2 || width * height < (last - first) * LEAST_REGION * LEAST_REGION) return false;
  const [, , w, h] = placeOf(boxOf(side, first), shapeOf(side, row), drawnAxes(side, row).axes, width, height);
  return w >= LEAST_REGION && h >= LEAST_REGION;
}

// Whether a tensor is one piece in one file.
function isStoredWhole(side, row) {
  const [first, last] = slicesOf(side, row);
  return last - first === 1 && !side.cut.has(first);
}

class SliceDrawing {
  constructor(side, row) {
    Object.assign(this, { side, row, shape: shapeOf(side, row) });
    Object.assign(this, drawnAxes(side, row));
    this.overlaps = overlapsOf(side, row);
    this.canvas = element("canvas", { role: "img", "aria-label": this.label() });
    this.holder = element("div", { class: "drawing" }, this.canvas);
    this.holder.style.height = `${this.height()}px`;
    this.element = element("div", {}, this.holder, this.caption());
    this.draw = soon(() => this.drawNow());
    new ResizeObserver(this.draw).observe(this.holder);
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", hideTip);
  }

  label() {
    const [first, last] = slicesOf(this.side, this.row);
    const overlap = this.overlaps.length ? `, ${count(this.overlaps.length, "overlap")}` : "";
    return `Shape ${humanShape(this.shape)} in ${count(last - first, "slice")}${overlap}; listed below.`;
  }

  height() {
    const [first, last] = slicesOf(this.side, this.row);
    if (this.axes.length < 2 || last - first === 1) return 54;
    const [down, across] = this.axes.map((axis) => Number(this.shape[axis]));
    return Math.round(Math.max(90, Math.min(230, (330 * down) / Math.max(across, 1))));
  }

  caption() {
    const words = this.axes.map((axis, place) => `axis ${axis} ${this.axes.length === 2 && place === 0 ? "↓" : "→"} ${grouped(this.shape[axis])}`);
    if (this.hidden) words.push("cut along more axes than are drawn, so slices cover each other");
    else if (this.shape.length > 2) words.push(`of ${this.shape.length} axes`);
    return element("p", { class: "note", text: words.join(" · ") || "a scalar" });
  }

  place(box) {
    return placeOf(box, this.shape, this.axes, this.holder.clientWidth, this.holder.clientHeight);
  }

  drawNow() {
    const { clientWidth: width, clientHeight: height } = this.holder;
    const context = fitted(this.canvas, width, height);
    if (!context) return;
    context.fillStyle = theme.empty;
    context.fillRect(0, 0, width, height);
    hatch(context, 0, 0, width, height, theme.bad, 9); // it stays to be seen where no slice is
    const [first, last] = slicesOf(this.side, this.row);
    paintRegions(context, this.side, this.row, 0, 0, width, height);
    for (let slice = first; slice < last; slice++) this.name(context, slice);
    for (const box of this.overlaps) {
      const [x, y, w, h] = this.place(box);
      hatch(context, x, y, Math.max(w, 2), Math.max(h, 2), theme.bad, 4);
      context.strokeStyle = theme.bad;
      context.lineWidth = 2;
      context.strokeRect(x + 1, y + 1, Math.max(w - 2, 1), Math.max(h - 2, 1));
    }
  }

  name(context, slice) {
    const file = this.side.slices.file[slice];
    const [x, y, w, h] = this.place(boxOf(this.side, slice));
    if (w < 54 || h < 17) return;
    const text = this.side.file_nbytes[file] === null ? `file ${file}, missing` : placeText(this.side, slice);
    tag(context, text, x + 3, y + Math.min((h - 16) / 2, 3), w - 6);
  }

  hover(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - left, event.clientY - top];
    const [first, last] = slicesOf(this.side, this.row);
    for (let slice = last - 1; slice >= first; slice--) {
      const box = boxOf(this.side, slice);
      const [x, y, w, h] = this.place(box);
      if (px >= x && px < x + w && py >= y && py < y + h) return showTip(event, this.lines(slice, box));
    }
    return showTip(event, ["not stored", "No slice contains these elements."]);
  }

  lines(slice, [offset, shape]) {
    const { side } = this;
    const file = side.slices.file[slice];
    const place = side.encoded.has(slice) ? "no fixed byte offset" : `from byte ${grouped(side.slices.start[slice])}`;
    return [
      regionText(offset, shape),
      humanSize(side.slices.nbytes[slice]),
      `${printable(side.files[file])}, ${side.file_nbytes[file] === null ? "missing" : place}`,
      side.holder ? `${side.holder}: ${deviceText(side, slice)}` : "",
    ];
  }
}

const MOST_ROWS = 100;

// The slices as a table, for readers who do not see the drawing.
function sliceTable(side, row) {
  const [first, last] = slicesOf(side, row);
  const rows = [];
  const isByDevice = colouring() === "Device" && side.holder;
  const isWhole = isStoredWhole(side, row);
  const swatch = (slice) => element("span", { class: "swatch", style: { background: sliceColour(side, slice) } });
  for (let slice = first; slice < Math.min(last, first + MOST_ROWS); slice++) {
    const file = side.slices.file[slice];
    const [offset, shape] = boxOf(side, slice);
    const isMissing = side.file_nbytes[file] === null;
    rows.push(element("tr", {},
      isWhole ? null : element("td", { class: "mono", text: regionText(offset, shape) }),
      element("td", { title: printable(side.files[file]), class: isMissing ? "bad" : null },
        isByDevice ? null : swatch(slice), `${file}${isMissing ? ", missing" : ""}`),
      side.holder ? element("td", { class: "num" }, isByDevice ? swatch(slice) : null, side.slices.device[slice] < 0 ? "—" : String(side.slices.device[slice])) : null,
      element("td", { class: "right num", text: side.encoded.has(slice) ? "not fixed" : grouped(side.slices.start[slice]) }),
      element("td", { class: "right num", text: humanSize(side.slices.nbytes[slice]) })));
  }
  const heads = [...(isWhole ? [] : [["slice", ""]]), ["file", ""], ...(side.holder ? [[side.holder, ""]] : []), ["first byte", "right"], ["size", "right"]];
  const table = element("table", { class: "plain" },
    element("thead", {}, element("tr", {}, ...heads.map(([text, kind]) => element("th", { text, class: kind, scope: "col" })))),
    element("tbody", {}, ...rows));
  const more = last - first > MOST_ROWS ? element("p", { class: "note", text: `and ${grouped(last - first - MOST_ROWS)} more` }) : null;
  return element("div", { class: "scroll" }, table, more);
}
