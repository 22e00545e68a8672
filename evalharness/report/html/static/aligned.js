// Two texts line by line: what belongs together stands side by side, words that differ are marked, and equal lines can be left out.

const MOST_LINES = 3000;
const NUM_NEAR = 1; // equal lines that stay around a difference

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
  return JSON.stringify(ordered(data), null, 2);
}

/** Return [before, after] for each line of two texts; null where one has no such line. Commas at ends of lines make no difference. */
function alignedLines(before, after) {
  const a = before.split("\n"), b = after.split("\n");
  const bare = (line) => line.replace(/,$/, "");
  let kinds = shortestEdit(a.map(bare), b.map(bare)).map(([kind]) => kind);
  // Texts that differ in too many places come as one piece each.
  if (kinds.length === 2 && kinds[0] === "removed" && kinds[1] === "added") kinds = [...a.map(() => "removed"), ...b.map(() => "added")];
  const lines = [];
  let removed = [], added = [], x = 0, y = 0;
  for (const kind of [...kinds, "same"]) {
    if (kind === "removed") removed.push(a[x++]);
    else if (kind === "added") added.push(b[y++]);
    else {
      lines.push(...pairedLines(removed, added));
      removed = [];
      added = [];
      if (x < a.length) lines.push([a[x++], b[y++]]);
    }
  }
  return lines;
}

const keyOf = (line) => line.match(/^\s*"(?:[^"\\]|\\.)*":/)?.[0];

/** Pair lines of one place: those with the same JSON key, and in their order those that have none. */
function pairedLines(removed, added) {
  const lines = [];
  let next = 0;
  for (const line of removed) {
    const key = keyOf(line);
    const place = key ? added.findIndex((one, at) => at >= next && keyOf(one) === key) : next < added.length && !keyOf(added[next]) ? next : -1;
    if (place < 0) lines.push([line, null]);
    else {
      lines.push(...added.slice(next, place).map((one) => [null, one]), [line, added[place]]);
      next = place + 1;
    }
  }
  return [...lines, ...added.slice(next).map((one) => [null, one])];
}

const isWord = /[\p{L}\p{N}]/u;

/** Return a line marked whole, but for its indent. */
const markedLine = (tag, line) => [line.match(/^\s*/)[0], el(tag, {}, visible(line.trimStart()))];

/** Return two cells' contents with the words that differ marked; lines that have little in common are marked whole. */
function markedWords(before, after) {
  const pieces = diff(before, after);
  const letters = (text) => text.replace(/[^\p{L}\p{N}]/gu, "").length;
  const same = pieces.reduce((sum, [kind, text]) => sum + (kind === "same" ? letters(text) : 0), 0);
  const sides = [[], []];
  if (same * 4 < Math.max(letters(before), letters(after))) return [markedLine("del", before), markedLine("ins", after)];
  pieces.forEach(([kind, text], place) => {
    // Between two words that differ, a blank or a sign that does not makes two marks of one.
    const isJoint = kind === "same" && !isWord.test(text) && text.length < 3 && place > 0 && place < pieces.length - 1;
    if (kind !== "added") sides[0].push(kind === "same" && !isJoint ? visible(text) : el("del", {}, visible(text)));
    if (kind !== "removed") sides[1].push(kind === "same" && !isJoint ? visible(text) : el("ins", {}, visible(text)));
  });
  return sides;
}

const MANY_EQUAL = 12;
let onlyDifferences = null; // unasked: where many lines are equal

function toggleDifferences() {
  const now = $("[data-differences]");
  if (!now) return;
  onlyDifferences = now.getAttribute("aria-pressed") !== "true";
  for (const table of $$(".aligned")) table.classList.toggle("is-only", onlyDifferences);
  for (const button of $$("[data-differences]")) button.setAttribute("aria-pressed", onlyDifferences);
}

/** Return two texts side by side, named by `names`; on a narrow place equal lines stand once, and what differs below each other. */
function alignedTable(before, after, names) {
  const lines = alignedLines(before, after);
  const isSame = lines.map(([one, other]) => one !== null && other !== null && one.replace(/,$/, "") === other.replace(/,$/, ""));
  const isNear = (place) => isSame.slice(Math.max(0, place - NUM_NEAR), place + NUM_NEAR + 1).includes(false);
  const rows = [];
  let numEqual = 0;
  const endGap = () => {
    if (numEqual) rows.push(el("tr", { class: "gap" }, el("td", { colspan: 2 }, `⋯ ${numEqual} equal ${numEqual === 1 ? "line" : "lines"}`)));
    numEqual = 0;
  };
  lines.forEach(([one, other], place) => {
    const far = isSame[place] && !isNear(place);
    if (far) numEqual += 1;
    else endGap();
    const [left, right] = isSame[place] ? [visible(one), visible(other)] : one !== null && other !== null ? markedWords(one, other)
      : [one === null ? [] : markedLine("del", one), other === null ? [] : markedLine("ins", other)];
    const kind = isSame[place] ? (far ? "same far" : "same") : "changed";
    rows.push(el("tr", { class: kind }, el("td", { class: one === null ? "none" : "" }, left), el("td", { class: other === null ? "none" : "" }, right)));
  });
  endGap();
  const numFar = rows.filter((row) => row.matches(".far")).length, isOnly = onlyDifferences ?? numFar > MANY_EQUAL;
  const table = el("table", { class: `aligned${isOnly ? " is-only" : ""}` },
    el("thead", {}, el("tr", {}, names.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, rows));
  if (!numFar) return table;
  const button = el("button", { type: "button", "data-differences": "", "aria-pressed": String(isOnly), title: "d", on: { click: toggleDifferences } }, "Only differences");
  return el("div", {}, el("div", { class: "aligned-tools" }, button), table);
}
