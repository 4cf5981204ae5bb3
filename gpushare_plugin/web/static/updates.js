// Keeps an open page true: rows that changed are replaced, and the page is loaded again where rows came or went.
"use strict";

const main = document.getElementById("main");
const freshness = document.getElementById("freshness");

function replace(row, markup) {
  const focused = row.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const template = document.createElement("template");
  template.innerHTML = markup;
  const fresh = template.content.firstElementChild;
  leaveToArrows(fresh);
  row.replaceWith(fresh);
  if (focused !== null) fresh.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
}

// Replaces the rows of each node; false where a node has other rows than before, so that totals and groups changed, too.
function replaceNodes(nodes) {
  return Object.entries(nodes).every(([node, rows]) => {
    const shown = [...main.querySelectorAll(`[data-node="${CSS.escape(node)}"]`)];
    if (shown.length !== Object.keys(rows).length || !shown.every((row) => row.id in rows)) return false;
    for (const row of shown) replace(row, rows[row.id]);
    return true;
  });
}

// Takes the GPUs out of the way of Tab, which without this script reaches each of them.
function leaveToArrows(rows) {
  for (const tile of rows.querySelectorAll("td a.tile")) tile.tabIndex = -1;
}

async function load() {
  const answer = await fetch(location.href);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  main.replaceChildren(...page.getElementById("main").childNodes);
  leaveToArrows(main);
}

function follow() {
  const address = new URL(main.dataset.updates, location.href);
  const seen = document.documentElement.dataset.revision;
  if (seen !== undefined) address.searchParams.set("since", seen);
  const source = new EventSource(address);
  const took = (event) => { document.documentElement.dataset.revision = event.lastEventId; };
  source.addEventListener("rows", async (event) => {
    if (!replaceNodes(JSON.parse(event.data))) await load();
    took(event);
  });
  source.addEventListener("load", (event) => { load().then(() => took(event)); });
  source.addEventListener("open", () => { freshness.textContent = "Up to date"; });
  source.addEventListener("error", () => { freshness.textContent = "No connection: what you see may be old"; });
  return source;
}

leaveToArrows(main);
if (main.dataset.updates) {
  // Only while the page is seen: a browser has six connections for all pages of a server.
  let source = document.hidden ? null : follow();
  document.addEventListener("visibilitychange", () => {
    source?.close();
    source = document.hidden ? null : follow();
  });
}

// The arrow keys go from the name of a node to its GPUs, and from row to row.
main.addEventListener("keydown", (event) => {
  const here = event.target.closest("[data-node] a");
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (here === null || step === undefined) return;
  const row = here.closest("tr");
  const links = [...row.querySelectorAll("a")];
  const place = links.indexOf(here);
  const beside = step < 0 ? row.previousElementSibling : row.nextElementSibling;
  const next = event.key === "ArrowLeft" || event.key === "ArrowRight"
    ? links[place + step]
    : beside?.querySelectorAll("a")[place];
  if (next === undefined) return;
  event.preventDefault();
  next.focus();
});
