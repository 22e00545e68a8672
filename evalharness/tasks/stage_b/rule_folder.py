"""A search for rules in a folder: its rows, its guidance, and its answers, so that a search that broke off goes on where it was.

    <folder>/search.json                                 what the search started from, and why it ended
             guidance.json, snapshots/                   the rules in force, and those before them
             rule_candidates.jsonl                       every candidate: rates before and after, promoted or rejected, and why
             benchmarks.jsonl                            the rates after every round; round 0 is before the first
             rule_search_hard_cases.jsonl                the wrong verdicts that each round was about
             rule_search_candidate_regressions.jsonl     tickets that a candidate makes wrong
             rule_search_refused_operations.jsonl        proposed changes that a guard refused
             dropped.jsonl                               tickets that could not be asked
             reflection_cache/answers.jsonl              every answer of the engine
             reflection_cache/rule_search_proposer_failures.jsonl    answers to reflection and proposal without usable JSON

A search follows from its answers. So it is begun anew on the answers in the folder, and the engine is asked only for what is missing; rows
that are there must come out again, and only further ones are added. Nothing is ever removed: a folder of another search is refused.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from evalharness.answers.json_text import loads
from evalharness.api.checks import read_regular
from evalharness.api.errors import BackendError, ConfigError, RecordError
from evalharness.api.options import GenerationOptions
from evalharness.api.redaction import redactor
from evalharness.api.requests import GenerationFailure, GenerationResult, Outcome, TextGenerationRequest
from evalharness.api.wording import part_of
from evalharness.engine.engine import Engine
from evalharness.runs.files import lock_within
from evalharness.runs.run_file import utc_now
from evalharness.tasks.shared import read_lines, write_json, write_lines
from evalharness.tasks.stage_b.files import read_guidance, write_guidance
from evalharness.tasks.stage_b.rule_search import BENCHMARKS, CANDIDATES, LOGS, Asked, RuleSearch

_SEARCH, _GUIDANCE, _ANSWERS = "search.json", "guidance.json", "reflection_cache/answers.jsonl"
_ELSEWHERE = "choose another folder with --out"
_ANOTHER = f"{_ELSEWHERE}, or finish that search with what it was begun with"


class SearchFolder:
    """The files of one mission's search. `started_from` is plain JSON of all that its answers depend on, other than the answers.

    `ConfigError` where the folder holds a search that started from something else, `RecordError` where its files cannot be read.
    """

    def __init__(self, folder: Path, started_from: Mapping[str, Any]) -> None:
        self.folder = folder
        self._started_from = _plain(started_from)
        self._rows: dict[str, list[dict[str, Any]]] = {name: [] for name in LOGS}
        self._answers: dict[str, Outcome] = {}

    def _check_start(self) -> None:
        path = self.folder / _SEARCH
        if not path.is_file():
            return
        try:
            before = loads(read_regular(path).decode("utf-8"))["started_from"]
            differing = [name for name in {**before, **self._started_from} if before.get(name) != self._started_from.get(name)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
        if differing:
            raise ConfigError(f"{self.folder} holds a search that started from other {', '.join(differing)}; {_ANOTHER}")

    def _read_rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a file, those that `stamp` is asked about with their times."""
        path = self.folder / name
        rows = []
        for where, row in read_lines(path) if path.is_file() else ():
            if not isinstance(row, dict) or (name in (CANDIDATES, BENCHMARKS) and not _is_time(row.get("timestamp"))):
                raise RecordError(f"{where} is not a row of a search; {_ANOTHER}")
            rows.append(row)
        return rows

    def _read_answers(self, file: BinaryIO) -> dict[str, Outcome]:
        """Return the recorded answers by their key; a last line that was cut off is removed."""
        path = self.folder / _ANSWERS
        file.truncate(read_regular(path).rfind(b"\n") + 1)
        answers: dict[str, Outcome] = {}
        for where, row in read_lines(path):
            try:
                problem = row.get("invalid")
                made = GenerationResult.from_json(row["generation"]) if problem is None else GenerationFailure("invalid", problem)
                answers[row["key"]] = made
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise RecordError(f"{where} is not an answer: {type(error).__name__}: {error}") from error
        return answers

    def stamp(self, file: str, place: int) -> str:
        """Return the time of a row: that of the recorded one, where it is there, else now."""
        rows = self._rows[file]
        return str(rows[place]["timestamp"]) if place < len(rows) else utc_now()

    def run(self, search: RuleSearch, engine: Callable[[], Engine]) -> None:
        """Run a search to its end; `engine` is called only where an answer is missing.

        `BackendError` where the engine fails: what it has answered until then is kept, and the next run goes on from there.
        """
        self._check_start()
        with self._open() as file:
            self._lock(file)
            self._check_start()  # another process may have begun one until then
            self._rows = {name: self._read_rows(name) for name in LOGS}
            self._answers = self._read_answers(file)
            self._answer(search, engine, file)

    def _open(self) -> BinaryIO:
        path = self.folder / _ANSWERS
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Its last line may be cut off: no file elsewhere that a link leads to. A pipe without a reader is not waited for.
            file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
            if stat.S_ISREG(os.fstat(file).st_mode):
                return os.fdopen(file, "r+b", buffering=0)
            os.close(file)
            raise OSError(errno.EINVAL, "it is not a regular file")
        except OSError as error:
            problem = "it is a link" if error.errno == errno.ELOOP else error.strerror or error
            raise RecordError(f"{path} cannot be written: {problem}; {_ELSEWHERE}") from error

    def _lock(self, file: BinaryIO) -> None:
        try:
            lock_within(file.fileno(), 0)
        except BlockingIOError:
            raise RecordError(f"another process searches in {self.folder}; wait for it, or {_ELSEWHERE}") from None
        except OSError:
            pass  # a file system without locks

    def _answer(self, search: RuleSearch, engine: Callable[[], Engine], file: BinaryIO) -> None:
        steps = search.steps()
        try:
            asked = next(steps)
            while True:
                self._write(search)
                asked = steps.send(self._outcomes(engine, asked, file))
        except StopIteration:
            self._write(search)

    def _outcomes(self, engine: Callable[[], Engine], asked: Asked, file: BinaryIO) -> list[Outcome]:
        requests, options = asked
        counts: Counter[str] = Counter()
        keys = []
        for request, option in zip(requests, options, strict=True):
            key = _key(request, option)
            keys.append(f"{key}-{counts[key]}")
            counts[key] += 1
        missing = [place for place, key in enumerate(keys) if key not in self._answers]
        failed = []
        if missing:
            stream = engine().stream([requests[place] for place in missing], [options[place] for place in missing])
            for number, outcome in stream:
                if isinstance(outcome, GenerationFailure) and outcome.kind == "error":
                    failed.append(outcome.problem)
                else:
                    self._keep(keys[missing[number]], outcome, file)
        if failed:
            raise BackendError(f"{part_of(len(failed), len(missing), 'request')} failed: {failed[0]}; run the same command again to go on")
        return [self._answers[key] for key in keys]

    def _keep(self, key: str, outcome: Outcome, file: BinaryIO) -> None:
        """Record an answer at once; one that repeats a secret is not written, and asked anew by the next run."""
        self._answers[key] = outcome
        said = {"invalid": outcome.problem} if isinstance(outcome, GenerationFailure) else {"generation": outcome.to_json()}
        line = json.dumps({"key": key, **said}, allow_nan=False)
        if redactor().json_line(line) != line:
            return
        try:
            if file.write(f"{line}\n".encode()) <= len(line):
                raise OSError("the disk is full")
        except OSError as error:
            raise RecordError(f"{self.folder / _ANSWERS} cannot be written: {error.strerror or error}") from error

    def _write(self, search: RuleSearch) -> None:
        """Add the rows and rules that are new. `ConfigError` where the search ended before all that is there came out again."""
        logs = {name: _plain(rows) for name, rows in search.logs.items()}
        for name, made in logs.items():
            known = self._rows[name]
            if made[: len(known)] != known[: len(made)]:
                place = next(place for place, (row, other) in enumerate(zip(made, known, strict=False)) if row != other)
                raise RecordError(f"{self.folder / name}:{place + 1} is not what this search comes to; {_ANOTHER}")
        if any(len(self._rows[name]) > len(made) for name, made in logs.items()):
            if search.ended:
                raise ConfigError(f"{self.folder} holds a search that went on for longer; raise --rounds or --patience, or {_ELSEWHERE}")
            return
        for name, made in logs.items():
            if len(made) > len(self._rows[name]):
                write_lines(self.folder / name, made)
                self._rows[name] = made
        path = self.folder / _GUIDANCE
        written = read_guidance(path)[search.mission] if path.is_file() else None
        if written is None or written.step < search.guidance.step:
            write_guidance(path, {search.mission: search.guidance})
        elif written.step == search.guidance.step and written.experiences != search.guidance.experiences:
            raise RecordError(f"{path} was changed by someone else at step {written.step}; {_ANOTHER}")
        write_json(self.folder / _SEARCH, {"started_from": self._started_from, "ended": search.ended}, ascii_only=True)


def _plain(value: Any) -> Any:
    """Return plain data as it is read back, known secrets hidden."""
    return json.loads(redactor().json_line(json.dumps(value, allow_nan=False)))


def _is_time(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(datetime.fromisoformat(value.replace("Z", "+00:00")))
    except ValueError:
        return False


def _key(request: TextGenerationRequest, options: GenerationOptions) -> str:
    question = json.dumps([list(request.messages), options.to_json()], sort_keys=True)
    return hashlib.sha256(question.encode()).hexdigest()[:32]
