"""Which functions read which kind of input, as evals, tests and commands call them."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from evalharness import answers, cli, scores
from evalharness.answers.json_answer import parse_answer
from evalharness.api.errors import BackendError, EvalHarnessError
from evalharness.api.images import image_sha256, image_size, load_image, why_unusable
from evalharness.api.requests import GenerationResult
from evalharness.api.structured_output import StructuredOutput, fits
from evalharness.api.tools import Tool
from evalharness.backends.base import Prompt
from evalharness.backends.fake import FakeTokenizer
from evalharness.backends.openai.client import HttpClient, RefusedRequest
from evalharness.backends.openai.payload import completion_of
from evalharness.checkpoints.info import inspect_checkpoint
from evalharness.report import text as shown
from evalharness.scores import grounding, mmmu
from evalharness.scores.ocr import ocr_contains
from evalharness.scores.vqa import vqa_accuracy
from evalharness.tasks import degeneration, json_answers, tools
from evalharness.tasks.dense import files as dense_files, metrics as dense_metrics, parse as dense_parse
from evalharness.tasks.prompt_rows import read_rows
from evalharness.tasks.stage_a import files as stage_a_files, parse as stage_a_parse
from evalharness.tasks.stage_b import files as stage_b_files, rule_proposals, verdict
from evalharness.tool_calls import FORMATS, parse_tool_calls
from tests.backends.plans import PLAN

Reader: TypeAlias = Callable[[Path], Any]

_SCHEMA = {"type": "object", "properties": {"a": {"type": ["integer", "array", "string"], "multipleOf": 3, "uniqueItems": True}}}
_TOOLS = (Tool("f", parameters=_SCHEMA), Tool("get_it"))
_RULES = {"G0": "若缺少接地线，则判定不通过。"}
_EXPECTED = {"a": 1, "list": [1, 2], "answer.list[0]": {"min": 1}}
_STRUCTURED = StructuredOutput(json_schema=_SCHEMA)


def _dense(text: str) -> Any:
    dump = dense_parse.parse_dump(text, "bbu")
    return dense_metrics.judge_objects(dump.objects, dump.objects[:3])


_EXTRACTORS = [
    *(answers.last_number(), answers.last_number(decimal_mark=","), answers.boxed(), answers.strip_thinking(), answers.between("{", "}")),
    *(answers.choice_letter("ABCD", ["a", "1", "answer is", "10"]), answers.json_field("a[*].b"), answers.last_match(r"#### (-?[\d.,]+)")),
]


def _scores(text: str) -> Any:
    return [
        *(score(text, "1,234") for score in (scores.anls_corrected, scores.relaxed_accuracy, scores.relaxed_accuracy_corrected)),
        scores.exact_match(text, "1", regexes_to_ignore=[",", r"\.$"], ignore_case=True, ignore_punctuation=True, as_numbers=True),
    ]


def _tool_calls(text: str) -> Any:
    for name in FORMATS:
        parse_tool_calls(text, _TOOLS, format=name)
    return tools.judge(parse_tool_calls(text, _TOOLS), [{"name": "f", "arguments": {"a": 1}}])


def _escapes(text: str) -> Any:
    line = shown.one_line(text)
    return [
        shown.terminal_text(text),
        shown.visible_text(text),
        line,
        shown.markdown_cell(text),
        shown.csv_cell(text),
        shown.code_block([text]),
    ]


def _signs(text: str) -> Any:
    result = GenerationResult(text, text, "length")
    return [degeneration.find_repetition(text, cut_off=True), degeneration.find_echo(text, text[:200]), degeneration.find_signs(result)]


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "dense": _dense,
    "stage A, BBU": lambda text: dataclasses.asdict(stage_a_parse.parse_summary(text, "bbu")),
    "stage A, RRU": lambda text: dataclasses.asdict(stage_a_parse.parse_summary(text, "rru")),
    "stage B": lambda text: verdict.parse_verdict(text, 3),
    "rule proposals": lambda text: [
        rule_proposals.extract_object(text),
        rule_proposals.read_proposal(text, _RULES),
        rule_proposals.read_reflection(text, _RULES, ["t1"]),
    ],
    "JSON answers": lambda text: [parse_answer(text), json_answers.judge(text, _EXPECTED)],
    "extractors": lambda text: [extract(text).to_json() for extract in _EXTRACTORS],
    "scores": _scores,
    "public vision benchmarks": lambda text: [
        grounding.best_iou(text, (0, 0, 9, 9), (99, 99)),
        len(grounding.boxes_in(text)),
        mmmu.judge(text, "B", ["left", "right"]).scores,
        mmmu.judge(text, "['1/2', '0.5']", []).scores,
        vqa_accuracy(text, ["left"] * 10),
        ocr_contains(text, ["left"], fold_width=True),
    ],
    "tool calls": _tool_calls,
    "structured": lambda text: fits(text, _STRUCTURED),
    "degeneration": _signs,
    "what is shown": _escapes,
}


def _of_text(parse: Callable[[str], Any]) -> Reader:
    return lambda folder: parse((folder / "text").read_bytes().decode("utf-8", "surrogatepass"))


def _images(folder: Path) -> Any:
    source = folder / "image.png"
    if why_unusable(source) is None:
        image_size(source)
        load_image(source).load()
    return image_sha256(source)


def _command(*arguments: str) -> Reader:
    """Return a reader that runs a command of evalharness; a crash of it is raised instead of being reported."""

    def read(folder: Path) -> Any:
        def crash() -> int:
            raise  # called where the exception is handled

        cli._crash = crash
        return cli.main([argument.replace("FOLDER", str(folder)) for argument in arguments])

    return read


def _each(**readers: Reader) -> Reader:
    """Return a reader that calls all: what one refuses another may take."""

    def read(folder: Path) -> Any:
        refused: EvalHarnessError | None = None
        for reader in readers.values():
            try:
                reader(folder)
            except EvalHarnessError as error:
                refused = error
        if refused is not None:
            raise refused

    return read


def _data(folder: Path) -> Reader:
    names = sorted(path.name for path in folder.iterdir())
    stage_b = next(name for name in names if name.endswith("_stage_b.jsonl"))
    return _each(
        dense=lambda _: dense_files.read_dump(folder / "gt_vs_pred.jsonl"),
        rules=lambda _: stage_b_files.read_guidance(folder / "guidance.json"),
        tickets=lambda _: stage_b_files.read_tickets(folder / stage_b, "m"),
        summaries=lambda _: [stage_a_files.read_rows(folder / name) for name in names if name.endswith("_stage_a.jsonl")],
        rows=lambda _: [
            list(read_rows(folder, name, ("expected", "choices", "answer", "tools"))) for name in names if name.endswith(".jsonl")
        ],
        tools=lambda _: tools.load_cases(folder),
        answers=lambda _: json_answers.load_cases(folder),
    )


def _with_base(folder: Path) -> Any:
    base = folder.parent / "bases" / "checkpoint"
    return inspect_checkpoint(folder, base_model=base, root=folder)


def _without_reports(folder: Path) -> Any:
    """Rebuild a run from its journal: what a killed run is read by."""
    shutil.rmtree(folder / "outputs", ignore_errors=True)
    for name in ("samples.jsonl", "report.html"):
        if (folder / name).is_file() and not (folder / name).is_symlink():
            (folder / name).unlink()
    return _command("report", "FOLDER")(folder)


def _ask_server(folder: Path) -> Any:
    """Ask a server on this machine that answers every connection with the bytes of the input."""
    answer, goes_silent = (folder / "reply").read_bytes(), (folder / "silent").exists()
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        held = []
        while True:
            connection, _ = server.accept()
            connection.recv(65536)
            with contextlib.suppress(OSError):  # the client has heard enough
                connection.sendall(answer)
            held.append(connection)
            if not goes_silent:
                connection.close()

    threading.Thread(target=serve, daemon=True).start()
    client = HttpClient(f"http://127.0.0.1:{server.getsockname()[1]}", api_key="sk-secret", timeout_s=2.0, max_attempts=1)
    try:
        said = client.ask("/v1/completions", {"prompt": [1, 2, 3]})
        return completion_of(said, Prompt(0, "abc", (1, 2, 3), 3, PLAN), tokenizer=FakeTokenizer(), vocab_size=1000, exact_prompt=True)
    except RefusedRequest as error:
        raise BackendError(str(error)) from error
    finally:
        client.close()


READERS: Mapping[str, Mapping[str, Reader]] = {
    "text": {name: _of_text(parse) for name, parse in _PARSERS.items()},
    "image": {"images": _images},
    "run": {
        "report": _command("report", "FOLDER"),
        "report of a killed run": _without_reports,
        "summary": _command("summary", "FOLDER"),
        "show": _command("show", "FOLDER", "c3"),
        "compare": _command("compare", "FOLDER", "FOLDER/../bases/run", "--out", "FOLDER/compared"),
        "bless": _command("bless", "FOLDER", "new", "--to", "FOLDER"),
        "timeline": _command("timeline", "FOLDER", "--out", "FOLDER/timeline"),
        "export": _command("export", "FOLDER", "--format", "csv", "--out", "FOLDER/table.csv"),
    },
    "baseline": {"compare": _command("compare", "FOLDER/base.json", "FOLDER/../bases/run", "--out", "FOLDER/compared")},
    "checkpoint": {"inspect": lambda folder: inspect_checkpoint(folder, root=folder)},
    "adapter": {"inspect": _with_base},
    "reply": {"client": _ask_server},
    "data": {"loaders": lambda folder: _data(folder)(folder)},
}
"""By kind of input, by name of the reader."""
