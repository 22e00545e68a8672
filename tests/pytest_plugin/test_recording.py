"""What a row says of its case's reference: plain data as it is, of a task's own type a hash."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np
import pytest

from evalharness.api.cases import Case
from evalharness.pytest_plugin.outcomes import reference_of
from evalharness.runs.judging import row_reference


@dataclass
class OwnType:
    text: str = "a"
    parts: frozenset[str] = field(default_factory=lambda: frozenset("abc"))


class Verdict(Enum):
    GOOD = object()
    BAD = object()


@pytest.mark.parametrize("reference", [None, "pass", "", 0, 1.5, False, ["a", {"b": None}], {"a": [1]}, "\ud800"], ids=repr)
def test_a_plain_reference_is_recorded_as_it_is(reference):
    assert reference_of(Case(id="a", reference=reference)) == {"reference": reference}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (OwnType(), OwnType("b")),
        (OwnType(), OwnType(parts=frozenset("abd"))),
        ([OwnType()], [OwnType("b")]),
        ({1: "a"}, {1: "b"}),
        ({"a", "b"}, {"a", "c"}),
        (Verdict.GOOD, Verdict.BAD),
        (Path("a"), Path("b")),
        (float("nan"), float("inf")),
        (b"a", b"b"),
    ],
    ids=["field", "set in a field", "in a list", "keys", "set", "enum", "path", "no finite number", "bytes"],
)
def test_what_is_no_json_has_a_hash_of_its_content(one: object, other: object) -> None:
    first, again, second = (reference_of(Case(id="a", reference=reference)) for reference in (one, copy.deepcopy(one), other))
    assert first == again
    assert set(first) == {"reference_sha256"}
    assert None not in (first["reference_sha256"], second["reference_sha256"])
    assert first != second


@pytest.mark.parametrize(("one", "other"), [((1, 2), [1, 2]), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), (1.5, np.float64(1.5))], ids=repr)
def test_what_reads_the_same_from_a_row_is_the_same_reference(one: object, other: object) -> None:
    rows = [reference_of(Case(id="a", reference=reference)) for reference in (one, other)]
    assert row_reference(rows[0]) == row_reference(json.loads(json.dumps(rows[1])))


@pytest.mark.parametrize("reference", [object, lambda: 0, (number for number in ())], ids=["class", "function", "generator"])
def test_where_the_content_cannot_be_known_the_row_says_so(reference: object) -> None:
    assert reference_of(Case(id="a", reference=reference)) == {"reference_sha256": None}


def test_a_reference_that_holds_itself_is_not_known() -> None:
    endless: list[object] = []
    endless.append(endless)

    assert reference_of(Case(id="a", reference=endless)) == {"reference_sha256": None}
