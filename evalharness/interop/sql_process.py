"""The process that asks DuckDB: it reads a question from standard input and writes the answer to standard output, both JSON.

A process of its own, since nothing else ends every query: DuckDB's limit of memory leaves out long strings, and its interrupt the functions
that make them. The kernel's alarm ends it, whatever it does, also where the process that asks is gone.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

MAX_ANSWER_BYTES = 1 << 29
LONGEST_LINE = 1 << 28
_USUAL_LINE = 1 << 24
"""DuckDB takes twice as much memory per thread before it reads a line, so longer ones are tried only where there is one."""
_MESSAGE_LINES = 3
_TOO_LARGE = "the query takes more memory than it may have; narrow it (WHERE, LIMIT, --run), or give --memory more"
_MAX_THREADS = 4
_ROWS_AT_ONCE = 1000
_IN_FILE = re.compile(r'in file "(.+?)"')
_READING = ("SELECT",)
"""Not EXPLAIN: with ANALYZE it runs what it explains, a COPY over the runs' files too."""
_TEXT = dict.fromkeys((
    "run_id", "eval", "test", "case_id", "engine", "checkpoint", "backend", "outcome", "problem", "cause", "nodeid", "worker", "started_at",
), "VARCHAR")  # fmt: skip
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
class Limits:
    """Bytes: of DuckDB's memory, and of the longest line that can be read."""

    memory: int = 1 << 30
    longest_line: int = _USUAL_LINE


def serve() -> None:
    """Answer the question on standard input, an object: with `columns`, `rows` (each as JSON) and `notes`, or with the `problem`."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    question = json.load(sys.stdin.buffer)
    signal.setitimer(signal.ITIMER_REAL, question["timeout_s"])  # its signal ends the process
    memory = int(question["memory_gib"] * (1 << 30))
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = 2 * memory + (1 << 30)  # of addresses: DuckDB and its threads reserve more than they use
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    try:
        reply = answer(question["sql"], question["samples"], question["facts"], Limits(memory))
    except MemoryError:
        reply = {"problem": _TOO_LARGE}
    answers.write(json.dumps(reply).encode())
    answers.flush()
    os._exit(0)  # giving all memory back takes time


def answer(sql: str, samples: Sequence[str], facts: Sequence[str], limits: Limits) -> dict[str, Any]:
    """Return the answer to a question; its `notes` name files that cannot be read."""
    import duckdb

    notes: list[str] = []
    while True:
        try:
            return {**_ask(duckdb, sql, samples, facts, limits), "notes": notes}
        except duckdb.OutOfMemoryException:
            return {"problem": _TOO_LARGE}
        except duckdb.Error as error:
            text = str(error)
            broken = _broken_file(text, samples)
            if "maximum_object_size" in text and limits.longest_line < LONGEST_LINE:
                limits = replace(limits, longest_line=LONGEST_LINE)
            elif broken is not None:
                notes.append(f"left out: {text.splitlines()[0]}")
                samples = [path for path in samples if path != broken]  # what is wrong with one run says nothing of the others
            else:
                lines = [line for line in text.splitlines() if line.strip(" ^~")][:_MESSAGE_LINES]
                return {"problem": f"{' '.join(lines)}; tables: {', '.join(TABLES)} (DESCRIBE samples shows columns)"}


def _broken_file(message: str, files: Sequence[str]) -> str | None:
    """Return which of the files an error of reading JSON names; None for any other error."""
    match = _IN_FILE.search(message)
    return None if match is None else next((path for path in files if path == match[1]), None)


def _ask(duckdb: Any, sql: str, samples: Sequence[str], facts: Sequence[str], limits: Limits) -> dict[str, Any]:
    """Return columns and rows of one reading statement, or what is wrong with it."""
    connection = duckdb.connect(":memory:")
    _close_off(connection, [*samples, *facts], limits.memory)
    _make_views(connection, samples, facts, limits.longest_line)
    statements = connection.extract_statements(sql)
    if len(statements) != 1 or statements[0].type.name not in _READING:
        return {"problem": "give one statement that only reads: SELECT …, WITH … SELECT, DESCRIBE samples, SUMMARIZE scores"}
    connection.execute(statements[0])
    columns = [(column[0], str(column[1]) == "JSON") for column in connection.description or ()]
    rows: list[str] = []
    num_bytes = 0
    while fetched := connection.fetchmany(_ROWS_AT_ONCE):
        for row in fetched:
            cells = [_plain_value(_parsed(value) if is_json else value) for (_, is_json), value in zip(columns, row, strict=True)]
            rows.append(json.dumps(cells, allow_nan=False))
            num_bytes += len(rows[-1])
        if num_bytes > MAX_ANSWER_BYTES:
            return {"problem": f"the answer has more than {MAX_ANSWER_BYTES >> 20} MiB; ask for fewer columns or rows (LIMIT)"}
    return {"columns": [name for name, _ in columns], "rows": rows}


def _close_off(connection: Any, files: Sequence[str], memory: int) -> None:
    """Close all files but these to the connection, for good."""
    paths = ", ".join(map(_quoted, files))
    for setting in (
        f"memory_limit = '{memory} bytes'",
        f"threads = {min(_MAX_THREADS, os.cpu_count() or 1)}",
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


def _reader(files: Sequence[str], columns: Mapping[str, str], kind: str, longest: int) -> str:
    """Return the SELECT that reads files with these columns, or one without rows where there are no files."""
    if not files:
        empty = ", ".join(f'NULL::{type_} AS "{name}"' for name, type_ in {**columns, "filename": "VARCHAR"}.items())
        return f"SELECT {empty} WHERE false"
    listed = ", ".join(_quoted(path) for path in files)
    typed = ", ".join(f"{_quoted(name)}: {_quoted(type_)}" for name, type_ in columns.items())
    return f"SELECT * FROM read_json([{listed}], format = '{kind}', columns = {{{typed}}}, filename = true, " + (
        f"maximum_object_size = {longest}, compression = 'uncompressed')"
    )


def _make_views(connection: Any, samples: Sequence[str], facts: Sequence[str], longest: int) -> None:
    connection.execute(f"CREATE VIEW _samples AS {_reader(samples, _OF_SAMPLES, 'newline_delimited', longest)}")
    connection.execute(f"CREATE VIEW _runs AS {_reader(facts, _OF_RUNS, 'unstructured', longest)}")
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


def _parsed(value: object) -> object:
    """Return what a cell of JSON holds."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _plain_value(value: Any) -> Any:
    """Return a value of a cell as plain JSON data."""
    if isinstance(value, Mapping):
        return {str(name): _plain_value(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_value(inner) for inner in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return value if isinstance(value, float) and value == value and abs(value) != float("inf") else str(value)
