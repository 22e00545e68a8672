"""Names of a trainer's weights against a model's, without any tensor."""

from __future__ import annotations

from typing import Any

import pytest

from evalharness.api.errors import ContractValueError
from evalharness.backends.loaded_weights import pair_names, refuse_unmatched

MODEL = {"model.language_model.layers.0.q.weight": (2, 3), "model.visual.blocks.0.q.weight": (2, 3), "lm_head.weight": (5, 3)}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param("lm_head.weight", "lm_head.weight", id="same"),
        pytest.param("module.lm_head.weight", "lm_head.weight", id="DistributedDataParallel"),
        pytest.param("_orig_mod.lm_head.weight", "lm_head.weight", id="compiled"),
        pytest.param("module._orig_mod.lm_head.weight", "lm_head.weight", id="both"),
        pytest.param("model.layers.0.q.weight", "model.language_model.layers.0.q.weight", id="the text model's own name"),
        pytest.param("layers.0.q.weight", "model.language_model.layers.0.q.weight", id="without a head"),
        pytest.param("base_model.model.lm_head.weight", "lm_head.weight", id="peft"),
        pytest.param("blocks.0.q.weight", None, id="too short"),
        pytest.param("model.layers.1.q.weight", None, id="another layer"),
    ],
)
def test_names(name: str, target: str | None) -> None:
    shape = MODEL[target] if target is not None else (2, 3)
    found = pair_names({name: shape}, MODEL)
    assert (dict(found.pairs), found.not_matched) == (({name: target}, ()) if target is not None else ({}, (name,)))


def test_a_models_own_part_called_as_a_wrapper_is_no_wrapper() -> None:
    assert pair_names({"module.a.weight": (1,)}, {"module.a.weight": (1,), "a.weight": (1,)}).pairs == {
        "module.a.weight": "module.a.weight"
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"lm_head.weight": (5, 3), "module.lm_head.weight": (5, 3)}, "both mean the model's 'lm_head.weight'", id="twice"),
        pytest.param({"lm_head.weight": (5, 2)}, r"has shape \[5, 2\], the model's 'lm_head.weight' has \[5, 3\]", id="shape"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractValueError, match=message):
        pair_names(given, MODEL)


def test_what_is_left_over_on_either_side_is_named() -> None:
    refuse_unmatched((), ())
    names = tuple(f"x.{number}" for number in range(7))
    with pytest.raises(ContractValueError, match=r"7 of the names mean no weight of the model, such as 'x.0', .* 'x.4', …; leave them out"):
        refuse_unmatched(names, names)
    with pytest.raises(ContractValueError, match="1 weight of the model not given, such as 'y'; give all"):
        refuse_unmatched((), ("y",))
