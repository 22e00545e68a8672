"""Baselines: one side of a comparison as a small file that can be committed. Scores, identities and hashes; no texts, no paths.

    {"format": "evalharness baseline", "version": 1, "run_id", "engine", "checkpoint", "fingerprint", "asked",
     "circumstances", "directions", "tests": [{"eval", "test", "options", "cases": [ids], "columns": {name: column}}]}

A column has one value per case: {"values": [...], "at": "0120…"} (one character per case) where few values occur, else a
list. Ten thousand cases of twenty scores take about a megabyte, most of it their ids.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from evalharness.analysis.comparison.sheets import CaseLine, Sheet, Side
from evalharness.api.errors import BaselineError
from evalharness.runs.atomic import write_atomically

__all__ = ["baseline_json", "read_baseline", "write_baseline"]

FORMAT, VERSION = "evalharness baseline", 1
_SYMBOLS = string.digits + string.ascii_letters
_FACTS = ("run_id", "engine", "checkpoint", "fingerprint", "asked", "circumstances")

Column: TypeAlias = "list[Any] | dict[str, Any]"


def write_baseline(side: Side, path: Path) -> None:
    """Write a side as a baseline, whole or not at all; raises `BaselineError`."""
    with write_atomically(path, "choose another folder with --to", error=BaselineError, make_folder=True) as file:
        file.write(baseline_json(side).encode("ascii"))


def baseline_json(side: Side) -> str:
    """Return the file's text: a line per column, so that a difference between two versions can be read."""
    head = {"format": FORMAT, "version": VERSION, **{name: getattr(side, name) for name in _FACTS}}
    head["directions"] = sorted([*key, way] for key, way in side.directions.items())
    lines = [f"{_dumps(name)}:{_dumps(value)}" for name, value in head.items()]
    return "{" + ",\n".join(lines) + ',\n"tests":[' + ",\n".join(map(_test_json, side.sheets.values())) + "]}\n"


def _test_json(sheet: Sheet) -> str:
    cases = list(sheet.cases.values())
    columns: dict[str, list[Any]] = {
        "outcome": [case.outcome for case in cases],
        "prompt": [case.prompt for case in cases],
        "answer": [case.answer for case in cases],
    }
    for kind in ("scores", "marks"):
        for name in dict.fromkeys(name for case in cases for name in getattr(case, kind) if not name.startswith("num_")):
            columns[f"{kind}.{name}"] = [getattr(case, kind).get(name) for case in cases]
    shown = ",\n".join(f"{_dumps(name)}:{_dumps(_packed(values))}" for name, values in columns.items())
    facts = f'"eval":{_dumps(sheet.eval)},"test":{_dumps(sheet.test)},"options":{_dumps(sheet.options)}'
    return f'{{{facts},\n"cases":{_dumps(list(sheet.cases))},\n"columns":{{\n{shown}}}}}'


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _packed(values: Sequence[Any]) -> Column:
    distinct = {(type(value), value): value for value in values}
    if len(distinct) > len(_SYMBOLS):
        return [_plain(value) for value in values]
    symbols = dict(zip(distinct, _SYMBOLS, strict=False))
    return {"values": [_plain(value) for value in distinct.values()], "at": "".join(symbols[type(value), value] for value in values)}


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_baseline(path: Path) -> Side:
    """Return the side that a baseline holds. Raises `BaselineError` where it is absent, unreadable or none."""
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise BaselineError(f"baseline {path} cannot be read: {error.strerror}; create one with: evalharness bless RUN_DIR NAME") from error
    except (ValueError, RecursionError) as error:
        raise BaselineError(f"baseline {path} is not JSON ({error}); bless the run again") from error
    if not isinstance(values, Mapping) or values.get("format") != FORMAT:
        raise BaselineError(f"{path} is not a baseline; create one with: evalharness bless RUN_DIR NAME")
    if values.get("version") != VERSION:
        raise BaselineError(f"{path} has version {values.get('version')!r}; this evalharness reads {VERSION}: bless the run again")
    try:
        sheets = [_sheet(test) for test in values["tests"]]
        return Side(
            label=f"baseline {path.stem} ({values['engine']})",
            **{name: values[name] for name in _FACTS},
            sheets={(sheet.eval, sheet.test): sheet for sheet in sheets},
            directions={(name, test, metric): way for name, test, metric, way in values["directions"]},
            source=str(path),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise BaselineError(f"baseline {path} is damaged ({type(error).__name__}: {error}); bless the run again") from error


def _sheet(test: Mapping[str, Any]) -> Sheet:
    case_ids = test["cases"]
    columns = {name: _unpacked(column, len(case_ids)) for name, column in test["columns"].items()}
    sheet = Sheet(test["eval"], test["test"], test["options"])
    for position, case_id in enumerate(case_ids):
        named: dict[str, dict[str, float]] = {"scores": {}, "marks": {}}
        for name, values in columns.items():
            kind, dot, key = name.partition(".")
            if dot and values[position] is not None:
                named[kind][key] = float(values[position])
        sheet.cases[case_id] = CaseLine(
            columns["outcome"][position], named["scores"], named["marks"], columns["prompt"][position], columns["answer"][position]
        )
    return sheet


def _unpacked(column: Column, num_cases: int) -> list[Any]:
    values = column if isinstance(column, list) else [column["values"][_SYMBOLS.index(symbol)] for symbol in column["at"]]
    if len(values) != num_cases:
        raise ValueError(f"a column has {len(values)} values for {num_cases} cases")
    return values
