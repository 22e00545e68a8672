// The index: a list of runs that can be searched.

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

$("#find").addEventListener("input", filterRuns);
$("#show").addEventListener("change", filterRuns);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest?.("input, select")) { $("#find").focus(); event.preventDefault(); }
});
filterRuns();
