// The index: a list of runs that can be searched, and of which two can be chosen to be compared.

const rows = $$("#runs tbody tr").map((row) => [row, row.textContent.toLowerCase()]);

function filterRuns() {
  const words = $("#find").value.toLowerCase().split(/\s+/).filter(Boolean), show = $("#show").value;
  let shown = 0;
  for (const [row, text] of rows) {
    row.hidden = !(words.every((word) => text.includes(word)) && (!show || row.dataset.verdict === show));
    shown += row.hidden ? 0 : 1;
  }
  $("#count").textContent = `${shown} of ${rows.length}`;
}

/** Return what can be a side of a comparison among the ticked runs, the oldest run first: run, or run and engine. */
function sides() {
  const ticked = rows.map(([row]) => $("input:checked", row)).filter(Boolean).reverse();
  return ticked.flatMap((box) => {
    const engines = JSON.parse(box.dataset.engines);
    return engines.length > 1 ? engines.map((engine) => `${box.value}:${engine}`) : [box.value];
  });
}

function chooseSides() {
  const all = sides();
  for (const [id, chosen] of [["base", all[0]], ["candidate", all.at(-1)]]) {
    $(`#${id}`).replaceChildren(...all.map((side) => el("option", { value: side }, visible(oneLine(side, 80)))));
    $(`#${id}`).value = chosen ?? "";
  }
  $("#chosen").hidden = all.length < 2;
  $("#how-to-compare").hidden = all.length > 1;
  for (const suggestion of $$(".suggested")) suggestion.hidden = all.length > 1;
  showCommand();
  if (all.length > 1) announce($("#compare-command").textContent);
}

function showCommand() {
  const words = ["evalharness", "compare", $("#base").value, $("#candidate").value];
  $("#compare-command").textContent = words.map(shellQuoted).join(" ");
}

$("#find").addEventListener("input", filterRuns);
$("#show").addEventListener("change", filterRuns);
$("#runs").addEventListener("change", chooseSides);
for (const id of ["#base", "#candidate"]) $(id)?.addEventListener("change", showCommand);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest?.("input:not([type=checkbox]), select")) { $("#find").focus(); event.preventDefault(); }
});
filterRuns();
if ($("#chosen")) chooseSides(); // boxes that the browser has kept ticked
