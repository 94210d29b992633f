// Values and statistics that the server of this page reads when they are asked for: `shardvar view --serve`.

panels.push((item) => {
  const side = SIDES[0];
  const [row] = item.rows;
  if (side.faults.has(row)) return [];
  const index = element("input", { type: "text", autocomplete: "off", spellcheck: "false", placeholder: "all, or 0:8, ::2" });
  const values = element("pre", { class: "values", tabindex: "0", "aria-label": "Values", hidden: true });
  const ask = async (event) => {
    event.preventDefault();
    const told = await asked("values", { tensor: row, index: index.value });
    values.hidden = false;
    values.textContent = told.cause ? `${oneLine(told.cause)}\n${oneLine(told.remedy)}` : `${told.heading}\n${told.text}${told.note && `\n${told.note}`}`;
  };
  const measured = element("dl", { class: "pairs" });
  const measure = async () => {
    measured.replaceChildren(element("dt", { text: "reading" }));
    const told = await asked("statistics", { tensor: row });
    if (told.cause) measured.replaceChildren(element("dt", { text: oneLine(told.cause) }));
    else measured.replaceChildren(...numberPairs(Object.entries(told)));
  };
  const form = element("form", { class: "ask", onsubmit: ask }, element("label", {}, element("span", { class: "hidden", text: "Index" }), index), element("button", { class: "tool", text: "Read" }));
  const button = side.statistics.has(row) ? "" : element("button", { class: "tool", type: "button", text: "Statistics", onclick: measure });
  form.append(button);
  return [element("h3", { text: "Read values" }), form, values, measured];
});

async function asked(what, fields) {
  try {
    return await (await fetch(`${what}?${new URLSearchParams(fields)}`)).json();
  } catch {
    return { cause: "The server does not answer.", remedy: "Start `shardvar view --serve` again." };
  }
}
