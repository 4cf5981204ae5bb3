// Keeps an open page true: rows that changed are replaced, and the page is loaded again where rows came or went.
"use strict";

const main = document.getElementById("main");
const freshness = document.getElementById("freshness");

function replace(id, markup) {
  const row = document.getElementById(id);
  if (row === null) return;
  const focused = row.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const template = document.createElement("template");
  template.innerHTML = markup;
  const fresh = template.content.firstElementChild;
  row.replaceWith(fresh);
  if (focused !== null) fresh.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
}

async function load() {
  const answer = await fetch(location.href);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  main.replaceChildren(...page.getElementById("main").childNodes);
}

if (main.dataset.updates) {
  const source = new EventSource(main.dataset.updates);
  source.addEventListener("rows", (event) => {
    for (const [id, markup] of Object.entries(JSON.parse(event.data))) replace(id, markup);
    document.documentElement.dataset.revision = event.lastEventId;
  });
  source.addEventListener("load", (event) => {
    load().then(() => { document.documentElement.dataset.revision = event.lastEventId; });
  });
  source.addEventListener("open", () => { freshness.textContent = "Up to date"; });
  source.addEventListener("error", () => { freshness.textContent = "No connection: what you see may be old"; });
}
