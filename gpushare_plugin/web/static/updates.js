// Keeps an open page true: rows that changed are replaced, and the page is loaded again where more has changed.
"use strict";

const main = document.getElementById("main");
const freshness = document.getElementById("freshness");
// Seconds.
const LONGEST_PAUSE = 30;
const BETWEEN_LOADS = 5;
const LONGEST_LOAD = 60;
// The server sends an event every 5 seconds, also without a change.
const LONGEST_SILENCE = 20;

// Why what is seen may be old, and since when: by what fails, "cluster", "connection" or "page"; or "selection".
const old = new Map();

function isOld(what, why, since = Date.now()) {
  old.set(what, { why, since: Math.min(since, old.get(what)?.since ?? since) });
  say();
}

function isNew(what) {
  old.delete(what);
  say();
}

function say() {
  const found = [...old.values()];
  // The time is in UTC, as all times on the pages.
  const since = () => new Date(Math.min(...found.map((each) => each.since))).toISOString().slice(11, 19);
  const text = found.length ? `${found.at(-1).why}: what you see may be old (as of ${since()} UTC)` : "Up to date";
  freshness.classList.toggle("old", found.length > 0);
  // A screen reader says each text that is set.
  if (freshness.textContent !== text) freshness.textContent = text;
}

function seconds(number) {
  return new Promise((resolve) => { setTimeout(resolve, 1000 * number); });
}

// Waits longer after each failure; pages that lost their server at the same moment come back one after another.
function pauseAfter(failures) {
  return seconds(Math.min(2 ** (failures - 1), LONGEST_PAUSE) * (0.5 + Math.random() / 2));
}

// Returns how to find an element again in a new page: by its ID, or as one of the links to the same address.
function finder(element) {
  const [id, link] = [element?.id, element?.getAttribute("href")];
  if (id) return () => document.getElementById(id);
  if (!link) return () => null;
  const alike = () => [...main.querySelectorAll(`[href="${CSS.escape(link)}"]`)];
  const place = alike().indexOf(element);
  return () => alike()[place] ?? alike()[0];
}

// Replaces elements; the focus, the place on the page and the place within each table that scrolls stay.
function keepingPlace(replace) {
  const focused = document.activeElement;
  const again = finder(focused);
  const [left, top] = [scrollX, scrollY];
  const scrolled = [...main.querySelectorAll("table[id]")].filter((each) => each.scrollLeft > 0).map((each) => [each.id, each.scrollLeft]);
  replace();
  if (!focused?.isConnected) again()?.focus({ preventScroll: true });
  for (const [id, within] of scrolled) document.getElementById(id)?.scrollTo(within, 0);
  scrollTo(left, top);
}

function selects() {
  const selection = getSelection();
  return !selection.isCollapsed && main.contains(selection.anchorNode);
}

// Waits until no text of the page is selected: what is replaced cannot be copied.
function unselected() {
  return new Promise((resolve) => {
    const look = () => {
      if (selects()) return;
      document.removeEventListener("selectionchange", look);
      isNew("selection");
      resolve();
    };
    if (selects()) isOld("selection", "The page waits until no text is selected");
    document.addEventListener("selectionchange", look);
    look();
  });
}

function rowOf(markup) {
  const template = document.createElement("template");
  template.innerHTML = markup;
  leaveToArrows(template.content);
  return template.content.firstElementChild;
}

// Replaces the rows of each node; false where a node has other rows or GPUs than before, so that totals changed, too, and
// while text is selected.
function replaceNodes(nodes) {
  return Object.entries(nodes).every(([node, rows]) => {
    if (selects()) return false;
    const shown = [...main.querySelectorAll(`[data-node="${CSS.escape(node)}"]`)];
    if (shown.length !== Object.keys(rows).length || !shown.every((row) => row.id in rows)) return false;
    const pairs = shown.map((row) => [row, rowOf(rows[row.id])]);
    const tiles = (row) => row.querySelectorAll(".tile").length;
    if (pairs.some(([row, fresh]) => tiles(row) !== tiles(fresh))) return false;
    keepingPlace(() => pairs.forEach(([row, fresh]) => row.replaceWith(fresh)));
    return true;
  });
}

// Takes the GPUs out of the way of Tab, which without this script reaches each of them.
function leaveToArrows(rows) {
  for (const tile of rows.querySelectorAll("td a.tile")) tile.tabIndex = -1;
}

// Shows a page that was loaded: its parts with data-live, so that forms keep what is typed; else all of it.
function show(page) {
  const fresh = page.getElementById("main");
  const parts = (root) => [...root.querySelectorAll("[data-live]")];
  const [before, after] = [parts(main), parts(fresh)];
  const pairs = before.length && before.length === after.length ? before.map((each, at) => [each, after[at]]) : [[main, fresh]];
  keepingPlace(() => pairs.forEach(([each, other]) => each.replaceChildren(...other.childNodes)));
  leaveToArrows(main);
  document.title = page.title;
  main.dataset.updates = fresh.dataset.updates;
}

// Loads the page again; false, and said on the page, where that fails. What is gone has a page that says so.
async function load() {
  try {
    const answer = await fetch(location.href, { signal: AbortSignal.timeout(1000 * LONGEST_LOAD) });
    const text = await answer.text();
    const page = new DOMParser().parseFromString(text, "text/html");
    if (page.getElementById("main") !== null && (answer.ok || answer.status === 404)) {
      await unselected();
      show(page);
      isNew("page");
      return true;
    }
    isOld("page", `The page cannot be loaded (${text.trim().slice(0, 200) || answer.status})`);
  } catch {
    isOld("page", "No connection");
  }
  return false;
}

let changes = 0;
let loading = false;

// Loads the page until all changes are shown; one load at a time, so that no older page replaces a newer one.
async function catchUp() {
  changes += 1;
  if (loading) return;
  loading = true;
  for (let failures = 0, shown = 0; shown !== changes;) {
    const seen = changes;
    if (await load()) {
      [failures, shown] = [0, seen];
      if (shown !== changes) await seconds(BETWEEN_LOADS);
    } else {
      failures += 1;
      await pauseAfter(failures);
    }
  }
  loading = false;
}

function took(revision) {
  const address = new URL(main.dataset.updates, location.href);
  address.searchParams.set("since", revision);
  main.dataset.updates = address.pathname + address.search;
}

// Takes the first event of a connection as the sign that the server answers again.
function begin(name) {
  isNew("connection");
  if (name !== "silent") isNew("cluster");
  if (old.has("page")) catchUp();
}

// Follows changes until the connection ends or is silent, or the page is hidden; returns whether an event came.
function follow() {
  return new Promise((resolve) => {
    const source = new EventSource(main.dataset.updates);
    let came = false;
    let silence;
    const listen = () => {
      clearTimeout(silence);
      silence = setTimeout(() => {
        isOld("connection", "No connection", Date.now() - 1000 * LONGEST_SILENCE);
        end();
      }, 1000 * LONGEST_SILENCE);
    };
    const on = (name, take) => source.addEventListener(name, (event) => {
      listen();
      if (!came) begin(name);
      came = true;
      take(event);
    });
    const end = () => {
      clearTimeout(silence);
      source.close();
      document.removeEventListener("visibilitychange", end);
      resolve(came);
    };
    on("answers", () => isNew("cluster"));
    on("silent", (event) => {
      isOld("cluster", "The API server does not answer", Date.now() - 1000 * Number(event.data));
    });
    on("rows", (event) => {
      if (loading || !replaceNodes(JSON.parse(event.data))) catchUp();
      else took(event.lastEventId);
    });
    on("load", () => { catchUp(); });
    source.addEventListener("error", end);
    document.addEventListener("visibilitychange", end);
    listen();
  });
}

// Only while the page is seen: a browser has six connections for all pages of a server.
function seen() {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    look();
  });
}

// Follows for ever. The server ends each connection after a while, so that only a second failure is one.
async function keepFollowing() {
  for (let failures = 0; ;) {
    await seen();
    if (await follow()) {
      failures = 0;
      await seconds(1);
      continue;
    }
    if (document.hidden) continue;
    failures += 1;
    isOld("connection", "No connection");
    await pauseAfter(failures);
    // The page says why, where the server refuses: an EventSource does not know.
    if (!loading && !selects()) await load();
  }
}

leaveToArrows(main);
if (main.dataset.updates) keepFollowing();

// Returns the row above or below; of several beside each other, the one at the place of this row.
function rowBeyond(row, step) {
  const beside = step < 0 ? "previousElementSibling" : "nextElementSibling";
  const away = (each) => Math.abs(each.offsetLeft - row.offsetLeft);
  let found = row[beside];
  while (found?.offsetTop === row.offsetTop) found = found[beside];
  for (let each = found; each?.offsetTop === found?.offsetTop && each; each = each[beside]) {
    if (away(each) < away(found)) found = each;
  }
  return found;
}

// The arrow keys go from the name of a node to its GPUs, and from row to row; Home and End to the ends of a row.
main.addEventListener("keydown", (event) => {
  const here = event.target.closest("[data-node] a");
  if (here === null || event.altKey || event.ctrlKey || event.metaKey) return;
  const row = here.closest("tr");
  const links = [...row.querySelectorAll("a")];
  const place = links.indexOf(here);
  const next = {
    ArrowLeft: () => links[place - 1],
    ArrowRight: () => links[place + 1],
    ArrowUp: () => rowBeyond(row, -1)?.querySelectorAll("a")[place],
    ArrowDown: () => rowBeyond(row, 1)?.querySelectorAll("a")[place],
    Home: () => links[0],
    End: () => links.at(-1),
  }[event.key]?.();
  if (next === undefined) return;
  event.preventDefault();
  next.focus();
});
