"""The changed cases of comparisons as the page shows them: both texts, scores, pictures and shapes, read from the runs' own rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from evalharness.analysis.comparison.compare import CaseChange, Comparison
from evalharness.analysis.comparison.sheets import Side
from evalharness.report.html.cases import case_anchor
from evalharness.report.html.pictures import PictureFile, picture_files
from evalharness.runs.run_file import read_samples
from evalharness.runs.schema import Generation, Row, entries_of, generations_of, mapping, text_of

NUM_CASES = 600
"""Changed cases of all comparisons together that a page shows, the worst of each first; compare_cases.csv has all."""
TEXT_CHARS = 20_000
PROMPT_CHARS = 8_000
MAX_PICTURES = 12
_MOST_SHAPES = 200
_GRID = (1000, 1000)

_Key = tuple[str, str, str]


@dataclass(frozen=True)
class ShownCase:
    """One changed case: `entry` is for the list, `detail` for the view of the case, `pictures` are its image files."""

    entry: dict[str, Any]
    detail: dict[str, Any]
    pictures: tuple[PictureFile, ...]


def shown_cases(comparisons: Sequence[Comparison], folder: Path | None = None) -> list[ShownCase]:
    """Return the changed cases to be shown, with links from `folder` to reports. Raises `RecordError` where rows cannot be read."""
    share = max(1, NUM_CASES // len(comparisons))
    chosen = [(number, change) for number, comparison in enumerate(comparisons) for change in comparison.cases[:share]]
    wanted: dict[tuple[str, str], set[_Key]] = {}
    for number, change in chosen:
        for side in (comparisons[number].base, comparisons[number].candidate):
            wanted.setdefault((side.source, side.engine), set()).add(_key(change))
    rows = _read(wanted)
    reports = {source: report_link(Path(source), folder) for source, _ in wanted if source} if folder is not None else {}
    return [_shown(number, comparisons[number], change, rows, reports) for number, change in chosen]


def report_link(run_dir: Path, folder: Path) -> str | None:
    """Return the relative link from a folder to a run's report page, None where it has none."""
    if not (run_dir / "report.html").is_file():
        return None
    relative = Path(os.path.relpath(run_dir / "report.html", folder)).as_posix()
    return quote(relative, errors="surrogatepass")


def _key(change: CaseChange) -> _Key:
    return change.eval, change.test, change.case_id


def _read(wanted: Mapping[tuple[str, str], set[_Key]]) -> dict[tuple[str, str], dict[_Key, Row]]:
    """Return the rows of the wanted cases by run and engine, each run read once; baselines have none."""
    rows: dict[tuple[str, str], dict[_Key, Row]] = {key: {} for key in wanted}
    for source in dict.fromkeys(source for source, _ in wanted):
        if not source or not Path(source).is_dir():
            continue
        for row in read_samples(Path(source)):
            side = source, text_of(row.get("engine"))
            key = text_of(row.get("eval")), text_of(row.get("test")), text_of(row.get("case_id"))
            if key in wanted.get(side, ()):
                rows[side][key] = row
    return rows


def _shown(
    number: int,
    comparison: Comparison,
    change: CaseChange,
    rows: Mapping[tuple[str, str], Mapping[_Key, Row]],
    reports: Mapping[str, str | None],
) -> ShownCase:
    def row_of(side: Side) -> Row:
        return rows.get((side.source, side.engine), {}).get(_key(change), {})

    both = row_of(comparison.base), row_of(comparison.candidate)
    generations = [made for row in both[::-1] for made in generations_of(row)]
    pictures = tuple(_once(file for made in generations for file in picture_files(made)))[:MAX_PICTURES]
    before, after = change.base.marks, change.candidate.marks
    entry = {
        "comparison": number,
        "eval": change.eval,
        "test": change.test,
        "id": change.case_id,
        "way": change.direction,
        "flipped": change.has_flipped,
        "outcomes": [change.base.outcome, change.candidate.outcome],
        "tags": dict(change.candidate.tags),
        "categories": [name for name in {**before, **after} if before.get(name, 1.0) != after.get(name, 1.0)],
        "scores": [list(score) for score in change.scores if not score[0].startswith("num_") and score[0] != "pass_rate"],
    }
    detail = {
        "group": change.candidate.group or change.base.group,
        "prompt": next((text_of(made.get("prompt_text"))[:PROMPT_CHARS] for made in generations if made.get("prompt_text")), None),
        "reference": next((row["reference"] for row in both if row.get("reference") is not None), None),
        "size": next(iter(_sizes(generations)), None),
        "truth": next((shapes for row in both[::-1] if (shapes := _shapes(row, "truth"))), []),
        "sides": [_side(line, row) for line, row in zip((change.base, change.candidate), both, strict=True)],
        "links": [
            f"{report}#{case_anchor(*_key(change)[:2], side.engine, change.case_id)}" if (report := reports.get(side.source)) else None
            for side in (comparison.base, comparison.candidate)
        ],
    }
    return ShownCase(entry, detail, pictures)


def _once(files: Iterable[PictureFile]) -> Iterable[PictureFile]:
    """Return each content once, from where it still is: the runs may have had their data in different folders."""
    found: dict[str, PictureFile] = {}
    for file in files:
        if file.sha256 not in found or not os.path.isfile(found[file.sha256].path):
            found[file.sha256] = file
    return found.values()


def _side(line: Any, row: Row) -> dict[str, Any]:
    generations = generations_of(row)
    texts = [text_of(made.get("text")) for made in generations]
    whole = "\n".join(texts) if texts else line.text
    return {
        "outcome": line.outcome,
        "problem": line.problem,
        "text": None if whole is None else whole[:TEXT_CHARS],
        "cut": 0 if whole is None else max(0, len(whole) - TEXT_CHARS),
        "finish": ", ".join(dict.fromkeys(text_of(made.get("finish_reason")) for made in generations)),
        "tokens": line.num_tokens,
        "nodeid": line.nodeid,
        "shapes": _shapes(row, "predictions"),
        "parsed": mapping(row.get("details")).get("parsed"),
    }


def _sizes(generations: Sequence[Generation]) -> Iterator[list[int]]:
    for made in generations:
        for image in entries_of(made.get("images")):
            width, height = image.get("width"), image.get("height")
            if isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0:
                yield [width, height]


def _shapes(row: Row, name: str) -> list[dict[str, Any]]:
    """Return objects of a dense dump as shapes with points from 0 to 1; without a `space` they are on the grid of 0 to 1000."""
    details = mapping(row.get("details"))
    objects, space = details.get(name), details.get("space", _GRID)
    fits = isinstance(space, (list, tuple)) and len(space) == 2 and all(isinstance(edge, (int, float)) and edge > 0 for edge in space)
    if not isinstance(objects, list) or not fits:
        return []
    shapes = []
    for item in map(mapping, objects[:_MOST_SHAPES]):
        points = item.get("points")
        if isinstance(points, list) and len(points) >= 4 and all(isinstance(number, (int, float)) for number in points):
            shares = [round(float(number) / space[place % 2], 5) for place, number in enumerate(points)]
            shapes.append({"kind": text_of(item.get("type")), "points": shares, "label": _label(text_of(item.get("desc")))})
    return shapes


def _label(description: str) -> str:
    """Return the category of "类别=标签,文本=F1", or what stands first."""
    return description.partition(",")[0].rpartition("=")[2]
