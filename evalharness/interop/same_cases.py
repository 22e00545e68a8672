"""Names imported samples as cases of a run of ours, where their contents prove that they are the same; then the two can be compared.

The proof is what was asked: the same prompt character by character, worked examples and all, and where responses were scored the same
responses in the same order. What several cases ask proves nothing. Tokens are not compared, as other tools do not record them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalharness.analysis.comparison.sheets import prompt_hash
from evalharness.api.checks import excerpt, first_names
from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.interop.imported import Imported, KnownCase, Sample, Task
from evalharness.runs.run_file import read_samples
from evalharness.runs.schema import Row, generations_of, items_of, mapping, text_of

_SHOWN = 80
Asked = tuple[str, ...]
"""A prompt; or of scored responses each prompt and response."""


def rename_scores(read: Imported, names: Iterable[tuple[str, str]]) -> None:
    """Give scores and aggregates other names. Raises `ConfigError` for one that no task has, or a name that a task has already."""
    for old, new in names:
        known = {task.name: {*task.aggregates, *(name for sample in task.samples for name in sample.scores)} for task in read.tasks}
        having = [task for task in read.tasks if old in known[task.name]]
        if not having:
            all_names = list(dict.fromkeys(name for each in known.values() for name in sorted(each)))
            hint = did_you_mean(old, all_names) or ";"
            raise ConfigError(f"--score {old}={new}: no task has the score {old!r}{hint} they have: {first_names(all_names, 20)}")
        for task in having:
            if new in known[task.name]:
                raise ConfigError(f"--score {old}={new}: {task.name} has a score {new!r} already; give another name")
            all_named: list[dict[str, Any]] = [task.aggregates, task.directions, *(sample.scores for sample in task.samples)]
            for named in all_named:
                if old in named:
                    named[new] = named.pop(old)


def name_as(read: Imported, run_dir: Path) -> None:
    """Name the samples that a run has, with their eval, test, group and tags; samples that it has not keep a name of their own.

    Tasks that are one eval there become one. Raises `ConfigError` if the run has none of them.
    """
    known = dict(_known(run_dir))
    tasks: dict[str, Task] = {}
    asked = [[_asked_of(sample) for sample in task.samples] for task in read.tasks]
    times = Counter(each for part in asked for each in part)
    for task, part in zip(read.tasks, asked, strict=True):
        found = [known.get(each) if times[each] == 1 else None for each in part]
        places = Counter((case.eval, case.test) for case in found if case)
        (name, test), num = places.most_common(1)[0] if places else ((task.name, task.test), 0)
        if name in tasks and tasks[name].test != test:
            (name, test), num = (task.name, task.test), 0
        for sample, case in zip(task.samples, found, strict=True):
            _become(sample, case if case and (case.eval, case.test) == (name, test) else None, task.name)
        if num < len(task.samples):
            where = f"cases of {name}::{test} in {run_dir.name}" if num else f"a case of {run_dir.name}"
            read.notices.append(f"{num} of {len(task.samples)} samples of {task.name} are {where}: the others ask something else")
        tasks[name] = _joined(tasks.get(name), replace(task, name=name, test=test), task.name)
    if not any(sample.case for task in tasks.values() for sample in task.samples):
        first = next((each for part in asked for each in part), ("",))
        raise ConfigError(
            f"no sample asks what a case of {run_dir.name} asks, so nothing proves that they are the same cases{_apart(first, known)}; "
            "ask the same, or import it without --like"
        )
    read.tasks[:] = tasks.values()


def _apart(theirs: Asked, known: Mapping[Asked, object]) -> str:
    """Return where a sample departs from the case that it is nearest to."""
    if not known:
        return ": its prompts were not recorded"
    text = "\n".join(theirs)
    same, ours = max(((_num_equal(text, ours), ours) for ours in map("\n".join, known)), key=lambda pair: pair[0])
    rest = [excerpt(repr(each[same : same + _SHOWN]), _SHOWN) for each in (text, ours)]
    return f": the first sample is like the nearest case for {same:,} characters, and then {rest[0]} in place of {rest[1]}"


def _num_equal(text: str, other: str) -> int:
    return next((at for at, (one, two) in enumerate(zip(text, other, strict=False)) if one != two), min(len(text), len(other)))


def _known(run_dir: Path) -> Iterator[tuple[Asked, KnownCase | None]]:
    """Yield what each case of a run was asked, once; None for what several cases were asked."""
    found: dict[Asked, KnownCase] = {}
    for row in read_samples(run_dir):
        asked = _asked_by(row)
        place = text_of(row.get("eval")), text_of(row.get("test")), text_of(row.get("case_id"))
        tags = {text_of(name): text_of(value) for name, value in mapping(row.get("tags")).items()}
        case = KnownCase(*place, row.get("group"), tags, prompt_hash(row) or "", row.get("reference"))
        before = found.setdefault(asked, case)
        if (before.eval, before.case_id) != (case.eval, case.case_id):
            found[asked] = replace(before, case_id="")
    return ((asked, case if case.case_id else None) for asked, case in found.items() if any(asked))


def _asked_by(row: Row) -> Asked:
    steps = items_of(row.get("steps"))
    results = [mapping(result) for result in (items_of(steps[0]) if steps else generations_of(row))]
    if results and all(result.get("finish_reason") == "scored" for result in results):
        return tuple(text_of(result.get(name)) for result in results for name in ("prompt_text", "text"))
    return (text_of(results[0].get("prompt_text")),) if results else ("",)


def _asked_of(sample: Sample) -> Asked:
    prompt = sample.answers[0].prompt if sample.answers else ""
    choices: Sequence[Mapping[str, Any]] = items_of(sample.details.get("choices"))
    if choices:
        return tuple(text for choice in choices for text in (text_of(choice.get("context", prompt)), text_of(choice.get("text"))))
    return (prompt,)


def _become(sample: Sample, case: KnownCase | None, task: str) -> None:
    """Make a sample the case, or give it a name that no case has."""
    if case is None:
        sample.id = f"{task}-{sample.id}"
        return
    sample.case = case
    sample.answers = [replace(answer, prompt_sha256=case.prompt) for answer in sample.answers]
    sample.details |= {"options": sample.options, "target": sample.reference}
    sample.options = _options_of(sample.options)
    if case.reference is None or text_of(case.reference) == text_of(sample.reference):
        sample.reference = case.reference  # the test has none, or the same one of another type


def _options_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of another tool under our names, as far as they mean the same."""
    named: dict[str, Any] = {}
    longest = next((options[name] for name in ("max_gen_toks", "max_new_tokens", "max_tokens") if options.get(name) is not None), None)
    stops = next((options[name] for name in ("until", "stop_seqs") if options.get(name) is not None), None)
    if longest is not None:
        named["max_new_tokens"] = longest
    if options.get("do_sample") is False or options.get("temperature") is not None:
        named["temperature"] = 0.0 if options.get("do_sample") is False else options["temperature"]
    if stops is not None:
        named["stop"] = {"stop": [stops] if isinstance(stops, str) else stops, "stop_token_ids": []}
    return named


def _joined(before: Task | None, task: Task, name: str) -> Task:
    """Return two tasks that are one eval as one; numbers over all samples of one of them keep its name."""
    if before is None:
        return task
    aggregates = {f"{metric}_{name}": value for metric, value in task.aggregates.items()}
    return replace(
        before,
        samples=[*before.samples, *task.samples],
        directions=before.directions | task.directions,
        aggregates=before.aggregates | aggregates,
    )
