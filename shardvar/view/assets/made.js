// The pieces of a tensor that a map makes: a drawing of their places, and a table with the regions of their sources.

const MADE = PLAN.made;
const SOURCES = frontDecoded(MADE.sources);
const NUM_PIECES = unpacked(MADE.num_pieces);
const FIRST_PIECE = [0];
for (const number of NUM_PIECES) FIRST_PIECE.push(FIRST_PIECE[FIRST_PIECE.length - 1] + number);
const FACTORS = new Map(MADE.factors.map(([piece, ...sources]) => [piece, sources]));
const FILLED = new Set(MADE.filled);
const MOST_PIECES = 100; // rows of the table
const MOST_DRAWN = 2000; // rectangles of a drawing
let users = null; // the targets of each source, made when they are first asked for

panels.push((item) => {
  const after = SIDES[SIDES.length - 1];
  const row = item.rows[after.number];
  const parts = [];
  if (row >= 0 && NUM_PIECES[row]) parts.push(...madeOf(after, row));
  else if (row >= 0 && MADE.num_left_out) parts.push(element("p", { class: "note", text: `The page has no room for the pieces of ${count(MADE.num_left_out, "tensor")}. Show fewer with --filter.` }));
  return [...parts, ...usedFor(after, item.key)];
});

function pieceAt(number) {
  const [rule, from, to, isReordered, runs] = MADE.patterns[MADE.pieces[2 * number]];
  return { rule, from, to, isReordered, runs, source: MADE.pieces[2 * number + 1], factors: FACTORS.get(number) ?? [] };
}

function madeOf(side, row) {
  const pieces = [];
  for (let number = FIRST_PIECE[row]; number < FIRST_PIECE[row + 1]; number++) pieces.push(pieceAt(number));
  const sources = [...new Set(pieces.map(({ source }) => source))];
  const colour = (piece) => fileColour(sources.indexOf(piece.source));
  const isWhole = pieces.length === 1 && !FILLED.has(row) && !pieces[0].isReordered;
  const rows = pieces.slice(0, MOST_PIECES).map((piece) => element("tr", {},
    element("td", {}, element("span", { class: "swatch", style: { background: colour(piece) } }), element("span", { class: "mono" }, ...breakable(shownKey(SOURCES[piece.source]))), ...piece.factors.flatMap((factor) => [" × ", element("span", { class: "mono" }, ...breakable(shownKey(SOURCES[factor])))])),
    element("td", { class: "mono", text: piece.from }),
    element("td", { class: "mono", text: `${piece.to}${piece.isReordered ? " ↻" : ""}` }),
    element("td", { class: "right num", text: String(piece.rule + 1) })));
  const heads = [["source", ""], ["its elements", ""], ["their place", ""], ["rule", "right"]];
  const rules = [...new Set(pieces.map(({ rule }) => rule))].sort((a, b) => a - b);
  return [
    element("h3", { text: sources.length === 1 ? "Made of one tensor" : `Made of ${count(sources.length, "tensor")}` }),
    isWhole ? null : new MadeDrawing(side, row, pieces, colour).element,
    element("div", { class: "scroll" }, element("table", { class: "plain" },
      element("thead", {}, element("tr", {}, ...heads.map(([text, kind]) => element("th", { text, class: kind || null, scope: "col" })))),
      element("tbody", {}, ...rows))),
    pieces.length > MOST_PIECES ? element("p", { class: "note", text: `and ${grouped(pieces.length - MOST_PIECES)} more pieces` }) : null,
    pieces.some(({ isReordered }) => isReordered) ? element("p", { class: "note", text: "↻ in another order, as the axes of the rule say" }) : null,
    FILLED.has(row) ? element("p", { class: "note", text: "Places without a source have the number of 'else'." }) : null,
    ...rules.map((rule) => element("p", { class: "note" }, `Rule ${rule + 1}: `, element("span", { class: "mono", text: printable(MADE.rules[rule]) }))),
  ].filter(Boolean);
}

function usedFor(side, key) {
  if (!users) {
    users = new Map();
    for (let row = 0; row < NUM_PIECES.length; row++) {
      for (let number = FIRST_PIECE[row]; number < FIRST_PIECE[row + 1]; number++) {
        for (const source of [MADE.pieces[2 * number + 1], ...(FACTORS.get(number) ?? [])]) {
          const name = SOURCES[source];
          const rows = users.get(name) ?? [];
          if (rows[rows.length - 1] !== row) rows.push(row);
          users.set(name, rows);
        }
      }
    }
  }
  const rows = users.get(key) ?? [];
  if (!rows.length) return [];
  const names = rows.slice(0, MOST_PIECES).map((row) => element("li", { class: "mono" }, ...breakable(shownKey(side.keys[row]))));
  const more = rows.length > MOST_PIECES ? [element("p", { class: "note", text: `and ${grouped(rows.length - MOST_PIECES)} more` })] : [];
  return [element("h3", { text: `Used for ${count(rows.length, "tensor")}` }), element("ul", {}, ...names), ...more];
}

// The intervals of coordinates that a run and its repeats have, [start, length]; null where they are too many to draw.
function intervalsOf([first, run, ...repeats]) {
  let starts = [first];
  for (let at = repeats.length - 2; at >= 0; at -= 2) {
    const [number, step] = repeats.slice(at, at + 2);
    if (starts.length * number > MOST_DRAWN) return null;
    starts = starts.flatMap((start) => Array.from({ length: number }, (_, place) => start + place * step));
  }
  return starts.map((start) => [start, run]);
}

// From the first to behind the last coordinate of a run and its repeats.
function boundsOf([first, run, ...repeats]) {
  let last = first + run;
  for (let at = 0; at < repeats.length; at += 2) last += (repeats[at] - 1) * repeats[at + 1];
  return [first, last - first];
}

class MadeDrawing {
  constructor(side, row, pieces, colour) {
    Object.assign(this, { pieces, colour, shape: shapeOf(side, row).map(Number) });
    const isCut = this.shape.map((extent, axis) => pieces.some(({ runs }) => runs[axis][1] !== extent));
    const axes = this.shape.map((_, axis) => axis);
    this.axes = [...axes.filter((axis) => isCut[axis]), ...axes.filter((axis) => !isCut[axis])].slice(0, 2).sort((a, b) => a - b);
    this.canvas = element("canvas", { role: "img", "aria-label": `Shape ${humanShape(this.shape)} made of ${count(pieces.length, "piece")}, listed below.` });
    this.holder = element("div", { class: "drawing" }, this.canvas);
    this.holder.style.height = this.axes.length < 2 ? "54px" : "150px";
    const words = this.axes.map((axis, place) => `axis ${axis} ${this.axes.length === 2 && place === 0 ? "↓" : "→"} ${grouped(this.shape[axis])}`);
    if (this.shape.length > 2) words.push(`of ${this.shape.length} axes`);
    this.element = element("div", {}, this.holder, element("p", { class: "note", text: words.join(" · ") || "a scalar" }));
    this.draw = soon(() => this.drawNow());
    new ResizeObserver(this.draw).observe(this.holder);
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", hideTip);
  }

  // The rectangles of a piece: [x, y, width, height] in CSS pixels, and whether they are only its bounds.
  rectangles({ runs }) {
    const { clientWidth: width, clientHeight: height } = this.holder;
    const along = (axis, pixels) => {
      if (axis === undefined) return [[0, pixels]];
      const scale = pixels / Math.max(this.shape[axis], 1);
      // Intervals narrower than half a pixel are drawn as one.
      const found = runs[axis].length > 2 && runs[axis][3] * scale < 0.5 ? null : intervalsOf(runs[axis]);
      return (found ?? [boundsOf(runs[axis])]).map(([start, length]) => [start * scale, length * scale]);
    };
    const across = along(this.axes[this.axes.length - 1], width);
    const down = along(this.axes.length > 1 ? this.axes[0] : undefined, height);
    if (across.length * down.length > MOST_DRAWN) return [];
    return down.flatMap(([y, h]) => across.map(([x, w]) => [x, y, w, h]));
  }

  drawNow() {
    const { clientWidth: width, clientHeight: height } = this.holder;
    const context = fitted(this.canvas, width, height);
    if (!context) return;
    context.fillStyle = theme.empty;
    context.fillRect(0, 0, width, height);
    this.drawn = [];
    let number = 0;
    for (const piece of this.pieces) {
      for (const [x, y, w, h] of this.rectangles(piece)) {
        if (++number > MOST_DRAWN) return;
        context.fillStyle = this.colour(piece);
        context.fillRect(x, y, Math.max(w, 0.5), Math.max(h, 0.5));
        context.fillStyle = theme.card;
        if (w > 5 && x > 0) context.fillRect(x, y, 0.75, h);
        if (h > 5 && y > 0) context.fillRect(x, y, w, 0.75);
        this.drawn.push([piece, x, y, w, h]);
        if (w >= 54 && h >= 17) tag(context, printable(SOURCES[piece.source]), x + 3, y + 2, w - 6);
      }
    }
  }

  hover(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - left, event.clientY - top];
    const found = (this.drawn ?? []).filter(([, x, y, w, h]) => px >= x && px < x + Math.max(w, 0.5) && py >= y && py < y + Math.max(h, 0.5));
    if (!found.length) return showTip(event, ["no source", "It has the number of 'else', or is too small to draw."]);
    const [piece] = found[found.length - 1];
    return showTip(event, [printable(SOURCES[piece.source]), `${piece.from} → ${piece.to}`, `rule ${piece.rule + 1}`]);
  }
}
