// report.html: overview and cases, the case that is open, and the page's address, which names all of it.

const SEVERITY = ["fail", "miss", "error", "invalid", "other", "skip", "pass"];

// `at`: where the open row stands in the list, -1 where it does not; `last`: where it was last.
const state = { filters: {}, sort: "worst", order: [], row: null, at: -1, last: 0, gallery: false, view: "overview" };

// ---- filters ----

const FILTERS = {
  eval: (row, wanted) => names.evals[index.eval[row]] === wanted,
  test: (row, wanted) => names.tests[index.test[row]] === wanted,
  engine: (row, wanted) => names.engines[index.engine[row]] === wanted,
  checkpoint: (row, wanted) => names.checkpoints[index.engine[row]] === wanted,
  outcome: (row, wanted) => wanted.split(",").includes(outcomeOf(row)),
  problem: (row, wanted) => String(index.problem[row]) === wanted,
  flag: (row, wanted) => flagged(wanted).has(row),
  score: (row, wanted) => {
    const [, name, comparison, limit] = wanted.match(SCORE) ?? [];
    const value = index.scores[name]?.[row];
    return value !== null && value !== undefined && HOLDS[comparison](value, Number(limit));
  },
};
const SCORE = /^(.*)(<=|>=|<|>)([-+.\deE]+)$/;
const flags = {};
const flagged = (name) => (flags[name] ??= new Set(index.flags[name] ?? []));

function matcher(name) {
  if (name.startsWith("tag.")) {
    const column = index.tags[name.slice(4)] ?? [];
    return (row, wanted) => column[row] !== null && column[row] !== undefined && names.tag_values[column[row]] === wanted;
  }
  return FILTERS[name];
}

let haystacks = null;

/** Return the lower-case text of every row; the first call opens all blocks. */
async function allHaystacks() {
  if (!haystacks) {
    haystacks = (async () => {
      const found = [];
      for (let block = 0; block < index.blocks.length; block += 1) {
        for (const line of (await openBlock(`rows-${block}`)).split("\n")) found.push(haystackOf(JSON.parse(line)));
      }
      return found;
    })();
  }
  return haystacks;
}

function haystackOf(row) {
  const parts = [row.nodeid, row.case_id, row.group, row.problem, OUTCOME_NAMES[row.outcome] ?? row.outcome, ...Object.values(row.tags ?? {}), referenceOf(row), row.details];
  for (const made of generationsOf(row)) parts.push(made.text, made.finish_reason);
  return parts.filter((part) => part !== null && part !== undefined).map((part) => (typeof part === "string" ? part : JSON.stringify(part))).join("\n").toLowerCase();
}

let applying = 0;

/** Fill the list anew. `open` is the row that stays open, or is opened by its link; else the first one is shown in its place. */
async function applyFilters(open = state.row) {
  const turn = (applying += 1);
  const tests = Object.entries(state.filters).filter(([name]) => name !== "q").map(([name, wanted]) => [matcher(name), wanted]).filter(([test]) => test);
  let rows = [];
  for (let row = 0; row < numRows; row += 1) if (tests.every(([test, wanted]) => test(row, wanted))) rows.push(row);
  const words = (state.filters.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length) {
    $("#matches").textContent = "searching…";
    const texts = await allHaystacks();
    if (turn !== applying) return;
    rows = rows.filter((row) => words.every((word) => texts[row].includes(word)));
  }
  sortRows(rows);
  state.order = rows;
  state.at = rows.indexOf(open);
  $("#matches").textContent = rows.length === numRows ? plural(numRows, "case") : `${rows.length.toLocaleString("en")} of ${plural(numRows, "case")}`;
  showFilters();
  layOut(true);
  if (rows.length) await openRow(state.at < 0 ? rows[0] : open, false, true);
  else {
    state.row = null;
    $("#case").replaceChildren();
  }
}

let ranks = null;

function sortRows(rows) {
  const [by, name] = [state.sort.slice(0, 1), state.sort.slice(1)];
  if (state.sort === "run") return;
  if (state.sort === "case") rows.sort((a, b) => index.case[a].localeCompare(index.case[b], "en", { numeric: true }) || a - b);
  else if (by === "<" || by === ">") {
    const column = index.scores[name] ?? [];
    const sign = by === "<" ? 1 : -1;
    rows.sort((a, b) => (column[a] ?? null) === null ? ((column[b] ?? null) === null ? a - b : 1) : (column[b] ?? null) === null ? -1 : (column[a] - column[b]) * sign || a - b);
  } else {
    if (!ranks) {
      ranks = new Int32Array(numRows);
      index.worst.forEach((row, place) => { ranks[row] = place; });
    }
    rows.sort((a, b) => ranks[a] - ranks[b]);
  }
}

function setFilter(name, value) {
  if (value) state.filters[name] = value;
  else delete state.filters[name];
  document.body.classList.remove("in-case");
  writeHash();
  applyFilters();
}

function choice(name, label, values) {
  const select = el("select", { "data-filter": name, "aria-label": label, on: { change: () => setFilter(name, select.value) } });
  select.append(el("option", { value: "" }, `${label}: all`), ...values.map((value) => el("option", { value }, oneLine(value || "(none)", 60))));
  return select;
}

function buildFilters() {
  const counts = {};
  for (let row = 0; row < numRows; row += 1) counts[outcomeOf(row)] = (counts[outcomeOf(row)] ?? 0) + 1;
  const buttons = SEVERITY.filter((name) => counts[name]).map((name) =>
    el("button", { type: "button", "data-outcome": name, "aria-pressed": "false", on: { click: () => toggleOutcome(name) } },
      el("span", { "aria-hidden": "true" }, MARKS[name]), `${OUTCOME_NAMES[name] ?? name} ${counts[name].toLocaleString("en")}`));
  $("#outcome-filter").append(...buttons);
  const used = (codes, all) => [...new Set(codes)].map((code) => all[code]);
  const selects = [], more = [];
  const evals = used(index.eval, names.evals), engines = used(index.engine, names.engines), tests = used(index.test, names.tests);
  if (evals.length > 1) selects.push(choice("eval", "Eval", evals));
  if (engines.length > 1) selects.push(choice("engine", "Engine", engines));
  if (tests.length > 1) more.push(choice("test", "Test", tests));
  const checkpoints = [...new Set(used(index.engine, names.checkpoints))];
  if (checkpoints.length > 1 && checkpoints.length < engines.length) more.push(choice("checkpoint", "Checkpoint", checkpoints));
  for (const [tag, column] of Object.entries(index.tags)) {
    const values = [...new Set(column)].filter((code) => code !== null).map((code) => names.tag_values[code]);
    if (values.length > 1 && values.length <= 200) more.push(choice(`tag.${tag}`, tag, values.sort((a, b) => a.localeCompare(b, "en", { numeric: true }))));
  }
  while (more.length && selects.length + more.length <= 2) selects.push(more.shift());
  $("#selects").append(...selects);
  $("#more-selects").append(...more);
  $("#more-filters").hidden = !more.length;
  const option = (value, text = value) => el("option", { value }, oneLine(text, 40));
  const group = (label, options) => options.length ? el("optgroup", { label }, options) : null;
  const scores = Object.keys(index.scores).sort((a, b) => a.startsWith("num_") - b.startsWith("num_"));
  $("#sort").append(...[group("Order", [option("worst", "worst first"), option("run", "as run"), option("case", "case id")]),
    group("Scores", scores.map((name) => option(`score ${name}`, name)))].filter(Boolean));
}

/** Return the way of sorting by a score that has the worst cases first. */
function worstWay(name) {
  const ways = [...goals].filter(([key]) => key.endsWith(`\n${name}`)).map(([, goal]) => goal.way);
  return ways.length && ways.every((way) => way < 0) ? ">" : "<";
}

function toggleOutcome(name) {
  const now = new Set((state.filters.outcome ?? "").split(",").filter(Boolean));
  if (!now.delete(name)) now.add(name);
  setFilter("outcome", [...now].join(","));
}

/** Return a filter in words: "cabinet = rooftop", "f1 < 0.8", "length cap", or the reason of its cases. */
function filterText(name, wanted) {
  if (name === "score") return wanted.replace(SCORE, "$1 $2 $3");
  if (name === "flag") return wanted.replaceAll("_", " ");
  if (name === "problem") return `reason: ${names.problems[wanted] || "none was recorded"}`;
  return oneLine(`${name.replace(/^tag\./, "")} = ${wanted}`, 80);
}

/** Show every filter that is set: the outcomes and the search where they are chosen, each other one also as a button that removes it. */
function showFilters() {
  const outcomes = (state.filters.outcome ?? "").split(",");
  for (const button of $$("#outcome-filter button")) button.setAttribute("aria-pressed", outcomes.includes(button.dataset.outcome));
  for (const select of $$("[data-filter]")) select.value = state.filters[select.dataset.filter] ?? "";
  if (document.activeElement !== $("#search")) $("#search").value = state.filters.q ?? "";
  const byScore = /^[<>]/.test(state.sort);
  $("#sort").value = byScore ? `score ${state.sort.slice(1)}` : state.sort;
  $("#way").hidden = !byScore;
  $("#way").textContent = state.sort[0] === ">" ? "↓ highest" : "↑ lowest";
  const hadFocus = $("#narrowed").contains(document.activeElement);
  $("#narrowed").replaceChildren(...Object.entries(state.filters).filter(([name]) => name !== "q" && name !== "outcome").map(([name, wanted]) => {
    const text = filterText(name, wanted);
    return el("button", { type: "button", "aria-label": `Remove the filter ${text}`, on: { click: () => setFilter(name, "") } }, visible(text), el("span", { "aria-hidden": "true" }, "✕"));
  }));
  if (hadFocus) ($("#narrowed button") ?? list).focus();
  $("#more-filters").classList.toggle("is-set", $$("#more-selects select").some((select) => select.value));
  $("#gallery").setAttribute("aria-pressed", state.gallery);
  $("#clear").hidden = !Object.keys(state.filters).length;
}

// ---- the case that is open ----

/** Show a row; `push` makes an entry of its own in the history, and on a phone the case takes the screen. */
async function openRow(row, push = true, quiet = false) {
  state.row = row;
  state.at = state.order.indexOf(row);
  if (state.at >= 0) state.last = state.at;
  if (state.gallery && !quiet) {
    state.gallery = false;
    layOut();
  }
  if (!quiet) document.body.classList.add("in-case");
  intoSight();
  drawItems();
  if (push) writeHash(anchorOf(row));
  const data = await rowOf(row);
  if (state.row !== row) return;
  showCase(row, data, state.at, state.order.length);
  if (!quiet) announce(`Case ${state.at + 1} of ${state.order.length}, ${data.outcome}`);
}

const choose = (place) => place >= 0 && place < state.order.length && openRow(state.order[place]);

/** Go so many cases on; from a case that the list has not, from the place of the one before it. */
const step = (by) => choose((state.at >= 0 ? state.at : state.last) + by);

function toNextEngine() {
  const all = twins.get(twinKey(state.row)) ?? [];
  if (all.length > 1) openRow(all[(all.indexOf(state.row) + 1) % all.length]);
  else toast("No other engine of this run was asked this case");
}

function toRunBefore() {
  const link = $("#run-before-link");
  if (link) link.click();
  else toast("No run before this one, in the same folder, has this case");
}

function leaveCase() {
  document.body.classList.remove("in-case");
  writeHash();
  list.focus();
}

// ---- the address ----

function writeHash(anchor = null) {
  const filters = new URLSearchParams(state.filters);
  if (state.sort !== "worst") filters.set("sort", state.sort);
  const target = anchor ?? `cases${filters.size ? `?${filters}` : ""}`;
  if (location.hash !== `#${target}`) history.pushState(null, "", `#${target}`);
}

function readHash() {
  const hash = location.hash.slice(1);
  if (hash.startsWith("case=")) return openAnchor(hash);
  if (hash === "cases" || hash.startsWith("cases?")) {
    const given = new URLSearchParams(hash.slice(6));
    const sort = given.get("sort") ?? "";
    state.sort = /^[<>]|^(run|case)$/.test(sort) ? sort : "worst";
    given.delete("sort");
    state.filters = Object.fromEntries([...given].filter(([name, value]) => value && (name === "q" || matcher(name))));
    document.body.classList.remove("in-case");
    showView("cases");
    applyFilters();
    return;
  }
  const isOverview = $("#overview").children.length > 0;
  showView(isOverview ? "overview" : "cases");
  if (!isOverview) applyFilters();
  else if (hash) document.getElementById(hash)?.scrollIntoView();
}

async function openAnchor(anchor) {
  let row = 0;
  while (row < numRows && anchorOf(row) !== anchor) row += 1;
  showView("cases");
  const isHere = row < numRows;
  if (!state.order.length) {
    if (isHere) state.filters = {};
    await applyFilters(isHere ? row : null);
  }
  if (isHere) return openRow(row, false);
  // Links from other pages name the first page of a run.
  const next = $(".pages [aria-current]")?.closest("li").nextElementSibling?.querySelector("a");
  if (next) location.replace(`${next.pathname.split("/").at(-1)}#${anchor}`);
  else toast("This page has no such case");
}

function showView(view) {
  state.view = view;
  $("#overview").hidden = view !== "overview";
  $("#cases").hidden = view !== "cases";
  document.body.classList.toggle("in-cases", view === "cases");
  for (const link of $$("[data-view]")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view === "cases") layOut(true);
  if (view === "cases") scrollTo(0, 0);
}

// ---- keys ----

const KEYS = {
  j: () => step(1), ArrowRight: () => step(1), ArrowDown: () => step(columns),
  k: () => step(-1), ArrowLeft: () => step(-1), ArrowUp: () => step(-columns),
  g: () => toggleGallery(), t: () => toggleLayer("truth"), p: () => toggleLayer("prediction"),
  z: () => $("#case .zoomable")?.click(), d: toggleDifferences, e: toNextEngine, b: toRunBefore,
  c: () => $("#case [data-copy]")?.click(), o: () => { location.hash = "overview"; },
};

function toggleGallery() {
  state.gallery = !state.gallery;
  document.body.classList.remove("in-case");
  showFilters();
  layOut(true);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
  const typing = event.target.closest("input, select, textarea, [contenteditable]");
  if (event.key === "Escape") {
    if (event.target.id === "search" && event.target.value) {
      event.preventDefault();
      setSearch("");
    } else if ($("#more-filters").open) $("#more-filters").open = false;
    else if (typing) event.target.blur();
    else if (document.body.classList.contains("in-case")) leaveCase();
    return;
  }
  if (typing) return;
  if (event.key === "?") return $("#help").showModal();
  if (event.key === "/") {
    event.preventDefault();
    if (state.view !== "cases") {
      writeHash();
      showView("cases");
      applyFilters();
    }
    return $("#search").focus();
  }
  const arrowsElsewhere = event.key.startsWith("Arrow") && event.target.closest("summary, button, a, pre, .scroll") && event.key !== "ArrowLeft" && event.key !== "ArrowRight";
  if (state.view !== "cases" || !(event.key in KEYS) || arrowsElsewhere) return;
  event.preventDefault();
  KEYS[event.key]();
});

let typingTimer = 0;

function setSearch(text) {
  $("#search").value = text;
  if (text.trim()) state.filters.q = text.trim();
  else delete state.filters.q;
  document.body.classList.remove("in-case");
  const filters = new URLSearchParams(state.filters);
  history.replaceState(null, "", `#cases${filters.size ? `?${filters}` : ""}`);
  applyFilters();
}

$("#search").addEventListener("input", () => {
  clearTimeout(typingTimer);
  typingTimer = setTimeout(() => setSearch($("#search").value), 120);
});
$("#filters").addEventListener("submit", (event) => event.preventDefault());
$("#sort").addEventListener("change", () => {
  const chosen = $("#sort").value, name = chosen.slice("score ".length);
  state.sort = chosen.startsWith("score ") ? worstWay(name) + name : chosen;
  state.row = null;
  writeHash();
  applyFilters();
});
$("#way").addEventListener("click", () => {
  state.sort = (state.sort[0] === ">" ? "<" : ">") + state.sort.slice(1);
  state.row = null;
  writeHash();
  applyFilters();
});
$("#gallery").addEventListener("click", toggleGallery);
$("#clear").addEventListener("click", () => {
  state.filters = {};
  $("#search").value = "";
  writeHash();
  applyFilters();
});
$("#help-open").addEventListener("click", () => $("#help").showModal());
list.addEventListener("scroll", drawItems, { passive: true });
new ResizeObserver(() => { if (state.view === "cases") layOut(); }).observe(list);
window.addEventListener("hashchange", readHash);
window.addEventListener("popstate", readHash);

// The worst cases of the overview, with their own pictures, and their own words where one reason has several cases.
for (const link of $$("#overview [data-row]")) {
  const row = Number(link.dataset.row);
  const url = index.pictures[row] ? pictureUrl(`picture-${index.pictures[row][0]}`) : null;
  if (url) link.prepend(el("img", { class: "thumb", src: url, alt: "" }));
  rowOf(row).then((data) => data.problem && $(".why", link.parentElement).replaceChildren(visible(oneLine(data.problem, 160))));
}
buildFilters();
readHash();
