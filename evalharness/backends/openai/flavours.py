"""How servers with an OpenAI API differ: ports, forms of prompts, options beyond OpenAI's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.api.redaction import redactor
from evalharness.api.structured_output import STRUCTURES


@dataclass(frozen=True)
class AdapterWay:
    """How a kind of server takes LoRA adapters.

    `load` and `unload` are its routes; without them the adapter goes with each request, in `field`. `model` is what a request names then,
    of `{base}` and `{name}`. `unload_first`: it has room for one. `is_listed`: its list of models tells whether it has the adapter.
    """

    load: str | None = None
    unload: str | None = None
    model: str = "{base}"
    field: Literal["lora_request", "adapters"] | None = None
    unload_first: bool = False
    is_listed: bool = False
    hint: str = ""


@dataclass(frozen=True)
class ReloadWay:
    """How a kind of server is told to load another checkpoint: routes and bodies, in order; `{folder}` stands for the folder."""

    steps: tuple[tuple[str, Mapping[str, Any]], ...]
    hint: str = ""


@dataclass(frozen=True)
class Flavour:
    """One kind of server. `token_ids`: it takes prompts as ids and gives ids back, so nothing is tokenised twice.

    `structures`: kinds of `StructuredOutput` that it holds answers to. `extras`: extra options that it knows, by our name. `stop_ids`: it
    ends texts at token ids, and ignores its own idea of EOS; `eos_beside_ids`: it forgets the ids where it is told to ignore that.
    `scores_prompts`: it gives log-probabilities of prompt tokens. `tempered_logprobs`: those of generated tokens are taken after
    penalties, masks and temperature, and before cuts. `is_max`: what MAX does otherwise; it takes no field that it does not know, so
    what is left out is not sent.
    """

    port: int | None
    token_ids: bool = False
    stop_ids: bool = False
    repetition_penalty: bool = False
    extras: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)
    adapters: AdapterWay | None = None
    structures: tuple[str, ...] = ()
    reload: ReloadWay | None = None
    scores_prompts: bool = False
    eos_beside_ids: bool = False
    tempered_logprobs: bool = False
    is_max: bool = False


_OPENAI = {"presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty", "logit_bias": "logit_bias"}
_SAMPLING = {**_OPENAI, "top_k": "top_k", "min_p": "min_p", "min_new_tokens": "min_tokens"}

_VLLM_ADAPTERS = AdapterWay(
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    model="{name}",
    is_listed=True,
    hint="is it started with --enable-lora and a --max-lora-rank as large, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment?",
)
_SGLANG_ADAPTERS = AdapterWay(
    "/load_lora_adapter",
    "/unload_lora_adapter",
    model="{base}:{name}",
    unload_first=True,
    hint="is it started with --enable-lora and a --max-lora-rank as large?",
)
_MAX_ADAPTERS = replace(
    _VLLM_ADAPTERS, hint="is it started with --enable-lora --prefer-module-v3 --no-enable-prefix-caching and a --max-lora-rank as large?"
)

# Penalties and min_tokens do nothing, without a word, on a server that is not started for them, min_p on a CPU, logit_bias on any.
_MAX_DEFAULTS = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "reasoning_split": False,  # all tokens are the text, those of thoughts too
}

# The worker's own method, as in this process: vLLM's `reload_weights` answers wrongly on CPUs. Then what it remembers is dropped.
_VLLM_RELOAD = ReloadWay(
    (
        ("/collective_rpc", {"method": "evalharness_swap", "args": ["{folder}", None, None]}),
        ("/reset_mm_cache", {}),
        ("/reset_encoder_cache", {}),
        ("/reset_prefix_cache", {}),
    ),
    hint="is it started with VLLM_SERVER_DEV_MODE=1 in its environment and "
    "--worker-extension-cls evalharness.backends.vllm.weights.WeightSwapping?",
)
_SGLANG_RELOAD = ReloadWay((("/update_weights_from_disk", {"model_path": "{folder}", "flush_cache": True}),))

# Servers take missing options from the checkpoint's generation_config, so every option that they know is sent, even if off.
FLAVOURS: Mapping[str, Flavour] = {
    "vllm": Flavour(8000, True, True, True, _SAMPLING, {"top_k": 0, "min_p": 0.0}, _VLLM_ADAPTERS, STRUCTURES, _VLLM_RELOAD, True),
    "sglang": Flavour(
        30000,
        True,
        True,
        True,
        _SAMPLING,
        {"top_k": -1, "min_p": 0.0},
        _SGLANG_ADAPTERS,
        ("json_schema", "regex", "grammar"),
        _SGLANG_RELOAD,
        eos_beside_ids=True,
        tempered_logprobs=True,
    ),
    "trtllm": Flavour(31000, False, False, True, _SAMPLING, {}, AdapterWay(field="lora_request")),
    "mlx": Flavour(8080, False, False, True, {"top_k": "top_k", "min_p": "min_p"}, {}, AdapterWay(field="adapters")),
    "max": Flavour(8000, True, True, False, {"top_k": "top_k"}, _MAX_DEFAULTS, _MAX_ADAPTERS, eos_beside_ids=True, is_max=True),
    "openai": Flavour(None, False, False, False, _OPENAI, {}),
}


def base_url(flavour: str, address: str | None) -> str:
    """Return the server's address, without `/v1` and trailing slashes: the given one, else this machine at the flavour's port.

    `ConfigError` for an unknown flavour, for an invalid address, for one with user and password (keys come from the
    environment), and where the flavour has no port of its own.
    """
    if flavour not in FLAVOURS:
        raise ConfigError(f"server {flavour!r} is unknown{did_you_mean(flavour, FLAVOURS) or '.'} Known: {', '.join(FLAVOURS)}")
    if address is None:
        port = FLAVOURS[flavour].port
        if port is None:
            raise ConfigError(f"server {flavour!r} has no default port; give its address with --base-url")
        return f"http://127.0.0.1:{port}"
    from urllib.parse import urlsplit, urlunsplit  # here: the table of options needs only the flavours' names

    shown = redactor().text(address)
    try:
        parts = urlsplit(address.strip())
        is_address = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:  # of brackets and ports
        is_address = False
    if not is_address:
        raise ConfigError(f"base_url {shown!r} is not an address; write it like http://127.0.0.1:8000")
    if "@" in parts.netloc:
        raise ConfigError("base_url holds a user or password, which would be written into records; put the key into EVALHARNESS_API_KEY")
    if parts.query or parts.fragment:
        raise ConfigError(f"base_url {shown!r} has more than an address and a path; leave out what begins with ? or #")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))
