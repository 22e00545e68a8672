"""`evalharness generate`: questions asked by hand, of the same engine, with the same options and errors as in a run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

import click

from evalharness.api.errors import BROKEN, DONE, NOT_PASSED, ConfigError, ContractTypeError, ContractValueError, nearest_folder
from evalharness.api.images import image_size
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import TextGenerationRequest, VlmGenerationRequest
from evalharness.cli.framework import command, own_stdout, project_root, resolve_options, run_options
from evalharness.config import RunConfig
from evalharness.config.options import ARGUMENTS
from evalharness.tasks.prompt_rows import PromptRow, rows_of_file, user_turn

if TYPE_CHECKING:
    from evalharness.api.requests import GenerationResult
    from evalharness.pytest_plugin.execution.engine_specs import EngineSpec

__all__ = ["OneOff", "generate", "one_off", "options_of", "read_one_offs"]

_OF_RUNS = frozenset(
    {
        "wait", "data", "limit", "shard", "spot", "devices", "share_devices", "hang_timeout", "cache", "cache_dir", "run_id", "resume",
        "report_dir", "baseline",
    }
)  # fmt: skip
"""Options that say how a run is made or kept; all others, and so those of further backends, are options here, too."""


@command(
    "generate",
    examples=[
        'evalharness generate --model fixtures/checkpoints/final --image photo.jpg --prompt "What is on this photo?"',
        "evalharness generate --backend hf,vllm --file requests.jsonl --json > answers.jsonl",
        "evalharness generate --prompt - --temperature 0.7 --num-samples 3 < question.txt",
        "evalharness generate --image photo.jpg --file dense.jsonl --overlay objects.png",
    ],
    exit_codes={
        DONE: "every request was answered",
        NOT_PASSED: "a request could not be asked: image broken, prompt too long",
        BROKEN: "the engine broke, or a request ended as an error",
    },
)
@click.option("--prompt", metavar="TEXT", help="What to ask; - reads standard input (default: what --file says)")
@click.option(
    "--image",
    "images",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Picture before the prompt; may be given several times (default: none)",
)
@click.option("--system", metavar="TEXT", help="System turn before the prompt (default: none)")
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path),
    metavar="JSONL",
    help='Requests, one a line: {"prompt": …} or {"messages": […]}, with id, system, images, options (default: --prompt)',
)
@click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; may be given several times (default: none)")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per answer, one a line (default: for people)")
@click.option(
    "--overlay",
    type=click.Path(path_type=Path),
    metavar="PICTURE",
    help="Draw the objects that a dense answer names on its photo, into this file; for one request with one image (default: no)",
)
@run_options(
    *(option.name for option in ARGUMENTS if option.name not in _OF_RUNS),
    defaults={"model": "that of the project's settings", "coordinates": "norm1000", "num_samples": "1"},
)
def generate(
    prompt: str | None,
    images: Sequence[Path],
    system: str | None,
    path: Path | None,
    stop: Sequence[str],
    as_json: bool,
    overlay: Path | None,
    **options: Any,
) -> int:
    """Ask a checkpoint something by hand, with the engine, the options and the errors of a run.

    Shows text, raw text, how the answer ended, tokens, ids and time. --model takes checkpoints, LoRA adapters and patterns; several
    checkpoints or backends are asked one after the other.
    """
    from evalharness.config.checks import check_combinations
    from evalharness.pytest_plugin.execution.engine_specs import choices_of_auto, engine_specs

    run = resolve_options(options)
    check_combinations(run)
    questions = _questions(prompt, images, system, path)
    _check_overlay(overlay, questions, run)
    specs = engine_specs(run, project_root(Path.cwd()), _notice)
    for choice in choices_of_auto(specs):
        _notice(choice)
    if overlay is not None and len(specs) > 1:
        raise ConfigError(f"--overlay is for one engine, got {len(specs)}: {', '.join(spec.id for spec in specs)}")
    outcomes: set[str] = set()
    with own_stdout() as stream:
        for spec in specs:
            for row in _asked(spec, run, questions, stop, overlay):
                outcomes.add(row["outcome"])
                _show(row, stream, as_json)
    return BROKEN if "error" in outcomes else NOT_PASSED if "invalid" in outcomes else DONE


def _questions(prompt: str | None, images: Sequence[Path], system: str | None, path: Path | None) -> list[OneOff]:

    if (prompt is None) == (path is None):
        raise ConfigError("give either --prompt TEXT (--prompt - for standard input) or --file REQUESTS.jsonl")
    if path is not None:
        if images or system is not None:
            raise ConfigError("--image and --system go with --prompt; in a file each request has images and system of its own")
        return read_one_offs(path)
    assert prompt is not None
    return [one_off(sys.stdin.read() if prompt == "-" else prompt, system=system, images=images)]


def _check_overlay(overlay: Path | None, questions: Sequence[OneOff], run: RunConfig) -> None:
    if overlay is None:
        return
    if len(questions) != 1 or len(questions[0].images) != 1 or run.num_samples > 1:
        raise ConfigError(
            f"--overlay draws one answer about one photo; got {len(questions)} requests, the first with {len(questions[0].images)} images, "
            f"and {run.num_samples} samples of each"
        )
    if overlay.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp") or not overlay.absolute().parent.is_dir():
        raise ConfigError(f"--overlay must be a .png, .jpg or .webp file in a folder that exists, got {overlay}")


def _notice(message: str) -> None:
    from evalharness.report.text import one_line

    print(f"evalharness: {one_line(message, 1000)}", file=sys.stderr)


def _asked(
    spec: EngineSpec, run: RunConfig, questions: Sequence[OneOff], stop: Sequence[str], overlay: Path | None
) -> Iterator[dict[str, Any]]:
    """Yield one row per question and sample, in their order, as soon as all before it are there."""
    from evalharness.api.requests import GenerationResult
    from evalharness.pytest_plugin.execution.engines import open_engine

    asked = [(question, sample) for question in questions for sample in range(run.num_samples)]
    options = [options_of(question, run, stop=stop, sample=sample) for question, sample in asked]
    started = time.monotonic()
    with open_engine(spec, run, _notice) as engine:
        load_s, started = time.monotonic() - started, time.monotonic()
        ready: dict[int, dict[str, Any]] = {}
        given = 0
        for place, outcome in engine.stream([question.request for question, _ in asked], options):
            question, sample = asked[place]
            result = outcome if isinstance(outcome, GenerationResult) else None
            row: dict[str, Any] = {
                "id": question.id,
                "engine": spec.id,
                "checkpoint": spec.checkpoint_path,
                "sample": sample,
                "num_samples": run.num_samples,
                "outcome": "answered" if isinstance(outcome, GenerationResult) else outcome.kind,
                "problem": None if isinstance(outcome, GenerationResult) else outcome.problem,
                "images": [str(image) for image in question.images],
                "options": options[place].to_json(),
                "generation": None if result is None else result.to_json(),
                "timing": {"load_s": round(load_s, 3), "finished_after_s": round(time.monotonic() - started, 3)},
            }
            if overlay is not None and result is not None:
                row["overlay"] = _draw(result, question.images[0], overlay, spec, run)
            ready[place] = row
            while given in ready:
                yield ready.pop(given)
                given += 1


def _draw(result: GenerationResult, picture: Path, overlay: Path, spec: EngineSpec, run: RunConfig) -> str:
    from evalharness.config.kinds import PerCheckpoint
    from evalharness.tasks.dense.spot_check import draw_answer

    space = PerCheckpoint.of(run.coordinates, spec.checkpoint) or "norm1000"
    drawing, num_objects, problem = draw_answer(result, picture, space)
    try:
        drawing.save(overlay)
    except OSError as error:
        raise ConfigError(f"--overlay {overlay} cannot be written: {error.strerror or error}") from error
    return f"{overlay}: {num_objects} objects" + (f"; {problem}" if problem else "")


def _show(row: Mapping[str, Any], stream: TextIO, as_json: bool) -> None:
    if as_json:
        stream.write(json.dumps(row, allow_nan=False) + "\n")
    else:
        from evalharness.report.case_view import print_answer
        from evalharness.report.terminal import open_console

        print_answer(open_console(stream), row)
    stream.flush()


# Questions asked by hand: one from words and pictures, or one per row of a JSONL file. Knows no engine and no command line

Request: TypeAlias = "TextGenerationRequest | VlmGenerationRequest"

_KEYS = ("id", "prompt", "messages", "system", "images", "options")
_DECODING = ("max_new_tokens", "temperature", "top_p", "repetition_penalty", "max_thinking_tokens")


@dataclass(frozen=True)
class OneOff:
    """One question; `options` are those of its row, by name."""

    id: str
    request: Request
    images: tuple[Path, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def one_off(prompt: str, *, system: str | None = None, images: Sequence[Path] = (), name: str = "prompt") -> OneOff:
    """Return the question of one user turn, pictures first. Raises `ConfigError` or `ImageError` for what cannot be asked."""
    if not prompt.strip():
        raise ConfigError("the prompt is empty; give --prompt TEXT, or --prompt - for standard input")
    turns = [user_turn(prompt, len(images))]
    if system is not None:
        turns.insert(0, {"role": "system", "content": system})
    return OneOff(name, _request(turns, images), tuple(images))


def read_one_offs(path: Path) -> list[OneOff]:
    """Return the questions of a JSONL file; `ConfigError` names the line of whatever is wrong."""
    if not path.is_file():
        raise ConfigError(f"{path} is no file; the nearest folder that exists is {nearest_folder(path)}")
    found = [_question(row, number) for number, row in rows_of_file(path, _KEYS)]
    if not found:
        raise ConfigError(f"{path} holds no request; write one JSON object a line, with {', '.join(_KEYS)}")
    return found


def _question(row: PromptRow, number: int) -> OneOff:
    values, where, paths = row.values, row.where, row.image_paths()
    if "messages" in values and "system" in values:
        raise ConfigError(f"{where} has messages and system; put the system turn into messages")
    for key in ("id", "prompt", "system"):
        if key in values and not isinstance(values[key], str):
            raise ConfigError(f"{where}: {key} must be a text, got {values[key]!r}")
    name, options = values.get("id", f"line {number}"), values.get("options", {})
    try:
        GenerationOptions.from_mapping(options)  # refuses what is none
        if "messages" in values:
            return OneOff(name, _request(values["messages"], paths), paths, options)
        return replace(one_off(values["prompt"], system=values.get("system"), images=paths, name=name), options=options)
    except (ContractTypeError, ContractValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _request(messages: Sequence[Mapping[str, Any]], images: Sequence[Path]) -> Request:
    if not images:
        return TextGenerationRequest(messages)
    for image in images:
        image_size(image)  # says what is wrong with a picture before a checkpoint is loaded
    # Verified: only then the generation tells the patch grid, and with it the size at which the model saw the picture.
    return VlmGenerationRequest(messages, images=tuple(map(str, images)), verify=True)


def options_of(question: OneOff, run: RunConfig, *, stop: Sequence[str] = (), sample: int = 0) -> GenerationOptions:
    """Return how a sample of the question is decoded: what its row says, unless the run says otherwise; sample k has seed + k."""
    given = {name: getattr(run, name) for name in _DECODING if getattr(run, name) is not None}
    seed = run.seed if run.is_set("seed") else question.options.get("seed", run.seed)
    stops: dict[str, Any] = {"stop": {"stop": list(stop)}} if stop else {}
    return GenerationOptions.from_mapping({**question.options, **given, **stops, "seed": int(seed) + sample})
