"""Starts one vLLM engine several times, each in a process of its own with all caches kept, and says where the seconds go.

    python -m benchmarks.engine_start FOLDER [--shape 4b] [--starts 2] [--set VLLM_ENABLE_STARTUP_PLAN=1] [--engine-option NAME=VALUE]

`--set` sets variables from the second start on, `--engine-option` likewise. Prints, by start, the seconds between lines of vLLM's own log,
the longest stretches first, and what its processes were at (`sampling.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.first_photos import files_in_caches
from benchmarks.random_checkpoints import SHAPES, make_random_checkpoint
from benchmarks.sampling import read_samples, sampled_environment, top

MAX_MODEL_LEN = 2048
_READY = "engine-start-ready "


def start_one(path: str, options: Sequence[str]) -> None:
    """Start an engine in this process, answer one prompt, and print how long each took."""
    began = time.time()
    from evalharness.api.options import ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions
    from evalharness.backends.vllm.backend import VllmBackend
    from evalharness.backends.vllm.settings import device_type
    from tests.backends.plans import PLAN

    imported = time.time()
    device_type()
    found = time.time()
    extra = tuple((name, _value(text)) for name, _, text in (option.partition("=") for option in options))
    backend = VllmBackend(ModelLoadConfig(path), VlmPreprocessOptions(), VllmEngineOptions(max_model_len=MAX_MODEL_LEN, extra=extra))
    ready = time.time()
    from evalharness.backends.base import Prompt

    (_,) = backend.generate([Prompt(0, "", (5, 6, 7), 3, PLAN)])
    answered = time.time()
    facts = {name: backend.describe()[name] for name in ("vllm", "torch", "max_num_seqs", "num_kv_blocks")}
    facts |= {"TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR"), "compiled modules": compiled_modules()}
    backend.close()
    seconds = {
        "imports of the harness": imported - began,
        "platform of vLLM": found - imported,
        "engine": ready - found,
        "first answer": answered - ready,
        "close": time.time() - answered,
    }
    print(_READY + json.dumps({"began": began, "ready": ready, "seconds": seconds, "facts": facts}), flush=True)


def compiled_modules() -> str:
    """Return whether Python finds the modules of vLLM compiled, or compiles them at each start."""
    import vllm

    folder = Path(vllm.__file__).parent
    num_compiled = sum(1 for _ in folder.rglob("*.pyc"))
    return f"{num_compiled} of {sum(1 for _ in folder.rglob('*.py'))} in {folder}, written: {not sys.dont_write_bytecode}"


def _folder_of(path: str) -> str:
    """Return where a file of a cache lies, without the hashes in its path."""
    return "/".join("*" if len(part) > 24 else part for part in Path(path).parent.parts[1:8])


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def watched_start(path: Path, folder: Path, environment: dict[str, str], options: Sequence[str]) -> None:
    """Start an engine in a process of its own and print where its seconds went."""
    given = [part for option in options for part in ("--engine-option", option)]
    command = [sys.executable, "-m", "benchmarks.engine_start", str(folder), "--one", str(path), *given]
    environment = {**sampled_environment(folder / "samples"), "VLLM_LOGGING_LEVEL": "INFO", **environment}
    known = files_in_caches()
    began = time.time()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert process.stdout is not None
    lines: list[tuple[float, str]] = [(began, "the process is started")]
    reader = threading.Thread(target=lambda: lines.extend((time.time(), line.rstrip()) for line in process.stdout or ()))
    reader.start()
    process.wait()
    reader.join()
    (folder / "log.txt").write_text("".join(f"{at - began:7.2f} {line}\n" for at, line in lines), encoding="utf-8")
    found = [json.loads(line.partition(_READY)[2]) for _, line in lines if _READY in line]
    if not found:
        print("\n".join(line for _, line in lines[-30:]))
        raise SystemExit(f"the engine did not start; all lines are in {folder / 'log.txt'}")
    (result,) = found
    ready = result["ready"]
    steps = {"interpreter": result["began"] - began, **result["seconds"]}
    print("  " + "; ".join(f"{name} {taken:.1f} s" for name, taken in steps.items()))
    print(f"  {result['facts']}; from nothing to ready {ready - began:.1f} s")
    print("  longest stretches of the log (seconds, from second, what came at its end):")
    gaps = [(after - at, at - began, line) for (at, _), (after, line) in pairwise(lines) if at < ready]
    for gap, since, line in sorted(gaps, reverse=True)[:16]:
        print(f"    {gap:6.1f}  {since:6.1f}  {line[:150]}")
    print(f"  new files of kernels: {dict(Counter(_folder_of(name) for name in files_in_caches() - known))}")
    print("  samples:")
    print("\n".join(top(read_samples(folder / "samples"), began, ready, 22)))


def main(argv: Sequence[str] | None = None) -> None:
    """Start the engines, or one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="4b")
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--engine-option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.one:
        start_one(arguments.one, arguments.engine_option)
        return
    folder = arguments.folder.resolve() / f"start-{arguments.shape}"
    path = folder / "checkpoint-0"
    if not (path / "config.json").exists():
        make_random_checkpoint(arguments.shape, path)
    for number in range(arguments.starts):
        changed = dict(pair.partition("=")[::2] for pair in arguments.set) if number else {}
        options = arguments.engine_option if number else []
        more = "".join(f", {name}={value}" for name, value in changed.items())
        print(f"\nstart {number + 1} of {arguments.shape}, {os.cpu_count()} cores{more} {' '.join(options)}")
        own = folder / f"{time.time():.0f}"
        own.mkdir()
        watched_start(path, own, changed, options)


if __name__ == "__main__":
    main()
