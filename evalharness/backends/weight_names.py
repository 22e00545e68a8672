"""Which weight of a model is meant by each name that a trainer gives it. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evalharness.api.errors import ContractValueError
from evalharness.checkpoints.adapter import fits_of

__all__ = ["Pairing", "pair_names", "refuse_unmatched"]

# What wraps a module in training, and stands in the names of its weights.
_WRAPPERS = frozenset({"_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod", "module"})
_SHOWN = 5


@dataclass(frozen=True)
class Pairing:
    """`pairs`: {given name: the model's}; `not_matched`: given names that mean none, sorted."""

    pairs: Mapping[str, str]
    not_matched: tuple[str, ...]


def pair_names(given: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> Pairing:
    """Return which of the model's weights `wanted` each given name means; both map names to shapes.

    A name means the weight of its own name, else the only one that differs in no more than the parts by which models and
    their checkpoints, or wrappers of training, differ. `ContractValueError` where two mean one weight, or a shape differs.
    """
    bare = {name: name if name in wanted else _unwrapped(name) for name in given}
    left = [name for name, plain in bare.items() if plain not in wanted]
    fitting = fits_of({bare[name] for name in left}, wanted)
    pairs = {name: plain if plain in wanted else fitting[plain] for name, plain in bare.items() if plain in wanted or plain in fitting}
    meant: dict[str, str] = {}
    for name, target in pairs.items():
        if target in meant:
            raise ContractValueError(f"{meant[target]!r} and {name!r} both mean the model's {target!r}; give it once")
        meant[target] = name
        if given[name] != wanted[target]:
            raise ContractValueError(
                f"{name!r} has shape {list(given[name])}, the model's {target!r} has {list(wanted[target])}; "
                "are the tensors of another model, or of a part of it only (a shard)?"
            )
    return Pairing(pairs, tuple(sorted(set(given) - set(pairs))))


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def refuse_unmatched(not_matched: tuple[str, ...], missing: tuple[str, ...]) -> None:
    """Raise `ContractValueError` for names that would be ignored, or weights that would stay as they were."""
    if not_matched:
        raise ContractValueError(
            f"{len(not_matched)} of the names mean no weight of the model, such as {_some(not_matched)}; "
            "leave them out, or have them left out and reported with strict=False"
        )
    if missing:
        raise ContractValueError(
            f"{len(missing)} weights of the model are not given, such as {_some(missing)}; give all, "
            "or have these stay as they are and reported with strict=False"
        )


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")
