"""Whether a run holds its evals whole, or only a part of one: what `--lf`, `-k`, node ids, `--limit` or `--shard` selected, or what was
asked until --until-certain ended it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from evalharness.runs.schema import EvalLine, PartOfEval, Row, RunFile, entries_of, text_of

NOT_ASKED = "not asked: "
"""Begins the problem of a test that --until-certain left out: nothing is amiss with it."""


def was_left_out(row: Row) -> bool:
    """Return whether --until-certain left a test out, since the gates of its eval were decided."""
    return row.get("outcome") == "skip" and text_of(row.get("problem")).startswith(NOT_ASKED)


def parts_of_evals(evals: Iterable[EvalLine], rows: Sequence[Row]) -> list[PartOfEval]:
    """Return an entry per eval of which the rows are a part; in cases, or in tests where every case has one."""
    num_tests = Counter(row["eval"] for row in rows)
    num_cases = Counter(name for name, _ in {(row["eval"], row["case_id"]) for row in rows})
    left_out = {row["eval"] for row in rows if was_left_out(row)}
    asked = {(row["eval"], row["engine"], row["case_id"]) for row in rows if row["eval"] in left_out and not was_left_out(row)}
    num_asked = Counter((name, engine) for name, engine, _ in asked)
    parts: list[PartOfEval] = []
    for entry in evals:
        name, of_tests, of_cases = entry["name"], entry.get("num_all_tests", 0), entry.get("num_all_cases", 0)
        if name in left_out:
            num = min((count for (other, _), count in num_asked.items() if other == name), default=0)
            part: PartOfEval = {"eval": name, "what": "cases", "num": num, "of": of_cases, "until_certain": True}
            parts.append(part if num_cases[name] >= of_cases else {**part, "drawn_from": num_cases[name]})
        elif num_cases[name] < of_cases:
            parts.append({"eval": name, "what": "cases", "num": num_cases[name], "of": of_cases})
        elif num_tests[name] < of_tests:
            parts.append({"eval": name, "what": "tests", "num": num_tests[name], "of": of_tests})
    return parts


def part_texts(run: RunFile) -> dict[str, str]:
    """Return "3 of 182 cases of stage_a" by eval, for each eval of which a run holds a part."""
    texts = {}
    for part in entries_of(run.get("partial")):
        name = text_of(part.get("eval"))
        texts[name] = f"{share_of(part)} {text_of(part.get('what'))} of {name}"
    return texts


def stopped_evals(run: RunFile) -> list[str]:
    """Return the evals that --until-certain ended before all their cases were asked."""
    return list(how_drawn(run))


def how_drawn(run: RunFile) -> dict[str, str]:
    """Return how the cases of each eval were drawn that --until-certain ended: from all, or from those that had been selected before."""
    stopped = [part for part in entries_of(run.get("partial")) if part.get("until_certain") is True]
    froms = [part.get("drawn_from") for part in stopped]
    ways = [f"drawn at random from {num:,} that were selected" if isinstance(num, int) else "drawn at random" for num in froms]
    return {text_of(part.get("eval")): way for part, way in zip(stopped, ways, strict=True)}


def share_of(part: PartOfEval) -> str:
    """Return "3 of 182"; "?" for a number that a stranger's or a damaged run.json does not have."""
    return " of ".join(f"{value:,}" if isinstance(value, int) else "?" for value in (part.get("num"), part.get("of")))
