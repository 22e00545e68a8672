"""Decoding on a GPU: a step is one replay of a CUDA graph, not a thousand launches from Python.

A graph reads and writes the same memory in every step, so keys and values lie in tensors of a fixed size, which grow now and then; the
graph is then captured anew. What is not filled yet is masked, so a row's numbers are those of the growing cache. Rows that have left keep
their place until half of the places are free.

Without a GPU a step runs as it is: the same arithmetic, for tests.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from evalharness.backends.hf._transformers import DynamicLayer, attending_with, grows_freely, takes_dynamic_cache, transformers

GROWTH = 256
"""Positions by which the cache grows: capturing anew takes as long as two or three steps without a graph."""
_ROUND = 16  # attention kernels want aligned masks
CHECKED_ROWS = 4
_TOLERANCE = {torch.float32: 1e-3}
_ROUGH = 0.1
"""How far logits may be from those of `generate`, as a share of the largest; other positions, or a mask read otherwise, are far off."""


class FixedLayer(DynamicLayer):
    """Keys and values of one layer, `(places, heads, capacity, size)`; `length` positions are filled, the same for all rows."""

    def __init__(self, capacity: int, position: torch.Tensor) -> None:
        super().__init__()
        self.length = 0
        self._capacity = capacity
        self._position = position
        """Where the next step writes `(1,)`: in the device's memory, as a graph cannot be told otherwise."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values; return all, unfilled ones included, except for the prompt's, which are returned as they came."""
        num_new = key_states.shape[-2]
        if self.length == 0:
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
            self.keys, self.values = _wider(key_states, self._capacity), _wider(value_states, self._capacity)
            self.length = num_new
            return key_states, value_states
        self.keys.index_copy_(2, self._position, key_states)
        self.values.index_copy_(2, self._position, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Return how many positions are filled."""
        return self.length

    def grow(self, capacity: int) -> None:
        """Move to larger tensors."""
        self._capacity = capacity
        self.keys, self.values = _wider(self.keys, capacity), _wider(self.values, capacity)

    def keep(self, places: torch.Tensor) -> None:
        """Go on with these places alone."""
        self.keys, self.values = self.keys[places], self.values[places]


def _wider(states: torch.Tensor, capacity: int) -> torch.Tensor:
    """Return a copy `(places, heads, capacity, size)`; what is not filled is zero, as masked values must be numbers."""
    wide = states.new_zeros((*states.shape[:2], capacity, states.shape[3]))
    wide[:, :, : states.shape[2]] = states
    return wide


class Unfit(Exception):
    """A model gives other numbers, or none, when it is run with a cache of fixed size."""


def plain_cache(model: Any) -> Any:
    """Return an empty cache of a model that keeps keys and values of all positions by row, and nothing else in it; None for any other."""
    if not takes_dynamic_cache(model) or getattr(model.generation_config, "cache_implementation", None) is not None:
        return None
    if model.config.is_encoder_decoder:
        return None
    cache = transformers.DynamicCache(config=model.config.get_text_config(decoder=True))
    return cache if grows_freely(getattr(cache, "layers", ())) else None


def module_with_shifts(model: Any) -> Any:
    """Return the module of a vision model that keeps, beside the cache, how far the text behind images is shifted, by row; else None."""
    return next((module for module in model.modules() if hasattr(module, "rope_deltas")), None)


def why_not_fixed(model: Any, cache: Any, *, has_images: bool) -> str | None:
    """Return why a model cannot decode with a cache of fixed size, None where it seems so; `cache`: its growing one, if that is plain."""
    parameters = inspect.signature(model.forward).parameters
    if cache is None:
        return "it keeps more than keys and values by row"
    if getattr(model.config, "_attn_implementation", None) != "sdpa":
        return f"its attention is {getattr(model.config, '_attn_implementation', None)!r}, not 'sdpa'"
    if not getattr(model, "_can_compile_fullgraph", False):
        return "its steps depend on values that a graph cannot read"
    if not {"position_ids", "attention_mask", "past_key_values", "logits_to_keep"} <= parameters.keys():
        return "it does not take positions, a mask and a cache"
    if len({parameter.device for parameter in model.parameters()}) != 1 or getattr(model, "hf_device_map", None):
        return "it lies on several devices"
    if has_images and module_with_shifts(model) is None:
        return "it is not known how it places images"
    if getattr(model.config, "quantization_config", None) is not None:
        return "its weights are quantised"
    return None


@cache
def _capture_stream(device: int) -> Any:
    """Return the stream of all captures on a GPU: for each stream that it has seen, cuBLAS keeps 32 MiB."""
    return torch.cuda.Stream(device)


@dataclass
class Steps:
    """How the steps of one backend run. `are_fixed`: with a cache of fixed size; `problem`: why not, once that is known.

    `checked`: what was compared with `generate`, batches with images (True) and without.
    """

    are_fixed: bool
    problem: str | None = None
    checked: set[bool] = field(default_factory=set)


class _Forced(transformers.LogitsProcessor):
    """Leaves nothing but these tokens `(rows,)` possible."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self._tokens = tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -torch.inf).scatter_(1, self._tokens[:, None], 0.0)


class FixedDecoder:
    """The forward passes of one batch: the prompts, then one token per row and call. All calls in the same inference mode.

    `to_check`: inputs of the first rows alone; their prompts and first step are compared with those of `generate`. `Unfit` where these
    differ, or the step cannot be captured.
    """

    def __init__(
        self, model: Any, cache: Any, mask: torch.Tensor, max_new_tokens: int, to_check: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        self._model = model
        self._cache = cache
        self._is_graphed = mask.device.type == "cuda"
        self._to_check = to_check
        num_rows, width = mask.shape
        self._prompt_mask = mask
        self._most = _rounded(width + max_new_tokens)
        self._capacity = min(self._most, _rounded(width + GROWTH))
        self._position = torch.full((1,), width, dtype=torch.long, device=mask.device)
        cache.layers = [FixedLayer(self._capacity, self._position) for _ in cache.layers]
        self._tokens = torch.zeros((num_rows, 1), dtype=torch.long, device=mask.device)
        self._positions = mask.long().sum(dim=1, keepdim=True) - 1  # of the newest token in its row
        self._mask = torch.nn.functional.pad(mask.bool(), (0, self._capacity - width))  # (places, capacity)
        self._places: torch.Tensor | None = None
        """Places of the rows, None where every place has its row."""
        self._graph: Any = None
        self._logits: torch.Tensor | None = None
        self._prompt_logits: torch.Tensor | None = None
        self._num_steps = 0

    @property
    def length(self) -> int:
        """How many positions are filled."""
        return int(self._cache.layers[0].length)

    def prompts(self, input_ids: torch.Tensor, more: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Run the prompts `(rows, width)`, padded on the left; return the logits of their last tokens `(rows, vocabulary)`.

        `more`: the images' inputs. Models that give image patches positions of their own work them out by themselves, and say how far
        the text behind them is shifted.
        """
        mask = self._prompt_mask
        given: dict[str, Any] = {**more, "input_ids": input_ids, "attention_mask": mask}
        shifting = module_with_shifts(self._model) if more else None
        if shifting is None:
            given["position_ids"] = (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 0)
        logits = self._last_logits(self._model(**given, past_key_values=self._cache, use_cache=True, logits_to_keep=1))
        if shifting is not None:
            self._positions += shifting.rope_deltas.to(self._positions.device)
        if self._to_check is not None:
            self._prompt_logits = logits[:CHECKED_ROWS].clone()
        return logits

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Run the newest tokens `(rows,)`; return their logits `(rows, vocabulary)`, which the next call may overwrite."""
        if self.length == self._capacity:
            self._grow()
        if self._places is None:
            self._tokens.copy_(tokens[:, None])
        else:
            self._tokens[self._places] = tokens[:, None]
        self._positions += 1
        self._position.fill_(self.length)
        self._mask[:, self.length] = True
        logits = self._run()
        for layer in self._cache.layers:
            layer.length += 1
        self._num_steps += 1
        return logits if self._places is None else logits[self._places]

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows alone."""
        places = rows if self._places is None else self._places[rows]
        if len(places) > len(self._tokens) // 2:
            self._places = places
            return
        self._forget_graph()
        for layer in self._cache.layers:
            layer.keep(places)
        self._tokens, self._positions, self._mask = self._tokens[places], self._positions[places], self._mask[places]
        self._places = None

    def _run(self) -> torch.Tensor:
        if self._num_steps == 0:  # without a graph: what a library makes ready at its first call must not be captured
            logits = self._forward()
            self._compare(logits)
            return logits
        if not self._is_graphed:
            return self._forward()
        is_first = self._num_steps == 1
        if self._graph is None:
            self._graph, self._logits = self._captured()
        self._graph.replay()
        assert self._logits is not None
        if is_first and self._to_check is not None:
            self._check(self._logits, self._forward(), "replayed")  # it writes the same keys and values once more
        return self._logits

    def _forward(self) -> torch.Tensor:
        with attending_with(_grouped):
            outputs = self._model(
                input_ids=self._tokens,
                attention_mask=self._mask[:, None, None, :],
                position_ids=self._positions,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
        return self._last_logits(outputs)

    @staticmethod
    def _last_logits(outputs: Any) -> torch.Tensor:
        logits: torch.Tensor = outputs.logits[:, -1].float()
        return logits

    def _captured(self) -> tuple[Any, torch.Tensor]:
        """Return the graph of a step, and where it leaves the logits. What other threads do on the GPU meanwhile is no error."""
        graph, stream = torch.cuda.CUDAGraph(), _capture_stream(torch.cuda.current_device())
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    logits = self._forward()
                except BaseException:
                    # The graph is of no use, whatever ending it raises or warns of: what counts is why, such as memory that is not enough.
                    with contextlib.suppress(RuntimeError, Warning), warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        graph.capture_end()
                    raise
                graph.capture_end()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise Unfit(f"its step cannot be captured: {str(error).splitlines()[0][:200]}") from error
        torch.cuda.current_stream().wait_stream(stream)
        return graph, logits

    def _forget_graph(self) -> None:
        self._graph = self._logits = None

    def _grow(self) -> None:
        self._forget_graph()
        capacity = min(self._most, self._capacity + GROWTH)
        for layer in self._cache.layers:
            layer.grow(capacity)
        self._mask = torch.nn.functional.pad(self._mask, (0, capacity - self._capacity))
        self._capacity = capacity

    def _compare(self, logits: torch.Tensor) -> None:
        """Raise `Unfit` unless `generate` gives the first rows the same logits at the end of their prompts and one token later."""
        if self._to_check is None or self._prompt_logits is None:
            return
        made = self._model.generate(
            **self._to_check,
            generation_config=transformers.GenerationConfig(
                max_new_tokens=2, do_sample=False, num_beams=1, pad_token_id=0, output_logits=True, return_dict_in_generate=True
            ),
            logits_processor=[_Forced(self._tokens[:CHECKED_ROWS, 0])],
        )
        self._check(self._prompt_logits, made.logits[0].float(), "for prompts")
        self._check(logits[:CHECKED_ROWS], made.logits[1].float(), "with a cache of fixed size")

    def _check(self, logits: torch.Tensor, expected: torch.Tensor, how: str) -> None:
        difference = float((logits - expected).abs().max() / expected.abs().max().clamp(min=1e-6))
        if not difference <= _TOLERANCE.get(self._model.dtype, _ROUGH):
            raise Unfit(f"its step gives other logits {how}: {difference:.2g} of the largest apart")


def _grouped(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *arguments: Any,
    otherwise: Callable[..., Any],
    scaling: float | None = None,
    **more: Any,
) -> Any:
    """Attend as sdpa does, for one token a row `(rows, heads, 1, size)`, without a copy of keys and values for each head that shares them.

    The heads of a group take the place of positions: all of them see the same keys, through the same mask.
    """
    rows, heads, num_queries, size = query.shape
    groups = key.shape[1]
    is_plain = not arguments and not any(more.get(name) for name in ("dropout", "output_attentions")) and more.get("position_bias") is None
    if num_queries != 1 or heads == groups or attention_mask is None or attention_mask.shape[:3] != (rows, 1, 1) or not is_plain:
        return otherwise(module, query, key, value, attention_mask, *arguments, scaling=scaling, **more)
    made = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(rows, groups, heads // groups, size), key, value, attn_mask=attention_mask, scale=scaling
    )
    return made.reshape(rows, 1, heads, value.shape[-1]), None


def _rounded(length: int) -> int:
    return -(-length // _ROUND) * _ROUND


def decode(
    decoder: FixedDecoder,
    inputs: dict[str, Any],
    processors: Sequence[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]],
    ends: Any,
    *,
    max_new_tokens: int,
    stop_token_ids: Sequence[int],
    pad_id: int,
    look_every: int,
) -> torch.Tensor:
    """Return `(rows, width + new)`: `input_ids` and what follows, greedily by the processed scores, as transformers' `generate` does.

    It ends after `max_new_tokens`, or once all rows have ended, which is looked at every few steps only: each look makes the host wait.
    A row that has ended is padded. `ends` is asked in every step; where it says that rows should leave, this returns.
    """
    more = dict(inputs)
    ids = more.pop("input_ids")
    more.pop("attention_mask")
    num_rows, width = ids.shape
    sequences = torch.full((num_rows, width + max_new_tokens), pad_id, dtype=torch.long, device=ids.device)
    sequences[:, :width] = ids
    stops = torch.tensor(list(stop_token_ids), dtype=torch.long, device=ids.device)
    going = torch.ones(num_rows, dtype=torch.bool, device=ids.device)
    length = width
    while length < sequences.shape[1]:
        before = sequences[:, :length]
        scores = (decoder.prompts(before, more) if decoder.length == 0 else decoder.step(before[:, -1])).clone()
        for processor in processors:
            scores = processor(before, scores)
        sequences[:, length] = torch.where(going, scores.argmax(dim=-1), pad_id)
        length += 1
        so_far = sequences[:, :length]
        going &= ~ends(so_far, None) & ~torch.isin(so_far[:, -1], stops)
        if ends.should_leave or len(ends.ended) == num_rows or ((length - width) % look_every == 0 and not bool(going.any())):
            break
    return sequences[:, :length]
