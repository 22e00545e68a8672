"""Small run directories written as the recorder writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def generation(**changes: Any) -> dict[str, Any]:
    """Return a generation that ended well."""
    whole: dict[str, Any] = {
        "text": '{"count": 1}',
        "raw_text": '{"count": 1}<|im_end|>',
        "finish_reason": "stop",
        "stop_reason": 151645,
        "num_prompt_tokens": 20,
        "num_completion_tokens": 6,
        "seed": 7,
        "weight_version": None,
        "fallback": None,
        "ignored_options": [],
        "prompt_sha256": "ab12",
    }
    return {**whole, **changes}


def row(case_id: str = "case-1", **changes: Any) -> dict[str, Any]:
    """Return a passed row of `stage_a::test_summary` on `hf:tiny`; `text` sets the generation's text alone."""
    engine = changes.get("engine", "hf:tiny")
    backend, _, checkpoint = str(engine).partition(":")
    if "text" in changes:
        changes["generation"] = generation(text=changes.pop("text"))
    whole: dict[str, Any] = {
        "run_id": "first",
        "nodeid": f"evals/test_stage_a.py::test_summary[{engine}-{case_id}]",
        "eval": "stage_a",
        "test": "test_summary",
        "case_id": case_id,
        "group": None,
        "tags": {},
        "engine": engine,
        "checkpoint": checkpoint,
        "backend": backend,
        "outcome": "pass",
        "problem": None,
        "scores": {"valid": 1.0},
        "generation": generation(text=f'{{"case": "{case_id}"}}'),
        "prompt_sha256": "ab12",
        "options": {"max_new_tokens": 16},
        "worker": "main",
        "started_at": "2030-01-01T00:00:00+00:00",
        "duration_s": 0.5,
    }
    return {**whole, **changes}


def rows(count: int, **changes: Any) -> list[dict[str, Any]]:
    """Return `count` rows of different cases, all with the same changes."""
    return [row(f"case-{number}", **changes) for number in range(count)]


def invalid(case_id: str, problem: str = "image.jpg is empty", outcome: str = "invalid", **changes: Any) -> dict[str, Any]:
    """Return a row without a generation."""
    return row(case_id, outcome=outcome, problem=problem, scores={}, generation=None, **changes)


def write_run(run_dir: Path, samples: Sequence[Mapping[str, Any]], **run: Any) -> Path:
    """Write samples.jsonl and run.json (`run` overrides its keys) and return the folder."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples), encoding="utf-8")
    whole = {
        "schema_version": 1,
        "run_id": "first",
        "command": ["pytest", "evals"],
        "finished_at": "2030-01-01T00:01:00+00:00",
        "exit_code": 0,
    }
    (run_dir / "run.json").write_text(json.dumps({**whole, **run}), encoding="utf-8")
    return run_dir


def gate(passed: bool = True, **changes: Any) -> dict[str, Any]:
    """Return the entry of one gate."""
    whole = {
        "eval": "stage_a",
        "test": "test_summary",
        "engine": "hf:tiny",
        "expression": "valid >= 0.95",
        "metric": "valid",
        "value": 1.0 if passed else 0.5,
        "threshold": 0.95,
        "n": 4,
        "passed": passed,
        "reason": "" if passed else "0.500, needs ≥ 0.95",
    }
    return {**whole, **changes}
