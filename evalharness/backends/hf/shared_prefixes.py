"""Given responses whose prompts begin alike, in one row: what several of them have in common is read once.

The choices of a question have the question in common, and questions their worked examples. Their tokens are laid out as a tree: each stands
once, at the position that it has in its own text, and the attention mask lets it see its own text alone. The numbers are those of rows that
are read one by one, as close as float32 has them; the first pack of a model is compared, and a model that gives other numbers is run row by
row. Only for models that keep keys and values of all positions and take a mask of any form.
"""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from evalharness.backends.base import describe_error
from evalharness.backends.hf.batching import is_broken_device, is_out_of_memory
from evalharness.backends.hf.decoding import Row
from evalharness.backends.hf.fixed_cache import plain_cache

logger = logging.getLogger(__name__)

MAX_WIDTH, MAX_WIDTH_OF_LONG = 4096, 16384
"""Tokens of a pack, whose mask has the square of it; of rows that are long themselves up to twice their length, but at most the second."""
_ATTENTION = ("sdpa", "eager")
_MOST_APART = {torch.float32: 1e-3}
"""Nats by which a token's log-probability may differ, by dtype; in shorter ones rows differ by their batch anyway."""
_MOST_APART_ELSE = 0.25

PlainLogits: TypeAlias = "Callable[[Any, Sequence[Row]], list[torch.Tensor]]"
"""Returns the logits of rows that are read one by one."""


@dataclass
class Pack:
    """Rows in a tree of tokens. Each node has an id, its parent's place (-1: none) and its depth; nodes stand behind their parents.

    `paths`: of each row, the nodes whose logits judge its response, in order.
    """

    rows: list[Row] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=list)
    _newest: list[int] = field(default_factory=list)
    """The nodes of the row that was added last, its last token's left out: nothing is judged by that."""
    _chains: list[tuple[int, int]] = field(default_factory=list)
    """Where the nodes that a row added begin and end: each of them but the first has the one before as its parent."""

    @property
    def width(self) -> int:
        """How many tokens are read."""
        return len(self.token_ids)

    @property
    def num_judging(self) -> int:
        """How many nodes judge a token."""
        return len(set(itertools.chain.from_iterable(self.paths)))

    def num_shared(self, row: Row) -> int:
        """Return how many tokens of a row are there already. Rows are asked in the order of their ids, so the row before tells."""
        ids, others = row.token_ids, self.rows[-1].token_ids
        num, most = 0, min(len(ids), len(others)) - 1
        while num < most:  # by halves, as whole slices are compared many times as fast as tokens
            middle = (num + most + 1) // 2
            if ids[num:middle] == others[num:middle]:
                num = middle
            else:
                most = middle - 1
        return num

    def add(self, row: Row, num_shared: int) -> None:
        """Add a row."""
        first, num_new = self.width, len(row.token_ids) - 1 - num_shared
        nodes = [*self._newest[:num_shared], *range(first, first + num_new)]
        if num_new:
            self.token_ids += row.token_ids[num_shared:-1]
            self.parents += [nodes[num_shared - 1] if num_shared else -1, *range(first, first + num_new - 1)]
            self.depths += range(num_shared, num_shared + num_new)
            self._chains.append((first, first + num_new))
        self.rows.append(row)
        self.paths.append(nodes[_first_judge(row) :])
        self._newest = nodes

    def ancestors(self) -> torch.Tensor:
        """Return which nodes each node sees, itself among them: bool `(width, width)`."""
        seen = torch.zeros((self.width, self.width), dtype=torch.bool)
        for start, end in self._chains:
            if self.parents[start] >= 0:
                seen[start:end] = seen[self.parents[start]]
            seen[start:end, start:end] = torch.ones((end - start, end - start), dtype=torch.bool).tril()
        return seen

    def order(self) -> list[int]:
        """Return the nodes with those that judge last, so that logits are needed at the end only."""
        judging = set(itertools.chain.from_iterable(self.paths))
        return [*(node for node in range(self.width) if node not in judging), *sorted(judging)]


def _first_judge(row: Row) -> int:
    return max(len(row.token_ids) - len(row.prompt.response_ids or ()), 1) - 1


def has_values(row: Row) -> bool:
    """Return whether a row's response has any value: something stands before one of its tokens."""
    return len(row.token_ids) - 1 > _first_judge(row)


def packs_of(rows: Sequence[Row], token_cost: float) -> list[Pack]:
    """Return the rows in packs: a row goes to the one before it where that saves more reading than it costs attention.

    `token_cost`: what reading a token costs, in pairs of tokens that attend to each other; in a pack all pairs are computed.
    """
    packs: list[Pack] = []
    for row in sorted(rows, key=lambda row: row.token_ids):
        length = len(row.token_ids) - 1
        num_shared = packs[-1].num_shared(row) if packs else 0
        num_new = length - num_shared
        width = packs[-1].width + num_new if packs else 0
        saved = num_shared * token_cost + length**2
        most = min(max(MAX_WIDTH, 2 * length), MAX_WIDTH_OF_LONG)
        if not packs or width > most or saved <= num_new * (width + packs[-1].width):
            packs.append(Pack())
            num_shared = 0
        packs[-1].add(row, num_shared)
    return packs


def token_cost(model: Any) -> float:
    """Return what a token costs in the model's layers, in pairs of tokens that attend to each other."""
    config = model.config.get_text_config()
    embeddings = model.get_input_embeddings()
    in_layers = sum(parameter.numel() for parameter in model.parameters()) - sum(each.numel() for each in embeddings.parameters())
    return max(in_layers, 1) / (2 * int(config.hidden_size) * int(config.num_hidden_layers))


def logits_of_packs(model: Any, packs: Sequence[Pack]) -> Iterator[torch.Tensor]:
    """Yield what each row's response is judged by, pack by pack in the order of `Pack.rows`: the model's dtype, `(num_known, vocab)`."""
    device, width = model.device, max(pack.width for pack in packs)
    num_kept = max(pack.num_judging for pack in packs)
    token_ids, positions = torch.zeros((2, len(packs), width), dtype=torch.long, device=device)
    visible = torch.eye(width, dtype=torch.bool).repeat(len(packs), 1, 1)  # padding, at the left, sees itself: of nothing there is no mean
    orders = [pack.order() for pack in packs]
    for number, (pack, order) in enumerate(zip(packs, orders, strict=True)):
        gap = width - pack.width
        token_ids[number, gap:] = torch.tensor([pack.token_ids[node] for node in order])
        positions[number, gap:] = torch.tensor([pack.depths[node] for node in order])
        visible[number, gap:, gap:] = pack.ancestors()[order][:, order]
    mask = torch.zeros((len(packs), 1, width, width), dtype=model.dtype, device=device)
    mask.masked_fill_(~visible.to(device)[:, None], torch.finfo(model.dtype).min)
    made = model(input_ids=token_ids, position_ids=positions, attention_mask=mask, logits_to_keep=num_kept, use_cache=False).logits
    for number, (pack, order) in enumerate(zip(packs, orders, strict=True)):
        place = {node: made.shape[1] - pack.width + position for position, node in enumerate(order)}
        for path in pack.paths:
            yield made[number, [place[node] for node in path]]


@dataclass
class SharedPrefixes:
    """Whether a backend's model may read what rows have in common once. `problem`: why not, once that is known."""

    problem: str | None = None
    _is_checked: bool = False
    _token_cost: float = 0.0

    def packs(self, model: Any, rows: Sequence[Row]) -> list[Pack] | None:
        """Return the rows in packs; None where the model cannot take them, or no rows share enough."""
        if self.problem is None and not self._token_cost:
            self.problem, self._token_cost = _why_not(model), token_cost(model)
        if self.problem is not None or any(row.per_token or row.per_image or not has_values(row) for row in rows):
            return None
        packs = packs_of(rows, self._token_cost)
        return packs if len(packs) < len(rows) else None

    def logits(self, model: Any, packs: Sequence[Pack], plain: PlainLogits) -> Iterable[torch.Tensor]:
        """Return the logits of all rows of the packs, pack by pack; by `plain`, row by row, where those of the packs are not the same."""
        if not self._is_checked:
            self._check(model, max(packs, key=lambda pack: len(pack.rows)), plain)
        if self.problem is not None:
            return plain(model, [row for pack in packs for row in pack.rows])
        return logits_of_packs(model, packs)

    def _check(self, model: Any, pack: Pack, plain: PlainLogits) -> None:
        """Compare one pack with its rows."""
        try:
            found = list(logits_of_packs(model, [pack]))
        except Exception as error:
            if is_out_of_memory(error) or is_broken_device(error):
                raise
            self.problem = f"the model does not take a tree of tokens: {describe_error(error)}"
        else:
            most = _MOST_APART.get(model.dtype, _MOST_APART_ELSE)
            apart = [_apart(one, other, row) for one, other, row in zip(found, plain(model, pack.rows), pack.rows, strict=True)]
            if not all(each <= most for each in apart):
                self.problem = f"log-probabilities in a tree of tokens differ by {max(apart):.3g}"
        self._is_checked = True
        if self.problem is not None:
            logger.warning("responses are scored one by one, what their prompts have in common is read again for each: %s", self.problem)


def _apart(logits: torch.Tensor, others: torch.Tensor, row: Row) -> float:
    """Return how far log-probabilities of a row's response are apart at most; what is impossible or NaN in both is not."""
    token_ids = torch.tensor(row.token_ids[len(row.token_ids) - len(logits) :], device=logits.device)[:, None]
    one, other = (each.float().log_softmax(dim=-1).gather(1, token_ids) for each in (logits, others))
    return float(torch.where((one == other) | (one.isnan() & other.isnan()), 0.0, (one - other).abs()).max())


def _why_not(model: Any) -> str | None:
    """Return why a model cannot take trees of tokens, None where it seems so."""
    if plain_cache(model) is None:
        return "the model keeps more than keys and values by row"
    if getattr(model.config, "_attn_implementation", None) not in _ATTENTION:
        return f"its attention is {getattr(model.config, '_attn_implementation', None)!r}, not one of {', '.join(_ATTENTION)}"
    if not {"position_ids", "attention_mask", "logits_to_keep"} <= inspect.signature(model.forward).parameters.keys():
        return "it does not take positions and a mask"
    return None
