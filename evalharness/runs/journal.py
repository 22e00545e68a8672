"""The journal: one JSON line per finished generation and per finished test, flushed at once, so that it survives SIGKILL.

    journal/<worker>.jsonl   {"kind": "collected", …}    once per run: engines, node ids of all eval tests
                             {"kind": "eval", …}         once per eval module: name, path, tests, gates
                             {"kind": "engine_start", …} an engine begins to open: its id
                             {"kind": "engine", …}       once per opened engine: settings, load time; once more, without it, when closed
                             {"kind": "unit_start", …}   one work unit begins; `ahead`: while the one before it goes on
                             {"kind": "generation", …}   one finished generation of (engine, eval, case, sample), its key the last
                             {"kind": "failure", …}      the same where there is none
                             {"kind": "step", …}         one finished generation of (engine, eval, case, step, request), its key the last
                             {"kind": "step_failure", …} the same where there is none
                             {"kind": "unit", …}         one work unit: when it ended, and the seconds until then since its first
                                                         request, or since the end of the unit before
                             {"kind": "problem", …}      what the run could not do
                             {"kind": "worker_exit", …}  why a worker ends itself: its engine is beyond repair
                             {"kind": "row", …}          one finished test
                             {"kind": "repeat", …}       the same of a repeat (--noise), which is no row of samples.jsonl
A row has no options, group and tags of its own where they are those that the journal's latest line of its eval gives for all
its rows, and for its case; nor a number of samples. samples.jsonl has them in every row.
Where a case was asked in steps, `steps` in its generation or failure says how many requests each step had; the latest step
lines before it, that many, are its own. `copied` marks what a worker took over from the journal of one that died.
`journal/crashes.jsonl` has the units that workers left unfinished (`pytest_plugin/execution/takeover.py`). Readers ignore unknown
kinds and keys, and a torn last line.

A session that resumes a run adds files of its own, `resumed-001-<worker>.jsonl`, and what they say comes later, whatever
workers are called. Each file is locked while its process lives, so that nobody resumes what still goes on.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

from evalharness.api.checks import is_deeper, refuse_constant
from evalharness.api.errors import RecordError
from evalharness.api.redaction import redactor
from evalharness.runs.files import numbered_lines, open_for_reading
from evalharness.runs.schema import (
    MAX_DATA_DEPTH,
    Collected,
    CrashLine,
    EngineLine,
    EvalLine,
    OutcomeKind,
    OutcomeLine,
    ProblemLine,
    Row,
    UnitLine,
)

encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), check_circular=False).encode
"""Returns plain data as one line of ASCII JSON; raises `TypeError` or `ValueError` for anything else."""

_decode = json.JSONDecoder(parse_constant=refuse_constant).decode  # json.loads would detect the encoding of every line
_RESUMED = re.compile(r"resumed-(\d{3,})-.+", re.DOTALL)


def journal_name(writer: str, session: int) -> str:
    """Return the name of a writer's journal in a session of the run: session 0 starts it, 1, 2… resume it."""
    return writer if session == 0 else f"resumed-{session:03}-{writer}"


def session_of(name: str) -> int:
    """Return the session that wrote a journal of this name."""
    match = _RESUMED.fullmatch(name)
    return 0 if match is None else int(match[1])


MAX_DEPTH = MAX_DATA_DEPTH + 16
"""Of nested lists and objects in a line, which holds data: what is deeper is neither written nor read."""


def is_too_deep(line: bytes, values: object) -> bool:
    """Return whether a line's values are nested more than `MAX_DEPTH` deep; looks closely only where it has enough brackets for it."""
    return line.count(b"[") + line.count(b"{") > MAX_DEPTH and is_deeper(values, MAX_DEPTH)


class Journal:
    """Appends to one worker's file; safe to call from several threads."""

    def __init__(self, run_dir: Path, worker: str) -> None:
        self.path = run_dir / "journal" / f"{worker}.jsonl"
        self.worker = worker
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise RecordError(f"{self.path} cannot be opened: {error.strerror}; choose another folder with --report-dir") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise RecordError(f"{self.path} is being written by another process; start this run under another --run-id") from None
        except OSError:
            pass  # a file system without locks; resuming a run there says so

    @overload
    def write(self, kind: Literal["collected"], values: Collected) -> None: ...
    @overload
    def write(self, kind: Literal["eval"], values: EvalLine) -> None: ...
    @overload
    def write(self, kind: Literal["engine_start", "engine"], values: EngineLine) -> None: ...
    @overload
    def write(self, kind: Literal["unit_start", "unit"], values: UnitLine) -> None: ...
    @overload
    def write(self, kind: OutcomeKind, values: OutcomeLine) -> None: ...
    @overload
    def write(self, kind: Literal["problem", "worker_exit"], values: ProblemLine) -> None: ...
    @overload
    def write(self, kind: Literal["row", "repeat"], values: Row) -> None: ...
    @overload
    def write(self, kind: Literal["crash"], values: CrashLine) -> None: ...
    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append one line and hand it to the operating system. Raises `RecordError`: disk full, folder gone, not JSON."""
        try:
            if isinstance(values.get("problem"), str):
                values = {**values, "problem": redactor().text(values["problem"])}
            whole = encode({"kind": kind, **values})
            shown = redactor().json_line(whole)
            if shown != whole and isinstance(values.get("generation"), Mapping):
                shown = redactor().json_line(encode({"kind": kind, **values, "generation": _with_hidden(values["generation"])}))
            line = (shown + "\n").encode("ascii")
            if is_too_deep(line, values):
                raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        except (TypeError, ValueError, RecursionError) as error:
            raise RecordError(f"a {kind} line cannot be recorded: {error}; options, tags and scores must be plain JSON data") from error
        self.append(line)

    def append(self, line: bytes) -> None:
        """Append whole lines as they are. Raises `RecordError`."""
        num_left = len(line)
        try:
            with self._lock:
                try:
                    while num_left:  # a full disk may take a part
                        num_left -= os.write(self._file, line[-num_left:] if num_left < len(line) else line)
                except OSError:
                    if num_left < len(line):  # half a line would spoil the next one; only this process appends
                        os.ftruncate(self._file, os.fstat(self._file).st_size - (len(line) - num_left))
                    raise
        except OSError as error:
            raise RecordError(f"{self.path} cannot be written: {error.strerror}; what is in it so far is kept") from error

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


def _with_hidden(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Return a generation that names the secrets in its answer: as it is recorded, it is not what was generated."""
    answer = f"{generation.get('text')}\n{generation.get('raw_text')}"
    names = redactor().names_in(answer)
    return {**generation, "hidden": names} if names else dict(generation)


class Line(NamedTuple):
    """One line of a journal: its values, its bytes, its file, and its offset and number there."""

    values: dict[str, Any]
    raw: bytes
    path: Path
    offset: int
    number: int = 0

    def broken(self, problem: str) -> RecordError:
        """Return the error that names the line."""
        return _broken(self.path, self.number, problem)


def _broken(path: Path, number: int, problem: str) -> RecordError:
    return RecordError(f"{path}:{number} {problem}; move the line away to read the rest")


def read_lines(run_dir: Path) -> Iterator[Line]:
    """Return every complete line of every worker's journal, by session, then by name."""
    return itertools.chain.from_iterable(map(read_journal, journals_of(run_dir)))


def journals_of(run_dir: Path) -> list[Path]:
    """Return the journals of all writers of a run, by session, then by name."""
    return sorted((run_dir / "journal").glob("*.jsonl"), key=lambda path: (session_of(path.stem), path.name))


def read_journal(path: Path) -> Iterator[Line]:
    """Yield every complete line of a journal; a torn last line is left out."""
    offset = 0
    try:
        file = open_for_reading(path, path.parent.parent)
    except FileNotFoundError:  # the caller's to judge: nobody may have written it yet
        raise
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}; check the path and its permissions") from error
    with file:
        for number, raw in numbered_lines(file, path):
            if not raw.endswith(b"\n"):
                break
            try:
                values = _decode(raw.decode("utf-8", "surrogatepass"))
            except (ValueError, RecursionError) as error:
                raise _broken(path, number, f"is not JSON ({error})") from error
            if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
                raise _broken(path, number, "is not a line of a journal, which is a JSON object with a kind")
            yield Line(values, raw, path, offset, number)
            offset += len(raw)


_ESCAPED = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def readable(name: str) -> str:
    """Return the name of a test with the letters that pytest escapes in its parameters: "test_a[统]", not "test_a[\\u7edf]".

    What is not printable, and ASCII, stays escaped. A readable name is returned as it is.
    """
    return _ESCAPED.sub(_letter, name) if "\\" in name else name


def _letter(match: re.Match[str]) -> str:
    code = int(match[2] or match[3] or match[4], 16)
    return match[1] + chr(code) if 0x80 <= code <= sys.maxunicode and chr(code).isprintable() else match[0]


class EvalNode(NamedTuple):
    """The parts of an eval test's node id. `test` has its class and its other parameters, readable: "TestA::test_b[x]"."""

    path: str
    test: str
    engine: str
    case_id: str


def parse_nodeid(nodeid: str, engine_ids: Iterable[str]) -> EvalNode | None:
    """Return the parts of an eval test's id, None for any other test. `case_id` is as pytest writes it, maybe escaped.

    Ids are written as `[<other parameters>-<engine>-<case>]`; the longest engine id that fits wins.
    """
    path, _, name_and_parameters = nodeid.partition("::")
    name, bracket, parameters = name_and_parameters.partition("[")
    if not bracket or not parameters.endswith("]"):
        return None
    parameters = "-" + parameters[:-1]
    best: EvalNode | None = None
    for engine_id in engine_ids:
        others, separator, case_id = parameters.partition(f"-{engine_id}-")
        if separator and (best is None or len(engine_id) > len(best.engine)):
            best = EvalNode(path, readable(f"{name}[{others[1:]}]") if others else name, engine_id, case_id)
    return best


def parse_plain(nodeid: str, engine_ids: Iterable[str]) -> EvalNode | None:
    """Return the parts of the id of a test that takes an engine and no case, whose last parameter is the engine; None for any other."""
    parameters = f"-{nodeid.partition('[')[2].removesuffix(']')}"
    engine = max((engine_id for engine_id in engine_ids if parameters.endswith(f"-{engine_id}")), key=len, default=None)
    return None if engine is None else plain_node(nodeid, engine)


def plain_node(nodeid: str, engine_id: str) -> EvalNode:
    """Return the parts of the id of a test without a case, which is a case of its own: all of its name but the engine."""
    path, _, name = nodeid.partition("::")
    function, _, parameters = name.removesuffix("]").partition("[")
    others = f"-{parameters}".removesuffix(f"-{engine_id}")[1:] if engine_id else parameters
    return EvalNode(path, function, engine_id, function.replace("::", ".") + (f"[{readable(others)}]" if others else ""))


def plain_eval(path: str, *, beside_eval: bool) -> str:
    """Return the name under which reports show tests without cases: their module's path, so that nothing else has it."""
    folder, slash, file = path.removesuffix(".py").rpartition("/")
    return f"{folder}{slash}{file.removeprefix('test_')}{'.plain' if beside_eval else ''}"


def test_name(nodeid: str, path: str, engine_id: str) -> str:
    """Return the test in an eval test's id, given its engine: class, name and other parameters, readable."""
    name, bracket, parameters = nodeid[len(path) + 2 :].partition("[")
    others = "" if parameters.startswith(f"{engine_id}-") else parameters.partition(f"-{engine_id}-")[0]
    return readable(f"{name}{bracket}{others}]") if others else name
