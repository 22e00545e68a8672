// The rows of the page: an index in columns, and the rows themselves, opened block by block.

const index = readBlock("cases-index");
const rerun = readBlock("rerun");
const runBefore = readBlock("run-before");
/** What each score should be, by eval, test and name. */
const goals = new Map(readBlock("goals").map(([eval_, test, name, way, comparison, limit]) => [`${eval_}\n${test}\n${name}`, { way, comparison, limit }]));
const names = index.names;
const numRows = index.case.length;

/** The outcomes of which people look for another word. */
const OUTCOME_NAMES = { fail: "failed", miss: "failed (miss)" };

const anchorOf = (row, engine = names.engines[index.engine[row]]) =>
  `case=${encodeURIComponent(`${names.evals[index.eval[row]]}::${names.tests[index.test[row]]}[${engine}-${index.case[row]}]`)}`;
const outcomeOf = (row) => names.outcomes[index.outcome[row]];

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

