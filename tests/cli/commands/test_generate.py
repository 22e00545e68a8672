"""`evalharness generate`: in this process, on the scripted backend, and once on transformers."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from evalharness.api.errors import BROKEN, NOT_PASSED
from evalharness.cli import main
from evalharness.cli.commands.generate import read_one_offs
from evalharness.tasks.prompt_rows import PromptCase, read_rows, request_of
from tests.cli.conftest import Command

DENSE = '<DOMAIN=BBU>, <TASK=DETECTION>\n{"object_1": {"desc": "类别=标签", "bbox_2d": [100, 100, 600, 700]}}'

DRAWN = ("--prompt", "x", "--overlay")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def photo(tmp_path: Path) -> str:
    Image.new("RGB", (80, 60), (9, 99, 9)).save(tmp_path / "photo.png")
    return "photo.png"


def script(tmp_path: Path, *rows: dict[str, Any]) -> str:
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "answers.jsonl"


def answers(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    assert main(["generate", "--backend", "fake", "--json", *arguments]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


class TestAnswers:
    def test_one_question_shows_text_raw_text_ids_and_how_it_ended(self, printed: Command) -> None:
        shown = printed("generate", "--backend", "fake", "--prompt", "hello")
        for part in ("prompt on fake:echo", "text\nhello\n", "raw text\nhello<|im_end|>\n", "finish  stop", "6 generated tokens", "ids  "):
            assert part in shown

    def test_json_has_the_whole_generation(self, capsys: pytest.CaptureFixture[str], photo: str) -> None:
        [row] = answers(capsys, "--prompt", "hello", "--image", photo, "--image", photo, "--system", "be kind", "--max-new-tokens", "3")
        assert (row["outcome"], row["engine"], row["generation"]["finish_reason"]) == ("answered", "fake:echo", "length")
        assert row["generation"]["prompt_text"].startswith(
            "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\n<|image_pad|><|image_pad|>"
        )
        assert [image["width"] for image in row["generation"]["images"]] == [80, 80]
        assert row["options"]["max_new_tokens"] == 3
        assert row["timing"].keys() == {"load_s", "finished_after_s"}

    def test_a_bare_text_goes_without_a_template(self, capsys: pytest.CaptureFixture[str]) -> None:
        Path("requests.jsonl").write_text('{"prompt": "from a file"}')
        for arguments in (["--prompt", "a text"], ["--file", "requests.jsonl"]):
            [row] = answers(capsys, *arguments, "--bare")
            assert row["generation"]["prompt_text"] in ("a text", "from a file")

    def test_a_dash_reads_the_prompt_from_standard_input(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
        assert answers(capsys, "--prompt", "-")[0]["generation"]["text"] == "from a pipe"

    def test_a_file_asks_its_rows_in_order_with_options_of_their_own(self, capsys: pytest.CaptureFixture[str], photo: str) -> None:
        rows: list[dict[str, Any]] = [
            {"id": "a", "prompt": "first", "images": [photo]},
            {"messages": [{"role": "user", "content": "second"}], "options": {"max_new_tokens": 2}},
            {"id": "c", "prompt": "third", "system": "s"},
        ]
        Path("requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = answers(capsys, "--file", "requests.jsonl")
        assert [(row["id"], row["generation"]["text"]) for row in found] == [("a", "first"), ("line 2", "se"), ("c", "third")]
        assert answers(capsys, "--file", "requests.jsonl", "--max-new-tokens", "4")[1]["generation"]["text"] == "seco"

    def test_a_file_asks_what_an_eval_of_the_same_file_asks(self, tmp_path: Path) -> None:
        rows = '{"id": "a", "prompt": "x"}\n\n{"id": "b", "messages": [{"role": "user", "content": "y"}]}\n'
        (tmp_path / "q.jsonl").write_text(rows)
        by_evals = [request_of(PromptCase(**row.case_fields())) for row in read_rows(tmp_path, "q.jsonl", ())]
        assert [question.request for question in read_one_offs(tmp_path / "q.jsonl")] == by_evals

    def test_samples_have_seeds_of_their_own(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = answers(capsys, "--prompt", "x", "--temperature", "1", "--num-samples", "3", "--seed", "7")
        assert [(row["sample"], row["generation"]["seed"]) for row in found] == [(0, 7), (1, 8), (2, 9)]

    def test_an_answer_ends_before_a_stop_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        [row] = answers(capsys, "--prompt", "one two three", "--stop", " two")
        assert (row["generation"]["text"], row["generation"]["stop_reason"]) == ("one", " two")

    def test_hostile_text_is_shown_as_text(self, tmp_path: Path, printed: Command) -> None:
        model = script(tmp_path, {"text": "\x1b[31m[red]:smile:[/red]\r\u202e\x07"})
        shown = printed("generate", "--backend", "fake", "--model", model, "--prompt", "[bold]\x1b")
        assert "\\x1b[31m[red]:smile:[/red]\\r\\u202e\\x07" in shown
        assert not {"\x1b", "\r", "\u202e", "\x07"} & set(shown)

    def test_what_libraries_print_does_not_mix_with_the_answers(self) -> None:
        code = """
import os, sys
import evalharness.pytest_plugin.execution.engines as loading
real = loading.open_engine
def noisy(*arguments):
    print("a library")
    os.write(1, b"a child process\\n")
    return real(*arguments)
loading.open_engine = noisy
from evalharness.cli import main
from evalharness.cli.commands.generate import read_one_offs
from evalharness.tasks.prompt_rows import PromptCase, read_rows, request_of
sys.exit(main(["generate", "--backend", "fake", "--prompt", "x", "--json"]))"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
        assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["prompt"]
        assert done.stderr == "a library\na child process\n" or set(done.stderr.splitlines()) == {"a library", "a child process"}

    def test_transformers_answers_and_a_dense_answer_is_drawn(self, tiny_vlm_checkpoint: Path, printed: Command, photo: str) -> None:
        arguments = ["--model", tiny_vlm_checkpoint, "--prompt", "x", "--image", photo, "--overlay", "out.png", "--device", "cpu"]
        row = json.loads(printed("generate", "--backend", "hf", "--json", "--max-new-tokens", "4", *arguments))
        assert (row["engine"].split(":")[0], row["generation"]["num_completion_tokens"]) == ("hf", 4)
        assert row["overlay"].startswith("out.png: 0 objects; ")

    def test_a_text_model_refuses_an_image_as_in_a_run(self, tiny_vlm_checkpoint: Path, refused: Command, photo: str) -> None:
        arguments = ["--model", tiny_vlm_checkpoint, "--variant", "text", "--device", "cpu", "--prompt", "x", "--image", photo]
        message = "cannot run image requests with this checkpoint; give a vision-language checkpoint"
        assert message in refused("generate", "--backend", "hf", *arguments)


class TestOverlay:
    def test_objects_are_drawn_on_the_photo(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], photo: str) -> None:
        [row] = answers(capsys, "--model", script(tmp_path, {"text": DENSE}), "--prompt", "x", "--image", photo, "--overlay", "out.png")
        assert row["overlay"] == "out.png: 1 object"
        with Image.open("out.png") as drawn:
            assert drawn.size == (640 + 10 + 420, 34 + 480)
            assert len(drawn.convert("RGB").getcolors(1 << 20) or []) > 10


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            pytest.param([], "give either --prompt TEXT", id="no-question"),
            pytest.param(["--prompt", " "], "the prompt is empty", id="empty"),
            pytest.param(["--prompt", "x", "--bare", "--system", "y"], "--bare is for a text alone", id="bare-with-system"),
            pytest.param(["--prompt", "x", "--file", "f"], "give either --prompt TEXT", id="both"),
            pytest.param(["--file", "nowhere.jsonl"], "nowhere.jsonl is not a file; the nearest folder", id="no-file"),
            pytest.param(["--file", "f.jsonl", "--image", "x.png"], "--image and --system go with --prompt", id="image-of-a-file"),
            pytest.param(["--prompt", "x", "--image", "nowhere.png"], "nowhere.png", id="no-image"),
            pytest.param(["--prompt", "x", "--backend", "vlm"], "did you mean 'vllm'?", id="backend"),
            pytest.param(["--prompt", "x", "--backend", "hf", "--model", "nowhere"], "nowhere", id="no-checkpoint"),
            pytest.param(["--prompt", "x", "--num-samples", "2", "--temperature", "0"], "same text every time", id="greedy-samples"),
            pytest.param(["--prompt", "x", "--temprature", "0"], "Did you mean '--temperature'?", id="option"),
            pytest.param(["--prompt", "x", "--device", "cpu"], "--device cpu is honoured by hf only", id="of-another-backend"),
            pytest.param([*DRAWN, "out.png"], "one answer about one image; got 1 request, the first with 0 images", id="drawn-no-image"),
            pytest.param([*DRAWN, "out.txt", "--image", "photo.png"], "must be a .png, .jpg or .webp file", id="drawn-no-picture"),
            pytest.param([*DRAWN, "no/out.png", "--image", "photo.png"], "in a folder that exists", id="drawn-no-folder"),
        ],
    )
    @pytest.mark.usefixtures("photo")
    def test_a_wrong_question_says_what_to_do(self, arguments: list[str], message: str, refused: Command) -> None:
        backend = [] if "--backend" in arguments else ["--backend", "fake"]
        assert message in refused("generate", *backend, *arguments)

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            pytest.param("{", "requests.jsonl:2 is not JSON", id="json"),
            pytest.param("[]", "requests.jsonl:2 must be a JSON object", id="list"),
            pytest.param('{"promt": "x"}', "requests.jsonl:2 has 'promt'; did you mean 'prompt'?", id="key"),
            pytest.param("{}", "requests.jsonl:2 needs either prompt or messages", id="nothing"),
            pytest.param('{"prompt": 3}', "requests.jsonl:2: prompt must be a text, got 3", id="number"),
            pytest.param('{"prompt": "x", "images": "a.png"}', "requests.jsonl:2: images must be a list of paths", id="images"),
            pytest.param('{"messages": [3]}', "requests.jsonl:2: request.messages[0] must be a mapping", id="messages"),
            pytest.param('{"messages": [], "system": "x"}', "requests.jsonl:2 has messages and system", id="system"),
            pytest.param('{"prompt": "x", "options": {"top_p": 3}}', "requests.jsonl:2: options.top_p", id="options"),
        ],
    )
    def test_a_wrong_row_is_named_by_its_line(self, row: str, message: str, refused: Command) -> None:
        Path("requests.jsonl").write_text('{"prompt": "fine"}\n' + row)
        assert message in refused("generate", "--backend", "fake", "--file", "requests.jsonl")

    def test_a_prompt_that_cannot_be_asked_ends_with_1_and_the_others_are_answered(self, capsys: pytest.CaptureFixture[str]) -> None:
        rows = [{"prompt": "x" * 50, "options": {"max_prompt_tokens": 3}}, {"prompt": "y"}]
        Path("requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        first, second = answers(capsys, "--file", "requests.jsonl", code=NOT_PASSED)
        assert (first["outcome"], first["generation"], second["outcome"]) == ("invalid", None, "answered")
        assert "max_prompt_tokens" in first["problem"]

    def test_an_engine_that_breaks_ends_with_10(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        model = script(tmp_path, {"error": "the card is gone"})
        assert main(["generate", "--backend", "fake", "--model", model, "--prompt", "x"]) == BROKEN
        printed = capsys.readouterr()
        assert "the card is gone" in printed.out + printed.err

    def test_settings_of_the_project_hold_and_those_of_runs_alone_do_not(self, printed: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        Path("evalharness.toml").write_text('backend = "fake"\nmax_new_tokens = 2\ndata = "nowhere"\nlimit = 3\n')
        Path("sub").mkdir()
        monkeypatch.chdir("sub")
        assert json.loads(printed("generate", "--prompt", "hello", "--json"))["generation"]["text"] == "he"
