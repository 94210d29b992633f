// A field above the long tables of Specification and Conformance results that shows the rows with all of its words, and
// the breaches that such rows link to. The totals above the first section stay.
// The words are in the address too, as rules.html?filter=R-DIV-1, so that a filtered page can be linked to.
"use strict";

function addFilter() {
  if (!/\/(rules|conformance)(\.html|\/)?$/.test(location.pathname)) return;
  const article = document.querySelector("article");
  const title = article && article.querySelector("h1");
  const sectionsOf = (...names) =>
    names.flatMap((name) => [...article.querySelectorAll(`section > ${name}`)]).map((heading) => heading.parentElement);
  const rows = article ? sectionsOf("h2").flatMap((each) => [...each.querySelectorAll("table tbody tr")]) : [];
  if (!title || !rows.length) return;
  const breaches = sectionsOf("h4");
  const texts = new Map([...rows, ...breaches].map((each) => [each, each.textContent.toLowerCase()]));
  const items = "table tbody tr, section:has(> h4)";
  const sections = sectionsOf("h2", "h3").filter((each) => each.querySelector(items));

  const label = document.createElement("label");
  label.className = "row-filter";
  label.append("Show rows with ");
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "R-DIV-1, broken, checkpoint …";
  const count = document.createElement("output");
  label.append(field, " ", count);
  title.after(label);

  function show() {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (each) => words.every((word) => texts.get(each).includes(word));
    for (const row of rows) row.hidden = !has(row);
    const shown = rows.filter((row) => !row.hidden);
    const linked = new Set(shown.flatMap((row) => [...row.querySelectorAll("a[href^='#']")]).map((link) => link.hash));
    for (const each of breaches) each.hidden = !has(each) && !linked.has(`#${each.id}`);
    for (const each of sections) {
      each.hidden = words.length > 0 && ![...each.querySelectorAll(items)].some((item) => !item.hidden);
    }
    count.textContent = words.length ? `${shown.length} of ${rows.length}` : "";
    const query = words.length ? `?filter=${encodeURIComponent(field.value)}` : location.pathname;
    history.replaceState(null, "", query + location.hash);
  }

  field.addEventListener("input", show);
  field.value = new URLSearchParams(location.search).get("filter") || "";
  if (field.value) show();
}

document.addEventListener("DOMContentLoaded", addFilter);
