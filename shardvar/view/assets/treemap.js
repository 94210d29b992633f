// Tensors as areas in proportion to their bytes, grouped by folder (squarified, largest first).
//
// The canvas draws everything. Above it are buttons for the largest boxes, for keyboards and screen readers. What would
// be smaller than a few pixels is drawn as one box with its fellows, so that any number of tensors is soon drawn.

const HEADER = 19;
const SMALL_HEADER = 13; // of a low folder with a number, such as a layer
const IS_NUMBERED = /\d[/.]?$/;
const LEAST_AREA = 9;
const MOST_BUTTONS = 160;
const MOST_LEVELS = 32;
const MOST_UNEQUAL = 1.25;
const MOST_LENGTH = Math.log(3); // of a box, as the logarithm of its length over its width
const LEAST_NAME = 60; // CSS pixels of a box whose name is cut where it does not fit

// The folders and tensors of one checkpoint, or of two together. Chains of single folders are one folder.
function buildTree(items) {
  const root = makeFolder("", "");
  for (const item of items) {
    const nbytes = nbytesOf(item);
    if (!nbytes) continue;
    const add = (folder) => {
      folder.nbytes += nbytes;
      folder.count++;
    };
    const { folder, label } = placeInTree(root, item.name, add);
    folder.children.push({ label, item, nbytes, count: 1, first: item.number });
  }
  return finishTree(root);
}

// The folder of a key, made if needed, and the label of the key in it. ``pass`` is called with every folder on
// the way, from the root on.
function placeInTree(root, key, pass = () => {}) {
  const separator = key.includes("/") ? "/" : ".";
  let folder = root;
  let at = 0;
  pass(folder);
  for (let level = 0; level < MOST_LEVELS; level++) {
    const end = key.indexOf(separator, at);
    if (end < 0 || end === key.length - 1) break;
    folder = folderIn(folder, key.slice(at, end + 1), key, end + 1);
    pass(folder);
    at = end + 1;
  }
  return { folder, label: key.slice(at) };
}

function makeFolder(label, prefix) {
  return { label, prefix, nbytes: 0, children: [], folders: null, last: null, count: 0 };
}

// The folder of this name in a folder. Keys come in their order, so it is mostly the one of the key before.
function folderIn(node, label, key, end) {
  if (node.last?.label === label) return node.last;
  node.folders ??= new Map();
  let folder = node.folders.get(label);
  if (!folder) {
    folder = makeFolder(label, key.slice(0, end));
    node.folders.set(label, folder);
    node.children.push(folder);
  }
  node.last = folder;
  return folder;
}

function finishTree(node) {
  const { children } = node;
  for (let place = 0; place < children.length; place++) {
    if (!children[place].children) continue;
    const child = finishTree(children[place]);
    children[place] = child;
    if (child.children.length === 1) {
      const only = child.children[0];
      children[place] = { ...only, label: child.label + only.label };
    }
  }
  node.tail = sharedEnd(children);
  // Stable, so that tensors of one size keep their order.
  if (!areMuchAlike(children)) children.sort((a, b) => b.nbytes - a.nbytes);
  node.lead = leadOf(node.children);
  node.first = children.reduce((first, child) => Math.min(first, child.first), Infinity);
  return node;
}

// The last part of the names of all tensors in a folder, such as ".weight", if they share it.
function sharedEnd(children) {
  const ends = children.filter((child) => child.item).map(({ label }) => label.match(/[^/.][/.][^/.]+$/)?.[0].slice(1));
  return ends.length > 1 && ends.every((end) => end !== undefined && end === ends[0]) ? ends[0] : "";
}

// Whether siblings, such as layers, have so nearly the same size that they are drawn in their own order.
function areMuchAlike(children) {
  let [least, most] = [Infinity, 0];
  for (const { nbytes } of children) [least, most] = [Math.min(least, nbytes), Math.max(most, nbytes)];
  return children.length > 2 && most <= MOST_UNEQUAL * least;
}

// What a box is called inside its folder.
function boxLabel({ node, above }) {
  if (node.children) return keyText(printable(node.label.replace(/(?<=.)[/.]$/, "")));
  const end = above.tail;
  return keyText(printable(end ? node.label.slice(0, -end.length) : node.label));
}

// The tensor whose colour a box of many small tensors has: the worst among them, else the largest.
function leadOf(nodes) {
  let lead = null;
  for (const node of nodes) {
    const item = node.item ?? node.lead;
    if (item && (lead === null || gravity(item) > gravity(lead))) lead = item;
  }
  return lead;
}

function gravity(item) {
  return isFaulty(item) ? 3 : isOdd(item) ? 2 : item.status === "equal" ? 0 : 1;
}

// The node of a prefix, or the nearest above it that is drawn.
function findNode(root, prefix) {
  let node = root;
  for (;;) {
    const next = node.children.find((child) => child.children && prefix.startsWith(child.prefix));
    if (!next) return node;
    node = next;
  }
}

// Places of areas (descending, adding up to the rectangle) in rows whose boxes are as square as can be.
function squarify(sizes, x, y, width, height) {
  const places = [];
  let at = 0;
  while (at < sizes.length && width > 0 && height > 0) {
    const side = Math.min(width, height);
    let sum = sizes[at];
    let end = at + 1;
    let worst = worstRatio(sizes[at], sizes[at], sum, side);
    while (end < sizes.length) {
      const wider = worstRatio(sizes[at], sizes[end], sum + sizes[end], side);
      if (wider > worst) break;
      worst = wider;
      sum += sizes[end++];
    }
    const depth = sum / side;
    let along = 0;
    for (; at < end; at++) {
      const length = sizes[at] / depth;
      places.push(width >= height ? [x, y + along, depth, length] : [x + along, y, length, depth]);
      along += length;
    }
    if (width >= height) {
      x += depth;
      width -= depth;
    } else {
      y += depth;
      height -= depth;
    }
  }
  return places;
}

// Places of areas in rows from the top, in their order, of boxes that are nearly squares; as many to each row, where
// that makes none too long, so that equal layers look alike.
function inRows(sizes, x, y, width, height) {
  const square = Math.max(1, Math.min(sizes.length, Math.round(Math.sqrt((sizes.length * height) / width))));
  const length = (number) => Math.abs(Math.log((sizes.length / number / width) * (height / number)));
  const even = sizes.map((_, place) => place + 1).filter((number) => sizes.length % number === 0 && length(number) <= MOST_LENGTH);
  const numRows = even.sort((a, b) => length(a) - length(b))[0] ?? square;
  const places = [];
  for (let row = 0; row < numRows; row++) {
    const [first, last] = [row, row + 1].map((each) => Math.ceil((each * sizes.length) / numRows));
    const depth = sizes.slice(first, last).reduce((sum, size) => sum + size, 0) / width;
    let along = x;
    for (let at = first; at < last; at++) {
      places.push([along, y, sizes[at] / depth, depth]);
      along += sizes[at] / depth;
    }
    y += depth;
  }
  return places;
}

function worstRatio(largest, smallest, sum, side) {
  return Math.max((side * side * largest) / (sum * sum), (sum * sum) / (side * side * smallest));
}

class Treemap {
  constructor(actions) {
    Object.assign(this, { actions, boxes: [], buttons: [], hovered: null });
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.marks = element("canvas", { class: "marks", "aria-hidden": "true" });
    this.layer = element("div");
    this.element = element("div", { class: "map", role: "group" }, this.canvas, this.marks, this.layer);
    this.empty = element("p", { class: "none", hidden: true });
    this.note = element("p", { class: "note", hidden: true });
    this.strip = new FolderStrip(this, actions);
    this.outer = element("div", {}, this.strip.element, this.element, this.empty, this.note);
    this.draw = soon(() => this.drawNow());
    new ResizeObserver(this.draw).observe(this.element);
    this.element.addEventListener("mousemove", (event) => this.hover(event));
    this.element.addEventListener("mouseleave", () => this.leave());
    this.element.addEventListener("click", (event) => this.click(event));
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  update(items, prefix) {
    this.tree = buildTree(items);
    const left = items.filter((item) => !nbytesOf(item));
    this.note.hidden = !left.length;
    this.note.textContent = `${count(left.length, "tensor")} without bytes or of unknown size: see the table.`;
    this.zoom(prefix);
  }

  zoom(prefix) {
    this.root = findNode(this.tree, prefix);
    this.strip.show(this.tree, this.root);
    this.empty.hidden = this.root.nbytes > 0;
    this.element.hidden = !this.empty.hidden;
    this.empty.textContent = ITEMS.length ? "No bytes here match." : "This checkpoint has no tensors.";
    const what = `${count(this.root.count, "tensor")}, ${humanSize(this.root.nbytes)}`;
    this.element.setAttribute(
      "aria-label",
      `Treemap of ${what}. Arrow keys move, Enter opens, Escape goes up.`,
    );
    this.draw();
  }

  drawNow() {
    const { clientWidth: width, clientHeight: height } = this.element;
    const context = fitted(this.canvas, width, height);
    if (!context || !this.root) return;
    this.strip.draw();
    this.boxes = [];
    this.place(this.root, 0, 0, width, height, 0);
    for (const box of this.boxes) this.paint(context, box);
    this.mark();
    this.makeButtons();
  }

  place(node, x, y, width, height, depth, above = null) {
    const isFolder = Boolean(node.children);
    const box = { x, y, width, height, node, above, depth, header: 0 };
    if (depth > 0) this.boxes.push(box);
    if (!isFolder) return;
    box.isClosed = depth > 0 && (width < 7 || height < 7);
    if (box.isClosed) return;
    const pad = depth === 0 ? 0 : width > 40 && height > 40 ? 3 : 1;
    box.header = depth > 0 && width > 44 && height > 44 ? HEADER : depth > 0 && width > 26 && height > 24 && IS_NUMBERED.test(node.label) ? SMALL_HEADER : 0;
    const top = box.header || pad;
    const inner = [x + pad, y + top, width - 2 * pad, height - top - pad];
    if (inner[2] <= 0 || inner[3] <= 0) return;
    this.placeChildren(node, inner, depth);
  }

  placeChildren(node, [x, y, width, height], depth) {
    const scale = (width * height) / node.nbytes;
    const { children } = node;
    if (areMuchAlike(children) && children.every(({ nbytes }) => nbytes * scale >= LEAST_AREA)) {
      const places = inRows(children.map(({ nbytes }) => nbytes * scale), x, y, width, height);
      places.forEach((rectangle, place) => this.place(children[place], ...rectangle, depth + 1, node));
      return;
    }
    let shown = children.findIndex((child) => child.nbytes * scale < LEAST_AREA);
    if (shown < 0) shown = children.length;
    const sizes = children.slice(0, shown).map((child) => child.nbytes * scale);
    const rest = { rest: children.length - shown, nbytes: 0, count: 0, children: null };
    for (let place = shown; place < children.length; place++) {
      rest.nbytes += children[place].nbytes;
      rest.count += children[place].count;
    }
    const nodes = children.slice(0, shown);
    if (rest.count) {
      rest.lead = leadOf(children.slice(shown));
      sizes.push(rest.nbytes * scale);
      nodes.push(rest);
    }
    const order = sizes.map((_, place) => place).sort((a, b) => sizes[b] - sizes[a]);
    squarify(order.map((place) => sizes[place]), x, y, width, height).forEach((rectangle, place) => {
      this.place(nodes[order[place]], ...rectangle, depth + 1, node);
    });
  }

  paint(context, box) {
    const { x, y, width, height, node, depth } = box;
    const gap = width > 5 && height > 5 ? 1 : 0.25;
    const [left, top, w, h] = [x + gap / 2, y + gap / 2, Math.max(width - gap, 0.4), Math.max(height - gap, 0.4)];
    if (node.children && !box.isClosed) {
      context.fillStyle = depth % 2 ? theme.faint : theme.card;
      context.fillRect(left, top, w, h);
      context.strokeStyle = theme.line;
      context.lineWidth = 1;
      if (w > 6 && h > 6) context.strokeRect(left + 0.5, top + 0.5, w - 1, h - 1);
      if (box.header === SMALL_HEADER) this.writeSmall(context, boxLabel(box), left + 3, top + 10, w - 6);
      else if (box.header) this.write(context, boxLabel(box), left + 6, top + 14, w - 12);
      return;
    }
    if (node.rest || box.isClosed) {
      context.fillStyle = itemColour(node.lead);
      context.fillRect(left, top, w, h);
      if (isFaulty(node.lead)) hatch(context, left, top, w, h, theme.bad);
      if (w > 60 && h > 18) {
        tag(context, `${grouped(node.count)} smaller`, left + 3, top + 3, w - 6);
      }
      return;
    }
    context.fillStyle = itemColour(node.item);
    context.fillRect(left, top, w, h);
    const side = w * h > 60 ? SIDES[regionSide(node.item)] : undefined;
    const row = side ? node.item.rows[side.number] : -1;
    const numRegions = side && shapeOf(side, row) ? side.num_slices[row] : 0;
    const isDrawn = numRegions > 1 && areRegionsSeen(side, row, w, h);
    if (isDrawn || (numRegions === 1 && isByPlace())) paintRegions(context, side, row, left, top, w, h, isByPlace());
    if (isOneSided(node.item)) hatch(context, left, top, w, h, theme.card, 7);
    if (isFaulty(node.item)) {
      context.globalAlpha = 0.55;
      hatch(context, left, top, w, h, theme.bad, w > 60 && h > 60 ? 14 : 7);
      context.globalAlpha = 1;
      context.strokeStyle = theme.bad;
      context.lineWidth = 1.5;
      if (w > 4 && h > 4) context.strokeRect(left + 0.75, top + 0.75, w - 1.5, h - 1.5);
    }
    if (w < 26 || h < 16) return;
    const size = humanSize(node.nbytes) + (numRegions > 1 && !isDrawn ? `, ${count(numRegions, "slice")}` : "");
    const flag = flagMark(node.item);
    const name = [flag, boxLabel(box)].filter(Boolean).join(" ");
    context.font = TAG_FONT;
    // Three letters of a name tell less than the colours that they would hide.
    const isTold = w >= LEAST_NAME || context.measureText(name).width <= w - 14;
    if (isTold || flag) tag(context, isTold ? name : flag, left + 3, top + 3, w - 6);
    if (isTold && h > 42 && context.measureText(size).width <= w - 14) tag(context, size, left + 3, top + 20, w - 6);
  }

  write(context, text, x, y, width) {
    context.font = '600 11.5px system-ui, "DejaVu Sans", sans-serif';
    context.fillStyle = theme["cell-ink"];
    context.fillText(fittedText(context, text, width), x, y);
  }

  // In a folder that is low, its name, or at least the number that tells it from its neighbours.
  writeSmall(context, text, x, y, width) {
    context.font = '600 9.5px system-ui, "DejaVu Sans", sans-serif';
    context.fillStyle = theme["cell-ink"];
    const [number] = text.match(/\d*$/);
    context.fillText([text, number].find((each) => context.measureText(each).width <= width) ?? "", x, y);
  }

  // On a canvas of their own, so that the rest is not drawn again when the mouse moves.
  mark() {
    const context = fitted(this.marks, this.element.clientWidth, this.element.clientHeight);
    if (!context) return;
    for (const [box, weight] of [[this.hovered, 1.5], [this.chosenBox(), 2.5]]) {
      if (!box) continue;
      outline(context, box.x, box.y, box.width, box.height, weight);
    }
  }

  chosenBox() {
    return this.boxes.find((box) => box.node.item && box.node.item === this.actions.chosen());
  }

  at(event) {
    const { left, top } = this.element.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    for (let place = this.boxes.length - 1; place >= 0; place--) {
      const box = this.boxes[place];
      if (x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + box.height) return box;
    }
    return null;
  }

  lines({ node }) {
    if (node.item) return itemLines(node.item, sideOf(node.item));
    const total = Math.max(...SIDES.map((side) => side.total));
    const head = node.rest ? `${count(node.count, "smaller tensor")}` : printable(node.prefix);
    const hint = node.rest ? "Open the folder, or search, to see them." : "Click to open this folder.";
    return [head, `${count(node.count, "tensor")}, ${humanSize(node.nbytes)}, ${percent(node.nbytes, total)} of all`, hint];
  }

  hover(event) {
    const box = this.at(event);
    this.element.classList.toggle("pointing", Boolean(box));
    if (box) showTip(event, this.lines(box));
    else hideTip();
    if (box !== this.hovered) {
      this.hovered = box;
      this.mark();
    }
  }

  leave() {
    hideTip();
    this.hovered = null;
    this.mark();
  }

  open({ node }) {
    if (node.item) this.actions.choose(node.item);
    else if (node.children) this.actions.open(node.prefix);
  }

  // A key's click has no place: it means the button.
  click(event) {
    const button = event.target.closest(".box");
    const box = event.detail === 0 && button ? this.buttons[Number(button.dataset.place)].box : this.at(event);
    hideTip();
    if (box) this.open(box);
  }

  makeButtons() {
    const focused = this.layer.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    const large = this.boxes.filter((box) => box.width >= 14 && box.height >= 12 && !box.node.rest);
    large.sort((a, b) => b.width * b.height - a.width * a.height || a.depth - b.depth);
    const kept = new Set(large.slice(0, MOST_BUTTONS));
    this.buttons = this.boxes.filter((box) => kept.has(box)).map((box, place) => {
      const { node } = box;
      const [head, ...rest] = this.lines(box);
      const label = `${node.children ? "Folder " : ""}${head}: ${rest.filter(Boolean).join("; ")}`;
      const button = element("button", {
        class: "box", type: "button", tabindex: place ? "-1" : "0", "data-place": place,
        "data-name": node.item ? node.item.key : node.prefix, "aria-label": label,
        "aria-pressed": node.item ? String(node.item === this.actions.chosen()) : null,
        style: { left: `${box.x}px`, top: `${box.y}px`, width: `${box.width}px`, height: `${box.height}px` },
      });
      return { box, button };
    });
    this.layer.replaceChildren(...this.buttons.map(({ button }) => button));
    if (focused !== null) this.focus(this.buttons.findIndex(({ button }) => button.dataset.name === focused));
  }

  focus(place) {
    const { button } = this.buttons[Math.max(place, 0)] ?? {};
    if (!button) return;
    for (const each of this.buttons) each.button.tabIndex = -1;
    button.tabIndex = 0;
    button.focus({ preventScroll: true });
  }

  key(event) {
    const place = this.buttons.findIndex(({ button }) => button === document.activeElement);
    if (event.key === "Escape") this.actions.up();
    else if (place < 0) return;
    else if (event.key === "Home") this.focus(0);
    else if (event.key === "End") this.focus(this.buttons.length - 1);
    else if (event.key.startsWith("Arrow")) this.focus(this.neighbour(place, event.key));
    else return;
    event.preventDefault();
  }

  // The nearest box in a direction; boxes straight ahead come before others.
  neighbour(place, key) {
    const middle = ({ x, y, width, height, header }) => [x + width / 2, header ? y + header / 2 : y + height / 2];
    const [x, y] = middle(this.buttons[place].box);
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
    let best = place;
    let least = Infinity;
    this.buttons.forEach(({ box }, other) => {
      const [a, b] = middle(box);
      const ahead = (a - x) * dx + (b - y) * dy;
      const aside = Math.abs((a - x) * dy) + Math.abs((b - y) * dx);
      if (ahead > 1 && ahead + 2 * aside < least) {
        least = ahead + 2 * aside;
        best = other;
      }
    });
    return best;
  }
}

function sideName(side) {
  return element("p", { class: "side-name", text: `${SIDE_NAMES[side]}: ${printable(SIDES[side].name)}` });
}
