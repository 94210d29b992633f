// Elements, colours, canvases and the tooltip: what all drawings share.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "text") made.textContent = value;
    else if (name === "style") Object.assign(made.style, value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function svgElement(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Pale hues for dtypes; files have strong colours, so that the two are not taken for each other.
const DTYPE_HUES = [244, 96, 316, 58, 196, 16];

// Four hues in two tints each, which the usual kinds of colour blindness keep apart. Beyond eight files they repeat, and
// the number of the file tells them apart.
const FILE_COLOURS = ["#4c76bf", "#2f9387", "#a6843f", "#87639f", "#8fa9dc", "#77bdb6", "#ccb47f", "#b59aca"];
const STATUS_TEXT = {
  equal: "equal", differs: "differs", a: "only in A", b: "only in B", unreadable: "unreadable",
};

function statusText(item) {
  return IS_PLAN ? KIND_TEXT[item.kind] : STATUS_TEXT[item.status];
}

let theme = {};

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "card", "ink", "quiet", "line", "faint", "accent", "bad", "empty", "same", "gap", "cell-ink", "cell-quiet",
    "cell-line", "tint-s", "tint-l", "flag", "side-a", "side-b", "dtype", "shape"];
  theme = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  theme.isDark = matchMedia("(prefers-color-scheme: dark)").matches;
}

function tint(hue, shift = 0) {
  if (hue === null) return theme.empty;
  return `hsl(${hue} ${theme["tint-s"]} ${parseFloat(theme["tint-l"]) + shift}%)`;
}

function dtypeHue(name) {
  const place = DTYPES.indexOf(name);
  return place < 0 ? null : DTYPE_HUES[place % DTYPE_HUES.length];
}

function fileColour(file) {
  return FILE_COLOURS[file % FILE_COLOURS.length];
}

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

// The parts of a key from left to right, also in scripts that run from right to left: in a line of text, "a/ب/0" is shown
// as "a/0/ب". As elements, so that a selection copies only the key.
function keyNodes(text) {
  if (!RIGHT_TO_LEFT.test(text)) return [text];
  return text.split(/([/.])/).map((part, at) => (at % 2 ? part : element("bdi", { text: part })));
}

// The same as a text with marks of direction, for places from which nothing is copied: a canvas, a tip.
function keyText(text) {
  return RIGHT_TO_LEFT.test(text) ? text.replace(/[/.]/g, "\u200e$&\u200e") : text;
}

const TAG_FONT = '11.5px system-ui, "DejaVu Sans", sans-serif';

// A text on a small piece of card, which keeps its contrast on any colour; nothing if it does not fit.
function tag(context, text, x, y, width, strong = false) {
  context.font = `${strong ? "600 " : ""}${TAG_FONT}`;
  const shown = fittedText(context, text, width - 8);
  if (!shown) return;
  context.globalAlpha = 0.92;
  context.fillStyle = theme.card;
  context.fillRect(x, y, context.measureText(shown).width + 8, 16);
  context.globalAlpha = 1;
  context.fillStyle = theme.ink;
  context.fillText(shown, x + 4, y + 12);
}

// A canvas as large as its place, in the pixels of the screen; gives the context in CSS pixels, or null if hidden.
function fitted(canvas, width, height) {
  if (width < 1 || height < 1) return null;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// An outline that is seen on any colour: of ink, and inside it of card.
function outline(context, x, y, width, height, weight) {
  for (const [colour, inset, thick] of [[theme.ink, weight / 2, weight], [theme.card, weight + 0.5, 1]]) {
    context.strokeStyle = colour;
    context.lineWidth = thick;
    context.strokeRect(x + inset, y + inset, Math.max(width - 2 * inset, 1), Math.max(height - 2 * inset, 1));
  }
}

// Slanted lines inside a rectangle: what is missing or wrong, so that colour is never the only sign of it.
function hatch(context, x, y, width, height, colour, step = 6) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1.2;
  context.beginPath();
  const first = Math.floor((x - height) / step) * step;
  for (let at = first; at < x + width; at += step) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}

// As much of a text as fits, with an ellipsis. A number at its end stays, because it tells a layer from its neighbours.
// Nothing where even a few letters do not fit.
function fittedText(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const [end] = text.match(/\d{0,9}[/.]?$/);
  const cut = (letters) => `${text.slice(0, letters)}…${end}`;
  let low = 0;
  let high = Math.min(text.length - end.length, Math.ceil(width / 3));
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(cut(middle)).width <= width) low = middle;
    else high = middle - 1;
  }
  const isTelling = /\d/.test(end) && text.length > end.length && context.measureText(cut(low)).width <= width;
  return low >= 3 || isTelling ? cut(low) : "";
}

const tip = document.getElementById("tip");

function showTip(event, lines) {
  const [head, ...rest] = lines;
  tip.replaceChildren(element("b", { text: keyText(head) }), ...rest.filter(Boolean).map((text) => element("div", { text })));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const x = event.clientX + 14 + width > innerWidth ? Math.max(4, event.clientX - width - 10) : event.clientX + 14;
  const y = event.clientY + 18 + height > innerHeight ? Math.max(4, event.clientY - height - 12) : event.clientY + 18;
  tip.style.left = `${x}px`;
  tip.style.top = `${y}px`;
}

function hideTip() {
  tip.hidden = true;
}

function itemLines(item, side) {
  const checkpoint = SIDES[side];
  const row = item.rows[side];
  const fault = checkpoint.faults.get(row);
  const nbytes = checkpoint.nbytes[row];
  return [
    printable(item.key),
    `${dtypeOf(checkpoint, row) || "unknown dtype"} ${humanShape(shapeOf(checkpoint, row))}`,
    `${humanSize(nbytes)}, ${percent(nbytes, checkpoint.total)} of all`,
    valueText(item, side) === undefined ? "" : `value ${printable(valueText(item, side))}`,
    placesText(checkpoint, row),
    IS_DIFF ? statusText(item) : "",
    fault ? `${fault.kind}: cannot be read` : "",
  ];
}

// In which files the bytes of a tensor are, and in how many slices.
function placesText(side, row) {
  const [first, last] = slicesOf(side, row);
  const files = new Set();
  for (let slice = first; slice < last; slice++) files.add(side.slices.file[slice]);
  const where = files.size === 1 ? (side.files.length > 1 ? `file ${[...files][0]}` : "") : files.size ? count(files.size, "file") : "";
  const pieces = last - first === 1 && !side.cut.has(first) ? "" : count(last - first, "slice");
  return [pieces, where].filter(Boolean).join(" in ");
}

// A function that calls ``act`` once in a frame, however often it is called.
function soon(act) {
  let pending = false;
  return () => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      act();
    });
  };
}
