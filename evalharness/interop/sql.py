"""SQL over runs: DuckDB reads samples.jsonl and run.json where they lie, each time anew, so there is nothing to keep in sync.

A query is one that only reads, and it sees the runs' own files and nothing else: other files, the network and extensions are closed to it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from evalharness.api.errors import ConfigError, MissingDependency, RecordError
from evalharness.api.installing import missing_package
from evalharness.api.temporary import OwnFolder
from evalharness.runs.files import check_inside
from evalharness.runs.run_file import read_run

_LARGEST_LINE = 1 << 28
_MESSAGE_LINES = 3
_IN_FILE = re.compile(r'in file "(.+?)"')
_READING = ("SELECT",)
"""Not EXPLAIN: with ANALYZE it runs what it explains, a COPY over the runs' files too."""
_TEXT = dict.fromkeys(
    (
        "run_id",
        "eval",
        "test",
        "case_id",
        "engine",
        "checkpoint",
        "backend",
        "outcome",
        "problem",
        "cause",
        "nodeid",
        "worker",
        "started_at",
    ),
    "VARCHAR",
)
_GENERATION = "STRUCT(text VARCHAR, prompt_text VARCHAR, finish_reason VARCHAR, num_prompt_tokens BIGINT, num_completion_tokens BIGINT)"
_OF_SAMPLES: Mapping[str, str] = {
    **_TEXT,
    "group": "VARCHAR",
    "scores": "MAP(VARCHAR, DOUBLE)",
    "tags": "MAP(VARCHAR, VARCHAR)",
    **dict.fromkeys(("details", "reference", "options", "generations"), "JSON"),
    "generation": _GENERATION,
    "duration_s": "DOUBLE",
}
_OF_RUNS: Mapping[str, str] = {
    **dict.fromkeys(("run_id", "started_at", "finished_at", "interrupted"), "VARCHAR"),
    "duration_s": "DOUBLE",
    "exit_code": "BIGINT",
    **dict.fromkeys(("command", "counts", "config", "versions", "git", "hardware", "notices", "problems"), "JSON"),
    **dict.fromkeys(("engines", "evals", "gates", "aggregates", "speed"), "JSON[]"),
}
_RUN = "parse_path(filename)[-2] AS run"
_VIEWS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "samples": (
        "_samples",
        f'{_RUN}, run_id, eval, test, case_id, engine, checkpoint, backend, outcome, problem, cause, "group", tags, scores, '
        "generation.text AS text, generation.prompt_text AS prompt, generation.finish_reason AS finish_reason, "
        "generation.num_prompt_tokens AS prompt_tokens, generation.num_completion_tokens AS completion_tokens, reference, details, "
        "options, generations, worker, TRY_CAST(started_at AS TIMESTAMP) AS started_at, duration_s, nodeid",
    ),
    "scores": (
        "_samples",
        f"{_RUN}, eval, test, case_id, engine, checkpoint, outcome, tags, unnest(map_keys(scores)) AS metric, "
        "unnest(map_values(scores)) AS value",
    ),
    "runs": (
        "_runs",
        f"{_RUN}, run_id, TRY_CAST(started_at AS TIMESTAMP) AS started_at, TRY_CAST(finished_at AS TIMESTAMP) AS finished_at, duration_s, "
        "exit_code, interrupted, counts, command, config, versions, git, hardware, notices, problems",
    ),
})  # fmt: skip
_TEXTS_OF_GATES = ("eval", "test", "engine", "expression", "metric", "reason", "tag")
_UNNESTED: Mapping[str, tuple[str, Mapping[str, str]]] = MappingProxyType({
    "gates": ("gates", {**dict.fromkeys(_TEXTS_OF_GATES, "VARCHAR"), "value": "DOUBLE", "threshold": "DOUBLE", "n": "BIGINT",
                        "passed": "BOOLEAN", "failed_slices": "JSON"}),
    "aggregates": ("aggregates", {**dict.fromkeys(("eval", "test", "engine", "metric"), "VARCHAR"), "value": "DOUBLE"}),
    "engines": ("engines", {**dict.fromkeys(("id", "backend", "checkpoint", "checkpoint_path", "fingerprint", "dtype"), "VARCHAR"),
                            "training": "JSON", "settings": "JSON"}),
    "speed": ("speed", {"engine": "VARCHAR", **dict.fromkeys(("tokens_per_s", "generation_s", "load_s", "energy_j", "mfu"), "DOUBLE"),
                        "limited_by": "VARCHAR"}),
})  # fmt: skip
TABLES = (*_VIEWS, *_UNNESTED)
"""What a query may select from."""


@dataclass(frozen=True)
class QueryResult:
    """The answer to a query: the names of its columns, and its rows of plain values."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


def query(sql: str, runs: Sequence[Path], notes: list[str]) -> QueryResult:
    """Return what one reading statement selects from the runs; `notes` gets a line about each run that cannot be read.

    Raises `ConfigError` for a statement that is wrong or does more than read, `MissingDependency` without duckdb.
    """
    try:
        import duckdb
    except ImportError as error:
        raise MissingDependency(missing_package("evalharness sql", error, "sql")) from error
    with _files(runs, notes) as (samples, facts):
        while True:
            try:
                return _ask(duckdb, sql, samples, facts)
            except duckdb.Error as error:
                broken = _broken_file(str(error), samples)
                if broken is None:
                    lines = [line for line in str(error).splitlines() if line.strip()][:_MESSAGE_LINES]
                    raise ConfigError(f"{' '.join(lines)}; tables: {', '.join(TABLES)} (DESCRIBE samples shows columns)") from error
                notes.append(f"left out: {str(error).splitlines()[0]}")
                samples = [path for path in samples if path != broken]  # what is wrong with one run says nothing of the others


def _broken_file(message: str, files: Sequence[Path]) -> Path | None:
    """Return which of the files an error of reading JSON names; None for any other error."""
    match = _IN_FILE.search(message)
    return None if match is None else next((path for path in files if str(path) == match[1]), None)


def _ask(duckdb: Any, sql: str, samples: Sequence[Path], facts: Sequence[Path]) -> QueryResult:
    connection = duckdb.connect(":memory:")
    try:
        _close_off(connection, [*samples, *facts])
        _make_views(connection, samples, facts)
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type.name not in _READING:
            raise ConfigError("give one statement that only reads: SELECT …, WITH … SELECT, DESCRIBE samples, SUMMARIZE scores")
        made = connection.execute(statements[0])
        columns = [(column[0], str(column[1]) == "JSON") for column in made.description or ()]
        rows = [
            tuple(_parsed(value) if is_json else value for (_, is_json), value in zip(columns, row, strict=True)) for row in made.fetchall()
        ]
        return QueryResult([name for name, _ in columns], rows)
    finally:
        connection.close()


def _close_off(connection: Any, files: Sequence[Path]) -> None:
    """Close all files but these to the connection, for good."""
    paths = ", ".join(_quoted(str(path)) for path in files)
    for setting in (
        "temp_directory = ''",
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        "allow_community_extensions = false",
        "python_enable_replacements = false",
        f"allowed_paths = [{paths}]",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _reader(files: Sequence[Path], columns: Mapping[str, str], kind: str) -> str:
    """Return the SELECT that reads files with these columns, or one without rows where there are no files."""
    if not files:
        empty = ", ".join(f'NULL::{type_} AS "{name}"' for name, type_ in {**columns, "filename": "VARCHAR"}.items())
        return f"SELECT {empty} WHERE false"
    listed = ", ".join(_quoted(str(path)) for path in files)
    typed = ", ".join(f"{_quoted(name)}: {_quoted(type_)}" for name, type_ in columns.items())
    return f"SELECT * FROM read_json([{listed}], format = '{kind}', columns = {{{typed}}}, filename = true, " + (
        f"maximum_object_size = {_LARGEST_LINE}, compression = 'uncompressed')"
    )


def _make_views(connection: Any, samples: Sequence[Path], facts: Sequence[Path]) -> None:
    connection.execute(f"CREATE VIEW _samples AS {_reader(samples, _OF_SAMPLES, 'newline_delimited')}")
    connection.execute(f"CREATE VIEW _runs AS {_reader(facts, _OF_RUNS, 'unstructured')}")
    for name, (source, columns) in _VIEWS.items():
        connection.execute(f"CREATE VIEW {name} AS SELECT {columns} FROM {source}")
    for name, (column, fields) in _UNNESTED.items():
        parts = ", ".join(_field(field, type_) for field, type_ in fields.items())
        connection.execute(f"CREATE VIEW {name} AS SELECT run, {parts} FROM (SELECT {_RUN}, unnest({column}) AS entry FROM _runs)")


def _field(name: str, type_: str) -> str:
    path = _quoted(f"$.{name}")
    return (
        f"json_extract(entry, {path}) AS {name}"
        if type_ == "JSON"
        else f"TRY_CAST(json_extract_string(entry, {path}) AS {type_}) AS {name}"
    )


@contextmanager
def _files(runs: Sequence[Path], notes: list[str]) -> Iterator[tuple[list[Path], list[Path]]]:
    """Give the files of samples and of facts of all runs that can be read; of one whose last line is torn, a copy without it."""
    samples: list[Path] = []
    facts: list[Path] = []
    torn: list[Path] = []
    for run in runs:
        try:
            read_run(run)
            for name, kept in (("run.json", facts), ("samples.jsonl", samples)):
                path = run / name
                if path.is_file():
                    check_inside(path, run)
                    (torn if name == "samples.jsonl" and _is_torn(path) else kept).append(path.absolute())
            if not (run / "samples.jsonl").is_file():
                notes.append(f"{run.name} has no samples.jsonl: it is running, or was killed (evalharness report {run} makes one)")
        except RecordError as error:
            notes.append(f"left out: {error}")
    with OwnFolder("sql", None) as folder:
        for path in torn:
            notes.append(f"{path.parent.name}: the last line of samples.jsonl is torn and left out")
            copy = folder / path.parent.name / "samples.jsonl"
            copy.parent.mkdir()
            content = path.read_bytes()
            copy.write_bytes(content[: content.rfind(b"\n") + 1])
            if copy.stat().st_size:
                samples.append(copy)
        yield [path for path in samples if path.stat().st_size], facts


def _is_torn(path: Path) -> bool:
    """Return whether the last line is not whole: without its end, and no JSON."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return False
        file.seek(size - 1)
        if file.read(1) == b"\n":
            return False
        file.seek(max(0, size - _LARGEST_LINE))
        last = file.read().rpartition(b"\n")[2]
    try:
        json.loads(last)
    except (ValueError, RecursionError):
        return True
    return False


def _parsed(value: object) -> object:
    """Return what a cell of JSON holds."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def plain_value(value: Any) -> Any:
    """Return a value of a cell as plain JSON data."""
    if isinstance(value, Mapping):
        return {str(name): plain_value(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(inner) for inner in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return value if isinstance(value, float) and value == value and abs(value) != float("inf") else str(value)
