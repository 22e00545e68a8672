"""samples.jsonl: one row per collected test, in the order of collection, with its generations as the journal has them, byte by byte."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from evalharness.api.errors import RecordError
from evalharness.runs.files import write_atomically
from evalharness.runs.journal import encode, parse_nodeid, parse_plain, plain_eval
from evalharness.runs.records import Recorded, RunRecords, set_generations
from evalharness.runs.repeats import repeat_number
from evalharness.runs.schema import EngineEntry, EvalEntry, EvalLine, Row

NOT_RUN = "not run: "
"""How the problem of a test begins that never ran."""
ENDED = "the session ended before it"
"""Why it did not, where nothing more is known."""
_APART = ("options", "generation", "generations", "steps")  # encoded once for many rows, or there as bytes


def write_samples(run_dir: Path, rows: Sequence[Row]) -> None:
    """Write samples.jsonl whole or not at all, row by row; raises `RecordError`."""
    with write_atomically(run_dir / "samples.jsonl", "the journal beside it keeps what was recorded") as file:
        file.writelines(_lines(rows))


def _lines(rows: Iterable[Row]) -> Iterator[bytes]:
    with ExitStack() as stack:
        files: dict[Path, int] = {}

        def whole(generation: object) -> bytes:
            if generation is None:
                return b"null"
            recorded = cast("Recorded", generation)
            if recorded.path not in files:
                files[recorded.path] = os.open(recorded.path, os.O_RDONLY)
                stack.callback(os.close, files[recorded.path])
            return os.pread(files[recorded.path], recorded.num_bytes, recorded.offset)

        options: dict[int, bytes] = {}  # rows share them; by their own ids, as long as the rows hold them

        def encoded(shared: Any) -> bytes:
            if id(shared) not in options:
                options[id(shared)] = encode(shared).encode("ascii")
            return options[id(shared)]

        for row in rows:
            short = encode({name: value for name, value in row.items() if name not in _APART})
            line = [short[:-1].encode("ascii")]
            if "options" in row:
                line += b',"options":', encoded(row["options"])
            line += b',"generation":', whole(row["generation"])
            if "generations" in row:
                line += b',"generations":', _array(map(whole, row["generations"]))
            if "steps" in row:
                line += b',"steps":', _array(_array(map(whole, step)) for step in row["steps"])
            yield b"".join((*line, b"}\n"))


def _array(elements: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(elements) + b"]"


_OF_JOURNAL = ("cases", "options", "num_all_cases", "num_all_tests")  # of an eval's line: the rows have the first two, `partial` the others


def eval_entries(records: RunRecords, rows: Sequence[Row]) -> list[EvalEntry]:
    """Return the evals for run.json: everything but their cases and decoding options, which every row has.

    Generation plugins were in force where something was generated: not in an eval whose `rows` have no generations, or score responses.
    """
    entries = [{name: value for name, value in line.items() if name not in _OF_JOURNAL} for line in records.evals.values()]
    for entry in entries:
        if entry.get("plugins"):
            made = (row["generation"] for row in rows if row["eval"] == entry["name"] and row["generation"] is not None)
            if all(generation["finish_reason"] == "scored" for generation in made):
                entry["plugins"] = []
    return [cast("EvalEntry", entry) for entry in entries]


def write_rows(
    run_dir: Path,
    records: RunRecords,
    engines: Mapping[str, EngineEntry],
    nodeids: Iterable[str],
    run_id: str,
    *,
    plain: Sequence[str] = (),
    reason: str,
    crashes: Mapping[str, str] = MappingProxyType({}),
) -> list[Row]:
    """Write samples.jsonl with one row per collected test of an eval, and return the rows; raises `RecordError`.

    A test without a row did not run, for `reason`. `plain`: node ids of tests that take an engine and no case; those that name their engine
    get a row, too. `crashes` maps node ids of tests whose worker died to the error.
    """
    evals = records.evals
    # The controller of workers knows only ids, and another test's id may look like an eval's.
    of_evals = [nodeid for nodeid in nodeids if (not evals or nodeid.partition("::")[0] in evals) and not repeat_number(nodeid)]
    of_evals += [nodeid for nodeid in plain if parse_plain(nodeid, engines) is not None]
    rows = merge_rows(records, of_evals, missing_row(engines, evals, run_id, reason))
    note_crashes(records, rows, crashes)
    write_samples(run_dir, rows)
    return rows


def merge_rows(records: RunRecords, nodeids: Iterable[str], missing: Callable[[str], Row]) -> list[Row]:
    """Return one row per collected test, in collection order, without the long parts of its generations.

    `missing(nodeid)` returns the row of a test that never finished.
    """
    rows = records.rows
    return [rows[nodeid] if nodeid in rows else missing(nodeid) for nodeid in dict.fromkeys([*nodeids, *rows])]


def missing_row(engines: Mapping[str, EngineEntry], evals: Mapping[str, EvalLine], run_id: str, reason: str) -> Callable[[str], Row]:
    """Return a function from a node id to the row of a test that never ran, for `reason`; `engines` is by id."""

    def row(nodeid: str) -> Row:
        plain = None if (node := parse_nodeid(nodeid, engines)) is not None else parse_plain(nodeid, engines)
        node = node or plain
        if node is None:
            raise RecordError(f"{nodeid} was collected as an eval's test, but names none of the engines {', '.join(engines)}")
        cases = evals[node.path]["cases"] if node.path in evals and plain is None else {}
        name = evals.get(node.path, {}).get("name") or Path(node.path).stem.removeprefix("test_")
        case_id = node.case_id if node.case_id in cases else _unescaped(node.case_id)
        facts = cases.get(case_id, {})
        return {
            "nodeid": nodeid,
            "eval": name if plain is None else plain_eval(node.path, beside_eval=node.path in evals),
            "test": node.test,
            "case_id": case_id,
            "engine": node.engine,
            "checkpoint": engines[node.engine]["checkpoint"],
            "backend": engines[node.engine]["backend"],
            "outcome": "skip",
            "problem": f"{NOT_RUN}{reason}",
            "group": facts.get("group"),
            "tags": facts.get("tags", {}),
            **({"stratum": facts["stratum"]} if "stratum" in facts else {}),
            "scores": {},
            "generation": None,
            "prompt_sha256": None,
            "options": {},
            "run_id": run_id,
            "worker": None,
            "started_at": None,
            "duration_s": None,
        }

    return row


def _unescaped(case_id: str) -> str:
    """Return a case id as it was before pytest put it into a test's id."""
    try:
        return case_id.encode("ascii").decode("unicode_escape")
    except UnicodeError:
        return case_id


def count_outcomes(rows: Iterable[Row]) -> dict[str, int]:
    """Return the number of rows by outcome."""
    return dict(Counter[str](row["outcome"] for row in rows))


def note_crashes(records: RunRecords, rows: Iterable[Row], crashes: Mapping[str, str]) -> None:
    """Set each test whose worker died to error, even if the test itself had ended; keep its case's generations."""
    for row in rows:
        if row["nodeid"] not in crashes:
            continue
        row["outcome"], row["problem"] = "error", crashes[row["nodeid"]]
        if row["generation"] is None:
            by_worker = (cases for (_, *of_eval), cases in records.cases.items() if of_eval == [row["engine"], row["eval"]])
            of_case = (cases[row["case_id"]] for cases in by_worker if row["case_id"] in cases)
            case = next((case for case in of_case if case.generation(0) is not None), None)
            if case is not None:
                set_generations(row, case)
