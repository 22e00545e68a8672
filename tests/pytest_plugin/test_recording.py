"""What a row says of its case's reference: plain data as it is, a task's own type not at all."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from evalharness.api.cases import Case
from evalharness.pytest_plugin.outcomes import reference_of


@dataclass
class OwnType:
    text: str = "a"


@pytest.mark.parametrize("reference", ["pass", "", 0, 1.5, False, ["a", {"b": None}], {"a": [1]}, "\ud800"], ids=repr)
def test_a_plain_reference_is_recorded_as_it_is(reference):
    assert reference_of(Case(id="a", reference=reference)) == {"reference": reference}


@pytest.mark.parametrize("reference", [None, OwnType(), {1: "a"}, [OwnType()], float("nan"), object], ids=repr)
def test_what_is_no_json_is_left_to_the_evals_details(reference):
    assert reference_of(Case(id="a", reference=reference)) == {}


def test_a_reference_that_holds_itself_is_left_out():
    endless: list[object] = []
    endless.append(endless)

    assert reference_of(Case(id="a", reference=endless)) == {}
