"use strict";
// What every page shares. Texts become text nodes, never markup: the policy's Trusted Types would refuse it.

/** Return an element with attributes and children; texts stay text, null and false are left out. */
function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Return an SVG element, likewise. */
function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Return "1 case", "1,000 cases". */
function plural(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

// C0 but tab and newline, DEL, C1, soft hyphen, bidi marks, zero-width and other invisible characters, lone surrogates.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\p{Surrogate}/gu;
const NAMES = { 0x00: "NUL", 0x07: "BEL", 0x08: "BS", 0x0d: "CR", 0x1b: "ESC", 0x7f: "DEL", 0x200b: "ZWSP", 0x202e: "RLO", 0xfeff: "BOM" };

/** Return text as nodes in which nothing is hidden: characters that are not seen are shown by their names or codes. */
function visible(text) {
  const parts = document.createDocumentFragment();
  let done = 0;
  for (const match of String(text).matchAll(UNSEEN)) {
    const code = match[0].codePointAt(0);
    const name = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
    parts.append(text.slice(done, match.index), el("span", { class: "ctl", title: name }, NAMES[code] ?? name));
    done = match.index + match[0].length;
  }
  parts.append(String(text).slice(done));
  return parts;
}

/** Return at most `most` characters on one line, the cut marked. */
function oneLine(text, most) {
  const line = String(text).slice(0, most * 4).replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most)}…` : line;
}

/** Return a number for people: three decimals, more where three would show nothing, one from 100 on, none from 1000 on. */
function numberText(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Math.abs(value) >= 1e15 || !Number.isFinite(value)) return value.toPrecision(3);
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  if (Math.abs(value) >= 100) return value.toFixed(1).replace(/\.0$/, "");
  const rounded = value.toFixed(3);
  return Number(rounded) || !value ? rounded : value.toPrecision(2);
}

// ---- data ----

/** Return what a JSON block holds. */
function readBlock(id) {
  return JSON.parse(document.getElementById(id).textContent);
}

function bytesOf(id) {
  return Uint8Array.from(atob(document.getElementById(id).textContent), (char) => char.charCodeAt(0));
}

/** Return a promise of the text in a packed block. */
async function openBlock(id) {
  const stream = new Blob([bytesOf(id)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

/** Return the data URL of a picture's block, null where there is none. */
function pictureUrl(id) {
  const block = document.getElementById(id);
  return block ? `data:image/jpeg;base64,${block.textContent}` : null;
}

// ---- marks ----

const MARKS = { pass: "✓", miss: "✗", fail: "✗", error: "!", invalid: "∅", skip: "–", other: "?" };

/** Return the chip of an outcome: mark and word, then colour. */
function outcomeChip(outcome) {
  const name = outcome in MARKS ? outcome : "other";
  return el("span", { class: `chip is-${name}` }, el("span", { "aria-hidden": "true" }, MARKS[name]), ` ${name}`);
}

function announce(text) {
  const region = document.getElementById("announce");
  if (region) region.textContent = text;
}

/** Say something at the lower edge for a moment. */
function toast(text) {
  $(".toast")?.remove();
  const note = el("div", { class: "toast" }, text);
  document.body.append(note);
  announce(text);
  setTimeout(() => note.remove(), 1800);
}

/** Copy text; also where a page from disk is given no clipboard of its own. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = el("textarea", { class: "visually-hidden", "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (!done) return toast("The browser does not let this page copy");
  }
  toast("Copied");
}

/** Return text as one word of a POSIX shell. */
function shellQuoted(text) {
  return /^[A-Za-z0-9_\-.,:\/=@%+]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

// ---- one case on every page ----

/** Return the address of a case within compare.html and timeline.html; JSON escapes what no address may hold. */
function caseAddress(name, test, id) {
  return `#at=${encodeURIComponent(JSON.stringify([name, test, id]))}`;
}

/** Return eval, test and id of the case that the page's address names, none for none. */
function addressedCase() {
  try {
    const parts = JSON.parse(decodeURIComponent(/^#at=(.*)$/.exec(location.hash)[1]));
    return Array.isArray(parts) ? parts : [];
  } catch {
    return [];
  }
}

// ---- differences ----

// Words as their language has them; where the browser cannot tell, runs of letters, and Han characters one by one.
const WORDS = globalThis.Intl?.Segmenter ? new Intl.Segmenter("zh", { granularity: "word" }) : null;
const TOKENS = /\p{Script=Han}|[\p{L}\p{N}_]+|\s+|[^]/gu;
const wordsOf = (text) => (WORDS ? Array.from(WORDS.segment(text), ({ segment }) => segment) : text.match(TOKENS) ?? []);
const MOST_STEPS = 800;

/** Return [kind, text] pieces, kind "same", "removed" (only in `before`) or "added" (only in `after`). */
function diff(before, after) {
  const a = wordsOf(before), b = wordsOf(after);
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const middle = shortestEdit(a.slice(start, a.length - end), b.slice(start, b.length - end));
  const pieces = [["same", a.slice(0, start).join("")], ...middle, ["same", a.slice(a.length - end).join("")]];
  const joined = [];
  for (const [kind, text] of pieces) {
    if (!text) continue;
    if (joined.at(-1)?.[0] === kind) joined.at(-1)[1] += text;
    else joined.push([kind, text]);
  }
  return joined;
}

/** Myers' greedy algorithm; two texts that differ in more than MOST_STEPS places are simply different. */
function shortestEdit(a, b) {
  const whole = [["removed", a.join("")], ["added", b.join("")]];
  if (!a.length || !b.length || a.length + b.length > 40000) return whole;
  const most = Math.min(a.length + b.length, MOST_STEPS);
  const reach = new Map([[1, 0]]);
  const trace = [];
  for (let steps = 0; steps <= most; steps += 1) {
    trace.push(new Map(reach));
    for (let k = -steps; k <= steps; k += 2) {
      const down = k === -steps || (k !== steps && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
      let x = down ? reach.get(k + 1) ?? 0 : (reach.get(k - 1) ?? 0) + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x += 1;
      reach.set(k, x);
      if (x >= a.length && x - k >= b.length) return backtrack(a, b, trace, steps);
    }
  }
  return whole;
}

function backtrack(a, b, trace, steps) {
  const pieces = [];
  let x = a.length, y = b.length;
  for (let step = steps; step >= 0; step -= 1) {
    const reach = trace[step], k = x - y;
    const down = k === -step || (k !== step && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
    const fromK = down ? k + 1 : k - 1;
    const fromX = step ? reach.get(fromK) ?? 0 : 0, fromY = step ? fromX - fromK : 0;
    while (x > fromX && y > fromY) {
      pieces.push(["same", a[x - 1]]);
      x -= 1;
      y -= 1;
    }
    if (step) pieces.push(down ? ["added", b[(y -= 1)]] : ["removed", a[(x -= 1)]]);
  }
  return pieces.reverse();
}

/** Return two texts, before and after, with what differs marked; equal texts give no marks. */
function diffNodes(before, after) {
  const sides = [el("pre", { class: "text" }), el("pre", { class: "text" })];
  for (const [kind, text] of diff(before, after)) {
    if (kind === "same") for (const side of sides) side.append(visible(text));
    else if (kind === "removed") sides[0].append(el("del", {}, visible(text)));
    else sides[1].append(el("ins", {}, visible(text)));
  }
  return sides;
}

// ---- photos ----

/**
 * Return an image with shapes on it: reference solid, prediction dashed, each on a white halo.
 * A shape is {kind: "bbox_2d" | "poly" | "line", points: [x, y, …] in pixels of `width` × `height`, label}.
 */
function photo({ url, width, height, truth = [], predictions = [], labels = false, name = "photo" }) {
  const text = truth.length + predictions.length ? `${name}: ${truth.length} reference (solid), ${predictions.length} predicted (dashed)` : name;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text });
  if (url) picture.append(svg("image", { href: url, width, height, preserveAspectRatio: "none" }));
  const layers = [["truth", truth], ["prediction", predictions]];
  // All halos lie below all lines: where both agree, the dashes of one alternate with the line of the other.
  for (const ink of ["halo", null]) {
    for (const [kind, shapes] of layers) {
      picture.append(svg("g", { class: `layer-${kind}` }, shapes.map((shape) => outline(shape, `shape ${ink ?? kind}`))));
    }
  }
  for (const [kind, shapes] of labels ? layers : []) {
    picture.append(svg("g", { class: `layer-${kind}` }, shapes.map((shape) => shapeLabel(shape, kind, width, height))));
  }
  return el("div", { class: "photo" }, picture);
}

function outline({ kind, points }, classes) {
  const numbers = points.map(Number);
  if (kind === "bbox_2d") {
    const [left, top, right, bottom] = numbers;
    const x = Math.min(left, right), y = Math.min(top, bottom);
    return svg("rect", { class: classes, x, y, width: Math.abs(right - left), height: Math.abs(bottom - top) });
  }
  return svg(kind === "line" ? "polyline" : "polygon", { class: classes, points: numbers.join(" ") });
}

/** Return the label of a shape: above it for truth, below it for a prediction, within the photo. */
function shapeLabel({ points, label }, kind, width, height) {
  const size = Math.max(width, height) / 34;
  const xs = points.filter((_, place) => place % 2 === 0).map(Number), ys = points.filter((_, place) => place % 2).map(Number);
  const fromRight = Math.min(...xs) > width * 0.6; // else a long name would run out of the photo
  const x = fromRight ? Math.min(Math.max(...xs), width - 2) : Math.max(Math.min(...xs), 2);
  const y = kind === "truth" ? Math.min(...ys) - size * 0.4 : Math.max(...ys) + size * 1.1;
  const place = { x, y: Math.min(Math.max(y, size), height - 3), "font-size": size, "stroke-width": size / 4, "text-anchor": fromRight ? "end" : "start" };
  return svg("text", { class: `shape-label ${kind}`, ...place }, oneLine(label ?? "", 24));
}

// ---- tables ----

function cellValue(row, column) {
  const cell = row.cells[column];
  if (!cell) return "";
  const text = cell.dataset.sort ?? cell.textContent.trim();
  const number = Number(text.replaceAll(",", ""));
  return text !== "" && Number.isFinite(number) ? number : text;
}

function compareCells(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number") return -1; // numbers before words, and what is missing last
  if (typeof b === "number") return 1;
  return a.localeCompare(b, "en", { numeric: true });
}

/**
 * Give each cell the name of its column, for phones, on which a row becomes a card (base.css), and roles, which `display` would take away.
 * Cells that span rows stand first, so columns are counted from the last.
 */
function makeStackable(table) {
  const names = $$("thead th", table).map((header) => header.textContent.trim());
  if (!names.length || !table.tBodies.length) return;
  table.classList.add("stacked");
  const roles = [[[table], "table"], [$$("thead, tbody", table), "rowgroup"], [table.rows, "row"], [$$("thead th", table), "columnheader"]];
  for (const [elements, role] of roles) for (const element of elements) element.setAttribute("role", role);
  for (const row of table.tBodies[0].rows) {
    [...row.cells].forEach((cell, place) => {
      cell.setAttribute("role", cell.tagName === "TH" ? "rowheader" : "cell");
      if (cell.tagName === "TD") cell.dataset.label = names[names.length - row.cells.length + place] ?? "";
    });
  }
}

/** Let the keyboard scroll what is wider than its place. */
const overflowing = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth + 1) target.setAttribute("tabindex", "0");
    else target.removeAttribute("tabindex");
  }
});

function makeSortable(table) {
  const headers = $$("thead th", table);
  headers.forEach((header, column) => {
    if (!header.textContent.trim() || header.matches(".bar-cell, .plain")) return;
    const button = el("button", { type: "button", class: "sort" }, ...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const numbers = header.classList.contains("num");
      const now = header.getAttribute("aria-sort");
      const descending = now ? now === "ascending" : numbers;
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => [cellValue(row, column), row]);
      rows.sort(([a], [b]) => compareCells(a, b) * (descending ? -1 : 1));
      body.append(...rows.map(([, row]) => row));
    });
  });
}

// ---- the frame ----

function startTheme() {
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const kept = (value) => {
    try {
      if (value !== undefined) localStorage.setItem("evalharness-theme", value);
      return localStorage.getItem("evalharness-theme");
    } catch {
      return null; // pages from disk may have no storage
    }
  };
  const show = (theme) => document.documentElement.setAttribute("data-theme", theme);
  if (["light", "dark"].includes(kept())) show(kept());
  button.hidden = false;
  button.addEventListener("click", () => {
    const now = document.documentElement.getAttribute("data-theme") ?? (dark.matches ? "dark" : "light");
    show(now === "dark" ? "light" : "dark");
    kept(now === "dark" ? "light" : "dark");
  });
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (button) copyText(button.dataset.copy || button.parentElement.querySelector("code").textContent);
});
startTheme();
$$(".scroll > table").forEach(makeStackable);
$$(".scroll").forEach((box) => overflowing.observe(box));
$$("table.sortable").forEach(makeSortable);
