"""Draws what `verdict.py` measured: seconds of generating until a verdict, a bar for each way and planted loss.

python -m benchmarks.verdict_plot FOLDER/text-4b/results.jsonl docs/images/verdict.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

NAMES = {"certain": "until certain", "all": "with drafts, too"}
WIDTH, LEFT, ROW, BAR = 760, 250, 26, 16
COLOURS = {"raw": "#8a8f98", "base": "#8a8f98", "certain": "#2f6fde", "all": "#1b9e77"}


class Bar(NamedTuple):
    """One line of the plot."""

    label: str
    seconds: float
    note: str
    colour: str


def bars(lines: Sequence[dict[str, Any]]) -> Iterator[Bar]:
    """Yield the bars: raw, the harness on all cases, then the ways by the loss that was planted."""
    by_name = {line["what"]: line for line in lines}
    yield Bar("LLM.generate, all cases", by_name["raw"]["calls"][0]["seconds"], "", COLOURS["raw"])
    yield Bar("the harness, all cases", by_name["base-0"]["generate_s"], "", COLOURS["base"])
    losses = sorted({name.partition("-")[2] for name in by_name if name.startswith(("certain-", "all-"))}, key=float)
    for loss in losses:
        what = f"{100 * float(loss):g} points lost" if float(loss) else "nothing lost"
        for lever, name in NAMES.items():
            if (line := by_name.get(f"{lever}-{loss}")) is not None:
                yield Bar(f"{what}, {name}", line["generate_s"], f"{line['claim']} after {line['num_asked']} cases", COLOURS[lever])


def drawn(entries: Sequence[Bar]) -> str:
    """Return the SVG: black on white, so that it reads the same in a dark page."""
    scale = (WIDTH - LEFT - 60) / max(entry.seconds for entry in entries)
    height = ROW * len(entries) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13" role="img">',
        "<title>Seconds of generating until a verdict</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, entry in enumerate(entries):
        top, width = 8 + ROW * number, max(1.0, entry.seconds * scale)
        text = f"{entry.seconds:.1f} s{f', {entry.note}' if entry.note else ''}"
        parts += [
            f'<text x="{LEFT - 8}" y="{top + 13}" text-anchor="end">{entry.label}</text>',
            f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR}" fill="{entry.colour}"/>',
            f'<text x="{LEFT + width + 6:.1f}" y="{top + 13}">{text}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def main(argv: Sequence[str] | None = None) -> None:
    """Draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, metavar="RESULTS.jsonl")
    parser.add_argument("out", type=Path, metavar="OUT.svg")
    given = parser.parse_args(argv)
    lines = [json.loads(line) for line in given.results.read_text(encoding="utf-8").splitlines()]
    given.out.write_text(drawn(list(bars(lines))), encoding="utf-8")


if __name__ == "__main__":
    main()
