"""Output heads that stand beside the embedding in a checkpoint's files although its config ties the two.

What is loaded then depends on the numbers: transformers and vLLM tie where both are equal, and keep both where they differ. An engine has
decided that at its start, so weights for which it would decide otherwise cannot be put into it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evalharness.checkpoints.weights import find_weights, same_tensor, tensors_of

_EMBEDDINGS = ("embed", "wte")  # in the names of embeddings, where config.json gives no size of the vocabulary


def doubled_heads(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """Return the names of embeddings and heads of one shape, if there are several and the config does not say that they are untied.

    Under any name: what counts is that matrices have a row for each token.
    """
    says = list(_values(config, "tie_word_embeddings"))
    if False in says and True not in says:
        return frozenset()
    vocab_sizes = set(_values(config, "vocab_size"))
    matrices = {name: shape for name, shape in shapes.items() if len(shape) == 2}
    of_words = {shape for name, shape in matrices.items() if shape[0] in vocab_sizes or any(word in name for word in _EMBEDDINGS)}
    groups = [[name for name in matrices if matrices[name] == shape] for shape in of_words]
    return frozenset(itertools.chain.from_iterable(group for group in groups if len(group) > 1))


def _values(config: Mapping[str, Any], key: str) -> Iterator[Any]:
    """Yield every value of a key, in configs inside the config, too."""
    if key in config:
        yield config[key]
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _values(value, key)


def are_equal(folder: Path, names: frozenset[str]) -> bool:
    """Return whether tensors of a checkpoint are the same, byte for byte."""
    heads = find_weights(folder, allow_pickle=False).heads
    first, *others = [(folder / file, head[name]) for file, head in heads.items() for name in tensors_of(head) if name in names]
    return all(same_tensor(first, other) for other in others)
