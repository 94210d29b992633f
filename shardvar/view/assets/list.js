// A list of any number of rows, which exist only while they are in sight. Arrows, Home, End and Page keys move; one row is
// in the tab order. ``choose`` is called with each row that the reader moves to; ``turn`` opens and closes rows.

class VirtualList {
  constructor({ label, role, rowHeight, head, renderRow, choose, hover, turn }) {
    Object.assign(this, { rowHeight, renderRow, choose, hover, turn });
    this.length = 0;
    this.current = 0;
    this.isChosen = () => false;
    this.body = element("div", { class: "body", role: "rowgroup" });
    this.element = element("div", { class: "list", role, "aria-label": label }, head, this.body);
    this.head = head;
    this.draw = soon(() => this.drawNow());
    this.element.addEventListener("scroll", this.draw, { passive: true });
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) this.act(Number(row.dataset.row));
    });
    if (hover) {
      this.body.addEventListener("mousemove", (event) => {
        const row = event.target.closest(".row");
        const lines = row && hover(Number(row.dataset.row), event);
        if (lines) showTip(event, lines);
        else hideTip();
      });
      this.body.addEventListener("mouseleave", hideTip);
    }
    new ResizeObserver(this.draw).observe(this.element);
  }

  setLength(length) {
    this.length = length;
    this.current = Math.min(this.current, Math.max(0, length - 1));
    // A browser's elements end somewhere beyond ten million pixels.
    this.body.style.height = `${Math.min(length * this.rowHeight, 12_000_000)}px`;
    this.element.setAttribute("aria-rowcount", length + (this.head ? 1 : 0));
    this.draw();
  }

  // If the scroll bar is too short for all rows, it is stretched.
  top(row) {
    const whole = this.length * this.rowHeight;
    const height = Math.min(whole, 12_000_000);
    return whole === height ? row * this.rowHeight : (row / this.length) * height;
  }

  drawNow() {
    const headHeight = this.head ? this.head.offsetHeight : 0;
    const seen = Math.ceil((this.element.clientHeight - headHeight) / this.rowHeight) + 1;
    const perRow = this.length ? this.top(1) : 1;
    const first = Math.max(0, Math.min(Math.floor(this.element.scrollTop / perRow), this.length - seen) - 3);
    const last = Math.min(this.length, first + seen + 6);
    const focused = document.activeElement?.closest?.(".row")?.parentElement === this.body;
    const rows = [];
    const start = this.top(first);
    for (let row = first; row < last; row++) rows.push(this.row(row, start + (row - first) * this.rowHeight));
    this.body.replaceChildren(...rows);
    for (const row of rows) row.paint?.(); // what is drawn in it, once it has its size
    const hasCurrent = this.current >= first && this.current < last;
    if (!hasCurrent && rows.length) rows[Math.min(3, rows.length - 1)].tabIndex = 0;
    if (focused && hasCurrent) rows[this.current - first].focus({ preventScroll: true });
  }

  row(row, top) {
    const made = this.renderRow(row);
    made.classList.add("row");
    made.dataset.row = row;
    made.tabIndex = row === this.current ? 0 : -1;
    made.style.top = `${top}px`;
    made.style.height = `${this.rowHeight}px`;
    made.setAttribute("role", "row");
    made.setAttribute("aria-rowindex", row + (this.head ? 2 : 1));
    made.setAttribute("aria-selected", String(this.isChosen(row)));
    return made;
  }

  key(event) {
    const row = event.target.closest(".row");
    if (!row || event.altKey || event.ctrlKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight) - 2);
    const at = Number(row.dataset.row);
    const steps = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: Infinity };
    if (event.key in steps) this.move(Math.max(0, Math.min(this.length - 1, steps[event.key])), true);
    else if (event.key === "Enter" || event.key === " ") this.act(at);
    else if (this.turn && (event.key === "ArrowRight" || event.key === "ArrowLeft")) this.turnTo(at, event.key === "ArrowRight");
    else return;
    event.preventDefault();
  }

  // A click, or Enter: opens or closes a row that holds others, else chooses it.
  act(row) {
    if (this.body.querySelector(`[data-row="${row}"][aria-expanded]`)) this.turnTo(row);
    else this.move(row, true);
  }

  turnTo(row, isToOpen) {
    const next = this.turn(row, isToOpen);
    if (next !== null) this.move(next, true);
  }

  // Makes a row the current one and brings it in sight.
  move(row, byHand) {
    this.current = row;
    const headHeight = this.head ? this.head.offsetHeight : 0;
    const top = this.top(row);
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + this.rowHeight > scrollTop + clientHeight - headHeight) {
      this.element.scrollTop = top + this.rowHeight - clientHeight + headHeight;
    }
    if (byHand) this.choose(row);
    this.drawNow();
    if (byHand) this.body.querySelector(`[data-row="${row}"]`)?.focus({ preventScroll: true });
  }
}
