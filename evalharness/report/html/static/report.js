// report.html: overview and cases, the case that is open, and the page's address, which names all of it.

const index = readBlock("cases-index");
const rerun = readBlock("rerun");
const names = index.names;
const numRows = index.case.length;
const SEVERITY = ["error", "fail", "invalid", "miss", "other", "skip", "pass"];
const ITEM = { list: { height: 76, columns: 1 }, gallery: { height: 248, width: 210 } };
const MOST_CHARS = 60000;

const state = { filters: {}, sort: "", order: [], at: -1, gallery: false, view: "overview" };

const anchorOf = (row) =>
  `case=${encodeURIComponent(`${names.evals[index.eval[row]]}::${names.tests[index.test[row]]}[${names.engines[index.engine[row]]}-${index.case[row]}]`)}`;
const outcomeOf = (row) => names.outcomes[index.outcome[row]];

// ---- rows, opened block by block ----

const opened = new Map();

function rowsOfBlock(block) {
  if (!opened.has(block)) {
    if (opened.size > 40) opened.delete(opened.keys().next().value);
    opened.set(block, openBlock(`rows-${block}`).then((text) => text.split("\n")));
  }
  return opened.get(block);
}

function blockOf(row) {
  let low = 0, high = index.blocks.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (index.blocks[middle] <= row) low = middle;
    else high = middle - 1;
  }
  return low;
}

async function rowOf(row) {
  const block = blockOf(row);
  return JSON.parse((await rowsOfBlock(block))[row - index.blocks[block]]);
}

const generationsOf = (row) => (row.generations?.length ? row.generations : [row.generation]).filter(Boolean);

// ---- filters ----

const FILTERS = {
  eval: (row, wanted) => names.evals[index.eval[row]] === wanted,
  test: (row, wanted) => names.tests[index.test[row]] === wanted,
  engine: (row, wanted) => names.engines[index.engine[row]] === wanted,
  checkpoint: (row, wanted) => names.checkpoints[index.engine[row]] === wanted,
  outcome: (row, wanted) => wanted.split(",").includes(outcomeOf(row)),
  problem: (row, wanted) => String(index.problem[row]) === wanted,
};

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
  const parts = [row.nodeid, row.case_id, row.group, row.problem, ...Object.values(row.tags ?? {}), referenceOf(row), row.details];
  for (const made of generationsOf(row)) parts.push(made.text, made.finish_reason);
  return parts.filter((part) => part !== null && part !== undefined).map((part) => (typeof part === "string" ? part : JSON.stringify(part))).join("\n").toLowerCase();
}

let applying = 0;

async function applyFilters() {
  const turn = (applying += 1);
  const kept = state.order[state.at];
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
  state.at = rows.indexOf(kept);
  $("#matches").textContent = rows.length === numRows ? `${numRows.toLocaleString("en")} cases` : `${rows.length.toLocaleString("en")} of ${numRows.toLocaleString("en")} cases`;
  showFilters();
  layOut(true);
}

function sortRows(rows) {
  const [by, name] = [state.sort.slice(0, 1), state.sort.slice(1)];
  if (state.sort === "outcome") rows.sort((a, b) => SEVERITY.indexOf(outcomeOf(a)) - SEVERITY.indexOf(outcomeOf(b)) || a - b);
  else if (state.sort === "case") rows.sort((a, b) => index.case[a].localeCompare(index.case[b], "en", { numeric: true }) || a - b);
  else if (by === "<" || by === ">") {
    const column = index.scores[name] ?? [];
    const sign = by === "<" ? 1 : -1;
    rows.sort((a, b) => (column[a] ?? null) === null ? ((column[b] ?? null) === null ? a - b : 1) : (column[b] ?? null) === null ? -1 : (column[a] - column[b]) * sign || a - b);
  }
}

function setFilter(name, value) {
  if (value) state.filters[name] = value;
  else delete state.filters[name];
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
      el("span", { "aria-hidden": "true" }, MARKS[name]), `${name} ${counts[name].toLocaleString("en")}`));
  $("#outcome-filter").append(...buttons);
  const used = (codes, all) => [...new Set(codes)].map((code) => all[code]);
  const selects = [];
  const evals = used(index.eval, names.evals), engines = used(index.engine, names.engines), tests = used(index.test, names.tests);
  if (evals.length > 1) selects.push(choice("eval", "Eval", evals));
  if (tests.length > 1) selects.push(choice("test", "Test", tests));
  const checkpoints = [...new Set(used(index.engine, names.checkpoints))];
  if (checkpoints.length > 1 && checkpoints.length < engines.length) selects.push(choice("checkpoint", "Checkpoint", checkpoints));
  if (engines.length > 1) selects.push(choice("engine", "Engine", engines));
  for (const [tag, column] of Object.entries(index.tags)) {
    const values = [...new Set(column)].filter((code) => code !== null).map((code) => names.tag_values[code]);
    if (values.length > 1 && values.length <= 200) selects.push(choice(`tag.${tag}`, tag, values.sort((a, b) => a.localeCompare(b, "en", { numeric: true }))));
  }
  $("#selects").append(...selects);
  const scores = Object.keys(index.scores).filter((name) => !name.startsWith("num_"));
  $("#sort").append(el("option", { value: "" }, "as run"), el("option", { value: "outcome" }, "worst outcome first"), el("option", { value: "case" }, "case id"),
    ...scores.flatMap((name) => [el("option", { value: `<${name}` }, `${oneLine(name, 40)}, lowest first`), el("option", { value: `>${name}` }, `${oneLine(name, 40)}, highest first`)]));
}

function toggleOutcome(name) {
  const now = new Set((state.filters.outcome ?? "").split(",").filter(Boolean));
  if (!now.delete(name)) now.add(name);
  setFilter("outcome", [...now].join(","));
}

function showFilters() {
  const outcomes = (state.filters.outcome ?? "").split(",");
  for (const button of $$("#outcome-filter button")) button.setAttribute("aria-pressed", outcomes.includes(button.dataset.outcome));
  for (const select of $$("[data-filter]")) select.value = state.filters[select.dataset.filter] ?? "";
  if (document.activeElement !== $("#search")) $("#search").value = state.filters.q ?? "";
  $("#sort").value = state.sort;
  $("#gallery").setAttribute("aria-pressed", state.gallery);
  $("#clear").hidden = !Object.keys(state.filters).length;
}

// ---- the list: only what is in sight is there ----

const list = $("#case-list");
const shown = new Map();
let columns = 1, width = 0, height = ITEM.list.height;

function layOut(toSelected = false) {
  $("#cases").classList.toggle("is-gallery", state.gallery);
  columns = state.gallery ? Math.max(1, Math.floor(list.clientWidth / ITEM.gallery.width)) : 1;
  width = Math.floor(list.clientWidth / columns);
  height = state.gallery ? ITEM.gallery.height : ITEM.list.height;
  $("#spacer").style.height = `${Math.ceil(state.order.length / columns) * height}px`;
  for (const item of shown.values()) item.remove();
  shown.clear();
  $(".empty", list)?.remove();
  if (!state.order.length) list.append(el("p", { class: "empty" }, numRows ? "No case fits these filters." : "No case was recorded."));
  if (toSelected && state.at >= 0) intoSight();
  drawItems();
}

function intoSight() {
  const top = Math.floor(state.at / columns) * height;
  if (top < list.scrollTop || top + height > list.scrollTop + list.clientHeight) list.scrollTop = Math.max(0, top - list.clientHeight / 3);
}

function drawItems() {
  const first = Math.max(0, Math.floor(list.scrollTop / height) - 2) * columns;
  const last = Math.min(state.order.length, (Math.ceil((list.scrollTop + list.clientHeight) / height) + 2) * columns);
  for (const [place, item] of shown) {
    if (place < first || place >= last) {
      item.remove();
      shown.delete(place);
    }
  }
  for (let place = first; place < last; place += 1) {
    if (shown.has(place)) continue;
    const item = itemOf(place);
    shown.set(place, item);
    list.append(item);
  }
  for (const [place, item] of shown) item.setAttribute("aria-selected", place === state.at);
  const selected = shown.get(state.at);
  if (selected) list.setAttribute("aria-activedescendant", selected.id);
  else list.removeAttribute("aria-activedescendant");
}

function itemOf(place) {
  const row = state.order[place];
  const pictures = index.pictures[row];
  const url = pictures ? pictureUrl(`picture-${pictures[0]}`) : null;
  const rest = el("span", { class: "rest" }, restOf(row));
  const item = el("div", { class: `item${url ? "" : " no-picture"}`, role: "option", id: `item-${place}`, "aria-setsize": state.order.length, "aria-posinset": place + 1, "aria-selected": "false", on: { click: () => choose(place) } },
    url && el("img", { class: "thumb", src: url, alt: "", loading: "lazy" }),
    el("span", { class: "name", title: index.case[row] }, el("bdi", {}, visible(index.case[row]))),
    el("span", { class: "line" }, outcomeChip(outcomeOf(row)), rest));
  item.style.transform = `translate(${(place % columns) * width}px, ${Math.floor(place / columns) * height}px)`;
  if (state.gallery) {
    item.style.width = `${width}px`;
    if (url) rowOf(row).then((data) => drawOver(item, data, url));
  }
  return item;
}

function drawOver(item, data, url) {
  const shapes = shapesOf(data);
  const thumb = $(".thumb", item);
  if (shapes && thumb) thumb.replaceWith(photo({ ...shapes, url, name: data.case_id }));
}

function restOf(row) {
  const parts = [];
  if (names.evals.length > 1) parts.push(names.evals[index.eval[row]]);
  if (names.engines.length > 1) parts.push(names.engines[index.engine[row]]);
  const shownScores = state.sort.match(/^[<>]/) ? [state.sort.slice(1)] : Object.keys(index.scores).filter((name) => !name.startsWith("num_")).slice(0, 8);
  for (const name of shownScores) {
    const value = index.scores[name]?.[row];
    if (value !== null && value !== undefined && (value !== 1 || shownScores.length === 1) && parts.length < 4) parts.push(`${name} ${numberText(value)}`);
  }
  return parts.join(" · ");
}

// ---- one case ----

/** Show the case at a place of the list; `push` makes an entry of its own in the history. */
async function choose(place, push = true) {
  if (place < 0 || place >= state.order.length) return;
  state.at = place;
  if (state.gallery) {
    state.gallery = false;
    layOut();
  }
  intoSight();
  drawItems();
  const row = state.order[place];
  if (push) writeHash(anchorOf(row));
  document.body.classList.add("in-case");
  const data = await rowOf(row);
  if (state.order[state.at] === row) showCase(row, data);
}

function showCase(row, data) {
  const article = $("#case");
  const place = state.at;
  const step = (by, text, key) => el("button", { type: "button", disabled: place + by < 0 || place + by >= state.order.length, title: key, on: { click: () => choose(state.at + by) } }, text);
  article.replaceChildren(...[
    el("div", { class: "case-top" },
      el("div", {},
        el("h3", { class: "title", id: "case-title" }, visible(data.case_id ?? "")),
        el("ul", { class: "chips" }, chipsOf(data).map((chip) => el("li", {}, chip)))),
      el("div", { class: "steps" },
        el("button", { type: "button", class: "back", on: { click: leaveCase } }, "List"),
        step(-1, "←", "previous (k)"), step(1, "→", "next (j)"))),
    data.problem ? el("pre", { class: "problem text" }, longText(data.problem)) : null,
    el("div", { class: "columns" }, photosOf(row, data), scoresOf(data)),
    ...objectsOf(data),
    ...answersOf(data),
    ...stepsOf(data),
    ...detailsOf(data),
    ...factsOf(data),
  ].filter(Boolean));
  article.setAttribute("aria-label", `Case ${place + 1} of ${state.order.length}: ${data.case_id}`);
  article.scrollTop = 0;
  announce(`Case ${place + 1} of ${state.order.length}, ${data.outcome}`);
}

function leaveCase() {
  document.body.classList.remove("in-case");
  writeHash();
  list.focus();
}

const chip = (text, kind = "") => el("span", { class: `chip ${kind}` }, visible(oneLine(text, 120)));

function chipsOf(data) {
  const chips = [outcomeChip(data.outcome), chip(`${data.eval} · ${data.test}`), chip(data.engine ?? "")];
  for (const [name, value] of Object.entries(data.tags ?? {})) chips.push(chip(`${name}: ${value}`));
  for (const made of generationsOf(data)) {
    if (made.finish_reason === "length") chips.push(chip("hit length cap", "is-miss"));
    if (made.fallback) chips.push(chip("by the fallback backend", "is-miss"));
    if (!made.text?.trim()) chips.push(chip("empty answer", "is-miss"));
  }
  return chips;
}

/** Return text as nodes; of a very long one the beginning, and a button for the rest. */
function longText(text) {
  if (text.length <= MOST_CHARS) return visible(text);
  const parts = el("span", {}, visible(text.slice(0, MOST_CHARS)));
  const more = el("button", { type: "button", on: { click: () => parts.replaceChildren(visible(text)) } }, `Show all ${text.length.toLocaleString("en")} characters`);
  parts.append(el("br"), more);
  return parts;
}

function scoresOf(data) {
  const scores = Object.entries(data.scores ?? {});
  if (!scores.length) return null;
  const lines = (entries) => el("dl", { class: "score-list" }, entries.map(([name, value]) => el("div", {}, el("dt", { title: name }, visible(name)), el("dd", {}, numberText(value)))));
  const counts = scores.filter(([name]) => name.startsWith("num_")), others = scores.filter(([name]) => !name.startsWith("num_"));
  return el("div", {}, el("h4", {}, "Scores"), lines(others),
    counts.length ? el("details", {}, el("summary", { class: "small" }, `${counts.length} counts`), lines(counts)) : null);
}

// ---- pictures ----

/** Return truth and predictions in pixels, where the details have geometry; see docs/reports.md. */
function shapesOf(data) {
  const details = data.details ?? {};
  const { width, height: tall } = details.image ?? {};
  if (!(width > 0 && tall > 0) || !(Array.isArray(details.truth) || Array.isArray(details.predictions))) return null;
  const inPixels = (one) => Array.isArray(one.pixels) ? one.pixels : (one.points ?? []).map((value, place) => (value * (place % 2 ? tall : width)) / 1000);
  const usable = (points) => points.length >= 4 && points.length % 2 === 0 && points.every(Number.isFinite);
  const shapes = (objects) => (objects ?? []).map((one, place) => ({ kind: one.type, points: inPixels(one), label: `${place + 1} ${categoryOf(one.desc)}` })).filter((one) => usable(one.points) && (one.kind !== "bbox_2d" || one.points.length === 4));
  return { width, height: tall, truth: shapes(details.truth), predictions: shapes(details.predictions) };
}

/** Return the first value of a description `key=value,key=value`, which names the category; else its beginning. */
function categoryOf(desc) {
  const first = String(desc ?? "").split(",")[0];
  return first.includes("=") ? first.slice(first.indexOf("=") + 1) : first;
}

/** Return what is recorded of the row's photos, each file once, those of its steps first: in the order of its pictures. */
function imagesOf(data) {
  const made = [...(data.steps ?? []).flat(), ...generationsOf(data)].filter(Boolean);
  const images = made.flatMap((one) => one.images ?? []).filter((image) => typeof image?.path === "string");
  return [...new Map(images.map((image) => [`${image.path} ${image.file_sha256 ?? image.sha256}`, image])).values()];
}

function photosOf(row, data) {
  const shapes = shapesOf(data);
  const urls = (index.pictures[row] ?? []).map((number) => pictureUrl(`picture-${number}`));
  const images = imagesOf(data);
  if (!urls.length && !shapes) {
    return generationsOf(data)[0]?.images?.length ? el("p", { class: "muted small" }, "The image is not shown: its path was not recorded.") : null;
  }
  const photos = urls.length ? urls : [null];
  const nodes = photos.map((url, place) => {
    const size = place === 0 && shapes ? shapes : { width: images[place]?.width ?? 4, height: images[place]?.height ?? 3 };
    if (!url && !(place === 0 && shapes)) return el("p", { class: "muted small" }, "This image is not shown: it is gone or has changed.");
    if (photos.length === 1 || (place === 0 && shapes)) return photo({ ...size, url, labels: true, name: data.case_id });
    return el("img", { src: url, alt: `image ${place + 1}`, loading: "lazy" });
  });
  const box = el("div", {}, el("div", { class: `photos${nodes.length === 1 ? " is-one" : ""}` }, nodes));
  if (shapes) box.append(photoTools(box, shapes));
  if (shapes && !urls[0]) box.append(el("p", { class: "muted small" }, "The image is not shown: it is gone or has changed."));
  return box;
}

function photoTools(box, shapes) {
  const toggle = (layer, text, count, dash) => {
    const button = el("button", { type: "button", "aria-pressed": String(!hiddenLayers.has(layer)), "data-layer": layer },
      el("span", { class: "key" }, svg("svg", { viewBox: "0 0 32 12", "aria-hidden": "true" }, svg("line", { class: `shape ${dash}`, x1: 1, x2: 31, y1: 6, y2: 6 })), `${text} ${count}`));
    button.addEventListener("click", () => toggleLayer(layer));
    return button;
  };
  for (const layer of hiddenLayers) box.classList.add(`hide-${layer}`);
  box.dataset.photos = "";
  return el("div", { class: "photo-tools", role: "group", "aria-label": "What is drawn" },
    toggle("truth", "reference", shapes.truth.length, "truth"), toggle("prediction", "prediction", shapes.predictions.length, "prediction"));
}

const hiddenLayers = new Set();

function toggleLayer(layer) {
  if (!hiddenLayers.delete(layer)) hiddenLayers.add(layer);
  for (const box of $$("[data-photos]")) box.classList.toggle(`hide-${layer}`, hiddenLayers.has(layer));
  for (const button of $$(`[data-layer="${layer}"]`)) button.setAttribute("aria-pressed", !hiddenLayers.has(layer));
}

/** Return the table of reference and predicted objects, each pair on a line, what is missed or wrong first. */
function objectsOf(data) {
  const { truth, predictions, pairs } = data.details ?? {};
  if (!Array.isArray(truth) || !Array.isArray(predictions) || !truth.length + !predictions.length === 2) return [];
  const matched = Array.isArray(pairs) ? pairs : pairs?.category ?? pairs?.localization ?? [];
  const lines = [];
  const taken = [new Set(matched.map(([one]) => one)), new Set(matched.map(([, one]) => one))];
  const cell = (objects, place) => place === null ? el("td", { class: "muted" }, "–") : el("td", {}, `${place + 1} `, visible(String(objects[place]?.desc ?? "")));
  const line = (state_, kind, one, other, iou) => el("tr", {}, el("td", {}, chip(state_, kind)), cell(truth, one), cell(predictions, other), el("td", { class: "num" }, iou === null ? "" : numberText(iou)));
  truth.forEach((_, place) => taken[0].has(place) || lines.push(line("missed", "is-miss", place, null, null)));
  predictions.forEach((_, place) => taken[1].has(place) || lines.push(line("wrong", "is-fail", null, place, null)));
  for (const [one, other, iou] of matched) {
    const row = line("hit", "is-pass", one, other, iou ?? null);
    if (truth[one]?.desc !== predictions[other]?.desc) markDifference(row, String(truth[one]?.desc ?? ""), String(predictions[other]?.desc ?? ""));
    lines.push(row);
  }
  const table = el("table", {}, el("thead", {}, el("tr", {}, ["", "reference", "prediction"].map((text) => el("th", { scope: "col" }, text)), el("th", { scope: "col", class: "num" }, "IoU"))), el("tbody", {}, lines));
  return [el("h4", {}, "Objects"), el("div", { class: "scroll" }, table)];
}

function markDifference(row, before, after) {
  const [left, right] = diffNodes(before, after);
  row.cells[1].replaceChildren(row.cells[1].firstChild, ...left.childNodes);
  row.cells[2].replaceChildren(row.cells[2].firstChild, ...right.childNodes);
}

// ---- texts ----

function referenceOf(data) {
  const found = data.details?.reference ?? data.reference;
  return found === undefined ? null : found;
}

/** Return text or data as text to compare: JSON laid out, its keys in order. */
function comparable(value) {
  let data = value;
  if (typeof value === "string") {
    if (!/^\s*[[{]/.test(value)) return value;
    try {
      data = JSON.parse(value);
    } catch {
      return value;
    }
  }
  const ordered = (one) => Array.isArray(one) ? one.map(ordered) : one && typeof one === "object" ? Object.fromEntries(Object.keys(one).sort().map((key) => [key, ordered(one[key])])) : one;
  return JSON.stringify(ordered(data), null, 1);
}

function answersOf(data) {
  const made = generationsOf(data);
  return made.flatMap((generation, place) => {
    const title = made.length > 1 ? `Answer ${place + 1} of ${made.length}` : "Answer";
    return [el("div", { class: "generation" }, el("h4", {}, title), answerBody(data, generation, place, made.length), ...sourcesOf(generation))];
  });
}

function answerBody(data, generation, place, many) {
  const reference = referenceOf(data);
  const parsed = many > 1 ? undefined : data.details?.parsed ?? data.details?.summary;
  const text = generation.text ?? "";
  if (reference === null) return el("pre", { class: "text" }, text ? longText(text) : el("span", { class: "muted" }, "(empty)"));
  const said = comparable(parsed ?? text), wanted = comparable(reference);
  const side = (name, content) => el("div", {}, el("span", { class: "muted small" }, name), content);
  const plain = (content) => el("pre", { class: "text" }, longText(content));
  const body = el("div", {});
  const label = parsed === undefined ? "answer" : "answer, as it was read";
  if (said === wanted) {
    body.append(el("p", { class: "small" }, el("span", { class: "chip is-pass" }, "✓ as the reference")), plain(said));
  } else if (isAlike(said, wanted)) {
    const [left, right] = diffNodes(wanted, said);
    body.append(el("div", { class: "sides" }, side("reference", left), side(label, right)));
  } else {
    body.append(el("div", { class: "sides" }, side("reference", plain(wanted)), side(label, said ? plain(said) : el("pre", { class: "text muted" }, "(empty)"))));
  }
  if (parsed !== undefined) body.append(el("details", {}, el("summary", { class: "small" }, "Text"), plain(text)));
  return body;
}

/** Whether marking differences tells more than it hides. */
function isAlike(a, b) {
  if (Math.max(a.length, b.length) > 40000) return false;
  const same = diff(a, b).reduce((sum, [kind, text]) => sum + (kind === "same" ? text.length : 0), 0);
  return same >= 0.25 * Math.max(a.length, b.length, 1);
}

function sourcesOf(generation) {
  const part = (name, text) => typeof text === "string" && text ? el("details", {}, el("summary", { class: "small" }, name), el("pre", { class: "text" }, longText(text))) : null;
  const counts = [["prompt tokens", generation.num_prompt_tokens], ["completion tokens", generation.num_completion_tokens], ["finish", generation.finish_reason], ["stop", generation.stop_reason], ["seed", generation.seed]];
  return [
    el("p", { class: "muted small" }, counts.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => `${name} ${value}`).join(" · ")),
    part("Raw text", generation.raw_text),
    part("Prompt", generation.prompt_text),
    generation.fallback ? el("p", { class: "small" }, visible(`Fallback: ${generation.fallback}`)) : null,
    generation.ignored_options?.length ? el("p", { class: "small" }, visible(`Options left out: ${generation.ignored_options.join(", ")}`)) : null,
  ].filter(Boolean);
}

function stepsOf(data) {
  if (!Array.isArray(data.steps) || !data.steps.length) return [];
  return [el("h4", {}, "Steps before it"), ...data.steps.map((step, place) =>
    el("details", {}, el("summary", {}, `Step ${place + 1}: ${step.length} ${step.length === 1 ? "request" : "requests"}`),
      step.map((made) => made ? el("div", { class: "generation" }, el("pre", { class: "text" }, longText(made.text ?? "")), ...sourcesOf(made)) : el("p", { class: "muted" }, "no answer"))))];
}

function detailsOf(data) {
  if (!data.details) return [];
  const node = el("details", {}, el("summary", {}, "Details, as the eval recorded them"));
  node.addEventListener("toggle", () => {
    if (node.open && node.children.length === 1) node.append(el("pre", { class: "text" }, longText(JSON.stringify(data.details, null, 1))));
  });
  return [node];
}

function commandOf(data) {
  const end = rerun[data.engine];
  return `pytest ${shellQuoted(data.nodeid ?? "")}${end ? ` ${end}` : ""}`;
}

function factsOf(data) {
  const pairs = [["node id", data.nodeid], ["group", data.group], ["checkpoint", data.checkpoint], ["backend", data.backend], ["worker", data.worker],
    ["started", data.started_at], ["weights", generationsOf(data)[0]?.weight_version], ["prompt SHA-256", data.prompt_sha256]];
  const options = JSON.stringify(data.options ?? {}, null, 1);
  return [
    el("h4", {}, "Run this case again"),
    el("div", { class: "command" }, el("code", { id: "case-command" }, visible(commandOf(data))), el("button", { type: "button", "data-copy": commandOf(data) }, "Copy")),
    el("details", {}, el("summary", {}, "Facts"),
      el("dl", { class: "pairs" }, pairs.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, visible(String(value)))]), el("dt", {}, "options"), el("dd", {}, el("pre", { class: "text" }, visible(options))))),
  ];
}

// ---- the address ----

function writeHash(anchor = null) {
  const filters = new URLSearchParams(state.filters);
  if (state.sort) filters.set("sort", state.sort);
  const target = anchor ?? `cases${filters.size ? `?${filters}` : ""}`;
  if (location.hash !== `#${target}`) history.pushState(null, "", `#${target}`);
}

function readHash() {
  const hash = location.hash.slice(1);
  if (hash.startsWith("case=")) return openAnchor(hash);
  if (hash === "cases" || hash.startsWith("cases?")) {
    const given = new URLSearchParams(hash.slice(6));
    state.sort = given.get("sort") ?? "";
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
  if (state.order.indexOf(row) < 0) {
    if (row < numRows) state.filters = {};
    await applyFilters();
  }
  if (row < numRows) await choose(state.order.indexOf(row), false);
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
}

// ---- keys ----

const KEYS = {
  j: () => choose(state.at + 1), ArrowRight: () => choose(state.at + 1), ArrowDown: () => choose(state.at + columns),
  k: () => choose(state.at - 1), ArrowLeft: () => choose(state.at - 1), ArrowUp: () => choose(state.at - columns),
  g: () => toggleGallery(), t: () => toggleLayer("truth"), p: () => toggleLayer("prediction"),
  c: () => $("#case [data-copy]")?.click(), o: () => { location.hash = "overview"; },
};

function toggleGallery() {
  state.gallery = !state.gallery;
  document.body.classList.remove("in-case");
  showFilters();
  layOut(true);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("#help").open) return;
  const typing = event.target.closest("input, select, textarea, [contenteditable]");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
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
$("#search").addEventListener("input", () => {
  clearTimeout(typingTimer);
  typingTimer = setTimeout(() => {
    state.filters.q = $("#search").value.trim();
    if (!state.filters.q) delete state.filters.q;
    document.body.classList.remove("in-case");
    const filters = new URLSearchParams(state.filters);
    history.replaceState(null, "", `#cases${filters.size ? `?${filters}` : ""}`);
    applyFilters();
  }, 120);
});
$("#filters").addEventListener("submit", (event) => event.preventDefault());
$("#sort").addEventListener("change", () => {
  state.sort = $("#sort").value;
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
buildFilters();
readHash();
