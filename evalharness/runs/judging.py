"""What a row was judged against: the case's reference, and the code of its test. Two judgements answer one question if both are equal.

A row has its reference where that is plain JSON data, else a hash of it; rows of older versions may have neither. The eval's entry has
hashes of code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any

from evalharness.api.checks import excerpt, plain_number
from evalharness.runs.schema import EvalEntry, Row, mapping

_CHARS = 16
_SHOWN_CHARS = 40
_NUM_NAMED = 3
_BY_REPR = (bytes, bytearray, complex, date, time, timedelta, Decimal, Fraction, PurePath, range)


def reference_sha256(reference: object) -> str | None:
    """Return the start of the SHA-256 of a reference's content, None for one whose content cannot be known.

    Equal content gives equal hashes in every process: tuples count as lists, and a row's JSON as the value that it was made of.
    """
    try:
        text = json.dumps(reference, sort_keys=True, default=_content)
    except Exception:  # run outside the test, on whatever type the eval has
        return None
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:_CHARS]


def _content(value: Any) -> Any:
    """Return what a value that is not JSON consists of; raises `TypeError` where that is not known."""
    plain = plain_number(value)
    if plain is not value:
        return plain
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, Enum):
        return [kind, value.name]
    if isinstance(value, _BY_REPR):
        return [kind, repr(value)]
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return [kind, sorted(json.dumps(item, sort_keys=True, default=_content) for item in value)]
    if is_dataclass(value):
        return [kind, {field.name: getattr(value, field.name) for field in fields(value)}]
    if callable(getattr(value, "tobytes", None)) and hasattr(value, "shape"):  # an array, or an image
        return [kind, str(getattr(value, "dtype", "")), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
    if callable(value) or not getattr(value, "__dict__", None):
        raise TypeError(f"the content of a {kind} is not known")
    return [kind, vars(value)]


def row_reference(row: Row) -> str | None:
    """Return the hash of what a row was judged against; None where it does not say."""
    recorded = row.get("reference_sha256")
    if isinstance(recorded, str):
        return recorded
    return reference_sha256(row["reference"]) if "reference" in row else None


def shown_reference(row: Row) -> str:
    """Return a row's reference as a message names it: short, or the start of its hash."""
    return excerpt(repr(row["reference"]), _SHOWN_CHARS) if "reference" in row else f"SHA-256 {row.get('reference_sha256')}…"


def function_of(test: str) -> str:
    """Return a test's name without its parameters."""
    return test.partition("[")[0]


def code_of(entry: EvalEntry, test: str) -> Mapping[str, str] | None:
    """Return the hashes of the code of an eval's test by definition, None where they were not recorded."""
    code = mapping(entry.get("code")).get(function_of(test))
    return code if isinstance(code, Mapping) else None


def code_change(then: Mapping[str, str] | None, now: Mapping[str, str] | None) -> str:
    """Return the definitions that differ, as text; "" for none, or where one of the two is not known."""
    if then is None or now is None:
        return ""
    changed = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    more = f" and {len(changed) - _NUM_NAMED} more" if len(changed) > _NUM_NAMED else ""
    return ", ".join(excerpt(name, 80) for name in changed[:_NUM_NAMED]) + more
