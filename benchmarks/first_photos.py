"""Asks one fresh vLLM engine about several batches of photos, and says what the first one waits for that later ones do not.

    python -m benchmarks.first_photos FOLDER [--kind vl-4b] [--photos 384] [--batches 4] [--set NAME=VALUE…]

First come the photos' preparation alone, by threads and by torch's own threads, then the batches, all photos different. For each it prints
seconds, the time to the first answer, what the processes were at (`sampling.py`), and which files of compiled kernels were written.
"""

from __future__ import annotations

import argparse
import getpass
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu_scaling import KINDS, MAX_MODEL_LEN, prepare
from benchmarks.sampling import read_samples, sampled_environment, top
from benchmarks.throughput.test_answers import MAX_NEW_TOKENS, load_cases, request

CACHES = (
    "~/.triton",
    "~/.cache/vllm",
    "~/.cache/flashinfer",
    "~/.nv",
    str(Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")),
)


def prepared_alone(backend: Any, requests: Sequence[Any], engine: Any) -> None:
    """Print how many photos a second are made ready, by threads of ours and of torch."""
    import torch

    from evalharness.api.options import GenerationOptions

    caught: list[Any] = []
    generate = backend.generate
    backend.generate = lambda prompts, **more: iter(caught.extend(prompts) or ())  # the prompts, as the engine makes them
    list(engine.stream(requests, GenerationOptions(max_new_tokens=1, eos_token_id=(), seed=0)))
    backend.generate = generate
    default = torch.get_num_threads()
    print("photos made ready a second, by threads of the harness and of torch:")
    for of_torch in dict.fromkeys((default, 1)):
        torch.set_num_threads(of_torch)
        for threads in (4, 8, 16):
            began = time.time()
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(backend._render, caught))
            print(f"  {threads} x {of_torch:2}: {len(caught) / (time.time() - began):7.1f}")
    torch.set_num_threads(default)


def memory_speeds() -> Iterator[str]:
    """Yield how fast this machine's memory takes what a batch of photos needs, in GB a second."""
    import torch

    parts = [torch.rand(1584, 1536).to(torch.bfloat16) for _ in range(40)]  # as many photos of 704 x 576 as the encoder takes at once
    num_bytes = sum(part.nbytes for part in parts)
    pinnable = torch.cuda.is_available()

    def speed(name: str, work: Callable[[], Any], times: int = 4) -> str:
        took = []
        for _ in range(times):
            began = time.perf_counter()
            kept = work()
            took.append(time.perf_counter() - began)
            del kept
        return f"  {name}: {', '.join(f'{num_bytes / seconds / 1e9:.2f}' for seconds in took)}"

    out = torch.cat(parts)
    yield speed("joined in memory used before", lambda: torch.cat(parts, out=out))
    yield speed("joined in memory just taken", lambda: torch.cat(parts))
    if pinnable:
        yield speed("joined in page-locked memory just taken", lambda: torch.cat(parts, out=torch.empty_like(out, pin_memory=True)))
        locked = torch.empty_like(out, pin_memory=True)
        yield speed("joined in page-locked memory used before", lambda: torch.cat(parts, out=locked))
        yield speed("sent to the GPU from it", lambda: (locked.to("cuda", non_blocking=True), torch.cuda.synchronize()))
    copies = [bytearray(part.nbytes) for part in parts[:1]]
    yield speed("copied as bytes", lambda: [bytes(copies[0]) for _ in parts])


def memory_by_threads() -> None:
    """Print `memory_speeds` with as many threads as there are cores, and with fewer."""
    import torch

    for number in dict.fromkeys((torch.get_num_threads(), 16, 4, 1)):
        torch.set_num_threads(number)
        print(f"{number} threads of torch's, GB a second, four times each:")
        print("\n".join(memory_speeds()), flush=True)


def files_in_caches() -> set[str]:
    """Return the files of compiled kernels that there are."""
    return {str(path) for folder in CACHES for path in Path(folder).expanduser().rglob("*") if path.is_file()}


def batches(folder: Path, num_batches: int) -> Iterator[list[Any]]:
    """Yield the requests in equal batches."""
    requests = [request(case) for case in load_cases(folder)]
    size = len(requests) // num_batches
    for number in range(num_batches):
        yield requests[number * size : (number + 1) * size]


def ask(folder: Path, samples: Path, num_batches: int, *, eager: bool) -> None:
    """Start an engine and ask it."""
    from evalharness.api.options import GenerationOptions, ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions
    from evalharness.backends.vllm.backend import VllmBackend
    from evalharness.engine.engine import Engine

    began = time.time()
    options = VllmEngineOptions(max_model_len=MAX_MODEL_LEN, enforce_eager=eager or None)
    backend = VllmBackend(ModelLoadConfig(str(folder / "checkpoint-0")), VlmPreprocessOptions(), options)
    ready = time.time()
    facts = {name: value for name, value in backend.describe().items() if name in ("vllm", "warm_up_s", "max_num_seqs")}
    print(f"ready after {ready - began:.1f} s: {facts}")
    with Engine(backend) as engine:
        generation = GenerationOptions(max_new_tokens=MAX_NEW_TOKENS, eos_token_id=(), seed=0)
        for number, requests in enumerate(batches(folder, num_batches), 1):
            known = files_in_caches()
            started, first = time.time(), 0.0
            num_tokens = 0
            for _, outcome in engine.stream(requests, generation):
                first = first or time.time()
                num_tokens += len(getattr(outcome, "token_ids", ()))
            ended = time.time()
            taken, waited = ended - started, first - started
            print(f"\nbatch {number}: {len(requests)} photos, {taken:.2f} s, first after {waited:.2f} s, {num_tokens / taken:,.0f} tok/s")
            new = sorted(files_in_caches() - known)
            print(f"  {len(new)} new files of kernels: {', '.join(Path(name).name for name in new[:12])}")
            time.sleep(0.2)
            print("\n".join(top(read_samples(samples), started, ended, 14)), flush=True)
        prepared_alone(backend, next(batches(folder, num_batches)), engine)
    print("memory, GB a second, four times each:")
    print("\n".join(memory_speeds()))
    for name in ("enabled", "defrag"):
        print(f"  transparent huge pages, {name}: {Path('/sys/kernel/mm/transparent_hugepage', name).read_text().strip()}")


def main(argv: Sequence[str] | None = None) -> None:
    """Prepare, then ask in a process whose threads are sampled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=[kind for kind in KINDS if "vl" in kind], default="vl-4b")
    parser.add_argument("--photos", type=int, default=384, help="Photos in each batch (default: 384)")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="Variables of the environment")
    parser.add_argument("--eager", action="store_true", help="Start without compilation: sooner, and the photos' way is the same")
    parser.add_argument("--memory", action="store_true", help="Only print memory speeds, by torch's threads; starts no engine")
    parser.add_argument("--asking", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    folder = arguments.folder.resolve() / arguments.kind
    if arguments.memory:
        memory_by_threads()
        return
    if arguments.asking is not None:
        ask(folder, arguments.asking, arguments.batches, eager=arguments.eager)
        return
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder, KINDS[arguments.kind], arguments.photos * arguments.batches, 1)
    samples = folder / f"samples-{time.time():.0f}"
    environment = {
        **sampled_environment(samples),
        "VLLM_LOGGING_LEVEL": "WARNING",
        **dict(pair.partition("=")[::2] for pair in arguments.set),
    }
    own = [str(arguments.folder), "--kind", arguments.kind, "--batches", str(arguments.batches), "--asking", str(samples)]
    own += ["--eager"] if arguments.eager else []
    raise SystemExit(subprocess.run([sys.executable, "-m", "benchmarks.first_photos", *own], env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
