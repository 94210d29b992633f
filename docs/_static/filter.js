// A field above the long tables of Specification and Conformance results that shows the rows with all of its words.
// The words are in the address too, as rules.html?filter=R-DIV-1, so that a filtered page can be linked to.
"use strict";

function addFilter() {
  if (!/\/(rules|conformance)(\.html|\/)?$/.test(location.pathname)) return;
  const article = document.querySelector("article");
  const title = article && article.querySelector("h1");
  const rows = article ? [...article.querySelectorAll("table tbody tr")] : [];
  if (!title || !rows.length) return;
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const headings = ["h2", "h3"].flatMap((name) => [...article.querySelectorAll(`section > ${name}`)]);
  const sections = headings.map((heading) => heading.parentElement).filter((each) => each.querySelector("table"));

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
    let shown = 0;
    rows.forEach((row, number) => {
      row.hidden = !words.every((word) => texts[number].includes(word));
      shown += row.hidden ? 0 : 1;
    });
    for (const each of sections) {
      each.hidden = words.length > 0 && !each.querySelector("table tbody tr:not([hidden])");
    }
    count.textContent = words.length ? `${shown} of ${rows.length}` : "";
    const query = words.length ? `?filter=${encodeURIComponent(field.value)}` : location.pathname;
    history.replaceState(null, "", query + location.hash);
  }

  field.addEventListener("input", show);
  field.value = new URLSearchParams(location.search).get("filter") || "";
  if (field.value) show();
}

document.addEventListener("DOMContentLoaded", addFilter);
