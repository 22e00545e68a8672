"""lm-evaluation-harness as the oracle of the public benchmarks: its own tasks, on local files, ask a model that answers from a run of ours.

A prompt that differs in one character is not in the run, so that equal results mean equal prompts, too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")

import lm_eval
import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.tasks._yaml_loader import load_yaml

from evalharness.backends.fake import FakeTokenizer

_TASKS = Path(lm_eval.__file__).parent / "tasks"
_FEWSHOT_SEED = 1234
"""What lm-eval draws worked examples with unless told otherwise."""


class _Chats(LM):  # type: ignore[misc]
    """Renders chats as the scripted backend does."""

    tokenizer_name = "fake"

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        options = {"tokenize": False, "continue_final_message": not add_generation_prompt, "enable_thinking": False}
        return str(FakeTokenizer().apply_chat_template(chat_history, add_generation_prompt=add_generation_prompt, **options))


class RecordedModel(_Chats):
    """Answers what a run recorded: texts by prompt, sums of log-probabilities by prompt and response."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.sums: dict[str, float] = {}
        self.tokens: dict[str, tuple[int, tuple[int, ...]]] = {}
        """How many tokens the prompt had, and those of the response that was scored."""
        for row in rows:
            for result in (row["generation"], *(one for step in row.get("steps") or () for one in step)):
                is_scored = result["finish_reason"] == "scored"
                asked = result["prompt_text"] + result["text"] * is_scored
                self.tokens[asked] = result["num_prompt_tokens"], tuple(result["token_ids"]) if is_scored else ()
                if is_scored:
                    self.sums[asked] = math.fsum(result["logprobs"])
                else:
                    self.texts[asked] = result["text"]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Return the recorded sums."""
        return [(_recorded(self.sums, "".join(request.args)), False) for request in requests]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Return the recorded sums of whole texts."""
        return [_recorded(self.sums, request.args[0]) for request in requests]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Return the recorded texts."""
        return [_recorded(self.texts, request.args[0]) for request in requests]


def _recorded(known: Mapping[str, Any], asked: str) -> Any:
    if asked not in known:
        raise AssertionError(f"lm-eval asks for what the run did not:\n{asked!r}\nThe run asked:\n{next(iter(known), None)!r}")
    return known[asked]


def official_config(name: str) -> dict[str, Any]:
    """Return the configuration of lm-eval's task (`gsm8k/gsm8k`) as it is shipped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_RANK", "1")  # only rank 0 downloads nltk's model of sentences, which nothing here asks for
        return dict(load_yaml(_TASKS / f"{name}.yaml", resolve_func=True))


def official_task(name: str, files: Mapping[str, str], **changes: Any) -> ConfigurableTask:
    """Return lm-eval's task (`gsm8k/gsm8k`) as it is shipped, but for where its splits are read and these changes of its configuration."""
    config = official_config(name)
    kind = "parquet" if next(iter(files.values())).endswith(".parquet") else "json"
    config |= {"dataset_path": kind, "dataset_name": None, "dataset_kwargs": {"data_files": dict(files)}}
    config |= {
        split: None for split in ("training_split", "validation_split", "test_split", "fewshot_split") if config.get(split) not in files
    }
    return ConfigurableTask(config=config | changes)


class _Asked(_Chats):
    """Keeps what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[Any, ...]] = []

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        self.requests += [request.args for request in requests]
        return [(-1.0, False)] * len(requests)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError

    def generate_until(self, requests: list[Instance]) -> list[str]:
        self.requests += [request.args for request in requests]
        return [""] * len(requests)


def asked_by_lm_eval(task: ConfigurableTask, *, as_chat: bool = False) -> list[tuple[Any, ...]]:
    """Return what a task asks: prompt and response, or prompt and options."""
    model = _Asked()
    judged_by_lm_eval(task, model, as_chat=as_chat)
    return model.requests


def judged_by_lm_eval(
    task: ConfigurableTask, model: LM, *, as_chat: bool = False, limit: int | None = None
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Return each item's metrics, `metric,filter` → value, in the order of the file, and the results over all."""
    name = task.config.task
    task.set_fewshot_seed(_FEWSHOT_SEED)  # it draws on and on from one generator
    chat = {"apply_chat_template": as_chat, "fewshot_as_multiturn": as_chat}
    found = evaluate(model, {name: task}, limit, log_samples=True, bootstrap_iters=0, **chat)
    items: list[dict[str, Any]] = [{} for _ in {sample["doc_id"] for sample in found["samples"][name]}]
    for sample in found["samples"][name]:
        items[sample["doc_id"]] |= {f"{metric},{sample['filter']}": sample[metric] for metric in sample["metrics"]}
    return items, {metric: value for metric, value in found["results"][name].items() if "," in metric and "stderr" not in metric}
