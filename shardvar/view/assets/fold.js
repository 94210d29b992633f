// The table's lines: a tensor, or a group that opens. Three or more siblings that differ only in one number, and hold
// the same tensors with the same dtypes and shapes, are one group: "layers.{0..15,17..31}". Other folders have no line.

const LEAST_ALIKE = 3;
const LEAST_FOLDED = 20; // so few tensors are all in sight
const NUMBERED = /^([^]*?)(\d{1,9})([/.]?)$/;

// The folders and tensors of these items, each with a number for its content: equal contents have equal numbers.
function foldTree(items) {
  const root = makeFolder("", "");
  for (const item of items) {
    const { folder, label } = placeInTree(root, item.name);
    folder.children.push({ label, item });
  }
  const contents = new Map();
  const contentOf = (node) => {
    const [row] = node.item?.rows ?? [];
    const [side] = SIDES;
    const text = node.item ? `${side.dtype[row]} ${side.shape[row]}` : node.children.map((child) => `${child.label.length} ${child.label}${contentOf(child)}`).join();
    if (!contents.has(text)) contents.set(text, contents.size);
    return (node.content = contents.get(text));
  };
  contentOf(root);
  return root;
}

// The children of a folder. Children that are alike are one group, in the place of the first of them.
function entriesOf(node) {
  if (node.entries) return node.entries;
  const groups = new Map();
  const made = node.children.map((child) => {
    const [, before, digits, after] = NUMBERED.exec(child.label) ?? [];
    if (digits === undefined) return child;
    const name = JSON.stringify([before, after, child.content, Boolean(child.item)]);
    const member = { ...child, digits };
    if (groups.has(name)) groups.get(name).members.push(member);
    else groups.set(name, { before, after, members: [member] });
    return groups.get(name);
  });
  const entries = [...new Set(made)].flatMap((each) => (each.members && each.members.length < LEAST_ALIKE ? each.members : [each]));
  return (node.entries = entries);
}

// The lines of a folder. A group that is open has its members below it, and so on. ``shown`` is where the
// part of the keys begins that the line above does not tell.
function linesOf(node, open, shown = 0, level = 1) {
  return entriesOf(node).flatMap((entry) => {
    if (entry.item) return [{ item: entry.item, shown, level }];
    if (!entry.members) return linesOf(entry, open, shown, level);
    const isOpen = open.has(entry);
    const line = { group: entry, shown, level, isOpen };
    return isOpen ? [line, ...entry.members.flatMap((member) => memberLines(member, open, shown, level + 1))] : [line];
  });
}

function memberLines(member, open, shown, level) {
  if (member.item) return [{ item: member.item, shown, level }];
  const [only, ...others] = itemsOf(member);
  if (!others.length) return [{ item: only, shown, level }];
  const isOpen = open.has(member);
  const line = { group: member, shown, level, isOpen };
  return isOpen ? [line, ...linesOf(member, open, member.prefix.length, level + 1)] : [line];
}

// All tensors of a group or folder.
function itemsOf(node) {
  return (node.items ??= node.item ? [node.item] : (node.members ?? node.children).flatMap(itemsOf));
}

// The groups that must be open so that a tensor has a line; null where it is not below this folder.
function groupsAround(node, item) {
  for (const entry of entriesOf(node)) {
    if (entry.item === item) return [];
    for (const each of entry.members ?? [entry]) {
      if (each.item === item) return [entry];
      const below = !each.item && item.key.startsWith(each.prefix) ? groupsAround(each, item) : null;
      if (below) return entry.members ? [entry, each, ...below] : below;
    }
  }
  return null;
}

// A number of each tensor of a group, added up.
function sumOf(group, value) {
  return itemsOf(group).reduce((sum, item) => sum + value(item), 0);
}

// The least, or with ``sign`` -1 the largest, of what its tensors have; null where none has a number.
function extremeOf(group, value, sign) {
  let found = null;
  for (const item of itemsOf(group)) {
    const number = value(item);
    if (typeof number === "number" && (found === null || sign * number < sign * found)) found = number;
  }
  return found;
}

function groupLabel({ group, shown }) {
  const { members, prefix } = group;
  if (!members) return printable(prefix.slice(shown).replace(/[/.]$/, ""));
  const first = members[0].item ?? itemsOf(members[0])[0];
  const place = (members[0].prefix ?? first.name).length - members[0].label.length;
  return printable(first.name.slice(shown, place) + group.before) + `{${ranges(members.map(({ digits }) => digits), "..", ",")}}`;
}

// "32 × 9 tensors" of a group, "9 tensors" of one of its members.
function groupText({ members, ...node }) {
  if (!members) return count(itemsOf(node).length, "tensor");
  const each = itemsOf(members[0]).length;
  return each > 1 ? `${grouped(members.length)} × ${grouped(each)} tensors` : `${grouped(members.length)} tensors`;
}
