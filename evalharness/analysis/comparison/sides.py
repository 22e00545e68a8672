"""One side of a comparison, read from a run directory, one of its engines, or a baseline.

A baseline is one side as a small file that can be committed. It has scores, identities and hashes; no texts, no paths:

    {"format": "evalharness baseline", "version": 1, "run_id", "engine", "checkpoint", "fingerprint", "asked",
     "circumstances", "directions", "aggregates", "noise" (of a run with --noise),
     "tests": [{"eval", "test", "options", "code", "cases": [ids], "columns": {name: column}}]}

A column has one value per case: {"values": [...], "at": "0120…"} (one character per case) where few values occur, else a
list. Ten thousand cases of twenty scores take about a megabyte, most of it their ids.
"""

from __future__ import annotations

import json
import math
import os
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from evalharness.analysis.comparison.sheets import CaseLine, Sheet, Side, plain_score, sheets_by_engine
from evalharness.analysis.gate_grammar import Gate, parse_gate
from evalharness.analysis.gates import DIRECTIONS, usual_direction
from evalharness.analysis.noise import noises_of
from evalharness.api.checks import refuse_constant
from evalharness.api.errors import BaselineError, ComparisonError, ConfigError, RecordError
from evalharness.runs.files import read_whole, write_atomically
from evalharness.runs.journal import readable
from evalharness.runs.judging import code_of
from evalharness.runs.partial import part_texts, stopped_evals
from evalharness.runs.run_file import read_run, read_samples
from evalharness.runs.schema import EngineEntry, Row, RunFile, entries_of, mapping, text_of

if TYPE_CHECKING:
    from evalharness.analysis.statistics.noise import Noise


def read_side(text: str, prefer: str = "") -> Side:
    """Return the side that "RUN_DIR", "RUN_DIR:ENGINE" or "BASELINE.json" names.

    ENGINE is an engine's id ("hf:final") or its checkpoint's name; it is needed if a run has several engines and none of them is the one to
    `prefer`. Raises `ComparisonError`, or `RecordError` if the run cannot be read.
    """
    path, engine = _split(text)
    if path.is_file():
        if engine:
            raise ComparisonError(f"{path} is a baseline, which has one engine; leave {':' + engine!r} out")
        return read_baseline(path)
    notes: list[str] = []
    run = read_run(path, notes)
    engines = _engines(run, path)
    chosen = prefer if not engine and prefer in engines else _choose(engine, engines, path)
    # One row at a time: with their prompts and token ids, all rows of a large run take gigabytes.
    side = side_of_rows(run, chosen, (row for row in read_samples(path, notes) if str(row.get("engine")) == chosen))
    if not side.sheets:
        raise ComparisonError(f"{path} has no rows for {chosen}; if the run was killed, recover them with: evalharness report {path}")
    side.source, side.notes = str(path), (*notes, *_unfinished(run))
    return side


def read_sides(path: Path) -> tuple[RunFile, list[Side]]:
    """Return run.json and one side per engine of a run directory, read once. Raises `RecordError` if it cannot be read."""
    notes: list[str] = []
    run = read_run(path, notes)
    engines = sheets_by_engine(read_samples(path, notes))
    all_notes = (*notes, *_unfinished(run))
    return run, [replace(_side(run, engine, sheets), source=str(path), notes=all_notes) for engine, sheets in engines.items()]


def _split(text: str) -> tuple[Path, str]:
    """Return the path and the engine; the path is the longest existing part before a colon."""
    parts = text.split(":")
    for count in range(len(parts), 0, -1):
        path = Path(":".join(parts[:count]))
        if path.exists():
            return path, ":".join(parts[count:])
    raise ComparisonError(
        f"{text!r} is neither a run directory nor a baseline; give reports/RUN_ID, reports/RUN_ID:ENGINE or baselines/NAME.json"
    )


def _engines(run: RunFile, path: Path) -> list[str]:
    """Return the run's engines: those that run.json names, or, without it, those of the rows."""
    named = [str(entry.get("id")) for entry in entries_of(run.get("engines"))]
    engines = named or list(dict.fromkeys(str(row.get("engine")) for row in read_samples(path)))
    if not engines:
        raise ComparisonError(f"{path} has no rows to compare; if the run was killed, recover them with: evalharness report {path}")
    return engines


def _choose(wanted: str, engines: list[str], path: Path) -> str:
    if not wanted and len(engines) == 1:
        return engines[0]
    fitting = [engine for engine in engines if wanted in (engine, engine.partition(":")[2])] if wanted else []
    if len(fitting) == 1:
        return fitting[0]
    problem = f"has no engine {wanted!r}" if wanted and not fitting else "has several engines"
    raise ComparisonError(f"{path} {problem}; write {path}:ENGINE with one of: {', '.join(engines)}")


def _unfinished(run: RunFile) -> Iterable[str]:
    if run.get("interrupted"):
        yield f"the run was interrupted ({run['interrupted']})"
    elif run.get("rebuilt") is True or (run and not run.get("finished_at")):
        yield "the run did not finish"


def side_of_rows(run: RunFile, engine: str, rows: Iterable[Row]) -> Side:
    """Return the side of one engine's rows; `run` is run.json, or the part of it that exists."""
    return _side(run, engine, sheets_by_engine(rows).get(engine, {}))


def engine_entry(run: RunFile, engine: str) -> EngineEntry:
    """Return run.json's entry of an engine, empty if there is none."""
    return next((entry for entry in entries_of(run.get("engines")) if entry.get("id") == engine), EngineEntry())


def _side(run: RunFile, engine: str, sheets: dict[tuple[str, str], Sheet]) -> Side:
    entry = engine_entry(run, engine)
    checkpoint = str(entry.get("checkpoint") or engine.partition(":")[2] or engine)
    run_id = str(run.get("run_id") or "?")
    evals = {text_of(line.get("name")): line for line in entries_of(run.get("evals"))}
    for sheet in sheets.values():
        sheet.code = code_of(evals.get(sheet.eval, {}), sheet.test)
    return Side(
        label=f"{run_id} ({engine})",
        run_id=run_id,
        engine=engine,
        checkpoint=checkpoint,
        fingerprint=entry.get("fingerprint"),
        checkpoint_path=text_of(entry.get("checkpoint_path")),
        asked=_asked(run, entry),
        own_limits=frozenset(name for name in _LIMITS if _option(run, name) is None),
        circumstances=_circumstances(run, entry),
        sheets=sheets,
        aggregates={
            (str(value.get("eval")), str(value.get("test", "")), str(value.get("metric"))): float(value["value"])
            for value in entries_of(run.get("aggregates"))
            if value.get("engine") == engine and isinstance(value.get("value"), (int, float))
        },
        draws={
            (str(value.get("eval")), str(value.get("test", "")), str(value.get("metric"))): (value["draws"], int(value["num_groups"]))
            for value in entries_of(run.get("aggregates"))
            if value.get("engine") == engine and _are_draws(value.get("draws")) and isinstance(value.get("num_groups"), int)
        },
        directions=_directions(run, sheets),
        parts=part_texts(run),
        stopped=tuple(stopped_evals(run)),
        noise=noises_of(mapping(run.get("noise")).get("measured"), engine) if run.get("noise") else {},
        gates=tuple(gate for gate in entries_of(run.get("gates")) if gate.get("engine") == engine),
    )


def _are_draws(draws: object) -> bool:
    return isinstance(draws, list) and all(draw is None or isinstance(draw, (int, float)) for draw in draws)


def _held_down(expression: str) -> str | None:
    """Return the metric that a gate wants to be low; None for any other gate."""
    try:
        gate = parse_gate(expression)
    except ConfigError:  # of a newer version
        return None
    if not isinstance(gate, Gate) or gate.statistic:
        return None
    is_low = gate.comparison in (("<", "<=") if gate.change != "drop" else (">", ">="))  # what may not drop is better when higher
    return gate.metric if is_low else None


def _directions(run: RunFile, sheets: Mapping[tuple[str, str], Sheet]) -> dict[tuple[str, str, str], str]:
    """Return the metrics that are not better when higher, as the evals say, else as gates with `<` imply, else as their names do."""
    scored = {(*test, name) for test, sheet in sheets.items() for line in sheet.cases.values() for name in line.scores}
    computed = {
        (text_of(each.get("eval")), text_of(each.get("test")), text_of(each.get("metric"))) for each in entries_of(run.get("aggregates"))
    }
    directions = {key: way for key in scored | computed if (way := usual_direction(key[2])) != "higher"}
    directions |= {
        (str(gate.get("eval")), str(gate.get("test")), metric): "lower"
        for gate in entries_of(run.get("gates"))
        if (metric := _held_down(str(gate.get("expression")))) is not None
    }
    declared = {str(entry.get("name")): mapping(entry.get("directions")) for entry in entries_of(run.get("evals"))}
    for name, test in sheets:
        directions |= {(name, test, metric): str(way) for metric, way in declared.get(name, {}).items() if way in DIRECTIONS}
    return directions


def _asked(run: RunFile, engine: EngineEntry) -> dict[str, Any]:
    """Return the settings shared by all of the engine's requests, besides prompt and options."""
    pixels = mapping(mapping(engine.get("settings")).get("pixel_budget"))
    return {name: pixels[name] if name in pixels else _option(run, name) for name in _LIMITS}


def _circumstances(run: RunFile, engine: EngineEntry) -> dict[str, Any]:
    git = mapping(run.get("git"))
    commit = str(git.get("commit"))[:12]
    return {
        "harness version": mapping(run.get("versions")).get("evalharness"),
        "backend": engine.get("backend"),
        "chat template": engine.get("template_sha256"),
        "dtype": mapping(engine.get("settings")).get("dtype"),
        "code": f"{commit}{' with uncommitted changes' if git.get('dirty') else ''}" if git else None,
        "batch-invariant mode": _option(run, "batch_invariant"),
        "seed": _option(run, "seed"),
    }


def _option(run: RunFile, name: str) -> Any:
    return mapping(mapping(run.get("config")).get(name)).get("value")


_LIMITS = ("min_pixels", "max_pixels")
FORMAT, VERSION = "evalharness baseline", 1
_SYMBOLS = string.digits + string.ascii_letters
_FACTS = ("run_id", "engine", "checkpoint", "fingerprint", "asked", "circumstances")

_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("run_id", "engine", "checkpoint"), str),
    "fingerprint": (str, type(None)),
    **dict.fromkeys(("asked", "circumstances"), dict),
    **dict.fromkeys(("directions", "tests"), list),
}

Column: TypeAlias = "list[Any] | dict[str, Any]"


def write_baseline(side: Side, path: Path) -> None:
    """Write a side as a baseline, whole or not at all; raises `BaselineError`."""
    with write_atomically(path, "choose another folder with --to", error=BaselineError, make_folder=True) as file:
        file.write(baseline_json(side).encode("ascii"))


def baseline_json(side: Side) -> str:
    """Return the file's text, a line per column, so that a diff of two versions is readable."""
    head = {"format": FORMAT, "version": VERSION, **{name: getattr(side, name) for name in _FACTS}}
    head["directions"] = sorted([*key, way] for key, way in side.directions.items())
    if side.aggregates:
        head["aggregates"] = [[*key, _plain(value)] for key, value in sorted(side.aggregates.items())]
    if side.noise:
        head["noise"] = [_noise_json(key, noise) for key, noise in sorted(side.noise.items())]
    lines = [f"{_dumps(name)}:{_dumps(value)}" for name, value in head.items()]
    return "{" + ",\n".join(lines) + ',\n"tests":[' + ",\n".join(map(_test_json, side.sheets.values())) + "]}\n"


def _test_json(sheet: Sheet) -> str:
    cases = list(sheet.cases.values())
    columns: dict[str, list[Any]] = {
        "outcome": [case.outcome for case in cases],
        "prompt": [case.prompt for case in cases],
        "answer": [case.answer for case in cases],
        "reference": [case.reference for case in cases],
    }
    for kind in ("scores", "marks"):
        for name in dict.fromkeys(name for case in cases for name in getattr(case, kind) if not name.startswith("num_")):
            columns[f"{kind}.{name}"] = [getattr(case, kind).get(name) for case in cases]
    shown = ",\n".join(f"{_dumps(name)}:{_dumps(_packed(values))}" for name, values in columns.items())
    facts = f'"eval":{_dumps(sheet.eval)},"test":{_dumps(sheet.test)},"options":{_dumps(sheet.options)},"code":{_dumps(sheet.code)}'
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
    """Return the side in a baseline. Raises `BaselineError` if it is absent, unreadable or not a baseline."""
    try:
        place = Path(os.path.realpath(path))  # a link is the user's own: a baseline is part of the project, not of a run
        values = json.loads(read_whole(place, place.parent), parse_constant=refuse_constant)
    except RecordError as error:
        raise BaselineError(f"baseline {error}") from error
    except OSError as error:
        raise BaselineError(f"baseline {path} cannot be read: {error.strerror}; create one with: evalharness bless RUN_DIR NAME") from error
    except (ValueError, RecursionError) as error:
        raise BaselineError(f"baseline {path} is not JSON ({error}); bless the run again") from error
    if not isinstance(values, Mapping) or values.get("format") != FORMAT:
        raise BaselineError(f"{path} is not a baseline; create one with: evalharness bless RUN_DIR NAME")
    if values.get("version") != VERSION:
        raise BaselineError(f"{path} has version {values.get('version')!r}; this evalharness reads {VERSION}: bless the run again")
    try:
        wrong = next((name for name, kind in _TYPES.items() if not isinstance(values[name], kind)), None)
        if wrong is not None:
            raise TypeError(f"a wrong {wrong!r}")
        sheets = [_sheet(test) for test in values["tests"]]
        return Side(
            label=f"baseline {path.stem} ({values['engine']})",
            **{name: values[name] for name in _FACTS},
            sheets={(sheet.eval, sheet.test): sheet for sheet in sheets},
            directions={(name, test, metric): way for name, test, metric, way in values["directions"]},
            aggregates={(name, test, metric): float(value) for name, test, metric, value in values.get("aggregates", ())},
            noise=noises_of(values["noise"]) if values.get("noise") else {},
            source=str(path),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise BaselineError(f"baseline {path} is damaged ({type(error).__name__}: {error}); bless the run again") from error


def _noise_json(key: tuple[str, str, str], noise: Noise) -> dict[str, Any]:
    values = {name: round(value, 9) if math.isfinite(value) else None for name, value in noise._asdict().items()}
    return {**dict(zip(("eval", "test", "metric"), key, strict=True)), **values}


def _sheet(test: Mapping[str, Any]) -> Sheet:
    case_ids = test["cases"]
    columns = {name: _unpacked(column, len(case_ids)) for name, column in test["columns"].items()}
    sheet = Sheet(str(test["eval"]), readable(str(test["test"])), test["options"], code=mapping(test["code"]) if test.get("code") else None)
    references = columns.get("reference") or [None] * len(case_ids)  # there is none in a baseline of an older version
    for position, case_id in enumerate(case_ids):
        named: dict[str, dict[str, float]] = {"scores": {}, "marks": {}}
        for name, values in columns.items():
            kind, dot, key = name.partition(".")
            number = plain_score(values[position]) if dot else None
            if number is not None:
                named[kind][key] = number
        sheet.cases[case_id] = CaseLine(
            str(columns["outcome"][position]),
            named["scores"],
            named["marks"],
            columns["prompt"][position],
            columns["answer"][position],
            reference=references[position],
        )
    return sheet


def _unpacked(column: Column, num_cases: int) -> list[Any]:
    values = column if isinstance(column, list) else [column["values"][_SYMBOLS.index(symbol)] for symbol in column["at"]]
    if len(values) != num_cases:
        raise ValueError(f"a column has {len(values)} values for {num_cases} cases")
    return values
