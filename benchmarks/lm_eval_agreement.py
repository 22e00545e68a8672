"""Do the public text benchmarks give lm-evaluation-harness's numbers with a real model? Same rows, same checkpoint, float32, on a CPU.

    python -m benchmarks.lm_eval_agreement --model CHECKPOINT [--max-new-tokens 32]

Runs evals/public on the rows of fixtures/public with the backend hf, and lm-eval's own tasks with its own model class; compares prompts by
their token ids, log-probabilities of each choice, generated texts, and each item's metrics.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from evalharness.api.requests import CompletionRequest
from evalharness.api.scoring import ScoringRequest
from evalharness.engine.text_ids import bare_prompt, joined_ids

ROOT = Path(__file__).parents[1]


def run_evals(model: Path, max_new_tokens: int, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run of all public text evals."""
    evals = [
        f"evals/public/test_{name}.py" for name in ("arc", "gsm8k", "hellaswag", "ifeval", "math500", "mmlu", "mmlu_pro", "truthfulqa")
    ]
    options = [
        "--backend",
        "hf",
        "--dtype",
        "float32",
        "--max-new-tokens",
        str(max_new_tokens),
        "--report-dir",
        str(folder),
        "--run-id",
        "run",
    ]
    subprocess.run(
        [sys.executable, "-m", "pytest", *evals, "--data", "fixtures/public", "--model", str(model), *options],
        cwd=ROOT,
        check=False,
        stdout=subprocess.DEVNULL,
    )
    return [json.loads(line) for line in (folder / "run" / "samples.jsonl").read_bytes().splitlines()]


def main() -> None:
    """Print what agrees, for each task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Checkpoint directory")
    parser.add_argument("--max-new-tokens", type=int, default=32, help="Cap of generated texts (default: 32)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = run_evals(arguments.model, arguments.max_new_tokens, Path(folder))

    from evalharness.backends.torchvision_cpu import register_missing_operators

    register_missing_operators()
    from lm_eval.models.huggingface import HFLM

    from tests.public.lm_eval_oracle import RecordedModel, judged_by_lm_eval, official_task
    from tests.public.test_text_benchmarks import BENCHMARKS

    class Compared(HFLM):  # type: ignore[misc]
        """lm-eval's model, which notes how far a run of ours is from it."""

        ours = RecordedModel(rows)
        num_prompts = num_equal = num_texts = num_equal_texts = 0
        largest_gap = 0.0

        def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
            """Return its own sums, compared."""
            found = super().loglikelihood(requests, disable_tqdm=True)
            for request, (total, _) in zip(requests, found, strict=True):
                context, continuation = request.args
                theirs = tuple(map(tuple, self._encode_pair(context, continuation)))
                joined = joined_ids(ScoringRequest(CompletionRequest(context), continuation, join="text"), context, self.tokenizer)
                self._note_prompt(theirs == (joined.prompt, joined.response))
                self.largest_gap = max(self.largest_gap, abs(total - self.ours.sums[context + continuation]))
            return found

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
            """Return its own texts, compared."""
            for request in requests:
                request.args[1]["max_gen_toks"] = arguments.max_new_tokens
            found = super().generate_until(requests, disable_tqdm=True)
            for request, text in zip(requests, found, strict=True):
                prompt = request.args[0]
                self._note_prompt(tuple(self.tok_encode(prompt)) == bare_prompt(CompletionRequest(prompt), self.tokenizer)[1])
                self.num_texts += 1
                self.num_equal_texts += text == self.ours.texts[prompt]
            return found

        def _note_prompt(self, is_equal: bool) -> None:
            self.num_prompts += 1
            self.num_equal += is_equal

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    model = Compared(pretrained=str(arguments.model), dtype="float32", device="cpu", batch_size=1)
    num_items = num_equal_items = 0
    for name, tasks in BENCHMARKS.items():
        for task in tasks:
            theirs = official_task(task.name, task.files, **task.changes)
            items, _ = judged_by_lm_eval(theirs, model)
            own = [
                row for row in rows if row["eval"] == name.partition("/")[0] and (task.tag is None or task.tag[1] in row["tags"].values())
            ]
            same = [
                all(math.isclose(row["scores"][ours], item[metric], abs_tol=1e-4) for metric, ours in task.scores.items())
                for row, item in zip(own, items, strict=True)
            ]
            num_items, num_equal_items = num_items + len(same), num_equal_items + sum(same)
            print(f"{task.name}: {sum(same)} of {len(same)} items equal", flush=True)
    print(f"prompts equal token for token: {model.num_equal} of {model.num_prompts}; equal items: {num_equal_items} of {num_items}")
    print(f"largest gap of log-probabilities: {model.largest_gap:.1e} nats; texts equal: {model.num_equal_texts} of {model.num_texts}")


if __name__ == "__main__":
    main()
