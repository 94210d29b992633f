// The state of the page in its address, so that a link shows the same and Back goes one step back; and what is copied.

let isRestoring = false;

function addressOf() {
  const words = new URLSearchParams();
  const only = [...state.dtypes, ...state.statuses, ...state.flags, ...(state.onlyFaults ? ["damaged"] : [])];
  const parts = { t: state.item && printable(state.item.key), q: state.query, in: printable(state.prefix), by: state.by, measure: state.measure, only: only.join(","), fold: state.isFlat ? "no" : "" };
  for (const [name, value] of Object.entries(parts)) if (value) words.set(name, value);
  return words.toString();
}

// A step is one that Back undoes; typing is not.
function remember(isStep = true) {
  const text = addressOf();
  if (isRestoring || text === location.hash.slice(1)) return;
  history[isStep ? "pushState" : "replaceState"](null, "", `#${text}`);
}

// Parts of an address that do not exist in this page are left out.
function restore() {
  isRestoring = true;
  const words = new URLSearchParams(location.hash.slice(1));
  const only = new Set((words.get("only") ?? "").split(","));
  state.query = words.get("q") ?? "";
  state.by = words.get("by") ?? "";
  state.measure = words.get("measure") ?? "";
  state.dtypes = new Set(DTYPES.filter((name) => only.has(name)));
  state.statuses = new Set(Object.keys(KIND_COLOURS).filter((kind) => IS_DIFF && only.has(kind)));
  state.flags = new Set(FLAGS.filter((flag) => only.has(flag)));
  state.onlyFaults = only.has("damaged");
  state.isFlat = words.get("fold") === "no";
  const find = (text, textOf, values) => (text ? values.find((value) => printable(textOf(value)) === text) : undefined);
  const prefix = words.get("in") ?? "";
  const inside = prefix && ITEMS.find(({ key }) => printable(key).startsWith(prefix));
  state.prefix = inside ? inside.key.slice(0, lengthOfPrinted(inside.key, prefix)) : "";
  state.item = find(words.get("t"), ({ key }) => key, ITEMS) ?? null;
  document.getElementById("query").value = state.query;
  showChips();
  showColours();
  layerMap.showChoices();
  apply();
  if (state.item) actions.choose(state.item);
  else showDetail(document.getElementById("detail"), null, actions);
  isRestoring = false;
}

// How many characters of a key print as this text.
function lengthOfPrinted(key, text) {
  let length = text.length;
  while (length > 0 && printable(key.slice(0, length)) !== text) length--;
  return length;
}

// A name as one word of a shell. Nothing in it runs, whatever letters it has.
function quoted(text) {
  if (/^[\w./:@%+=,-]+$/.test(text)) return text;
  if (!/[\p{C}\p{Zl}\p{Zp}]/u.test(text)) return `'${text.replaceAll("'", "'\\''")}'`;
  // A byte that is not UTF-8 is half of a pair, as in Python.
  const bytesOf = (letter) => (/[\udc80-\udcff]/.test(letter) && letter.length === 1 ? [letter.charCodeAt(0) - 0xdc00] : [...new TextEncoder().encode(letter)]);
  return `$'${[...text].flatMap(bytesOf).map((byte) => (byte > 31 && byte < 127 && byte !== 39 && byte !== 92 ? String.fromCharCode(byte) : `\\x${byte.toString(16).padStart(2, "0")}`)).join("")}'`;
}

// A path as an argument that cannot be taken for an option.
function quotedPath(path) {
  return quoted(path.startsWith("-") ? `./${path}` : path);
}

// A string of Python.
function literal(text) {
  return JSON.stringify(text).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (found) => [...Array(found.length).keys()].map((at) => `\\u${found.charCodeAt(at).toString(16).padStart(4, "0")}`).join(""));
}

function copyLine(name, text, label = name) {
  const button = element("button", { class: "link", type: "button", text: label, "aria-label": `Copy ${name}`, onclick: () => copy(text, button, label) });
  return element("div", { class: "copy" }, element("code", { title: printable(text) }, ...keyNodes(printable(text).replaceAll("\\\\", "\\"))), button);
}

async function copy(text, button, name) {
  let isDone = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = element("textarea", { text });
    document.body.append(field);
    field.select();
    isDone = document.execCommand("copy"); // where a browser keeps the clipboard from pages that are files
    field.remove();
  }
  button.textContent = isDone ? "Copied" : "Not copied";
  button.focus();
  setTimeout(() => (button.textContent = name), 1200);
}

// The key, the command and the Python that show this tensor, ready to paste.
function copies(item) {
  if (IS_PLAN) return [element("h3", { text: "Copy" }), copyLine("Key", item.key), copyLine("Link", location.href)];
  const [a, b] = SIDES.map((side) => side.path);
  const glob = item.key.replace(/[*?[]/g, "[$&]");
  const show = SIDES[sideOf(item)].path;
  const command = IS_DIFF ? `shardvar diff ${quotedPath(a)} ${quotedPath(b)} ${quoted(`--filter=${glob}`)}` : `shardvar show ${quotedPath(show)} ${item.key.startsWith("-") ? "-- " : ""}${quoted(item.key)}`;
  const python = IS_DIFF ? `sv.diff(${literal(a)}, ${literal(b)}, filter=${literal(glob)})` : `sv.open_checkpoint(${literal(show)}).read(${literal(item.key)})`;
  return [element("h3", { text: "Copy" }), copyLine("Key", item.key), copyLine("Command", command), copyLine("Python", python), copyLine("Link", location.href)];
}
