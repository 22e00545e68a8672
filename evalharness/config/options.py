"""The options of a run, each a field of `RunConfig`: source of pytest's options, environment variables and keys of settings files.

Knows nothing about pytest. `resolve` in `evalharness.config` reads the values.
"""

# ruff: noqa: RUF009 -- `option` returns a dataclass field

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.api.options import Variant
from evalharness.backends import AUTO, SERVERS, known_backends, unknown_backend
from evalharness.config.kinds import (
    Arguments,
    Choice,
    DeviceList,
    Flag,
    Folder,
    NameList,
    Number,
    Option,
    PathList,
    PerCheckpoint,
    PluginList,
    Setting,
    Text,
    option,
)

if TYPE_CHECKING:
    from evalharness.api.hooks import GenerationPlugin

_T = TypeVar("_T")


def read_shard(text: str) -> tuple[int, int]:
    """Return (part, number of parts) of `2/8`; parts count from 1. Raises `ConfigError` for a part beyond the last."""
    part, num_parts = map(int, text.split("/"))
    if part > num_parts:
        raise ConfigError(f"--shard {text} does not exist; the last of {num_parts} parts is {num_parts}/{num_parts}")
    return part, num_parts


def cases_of_shard(cases: Sequence[_T], text: str | None) -> Sequence[_T]:
    """Return every n-th case from the i-th on: parts of equal size, alike even where cases are sorted by kind."""
    if text is None:
        return cases
    part, num_parts = read_shard(text)
    return cases[part - 1 :: num_parts]


_ADDRESS = Text(r"https?://\S+", legal="an address such as http://127.0.0.1:8000")
_RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_DTYPES = ("float32", "float16", "bfloat16")


def _unknown_dtype(name: str) -> str:
    return f"must be one of {', '.join(_DTYPES)}, got {name!r}{did_you_mean(name, _DTYPES)}"


DECODING = ("max_new_tokens", "temperature", "top_p", "repetition_penalty", "max_thinking_tokens")
"""Options that outrank an eval's own decoding options of the same names."""
EVALS_OWN = "the eval's own, otherwise "


_COUNT, _NATURAL = Number(int, minimum=1), Number(int, minimum=0)
_NOT_NEGATIVE, _POSITIVE, _FRACTION = Number(float, minimum=0), Number(float, above=0), Number(float, above=0, maximum=1)
_FLAG, _FOLDER = Flag(), Folder()
_NO_WEIGHTS, _NO_PIXELS = ("fake", "openai"), ("fake", "max", "openai")
_VLLM, _OPENAI, _HF_VLLM = ("vllm",), ("openai",), ("hf", "vllm")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The value of every option and its origin. An option that was not set has its default, mostly None."""

    backend: tuple[str, ...] = option(
        NameList(lambda: (AUTO, *known_backends()), lambda name: unknown_backend(name, AUTO)),
        f"Backends to run on, comma-separated: {', '.join(known_backends())}; each runs every checkpoint. auto picks, for each checkpoint, "
        "the best backend that works here",
        default=("hf",),
        metavar="NAME[,NAME…]",
    )
    model: tuple[str, ...] = option(
        PathList(or_hub_names=True),
        "Checkpoint folder, a pattern such as 'runs/sft-42/checkpoint-*', or a name in the hub's cache (ORG/NAME@REVISION); repeatable",
        default=(),
        metavar="PATH",
    )
    download: bool = option(
        _FLAG, "Fetch checkpoints that the local cache of the hub lacks (default: use cached ones only)", default=False, not_for=("fake",)
    )
    base_model: Path | None = option(
        Folder(or_hub_name=True),
        "Base checkpoint of the LoRA adapters that --model names (default: the base that adapter_config.json names)",
        only_for=_HF_VLLM,
    )
    wait: float = option(
        _NOT_NEGATIVE,
        "Seconds to wait, before anything runs, for checkpoints that are still being written (default: 0, skip them)",
        default=0,
        metavar="SECONDS",
        only_for=_HF_VLLM,
    )
    data: Path | None = option(_FOLDER, "Folder or file from which the evals load their cases (default: the eval's own folder)")
    limit: int | None = option(
        Number(int, minimum=1, hint_if_too_small="; leave it out to run every case"),
        "Run only a sample of N cases of each eval, drawn with --seed, spread over tags and groups (default: all cases)",
    )
    limit_first: int | None = option(
        Number(int, minimum=1, hint_if_too_small="; leave it out to run every case"),
        "Run only the first N cases of each eval, in the order of its data (default: all cases)",
    )
    shard: str | None = option(
        Text(r"[1-9]\d{0,4}/[1-9]\d{0,4}", legal="a part and the number of parts, such as 1/8, from 1 to 8"),
        "Run only part i of n of each eval's cases, the same on every machine; `evalharness merge` joins the parts (default: all cases)",
        metavar="i/n",
    )
    spot: int = option(_NATURAL, "Number of cases per engine that evals with spot checks write to outputs/, drawn with --seed", default=0)
    max_new_tokens: int | None = option(_COUNT, f"Longest generation, in tokens (default: {EVALS_OWN}256)")
    temperature: float | None = option(_NOT_NEGATIVE, f"Sampling temperature; 0 is greedy (default: {EVALS_OWN}0)", metavar="T")
    top_p: float | None = option(
        _FRACTION, f"Nucleus sampling: probability mass to draw from, above 0 and up to 1 (default: {EVALS_OWN}1)", metavar="P"
    )
    repetition_penalty: float | None = option(
        _POSITIVE, f"Penalty factor for tokens that occurred before; 1 is none (default: {EVALS_OWN}1)", metavar="F"
    )
    thinking: bool = option(
        _FLAG,
        "Let models think before they answer, if the chat template has a switch for it; rows keep thought and answer apart",
        default=False,
    )
    as_chat: bool = option(
        _FLAG,
        "Ask as a chat what an eval's template asks as bare text, such as the public benchmarks, which are for base models as they stand",
        default=False,
    )
    max_thinking_tokens: int | None = option(
        _NATURAL, f"Longest thought, in tokens; a longer one is ended for the model (default: {EVALS_OWN}no limit)"
    )
    thinking_marks: str | None = option(
        Text(r"[^,\s]+,[^,\s]+", legal="two marks with a comma between them"),
        "Marks that open and close a thought (default: <think>,</think>)",
        metavar="OPEN,CLOSE",
    )
    special_tokens_as_text: bool = option(
        _FLAG,
        "Keep text what the data of chats and scored texts writes like a special token, such as <|im_end|> in a question (default: tokens, "
        "as in training and on servers; the last screen names the cases)",
        default=False,
    )
    plugin: tuple[str, ...] = option(
        PluginList(),
        "Generation plugin that acts on every eval's questions, with its options: balanced-json-stop, object-cap:num_objects=60, "
        "duplicate-object-stop, duplicate-object-ban, or one of an installed package; repeatable",
        default=(),
        metavar="NAME[:option=value…]",
    )
    seed: int = option(Number(int, minimum=0, maximum=2**32 - 1), "Sampling seed; every case and sample derives its own from it", default=0)
    num_samples: int = option(_COUNT, "Generations per case; more than 1 needs a temperature", default=1)
    max_pixels: int | None = option(
        _COUNT, "Largest area of an image after resizing, in pixels (default: the checkpoint's)", not_for=_NO_PIXELS
    )
    min_pixels: int | None = option(
        _COUNT, "Smallest area of an image after resizing, in pixels (default: the checkpoint's)", not_for=_NO_PIXELS
    )
    dtype: tuple[str, ...] | None = option(
        NameList(lambda: _DTYPES, _unknown_dtype),
        "Type of the weights at run time: float32, float16 or bfloat16; several, comma-separated, make an engine each "
        "(default: bfloat16 on a GPU, float32 otherwise)",
        metavar="TYPE[,TYPE…]",
        not_for=_NO_WEIGHTS,
    )
    device: str | None = option(
        Text(r"(cpu|cuda|mps|xpu)(:\d+)?", legal="a device such as cpu, cuda or cuda:1"),
        "Device of the hf backend: cpu, cuda, cuda:1… (default: cuda if available, otherwise cpu)",
        metavar="DEVICE",
        only_for=("hf",),
    )
    attn_implementation: str | None = option(
        Text(r"\S+", legal="the name of an attention implementation such as sdpa"),
        "Attention implementation of the hf backend: eager, sdpa, flash_attention_2… (default: transformers' choice)",
        metavar="NAME",
        only_for=("hf",),
    )
    tensor_parallel_size: int = option(_COUNT, "GPUs that share each layer of a checkpoint in one vLLM engine", default=1, only_for=_VLLM)
    pipeline_parallel_size: int = option(
        _COUNT, "Stages into which one vLLM engine splits a checkpoint, each on --tensor-parallel-size GPUs", default=1, only_for=_VLLM
    )
    distributed_executor_backend: str | None = option(
        Choice(("mp", "ray", "uni", "external_launcher")),
        "How vLLM runs an engine; ray can use GPUs of other hosts, uni starts sooner on a CPU (default: vLLM's choice)",
        only_for=_VLLM,
    )
    engine_option: tuple[tuple[str, Any], ...] = option(
        Arguments(),
        "Any other engine argument of vLLM, such as max_num_seqs=64; the value is JSON or text; repeatable",
        default=(),
        metavar="NAME=VALUE",
        only_for=_VLLM,
    )
    gpu_memory_utilization: float | None = option(
        _FRACTION, "Fraction of a GPU's memory that vLLM takes, above 0 and up to 1 (default: vLLM's own)", metavar="F", only_for=_VLLM
    )
    max_model_len: int | None = option(
        _COUNT, "Longest prompt plus generation, in tokens; vLLM reserves memory for it (default: the checkpoint's)"
    )
    enforce_eager: bool | None = option(
        _FLAG,
        "Start vLLM without compilation (eager): ready sooner, slower afterwards (default: eager on a CPU, compiled on a GPU)",
        only_for=_VLLM,
    )
    batch_invariant: bool = option(
        _FLAG,
        "Start vLLM on a GPU with kernels whose answers do not depend on what else is in the batch: slower, no noise from batching",
        default=False,
        only_for=_VLLM,
    )
    tune: bool = option(
        _FLAG,
        "Measure while answers are made how many rows at once are fastest in vLLM here, and remember it (default: off, vLLM's number)",
        default=False,
        only_for=_VLLM,
    )
    draft_from: str | None = option(
        Text(r"\S(.*\S)?", legal="a run's name or path, latest, or none"),
        "Run whose answers are drafts of this run's: vLLM then checks many tokens at once, hf the whole answer, and no answer changes but "
        "for rounding; latest is the complete run in --report-dir that ended last, or, where there is none, this run's own answers so far "
        "(default: none)",
        metavar="RUN|latest|none",
        only_for=_HF_VLLM,
    )
    devices: str | None = option(
        DeviceList(),
        "Devices that the run may use: cpu, or GPUs by their number within CUDA_VISIBLE_DEVICES; with -n each worker gets its own GPUs "
        "(default: all visible GPUs)",
        metavar="cpu|gpu:N[,gpu:M…]",
        only_for=("hf", "max", "vllm"),
    )
    share_devices: bool = option(
        _FLAG,
        "Let several workers share a GPU if -n exceeds what the GPUs allow (default: off, such a run is refused)",
        default=False,
        only_for=_HF_VLLM,
    )
    server: str = option(
        Choice(SERVERS),
        "Kind of server behind the openai backend; vllm, sglang and max exchange token ids, the others text",
        default="vllm",
        only_for=_OPENAI,
    )
    base_url: str | None = option(
        _ADDRESS,
        "Address of the server; its key comes from EVALHARNESS_API_KEY or OPENAI_API_KEY (default: this machine, --server's port)",
        metavar="URL",
        only_for=_OPENAI,
    )
    served_model: str | None = option(
        Text(r"\S+", legal="the name of a model without spaces"),
        "The model's name on the server (default: its only model)",
        metavar="NAME",
        only_for=_OPENAI,
    )
    concurrency: int = option(_COUNT, "Requests sent to the server at the same time", default=64, only_for=_OPENAI)
    request_timeout: float = option(
        _POSITIVE,
        "Seconds that the server may take for one answer, in each of up to three attempts",
        default=120.0,
        metavar="S",
        only_for=_OPENAI,
    )
    adapter_dir: Path | None = option(
        _FOLDER,
        "Folder for copies of adapters, which the server must see under the same path (default: this machine's temporary files)",
        only_for=_OPENAI,
    )
    executor: str = option(
        Choice(("local", "ray")),
        "Where -n starts workers: local, on this machine, or ray, on the hosts of a Ray cluster; ray without -n takes all of the cluster",
        default="local",
    )
    ray_address: str | None = option(
        Text(r"\S+", legal="the address of a Ray cluster, such as 10.0.0.1:6379, or local"),
        "Ray cluster of --executor ray, HOST:PORT; local starts one here (default: RAY_ADDRESS, else this host's cluster, else one is "
        "started here)",
        metavar="ADDRESS",
    )
    hang_timeout: float = option(
        _NOT_NEGATIVE,
        "Seconds without a heartbeat after which a worker (-n) is killed and another takes over its work; six times as long while it "
        "computes; 0 waits forever",
        default=600.0,
        metavar="S",
    )
    noise: int = option(
        Number(int, minimum=0, maximum=100),
        "Ask a sample of each eval's cases N times more, in other order and company, and measure how often answers and scores differ; "
        "gates and comparisons then take no difference within this noise for one",
        default=0,
    )
    noise_cases: int = option(_COUNT, "Most cases of each eval that --noise repeats, drawn with --seed, spread over groups", default=64)
    cache: bool | None = option(
        _FLAG,
        "Reuse answers to identical deterministic requests instead of generating them again; --no-cache also ignores a cache_dir of the "
        "settings files (default: off, on with a cache_dir)",
    )
    cache_dir: Path | None = option(_FOLDER, "Folder that keeps answers to deterministic requests for later and parallel runs")
    fallback_backend: str | None = option(
        Choice(tuple(name for name in known_backends() if name not in ("fake", "max"))),
        "Backend for image requests that the primary backend cannot run; every such row records it (default: none, they are errors)",
        metavar="NAME",
    )
    unsupported_options: str = option(
        Choice(("refuse", "warn")),
        "What to do if a backend cannot honour an option: refuse before anything runs, or warn and record it",
        default="refuse",
    )
    trust_remote_code: bool = option(_FLAG, "Run Python code that a checkpoint contains", default=False, not_for=("fake",))
    allow_pickle: bool = option(
        _FLAG, "Load pickled weights, which can run any code (default: off, safetensors only)", default=False, not_for=_NO_PIXELS
    )
    run_id: str = option(
        Text(_RUN_ID, legal="1 to 100 letters, digits, '.', '_' or '-', starting with a letter or digit"),
        "Name of the run and of its folder (default: UTC time and six random digits)",
        default="",
        metavar="ID",
    )
    resume: str | None = option(
        Text(_RUN_ID, legal="the name of a run, that is, of its folder in --report-dir"),
        "Continue a run that was interrupted or has errors, with its own options and stored generations (default: start a new run)",
        metavar="RUN_ID",
    )
    accept_changes: bool = option(
        _FLAG,
        "Accept that references or code of an eval have changed since the resumed run or the baseline, and record it (default: off, such a "
        "run or gate is refused)",
        default=False,
    )
    keep_going: bool = option(
        _FLAG,
        "Ask every case even if a test's first 16 all end in the same error (default: off, the test ends there; --resume asks the rest)",
        default=False,
    )
    report_dir: Path = option(_FOLDER, "Folder that gets one folder per run", default=Path("reports"))
    baseline: str | None = option(
        Text(r"\S(.*\S)?", legal="the name of a baseline, a path, latest, or latest~1"),
        "Baseline of the gates no_regression, drop(…) and rise(…): baselines/NAME.json, the path of a baseline or run, or latest, the "
        "complete run in --report-dir that ended last (latest~1: the run before it) (default: none, such gates are skipped)",
        metavar="NAME|PATH|latest",
    )
    until_certain: float | None = option(
        Number(float, minimum=0, maximum=0.5, bare=0.03),
        "Ask cases in random order, and no more of an eval once its gates no_regression are certain: regressed, or no metric worse by this "
        "margin or more; 0 asks all (default: ask all; without a value 0.03, 3 points)",
        metavar="MARGIN",
    )
    coordinates: tuple[tuple[str, str], ...] | None = option(
        PerCheckpoint(Text(r"norm1000|unit|pixels|processed:[1-9]\d{0,3}", legal="norm1000, unit, pixels or processed:PATCH_SIZE")),
        "Coordinate space of the models' answers, per checkpoint if they differ: norm1000 (0 to 1000), unit (0 to 1), pixels, or "
        "processed:14 (pixels after resizing to patches of 14) (default: the eval's)",
        metavar="[PATTERN=]SPACE",
    )
    variant: Variant | None = option(
        Choice(("vlm", "text")),
        "Treat checkpoints as vlm (vision-language) or text (default: as their config says)",
        not_for=("fake", "max"),
    )

    origins: Mapping[str, str] = field(default_factory=dict)
    """{option: its origin} of the options that someone set, even to their default."""

    def origin(self, name: str) -> str:
        """Return the option's origin: "command line", "environment EVALHARNESS_SEED", "evalharness.toml"… or "default"."""
        return self.origins.get(name, "default")

    def is_set(self, name: str) -> bool:
        """Return whether someone set the option, even to its default."""
        return name in self.origins

    @cached_property
    def plugins(self) -> tuple[GenerationPlugin, ...]:
        """The generation plugins that `plugin` names."""
        from evalharness.generation_plugins.named import make_plugin  # few runs have any

        return tuple(map(make_plugin, self.plugin))

    @property
    def settings(self) -> dict[str, Setting]:
        """{option: its value and origin}."""
        return {name: Setting(getattr(self, name), self.origin(name)) for name in _BY_NAME}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Setting]) -> RunConfig:
        """Return the config with these values and origins; options that are absent have their default."""
        origins = {name: setting.origin for name, setting in settings.items() if setting.origin != "default"}
        return cls(**{name: setting.value for name, setting in settings.items()}, origins=origins)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return {name: {"value", "origin"}} as plain JSON data. No option holds a secret."""
        return {
            name: {"value": None if setting.value is None else _BY_NAME[name].kind.to_json(setting.value), "origin": setting.origin}
            for name, setting in self.settings.items()
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Mapping[str, Any]]) -> RunConfig:
        """Return the config that `to_json` wrote; unknown options are ignored, absent ones have their default."""
        return cls.from_settings(
            {
                name: Setting(_BY_NAME[name].kind.from_json(entry["value"]), entry["origin"])
                for name, entry in values.items()
                if name in _BY_NAME and entry["value"] is not None and isinstance(entry["origin"], str)
            }
        )


OPTIONS: tuple[Option, ...] = tuple(
    Option(entry.name, default=entry.default, **entry.metadata) for entry in fields(RunConfig) if entry.metadata
)
_BY_NAME = {entry.name: entry for entry in OPTIONS}


class EngineMeaning(NamedTuple):
    """What a trainer's name of an engine stands for: a backend that loads the weights, a kind of server, or either."""

    backend: str | None = None
    server: str | None = None


ENGINES: Mapping[str, EngineMeaning] = {
    "pytorch": EngineMeaning(backend="hf"),
    "huggingface": EngineMeaning(backend="hf"),
    "max": EngineMeaning(backend="max", server="max"),
    "vllm": EngineMeaning(backend="vllm", server="vllm"),
    "sglang": EngineMeaning(server="sglang"),
    "trtllm": EngineMeaning(server="trtllm"),
    "mlx": EngineMeaning(server="mlx"),
    "openai": EngineMeaning(server="openai"),
    "auto": EngineMeaning(backend=AUTO),
}

ALIASES: tuple[Option, ...] = (
    Option(
        "inference_engine",
        Choice(tuple(ENGINES)),
        "Alias of --backend and --server: pytorch and huggingface mean hf; max and vllm run in this process, or are servers if an "
        "address is given; sglang, trtllm, mlx and openai are servers (default: as --backend says)",
        metavar="NAME",
        table="inference",
    ),
    Option("inference_url", _ADDRESS, "Alias of --base-url (default: as --base-url says)", metavar="URL", table="inference"),
)

ARGUMENTS = (*OPTIONS, *ALIASES)
"""Everything that command line, environment and files may set; aliases are recorded as the options that they stand for."""
