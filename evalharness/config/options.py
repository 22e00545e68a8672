"""The options of a run, one row each. The pytest options, the environment variables and the keys of both files are derived from it.

Knows nothing about pytest. What a row may hold is in config_option.py and config_kinds.py, how values are found in config.py.
Over 300 lines: it is one table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.backends import AUTO, SERVERS, known_backends, unknown_backend
from evalharness.config.kinds import Arguments, Choice, Flag, Folder, NameList, Number, Option, PathList, PerCheckpoint, Text
from evalharness.config.sources import ADDRESS, ALIASES, DeviceList

__all__ = ["ARGUMENTS", "LEGAL", "OPTIONS", "PATTERN", "cases_of_shard", "read_shard"]


# Parts of an eval's cases, for jobs that know nothing of each other: `--shard 2/8` is the same part wherever it runs

PATTERN = r"[1-9]\d{0,4}/[1-9]\d{0,4}"
LEGAL = "a part and how many there are, such as 1/8, from 1 to 8"

_T = TypeVar("_T")


def read_shard(text: str) -> tuple[int, int]:
    """Return which part, from 1, and of how many; `ConfigError` where there is no such part."""
    part, num_parts = map(int, text.split("/"))
    if part > num_parts:
        raise ConfigError(f"--shard {text} is no part: of {num_parts} parts the last is {num_parts}/{num_parts}")
    return part, num_parts


def cases_of_shard(cases: Sequence[_T], text: str | None) -> Sequence[_T]:
    """Return every n-th of the cases, beginning with the i-th: parts are of equal size, and alike where cases are sorted by kind."""
    if text is None:
        return cases
    part, num_parts = read_shard(text)
    return cases[part - 1 :: num_parts]


_RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_DTYPES = ("float32", "float16", "bfloat16")


def _unknown_dtype(name: str) -> str:
    return f"must be one of {', '.join(_DTYPES)}, got {name!r}{did_you_mean(name, _DTYPES)}"


_EVALS_OWN = "default: what the eval says"

OPTIONS: tuple[Option, ...] = (
    Option(
        "backend",
        NameList(lambda: (AUTO, *known_backends()), lambda name: unknown_backend(name, AUTO)),
        f"Backends to run on, comma-separated: {', '.join(known_backends())}; each is one engine per checkpoint; or auto, for what works "
        "best here for each checkpoint (default: hf)",
        default=("hf",),
        metavar="NAME[,NAME…]",
    ),
    Option(
        "model",
        PathList(),
        "Checkpoint folder, or a pattern such as 'runs/sft-42/checkpoint-*'; may be given several times (default: none)",
        default=(),
        metavar="PATH",
    ),
    Option(
        "base_model",
        Folder(),
        "Base checkpoint of the LoRA adapters that --model names (default: the one that adapter_config.json names)",
        metavar="FOLDER",
        only_for=("hf", "vllm"),
    ),
    Option(
        "wait",
        Number(integer=False, minimum=0),
        "Wait up to so many seconds, before anything runs, for checkpoints that are still being written (default: 0, skip them)",
        default=0,
        metavar="SECONDS",
        only_for=("hf", "vllm"),
    ),
    Option("data", Folder(), "Folder that the evals load their cases from (default: the eval's own)", metavar="FOLDER"),
    Option(
        "limit",
        Number(minimum=1, hint_if_too_small="; leave it out to run every case"),
        "Run the first N cases of each eval only (default: all cases)",
        metavar="N",
    ),
    Option(
        "shard",
        Text(PATTERN, legal=LEGAL),
        "Run the i-th of n parts of each eval's cases only, the same part wherever it runs; `evalharness merge` puts the parts together "
        "(default: all cases)",
        metavar="i/n",
    ),
    Option(
        "spot",
        Number(minimum=0),
        "Cases per engine that evals with spot checks show in outputs/, drawn with --seed (default: 0, none)",
        default=0,
        metavar="N",
    ),
    Option("max_new_tokens", Number(minimum=1), f"Longest generation, in tokens ({_EVALS_OWN}, otherwise 256)", metavar="N"),
    Option("temperature", Number(integer=False, minimum=0), f"Sampling temperature, 0 is greedy ({_EVALS_OWN}, otherwise 0)", metavar="T"),
    Option(
        "top_p",
        Number(integer=False, above=0, maximum=1),
        f"Probability mass that sampling draws from, above 0 and up to 1 ({_EVALS_OWN}, otherwise 1)",
        metavar="P",
    ),
    Option(
        "repetition_penalty",
        Number(integer=False, above=0),
        f"Factor against tokens that were there before, 1 is none ({_EVALS_OWN}, otherwise 1)",
        metavar="F",
    ),
    Option(
        "thinking",
        Flag(),
        "Let models think before they answer, where the chat template has a switch for it; rows then tell thought and answer apart "
        "(default: off)",
        default=False,
    ),
    Option(
        "max_thinking_tokens",
        Number(minimum=0),
        f"Tokens that a model may think, then the mark that ends its thought is written for it ({_EVALS_OWN}, otherwise no limit)",
        metavar="N",
    ),
    Option(
        "thinking_marks",
        Text(r"[^,\s]+,[^,\s]+", legal="two marks with a comma between them"),
        "What a model opens and closes a thought with (default: <think>,</think>)",
        metavar="OPEN,CLOSE",
    ),
    Option(
        "seed",
        Number(minimum=0, maximum=2**32 - 1),
        "Seed of sampling, from which each case and sample gets its own (default: 0)",
        default=0,
        metavar="N",
    ),
    Option("num_samples", Number(minimum=1), "Generations per case; more than 1 needs a temperature (default: 1)", default=1, metavar="N"),
    Option("max_pixels", Number(minimum=1), "Largest area of an image after resizing, in pixels (default: the checkpoint's)", metavar="N"),
    Option("min_pixels", Number(minimum=1), "Smallest area of an image after resizing, in pixels (default: the checkpoint's)", metavar="N"),
    Option(
        "dtype",
        NameList(lambda: _DTYPES, _unknown_dtype),
        "Type of the weights while running: float32, float16 or bfloat16; of several, comma-separated, each is an engine of its own "
        "(default: bfloat16 on a GPU, float32 otherwise)",
        metavar="TYPE[,TYPE…]",
    ),
    Option(
        "device",
        Text(r"(cpu|cuda|mps|xpu)(:\d+)?", legal="a device such as cpu, cuda or cuda:1"),
        "Device for the hf backend: cpu, cuda, cuda:1… (default: cuda if there is one, otherwise cpu)",
        metavar="DEVICE",
        only_for=("hf",),
    ),
    Option(
        "attn_implementation",
        Text(r"\S+", legal="the name of an attention implementation such as sdpa"),
        "Attention of the hf backend: eager, sdpa, flash_attention_2… (default: transformers' choice)",
        metavar="NAME",
        only_for=("hf",),
    ),
    Option(
        "tensor_parallel_size",
        Number(minimum=1),
        "GPUs that one vLLM engine spreads a checkpoint over (default: 1)",
        default=1,
        metavar="N",
        only_for=("vllm",),
    ),
    Option(
        "pipeline_parallel_size",
        Number(minimum=1),
        "Stages that one vLLM engine cuts a checkpoint into, each on --tensor-parallel-size GPUs (default: 1)",
        default=1,
        metavar="N",
        only_for=("vllm",),
    ),
    Option(
        "distributed_executor_backend",
        Choice(("mp", "ray", "uni", "external_launcher")),
        "How vLLM runs an engine of several GPUs; ray also on GPUs of other hosts (default: vLLM's choice)",
        metavar="mp|ray|uni|external_launcher",
        only_for=("vllm",),
    ),
    Option(
        "engine_option",
        Arguments(),
        "One more engine argument of vLLM, such as max_num_seqs=64; the value is JSON or text; may be given several times (default: none)",
        default=(),
        metavar="NAME=VALUE",
        only_for=("vllm",),
    ),
    Option(
        "gpu_memory_utilization",
        Number(integer=False, above=0, maximum=1),
        "Fraction of a GPU's memory that vLLM takes, above 0 and up to 1 (default: vLLM's own)",
        metavar="F",
        only_for=("vllm",),
    ),
    Option(
        "max_model_len",
        Number(minimum=1),
        "Longest prompt plus generation, in tokens; vLLM makes room for no more (default: the checkpoint's)",
        metavar="N",
    ),
    Option(
        "enforce_eager",
        Flag(),
        "Start vLLM without compiling (eager): ready sooner, slower afterwards (default: eager on a CPU, compiled on a GPU)",
        only_for=("vllm",),
    ),
    Option(
        "devices",
        DeviceList(),
        "What the run may use: cpu, or GPUs, counted within CUDA_VISIBLE_DEVICES; with -n each worker gets GPUs of its own "
        "(default: all that are visible)",
        metavar="cpu|gpu:N[,gpu:M…]",
        only_for=("hf", "max", "vllm"),
    ),
    Option(
        "share_devices",
        Flag(),
        "Let several workers use a GPU where -n asks for more than there are GPUs for (default: off, it is refused)",
        default=False,
        only_for=("hf", "vllm"),
    ),
    Option(
        "server",
        Choice(SERVERS),
        "Kind of server that the openai backend asks; vllm, sglang and max take and give token ids, others texts (default: vllm)",
        default="vllm",
        metavar="|".join(SERVERS),
        only_for=("openai",),
    ),
    Option(
        "base_url",
        ADDRESS,
        "Address of the server; its key is taken from EVALHARNESS_API_KEY or OPENAI_API_KEY "
        "(default: this machine, at the port that such servers have)",
        metavar="URL",
        only_for=("openai",),
    ),
    Option(
        "served_model",
        Text(r"\S+", legal="the name of a model without spaces"),
        "Name of the model on the server (default: its only one)",
        metavar="NAME",
        only_for=("openai",),
    ),
    Option(
        "concurrency",
        Number(minimum=1),
        "Requests that are with the server at once (default: 64)",
        default=64,
        metavar="N",
        only_for=("openai",),
    ),
    Option(
        "request_timeout",
        Number(integer=False, above=0),
        "Seconds that the server may take for one answer; asked three times at most (default: 120)",
        default=120.0,
        metavar="S",
        only_for=("openai",),
    ),
    Option(
        "adapter_dir",
        Folder(),
        "Folder that a server on another machine sees under the same path, for copies of adapters while it has them (default: this "
        "machine's temporary files)",
        metavar="FOLDER",
        only_for=("openai",),
    ),
    Option(
        "hang_timeout",
        Number(integer=False, minimum=0),
        "Seconds without a sign of life after which a worker (-n) is killed and its work goes on elsewhere; six times as many where it "
        "computes but no result comes; 0 waits for ever (default: 600)",
        default=600.0,
        metavar="S",
    ),
    Option(
        "cache",
        Flag(),
        "Take answers to equal deterministic questions from memory instead of generating them again; --no-cache also leaves a "
        "cache_dir of the settings alone (default: off, on with a cache_dir)",
    ),
    Option(
        "cache_dir",
        Folder(),
        "Keep answers to deterministic questions in this folder, for later runs and for runs beside this one (default: none)",
        metavar="FOLDER",
    ),
    Option(
        "fallback_backend",
        Choice(tuple(name for name in known_backends() if name not in ("fake", "max"))),  # neither sees
        "Backend for image requests that the chosen one cannot take; recorded in every affected row (default: none, it is an error)",
        metavar="NAME",
    ),
    Option(
        "unsupported_options",
        Choice(("refuse", "warn")),
        "What to do where a backend cannot honour an option: refuse before anything runs, or warn and record it (default: refuse)",
        default="refuse",
        metavar="refuse|warn",
    ),
    Option("trust_remote_code", Flag(), "Run Python code that a checkpoint brings along (default: off)", default=False),
    Option("allow_pickle", Flag(), "Load pickled weights, which can run any code (default: off, safetensors only)", default=False),
    Option(
        "run_id",
        Text(_RUN_ID, legal="1 to 100 letters, digits, '.', '_' or '-', not starting with a mark"),
        "Name of the run and of its folder (default: UTC time and six random digits)",
        metavar="ID",
    ),
    Option(
        "resume",
        Text(_RUN_ID, legal="the name of a run, which is that of its folder in --report-dir"),
        "Go on with a run that broke off or has errors, with the options it was started with: what it has generated is not generated "
        "again (default: start a new run)",
        metavar="RUN_ID",
    ),
    Option("report_dir", Folder(), "Folder that gets one folder per run (default: reports)", default=Path("reports"), metavar="FOLDER"),
    Option(
        "baseline",
        Text(r"\S(.*\S)?", legal="the name of a baseline, a path, latest, or latest~1"),
        "What the gate no_regression compares with: baselines/NAME.json, a path of a baseline or run, or latest, the complete "
        "run in --report-dir that ended last; latest~1 is the one before it (default: none, the gate is not asked)",
        metavar="NAME|PATH|latest",
    ),
    Option(
        "coordinates",
        PerCheckpoint(Text(r"norm1000|unit|pixels|processed:[1-9]\d{0,3}", legal="norm1000, unit, pixels or processed:PATCH_SIZE")),
        "Space of the coordinates that models write, per checkpoint where it differs: norm1000 (0 to 1000), unit (0 to 1), pixels, or "
        "processed:14 (pixels as resized to patches of 14) (default: what the eval asks for)",
        metavar="[PATTERN=]SPACE",
    ),
    Option("variant", Choice(("vlm", "text")), "Treat checkpoints as vlm or text (default: as their config says)", metavar="vlm|text"),
)

ARGUMENTS = (*OPTIONS, *ALIASES)
"""What command line, environment and files may say; aliases are recorded as the options that they mean."""
