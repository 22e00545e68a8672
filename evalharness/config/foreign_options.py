"""What to write instead of options that lm-evaluation-harness and lmms-eval have, and `pytest evals …` has not."""

from __future__ import annotations

_LEAVE_OUT = "leave it out: "
_BATCHES = f"{_LEAVE_OUT}batches are as large as memory allows"
_ALWAYS_KEPT = f"{_LEAVE_OUT}prompts, answers and scores of all samples are always in the run's samples.jsonl (evalharness show RUN)"
_EXPORT = "after the run: evalharness export RUN --format wandb, mlflow or tensorboard"

_INSTEAD = {
    "apply-chat-template": "write --as-chat; the template is the checkpoint's own",
    "batch-size": _BATCHES,
    "cache-requests": f"{_LEAVE_OUT}prompts are made as they are asked",
    "check-integrity": f"{_LEAVE_OUT}files are checked as they are read",
    "config": "options of every run stand in evalharness.toml (docs/command_line.md)",
    "confirm-run-unsafe-code": f"{_LEAVE_OUT}generated code is never run",
    "fewshot-as-multiturn": "write --as-chat: worked examples are turns then, unless the eval's template says turns=False",
    "gen-kwargs": "write its parts as options: --max-new-tokens, --temperature, --top-p…; `until` stands in the eval, as stop=",
    "hf-hub-log-args": _EXPORT,
    "include-path": "name the eval's file: pytest path/to/test_mine.py …",
    "log-samples": _ALWAYS_KEPT,
    "log-samples-suffix": "write --run-id NAME",
    "max-batch-size": _BATCHES,
    "max-tokens": "write --max-new-tokens",
    "metadata": f"{_LEAVE_OUT}it stands in the eval",
    "model-args": "write --model CHECKPOINT for its pretrained=, and options for the rest: --backend, --dtype, --max-model-len…",
    "num-fewshot": "it stands in the eval: few_shot(FILES, k) in its template",
    "offset": "select cases by -k or by their node ids, or write --shard 2/4",
    "output-path": "write --report-dir FOLDER",
    "predict-only": f"{_LEAVE_OUT}evalharness rescore RUN judges the answers again whenever a score has changed",
    "reasoning-tags": "write --thinking-marks OPENING,CLOSING; <think> is known",
    "repeats": "write --num-samples",
    "samples": "select cases by -k or by their node ids",
    "show-config": f"{_LEAVE_OUT}the run's run.json has all of it",
    "system-instruction": "it stands in the eval: description= of its template, or a message with the role system",
    "tasks": "name the evals' files: pytest evals/public/test_gsm8k.py … --data FOLDER (docs/shipped_evals.md lists them)",
    "trackio-args": _EXPORT,
    "use-cache": "write --cache, and for another place than the usual one --cache-dir FOLDER",
    "wandb-args": _EXPORT,
    "wandb-config-args": _EXPORT,
    "wandb-log-samples": _EXPORT,
    "write-out": _ALWAYS_KEPT,
}  # fmt: skip


def instead_of(flag: str) -> str:
    """Return what to write instead of an option of another harness (`--num_fewshot`), or "" for an unknown one."""
    return _INSTEAD.get(flag.removeprefix("--").replace("_", "-"), "")
