"""Starts the pytest session that scores a recorded run again, or that merges the parts of a run made with `--shard`."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import evalharness.pytest_plugin
from evalharness.api.checks import excerpt
from evalharness.api.errors import BROKEN, REFUSED, RecordError
from evalharness.api.temporary import OwnFolder
from evalharness.config import RunConfig
from evalharness.config.kinds import Setting
from evalharness.config.options import OPTIONS, read_shard
from evalharness.pytest_plugin.replay.recorded_execution import RecordedExecution, RecordedRegistry
from evalharness.pytest_plugin.replay.stored_tests import StoredTestsExecution, StoredTestsRegistry
from evalharness.pytest_plugin.replay.trust import eval_file, is_within, project_folders
from evalharness.pytest_plugin.run_context import RunContext
from evalharness.pytest_plugin.session import NEW_SESSION, EvalSession
from evalharness.runs.journal import Journal, journal_name, journals_of, session_of
from evalharness.runs.measured import WorkerEntry
from evalharness.runs.recorded import RecordedRun
from evalharness.runs.run_file import is_latest, write_run_file
from evalharness.runs.schema import RunFile, mapping

_MAX_RUN_ID_CHARS = 80
_CODES = {
    int(pytest.ExitCode.INTERNAL_ERROR): BROKEN,
    int(pytest.ExitCode.USAGE_ERROR): REFUSED,
    int(pytest.ExitCode.NO_TESTS_COLLECTED): REFUSED,
}
"""Exit codes of the command in place of pytest codes that it does not promise."""


def rescore_run(
    run_dir: Path,
    *,
    tests: Path | None = None,
    data: Path | None = None,
    report_dir: Path | None = None,
    run_id: str | None = None,
    spot: str | None = None,
    project: Path | None = None,
    baseline: str | None = None,
) -> int:
    """Run the tests of a recorded run again on its generations and return the exit code; the new run has its own folder.

    `tests` is a module whose tests judge every stored generation instead. `data` replaces the folder that the run's cases came from; the
    folder `run_id` is made in `report_dir` (default: the run's own). The run's evals are those of `project` (default: the current one).
    `baseline` replaces the one that it was held to. Raises `RecordError` or `ConfigError`.
    """
    recorded = RecordedRun.read(run_dir)
    if (recorded.run.get("rescored") or {}).get("tests"):
        origin = recorded.run["rescored"].get("run_id")
        raise RecordError(f"{run_dir} was made with --tests from run {origin}; score that run again")
    report_dir = report_dir or run_dir.absolute().parent
    baseline = baseline or _baseline(recorded, report_dir, project)
    given = {"data": data, "report_dir": report_dir, "run_id": run_id, "spot": spot, "baseline": baseline}
    run = _config(recorded, {name: value for name, value in given.items() if value is not None})
    if tests is None:
        root, paths = _modules(recorded, project)
        if run.data is not None and not Path(run.data).is_dir():
            raise RecordError(f"the run's cases came from {run.data}, which is not a folder; say with --data where they are now")
        if run.data is not None and data is None and not is_within(Path(run.data), root):
            raise RecordError(f"the run's cases came from {run.data}, outside the project {root}; if that is right, give --data {run.data}")
        where = [f"--rootdir={root}", *(str(root / path) for path in paths)]
    else:
        where = [str(_tests_module(tests))]

    def new_session(root: Path) -> EvalSession:
        context = RunContext(run, root)
        if tests is None:
            registry = RecordedRegistry(context, recorded)
            return EvalSession(context, registry, RecordedExecution(context, registry))
        registry = StoredTestsRegistry(context, recorded, project)
        return EvalSession(context, registry, StoredTestsExecution(context, registry))

    plugin = _Rescoring(new_session)
    # The module itself, not its name with -p. Either way pytest would warn that the package, which has no assertions of tests,
    # was imported before it could be rewritten: of the entry point of an installed package, too.
    where += ["-W", "ignore:Module already imported so cannot be rewritten; evalharness:pytest.PytestAssertRewriteWarning"]
    code = int(pytest.main(where, plugins=[evalharness.pytest_plugin, plugin]))
    return _CODES.get(code, code)


def _config(recorded: RecordedRun, given: Mapping[str, object]) -> RunConfig:
    """Return the run's options, replaced by those that are `given` now, with the name of the new run."""
    settings = dict(recorded.config.settings)
    start = re.sub(r"-rescored-[0-9a-f]{6}$", "", recorded.run_id)[:_MAX_RUN_ID_CHARS]
    settings["run_id"] = Setting(f"{start}-rescored-{os.urandom(3).hex()}", "default")
    for option in OPTIONS:
        if option.name in given:
            value = option.kind.read(str(given[option.name]), label=option.flag, base=Path.cwd(), is_text=True)
            settings[option.name] = Setting(value, "command line")
    return RunConfig.from_settings(settings)


def _baseline(recorded: RecordedRun, report_dir: Path, project: Path | None) -> str | None:
    """Return the baseline that the run was held to, where it is here: `latest` may be another one now, and the project elsewhere.

    Raises `RecordError` for one outside the project and the report folders.
    """
    asked = recorded.config.baseline
    path = mapping(recorded.run.get("baseline")).get("path")
    if asked is None:
        return None
    if not isinstance(path, str):
        path = asked
    elif is_latest(asked) and not Path(path).exists():
        path = str(report_dir / Path(path).name)
    if "/" not in path and "\\" not in path:
        return path
    places = (*project_folders(project), recorded.run_dir.absolute().parent, report_dir)
    if any(is_within(Path(path), place) for place in places):
        return path
    if "/" in asked or "\\" in asked or is_latest(asked):
        raise RecordError(f"the run names the baseline {path}, outside this project; if that is right, give --baseline {path}")
    return asked


def _modules(recorded: RecordedRun, project: Path | None) -> tuple[Path, list[str]]:
    """Return the folder that the run's paths are relative to, and the eval modules that exist there."""
    paths = list(recorded.records.evals)
    if not paths and recorded.records.rows:
        raise RecordError(f"run {recorded.run_id} has no eval, only tests that asked the engine themselves; run those again")
    if not paths:
        raise RecordError(f"run {recorded.run_id} was killed before it had said what its evals are; nothing can be scored again")
    for root in project_folders(project):
        if present := [path for path in paths if eval_file(root, path, recorded.run_dir)]:
            return root, present
    raise RecordError(
        f"the evals of run {recorded.run_id} are not here: {', '.join(paths)}; run this in the project that they belong to, "
        "or name it with --project, or judge the generations by other tests with --tests"
    )


def _tests_module(path: Path) -> Path:
    if not path.is_file() or path.suffix != ".py":
        what = "Python file" if path.is_file() else "file"
        raise RecordError(f"--tests {path} is not a {what}; give a module with tests, such as evals/test_degeneration.py")
    return path.absolute()


class _Rescoring:
    """The plugin that gives a session recorded generations, in one process whatever the project's settings say."""

    def __init__(self, new_session: Callable[[Path], EvalSession]) -> None:
        self._new_session = new_session

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> None:
        """Undo `-n` from a project's addopts: rescoring is too quick to need a second process."""
        for name, value in {"numprocesses": 0, "dist": "no", "distload": False, "tx": []}.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Give the plugin the session's state."""
        config.stash[NEW_SESSION] = self._new_session


# Options that may differ between parts without changing an answer.
_OWN = (
    *("shard", "run_id", "report_dir", "devices", "share_devices", "hang_timeout", "gpu_memory_utilization", "tune", "wait", "spot"),
    *("resume", "executor", "ray_address", "draft_from"),
)
_OF_ENGINE = ("id", "fingerprint", "base_fingerprint", "adapter_fingerprint", "variant", "dtype")
_OF_EVAL = ("options", "plugins")
_OF_PARTS_ALONE = ("throughput", "speed", "durations", "rescored", "resumptions")


def merge_runs(run_dirs: Sequence[Path], *, report_dir: Path | None = None, run_id: str | None = None, **given: Any) -> int:
    """Merge the parts of a run into a folder of its own and return the exit code; `given`: see `rescore_run`.

    Raises `RecordError` if a part is missing, given twice, or was run with other options than the first.
    """
    parts = _in_order([RecordedRun.read(run_dir) for run_dir in run_dirs])
    for part in parts[1:]:
        _check_alike(parts[0], part)
    target = report_dir or parts[0].run_dir.absolute().parent
    target.mkdir(parents=True, exist_ok=True)
    with OwnFolder("merge", target) as folder:  # where the journals can be linked
        source = folder / "parts"
        _write_source(source, parts)
        return rescore_run(source, report_dir=target, run_id=run_id or f"merged-{os.urandom(3).hex()}", **given)


def _shard_of(part: RecordedRun) -> tuple[int, int]:
    shard = part.config.shard
    if shard is None:
        raise RecordError(f"{part.run_dir} is not a part: it was run without --shard; give the parts of one run")
    return read_shard(shard)


def _in_order(parts: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Return the parts by number; `RecordError` unless each part is given once."""
    by_number: dict[int, RecordedRun] = {}
    num_parts = _shard_of(parts[0])[1]
    for part in parts:
        number, of = _shard_of(part)
        if of != num_parts:
            raise RecordError(f"{part.run_dir} is part {number}/{of}, {parts[0].run_dir} one of {num_parts}: they are not of one run")
        if number in by_number:
            raise RecordError(f"{part.run_dir} and {by_number[number].run_dir} are both part {number}/{of}; give each part once")
        by_number[number] = part
    missing = [f"{number}/{num_parts}" for number in range(1, num_parts + 1) if number not in by_number]
    if missing:
        # Of an eval that has cases for no more than all parts the first has one.
        has_few = 1 in by_number and all(entry["num_cases"] <= 1 for entry in by_number[1].records.evals.values())
        why = "; one in which no eval has a case left no run: then run again in fewer parts" if has_few else ""
        todo = f"run it, or go on with it (--resume), and give all {num_parts} parts{why}"
        raise RecordError(f"part {', '.join(missing)} is not given; {todo}")
    return [by_number[number] for number in sorted(by_number)]


def _check_alike(first: RecordedRun, part: RecordedRun) -> None:
    """Raise `RecordError`, naming the difference, for a part that was run with other options than the first."""
    for name, value, before in _differences(first, part):
        if value != before:
            shown = [excerpt(json.dumps(each), 80) for each in (value, before)]
            raise RecordError(
                f"{part.run_dir} is not a part of the run of {first.run_dir}: its {name} is {shown[0]}, not {shown[1]}; "
                "run the part again as the others"
            )


def _differences(first: RecordedRun, part: RecordedRun) -> Iterator[tuple[str, Any, Any]]:
    options, before = part.config.to_json(), first.config.to_json()
    yield from ((f"--{name.replace('_', '-')}", options[name]["value"], before[name]["value"]) for name in options if name not in _OWN)
    engines, engines_before = ({spec["id"]: spec for spec in run.records.collected["engines"]} for run in (part, first))
    yield "engines", sorted(engines), sorted(engines_before)
    compared: Any = ((engines, engines_before, _OF_ENGINE), (part.records.evals, first.records.evals, _OF_EVAL))
    for here, there, names in compared:
        for known in here.keys() & there.keys():
            yield from ((f"{name} of {known}", here[known].get(name), there[known].get(name)) for name in names)


def _write_source(source: Path, parts: Sequence[RecordedRun]) -> None:
    """Write a run directory that reads as if one run had written all journals of the parts."""
    (source / "journal").mkdir(parents=True)
    last = 0
    for number, part in enumerate(parts, 1):
        for path in journals_of(part.run_dir):
            session = session_of(path.stem)
            last = max(last, session)
            name = journal_name(f"part{number}-{path.stem.removeprefix(journal_name('', session))}", session)
            copy = source / "journal" / f"{name}.jsonl"
            try:
                os.link(path, copy)
            except OSError:  # another file system, or somebody else's file
                shutil.copyfile(path, copy)
    journal = Journal(source, journal_name("merged", last + 1))
    engines = parts[0].records.collected["engines"]
    nodeids = [nodeid for part in parts for nodeid in part.records.collected["nodeids"]]
    journal.write("collected", {"engines": engines, "nodeids": nodeids})
    for module in dict.fromkeys(module for part in parts for module in part.records.evals):
        entries = [part.records.evals[module] for part in parts if module in part.records.evals]
        cases = {case_id: facts for entry in entries for case_id, facts in entry["cases"].items()}
        journal.write("eval", {**entries[0], "num_cases": len(cases), "cases": cases})
    journal.close()
    first = cast("RunFile", {name: value for name, value in parts[0].run.items() if name not in _OF_PARTS_ALONE})
    config = {name: value for name, value in parts[0].config.to_json().items() if name != "shard"}
    names = ", ".join(part.run_id for part in parts)
    finished = [str(part.run.get("finished_at") or "") for part in parts]
    workers: list[WorkerEntry] = [
        {**entry, "worker": f"part{number}-{entry['worker']}"}
        for number, part in enumerate(parts, 1)
        for entry in part.run.get("workers") or ()
    ]
    more: RunFile = {"run_id": names, "config": config, "workers": workers, "finished_at": max(finished) if all(finished) else None}
    write_run_file(source, {**first, **more})
