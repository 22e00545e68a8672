"""Files of other tools, of our own making, in their shapes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

DATE = "2030-01-01T10-00-00.123456"
KINDS = ("even", "odd")


def generated(doc_id: int, filter_name: str, score: float, text: str = "A: 4") -> dict[str, Any]:
    """Return a line of lm-eval's samples of a task that generates."""
    options = {"until": ["\n\n"], "do_sample": False, "temperature": 0.0}
    return {
        "doc_id": doc_id,
        "doc": {"question": f"{doc_id} + 1?", "kind": KINDS[doc_id % 2]},
        "target": str(doc_id + 1),
        "arguments": {"gen_args_0": {"arg_0": f"Q: {doc_id} + 1?\nA:", "arg_1": options}},
        "resps": [[text]],
        "filtered_resps": [text[-1:]],
        "filter": filter_name,
        "metrics": ["exact_match"],
        "doc_hash": "d",
        "prompt_hash": f"{doc_id:064}",
        "target_hash": "t",
        "exact_match": score,
    }


def chosen(doc_id: int, logprobs: Iterable[float], gold: int) -> dict[str, Any]:
    """Return a line of lm-eval's samples of a task with choices; numbers of responses are texts there."""
    logprobs = list(logprobs)
    acc = float(logprobs.index(max(logprobs)) == gold)
    return {
        "doc_id": doc_id,
        "doc": {"gold": gold},
        "target": str(gold),
        "arguments": {f"gen_args_{place}": {"arg_0": "Q", "arg_1": f" {letter}"} for place, letter in enumerate("abc")},
        "resps": [[[str(value), "False"]] for value in logprobs],
        "filtered_resps": [[str(value), "False"] for value in logprobs],
        "filter": "none",
        "metrics": ["acc", "word_perplexity"],
        "acc": acc,
        "word_perplexity": [-3.5, 2],
    }


def write_lm_eval(folder: Path, tasks: Mapping[str, list[dict[str, Any]]], model: str = "tiny", **results: Any) -> Path:
    """Write samples and results as lm-eval does, and return the folder of the model."""
    place = folder / model
    place.mkdir(parents=True)
    for task, lines in tasks.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (place / f"samples_{task}_{DATE}.jsonl").write_text(text, encoding="utf-8")
    whole = {"results": {}, "model_name": model, "lm_eval_version": "0.4.13", "config": {"model": "hf"}, **results}
    (place / f"results_{DATE}.json").write_text(json.dumps(whole), encoding="utf-8")
    return place


def inspect_log(samples: list[dict[str, Any]], task: str = "capitals") -> dict[str, Any]:
    """Return a log of Inspect."""
    spec = {"task": task, "model": "hf/tiny", "created": "2030-01-01T10:00:00+00:00", "packages": {"inspect_ai": "0.3.285"}}
    return {"version": 2, "status": "success", "eval": spec, "plan": {"config": {}}, "samples": samples}


def inspect_sample(sample_id: int, text: str, value: Any, epoch: int = 1, **more: Any) -> dict[str, Any]:
    """Return a sample of Inspect."""
    asked = {"role": "user", "content": f"Capital of {sample_id}?"}
    said = {"role": "assistant", "content": text}
    return {
        "id": sample_id,
        "epoch": epoch,
        "input": asked["content"],
        "target": "Paris",
        "messages": [asked, said],
        "output": {"choices": [{"message": said, "stop_reason": "stop"}], "usage": {"input_tokens": 11, "output_tokens": 3}},
        "scores": {"match": {"value": value, "answer": text}},
        "metadata": {"continent": "Europe"},
        **more,
    }
