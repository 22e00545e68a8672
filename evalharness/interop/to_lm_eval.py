"""Writes a run as lm-evaluation-harness does with --log_samples: `MODEL/samples_TASK_DATE.jsonl` and `MODEL/results_DATE.json`.

Every case has a line for each filter; a score `metric@filter` is of that filter, all others are of "none". Cases without a verdict are left
out, as lm-eval knows none. Documents have the cases' ids if all of a test's are whole numbers, else their numbers, from 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from evalharness.interop.exported import Exported, TaskSums, file_name, logprob_sum, prompt_of, reference_text
from evalharness.interop.imported import sha256_of
from evalharness.runs.run_file import read_samples
from evalharness.runs.schema import JUDGED, EngineEntry, Row, generations_of, items_of, mapping, text_of

_NO_FILTER = "none"


def write_lm_eval(run_dir: Path, folder: Path) -> list[Path]:
    """Write the files of each engine below `folder`, and return them."""
    exported, date = Exported(run_dir), datetime.now(timezone.utc).replace(tzinfo=None).isoformat().replace(":", "-")
    files: dict[tuple[str, str], tuple[Path, TextIO]] = {}
    numbers: dict[tuple[str, str], int] = {}
    named = {_test_of(row) for row in read_samples(run_dir) if not _is_number(text_of(row.get("case_id")))}
    with ExitStack() as stack:
        for task, row in exported.rows():
            if row.get("outcome") not in JUDGED:
                continue
            key = task.engine, task.name
            if key not in files:
                path = folder / file_name(exported.model_of(task.engine)) / f"samples_{file_name(task.name)}_{date}.jsonl"
                path.parent.mkdir(parents=True, exist_ok=True)
                files[key] = path, stack.enter_context(path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n"))
            numbers[key] = numbers.get(key, -1) + 1
            for line in _lines(row, numbers[key] if _test_of(row) in named else int(text_of(row["case_id"]))):
                files[key][1].write(json.dumps(line, ensure_ascii=True, allow_nan=False) + "\n")
    written = [path for path, _ in files.values()]
    for engine in dict.fromkeys(engine for engine, _ in files):
        path = folder / file_name(exported.model_of(engine)) / f"results_{date}.json"
        tasks = [task for key, task in exported.tasks.items() if key in files and key[0] == engine]
        path.write_text(json.dumps(_results(exported, engine, tasks), indent=2), encoding="utf-8")
        written.append(path)
    return written


def _test_of(row: Row) -> tuple[object, ...]:
    return row.get("engine"), row.get("eval"), row.get("test")


def _is_number(case_id: str) -> bool:
    """Return whether an id is a whole number as it is written: only if all of a test's are, they are the documents' ids."""
    return case_id.isascii() and case_id.isdecimal() and len(case_id) < 16 and case_id == str(int(case_id))


def _lines(row: Row, doc_id: int) -> Iterator[dict[str, Any]]:
    """Yield a case's line for each of its filters."""
    by_filter: dict[str, dict[str, float]] = {}
    for name, value in mapping(row.get("scores")).items():
        metric, at, filter_name = name.partition("@")
        by_filter.setdefault(filter_name if at else _NO_FILTER, {})[metric] = value
    details, case_id = mapping(row.get("details")), text_of(row.get("case_id"))
    doc = details.get("doc")
    if not isinstance(doc, Mapping):
        doc = {"id": case_id, **mapping(row.get("tags")), "reference": row.get("reference")}
    answers, target = generations_of(row), reference_text(row)
    prompt = prompt_of(answers[0] if answers else None)
    arguments, responses = _requests(row, prompt)
    filtered = mapping(details.get("filtered"))
    for filter_name, scores in (by_filter or {_NO_FILTER: {}}).items():
        yield {
            "doc_id": doc_id,
            "doc": doc,
            "target": target,
            "arguments": {
                f"gen_args_{place}": {f"arg_{at}": part for at, part in enumerate(parts)} for place, parts in enumerate(arguments)
            },
            "resps": responses,
            "filtered_resps": items_of(filtered.get(filter_name)) or [part[0] for part in responses if part],
            "filter": filter_name,
            "metrics": list(scores),
            "doc_hash": sha256_of(json.dumps(doc, indent=2, ensure_ascii=False)),
            "prompt_hash": sha256_of(prompt),
            "target_hash": sha256_of(target),
            **scores,
        }


def _requests(row: Row, prompt: str) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return the arguments and responses of a case's requests: its choices, a scored response, or its answers.

    Whether greedy decoding gives a response is "None" where that was not asked; lists of choices of older runs lack log-probabilities.
    """
    choices = [mapping(choice) for choice in items_of(mapping(row.get("details")).get("choices"))]
    if choices and all(isinstance(choice.get("logprob"), (int, float)) or choice.get("logprob") == "-inf" for choice in choices):
        arguments = [[text_of(choice.get("context", prompt)), text_of(choice.get("text"))] for choice in choices]
        return arguments, [[[str(choice["logprob"]), str(choice.get("is_greedy"))]] for choice in choices]
    answers = generations_of(row)
    if answers and answers[0].get("finish_reason") == "scored":
        logprob = logprob_sum(answers[0])
        response = [] if logprob is None else [[str(logprob), str(answers[0].get("is_greedy"))]]
        return [[prompt, text_of(answers[0].get("text"))]], [response]
    options = row.get("options")
    return [[prompt, options if isinstance(options, Mapping) else {}]], [[text_of(answer.get("text")) for answer in answers]]


def _results(exported: Exported, engine: str, tasks: list[TaskSums]) -> dict[str, Any]:
    entry: EngineEntry = exported.engines.get(engine, {})
    results: dict[str, dict[str, Any]] = {}
    for task in tasks:
        results[task.name] = {"alias": task.name, "sample_len": task.num_rows}
        for name, score in task.scores.items():
            metric, at, filter_name = name.partition("@")
            place = filter_name if at else _NO_FILTER
            results[task.name][f"{metric},{place}"] = score.mean
            results[task.name][f"{metric}_stderr,{place}"] = "N/A" if score.stderr is None else score.stderr
        for name, value in exported.aggregates(task).items():
            metric, at, filter_name = name.partition("@")
            results[task.name][f"{metric},{filter_name if at else _NO_FILTER}"] = value
    return {
        "results": results,
        "configs": {task.name: {"task": task.name} for task in tasks},
        "versions": {task.name: "evalharness" for task in tasks},
        "n-shot": {},
        "n-samples": {task.name: {"original": task.num_rows, "effective": task.num_rows} for task in tasks},
        "config": {"model": text_of(entry.get("backend")), "model_args": {"pretrained": text_of(entry.get("checkpoint_path"))}},
        "date": datetime.now(timezone.utc).timestamp(),
        "chat_template_sha": entry.get("template_sha256"),
        "model_name": exported.model_of(engine),
        "model_name_sanitized": file_name(exported.model_of(engine)),
    }
