// What was said: the prompts of a case, its steps and answers as a conversation. Prompts are recorded as templates rendered them.

const ROLE = "system|developer|user|assistant|tool|ipython|model|observation";
/** Per family of chat templates: a turn, its role and its text. */
const TURNS = [
  /<\|im_start\|>(\w+)[^\S\n]*\n?([^]*?)(?:<\|im_end\|>|(?=<\|im_start\|>)|$)/g,
  /<\|start_header_id\|>(\w+)<\|end_header_id\|>\s*([^]*?)(?:<\|e[ao][tm]_id\|>|(?=<\|start_header_id\|>)|$)/g,
  /<start_of_turn>(\w+)\n([^]*?)(?:<end_of_turn>|(?=<start_of_turn>)|$)/g,
  new RegExp(`<\\|(${ROLE})\\|>\\n?([^]*?)(?:<\\|end\\|>|<\\|endoftext\\|>|</s>|(?=<\\|(?:${ROLE})\\|>)|$)`, "g"),
];
const IMAGES = /<\|vision_start\|>(?:<\|(?:image|video)_pad\|>)*<\|vision_end\|>|(?:<\|image_pad\|>|<image>|\[IMG\]|<image_soft_token>)+/g;
const LONG_TURN = 1200, LONG_ANSWER = 400; // an answer stands beside its reference whole

const isStart = ([role, text]) => /^(assistant|model)$/.test(role) && !text.replace(/<\/?think>/g, "").trim();

/** Return the turns [role, text] of a rendered prompt; a prompt in no known form is one turn. */
function turnsOf(prompt) {
  for (const form of TURNS) {
    const found = [...prompt.matchAll(form)];
    const turns = found.map(([, role, text]) => [role, text]);
    const before = prompt.slice(0, found[0]?.index).replace(/^\s*(<s>|<bos>|<\|begin_of_text\|>)/, "");
    if (turns.length) return [["prompt", before], ...turns.slice(0, -1), ...turns.slice(-1).filter((turn) => !isStart(turn))].filter(([, text]) => text.trim()).map(roleOf);
  }
  const [before, ...asked] = prompt.split("[INST]");
  const turns = asked.flatMap((part) => part.split("[/INST]").map((text, place) => [place ? "assistant" : "user", text.replace("</s>", "")]));
  return [["prompt", before.replace("<s>", "")], ...turns].filter(([, text]) => text.trim()).map(roleOf);
}

/** Some templates give a tool's result as what the user said. */
const roleOf = ([role, text]) => [/^\s*<tool_response>/.test(text) ? "tool" : role === "model" ? "assistant" : role, text.replace(IMAGES, "[image]").replace(/<\/?tool_response>/g, "").trim()];

const CALL = /<tool_call>([^]*?)(?:<\/tool_call>|$)/g;

/** Return text as nodes, calls of tools in it laid out. */
function spoken(text, most = LONG_TURN) {
  const parts = [];
  let done = 0;
  const add = (piece) => piece.trim() && parts.push(el("div", { class: "text" }, longText(piece.trim(), most)));
  for (const match of text.matchAll(CALL)) {
    add(text.slice(done, match.index));
    parts.push(callNode(match[1].trim()));
    done = match.index + match[0].length;
  }
  add(text.slice(done));
  return parts.length ? parts : el("span", { class: "muted" }, "(empty)");
}

function callNode(text) {
  let call = null;
  try {
    call = JSON.parse(text);
  } catch {
    // Shown as it is.
  }
  const content = typeof call?.name === "string" ? [el("b", {}, visible(call.name)), el("pre", {}, visible(JSON.stringify(call.arguments ?? call.parameters ?? {}, null, 2)))] : el("pre", {}, visible(text));
  return el("div", { class: "call" }, el("span", { class: "muted small" }, "calls a tool "), content);
}

const SIDES = { assistant: "is-answer", user: "is-user", tool: "is-tool" };

function bubble(role, text, most) {
  const body = role === "system" && text.length > 300 ? el("details", {}, el("summary", {}, visible(oneLine(text, 120))), spoken(text)) : spoken(text, most);
  return el("div", { class: `bubble ${SIDES[role] ?? "is-plain"}` }, el("span", { class: "who" }, visible(role)), body);
}

function answerBubble(made, title, most) {
  if (!made) return el("div", { class: "bubble is-answer" }, el("span", { class: "who" }, title), el("span", { class: "muted" }, "no answer"));
  const thought = made.thinking?.text;
  const node = bubble(title, thought ? made.thinking.answer ?? made.text ?? "" : made.text ?? "", most);
  node.classList.replace("is-plain", "is-answer");
  if (thought) node.firstChild.after(el("details", {}, el("summary", {}, "Thought"), el("div", { class: "text" }, longText(thought, LONG_TURN))));
  return node;
}

/** Return the conversation of a case: each step's requests and answers, then the question and its answers; what was said before stands once. */
function conversationOf(data) {
  const nodes = [];
  let said = [];
  const ask = (made) => {
    const turns = turnsOf(made?.prompt_text ?? "");
    let known = 0;
    while (known < turns.length && turns[known][1] === said[known]?.[1]) known += 1;
    nodes.push(...turns.slice(known).map(([role, text]) => bubble(role, text)));
    return turns;
  };
  (Array.isArray(data.steps) ? data.steps : []).forEach((step, place) => {
    const before = said;
    [step].flat().forEach((made, request) => {
      nodes.push(el("p", { class: "step small muted" }, `Step ${place + 1}${step.length > 1 ? `, request ${request + 1} of ${step.length}` : ""}`));
      said = before;
      said = [...ask(made), ["assistant", made?.text?.trim() ?? ""]];
      nodes.push(answerBubble(made, "assistant"));
    });
    if (step.length > 1) said = before;
  });
  const made = generationsOf(data);
  if (nodes.length && made.length) nodes.push(el("p", { class: "step small muted" }, "Last request"));
  if (made.length) ask(made[0]);
  nodes.push(...made.map((one, place) => answerBubble(one, made.length > 1 ? `answer ${place + 1}` : "assistant", referenceOf(data) === null ? MOST_CHARS : LONG_ANSWER)));
  return nodes.length ? el("div", { class: "conversation" }, nodes) : null;
}
