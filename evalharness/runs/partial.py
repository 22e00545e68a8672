"""Whether a run holds its evals whole, or only a part of one: what `--lf`, `-k`, node ids, `--limit` or `--shard` selected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from evalharness.runs.schema import EvalLine, PartOfEval, Row, RunFile, entries_of, text_of


def parts_of_evals(evals: Iterable[EvalLine], rows: Sequence[Row]) -> list[PartOfEval]:
    """Return an entry per eval of which the rows are a part; in cases, or in tests where every case has one."""
    num_tests = Counter(row["eval"] for row in rows)
    num_cases = Counter(name for name, _ in {(row["eval"], row["case_id"]) for row in rows})
    parts: list[PartOfEval] = []
    for entry in evals:
        name, of_tests, of_cases = entry["name"], entry.get("num_all_tests", 0), entry.get("num_all_cases", 0)
        if num_cases[name] < of_cases:
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


def share_of(part: PartOfEval) -> str:
    """Return "3 of 182"; "?" for a number that a stranger's or a damaged run.json does not have."""
    return " of ".join(f"{value:,}" if isinstance(value, int) else "?" for value in (part.get("num"), part.get("of")))
