"""`evalharness show`: which case a word means, and what is shown of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.conftest import Command
from tests.report.hostile import HOSTILE_TEXTS
from tests.report.runs import generation, invalid, row, write_run

UNSAFE = {chr(code) for code in range(32)} - {"\n"} | {"\x7f", "\x9b", "\u202e", "\u2066", "\x85", "\u2028"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    whole = generation(text="an answer", prompt_text="<user>ask [red]", images=[{"width": 80, "height": 60}])
    samples = [
        row("group-1/a", generation=whole, details={"parsed": [1]}, reference={"total": 3}, tags={"mission": "m"}),
        row("group-1/a", engine="vllm:tiny", text="another", outcome="miss", problem="line one\nline two"),
        row("group-1/ab", generations=[generation(text="one"), generation(text="two")]),
        row("group-2/c", steps=[[generation(text="a step")]], scores={}),
        invalid("broken"),
    ]
    write_run(tmp_path / "reports" / "first", samples)
    return "reports/first"


class TestCase:
    def test_an_exact_id_is_taken_though_it_is_part_of_another(self, run: str, printed: Command) -> None:
        text = printed("show", run, "group-1/a")
        assert text.count("── group-1/a: stage_a::test_summary on ") == 2
        assert "group-1/ab" not in text

    def test_a_part_that_one_case_has_is_enough(self, run: str, printed: Command) -> None:
        assert printed("show", run, "up-2").startswith("── group-2/c: stage_a::test_summary on hf:tiny: pass\n")

    def test_a_node_id_is_one_row(self, run: str, printed: Command) -> None:
        assert printed("show", run, "evals/test_stage_a.py::test_summary[vllm:tiny-group-1/a]").count("── ") == 1

    @pytest.mark.parametrize(
        ("case", "message"),
        [
            pytest.param(
                "group-1", "give more of one\n  group-1/a\n  group-1/ab\ntry: evalharness show reports/first group-1/a\n", id="several"
            ),
            pytest.param("group-2/d", "has no case 'group-2/d'; did you mean one of these?\n  group-2/c", id="none"),
            pytest.param("\x1b[31m", "has no case '\\x1b[31m'", id="hostile"),
        ],
    )
    def test_otherwise_candidates_are_listed(self, run: str, case: str, message: str, refused: Command) -> None:
        assert message in refused("show", run, case)

    def test_without_a_case_those_that_did_not_pass_are_listed(self, run: str, tmp_path: Path, printed: Command, refused: Command) -> None:
        lines = printed("show", run).splitlines()
        assert lines[0] == "2 cases did not pass, the worst first:"
        assert [line.split()[:2] for line in lines[1:3]] == [["miss", "group-1/a"], ["invalid", "broken"]]
        assert lines[3:] == ["try: evalharness show first group-1/a"]
        assert "broken" not in printed("show", run, "--engine", "vllm:tiny")
        assert "no row of that --engine and --test. Known: hf:tiny, vllm:tiny" in refused("show", run, "--engine", "x")
        assert "CASE is missing: --json shows one case" in refused("show", run, "--json")
        good = printed("show", write_run(tmp_path / "good", [row("a")]))
        assert good == f"no case failed; 1 case ran\ntry: evalharness show {tmp_path / 'good'} a\n"

    def test_a_case_leads_to_its_page_and_to_the_run_before(self, tmp_path: Path, printed: Command) -> None:
        for day, outcome in ((1, "pass"), (2, "miss")):
            facts = {"evals": [{"name": "stage_a"}], "counts": {outcome: 1}, "started_at": f"2030-01-0{day}"}
            (write_run(tmp_path / "reports" / f"r{day}", [row("a", outcome=outcome)], **facts) / "report.html").touch()
        second = tmp_path / "reports" / "r2"
        assert printed("show", second, "a").splitlines()[-3:] == [
            f"page: {second / 'report.html'}",
            "in the run before: pass on hf:tiny",
            "  evalharness show r1 a",
        ]
        assert "in the run before" not in printed("show", second, "a", "--json")
        assert printed("show", tmp_path / "reports" / "r1", "a").splitlines()[-1].startswith("page: ")

    def test_of_many_candidates_ten_are_listed_and_the_rest_counted(self, tmp_path: Path, refused: Command) -> None:
        error = refused("show", write_run(tmp_path / "many", [row(f"case-{number}") for number in range(1234)]), "case")
        assert error.count("\n  case-") == 10
        assert "\n  … and 1,224 more\ntry: evalharness show " in error

    def test_engine_and_test_choose_rows(self, run: str, printed: Command, refused: Command) -> None:
        assert printed("show", run, "group-1/a", "--engine", "vllm:tiny", "--test", "stage_a::test_summary").count("── ") == 1
        assert "did you mean 'vllm:tiny'? Known: hf:tiny, tiny, vllm:tiny." in refused("show", run, "group-1/a", "--engine", "vlm:tiny")


class TestRow:
    def test_it_shows_what_was_asked_what_came_back_and_how_it_was_judged(self, run: str, printed: Command) -> None:
        text = printed("show", run, "group-1/a")
        for part in (
            "scores   valid 1.000", "tags     mission m", "prompt\n<user>ask [red]\n", "image  width=80 height=60", "text\nan answer\n",
            "raw text\n", "finish  stop (151645), 20 + 6 tokens", 'reference\n{\n "total": 3\n}', 'details\n{\n "parsed": [\n  1\n ]\n}',
            "problem  line one\n         line two", 'options  {"max_new_tokens": 16}', "on vllm:tiny: miss"
        ):  # fmt: skip
            assert part in text

    def test_every_sample_and_step_is_shown(self, run: str, printed: Command) -> None:
        assert "sample 1: text\none\n" in (text := printed("show", run, "group-1/ab"))
        assert "sample 2: text\ntwo\n" in text
        assert "step 1.1: text\na step\n" in printed("show", run, "group-2")

    def test_a_case_without_generation_shows_its_problem(self, run: str, printed: Command) -> None:
        text = printed("show", run, "broken")
        assert ": invalid\nproblem  image.jpg is empty" in text
        assert "raw text" not in text

    def test_json_gives_the_rows_as_they_are(self, run: str, printed: Command) -> None:
        rows = [json.loads(line) for line in printed("show", run, "group-1/a", "--json").splitlines()]
        assert [one["engine"] for one in rows] == ["hf:tiny", "vllm:tiny"]

    @pytest.mark.parametrize("name", HOSTILE_TEXTS)
    def test_whatever_stands_in_it_is_text(self, tmp_path: Path, name: str, printed: Command) -> None:
        text = HOSTILE_TEXTS[name]
        hostile = row(
            f"c{text}", text=text, problem=text, outcome="miss", group=text, tags={text: text}, scores={text: 1.0}, details={text: text}
        )
        out = printed("show", str(write_run(tmp_path / "run", [hostile])), "c")
        assert not UNSAFE & set(out)
        out.encode("utf-8")

    def test_colours_are_for_terminals_only(self, run: str, printed: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
        assert "\x1b[" in printed("show", run, "broken")
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b" not in printed("show", run, "broken")


class TestOverlay:
    DETAILS = {  # noqa: RUF012
        "image": {"path": "photo.png", "width": 80, "height": 60},
        "truth": [{"type": "bbox_2d", "points": [0, 0, 500, 500], "desc": "类别=标签", "pixels": [0, 0, 40, 30]}],
        "predictions": [{"type": "bbox_2d", "points": [0, 0, 500, 500], "desc": "类别=标签"}],
        "pairs": {"category": [[0, 0, 1.0]]},
    }

    def test_truth_and_prediction_are_drawn(self, run: str, tmp_path: Path, printed: Command) -> None:
        Image.new("RGB", (80, 60), (9, 99, 9)).save(tmp_path / "photo.png")
        write_run(tmp_path / "dense", [row("d", details=self.DETAILS)], config={"data": {"value": str(tmp_path)}})
        printed("show", "dense", "d", "--overlay", "out.png")
        with Image.open("out.png") as drawn:
            assert drawn.size == (2 * 650 + 420, 34 + 480)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            pytest.param(
                ["reports/first", "group-1/a", "--overlay", "out.png"], "draws one row, got 2; choose with --engine", id="several"
            ),
            pytest.param(["reports/first", "broken", "--overlay", "out.png"], "this one has no objects", id="no-objects"),
            pytest.param(["dense", "d", "--overlay", "out.png"], "give --data FOLDER", id="no-data"),
            pytest.param(
                ["dense", "d", "--overlay", "no/out.png", "--data", "."], "--overlay no/out.png cannot be written", id="no-folder"
            ),
        ],
    )
    def test_what_cannot_be_drawn_says_why(self, run: str, tmp_path: Path, arguments: list[str], message: str, refused: Command) -> None:
        write_run(tmp_path / "dense", [row("d", details=self.DETAILS)])
        assert message in refused("show", *arguments)
