"""What a model computes and reads for each token, from its config.json and the heads of its weights: no torch, no weight is read.

Parameters are counted in the files, not worked out from a formula: so they hold for gated and fused layers alike. What is not understood
is refused with a reason, never guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evalharness.api.errors import CheckpointError
from evalharness.checkpoints.gguf import gguf_file_of
from evalharness.checkpoints.weights import find_weights, read_json, tensors_of

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
_FLOATS = {"F64", "F32", "F16", "BF16"}
_FP8 = {"F8_E4M3", "F8_E5M2"}
_VISION = re.compile(r"(^|\.)(visual|vision_tower|vision_model|vision_embed_tokens|multi_modal_projector|mm_projector|embed_vision)\.")
_MERGER = re.compile(r"(^|\.)(\w*merger\w*|multi_modal_projector|mm_projector|embed_vision)\.")
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output_projection)\.weight$")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|word_embeddings|wte|embed_in|tok_embeddings)\.weight$")
_POSITIONS = re.compile(r"(^|\.)(wpe|embed_positions)\.weight$")
_NOT_USED = re.compile(r"(^|\.)(mtp|nextn\w*)\.")  # layers for drafts, which plain decoding leaves out
_EXPERTS = re.compile(r"\.experts\.")
_ALIASES = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "hidden_size": "n_embd"}
_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_top_k")
_STRANGE = ("kv_lora_rank", "ssm_state_size", "state_size", "mamba_d_state", "linear_num_key_heads", "num_kv_shared_layers", "conv_L_cache")
"""Fields of attention and recurrent layers whose cost is not in the formula."""


class UnknownShape(ValueError):
    """Why a model's cost cannot be told."""


@dataclass(frozen=True)
class ModelShape:
    """One model as its cost sees it. Parameters are numbers of weights; `dtype` is what it computes in.

    `num_layer_params`: of the text layers, routed experts left out. `num_head_params`: of the output head. `weight_bytes`: of what a
    decoding step reads whatever its rows: those two. `num_expert_params`, `expert_bytes`: of all routed experts together; a token takes
    `experts_per_token` of `num_experts`. `num_full_layers` attend to the whole context, `num_window_layers` to the last `window` tokens.
    `attention_width`: heads times their size. `kv_bytes`: of one token in one layer, keys and values. `num_vision_params`: applied to each
    patch of a picture, `num_merger_params` to each `merge` patches; `num_vision_layers` of `vision_width` attend within a picture.
    """

    dtype: str
    num_layer_params: int
    num_head_params: int
    weight_bytes: int
    num_full_layers: int
    attention_width: int
    kv_bytes: float
    num_window_layers: int = 0
    window: int = 0
    num_expert_params: int = 0
    expert_bytes: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    num_vision_params: int = 0
    num_merger_params: int = 0
    merge: int = 1
    num_vision_layers: int = 0
    vision_width: int = 0

    @property
    def active_params(self) -> float:
        """Parameters of the layers that a token goes through, without the head."""
        share = self.experts_per_token / self.num_experts if self.num_experts else 0.0
        return self.num_layer_params + self.num_expert_params * share

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of keys and values that one token takes in all layers, as long as no window lets it go."""
        return self.kv_bytes * (self.num_full_layers + self.num_window_layers)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a run's records."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ModelShape:
        """Return the shape of a record; `UnknownShape` where it is none."""
        fields = cls.__dataclass_fields__
        known = {name: value for name, value in values.items() if name in fields}
        numbers = [value for name, value in known.items() if name != "dtype"]
        fits = all(isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e18 for value in numbers)
        if not fits or not isinstance(known.get("dtype"), str):
            raise UnknownShape("its record is damaged")
        try:
            shape = cls(**known)
        except TypeError:
            raise UnknownShape("its record is of another version") from None
        if shape.merge < 1 or shape.experts_per_token > shape.num_experts:
            raise UnknownShape("its record is damaged")
        return shape


def shape_at(path: str | Path, dtype: str, *, kv_dtype: str | None = None) -> ModelShape:
    """Return the shape of a checkpoint's folder that runs in this dtype; `UnknownShape` where it cannot be told."""
    if gguf_file_of(path) is not None:
        raise UnknownShape("a GGUF file's layers are packed")
    if Path(path).is_file():
        raise UnknownShape("it is a file, no checkpoint's folder")
    try:
        config = read_json(Path(path) / "config.json")
        heads = {} if config is None else find_weights(Path(path), allow_pickle=True).heads
    except OSError as error:
        raise UnknownShape(f"its files cannot be read: {error.strerror}") from None
    except CheckpointError as error:
        raise UnknownShape(str(error)) from None
    if config is None or not heads:
        raise UnknownShape("it has no config.json" if config is None else "its weights are pickled, so their sizes are not read")
    tensors = {name: (tensor["dtype"], tuple(tensor["shape"])) for head in heads.values() for name, tensor in tensors_of(head).items()}
    try:
        return ModelShape.from_json(shape_of(config, tensors, dtype, kv_dtype=kv_dtype).to_json())
    except UnknownShape:
        raise
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:  # whatever a config.json holds, a run goes on
        raise UnknownShape(f"its config.json is not understood ({type(error).__name__})") from None


def shape_of(
    config: Mapping[str, Any], tensors: Mapping[str, tuple[str, Sequence[int]]], dtype: str, *, kv_dtype: str | None = None
) -> ModelShape:
    """Return the shape of a model with this config.json and these tensors: {name: (safetensors' type, shape)}.

    `dtype`: what it computes in; `kv_dtype`: of keys and values, None for the same. Raises `UnknownShape`.
    """
    if dtype not in DTYPE_BYTES or (kv_dtype or dtype) not in DTYPE_BYTES:
        raise UnknownShape(f"the cost of {dtype if dtype not in DTYPE_BYTES else kv_dtype} is not known")
    text = _text_config(config)
    counts = _Counts(dtype)
    for name, (kind, dims) in tensors.items():
        counts.add(name, kind, math.prod(dims))
    num_full, num_window, window = _layers(text)
    heads, width = _number(text, "num_attention_heads"), _number(text, "hidden_size")
    head_size = int(text.get("head_dim") or width // heads)
    num_kv_heads = int(text.get("num_key_value_heads") or heads)
    is_tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))) or not counts.num_head
    num_head = counts.num_embedding if is_tied else counts.num_head
    if not num_head or not counts.num_layers:
        raise UnknownShape("its tensors have names that are not known")
    head_bytes = num_head * DTYPE_BYTES[dtype]
    return ModelShape(
        # fp8 weights are multiplied as fp8, if the card can; what is kept in 16 bits beside them is little
        dtype="fp8" if counts.num_fp8 > counts.num_layers / 2 else dtype,
        num_layer_params=counts.num_layers - counts.num_experts,
        num_head_params=num_head,
        weight_bytes=counts.layer_bytes - counts.expert_bytes + head_bytes,
        num_full_layers=num_full,
        attention_width=heads * head_size,
        kv_bytes=2 * num_kv_heads * head_size * DTYPE_BYTES[kv_dtype or dtype],
        num_window_layers=num_window,
        window=window,
        **_experts(text, counts),
        **_vision(config, counts),
    )


class _Counts:
    """Weights by what they are for. `num_layers` holds those of the experts, too."""

    def __init__(self, dtype: str) -> None:
        self._bytes = DTYPE_BYTES[dtype]
        self.num_layers = self.layer_bytes = self.num_experts = self.expert_bytes = 0
        self.num_embedding = self.num_head = self.num_vision = self.num_merger = self.num_fp8 = 0

    def add(self, name: str, kind: str, num: int) -> None:
        """Count one tensor of a file."""
        if _NOT_USED.search(name) or _POSITIONS.search(name):
            return
        if kind not in _FLOATS and kind not in _FP8:
            raise UnknownShape(f"its weights are packed ({kind})")
        if _VISION.search(name):
            if _MERGER.search(name):
                self.num_merger += num
            else:
                self.num_vision += num
        elif _HEAD.search(name):
            self.num_head += num
        elif _EMBEDDING.search(name):
            self.num_embedding += num
        else:
            num_bytes = num * (1 if kind in _FP8 else self._bytes)
            self.num_layers += num
            self.layer_bytes += num_bytes
            self.num_fp8 += num if kind in _FP8 else 0
            if _EXPERTS.search(name):
                self.num_experts += num
                self.expert_bytes += num_bytes


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config") or config.get("llm_config")
    text = inner if isinstance(inner, Mapping) else config
    if config.get("is_encoder_decoder"):
        raise UnknownShape("it is an encoder and a decoder")
    strange = next((name for name in _STRANGE if text.get(name)), None)
    if strange is not None:
        raise UnknownShape(f"the cost of its layers ({strange}) is not in the formula")
    return text


def _number(text: Mapping[str, Any], name: str) -> int:
    value = text.get(name, text.get(_ALIASES[name]))
    if not isinstance(value, int) or value <= 0:
        raise UnknownShape(f"its config.json has no {name}")
    return value


def _layers(text: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return how many layers attend to everything, how many to a window, and how long that is."""
    num_layers, window = _number(text, "num_hidden_layers"), text.get("sliding_window")
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        known = {"full_attention": 0, "sliding_attention": 1, "chunked_attention": 1}
        unknown = next((kind for kind in kinds if kind not in known), None)
        if unknown is not None:
            raise UnknownShape(f"the cost of its layers ({unknown}) is not in the formula")
        num_window = sum(known[kind] for kind in kinds)
        window = window or text.get("attention_chunk_size")
    else:
        num_window = num_layers if isinstance(window, int) and window and text.get("use_sliding_window", True) else 0
    if num_window and not (isinstance(window, int) and window > 0):
        raise UnknownShape("its config.json has layers with a window, but not how long that is")
    return num_layers - num_window, num_window, int(window or 0) if num_window else 0


def _first(text: Mapping[str, Any], names: Sequence[str]) -> int:
    return next((value for name in names if isinstance(value := text.get(name), int) and value > 0), 0)


def _experts(text: Mapping[str, Any], counts: _Counts) -> dict[str, int]:
    if not counts.num_experts:
        return {}
    num, per_token = _first(text, _NUM_EXPERTS), _first(text, _EXPERTS_PER_TOKEN)
    if not num or not per_token or per_token > num:
        raise UnknownShape("its config.json does not say how many experts a token takes")
    sizes = {"num_expert_params": counts.num_experts, "expert_bytes": counts.expert_bytes}
    return {**sizes, "num_experts": num, "experts_per_token": per_token}


def _vision(config: Mapping[str, Any], counts: _Counts) -> dict[str, int]:
    """Return what pictures cost; nothing of it for a text model, or where the vision tower's config is not known."""
    vision = config.get("vision_config")
    if not counts.num_vision or not isinstance(vision, Mapping):
        return {}
    num_layers, width = _first(vision, ("depth", "num_hidden_layers")), _first(vision, ("hidden_size", "embed_dim"))
    if not num_layers or not width:
        return {}
    sizes = {"num_vision_params": counts.num_vision, "num_merger_params": counts.num_merger, "merge": _merge(vision)}
    return {**sizes, "num_vision_layers": num_layers, "vision_width": width}


def _merge(vision: Mapping[str, Any]) -> int:
    return max(1, _first(vision, ("spatial_merge_size",))) ** 2
