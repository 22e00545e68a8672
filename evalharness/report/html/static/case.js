// One case: how it ended, where else it was asked, its picture or conversation beside answer and reference, and everything behind.

const MOST_CHARS = 60000;
const MOST_PROBLEM = 300, MOST_FAILING = 6;
const NUM_SCORES = 3; // of a case whose scores are all as they should be

const generationsOf = (row) => (row.generations?.length ? row.generations : [row.generation]).filter(Boolean);

const chip = (text, kind = "") => el("span", { class: `chip ${kind}` }, visible(oneLine(text, 120)));

function referenceOf(data) {
  const found = data.details?.reference ?? data.reference;
  return found === undefined ? null : found;
}

/** Return text as nodes; of a very long one the beginning, and a button for the rest. */
function longText(text, most = MOST_CHARS) {
  if (text.length <= most * 1.5) return visible(text);
  const parts = el("span", {}, visible(text.slice(0, most)));
  const more = el("button", { type: "button", on: { click: () => parts.replaceChildren(visible(text)) } }, `Show all ${text.length.toLocaleString("en")} characters`);
  parts.append(el("br"), more);
  return parts;
}

/** Show a row; `at` is its place among the `total` that the list has, -1 where it is not among them. */
function showCase(row, data, at, total) {
  const article = $("#case");
  const go = (by, text, key) => el("button", { type: "button", disabled: at < 0 ? !total : at + by < 0 || at + by >= total, "aria-label": key, title: key, on: { click: () => step(by) } }, text);
  const pictures = photosOf(row, data), conversation = conversationOf(data);
  const isText = !pictures && conversation !== null, answers = answersOf(data, isText && referenceOf(data) === null);
  article.replaceChildren(...[
    el("div", { class: "case-top" },
      el("div", {},
        el("h2", { class: "title", id: "case-title" }, visible(data.case_id ?? "")),
        el("ul", { class: "chips" }, chipsOf(data).map((one) => el("li", {}, one)))),
      el("div", { class: "steps" },
        el("button", { type: "button", class: "back", on: { click: leaveCase } }, "List"),
        go(-1, "←", "previous (k)"), go(1, "→", "next (j)"))),
    elsewhere(row, data),
    data.problem?.trim() ? el("pre", { class: "problem text" }, longText(data.problem, MOST_PROBLEM)) : null,
    scoresOf(data),
    el("div", { class: `case-main${isText ? " is-text" : pictures ? "" : " is-one"}${isText && referenceOf(data) === null ? " is-said" : ""}` }, pictures ?? (isText ? el("div", {}, el("h3", {}, "Conversation"), conversation) : null), el("div", { class: "answers" }, objectsOf(data), answers)),
    ...(conversation && !isText ? [el("details", {}, el("summary", {}, "Conversation"), conversation)] : []),
    ...detailsOf(data),
    ...factsOf(data),
  ].filter(Boolean));
  for (const table of $$(".scroll > table", article)) makeStackable(table);
  article.setAttribute("aria-label", `${at < 0 ? "Case" : `Case ${at + 1} of ${total}`}: ${data.case_id}`);
  article.scrollTop = 0;
}

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

// ---- the same case elsewhere ----

/** Return the other rows of this page that are about the same case and test, on other engines. */
const twinsOf = (row) => twins.get(twinKey(row)).filter((other) => other !== row);

const twinKey = (row) => `${index.eval[row]} ${index.test[row]} ${index.case[row]}`;
const twins = new Map();
index.case.forEach((_, row) => {
  if (!twins.has(twinKey(row))) twins.set(twinKey(row), []);
  twins.get(twinKey(row)).push(row);
});

/** Return where the run before has the case: its engine, outcome and address; null where it has not. */
function beforeOf(row) {
  const found = runBefore?.rows[row];
  if (!found) return null;
  const [engine, outcome, page] = [runBefore.engines[found[0]], names.outcomes[found[1]], found[2]];
  return { engine, outcome, href: `${runBefore.folder}report${page > 1 ? `-${page}` : ""}.html#${anchorOf(row, engine)}` };
}

function elsewhere(row, data) {
  const others = twinsOf(row).map((other) => el("a", { class: "chip", href: `#${anchorOf(other)}`, title: "other engines (e)" }, outcomeMark(outcomeOf(other)), ` ${names.engines[index.engine[other]]} ${outcomeOf(other)}`));
  const before = beforeOf(row);
  if (before) others.push(el("a", { class: "chip", href: before.href, id: "run-before-link", title: "run before (b)" }, outcomeMark(before.outcome), visible(` run before, ${oneLine(runBefore.name, 60)}${before.engine === data.engine ? "" : ` on ${before.engine}`}: ${before.outcome}`)));
  for (const page of ["timeline", "compare"]) {
    if ($(`.crumbs a[href="${page}.html"]`)) others.push(el("a", { class: "chip", href: `${page}.html${caseAddress(data.eval, data.test, data.case_id)}` }, page));
  }
  return others.length ? el("div", { class: "elsewhere" }, el("span", { class: "muted small" }, "Same case: "), others) : null;
}

const outcomeMark = (outcome) => el("span", { class: `is-mark is-${outcome}`, "aria-hidden": "true" }, MARKS[outcome] ?? MARKS.other);

// ---- scores ----

const SIGNS = { ">=": "≥", "<=": "≤", "==": "=" };
const HOLDS = { ">=": (value, limit) => value >= limit, ">": (value, limit) => value > limit, "<=": (value, limit) => value <= limit, "<": (value, limit) => value < limit, "==": (value, limit) => value === limit };
const goalOf = (data, name) => goals.get(`${data.eval}\n${data.test}\n${name}`) ?? { way: 1, comparison: "" };

/** Return the scores in one strip, those first that miss what a gate asks of their mean, then those at their worst. */
function scoresOf(data) {
  const rank = (name, value) => {
    const { way, comparison, limit } = goalOf(data, name);
    if (comparison) return HOLDS[comparison](value, limit) ? 2 : 0;
    return way && !name.startsWith("num_") && value === (way > 0 ? 0 : 1) ? 1 : name.startsWith("num_") ? 4 : 3;
  };
  const scores = Object.entries(data.scores ?? {}).map(([name, value]) => [rank(name, value), name, value]).sort((a, b) => a[0] - b[0]);
  if (!scores.length) return null;
  const item = ([place, name, value]) => {
    const { comparison, limit } = goalOf(data, name);
    const gate = place === 0 ? { title: `the gate, on the mean of all cases: ${name} ${SIGNS[comparison] ?? comparison} ${limit}` } : {};
    return el("li", { class: place === 0 ? "is-fail" : place === 1 ? "is-miss" : "", ...gate }, place === 0 ? el("span", { "aria-hidden": "true" }, "✗ ") : null,
      el("span", { class: "name" }, visible(oneLine(name, 60))), " ", el("b", {}, scoreText(name, value)));
  };
  const most = Math.min(scores.filter(([place]) => place < 2).length, MOST_FAILING) || NUM_SCORES;
  const rest = scores.slice(most);
  return el("div", { class: "strip" }, el("ul", { "aria-label": "Scores" }, scores.slice(0, most).map(item)),
    rest.length ? el("details", {}, el("summary", { class: "small" }, plural(rest.length, "more score")), el("ul", {}, rest.map(item))) : null);
}

/** Return a case's score for people: a whole number as one, where it is a count or lies off 0…1. */
const scoreText = (name, value) => Number.isInteger(value) && (name.startsWith("num_") || Math.abs(value) > 1) ? value.toLocaleString("en") : numberText(value);

// ---- answers ----

/** Return the answers beside the reference; `isSaid`: the conversation has all that there is to show of them. */
function answersOf(data, isSaid) {
  const made = generationsOf(data);
  return made.map((generation, place) => el("div", { class: "generation" }, el("h3", {}, made.length > 1 ? `Answer ${place + 1} of ${made.length}` : "Answer"),
    isSaid ? null : answerBody(data, generation, made.length), ...sourcesOf(generation)));
}

function answerBody(data, generation, many) {
  const reference = referenceOf(data);
  const parsed = many > 1 ? undefined : data.details?.parsed ?? data.details?.summary;
  const text = generation.text ?? "";
  const plain = (content) => content ? el("pre", { class: "text" }, longText(content)) : el("pre", { class: "text muted" }, "(empty)");
  if (reference === null) return plain(text);
  const said = comparable(parsed ?? text), wanted = comparable(reference);
  const names_ = ["reference", parsed === undefined ? "answer" : "answer, as it was read"];
  const body = el("div", {});
  if (said === wanted) body.append(el("p", { class: "small" }, el("span", { class: "chip is-pass" }, "✓ as the reference")), plain(said));
  else if (isAlike(wanted, said)) body.append(alignedTable(wanted, said, names_));
  else body.append(el("div", { class: "sides" }, [wanted, said].map((content, side) => el("div", {}, el("span", { class: "muted small" }, names_[side]), plain(content)))));
  if (parsed !== undefined) body.append(el("details", {}, el("summary", { class: "small" }, "Text"), plain(text)));
  return body;
}

/** Whether marking differences tells more than it hides. */
function isAlike(a, b) {
  if (Math.max(a.length, b.length) > 40000 || a.split("\n").length + b.split("\n").length > MOST_LINES) return false;
  if (/^[[{]/.test(a) && /^[[{]/.test(b)) return true;
  const same = diff(a, b).reduce((sum, [kind, text]) => sum + (kind === "same" ? text.length : 0), 0);
  return same >= 0.25 * Math.max(a.length, b.length, 1);
}

function sourcesOf(generation) {
  const part = (name, text) => typeof text === "string" && text ? el("details", {}, el("summary", { class: "small" }, name), el("pre", { class: "text" }, longText(text))) : null;
  const counts = [["prompt tokens", generation.num_prompt_tokens], ["completion tokens", generation.num_completion_tokens], ["finish", generation.finish_reason], ["stop", generation.stop_reason], ["seed", generation.seed]];
  return [
    el("p", { class: "muted small" }, visible(counts.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => `${name} ${value}`).join(" · "))),
    part("Raw text", generation.raw_text),
    part("Prompt", generation.prompt_text),
    generation.shots?.length ? el("p", { class: "small" }, visible(`Worked examples: ${generation.shots.join(", ")}`)) : null,
    generation.fallback ? el("p", { class: "small" }, visible(`Fallback: ${generation.fallback}`)) : null,
    generation.ignored_options?.length ? el("p", { class: "small" }, visible(`Remarks: ${generation.ignored_options.join(", ")}`)) : null,
  ].filter(Boolean);
}

// ---- everything behind ----

function detailsOf(data) {
  if (!data.details) return [];
  const node = el("details", {}, el("summary", {}, "Details, as the eval recorded them"));
  node.addEventListener("toggle", () => {
    if (node.open && node.children.length === 1) node.append(el("pre", { class: "text" }, longText(JSON.stringify(data.details, null, 2))));
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
  const options = JSON.stringify(data.options ?? {}, null, 2);
  const again = rerun[data.engine] === "" ? [] : [ // of an engine that was another tool's
    el("h3", {}, "Run this case again"),
    el("div", { class: "command" }, el("code", { id: "case-command" }, visible(commandOf(data))), el("button", { type: "button", "data-copy": commandOf(data) }, "Copy")),
  ];
  return [
    ...again,
    el("details", {}, el("summary", {}, "Facts"),
      el("dl", { class: "pairs" }, pairs.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, visible(String(value)))]), el("dt", {}, "options"), el("dd", {}, el("pre", { class: "text" }, visible(options))))),
  ];
}
