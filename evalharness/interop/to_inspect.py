"""Writes a run as logs of Inspect (inspect_ai), version 2: `TIME_TASK_ID.eval`, a zip file, for each engine, eval and test.

A score is a scorer of its own, several answers of a case are epochs with the case's scores, and a case that could not be run or ended in an
error has Inspect's error.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from evalharness.interop.exported import Exported, TaskSums, file_name, prompt_of
from evalharness.interop.imported import plain, sha256_of
from evalharness.runs.schema import JUDGED, Generation, Row, RunFile, generations_of, mapping, text_of

_REASONS = {"length": "max_tokens", "tool": "tool_calls"}


def write_inspect(run_dir: Path, folder: Path) -> list[Path]:
    """Write a log of each engine, eval and test into `folder`, and return the files."""
    exported = Exported(run_dir)
    created = _time(exported.run.get("started_at"))
    folder.mkdir(parents=True, exist_ok=True)
    logs: dict[tuple[str, str], _Log] = {}
    with ExitStack() as stack:
        for task, row in exported.rows():
            key = task.engine, task.name
            if key not in logs:
                model = exported.model_of(task.engine)
                path = folder / f"{file_name(created.replace(':', '-'))}_{file_name(task.name)}_{_id(exported.run, task)}.eval"
                archive = stack.enter_context(zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED))
                logs[key] = _Log(task, model, archive, path)
            logs[key].add(row)
        for log in logs.values():
            log.end(exported.run, created, exported.aggregates(log.task))
    return [log.path for log in logs.values()]


def _time(value: object) -> str:
    """Return a time as Inspect wants it, now where it is none."""
    try:
        return datetime.fromisoformat(text_of(value if isinstance(value, str) else None)).isoformat(timespec="seconds")
    except ValueError:
        return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _id(run: RunFile, task: TaskSums) -> str:
    return sha256_of(f"{run.get('run_id')} {task.engine} {task.name}")[:22]


class _Log:
    """One log while it is written."""

    def __init__(self, task: TaskSums, model: str, archive: zipfile.ZipFile, path: Path) -> None:
        self.task, self.model, self.archive, self.path = task, model, archive, path
        self._ids: dict[str, int] = {}
        self._epochs = 1
        self._summaries: list[dict[str, Any]] = []

    def add(self, row: Row) -> None:
        """Write a case's samples."""
        case_id = text_of(row.get("case_id"))
        self._ids[case_id] = self._ids.get(case_id, 0) + 1
        if self._ids[case_id] > 1:
            return  # a duplicate row: a log has each sample once
        for epoch, sample in enumerate(self._samples(row, case_id), 1):
            self._epochs = max(self._epochs, epoch)
            name = f"{file_name(case_id)}-{sha256_of(case_id)[:8]}" if file_name(case_id) != case_id else case_id
            self._write(f"samples/{name}_epoch_{epoch}.json", {**sample, "epoch": epoch})
            short = {key: sample[key] for key in ("id", "input", "target", "scores")}
            error = {"error": text_of(sample["error"]["message"])} if "error" in sample else {}
            self._summaries.append({**short, "epoch": epoch, "completed": True, **error})

    def _samples(self, row: Row, case_id: str) -> Iterator[dict[str, Any]]:
        reference = row.get("reference")
        is_list = isinstance(reference, list) and all(isinstance(part, str) for part in reference)
        target = reference if is_list or isinstance(reference, str) else "" if reference is None else json.dumps(reference)
        scores = {name: {"value": value} for name, value in mapping(row.get("scores")).items()} if row.get("outcome") in JUDGED else {}
        metadata = {**mapping(row.get("tags")), "outcome": row.get("outcome"), "problem": row.get("problem"), "nodeid": row.get("nodeid")}
        metadata = {name: value for name, value in metadata.items() if value is not None}
        answers: list[Generation | None] = [*generations_of(row)]
        for answer in answers or [None]:
            prompt = prompt_of(answer)
            sample = {"id": case_id, "input": prompt, "target": target, "messages": self._messages(prompt, answer), "scores": scores}
            sample |= {"output": self._output(answer), "metadata": metadata, "store": {}, "events": [], "attachments": {}}
            sample |= {"model_usage": {self.model: _usage(answer)} if answer else {}}
            duration = row.get("duration_s")
            sample |= {"total_time": duration} if isinstance(duration, (int, float)) else {}
            if row.get("outcome") in ("error", "invalid"):
                sample["error"] = {"message": text_of(row.get("problem")), "traceback": "", "traceback_ansi": ""}
            yield sample

    def _messages(self, prompt: str, answer: Generation | None) -> list[dict[str, Any]]:
        said = {"role": "assistant", "content": text_of(answer.get("text")), "source": "generate", "model": self.model} if answer else None
        return [message for message in ({"role": "user", "content": prompt, "source": "input"}, said) if message]

    def _output(self, answer: Generation | None) -> dict[str, Any]:
        if answer is None:
            return {"model": self.model, "choices": [], "completion": ""}
        text = text_of(answer.get("text"))
        message = {"role": "assistant", "content": text, "source": "generate", "model": self.model}
        choice = {"message": message, "stop_reason": _REASONS.get(text_of(answer.get("finish_reason")), "stop")}
        return {"model": self.model, "choices": [choice], "completion": text, "usage": _usage(answer)}

    def end(self, run: RunFile, created: str, aggregates: Mapping[str, float]) -> None:
        """Write what the log says as a whole."""
        task, log_id = self.task, _id(run, self.task)
        scores = [_entry(name, score.num, task.num_rows, score.mean, score.stderr) for name, score in task.scores.items()]
        scores += [_entry(name, task.num_rows, task.num_rows, value, None) for name, value in aggregates.items()]
        spec = {
            "eval_id": log_id,
            "run_id": text_of(run.get("run_id")) or "run",
            "created": created,
            "task": task.name,
            "task_id": log_id,
            "task_version": 0,
            "task_attribs": {},
            "task_args": {},
            "dataset": {"name": task.name, "samples": len(self._ids), "sample_ids": list(self._ids), "shuffled": False},
            "model": self.model,
            "model_generate_config": {},
            "model_args": {},
            "config": {"epochs": self._epochs},
            "packages": {"evalharness": text_of(mapping(run.get("versions")).get("evalharness"))},
            "metadata": {"engine": task.engine},
        }
        status = "cancelled" if run.get("interrupted") or not run.get("finished_at") else "success"
        header = {
            "version": 2,
            "status": status,
            "eval": spec,
            "plan": {"name": "evalharness", "steps": [], "config": {}},
            "results": {"total_samples": task.num_rows, "completed_samples": task.num_rows, "scores": scores},
            "stats": {"started_at": created, "completed_at": _time(run.get("finished_at")), "model_usage": {}},
        }
        self._write("summaries.json", self._summaries)
        self._write("_journal/start.json", {"version": 2, "eval": spec, "plan": header["plan"]})
        self._write("header.json", header)

    def _write(self, name: str, values: object) -> None:
        self.archive.writestr(name, json.dumps(plain(values), ensure_ascii=True, allow_nan=False))


def _entry(name: str, num: int, of: int, mean: float, stderr: float | None) -> dict[str, Any]:
    metrics = {"mean": _metric("mean", mean), **({} if stderr is None else {"stderr": _metric("stderr", stderr)})}
    counts = {"scored_samples": num, "unscored_samples": of - num}
    return {"name": name, "scorer": name, **counts, "params": {}, "metrics": metrics}


def _metric(name: str, value: float) -> dict[str, Any]:
    return {"name": name, "value": value, "params": {}}


def _usage(answer: Generation | Mapping[str, Any]) -> dict[str, int]:
    num_prompt, num_made = (
        count if isinstance(count := answer.get(name), int) else 0 for name in ("num_prompt_tokens", "num_completion_tokens")
    )
    return {"input_tokens": num_prompt, "output_tokens": num_made, "total_tokens": num_prompt + num_made}
