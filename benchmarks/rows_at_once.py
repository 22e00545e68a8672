"""Answers the same chats with several numbers of rows at once, and once with `--tune`, on one vLLM engine.

    python -m benchmarks.rows_at_once [--shape 4b] [--prompts 4096] [--rows 512 256 128]

Prints tokens per second by number of rows; vLLM's own number comes first and last, so that a host that changes its speed shows. What the
tuner measured on the way stands below, and the rate of the run in which it did.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.vllm_overhead import machine, make_checkpoint, make_messages
from evalharness.api.options import ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions
from evalharness.backends.base import Prompt, SamplingPlan
from evalharness.backends.vllm.backend import VllmBackend
from evalharness.backends.vllm.tuning import RowTuning, machine_of


def rate_of(backend: VllmBackend, prompts: Sequence[Prompt], limit: int | None) -> float:
    """Return tokens per second with so many requests under way, None: as the tuner says."""
    backend._engine._llm.reset_prefix_cache()
    if limit is not None:
        backend._window = limit
    began = time.perf_counter()
    num_tokens = sum(len(output.token_ids) for output in backend.generate(prompts) if not isinstance(output, tuple))
    return num_tokens / (time.perf_counter() - began)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("small", "4b"), default="4b")
    parser.add_argument("--prompts", type=int, default=4096)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rows", type=int, nargs="*", default=[512, 256])
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        path = make_checkpoint(arguments.shape, Path(folder))
        backend = VllmBackend(ModelLoadConfig(str(path), variant="text"), VlmPreprocessOptions(), VllmEngineOptions(max_model_len=2048))
        plan = SamplingPlan(arguments.new_tokens, 0.0, 1.0, 1.0, 0, (), (), True, 0, False, True, None)
        ids = [backend.tokenizer.apply_chat_template(chat)["input_ids"] for chat in make_messages(backend.tokenizer, arguments.prompts)]
        prompts = [Prompt(index, "", tuple(row), len(row), plan) for index, row in enumerate(ids)]
        default = backend._window // 2
        print(f"{machine()}, vLLM {backend.describe()['vllm']}, start {backend.describe()['load_s']} s, {len(prompts)} chats", flush=True)
        rate_of(backend, prompts[: 2 * default], 2 * default)

        def measured(name: str, limit: int | None) -> None:
            print(f"| {name} | {rate_of(backend, prompts, limit):,.0f} tok/s |", flush=True)

        measured(f"{default} rows, vLLM's own number", 2 * default)
        for rows in arguments.rows:
            measured(f"{rows} rows", rows)
        os.environ["XDG_CACHE_HOME"] = folder  # what another run has chosen is not to be known; only now, as vLLM's caches lie there, too
        versions: dict[str, Any] = backend._versions()
        backend._tuning = RowTuning(default, machine_of(backend._engine.config, backend._arguments, versions))
        measured("--tune, first time", None)
        print(json.dumps(backend._tuning.facts()))
        backend._tuning = None
        measured(f"{default} rows again", 2 * default)
        backend.close()


if __name__ == "__main__":
    main()
