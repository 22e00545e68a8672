// Curves of metrics by checkpoint, and the grid of cases. Data: the JSON block "timeline" and a packed block per track and test.

const TRACKS = readBlock("timeline");
const W = 260, H = 120, LEFT = 26, RIGHT = 10, TOP = 10, BOTTOM = 18;
const MOST_CHARTS = 24, ROWS_AT_ONCE = 200;
const state = { track: 0, spacing: "even", test: 0, metric: null, filter: "changed", find: "", shown: ROWS_AT_ONCE, row: -1, grid: null };

const track = () => TRACKS[state.track];

// ---- charts ----

/** Return where each checkpoint stands, 0 to 1. */
function places(points, spacing) {
  const even = points.map((_, place) => (points.length > 1 ? place / (points.length - 1) : 0.5));
  if (spacing === "even" || !track().byStep || points.length < 2) return even;
  const steps = points.map(({ step }) => (spacing === "log" ? Math.log10(Math.max(step, 1)) : step));
  const first = steps[0], last = steps.at(-1);
  return last > first ? steps.map((step) => (step - first) / (last - first)) : even;
}

function scale(curve) {
  const ends = curve.points.flatMap(([, mean, low, high]) => [mean, low ?? mean, high ?? mean]);
  if (ends.every((end) => end >= 0 && end <= 1)) return [0, 1];
  const low = Math.min(...ends, 0), high = Math.max(...ends);
  return [low, high > low ? high : low + 1];
}

function pointName({ name, step }) {
  return step === null || name.includes(String(step)) ? name : `${name} (step ${step.toLocaleString("en")})`;
}

function sentence(curve, [place, mean, low, high, n]) {
  const interval = low === null ? "" : `, ${numberText(low)} to ${numberText(high)}`;
  const best = place === curve.best ? "; best" : curve.alike.includes(place) ? "; not significantly worse than the best" : "";
  const other = track().points[place].other ? "; was asked differently" : "";
  return `${pointName(track().points[place])}: ${numberText(mean)}${interval}, n=${n.toLocaleString("en")}${best}${other}`;
}

/** Return how far the curve falls from its best to any later point. */
function loss(curve) {
  const sign = curve.way === "lower" ? -1 : 1;
  let best = -Infinity, fall = 0;
  for (const [, mean] of curve.points) {
    best = Math.max(best, sign * mean);
    fall = Math.max(fall, best - sign * mean);
  }
  return curve.way === "none" ? 0 : fall;
}

function chart(curve, title) {
  const at = places(track().points, state.spacing);
  const [low, high] = scale(curve);
  const x = (place) => LEFT + at[place] * (W - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (value - low) / (high - low)) * (H - TOP - BOTTOM);
  const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title}. ${curve.points.map((point) => sentence(curve, point)).join(". ")}` });
  for (const value of [low, (low + high) / 2, high]) {
    picture.append(svg("line", { class: "rule", x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value) }));
    picture.append(svg("text", { class: "tick", x: LEFT - 4, y: y(value) + 3, "text-anchor": "end" }, tickText(value)));
  }
  const banded = curve.points.filter(([, , bottom]) => bottom !== null);
  if (banded.length > 1) {
    const above = banded.map(([place, , , top]) => `${x(place)},${y(top)}`), below = banded.map(([place, , bottom]) => `${x(place)},${y(bottom)}`);
    picture.append(svg("polygon", { class: "band", points: [...above, ...below.reverse()].join(" ") }));
  } else for (const [place, , bottom, top] of banded) picture.append(svg("rect", { class: "band", x: x(place) - 4, width: 8, y: y(top), height: Math.max(1, y(bottom) - y(top)) }));
  picture.append(svg("polyline", { class: "curve", points: curve.points.map(([place, mean]) => `${x(place)},${y(mean)}`).join(" ") }));
  for (const [place, mean] of curve.points) {
    const kind = track().points[place].other ? " is-other" : curve.alike.includes(place) ? " is-hollow" : "";
    picture.append(svg("circle", { class: `dot${kind}`, cx: x(place), cy: y(mean), r: 3 }));
    if (place === curve.best) picture.append(svg("circle", { class: "ring", cx: x(place), cy: y(mean), r: 6 }));
  }
  for (const [place, anchor] of track().points.length > 1 ? [[0, "start"], [track().points.length - 1, "end"]] : [[0, "middle"]]) {
    const { name, step } = track().points[place];
    const text = track().byStep ? step.toLocaleString("en") : oneLine(name, 16);
    picture.append(svg("text", { class: "tick", x: x(place), y: H - 4, "text-anchor": anchor }, text));
  }
  const guide = svg("line", { class: "guide", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
  picture.append(guide);
  const note = el("p", { class: "note" }, sentence(curve, curve.points.at(-1)));
  const show = (event) => {
    const box = picture.getBoundingClientRect();
    const spot = ((event.clientX - box.left) / box.width) * W;
    const nearest = curve.points.reduce((a, b) => (Math.abs(x(b[0]) - spot) < Math.abs(x(a[0]) - spot) ? b : a));
    note.textContent = sentence(curve, nearest);
    for (const end of ["x1", "x2"]) guide.setAttribute(end, x(nearest[0]));
    guide.setAttribute("visibility", "visible");
  };
  picture.addEventListener("pointermove", show);
  picture.addEventListener("pointerdown", show);
  picture.addEventListener("pointerleave", () => {
    note.textContent = sentence(curve, curve.points.at(-1));
    guide.setAttribute("visibility", "hidden");
  });
  const fall = loss(curve);
  const fell = fall >= 0.05 && curve.best !== null && !curve.alike.includes(curve.points.at(-1)[0]) && curve.points.at(-1)[0] !== curve.best;
  const mark = fell ? el("span", { class: "chip is-fail" }, "fell ", numberText(fall)) : curve.gate ? el("span", { class: "muted" }, "gate") : null;
  return el("figure", { class: `chart${fell ? " is-lost" : ""}` }, el("figcaption", {}, el("span", {}, visible(title)), mark), picture, note);
}

function tickText(value) {
  return Math.abs(value) >= 1000 ? `${Math.round(value / 100) / 10}k` : String(Number(value.toPrecision(2)));
}

/** Return a table of two checkpoints' means: a chart of two points says no more, and takes a screen for each row. */
function pairTable(curves, title) {
  const [first, last] = track().points;
  const numbers = (values) => (values ? [numberText(values[1]), values[2] === null ? "" : el("span", { class: "interval-text" }, ` ${numberText(values[2])}–${numberText(values[3])}`)] : "–");
  const rows = curves.map((curve) => {
    const [before, after] = [0, 1].map((place) => curve.points.find((point) => point[0] === place));
    const change = before && after ? after[1] - before[1] : null;
    const worse = curve.best === 0 && !curve.alike.includes(1), better = curve.best === 1 && !curve.alike.includes(0);
    const [word, kind] = change === null ? ["", "other"] : worse ? ["▼ worse", "fail"] : better ? ["▲ better", "pass"] : ["= not significant", "skip"];
    return el("tr", {}, el("th", { scope: "row" }, visible(title(curve)), curve.gate ? el("span", { class: "muted small" }, " gate") : ""),
      el("td", { class: "num" }, numbers(before)), el("td", { class: "num" }, numbers(after)),
      el("td", { class: "num" }, change === null ? "–" : `${change > 0 ? "+" : ""}${numberText(change)}`), el("td", {}, word ? el("span", { class: `chip is-${kind}` }, word) : ""),
      el("td", { class: "bar-cell" }, before && after ? pairBar(curve, before[1], after[1]) : ""));
  });
  const head = [["", ""], [pointName(first), "num"], [pointName(last), "num"], ["change", "num"], ["", ""], ["", "bar-cell"]];
  const headers = head.map(([text, kind], place) => el("th", { scope: "col", class: kind || null }, visible(oneLine(text || ["score", "", "", "", "significance", ""][place], 40))));
  const table = el("table", {}, el("thead", {}, el("tr", {}, headers)), el("tbody", {}, rows));
  makeStackable(table);
  return el("div", { class: "card" }, el("div", { class: "scroll" }, table));
}

/** Return the way from one mean (hollow) to the other on their scale. */
function pairBar(curve, before, after) {
  const [low, high] = scale(curve);
  const at = (value) => `${2 + (96 * (value - low)) / (high - low)}%`;
  return svg("svg", { class: "bar", height: 16, role: "img", "aria-label": `${numberText(before)} to ${numberText(after)}` },
    svg("line", { class: "axis", x1: "2%", x2: "98%", y1: 8, y2: 8 }), svg("line", { class: "interval", x1: at(before), x2: at(after), y1: 8, y2: 8 }),
    svg("circle", { class: "dot is-hollow", cx: at(before), cy: 8, r: 4 }), svg("circle", { class: "value", cx: at(after), cy: 8, r: 4.5 }));
}

function chartGrid(curves, title) {
  if (track().points.length === 2) return curves.length ? pairTable(curves, title) : "";
  const grid = el("div", { class: "charts" });
  const add = (from) => {
    grid.append(...curves.slice(from, from + MOST_CHARTS).map((curve) => chart(curve, title(curve))));
    const left = curves.length - from - MOST_CHARTS;
    if (left > 0) {
      const more = el("button", { type: "button" }, `${left} more`);
      more.addEventListener("click", () => { more.remove(); add(from + MOST_CHARTS); });
      grid.append(more);
    }
  };
  add(0);
  return grid;
}

function slices(test) {
  const own = track().curves.filter((curve) => curve.test === test && curve.key);
  const keys = [...new Set(own.map(({ key }) => key))];
  if (!keys.length) return null;
  const keySelect = el("select", {}, keys.map((key) => el("option", { value: key }, key)));
  const metricSelect = el("select", {});
  const box = el("div", {});
  const metricsOf = () => [...new Set(own.filter(({ key }) => key === keySelect.value).map(({ metric }) => metric))];
  const draw = () => {
    const chosen = own.filter(({ key, metric }) => key === keySelect.value && metric === metricSelect.value);
    box.replaceChildren(chartGrid(chosen.sort((a, b) => loss(b) - loss(a)), ({ value }) => value));
  };
  const choose = () => {
    const names = metricsOf();
    // The one with the largest fall in some slice is what an average hides.
    const worst = names.map((name) => [Math.max(...own.filter(({ key, metric }) => key === keySelect.value && metric === name).map(loss)), name]);
    metricSelect.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
    metricSelect.value = worst.reduce((a, b) => (b[0] > a[0] ? b : a))[1];
    draw();
  };
  keySelect.addEventListener("change", choose);
  metricSelect.addEventListener("change", draw);
  choose();
  return el("div", { class: "slices" }, el("div", { class: "controls" }, el("label", {}, "By ", keySelect), el("label", {}, "score ", metricSelect), el("span", { class: "muted small" }, "largest loss first")), box);
}

function drawCharts() {
  const parts = track().tests.flatMap(([name, test], number) => [
    el("h3", { class: "test" }, visible(`${name} · ${test}`)),
    chartGrid(track().curves.filter((curve) => curve.test === number && !curve.key), ({ metric }) => metric),
    slices(number),
  ]);
  $("#charts").replaceChildren(...parts.filter(Boolean));
  const isPair = track().points.length === 2;
  $("#curves h2").textContent = isPair ? "From the first checkpoint to the second" : "By training step";
  for (const part of $$('#curves > .controls, #best, nav a[href="#best"]')) part.hidden = isPair; // the table of two says which is best
}

// ---- cases ----

async function openGrid() {
  const wanted = `cases-${state.track}-${state.test}`;
  state.grid = JSON.parse(await openBlock(wanted));
  const names = state.grid.metrics;
  $("#case-metric").replaceChildren(...names.map(([name, flips]) => el("option", { value: name }, `${name} (${flips} changes)`)));
  state.metric = mostTelling(names.map(([name]) => name));
  $("#case-metric").value = state.metric ?? "";
  drawGrid();
}

/** Return the score to begin with: of those that are right or wrong, the one that changed most after the first checkpoint. */
function mostTelling(names) {
  const late = (name) => state.grid.scores[name].filter((row) => new Set(row.slice(1).filter((score) => score !== null)).size > 1).length;
  const isRate = (name) => state.grid.scores[name].every((row) => row.every((score) => score === null || score === 0 || score === 1));
  const rates = names.filter(isRate);
  return (rates.some(late) ? rates : names).reduce((best, name) => (best === null || late(name) > late(best) ? name : best), null);
}

const wayOf = () => track().curves.find((curve) => curve.test === state.test && !curve.key && curve.metric === state.metric)?.way ?? "higher";

function fits(scores) {
  const known = scores.filter((score) => score !== null);
  if (state.filter === "all") return true;
  if (!known.length) return false;
  const sign = wayOf() === "lower" ? -1 : 1;
  const last = sign * known.at(-1), best = Math.max(...known.map((score) => sign * score));
  if (state.filter === "changed") return new Set(known).size > 1;
  if (state.filter === "lost") return last < best;
  if (state.filter === "gained") return last > sign * known[0];
  return best <= (sign > 0 ? 0 : -1);
}

function cell(score, before, outcome) {
  const flip = score !== null && before !== null && before !== undefined && score !== before;
  const sign = wayOf() === "lower" ? 1 - score : score;
  const bucket = score === null ? "q-none" : sign <= 0 ? "q0" : sign < 0.5 ? "q1" : sign < 1 ? "q2" : "q3";
  const text = score === null ? (outcome || "–") : score === 1 && wayOf() !== "lower" ? "✓ 1" : score === 0 && wayOf() !== "lower" ? "✗ 0" : numberText(score);
  return el("td", { class: flip ? "is-flip" : null }, el("span", { class: `cell ${bucket}` }, text));
}

function chosenRows() {
  const { ids, scores } = state.grid;
  const find = state.find.toLowerCase();
  return ids.map((id, place) => place).filter((place) => fits(scores[state.metric]?.[place] ?? []) && (!find || ids[place].toLowerCase().includes(find)));
}

function drawGrid() {
  const { ids, scores, outcomes, num } = state.grid;
  const rows = chosenRows();
  state.rows = rows;
  $("#case-count").textContent = `${rows.length.toLocaleString("en")} of ${plural(num, "case")}`;
  const head = el("tr", {}, el("th", { scope: "col" }, "case"), track().points.map((point) => el("th", { scope: "col" }, visible(oneLine(pointName(point), 40)))));
  const body = rows.slice(0, state.shown).map((place) => {
    let before = null;
    const cells = track().points.map((_, number) => {
      const score = scores[state.metric]?.[place]?.[number] ?? null;
      const made = cell(score, before, outcomes[place][number]);
      if (score !== null) before = score;
      return made;
    });
    const opener = el("button", { type: "button", "aria-expanded": "false" }, visible(oneLine(ids[place], 120)));
    const row = el("tr", { "data-place": place }, el("th", { scope: "row" }, opener), cells);
    opener.addEventListener("click", () => { select(state.rows.indexOf(place)); toggle(row); });
    return row;
  });
  const table = el("table", { class: "grid-table" }, el("thead", {}, head), el("tbody", {}, body));
  makeStackable(table);
  $("#case-grid").replaceChildren(rows.length ? table : el("p", { class: "muted" }, "No case fits."));
  $("#case-more").hidden = rows.length <= state.shown;
}

/** Return the link to a case in the report of a checkpoint's run, "" where there is none. */
function caseLink({ report, engine }, id) {
  const [name, test] = track().tests[state.test];
  // A lone surrogate cannot stand in a link; such a case is found by its name.
  const whole = `${name}::${test}[${engine}-${id}]`;
  return report && whole.isWellFormed?.() ? [" ", el("a", { href: `${report}#case=${encodeURIComponent(whole)}` }, "in its report")] : "";
}

function toggle(row) {
  const isOpen = row.nextSibling?.classList?.contains("said");
  $("button", row).setAttribute("aria-expanded", String(!isOpen));
  if (isOpen) return row.nextSibling.remove();
  const id = state.grid.ids[Number(row.dataset.place)];
  const texts = state.grid.texts[id];
  const columns = texts
    ? track().points.map((point, place) => el("div", {}, el("h4", {}, visible(pointName(point)), caseLink(point, id)), texts[place] === null ? el("p", { class: "muted" }, "skipped") : el("pre", { class: "text" }, visible(texts[place]))))
    : [el("p", { class: "muted" }, "The answers are in the reports of the runs: this page keeps only those of the first cases that changed.")];
  const span = track().points.length + 1;
  row.after(el("tr", { class: "said" }, el("td", { colspan: span }, el("div", { class: "said-columns" }, columns))));
}

function select(number) {
  const rows = $$("#case-grid tbody tr[data-place]");
  if (!rows.length) return;
  state.row = Math.max(0, Math.min(number, rows.length - 1));
  for (const row of rows) row.removeAttribute("aria-current");
  rows[state.row].setAttribute("aria-current", "true");
  rows[state.row].scrollIntoView({ block: "nearest" });
  announce(state.grid.ids[Number(rows[state.row].dataset.place)]);
}

// ---- start ----

function showTrack() {
  for (const part of $$(".track")) part.hidden = Number(part.dataset.track) !== state.track;
  $("#case-test").replaceChildren(...track().tests.map(([name, test], number) => el("option", { value: number }, `${name} · ${test}`)));
  state.test = 0;
  drawCharts();
  return track().tests.length ? openGrid() : null;
}

/** Show the answers to the case that the page's address names. */
async function openAddressed() {
  const [name, test, id] = addressedCase();
  const number = track().tests.findIndex((one) => one[0] === name && one[1] === test);
  if (number < 0) return;
  Object.assign(state, { test: number, filter: "all", find: id });
  for (const [field, value] of [["test", number], ["filter", "all"], ["search", id]]) $(`#case-${field}`).value = value;
  await openGrid();
  $("#cases").scrollIntoView();
  const place = state.rows.findIndex((one) => state.grid.ids[one] === id);
  if (place < 0) return;
  select(place);
  toggle($$("#case-grid tbody tr[data-place]")[place]);
}

$("#spacing").addEventListener("change", (event) => { state.spacing = event.target.value; drawCharts(); });
$("#track")?.addEventListener("change", (event) => { state.track = Number(event.target.value); showTrack(); });
$("#case-test").addEventListener("change", (event) => { state.test = Number(event.target.value); openGrid(); });
for (const [id, name] of [["case-metric", "metric"], ["case-filter", "filter"]]) {
  $(`#${id}`).addEventListener("change", (event) => { state[name] = event.target.value; state.shown = ROWS_AT_ONCE; state.row = -1; drawGrid(); });
}
$("#case-search").addEventListener("input", (event) => { state.find = event.target.value; state.row = -1; drawGrid(); });
$("#case-more").addEventListener("click", () => { state.shown += ROWS_AT_ONCE; drawGrid(); });
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
  const moves = { j: 1, k: -1 };
  if (event.key in moves) select(state.row + moves[event.key]);
  else if (event.key === "/") { $("#case-search").focus(); event.preventDefault(); }
  else if (event.key === "Enter" && !event.target.closest("button, a, summary")) {
    const row = $$("#case-grid tbody tr[data-place]")[state.row];
    if (row) toggle(row);
  }
});
if (!TRACKS.some(({ byStep }) => byStep)) $("#spacing").parentElement.hidden = true;
showTrack()?.then(() => {
  document.getElementById(location.hash.slice(1))?.scrollIntoView(); // charts and cases have moved what the address names
  return openAddressed();
});
addEventListener("hashchange", openAddressed);
