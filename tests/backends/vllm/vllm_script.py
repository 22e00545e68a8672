"""Start an engine and generate for a long time; the tests interrupt and kill it. Not a test itself.

    python vllm_script.py CHECKPOINT

Prints one line of JSON per state: starting, generating (once the first result is there), closed; SIGUSR1 makes it print its stacks.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def main(path: str) -> None:
    from evalharness.api.options import ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions
    from evalharness.backends.vllm.backend import VllmBackend
    from tests.backends.vllm_models import chat, prompt_of

    say(state="starting")
    backend = VllmBackend(ModelLoadConfig(path), VlmPreprocessOptions(), VllmEngineOptions())
    try:
        prompts = (
            prompt_of(backend.tokenizer, chat("count"), index, max_new_tokens=4 if index == 0 else 3000, stop_token_ids=())
            for index in range(10_000)
        )
        for _ in backend.generate(prompts):
            say(state="generating")
    finally:
        backend.close()
        say(state="closed")


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # where it hangs, for a test that waits in vain
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and what they start, ignore it
    main(sys.argv[1])
