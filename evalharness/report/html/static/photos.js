// The pictures of a case: what is drawn on them, what belongs together, and a closer look.

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

/** Return the pictures of a row, null where it has none. */
function photosOf(row, data) {
  const shapes = shapesOf(data);
  const urls = (index.pictures[row] ?? []).map((number) => pictureUrl(`picture-${number}`));
  const images = imagesOf(data);
  const gone = (text) => el("p", { class: "muted small" }, text);
  const unknown = "The image is not shown: its path was not recorded.";
  if (!urls.length && !shapes) return generationsOf(data)[0]?.images?.length ? gone(unknown) : null;
  const photos = urls.length ? urls : [null];
  const nodes = photos.map((url, place) => {
    const drawn = place === 0 ? shapes : null;
    if (!url && !drawn) return gone("This image is not shown: it is gone or has changed.");
    const size = drawn ?? { width: images[place]?.width ?? 4, height: images[place]?.height ?? 3 };
    const node = photo({ ...size, url, labels: true, name: photos.length > 1 ? `image ${place + 1}` : data.case_id });
    return el("button", { type: "button", class: "zoomable", title: "zoom (z)", "aria-label": `Zoom into ${$("svg", node).getAttribute("aria-label")}`, on: { click: () => openZoom($("svg", node)) } }, node);
  });
  const box = el("div", {}, el("div", { class: `photos${nodes.length === 1 ? " is-one" : ""}` }, nodes));
  if (shapes) box.append(photoTools(box, shapes));
  if (shapes && !urls[0]) box.append(gone(urls.length ? "The image is not shown: it is gone or has changed." : unknown));
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

// ---- a closer look ----

const zoom = { picture: null, whole: null, box: null };

function openZoom(picture) {
  zoom.picture = picture.cloneNode(true);
  zoom.whole = picture.getAttribute("viewBox").split(" ").map(Number);
  $("#zoom-place").replaceChildren(el("div", { class: ["truth", "prediction"].filter((layer) => hiddenLayers.has(layer)).map((layer) => `hide-${layer}`).join(" "), "data-photos": "" }, zoom.picture));
  showBox(zoom.whole);
  $("#zoom").showModal();
}

function showBox(box) {
  zoom.box = box;
  zoom.picture.setAttribute("viewBox", box.join(" "));
}

/** Show `factor` times as much of the picture, its point (x, y) in place; never more than all of it, nor less than a fortieth. */
function zoomBy(factor, x = zoom.box[0] + zoom.box[2] / 2, y = zoom.box[1] + zoom.box[3] / 2) {
  const share = Math.min(1, Math.max(1 / 40, (zoom.box[2] * factor) / zoom.whole[2]));
  const by = (share * zoom.whole[2]) / zoom.box[2];
  move([x - (x - zoom.box[0]) * by, y - (y - zoom.box[1]) * by, zoom.box[2] * by, zoom.box[3] * by]);
}

/** Show a part of the picture, moved to where there is picture. */
function move([x, y, width, tall]) {
  const within = (at, size, from, all) => Math.min(Math.max(at, from), from + all - size);
  showBox([within(x, width, zoom.whole[0], zoom.whole[2]), within(y, tall, zoom.whole[1], zoom.whole[3]), width, tall]);
}

const panBy = (dx, dy) => move([zoom.box[0] + dx * zoom.box[2], zoom.box[1] + dy * zoom.box[3], zoom.box[2], zoom.box[3]]);

const ZOOM_KEYS = {
  "+": () => zoomBy(0.7), "=": () => zoomBy(0.7), "-": () => zoomBy(1 / 0.7), 0: () => showBox(zoom.whole), z: () => $("#zoom").close(),
  ArrowLeft: () => panBy(-0.15, 0), ArrowRight: () => panBy(0.15, 0), ArrowUp: () => panBy(0, -0.15), ArrowDown: () => panBy(0, 0.15),
  t: () => toggleLayer("truth"), p: () => toggleLayer("prediction"),
};

$("#zoom").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in ZOOM_KEYS)) return;
  event.preventDefault();
  event.stopPropagation();
  ZOOM_KEYS[event.key]();
});
for (const button of $$("[data-zoom]")) button.addEventListener("click", () => ZOOM_KEYS[button.dataset.zoom]());

const zoomPlace = $("#zoom-place");

zoomPlace.addEventListener("wheel", (event) => {
  event.preventDefault();
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(zoom.picture.getScreenCTM().inverse());
  zoomBy(event.deltaY < 0 ? 0.8 : 1.25, at.x, at.y);
}, { passive: false });
zoomPlace.addEventListener("pointerdown", (event) => {
  zoomPlace.setPointerCapture(event.pointerId);
  event.preventDefault();
});
zoomPlace.addEventListener("pointermove", (event) => {
  if (!zoomPlace.hasPointerCapture(event.pointerId)) return;
  const scale = zoom.picture.getScreenCTM().a;
  move([zoom.box[0] - event.movementX / scale, zoom.box[1] - event.movementY / scale, zoom.box[2], zoom.box[3]]);
});

// ---- objects ----

/** Return the table of reference and predicted objects, each pair on a line, what is missed or wrong first. */
function objectsOf(data) {
  const { truth, predictions, pairs } = data.details ?? {};
  if (!Array.isArray(truth) || !Array.isArray(predictions) || !truth.length + !predictions.length === 2) return [];
  const matched = Array.isArray(pairs) ? pairs : pairs?.category ?? pairs?.localization ?? [];
  const lines = [];
  const taken = [new Set(matched.map(([one]) => one)), new Set(matched.map(([, one]) => one))];
  const cell = (objects, at) => at === null ? el("td", { class: "muted" }, "–") : el("td", {}, `${at + 1} `, visible(String(objects[at]?.desc ?? "")));
  const line = (state_, kind, one, other, iou) => el("tr", {}, el("td", {}, chip(state_, kind)), cell(truth, one), cell(predictions, other), el("td", { class: "num" }, iou === null ? "" : numberText(iou)));
  truth.forEach((_, at) => taken[0].has(at) || lines.push(line("missed", "is-miss", at, null, null)));
  predictions.forEach((_, at) => taken[1].has(at) || lines.push(line("wrong", "is-fail", null, at, null)));
  for (const [one, other, iou] of matched) {
    const row = line("hit", "is-pass", one, other, iou ?? null);
    const [before, after] = [String(truth[one]?.desc ?? ""), String(predictions[other]?.desc ?? "")];
    if (before !== after) markedWords(before, after).forEach((nodes, side) => row.cells[side + 1].replaceChildren(row.cells[side + 1].firstChild, ...nodes));
    lines.push(row);
  }
  const table = el("table", { class: "objects" }, el("thead", {}, el("tr", {}, ["found", "reference", "prediction"].map((text) => el("th", { scope: "col" }, text)), el("th", { scope: "col", class: "num" }, "IoU"))), el("tbody", {}, lines));
  return [el("h3", {}, "Objects"), el("div", { class: "scroll" }, table)];
}
