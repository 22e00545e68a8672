"""`evalharness generate`: sends requests from the command line or a JSONL file to a checkpoint, with the engine of a run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from evalharness.api.errors import BROKEN, DONE, NOT_PASSED, ConfigError, ContractTypeError, ContractValueError, nearest_folder
from evalharness.api.images import image_size
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import CompletionRequest, GenerationFailure, GenerationResult, TextGenerationRequest, VlmGenerationRequest
from evalharness.api.scoring import Chat
from evalharness.api.wording import plural
from evalharness.cli.framework import PATH, command, own_stdout, resolve_options, run_options
from evalharness.config import RunConfig
from evalharness.config.options import ARGUMENTS, DECODING
from evalharness.config.sources import project_root
from evalharness.tasks.prompt_rows import PromptRow, rows_of_file, user_turn

if TYPE_CHECKING:
    from evalharness.pytest_plugin.execution.engine_specs import EngineSpec

OF_RUNS = frozenset(
    {
        "wait", "data", "limit", "limit_first", "shard", "spot", "devices", "share_devices", "hang_timeout", "cache", "cache_dir", "run_id",
        "resume", "report_dir", "baseline", "accept_changes", "keep_going", "noise", "noise_cases", "executor", "ray_address",
        "as_chat",
    }
)  # fmt: skip
"""Options that are about runs and their records; all others, further backends' included, are options of this command too."""


@command(
    "generate",
    examples=[
        'evalharness generate --model fixtures/checkpoints/final --image photo.jpg --prompt "What is on this photo?"',
        "evalharness generate --backend hf,vllm --file requests.jsonl --json > answers.jsonl",
        'evalharness generate --model base --bare --prompt "The capital of France is"',
        "evalharness generate --prompt - --temperature 0.7 --num-samples 3 < question.txt",
        "evalharness generate --image photo.jpg --file dense.jsonl --overlay objects.png",
    ],
    exit_codes={
        DONE: "every request was answered",
        NOT_PASSED: "a request is invalid: its image is broken, its prompt too long",
        BROKEN: "the engine failed, or a request ended as an error",
    },
)
@click.option("--prompt", metavar="TEXT", help="Prompt; - reads standard input (default: the requests of --file)")
@click.option("--image", "images", multiple=True, type=PATH, metavar="PATH", help="Image before the prompt; repeatable (default: none)")
@click.option("--system", metavar="TEXT", help="System message before the prompt (default: none)")
@click.option(
    "--file",
    "path",
    type=PATH,
    metavar="JSONL",
    help='Requests, one per line: {"prompt": …} or {"messages": […]}, with id, system, images, options (default: the one of --prompt)',
)
@click.option("--bare", is_flag=True, help="Send prompts as bare texts that the model continues (default: as a chat, by its template)")
@click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; repeatable (default: none)")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per answer (default: formatted text)")
@click.option(
    "--overlay",
    type=PATH,
    metavar="PICTURE",
    help="Draw the objects of a dense answer on its image, into this file; for one request with one image (default: no drawing)",
)
@run_options(
    *(option.name for option in ARGUMENTS if option.name not in OF_RUNS),
    defaults={"model": "that of the project's settings", "coordinates": "norm1000", "num_samples": "1"},
)
def generate(
    prompt: str | None,
    images: Sequence[Path],
    system: str | None,
    path: Path | None,
    bare: bool,
    stop: Sequence[str],
    as_json: bool,
    overlay: Path | None,
    **options: Any,
) -> int:
    """Ask a checkpoint outside of any eval, with the engine and the options of a run.

    Shows text, raw text, finish reason, tokens, ids and time. --model takes checkpoints, LoRA adapters, names in the hub's
    cache and patterns; several checkpoints or backends run one after the other.
    """
    from evalharness.config.checks import check_combinations
    from evalharness.pytest_plugin.execution.engine_specs import choices_of_auto, engine_specs

    run = resolve_options(options)
    check_combinations(run)
    questions = _read_requests(prompt, images, system, path, bare)
    _check_overlay(overlay, questions, run)
    specs = engine_specs(run, project_root(Path.cwd()), _notice)
    for choice in choices_of_auto(specs):
        _notice(choice)
    if overlay is not None and len(specs) > 1:
        raise ConfigError(f"--overlay is for one engine, got {len(specs)}: {', '.join(spec.id for spec in specs)}")
    outcomes: set[str] = set()
    with own_stdout() as stream:
        for spec in specs:
            for row in _generate(spec, run, questions, stop, overlay):
                outcomes.add(row["outcome"])
                _show(row, stream, as_json)
    return BROKEN if "error" in outcomes else NOT_PASSED if "invalid" in outcomes else DONE


def _read_requests(prompt: str | None, images: Sequence[Path], system: str | None, path: Path | None, bare: bool) -> list[OneOff]:
    if (prompt is None) == (path is None):
        raise ConfigError("give either --prompt TEXT (--prompt - for standard input) or --file REQUESTS.jsonl")
    if path is not None:
        if images or system is not None:
            raise ConfigError("--image and --system go with --prompt; a request of --file has its own images and system")
        return read_one_offs(path, bare=bare)
    assert prompt is not None
    return [one_off(sys.stdin.read() if prompt == "-" else prompt, system=system, images=images, bare=bare)]


def _check_overlay(overlay: Path | None, questions: Sequence[OneOff], run: RunConfig) -> None:
    if overlay is None:
        if run.origin("coordinates") == "command line":
            raise ConfigError("--coordinates says how --overlay draws boxes; give --overlay PICTURE, or leave it out")
        return
    if len(questions) != 1 or len(questions[0].images) != 1 or run.num_samples > 1:
        raise ConfigError(
            f"--overlay draws one answer about one image; got {plural(len(questions), 'request')}, the first with "
            f"{plural(len(questions[0].images), 'image')}, "
            f"and {plural(run.num_samples, 'sample')} of each"
        )
    if overlay.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp") or not overlay.absolute().parent.is_dir():
        raise ConfigError(f"--overlay must be a .png, .jpg or .webp file in a folder that exists, got {overlay}")


def _notice(message: str) -> None:
    from evalharness.report.text import one_line

    print(f"evalharness: {one_line(message, 1000)}", file=sys.stderr)


def _generate(
    spec: EngineSpec, run: RunConfig, questions: Sequence[OneOff], stop: Sequence[str], overlay: Path | None
) -> Iterator[dict[str, Any]]:
    """Yield one row per request and sample, in their order, each as soon as it and all before it are finished."""
    from evalharness.pytest_plugin.execution.engines import open_engine

    samples = [(question, sample) for question in questions for sample in range(run.num_samples)]
    options = [options_of(question, run, stop=stop, sample=sample) for question, sample in samples]
    started = time.monotonic()
    with open_engine(spec, run, _notice) as engine:
        load_s, started = time.monotonic() - started, time.monotonic()
        ready: dict[int, dict[str, Any]] = {}
        num_yielded = 0
        for place, outcome in engine.stream([question.request for question, _ in samples], options, plugins=run.plugins):
            question, sample = samples[place]
            row: dict[str, Any] = {
                "id": question.id,
                "engine": spec.id,
                "checkpoint": spec.checkpoint_path,
                "sample": sample,
                "num_samples": run.num_samples,
                "outcome": outcome.kind if isinstance(outcome, GenerationFailure) else "answered",
                "problem": outcome.problem if isinstance(outcome, GenerationFailure) else None,
                "images": [str(image) for image in question.images],
                "options": options[place].to_json(),
                "generation": outcome.to_json() if isinstance(outcome, GenerationResult) else None,
                "timing": {"load_s": round(load_s, 3), "finished_after_s": round(time.monotonic() - started, 3)},
            }
            if overlay is not None and isinstance(outcome, GenerationResult):
                row["overlay"] = _draw(outcome, question.images[0], overlay, spec, run)
            ready[place] = row
            while num_yielded in ready:
                yield ready.pop(num_yielded)
                num_yielded += 1


def _draw(result: GenerationResult, picture: Path, overlay: Path, spec: EngineSpec, run: RunConfig) -> str:
    from evalharness.config.kinds import PerCheckpoint
    from evalharness.tasks.dense.spot_check import draw_answer

    space = PerCheckpoint.of(run.coordinates, spec.checkpoint) or "norm1000"
    drawing, num_objects, problem = draw_answer(result, picture, space)
    try:
        drawing.save(overlay)
    except OSError as error:
        raise ConfigError(f"--overlay {overlay} cannot be written: {error.strerror or error}") from error
    return f"{overlay}: {plural(num_objects, 'object')}" + (f"; {problem}" if problem else "")


def _show(row: Mapping[str, Any], stream: TextIO, as_json: bool) -> None:
    if as_json:
        stream.write(json.dumps(row, allow_nan=False) + "\n")
    else:
        from evalharness.report.case_view import print_answer
        from evalharness.report.terminal import open_console

        print_answer(open_console(stream), row)
    stream.flush()


_KEYS = ("id", "prompt", "messages", "system", "images", "options")


@dataclass(frozen=True)
class OneOff:
    """One request outside any eval; `options` are those of its line in the file, by name."""

    id: str
    request: Chat | CompletionRequest
    images: tuple[Path, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def one_off(prompt: str, *, system: str | None = None, images: Sequence[Path] = (), name: str = "prompt", bare: bool = False) -> OneOff:
    """Return the request of one user turn, images first, or of a bare text.

    Raises `ConfigError` for an empty prompt and for a bare one with more than text, `ImageError` for a bad image.
    """
    if not prompt.strip():
        raise ConfigError("the prompt is empty; give --prompt TEXT, or --prompt - for standard input")
    if bare:
        if images or system is not None:
            raise ConfigError("--bare is for a text alone: images and a system message need a chat; leave one of them out")
        return OneOff(name, CompletionRequest(prompt))
    turns = [user_turn(prompt, len(images))]
    if system is not None:
        turns.insert(0, {"role": "system", "content": system})
    return OneOff(name, _request(turns, images), tuple(images))


def read_one_offs(path: Path, *, bare: bool = False) -> list[OneOff]:
    """Return the requests of a JSONL file. Raises `ConfigError` naming the line that is wrong."""
    if not path.is_file():
        raise ConfigError(f"{path} is not a file; the nearest folder that exists is {nearest_folder(path)}")
    requests = [_question(row, number, bare) for number, row in rows_of_file(path, _KEYS)]
    if not requests:
        raise ConfigError(f"{path} holds no request; write one JSON object per line, with {', '.join(_KEYS)}")
    return requests


def _question(row: PromptRow, number: int, bare: bool) -> OneOff:
    values, where, paths = row.values, row.where, row.image_paths()
    if bare and values.keys() & {"messages", "system", "images"}:
        raise ConfigError(f"{where} is a chat, and --bare is for a prompt alone; leave --bare out, or ask it apart")
    if "messages" in values and "system" in values:
        raise ConfigError(f"{where} has messages and system; put the system turn into messages")
    for key in ("id", "prompt", "system"):
        if key in values and not isinstance(values[key], str):
            raise ConfigError(f"{where}: {key} must be a text, got {values[key]!r}")
    name, options = values.get("id", f"line {number}"), values.get("options", {})
    try:
        GenerationOptions.from_mapping(options)  # refuses unknown ones
        if "messages" in values:
            return OneOff(name, _request(values["messages"], paths), paths, options)
        return replace(one_off(values["prompt"], system=values.get("system"), images=paths, name=name, bare=bare), options=options)
    except (ContractTypeError, ContractValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _request(messages: Sequence[Mapping[str, Any]], images: Sequence[Path]) -> Chat:
    if not images:
        return TextGenerationRequest(messages)
    for image in images:
        image_size(image)  # reports a bad image before a checkpoint is loaded
    # Only verified requests record the patch grid, and with it the size at which the model saw the image.
    return VlmGenerationRequest(messages, images=tuple(map(str, images)), verify=True)


def options_of(question: OneOff, run: RunConfig, *, stop: Sequence[str] = (), sample: int = 0) -> GenerationOptions:
    """Return the decoding options of a sample: those of the run before those of the request; sample k has seed + k."""
    of_run = {name: getattr(run, name) for name in DECODING if getattr(run, name) is not None}
    seed = run.seed if run.is_set("seed") else question.options.get("seed", run.seed)
    stops: dict[str, Any] = {"stop": {"stop": list(stop)}} if stop else {}
    return GenerationOptions.from_mapping({**question.options, **of_run, **stops, "seed": int(seed) + sample})
