// Above an open folder of the size map, the whole checkpoint as a strip, to scale and in reading order: the folder and
// its neighbours, which a click or an arrow key opens. A mark below a segment tells that something in it is damaged or
// not finite.

const STRIP_HEIGHT = 26; // of the colours; the marks are below

// The neighbours of an open folder and of the folders around it, in reading order.
function segmentsOf(tree, open) {
  const isAround = (node) => node.children && node !== open && open.prefix.startsWith(node.prefix);
  const found = [];
  const add = (node) => (isAround(node) ? node.children.forEach(add) : found.push(node));
  tree.children.forEach(add);
  return found.sort((a, b) => a.first - b.first);
}

class FolderStrip {
  constructor(map, actions) {
    Object.assign(this, { map, actions, segments: [], places: [] });
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.element = element("div", { class: "whole", role: "slider", tabindex: "0", "aria-label": "Open folder", "aria-valuemin": "0", hidden: true }, this.canvas);
    this.element.addEventListener("mousemove", (event) => showTip(event, this.map.lines({ node: this.at(event) })));
    this.element.addEventListener("mouseleave", hideTip);
    this.element.addEventListener("click", (event) => this.map.open({ node: this.at(event) }));
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  show(tree, open) {
    this.segments = open === tree ? [] : segmentsOf(tree, open);
    this.current = this.segments.indexOf(open);
    this.element.hidden = this.segments.length < 2 || this.current < 0;
    if (this.element.hidden) return;
    this.element.setAttribute("aria-valuemax", this.segments.length - 1);
    this.element.setAttribute("aria-valuenow", this.current);
    this.element.setAttribute("aria-valuetext", this.map.lines({ node: open }).slice(0, 2).join(": "));
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.element;
    const context = fitted(this.canvas, width, height);
    if (!context) return;
    const total = this.segments.reduce((sum, { nbytes }) => sum + nbytes, 0);
    let x = 0;
    this.places = this.segments.map(({ nbytes }) => (x += (nbytes / total) * width));
    this.segments.forEach((node, at) => {
      const [left, w] = this.placeOf(at);
      const lead = node.item ?? node.lead;
      context.fillStyle = itemColour(lead);
      context.fillRect(left, 0, Math.max(w - (w > 4 ? 1 : 0), 0.4), STRIP_HEIGHT);
      if (!isFaulty(lead) && !isOdd(lead)) return;
      context.fillStyle = isFaulty(lead) ? theme.bad : theme.flag;
      context.font = "600 9px system-ui, sans-serif";
      context.fillText(isFaulty(lead) ? "✗" : "!", Math.min(left + w / 2 - 3, width - 7), height);
    });
    const [left, w] = this.placeOf(this.current);
    const shown = Math.max(w, 5); // so that it is seen among a thousand folders
    outline(context, Math.min(left, width - shown), 0, shown, STRIP_HEIGHT, 2);
  }

  placeOf(at) {
    const left = at ? this.places[at - 1] : 0;
    return [left, this.places[at] - left];
  }

  at(event) {
    const x = event.clientX - this.element.getBoundingClientRect().left;
    const at = this.places.findIndex((end) => x < end);
    return this.segments[at < 0 ? this.segments.length - 1 : at];
  }

  // Arrows go from folder to folder; tensors among them are left to the mouse and the table.
  key(event) {
    const folders = this.segments.filter(({ children }) => children);
    const place = folders.indexOf(this.segments[this.current]);
    const next = { ArrowLeft: place - 1, ArrowUp: place - 1, ArrowRight: place + 1, ArrowDown: place + 1, Home: 0, End: folders.length - 1 }[event.key];
    if (event.key === "Escape") this.actions.up();
    else if (next === undefined) return;
    else if (folders[next]) this.actions.open(folders[next].prefix);
    event.preventDefault();
  }
}
