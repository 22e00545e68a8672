"""Do the public text benchmarks give lm-evaluation-harness's numbers with a real model? Same rows, same checkpoint, float32, on a CPU.

    python -m benchmarks.lm_eval_agreement --model CHECKPOINT [--max-new-tokens 32]

Runs evals/public on the rows of fixtures/public with the backend hf, and lm-eval's own tasks with its own model class; compares prompts by
their token ids, log-probabilities of each choice, generated texts, and each item's metrics. tests/public/test_smollm2.py does so for a few.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

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

    from tests.public.lm_eval_on_torch import Compared
    from tests.public.lm_eval_oracle import judged_by_lm_eval, official_task
    from tests.public.test_text_benchmarks import BENCHMARKS

    model = Compared(arguments.model, arguments.max_new_tokens)
    model.compare_with(rows)
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
    num_equal, num_equal_texts = model.num_prompts - len(model.unequal_prompts), model.num_texts - len(model.unequal_texts)
    print(f"prompts equal token for token: {num_equal} of {model.num_prompts}; equal items: {num_equal_items} of {num_items}")
    print(f"largest gap of log-probabilities: {model.largest_gap:.1e} nats; texts equal: {num_equal_texts} of {model.num_texts}")


if __name__ == "__main__":
    main()
