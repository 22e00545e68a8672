"""Reads what lm-evaluation-harness and lmms-eval write with --log_samples: `samples_TASK_DATE.jsonl` beside `results_DATE.json`.

A document has a line for each of its filters. Scores are named by metric, and `metric@filter` where a task has several filters; metrics
that no document has a number of, such as perplexities, become aggregates, as the results file has them. Shapes of lm-eval 0.4, and of
lmms-eval 0.3 and later, whose files are named the other way round. Its tracker drops what it can: of a request only the prompt is left, an
answer that no filter changed stands under `filtered_resps` alone, and a line does not say its filter (of several, a document's lines are in
the order of the task's `filter_list`).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalharness.api.errors import RecordError
from evalharness.interop.imported import Answer, Imported, Sample, Task, plain, sha256_of
from evalharness.runs.files import numbered_lines
from evalharness.runs.schema import items_of, mapping, number_of, text_of

_SAMPLES = re.compile(r"samples_(?P<task>.+?)(?:_(?P<date>\d{4}-\d\d-\d\dT[\d.:-]+))?\.jsonl")
_LMMS_SAMPLES = re.compile(r"(?P<date>\d{8}_\d{6})_samples_(?P<task>.+)\.jsonl")
_RESULTS = re.compile(r"results_(?P<date>.+)\.json|(?P<lmms>\d{8}_\d{6})_results\.json")
_LEGAL = "a samples_….jsonl, a results_….json, or the folder of both, as written with --log_samples --output_path"
_OWN_KEYS = frozenset((
    "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash", "prompt_hash", "target_hash",
    "input", "input_media", "token_counts",
))  # fmt: skip
_STDERR = re.compile(r"_stderr(_clt|_clustered)?$")
_NO_FILTER = "none"
_GREEDY = {"True": True, "true": True, "1": True, "False": False, "false": False, "0": False}
_NOT_JUDGED = "bypass"
"""What --predict_only has in place of metrics."""


def read_lm_eval(paths: Sequence[Path], tool: str) -> Imported:
    """Return the samples of files or folders. Raises `RecordError` for what is none, or of several models."""
    found = [place for path in paths for place in _sample_files(path)]
    files = list(dict.fromkeys(path for path, _ in found))
    results = [_read_results(path) for path in dict.fromkeys(path for path in (_results_of(path, date) for path, date in found) if path)]
    models = dict.fromkeys(filter(None, map(_model_of, results)))
    if len(models) > 1:
        raise RecordError(f"the files are of several models: {', '.join(models)}; import each of them by itself")
    notices = [] if results else ["no results file lies beside the samples: the model's name and the aggregates are not known"]
    tasks = [_task(path, results, notices) for path in files]
    first: Mapping[str, Any] = results[0] if results else {}
    config = mapping(first.get("config"))
    settings = {name: config.get(name) for name in ("model", "model_args", "batch_size", "limit", "gen_kwargs") if config.get(name)}
    return Imported(
        tool=tool,
        model=next(iter(models), "") or files[0].parent.name or "unknown",
        tasks=tasks,
        files=files,
        version=text_of(first.get("lm_eval_version") or first.get("lmms_eval_version")),
        settings=plain(settings),
        template_sha256=text_of(first.get("chat_template_sha")) or None,
        notices=notices,
    )


def _sample_files(path: Path) -> list[tuple[Path, str]]:
    """Return the files of samples that a path stands for, with their dates; of a folder those of its newest results."""
    if path.is_dir():
        dated = [(match["date"] or match["lmms"], file) for file in path.rglob("*.json") if (match := _RESULTS.fullmatch(file.name))]
        if dated:
            return _sample_files(max(dated)[1])
        samples = [(file, _parts(file)[1]) for file in sorted(path.rglob("*.jsonl")) if _parts(file)[0]]
        newest = max((date for _, date in samples), default="")
        kept = [(file, date) for file, date in samples if date == newest]
        if not kept:
            raise RecordError(f"{path} holds no samples; give {_LEGAL}")
        return kept
    if not path.is_file():
        raise RecordError(f"{path} does not exist; give {_LEGAL}")
    match = _RESULTS.fullmatch(path.name)
    if match is not None:
        date = match["date"] or match["lmms"]
        kept = [(file, date) for file in sorted(path.parent.glob("*.jsonl")) if _parts(file)[0] and _parts(file)[1] == date]
        if not kept:
            raise RecordError(f"{path} has no samples beside it: they are written with --log_samples only")
        return kept
    if path.suffix != ".jsonl":
        raise RecordError(f"{path} is not understood; give {_LEGAL}")
    return [(path, _parts(path)[1])]


def _parts(path: Path) -> tuple[str, str]:
    """Return task and date in the name of a file of samples; both empty for another file."""
    match = _LMMS_SAMPLES.fullmatch(path.name) or _SAMPLES.fullmatch(path.name)
    return (match["task"], match["date"] or "") if match is not None else ("", "")


def _results_of(samples: Path, date: str) -> Path | None:
    names = (f"results_{date}.json", f"{date}_results.json") if date else ()
    return next((path for name in names if (path := samples.with_name(name)).is_file()), None)


def _read_results(path: Path) -> Mapping[str, Any]:
    try:
        results = json.loads(path.read_bytes())
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}; check the path and its permissions") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not JSON ({error}); give {_LEGAL}") from error
    return mapping(results)


def _model_of(results: Mapping[str, Any]) -> str:
    return text_of(results.get("model_name") or mapping(results.get("config")).get("model"))


def _lines(path: Path, notices: list[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the lines of a file of samples with their numbers; an unfinished last one is left out, with a notice."""
    try:
        with path.open("rb") as file:
            for number, line in numbered_lines(file, path):
                if line.isspace():
                    continue
                try:
                    values = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
                except (ValueError, RecursionError) as error:
                    if not line.endswith(b"\n"):
                        notices.append(f"{path.name} is cut off: line {number} is left out, and what may have followed it is not there")
                        return
                    raise RecordError(f"{path}, line {number}, is not JSON ({error}); remove the line") from error
                if not isinstance(values, Mapping) or "doc_id" not in values:
                    raise RecordError(f"{path}, line {number}, is not a sample, which is a JSON object with a doc_id; give {_LEGAL}")
                yield number, values
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}; check the path and its permissions") from error


def _task(path: Path, results: Sequence[Mapping[str, Any]], notices: list[str]) -> Task:
    name = _parts(path)[0] or path.stem
    lines = list(_with_filters(_lines(path, notices), _filter_names(results, name)))
    if not lines:
        raise RecordError(f"{path} holds no sample")
    filters = dict.fromkeys(filter_name for _, filter_name, _ in lines)
    samples: dict[str, Sample] = {}
    numbers: dict[tuple[str, str], int] = {}
    for number, filter_name, values in lines:
        doc_id = text_of(values["doc_id"])
        first = numbers.setdefault((doc_id, filter_name), number)
        if first != number:
            raise RecordError(
                f"{path}, line {number}, is the doc_id {doc_id} of line {first} again; files of several runs are imported one by one"
            )
        sample = samples.get(doc_id)
        if sample is None:
            sample = samples[doc_id] = _sample(doc_id, values)
        _add_scores(sample, values, f"@{_legal(filter_name)}" if len(filters) > 1 else "", filter_name)
    task = Task(name, list(samples.values()))
    for each in results:
        _add_results(task, mapping(each), len(filters) > 1)
    return task


def _filter_names(results: Sequence[Mapping[str, Any]], task: str) -> list[str]:
    """Return the names of a task's filters as the results file has them, in their order."""
    configs = (mapping(mapping(each.get("configs")).get(task)) for each in results)
    return [text_of(mapping(entry).get("name")) for config in configs for entry in items_of(config.get("filter_list"))]


def _with_filters(lines: Iterable[tuple[int, Mapping[str, Any]]], names: Sequence[str]) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Yield number, filter and content of each line; lmms-eval's do not say the filter."""
    seen: Counter[str] = Counter()
    for number, values in lines:
        filter_name = text_of(values.get("filter"))
        if "filter" not in values and names:
            doc_id = text_of(values["doc_id"])
            filter_name = names[min(seen[doc_id], len(names) - 1)]
            seen[doc_id] += 1
        yield number, filter_name or _NO_FILTER, values


def _legal(name: str) -> str:
    return re.sub(r"[^\w.@^/-]", "-", name)


def _add_scores(sample: Sample, values: Mapping[str, Any], suffix: str, filter_name: str) -> None:
    named = items_of(values.get("metrics")) or [name for name in values if name not in _OWN_KEYS]
    for name in map(text_of, named):
        value = values.get(name)
        number = number_of(mapping(value).get("score") if isinstance(value, Mapping) else value)  # lmms-eval's are often objects with it
        if number is not None:
            sample.scores[f"{_legal(name)}{suffix}"] = number
        if value is not None and (number is None or isinstance(value, Mapping)):
            sample.details[f"{name}{suffix}"] = value
    filtered = _listed(values.get("filtered_resps"))
    if filter_name != _NO_FILTER or (filtered and filtered != [answer.text for answer in sample.answers]):
        sample.details.setdefault("filtered", {})[filter_name] = filtered


def _listed(value: object) -> list[Any]:
    """Return the responses of a line: lmms-eval writes a single one without its list."""
    return [value] if isinstance(value, str) else items_of(value)


def _arguments(values: Mapping[str, Any]) -> list[list[Any]]:
    """Return the arguments of each request: a context and what goes with it."""
    arguments = values.get("arguments")
    if "input" in values:  # of lmms-eval, which writes no more of its requests than this
        return [[values["input"]]]
    if isinstance(arguments, Mapping):
        return [list(mapping(part).values()) if isinstance(part, Mapping) else [part] for part in arguments.values()]
    return [items_of(part) for part in items_of(arguments)]


def _sample(doc_id: str, values: Mapping[str, Any]) -> Sample:
    requests = _arguments(values)
    given = values["resps"] if "resps" in values else values.get("filtered_resps")
    responses = [part if isinstance(part, list) else [part] for part in _listed(given)]
    prompt = text_of(requests[0][0]) if requests and requests[0] else text_of(values.get("input"))
    prompt_sha256 = text_of(values.get("prompt_hash")) or sha256_of(prompt)
    options = next((part for part in (requests[0][1:] if requests else ()) if isinstance(part, Mapping)), {})
    doc = values.get("doc")
    sample = Sample(doc_id, [], {}, doc if isinstance(doc, Mapping) else _said_of(values), {}, values.get("target"), dict(options))
    if doc is not None:
        sample.details["doc"] = doc
    choices = _choices(requests, responses)
    if choices:
        best = max(choices, key=lambda choice: float(choice["logprob"]))
        sample.details["choices"] = choices
        sample.answers = [Answer(best["text"], best.get("context", prompt), prompt_sha256, "scored")]
    elif "input" not in values and requests and len(requests[0]) == 1 and responses and _logprob(responses[0]) is not None:
        sample.details["logprob"] = _logprob(responses[0])
        sample.answers = [Answer(prompt, "", prompt_sha256, "scored")]
    else:
        counts = [mapping(entry) for entry in items_of(values.get("token_counts"))]
        for place, text in enumerate(text for part in responses for text in part):
            used = counts[place] if place < len(counts) else {}
            num_prompt, num_made = _count(used.get("input_tokens")), _count(used.get("output_tokens"))
            sample.answers.append(Answer(text_of(text), prompt, prompt_sha256, None, num_prompt, num_made))
    return sample


def _said_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a line without its document tells of it: the plain values in its metrics, such as lmms-eval's categories."""
    objects = [value for name, value in values.items() if name not in _OWN_KEYS and isinstance(value, Mapping)]
    return {name: value for each in objects for name, value in each.items() if name != "score" and isinstance(value, (str, int, bool))}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _choices(requests: Sequence[Sequence[Any]], responses: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the continuations that were scored, with log-probability and whether greedy decoding gives them; empty for anything else."""
    found: list[dict[str, Any]] = []
    if len(requests) == 1 and len(requests[0]) == 1 and len(responses) > 1:  # of lmms-eval, which does not write the texts
        requests = [[requests[0][0], f"choice {place}"] for place in range(len(responses))]
    have_contexts = len({text_of(each[0]) for each in requests if each}) > 1
    for arguments, answers in zip(requests, responses, strict=False):
        pair = answers[0] if answers else None
        if len(arguments) < 2 or not isinstance(arguments[1], str) or not isinstance(pair, list) or len(pair) != 2:
            return []
        logprob = _logprob(pair)
        if logprob is None:
            return []
        context = {"context": text_of(arguments[0])} if have_contexts else {}
        told = {"is_greedy": _GREEDY[text_of(pair[1])]} if text_of(pair[1]) in _GREEDY else {}
        found.append({"text": arguments[1], "logprob": "-inf" if logprob == -math.inf else logprob, **told, **context})
    return found


def _logprob(value: object) -> float | None:
    """Return the first number of a response, -inf too: lm-eval writes the numbers of its responses as texts."""
    first = value[0] if isinstance(value, list) and value else value
    try:
        number = float(first) if isinstance(first, (str, int, float)) and len(str(first)) < 40 else math.nan
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) or number == math.inf else number


def _add_results(task: Task, results: Mapping[str, Any], has_several: bool) -> None:
    """Add directions, and the numbers of the results file that are no score's mean."""
    higher = mapping(mapping(results.get("higher_is_better")).get(task.name))
    for key, value in mapping(mapping(results.get("results")).get(task.name)).items():
        metric, comma, filter_name = text_of(key).partition(",")
        number = number_of(value)
        if number is None or not comma or _STDERR.search(metric) or metric == _NOT_JUDGED:
            continue
        name = f"{_legal(metric)}{f'@{_legal(filter_name)}' if has_several else ''}"
        scores = [sample.scores[name] for sample in task.samples if name in sample.scores]
        mean = sum(scores) / len(scores) if scores else None
        if mean is not None and -700 < mean <= 0 and math.isclose(math.exp(-mean), number, rel_tol=1e-6):
            _are_logprobs(task, name)
            mean = None
        if mean is None:
            task.aggregates[name] = number
        elif abs(mean - number) > 1e-6 * max(1.0, abs(number)):
            task.aggregates[f"{name}_reported"] = number  # another aggregation than the mean, such as F1 over all
        if higher.get(metric) is False:
            task.directions[name] = "lower"


def _are_logprobs(task: Task, name: str) -> None:
    """Name a score by what it is: of a perplexity, lm-eval writes each sample's log-probability, which is better when higher."""
    for sample in task.samples:
        if name in sample.scores:
            sample.scores[f"{name}_logprob"] = sample.scores.pop(name)
