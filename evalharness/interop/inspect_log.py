"""Reads logs of Inspect (inspect_ai), `.eval` files and `.json`, as its own reader shows them: version 2 of the format.

Scores are numbers as Inspect's default reducer makes them: C is 1, P a half, I and N are 0; of several epochs the mean. A score of several
values gives one score each. Text of attachments is put back; what is neither score, answer nor message stays in the log.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalharness.api.errors import MissingDependency, RecordError
from evalharness.api.installing import missing_package
from evalharness.interop.imported import Answer, Imported, Sample, Task, plain, sha256_of
from evalharness.runs.schema import entries_of, mapping, number_of, text_of

_VALUES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_REASONS = {"stop": "stop", "max_tokens": "length", "model_length": "length", "tool_calls": "tool"}
_LARGEST = 1 << 28
_MOST_UNPACKED, _MOST_RATIO = 1 << 30, 200
"""Bytes that any archive may unpack to, and what a larger one may unpack to for each byte of its own: logs of agents reach about 30."""
_KEPT = frozenset((
    "id", "epoch", "input", "target", "messages", "output", "scores", "metadata", "error", "started_at", "total_time", "attachments",
))  # fmt: skip
"""Not the events and the store: they are most of a log, and nothing is made of them."""
_ZSTANDARD = 93
"""The method of compression in a zip file that only Python 3.14 and later read."""
_LEGAL = "a log of Inspect, .eval or .json, or a folder of them"
_MEANS = ("accuracy", "mean")
_DAMAGE = (ValueError, RecursionError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)
"""What reading a file that is no log raises; `RuntimeError` for an archive with a password, or of an unknown method."""


def read_inspect(paths: Sequence[Path]) -> Imported:
    """Return the samples of logs. Raises `RecordError` for files that are none, or that are of several models."""
    files = [file for path in paths for file in _files(path)]
    logs = [_read(file) for file in files]
    models = dict.fromkeys(text_of(mapping(log.get("eval")).get("model")) or "unknown" for log in logs)
    if len(models) > 1:
        raise RecordError(f"the logs are of several models: {', '.join(models)}; import each of them by itself")
    spec = mapping(logs[0].get("eval"))
    settings = {name: spec.get(name) for name in ("model_args", "model_generate_config", "model_base_url", "task_args") if spec.get(name)}
    return Imported(
        tool="inspect",
        model=next(iter(models)),
        tasks=_tasks(files, logs),
        files=files,
        version=text_of(mapping(spec.get("packages")).get("inspect_ai")),
        settings=plain(settings),
        notices=[text for file, log in zip(files, logs, strict=True) if (text := _notice(file, log))],
    )


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix in (".eval", ".json") and file.name != "logs.json")
        if not found:
            raise RecordError(f"{path} holds no log; give {_LEGAL}")
        return found
    if not path.is_file():
        raise RecordError(f"{path} does not exist; give {_LEGAL}")
    return [path]


def _notice(file: Path, log: Mapping[str, Any]) -> str:
    status = text_of(log.get("status"))
    return "" if status in ("success", "") else f"{file.name} ended as {status!r}: its samples may not be all"


def _read(path: Path) -> Mapping[str, Any]:
    """Return a log as one object, its samples under "samples"."""
    try:
        if zipfile.is_zipfile(path):
            log = _unzipped(path)
        else:
            log = json.loads(path.read_bytes())
    except RecordError:
        raise
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}; check the path and its permissions") from error
    except _DAMAGE as error:
        raise RecordError(f"{path} is not {_LEGAL}, or damaged ({str(error) or 'it is cut off'})") from error
    if not isinstance(log, Mapping) or not isinstance(log.get("eval"), Mapping):
        raise RecordError(f"{path} is not {_LEGAL}: it has no 'eval'")
    if not entries_of(log.get("samples")):
        raise RecordError(f"{path} holds no sample: the eval was cancelled before the first, or logged with --no-log-samples")
    return log


def _unzipped(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        _check_size(path, archive)
        names = list(dict.fromkeys(archive.namelist()))
        header = next((name for name in ("header.json", "_journal/start.json") if name in names), None)  # without one it still ran
        if header is None:
            raise RecordError(f"{path} is not {_LEGAL}: it has no header.json")
        log = mapping(json.loads(_content(archive, header)))
        contents = (_content(archive, name) for name in names if name.startswith("samples/") and name.endswith(".json"))
        samples = [{key: value for key, value in mapping(json.loads(content)).items() if key in _KEPT} for content in contents]
    return {**log, "samples": samples}


def _check_size(path: Path, archive: zipfile.ZipFile) -> None:
    """Raise `RecordError` for an archive that unpacks to far more than a log: its list says how much, and no more than that is read."""
    size, most = sum(info.file_size for info in archive.infolist()), max(_MOST_UNPACKED, _MOST_RATIO * path.stat().st_size)
    if size > most:
        raise RecordError(f"{path} would unpack to {size:,} bytes, {size // max(1, path.stat().st_size):,} times its own: it is no log")


def _content(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a file of an archive; the newest logs are compressed with zstandard, which pyarrow reads."""
    info = archive.getinfo(name)
    if info.file_size > _LARGEST:
        raise RecordError(f"{archive.filename}: {name} has {info.file_size:,} bytes, more than the {_LARGEST:,} that a sample may have")
    if info.compress_type != _ZSTANDARD:
        with archive.open(info) as file:
            return file.read(_LARGEST)
    try:
        import pyarrow
    except ImportError as error:
        raise MissingDependency(missing_package("a log that is compressed with zstandard", error, "parquet")) from error
    assert archive.fp is not None
    archive.fp.seek(info.header_offset)
    head = archive.fp.read(30)
    start = info.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    archive.fp.seek(start)
    stream = pyarrow.CompressedInputStream(io.BytesIO(archive.fp.read(info.compress_size)), "zstd")
    return bytes(stream.read(info.file_size))


def _tasks(files: Sequence[Path], logs: Sequence[Mapping[str, Any]]) -> list[Task]:
    tasks: dict[str, Task] = {}
    for file, log in zip(files, logs, strict=True):
        spec = mapping(log.get("eval"))
        name = text_of(spec.get("task")) or file.stem
        if name in tasks:
            raise RecordError(f"{file} is a second log of the task {name!r}; import each of them by itself")
        by_id: dict[str, list[Mapping[str, Any]]] = {}
        for sample in entries_of(log.get("samples")):
            by_id.setdefault(text_of(sample.get("id")), []).append(sample)
        options = mapping(spec.get("model_generate_config")) | mapping(mapping(log.get("plan")).get("config"))
        samples = [_sample(sample_id, epochs, options) for sample_id, epochs in by_id.items()]
        tasks[name] = task = Task(name, samples)
        _add_aggregates(task, log)
    return list(tasks.values())


def _sample(sample_id: str, epochs: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Sample:
    epochs = sorted(epochs, key=lambda epoch: number_of(epoch.get("epoch")) or 0)
    first, ended = epochs[0], [epoch for epoch in epochs if not epoch.get("error")]
    failure = "" if ended else text_of(mapping(first.get("error")).get("message")) or "it ended in an error"
    values: dict[str, list[float]] = {}
    details: dict[str, Any] = {}
    for epoch in ended:
        for name, value in _values(epoch):
            values.setdefault(name, []).append(value)
    scores = [mapping(epoch.get("scores")) for epoch in ended]
    if scores:
        told = {name: {key: mapping(score).get(key) for key in ("answer", "explanation")} for name, score in scores[0].items()}
        details["scores"] = {name: {key: text for key, text in parts.items() if text} for name, parts in told.items()}
    messages = list(_messages(first))
    if len(messages) > 2:
        details["messages"] = [{"role": role, "content": text} for role, text in messages]
    if mapping(first.get("metadata")):
        details["metadata"] = first["metadata"]
    prompt = _prompt(first)
    return Sample(
        sample_id,
        [] if failure else [_answer(epoch, prompt) for epoch in ended],
        {name: sum(column) / len(column) for name, column in values.items()},
        mapping(first.get("metadata")),
        details,
        first.get("target"),
        dict(options),
        failure,
        text_of(first.get("started_at")) or None,
        number_of(first.get("total_time")),
    )


def _values(epoch: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the scores of one sample by name."""
    for scorer, score in mapping(epoch.get("scores")).items():
        value = mapping(score).get("value")
        parts = value.items() if isinstance(value, Mapping) else [("", value)]
        for key, part in parts:
            number = _number(part)
            if number is not None:
                yield text_of(key) or scorer, number


def _number(value: object) -> float | None:
    if isinstance(value, str):
        known = _VALUES.get(value) if value in _VALUES else _VALUES.get(value.lower() if len(value) > 1 else "")
        try:
            return known if known is not None else number_of(float(value)) if len(value) < 40 else None
        except ValueError:
            return None
    return number_of(value)


def _answer(epoch: Mapping[str, Any], prompt: str) -> Answer:
    output = mapping(epoch.get("output"))
    choices: list[Mapping[str, Any]] = entries_of(output.get("choices"))
    choice = choices[0] if choices else {}
    usage = mapping(output.get("usage"))
    text = output.get("completion")
    message = mapping(choice.get("message"))
    text = text if isinstance(text, str) and text else _text(message.get("content"), mapping(epoch.get("attachments")))
    counts = [usage.get(name) for name in ("input_tokens", "output_tokens")]
    num_prompt, num_made = (count if isinstance(count, int) and count >= 0 else None for count in counts)
    return Answer(text, prompt, sha256_of(prompt), _REASONS.get(text_of(choice.get("stop_reason")), "stop"), num_prompt, num_made)


def _prompt(sample: Mapping[str, Any]) -> str:
    """Return what the model was first asked, with the role of each message where there are several."""
    asked: list[tuple[str, str]] = []
    for role, text in _messages(sample):
        if role == "assistant":
            break
        asked.append((role, text))
    if not asked:
        return _text(sample.get("input"), mapping(sample.get("attachments")))
    return asked[0][1] if len(asked) == 1 else "\n\n".join(f"{role}: {text}" for role, text in asked)


def _messages(sample: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    attachments = mapping(sample.get("attachments"))
    for message in entries_of(sample.get("messages")):
        yield text_of(message.get("role")), _text(message.get("content"), attachments)


def _text(content: object, attachments: Mapping[str, Any]) -> str:
    """Return the text of a message's content; other parts are named in brackets."""
    if isinstance(content, list):
        parts = [mapping(part) for part in content]
        return "".join(_text(part["text"], attachments) if "text" in part else f"[{text_of(part.get('type'))}]" for part in parts)
    text = text_of(content) if isinstance(content, (str, int, float)) else ""
    return text_of(attachments.get(text.removeprefix("attachment://"), text)) if text.startswith("attachment://") else text


def _add_aggregates(task: Task, log: Mapping[str, Any]) -> None:
    """Add the numbers of the log's results that are no score's mean."""
    for score in entries_of(mapping(log.get("results")).get("scores")):
        name = text_of(score.get("name"))
        scores = [sample.scores[name] for sample in task.samples if name in sample.scores]
        mean = sum(scores) / len(scores) if scores else None
        for metric, entry in mapping(score.get("metrics")).items():
            number = number_of(mapping(entry).get("value"))
            is_told = mean is not None and number is not None and abs(mean - number) < 1e-9
            if number is not None and metric != "stderr" and not (metric in _MEANS and is_told):
                task.aggregates[f"{name}.{metric}"] = number
