"""Options of a generation, and how its engine is made: checkpoint, prompt, images, vLLM, server. Importable without torch.

All classes are frozen and raise `ContractTypeError` or `ContractValueError` naming the field by its dotted path (`options.top_p`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from evalharness.api.checks import (
    MAX_TOKEN_ID,
    check_boolean,
    check_instance,
    check_integer,
    check_json,
    check_number,
    check_sequence,
    check_temperature,
    check_text,
    check_token_ids,
    known_keys,
    named_arguments,
    plain_name,
)
from evalharness.api.errors import ConfigError, ContractTypeError, ContractValueError
from evalharness.api.structured_output import StructuredOutput
from evalharness.api.thinking import DEFAULT_MARKS

LogprobsKind: TypeAlias = Literal["raw", "processed"]

_STOP, _EXTRA = "stop=StopOptions(stop=[…])", "extra_generation_kwargs={{'{}': …}}"
_EXTRAS = (
    *("top_k", "min_p", "typical_p", "min_new_tokens", "suppress_tokens", "bad_words_ids", "presence_penalty", "frequency_penalty"),
    *("repetition_detection", "num_beams", "length_penalty"),
)
_VLLM = (
    *("tensor_parallel_size", "pipeline_parallel_size", "distributed_executor_backend", "gpu_memory_utilization", "max_model_len"),
    *("enforce_eager", "batch_invariant"),
)
_MEANT_OF_GENERATION: Mapping[str, str] = {
    **dict.fromkeys(("max_tokens", "max_length", "max_completion_tokens", "max_gen_toks"), "max_new_tokens"),
    **dict.fromkeys(("stop_strings", "stop_sequences", "stops", "until"), _STOP),
    **dict.fromkeys(("stop_token_ids", "stop_ids"), "stop=StopOptions(stop_token_ids=[…])"),
    **{name: _EXTRA.format(name) for name in _EXTRAS},
    **dict.fromkeys(("n", "num_samples", "num_return_sequences"), "engine.generate_samples(requests, options, num_samples)"),
    **dict.fromkeys(("response_format", "guided_json", "json_schema", "structured_outputs"), "structured=StructuredOutput(…)"),
    **dict.fromkeys(("skip_special_tokens", "clean_up_tokenization_spaces", "strip_whitespace"), "decode=DecodeOptions(…)"),
    **dict.fromkeys(("enable_thinking", "continue_final_message"), "chat_template=ChatTemplateOptions(…) of the engine"),
    "eos_token_ids": "eos_token_id",
}
"""What arguments of other libraries are called here."""
_MEANT_OF_LOADING: Mapping[str, str] = {
    **dict.fromkeys(("model", "model_name", "model_path", "path", "pretrained_model_name_or_path"), "model_name_or_path"),
    **dict.fromkeys(("dtype", "precision"), "torch_dtype"),
    **dict.fromkeys(("adapter", "lora_path", "lora", "peft_model_id"), "adapter_path"),
    **dict.fromkeys(_VLLM, "vllm_options=VllmEngineOptions(…) of the engine"),
    **dict.fromkeys(("max_pixels", "min_pixels", "do_resize"), "preprocess=VlmPreprocessOptions(…) of the engine"),
    **dict.fromkeys(("base_url", "url", "served_model", "api_base"), "server_options=ServerOptions(…) of the engine"),
}

_MAX_SEED = 2**63 - 1  # the largest seed of every backend
_MAX_COUNT = 2**31 - 1  # of tokens; longer than any context


@named_arguments(
    **dict.fromkeys(("stop_strings", "strings", "stop_sequences"), "stop"), **dict.fromkeys(("ids", "token_ids"), "stop_token_ids")
)
@dataclass(frozen=True)
class StopOptions:
    """Where generation ends besides the end-of-sequence token: at strings and token ids.

    With `include_in_text` the stop string stays at the end of the text; otherwise the text ends before it.
    """

    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_in_text: bool = False

    def __post_init__(self) -> None:
        check_sequence("stop.stop", self.stop, "strings")
        for position, string in enumerate(self.stop):
            check_text(f"stop.stop[{position}]", string)
            if not string:
                raise ContractValueError(f"stop.stop[{position}] is empty; an empty stop string would end every text at once")
        check_sequence("stop.stop_token_ids", self.stop_token_ids, "ints")
        check_token_ids("stop.stop_token_ids", self.stop_token_ids)
        check_boolean("stop.include_in_text", self.include_in_text)
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any] | None) -> StopOptions:
        """Return options from plain data: None means no stops, empty strings are dropped, a bare string is refused."""
        values = {key: value for key, value in known_keys("stop", {} if mapping is None else mapping, cls).items() if value is not None}
        stop = values.pop("stop", ())
        check_sequence("stop.stop", stop, "strings")
        return cls(stop=tuple(s for s in stop if s != ""), **values)


@named_arguments()
@dataclass(frozen=True)
class DecodeOptions:
    """How token ids become `text`; `raw_text` follows clean-up and strip too, but always keeps special tokens."""

    skip_special_tokens: bool = True
    clean_up_tokenization_spaces: bool = False
    strip_whitespace: bool = True

    def __post_init__(self) -> None:
        for f in fields(self):
            check_boolean(f"decode.{f.name}", getattr(self, f.name))


@named_arguments(**_MEANT_OF_GENERATION)
@dataclass(frozen=True)
class GenerationOptions:
    """How to decode, alike on every backend. The defaults are those below; a checkpoint's generation config is not used.

    `temperature`: 0 (greedy), or 0.01 to 2, the range of every backend. `do_sample` None: sample exactly if `temperature > 0`. `seed`
    None: one is drawn and recorded. `logprobs`: record the log-probability (natural log) of each generated token; of `logprobs_kind`
    "raw" before temperature and penalties, "processed" after everything that shaped the draw (greedy: penalties and bans).
    `entropies`: record the entropy, in nats, of the whole raw distribution before each token. `max_prompt_tokens`: longer prompts, images
    expanded, raise `PromptTooLong` and are never cut; None: the context is the only limit. `structured`: the form of the answer.
    `max_thinking_tokens`: after so many tokens of thought its end mark is written for the model; None: no limit.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    do_sample: bool | None = None
    no_repeat_ngram_size: int | None = None
    stop: StopOptions = field(default_factory=StopOptions)
    seed: int | None = None
    use_cache: bool = True
    eos_token_id: int | tuple[int, ...] | None = None
    pad_token_id: int | None = None
    logprobs: bool = False
    max_prompt_tokens: int | None = None
    structured: StructuredOutput | None = None
    max_thinking_tokens: int | None = None
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    logprobs_kind: LogprobsKind = "raw"
    entropies: bool = False
    extra_generation_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_integer("options.max_new_tokens", self.max_new_tokens, minimum=1, maximum=_MAX_COUNT)
        check_temperature("options.temperature", self.temperature)
        check_number("options.top_p", self.top_p, integer=False, above=0.0, maximum=1.0)
        check_number("options.repetition_penalty", self.repetition_penalty, integer=False, above=0.0)
        check_boolean("options.do_sample", self.do_sample, optional=True)
        if self.do_sample and self.temperature == 0:
            raise ContractValueError(
                "options.do_sample is True but options.temperature is 0; set a temperature above 0 or leave do_sample unset"
            )
        for name, least in (("no_repeat_ngram_size", 0), ("max_prompt_tokens", 1), ("max_thinking_tokens", 0)):
            check_integer(f"options.{name}", getattr(self, name), minimum=least, maximum=_MAX_COUNT, optional=True)
        self._check_stop()
        check_integer("options.seed", self.seed, minimum=0, maximum=_MAX_SEED, optional=True)
        for name in ("use_cache", "logprobs", "entropies"):
            check_boolean(f"options.{name}", getattr(self, name))
        check_text("options.logprobs_kind", self.logprobs_kind)
        if self.logprobs_kind not in ("raw", "processed"):
            raise ContractValueError(f"options.logprobs_kind must be 'raw' or 'processed', got {self.logprobs_kind!r}")
        check_instance("options.structured", self.structured, StructuredOutput, optional=True)
        self._check_eos()
        check_integer("options.pad_token_id", self.pad_token_id, minimum=0, maximum=MAX_TOKEN_ID, optional=True)
        check_instance("options.decode", self.decode, DecodeOptions)
        self._check_extras()

    def _check_stop(self) -> None:
        given: object = self.stop
        if isinstance(given, (str, int, list, tuple)) and not isinstance(given, bool):
            values = list(given) if isinstance(given, (list, tuple)) else [given]
            name = "stop_token_ids" if values and all(isinstance(value, int) for value in values) else "stop"
            hint = f"did you mean stop=StopOptions({name}={values!r})?"
            raise ContractTypeError(f"options.stop must be a StopOptions, got {given!r} ({type(given).__name__}); {hint}")
        check_instance("options.stop", self.stop, StopOptions)

    def _check_eos(self) -> None:
        if self.eos_token_id is None or isinstance(self.eos_token_id, int):
            check_integer("options.eos_token_id", self.eos_token_id, minimum=0, maximum=MAX_TOKEN_ID, optional=True)
            return
        check_sequence("options.eos_token_id", self.eos_token_id, "ints")
        check_token_ids("options.eos_token_id", self.eos_token_id)
        object.__setattr__(self, "eos_token_id", tuple(self.eos_token_id))

    def _check_extras(self) -> None:
        check_instance("options.extra_generation_kwargs", self.extra_generation_kwargs, Mapping)
        named = {f.name for f in fields(self)} | {"max_length", "max_tokens", "stop_token_ids", "stop_strings"}
        for key in self.extra_generation_kwargs:
            check_text("options.extra_generation_kwargs key", key)
            if key in named:
                instead = f": {_MEANT_OF_GENERATION[key]}" if key in _MEANT_OF_GENERATION else ""
                raise ContractValueError(
                    f"options.extra_generation_kwargs.{key} would override a named option; set that one instead{instead}"
                )
            check_json(f"options.extra_generation_kwargs.{key}", self.extra_generation_kwargs[key])
        object.__setattr__(self, "extra_generation_kwargs", MappingProxyType(dict(self.extra_generation_kwargs)))

    def __reduce__(self) -> tuple[Any, ...]:
        # A mappingproxy cannot be pickled or deep-copied: rebuild from plain values.
        values = {**vars(self), "extra_generation_kwargs": dict(self.extra_generation_kwargs)}
        return _rebuilt, (values,)

    def __hash__(self) -> int:
        # Extra values may be lists, so only their names count here; equality compares the values too.
        values = tuple(getattr(self, f.name) for f in fields(self) if f.name != "extra_generation_kwargs")
        return hash((values, frozenset(self.extra_generation_kwargs)))

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn at random (False: greedy)."""
        return self.temperature > 0 if self.do_sample is None else self.do_sample

    def check_num_samples(self, name: str, num_samples: int) -> None:
        """Raise `ConfigError` for several samples of greedy options, which would be equal; `name` names the number in the message."""
        if num_samples > 1 and not self.samples:
            raise ConfigError(f"{name} {num_samples} with greedy decoding gives equal samples; set a temperature above 0 or ask for one")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> GenerationOptions:
        """Return options from plain data; numbers are cast, and unknown keys (`top_k`) go to `extra_generation_kwargs`."""
        check_instance("options", mapping, Mapping)
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in mapping.items() if key in known}
        for name in _NUMBERS:
            if values.get(name) is not None:
                values[name] = _cast(f"options.{name}", values[name], _NUMBERS[name])
        if isinstance(values.get("stop"), Mapping) or ("stop" in values and values["stop"] is None):
            values["stop"] = StopOptions.from_mapping(values["stop"])
        if isinstance(values.get("decode"), Mapping):
            values["decode"] = DecodeOptions(**known_keys("decode", values["decode"], DecodeOptions))
        if isinstance(values.get("structured"), Mapping):
            values["structured"] = StructuredOutput.from_mapping(values["structured"])
        extras = values.pop("extra_generation_kwargs", {})
        check_instance("options.extra_generation_kwargs", extras, Mapping)
        unknown = {key: value for key, value in mapping.items() if key not in known}
        for key in unknown:
            if key in extras:
                raise ContractValueError(f"options.{key} is given twice, once in extra_generation_kwargs; leave one out")
        return cls(**values, extra_generation_kwargs={**extras, **unknown})

    def to_json(self) -> dict[str, Any]:
        """Return every option as plain JSON data."""
        values: dict[str, Any] = dict(vars(self))
        values["stop"] = {"stop": list(self.stop.stop), "stop_token_ids": list(self.stop.stop_token_ids)}
        if self.stop.include_in_text:
            values["stop"]["include_in_text"] = True
        if self.structured is not None:
            values["structured"] = self.structured.to_json()
        values["decode"] = dict(vars(self.decode))
        values["extra_generation_kwargs"] = dict(self.extra_generation_kwargs)
        if isinstance(self.eos_token_id, tuple):
            values["eos_token_id"] = list(self.eos_token_id)
        return values


_INTEGERS = ("max_new_tokens", "no_repeat_ngram_size", "seed", "pad_token_id", "max_prompt_tokens", "max_thinking_tokens")
_NUMBERS: Mapping[str, type[int] | type[float]] = {
    **dict.fromkeys(_INTEGERS, int),
    **dict.fromkeys(("temperature", "top_p", "repetition_penalty"), float),
}
"""The options that `GenerationOptions.from_mapping` casts."""


def _rebuilt(values: dict[str, Any]) -> GenerationOptions:
    return GenerationOptions(**values)  # deepcopy copies the arguments of a function, but nothing inside a partial


def _cast(path: str, value: object, cast: type[int] | type[float]) -> int | float:
    if isinstance(value, bool):
        raise ContractTypeError(f"{path} must be a number, got {value!r} (bool)")
    try:
        number: int | float = cast(value)  # type: ignore[arg-type, call-overload]
    except OverflowError:
        raise ContractValueError(f"{path} must be finite, got {value!r}") from None
    except (TypeError, ValueError):
        raise ContractTypeError(f"{path} must be a number, got {value!r} ({type(value).__name__})") from None
    if cast is int and isinstance(value, float) and number != value:
        raise ContractValueError(f"{path} must be a whole number, got {value!r}")
    return number


Variant: TypeAlias = Literal["vlm", "text"]


@named_arguments(**_MEANT_OF_LOADING)
@dataclass(frozen=True)
class ModelLoadConfig:
    """Which checkpoint to load, and how: a folder, or a name on the hub that its cache has, or that `download` allows to fetch.

    `variant` None: as its config says. Remote code and pickled weights are off by default.

    `adapter_path`: the folder, or the name, of a LoRA adapter whose base is this checkpoint. Paths, torch's dtypes and devices are
    kept as texts.
    """

    model_name_or_path: str
    torch_dtype: str | None = None
    device: str | None = None
    device_map: object | None = None
    attn_implementation: str | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False
    variant: Variant | None = None
    adapter_path: str | None = None
    download: bool = False

    def __post_init__(self) -> None:
        for name in ("model_name_or_path", "adapter_path", "torch_dtype", "device"):
            object.__setattr__(self, name, plain_name(getattr(self, name)))
        if isinstance(self.device, int):
            raise ContractTypeError(f"model.device must be a str, got {self.device!r}; did you mean 'cuda:{self.device}'?")
        check_text("model.model_name_or_path", self.model_name_or_path)
        if not self.model_name_or_path.strip():
            raise ContractValueError("model.model_name_or_path is empty; give the path of a checkpoint directory")
        for name in ("torch_dtype", "device", "attn_implementation", "variant", "adapter_path"):
            check_text(f"model.{name}", getattr(self, name), optional=True)
        self._check_devices()
        check_boolean("model.trust_remote_code", self.trust_remote_code)
        check_boolean("model.allow_pickle", self.allow_pickle)
        check_boolean("model.download", self.download)
        if self.variant is not None:
            if self.variant.lower() not in ("vlm", "text"):
                raise ContractValueError(f"model.variant must be 'vlm', 'text' or None, got {self.variant!r}")
            object.__setattr__(self, "variant", self.variant.lower())

    def _check_devices(self) -> None:
        if self.device is not None and self.device_map is not None:
            raise ContractValueError(
                f"model.device={self.device!r} and model.device_map={self.device_map!r} both say where the weights go; give one of them"
            )
        places = self.device_map.values() if isinstance(self.device_map, Mapping) else (self.device_map,)
        for name, place in (("device", self.device), *(("device_map", place) for place in places)):
            if str(plain_name(place)).partition(":")[0] in ("meta", "disk"):
                raise ContractValueError(f"model.{name} names {place!r}, where there are no weights in memory; give cpu or a GPU")


@named_arguments(thinking="enable_thinking", marks="thinking_marks")
@dataclass(frozen=True)
class ChatTemplateOptions:
    """How messages become the prompt; thinking is off by default. `thinking_marks` open and close a thought.

    `special_tokens` False: what data writes like a special token stays text, in all chats and scored texts.
    """

    add_generation_prompt: bool = True
    tokenize: bool = False
    enable_thinking: bool = False
    continue_final_message: bool = False
    thinking_marks: tuple[str, str] = DEFAULT_MARKS
    special_tokens: bool = True

    def __post_init__(self) -> None:
        for name in ("add_generation_prompt", "tokenize", "enable_thinking", "continue_final_message", "special_tokens"):
            check_boolean(f"chat_template.{name}", getattr(self, name))
        check_sequence("chat_template.thinking_marks", self.thinking_marks, "texts")
        if len(self.thinking_marks) != 2 or not all(isinstance(mark, str) and mark.strip() for mark in self.thinking_marks):
            raise ContractValueError(f"chat_template.thinking_marks must be two texts such as {DEFAULT_MARKS}, got {self.thinking_marks!r}")
        object.__setattr__(self, "thinking_marks", tuple(self.thinking_marks))
        if self.add_generation_prompt and self.continue_final_message:
            raise ContractValueError(
                "chat_template.continue_final_message and chat_template.add_generation_prompt exclude each other; set one to False"
            )


@named_arguments()
@dataclass(frozen=True)
class VlmPreprocessOptions:
    """How images are resized; `max_pixels` and `min_pixels` are areas in pixels, None for the checkpoint's own limits."""

    max_pixels: int | None = None
    min_pixels: int | None = None
    do_resize: bool | None = None
    padding_side: str = "left"
    truncation_side: str = "left"
    pad_token_fallback: bool = True

    def __post_init__(self) -> None:
        check_integer("preprocess.max_pixels", self.max_pixels, minimum=1, optional=True)
        check_integer("preprocess.min_pixels", self.min_pixels, minimum=1, optional=True)
        if self.max_pixels is not None and self.min_pixels is not None and self.min_pixels > self.max_pixels:
            raise ContractValueError(f"preprocess.min_pixels ({self.min_pixels}) must not exceed preprocess.max_pixels ({self.max_pixels})")
        check_boolean("preprocess.do_resize", self.do_resize, optional=True)
        for name in ("max_pixels", "min_pixels"):
            if self.do_resize is False and getattr(self, name) is not None:
                raise ContractValueError(f"preprocess.{name} changes nothing where preprocess.do_resize is False; leave one of them out")
        check_boolean("preprocess.pad_token_fallback", self.pad_token_fallback)
        for name in ("padding_side", "truncation_side"):
            check_text(f"preprocess.{name}", getattr(self, name))
            if getattr(self, name) not in ("left", "right"):
                raise ContractValueError(f"preprocess.{name} must be 'left' or 'right', got {getattr(self, name)!r}")


@named_arguments(torch_dtype="dtype", quantization="extra=[('quantization', …)]", max_num_seqs="extra=[('max_num_seqs', …)]")
@dataclass(frozen=True)
class VllmEngineOptions:
    """How vLLM is started; None keeps vLLM's default. `gpu_memory_utilization`: 0 to 1. `extra`: (name, value) of further arguments.

    `tune`: measure, while answers are made, whether fewer rows at once are faster on this machine, and remember it.
    `drafts`: whether it checks drafted answers, see `Engine.stream`.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    distributed_executor_backend: str | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    trust_remote_code: bool = False
    dtype: str | None = None
    enforce_eager: bool | None = None
    batch_invariant: bool = False
    """Kernels whose sums do not depend on what else is in the batch: slower, and two runs give the same tokens. Needs a GPU."""
    extra: tuple[tuple[str, Any], ...] = ()
    tune: bool = False
    drafts: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", plain_name(self.dtype))
        check_integer("vllm.tensor_parallel_size", self.tensor_parallel_size, minimum=1)
        check_integer("vllm.pipeline_parallel_size", self.pipeline_parallel_size, minimum=1)
        check_text("vllm.distributed_executor_backend", self.distributed_executor_backend, optional=True)
        extra = self.extra.items() if isinstance(self.extra, Mapping) else self.extra
        check_sequence("vllm.extra", list(extra) if isinstance(self.extra, Mapping) else extra, "(name, value) pairs")
        for pair in extra:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], str):
                raise ContractTypeError(f"vllm.extra must hold (name, value) pairs such as ('max_num_seqs', 64), got {pair!r}")
            check_json(f"vllm.extra.{pair[0]}", pair[1])
        object.__setattr__(self, "extra", tuple((name, value) for name, value in extra))
        if self.gpu_memory_utilization is not None:
            check_number("vllm.gpu_memory_utilization", self.gpu_memory_utilization, integer=False, above=0.0, maximum=1.0)
        check_integer("vllm.max_model_len", self.max_model_len, minimum=1, optional=True)
        check_boolean("vllm.trust_remote_code", self.trust_remote_code)
        check_text("vllm.dtype", self.dtype, optional=True)
        check_boolean("vllm.enforce_eager", self.enforce_eager, optional=True)
        check_boolean("vllm.batch_invariant", self.batch_invariant)
        check_boolean("vllm.tune", self.tune)
        check_boolean("vllm.drafts", self.drafts)


@named_arguments(
    url="base_url", api_base="base_url", model="served_model", timeout="request_timeout_s", request_timeout="request_timeout_s"
)
@dataclass(frozen=True)
class ServerOptions:
    """The server of the backend `openai`, and the limits of its requests. API keys come from the environment.

    `server` is its kind: vllm, sglang, trtllm, mlx, max or openai. `base_url` None: this machine, at that kind's port.
    `adapter_dir`: the folder for copies of adapters, which the server must see under the same path; None: this machine's temporary files.
    """

    server: str = "vllm"
    base_url: str | None = None
    served_model: str | None = None
    concurrency: int = 64
    request_timeout_s: float = 120.0
    max_attempts: int = 3
    adapter_dir: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "adapter_dir", plain_name(self.adapter_dir))
        check_text("server.server", self.server)
        for name in ("adapter_dir", "base_url", "served_model"):
            check_text(f"server.{name}", getattr(self, name), optional=True)
        check_integer("server.concurrency", self.concurrency, minimum=1)
        check_number("server.request_timeout_s", self.request_timeout_s, integer=False, above=0.0)
        check_integer("server.max_attempts", self.max_attempts, minimum=1)
