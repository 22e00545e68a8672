"""Resumes a run that broke off or ended with errors: what it has recorded, and whether its requests would be the same today.

    pytest evals --resume RUN_ID -n 2

The run keeps its folder, name and options. All its tests run again, on stored generations where there are any; missing ones are generated.
Failures and invalid cases are tried again, as their cause may be gone. Any change that would change an answer is refused, with the
difference, before anything is generated.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from evalharness.api.checks import short_hash
from evalharness.api.errors import ConfigError, RecordError, did_you_mean
from evalharness.api.redaction import HIDDEN_VALUE
from evalharness.api.wording import plural
from evalharness.config import RunConfig
from evalharness.config.kinds import Setting
from evalharness.config.options import OPTIONS
from evalharness.pytest_plugin.eval_module import EvalModule, plugin_names
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec, engine_specs
from evalharness.pytest_plugin.replay.changes import case_changes, judging_changes, prompt_change
from evalharness.pytest_plugin.replay.trust import OF_THIS_SESSION, check_checkpoints, check_options, is_same
from evalharness.pytest_plugin.run_context import RunContext
from evalharness.runs.files import RunLock, check_all_inside, wait_for_writers
from evalharness.runs.journal import encode, session_of
from evalharness.runs.recorded import RecordedRun
from evalharness.runs.records import CaseRecords
from evalharness.runs.run_file import is_latest
from evalharness.runs.schema import RunFile, mapping

WRITERS_TIMEOUT_S = 60.0
"""How long workers that have lost their controller may take to end."""

# Options that change where and how the work is done, but not the answers.
_MAY_DIFFER = (
    "report_dir", "accept_changes", "cache", "cache_dir", "devices", "share_devices", "hang_timeout", "concurrency", "request_timeout",
    "adapter_dir", "gpu_memory_utilization", "tensor_parallel_size", "pipeline_parallel_size", "distributed_executor_backend", "wait",
    "spot", "baseline", "keep_going", "executor", "ray_address", "tune", "draft_from",
)  # fmt: skip
_PRECEDENCE = ("default", "pyproject.toml", "evalharness.toml", "environment", "command line")
_OF_ENGINE = ("fingerprint", "base_fingerprint", "adapter_fingerprint", "variant", "dtype")
_OF_OPEN_ENGINE = ("dtype", "template_sha256", "eos_token_ids", "max_model_len")
"""What is known of an engine only once it is open."""
_NUM_NAMED = 3


def asks_to_resume(now: RunConfig) -> bool:
    """Return whether the session resumes a run; `ConfigError` if a settings file says so, as that would hold for every session."""
    if now.resume is None:
        return False
    if not now.origin("resume").startswith(("command line", "environment")):
        raise ConfigError(f"resume in {now.origin('resume')} would resume one run for ever; give --resume {now.resume} on the command line")
    if now.is_set("run_id") and now.run_id != now.resume:
        raise ConfigError(f"--run-id {now.run_id} contradicts --resume {now.resume}: a resumed run keeps its name; leave --run-id out")
    return True


def resume_run(now: RunConfig, root: Path, *, only_look: bool = False) -> tuple[RunConfig, Resumption, RunLock | None]:
    """Return the options of the run that `--resume` names, its recorded state, and its lock, which this process now holds.

    `only_look`: nothing will run, so nothing is locked. Raises `RecordError` or `ConfigError`.
    """
    assert now.resume is not None, "called without --resume"
    run_dir = now.report_dir / now.resume
    if not (run_dir / "journal").is_dir():
        hint = did_you_mean(now.resume, [journal.parent.name for journal in now.report_dir.glob("*/journal")])
        raise RecordError(f"there is no run {now.resume!r} in {now.report_dir} that could be resumed{hint or '; see --report-dir'}")
    check_all_inside(run_dir)
    lock = None if only_look else RunLock(run_dir)
    try:
        if not only_look:
            wait_for_writers(run_dir, WRITERS_TIMEOUT_S)
        resumption = Resumption.read(run_dir)
        run = resumption.options(now, root)
    except BaseException:
        if lock is not None:
            lock.close()
        raise
    if lock is not None and not lock.is_certain:
        resumption.notices.append(f"{run_dir} lies on a file system without locks: nobody can tell whether the run still goes on elsewhere")
    return run, resumption, lock


class Resumption:
    """A run that is resumed in this session, its `session`-th after the first. Each process has its own."""

    def __init__(self, recorded: RecordedRun, session: int) -> None:
        self.recorded = recorded
        self.session = session
        self.notices: list[str] = []
        collected = recorded.records.collected
        self.nodeids = tuple(collected["nodeids"])
        self.engines = [EngineSpec.from_json(spec) for spec in collected["engines"]]
        self._wanted = frozenset(self.nodeids)

    @classmethod
    def read(cls, run_dir: Path, session: int | None = None) -> Resumption:
        """Return what a run's journals hold; `session` defaults to the next one. Raises `RecordError`."""
        recorded = RecordedRun.read(run_dir, may_be_empty=True)
        if recorded.run.get("rescored"):
            raise RecordError(f"run {recorded.run_id} was made by scoring stored generations again; it has nothing to resume")
        if session is None:
            session = 1 + max(session_of(path.stem) for path in (run_dir / "journal").glob("*.jsonl"))
        try:
            return cls(recorded, session)
        except (KeyError, TypeError) as error:
            raise RecordError(f"the tests of run {recorded.run_id} cannot be understood: {type(error).__name__}: {error}") from error

    def options(self, now: RunConfig, root: Path) -> RunConfig:
        """Return the run's options; an option given differently now is taken if it changes no answer, else refused.

        What only the user decides must be given again; see `trust.py`.
        """
        then = self.recorded.config
        recorded, given = then.settings, now.settings
        settings = {**recorded, "run_id": Setting(self.recorded.run_dir.name, then.origin("run_id"))}
        changed = []
        self._refuse_hidden(now)
        for option in OPTIONS:
            before, asked = recorded[option.name], given[option.name]
            if option.name in ("run_id", "resume"):
                continue
            if not _outranks(asked, before) and option.name not in OF_THIS_SESSION:
                continue
            settings[option.name] = asked
            if option.name not in _MAY_DIFFER and not is_same(option, before, asked):
                shown = [option.kind.to_json(setting.value) for setting in (before, asked)]
                changed.append(f"{option.flag} is {_shown(shown[1])} ({asked.origin}), but was {_shown(shown[0])} ({before.origin})")
        if changed:
            raise self._refusal("; ".join(changed), "leave it out, for a resumed run has its own options")
        run = RunConfig.from_settings(settings)
        check_options(run, now, root, self.recorded.run_id)
        if then.executor == "ray" != run.executor:
            self.notices.append(_without_cluster(then))
        return run

    def _refuse_hidden(self, now: RunConfig) -> None:
        """Refuse to go on with secrets that the run's record hides; they may be given again."""
        given = dict(now.engine_option)
        for name, value in self.recorded.config.engine_option:
            if value == HIDDEN_VALUE and name not in given:
                raise self._refusal(f"--engine-option {name} is a secret that its record hides", "give it again")

    def engine_specs(self, run: RunConfig, root: Path, on_notice: Callable[[str], None]) -> list[EngineSpec]:
        """Return the run's engines, even if patterns match more checkpoints by now; refuse a checkpoint that has changed."""
        real = list(dict.fromkeys(spec.checkpoint_path for spec in self.engines if spec.backend != "fake"))
        if real:
            check_checkpoints(real, run, root, self.recorded.run_id)
            run = replace(run, model=tuple(real))
        from evalharness.hardware.auto_backend import Chosen

        chosen = {spec.checkpoint_path: Chosen(spec.backend, spec.chosen) for spec in self.engines if spec.chosen is not None}
        now = {spec.id: spec for spec in engine_specs(run, root, on_notice, chosen=chosen)}
        for then in self.engines:
            if then.id not in now:
                raise self._refusal(f"engine {then.id} is gone, there are {', '.join(now) or 'none'}", "put its checkpoint back in place")
            for name in _OF_ENGINE:
                before, after = getattr(then, name), getattr(now[then.id], name)
                if before != after:
                    advice = "weights, config, tokenizer and chat template must be those that the run began with"
                    if then.backend == "fake":
                        advice = "the script of answers must be the one that the run began with"
                    elif then.stamp is None:  # fingerprints were made of parts of the files
                        advice = "an older evalharness, which made other fingerprints, began the run; end it with that, or start a new one"
                    what = f"{name.replace('_', ' ')} of checkpoint {then.checkpoint_path}"
                    raise self._refusal(f"{what} is {_shown(after)}, but was {_shown(before)}", advice)
        return [now[then.id] for then in self.engines]

    def engine_change(self, spec: EngineSpec, facts: Mapping[str, Any]) -> str | None:
        """Return why an opened engine would answer differently than before, such as another default dtype here; else None."""
        before = [line["settings"] for line in self.recorded.records.engine_lines if line["id"] == spec.id]
        for name in _OF_OPEN_ENGINE if before else ():
            if before[-1].get(name) != facts.get(name):
                what = f"{name} of {spec.id} is {_shown(facts.get(name))}, but was {_shown(before[-1].get(name))}"
                return str(self._refusal(what, "go on where it began, with what it began with"))
        return None

    def check_eval(self, module: EvalModule, context: RunContext) -> list[str]:
        """Refuse an eval whose cases, prompts, images, decoding or plugins have changed; likewise references and code.

        Its rows are judged again, and the scores of a new reference would pass as the old run's. Returns these changes if the
        run accepts them.
        """
        entry = self.recorded.records.evals.get(module.path)
        if entry is None:
            return []  # nothing of it was asked
        differences = [*_decoding_changes(entry, module), *self._request_changes(entry, module)]
        if differences:
            raise self._refusal(f"{module.path}: {'; '.join(differences)}", "bring back what was asked")
        judging = [change.text for change in judging_changes(self.recorded, module, context.root)]
        if judging and not context.run.accept_changes:
            advice = "bring back what it was judged by, judge all of it anew with --accept-changes"
            raise self._refusal(f"{module.path}: {'; '.join(judging)}", advice)
        return [f"judged differently than before this run was resumed: {text}" for text in judging]

    def _request_changes(self, entry: Mapping[str, Any], module: EvalModule) -> Iterator[str]:
        by_change: dict[str, list[str]] = {}
        for case_id, what in case_changes(entry.get("cases", {}), module.cases):
            by_change.setdefault(what, []).append(case_id)
        for case in module.cases:
            made = (self.recorded.find_made(spec.id, module.name, case.id) for spec in self.engines)
            recorded = next((record for record in made if record is not None and record.samples), None)
            change = None if recorded is None else prompt_change(module.request_of(case), recorded)
            if change is not None:
                by_change.setdefault(change.what, []).append(case.id)
        for what, case_ids in by_change.items():
            yield f"{what}: {_named(case_ids)}"

    def check_collected(self, nodeids: Iterable[str]) -> None:
        """Refuse a session that lacks tests of the run: their rows would be lost."""
        gone = self._wanted.difference(nodeids)
        if gone:
            command = " ".join(map(str, self.recorded.run.get("command") or ()))
            in_order = [nodeid for nodeid in self.nodeids if nodeid in gone]
            raise self._refusal(
                f"{len(gone)} of its {plural(len(self.nodeids), 'test')} are not collected now: {_named(in_order)}",
                f"give the paths and selections that it was started with: {command}",
            )

    def _refusal(self, difference: str, advice: str) -> ConfigError:
        return ConfigError(f"run {self.recorded.run_id} cannot be resumed: {difference}; {advice}, or start a new run")

    def is_wanted(self, nodeid: str) -> bool:
        """Return whether an eval's test is one of the run's."""
        return nodeid in self._wanted

    def made(self, engine: str, eval_name: str) -> Callable[[str], CaseRecords | None]:
        """Return a function from a case's id to its recorded generations."""
        return lambda case_id: self.recorded.find_made(engine, eval_name, case_id)

    def asked(self, fresh: RunFile) -> RunFile:
        """Return run.json of the resumed run at its start; `fresh` is run.json as a new run would write it."""
        then = self.recorded.run
        own = ("started_at", "command", "num_workers", "versions", "git", "hardware", "platform")
        entry = {
            **{name: value for name, value in fresh.items() if name in own},
            "num_generations_taken": self.recorded.num_generations,
            "finished_before": then.get("finished_at"),
        }
        asked = cast("RunFile", {name: then.get(name, value) for name, value in fresh.items()})
        baseline, before = fresh["baseline"], mapping(asked["baseline"])
        named = before.get("path")
        is_same_run = isinstance(named, str) and Path(named).parent == self.recorded.run_dir.absolute().parent
        if not (baseline and is_latest(baseline["asked"]) and before.get("asked") == baseline["asked"] and is_same_run):
            asked["baseline"] = baseline  # else there may be a later run by now
        notices = list(dict.fromkeys([*(then.get("notices") or ()), *fresh["notices"]]))
        return {**asked, "config": fresh["config"], "notices": notices, "resumptions": [*(then.get("resumptions") or ()), entry]}

    @property
    def announcement(self) -> str:
        """The line shown as the session begins."""
        num = self.recorded.num_generations
        return f"resumes a run that has {plural(num, 'generation')}: {'it is' if num == 1 else 'they are'} not made again"


def _outranks(now: Setting, before: Setting) -> bool:
    """Return whether a setting would have applied then as well: a file's setting does not outrank the command line's."""
    ranks = [
        max((rank for rank, start in enumerate(_PRECEDENCE) if setting.origin.startswith(start)), default=0) for setting in (now, before)
    ]
    return now.origin != "default" and ranks[0] >= ranks[1]


def _without_cluster(then: RunConfig) -> str:
    address = f" --ray-address {shlex.quote(then.ray_address)}" if then.ray_address else ""
    return (
        "the run was made with --executor ray, and is resumed without: on this host alone. "
        f"To have the cluster again, end it and give the same command with --executor ray{address}"
    )


def _decoding_changes(entry: Mapping[str, Any], module: EvalModule) -> Iterator[str]:
    variants = json.loads(encode([options.to_json() for options in module.variants]))
    before = entry.get("options", variants)
    if len(before) != len(variants):
        yield f"each case has {len(variants)} generations, but had {len(before)}"
        return
    changed: dict[str, str] = {}
    for was, now in zip(before, variants, strict=True):
        for name in now:
            if was.get(name) != now[name]:
                changed.setdefault(name, f"option {name} is {_shown(now[name])}, but was {_shown(was.get(name))}")
    yield from changed.values()
    plugins = plugin_names(module.plugins)
    if _lasting(plugins) != _lasting(entry.get("plugins", plugins)):
        yield f"plugins are {', '.join(plugins) or 'none'}, but were {', '.join(entry['plugins']) or 'none'}"


def _lasting(names: Iterable[str]) -> list[str]:
    """Return texts without the memory addresses of objects, which differ in every process."""
    return [re.sub(r" at 0x[0-9a-f]+", "", name) for name in names]


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    return ", ".join(names[:_NUM_NAMED]) + more


def _shown(value: object) -> str:
    return short_hash(value) if isinstance(value, str) else "not set" if value is None else json.dumps(value)
