// The list of cases, or the gallery of their pictures: only what is in sight is there.

const ITEM = { list: { height: 76, columns: 1 }, gallery: { height: 248, width: 210 } };
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
  if (state.at < 0) return;
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
  const why = index.problem[row] < 0 ? null : el("span", { class: "why" });
  const item = el("div", { class: `item${url ? "" : " no-picture"}`, role: "option", id: `item-${place}`, "aria-setsize": state.order.length, "aria-posinset": place + 1, "aria-selected": "false", on: { click: () => choose(place) } },
    url && el("img", { class: "thumb", src: url, alt: "", loading: "lazy" }),
    el("span", { class: "name", title: index.case[row] }, el("bdi", {}, visible(index.case[row]))),
    el("span", { class: "line" }, outcomeChip(outcomeOf(row)), rest), why);
  item.style.transform = `translate(${(place % columns) * width}px, ${Math.floor(place / columns) * height}px)`;
  if (why) rowOf(row).then(({ problem }) => why.replaceChildren(visible(oneLine(problem ?? "", 100))));
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

/** Return what the list says of a row: the score that it is sorted by, or two that miss their gate, then where it is from. */
function restOf(row) {
  const parts = [];
  const of = { eval: names.evals[index.eval[row]], test: names.tests[index.test[row]] };
  const byScore = /^[<>]/.test(state.sort);
  for (const name of byScore ? [state.sort.slice(1)] : Object.keys(index.scores)) {
    const value = index.scores[name]?.[row];
    const { comparison, limit } = goalOf(of, name);
    if (value !== null && value !== undefined && parts.length < 2 && (byScore || (comparison && !HOLDS[comparison](value, limit)))) parts.push(`${name} ${scoreText(name, value)}`);
  }
  if (names.engines.length > 1) parts.push(names.engines[index.engine[row]]);
  if (names.evals.length > 1) parts.push(of.eval);
  return parts.join(" · ");
}
