// The changed cases: a list that filters, and the chosen case with both sides. Data: the block "comparisons" and packed details.

const DATA = document.getElementById("comparisons") ? readBlock("comparisons") : { cases: [], sides: [], perBlock: 1 };
const opened = new Map();
const view = { chosen: -1, fitting: [], texts: null };
const MOST_ITEMS = 600;

async function detailOf(place) {
  const block = Math.floor(place / DATA.perBlock);
  if (!opened.has(block)) opened.set(block, openBlock(`details-${block}`).then(JSON.parse));
  return (await opened.get(block))[place % DATA.perBlock];
}

/** Return all details, for a search in texts. */
async function allDetails() {
  return Promise.all(DATA.cases.map((_, place) => detailOf(place)));
}

function scoreChanges(scores, most) {
  return scores.slice(0, most).map(([name, before, after]) => `${name} ${numberText(before)} → ${numberText(after)}`).join(", ") + (scores.length > most ? `, ${scores.length - most} more` : "");
}

// ---- filters ----

function fill(id, values) {
  const select = document.getElementById(id);
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  select.append(...sorted.map(([value, count]) => el("option", { value }, `${oneLine(value, 60)} (${count})`)));
  if (!sorted.length) select.parentElement.hidden = true;
}

const chosenOf = (id) => document.getElementById(id)?.value ?? "";

async function applyFilters() {
  const [comparison, way, test, category, tag] = ["f-comparison", "f-way", "f-test", "f-category", "f-tag"].map(chosenOf);
  const find = chosenOf("f-find").toLowerCase();
  const details = find ? await allDetails() : null;
  const has = (entry, place) =>
    (!comparison || entry.comparison === Number(comparison)) &&
    (!way || entry.way === way || (entry.flipped && way === (entry.outcomes[0] === "pass" ? "failing" : "passing"))) &&
    (!test || `${entry.eval} · ${entry.test}` === test) &&
    (!category || entry.categories.includes(category)) &&
    (!tag || Object.entries(entry.tags).some(([name, value]) => `${name}: ${value}` === tag)) &&
    (!find || entry.id.toLowerCase().includes(find) || details[place].sides.some(({ text }) => text?.toLowerCase().includes(find)));
  view.fitting = DATA.cases.map((_, place) => place).filter((place) => has(DATA.cases[place], place));
  drawList();
  if (!view.fitting.includes(view.chosen)) await choose(view.fitting[0] ?? -1, false);
}

function drawList() {
  $("#f-count").textContent = `${view.fitting.length.toLocaleString("en")} of ${plural(DATA.cases.length, "case")}`;
  $("#case-list").replaceChildren(...view.fitting.slice(0, MOST_ITEMS).map((place) => {
    const entry = DATA.cases[place];
    const item = el("div", { class: "case-item", role: "option", id: `case-${place}`, "data-place": place, "aria-selected": String(place === view.chosen) },
      wayChip(entry), " ", visible(oneLine(entry.id, 120)), el("span", { class: "why" }, visible(scoreChanges(entry.scores, 2))));
    item.addEventListener("click", () => choose(place));
    return item;
  }));
  if (!view.fitting.length) $("#case-list").append(el("p", { class: "muted case-item" }, "No case fits."));
}

function wayChip({ way, flipped, outcomes }) {
  const [mark, kind] = { worse: ["▼", "fail"], better: ["▲", "pass"], mixed: ["◆", "invalid"] }[way];
  return el("span", { class: `chip is-${kind}` }, el("span", { "aria-hidden": "true" }, mark), ` ${flipped ? outcomes.join(" → ") : way}`);
}

// ---- one case ----

async function choose(place, follow = true) {
  view.chosen = place;
  for (const item of $$("#case-list [role=option]")) item.setAttribute("aria-selected", String(Number(item.dataset.place) === place));
  const box = $("#case-detail");
  if (place < 0) return box.replaceChildren();
  const entry = DATA.cases[place], detail = await detailOf(place);
  if (view.chosen !== place) return; // another was chosen meanwhile
  $("#case-list").setAttribute("aria-activedescendant", `case-${place}`);
  if (follow) {
    document.getElementById(`case-${place}`)?.scrollIntoView({ block: "nearest" });
    history.replaceState(null, "", `#case=${place}`);
    announce(`${entry.id}, ${entry.way}`);
  }
  const names = DATA.sides[entry.comparison];
  const [before, after] = detail.sides;
  box.replaceChildren(
    el("h3", {}, visible(entry.id), " ", wayChip(entry)),
    el("p", { class: "muted small" }, visible([`${entry.eval} · ${entry.test}`, detail.group ? `group ${detail.group}` : null, ...Object.entries(entry.tags).map((tag) => tag.join(": "))].filter(Boolean).join(" · "))),
    el("ul", { class: "score-changes" }, entry.scores.map(([name, one, two]) => el("li", { class: "chip" }, visible(`${name} `), el("b", {}, `${numberText(one)} → ${numberText(two)}`)))),
    entry.categories.length ? el("p", { class: "small" }, "changed in ", visible(entry.categories.join(", "))) : "",
    ...photosOf(entry, detail, names),
    textsOf(before, after, names, detail),
    more(detail, entry),
  );
}

function photosOf(entry, detail, names) {
  const urls = entry.pictures.map((number) => pictureUrl(`picture-${number}`)).filter(Boolean);
  const shapes = detail.truth.length + detail.sides.reduce((sum, side) => sum + side.shapes.length, 0);
  if (shapes && urls.length <= 1 && detail.size) {
    const [width, height] = detail.size;
    const scaled = (list) => list.map((shape) => ({ ...shape, points: shape.points.map((share, place) => share * (place % 2 ? height : width)) }));
    const sides = detail.sides.map((side, number) => el("div", {}, el("h4", {}, `${["base", "candidate"][number]}: ${side.shapes.length} predicted, ${detail.truth.length} in the reference`),
      photo({ url: urls[0] ?? null, width, height, truth: scaled(detail.truth), predictions: scaled(side.shapes), labels: true, name: `${names[number]}, ${entry.id}` })));
    return [el("div", { class: "pair" }, sides),
      el("p", { class: "small muted" }, shapeKey("truth", "reference"), " ", shapeKey("prediction", "prediction"), urls.length ? "" : " The image itself is gone, has changed, or was not recorded.")];
  }
  if (!urls.length) return entry.pictures.length ? [el("p", { class: "muted small" }, "The image is gone or has changed.")] : [];
  return [el("div", { class: "plain-photos" }, urls.map((url, number) => el("img", { src: url, alt: `image ${number + 1} of ${entry.id}`, loading: "lazy" })))];
}

function shapeKey(kind, text) {
  return el("span", { class: "key" }, svg("svg", { viewBox: "0 0 32 12", "aria-hidden": "true" }, svg("line", { class: `shape ${kind}`, x1: 1, x2: 31, y1: 6, y2: 6 })), ` ${text}`);
}

/** Return both answers, what differs between them marked, and the reference beside them. */
function textsOf(before, after, names, { links, reference }) {
  const both = before.text !== null && after.text !== null;
  const pres = both ? diffNodes(before.text, after.text) : [before, after].map(({ text }) => el("pre", { class: "text" }, text === null ? el("span", { class: "muted" }, "a baseline keeps no texts") : visible(text)));
  const wanted = reference === null ? [] : el("div", { class: "layer-truth" }, el("h4", {}, "reference"),
    el("pre", { class: "text" }, visible(typeof reference === "string" ? reference : JSON.stringify(reference, null, 1))));
  return el("div", { class: "pair texts" }, [before, after].map((side, number) => el("div", {},
    el("h4", {}, number ? "candidate " : "base ", visible(names[number]), links[number] ? [" ", el("a", { href: links[number] }, "in its report")] : ""),
    el("p", { class: "small" }, outcomeChip(side.outcome), " ", el("span", { class: "muted" }, [side.finish, side.tokens === null ? null : `${side.tokens} tokens`].filter(Boolean).join(", "))),
    pres[number],
    side.cut ? el("p", { class: "muted small" }, `${side.cut.toLocaleString("en")} characters more in samples.jsonl`) : "",
    side.problem ? el("p", { class: "small" }, visible(side.problem)) : "",
  )), wanted);
}

function more(detail, entry) {
  const nodeids = detail.sides.map(({ nodeid }) => nodeid);
  const parts = [];
  if (detail.prompt) parts.push(el("h4", {}, "Prompt"), el("pre", { class: "text" }, visible(detail.prompt)));
  for (const [number, nodeid] of nodeids.entries()) {
    if (nodeid) parts.push(el("h4", {}, `Test id, ${["base", "candidate"][number]}`), el("div", { class: "command" }, el("code", {}, shellQuoted(nodeid)), el("button", { type: "button", "data-copy": true }, "Copy")));
  }
  return parts.length ? el("details", {}, el("summary", {}, "Prompt and test ids"), parts) : "";
}

// ---- start ----

function move(step) {
  const place = view.fitting.indexOf(view.chosen) + step;
  if (place >= 0 && place < view.fitting.length) choose(view.fitting[place]);
}

/** Show the case that the page's address names. */
async function openLinked() {
  const [name, test, id] = addressedCase();
  const numbered = /^#case=(\d+)$/.exec(location.hash);
  const place = numbered ? Number(numbered[1]) : DATA.cases.findIndex((entry) => entry.eval === name && entry.test === test && entry.id === id);
  if (place in DATA.cases) {
    await choose(place);
    $("#cases").scrollIntoView();
  } else if (id !== undefined) toast("This case did not change");
}

async function startCases() {
  fill("f-test", DATA.cases.map((entry) => `${entry.eval} · ${entry.test}`));
  fill("f-category", DATA.cases.flatMap(({ categories }) => categories));
  fill("f-tag", DATA.cases.flatMap(({ tags }) => Object.entries(tags).map((tag) => tag.join(": "))));
  for (const id of ["f-comparison", "f-way", "f-test", "f-category", "f-tag"]) document.getElementById(id)?.addEventListener("change", applyFilters);
  let waiting;
  $("#f-find").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(applyFilters, 150); });
  for (const link of $$("[data-way]")) {
    link.addEventListener("click", () => {
      $("#f-way").value = link.dataset.way;
      if ($("#f-comparison")) $("#f-comparison").value = link.dataset.comparison;
      applyFilters();
    });
  }
  await applyFilters();
  await openLinked();
  addEventListener("hashchange", openLinked);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
    const inList = event.target.closest?.("#case-list");
    if (event.key === "j" || (inList && event.key === "ArrowDown")) { move(1); event.preventDefault(); }
    else if (event.key === "k" || (inList && event.key === "ArrowUp")) { move(-1); event.preventDefault(); }
    else if (event.key === "t") $("#case-detail").classList.toggle("hide-truth");
    else if (event.key === "p") $("#case-detail").classList.toggle("hide-prediction");
    else if (event.key === "/") { $("#f-find").focus(); event.preventDefault(); }
  });
}

if (DATA.cases.length) startCases();
