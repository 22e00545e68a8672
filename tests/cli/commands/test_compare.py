"""`evalharness compare`, `bless` and `summary`, as processes of their own where that matters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evalharness.cli import main
from tests.analysis.comparison.runs import cases, pair, run_dir
from tests.cli.conftest import Command
from tests.processes import python
from tests.report.runs import gate, invalid, row

WORSE = [1.0] * 40 + [0.0] * 20
PART = [{"eval": "stage_a", "what": "cases", "num": 1, "of": 4}]


class TestCompare:
    def test_a_regression_ends_with_1_and_is_written_beside_the_candidate(self, tmp_path: Path) -> None:
        base, candidate = pair(tmp_path, cases([1.0] * 60), cases(WORSE))
        code, output = python("-m", "evalharness", "compare", base, candidate, env={**os.environ, "COLUMNS": "120"})
        assert (code, "REGRESSED: 1 metric (f1" in output) == (1, True)
        paths = (candidate / name for name in ("compare.html", "compare.md", "compare.csv", "compare_cases.csv\n"))
        assert output.endswith("\n".join(map(str, paths)))

    def test_no_regression_ends_with_0(self, tmp_path: Path, printed: Command) -> None:
        base, candidate = pair(tmp_path, cases([1.0] * 60), cases([1.0] * 60))
        assert "no difference shown" in printed("compare", base, candidate, "--out", tmp_path / "out")
        assert {path.name for path in (tmp_path / "out").iterdir()} == {"compare.html", "compare.md", "compare.csv", "compare_cases.csv"}
        assert not (candidate / "compare.md").exists()

    def test_one_regression_among_several_candidates_is_enough(self, tmp_path: Path) -> None:
        base, good = pair(tmp_path, cases([1.0] * 60), cases([1.0] * 60))
        bad = run_dir(tmp_path / "bad", cases(WORSE), {"fingerprint": "f3"})
        assert main(["compare", str(base), str(good), str(bad)]) == 1
        assert "# 2 comparisons" in (good / "compare.md").read_text("utf-8")

    @pytest.mark.parametrize(
        ("base", "message"), [("nowhere", "is neither a run directory nor a baseline"), ("cand", "base and candidate are the same")]
    )
    def test_what_cannot_be_compared_ends_with_2_and_says_why(self, tmp_path: Path, base: str, message: str, refused: Command) -> None:
        pair(tmp_path, cases([1.0]), cases([1.0]))
        error = refused("compare", tmp_path / base, tmp_path / "cand")
        assert error.startswith("evalharness: error: cannot compare: ")
        assert message in error

    def test_an_error_cannot_steer_the_terminal(self, tmp_path: Path, refused: Command) -> None:
        engines = [{"id": "hf:\x1b[31mred"}, {"id": "hf:b"}]
        run = run_dir(tmp_path / "run", [row("a", engine="hf:\x1b[31mred"), row("a", engine="hf:b")], engines=engines)
        assert "\x1b" not in refused("compare", run, run) + refused("bless", run, "x")

    def test_what_was_asked_otherwise_is_refused_unless_anyway(self, tmp_path: Path, printed: Command, refused: Command) -> None:
        base, candidate = pair(tmp_path, cases([1.0] * 60), cases([1.0] * 60, options={"max_new_tokens": 9}))
        message = "option max_new_tokens differs in stage_a::test_summary: 16 in the base, 9 in the candidate"
        assert message in refused("compare", base, candidate)
        assert "! option max_new_tokens differs" in printed("compare", base, candidate, "--anyway")

    @pytest.mark.parametrize("seed", ["-1", "x"])
    def test_a_seed_that_is_none_is_a_wrong_command_line(self, seed: str, refused: Command) -> None:
        assert "--seed" in refused("compare", "a", "b", "--seed", seed)

    def test_a_score_can_be_said_to_be_better_when_lower(self, tmp_path: Path) -> None:
        base, candidate = pair(tmp_path, cases(WORSE), cases([1.0] * 60))
        assert main(["compare", str(base), str(candidate)]) == 0
        assert main(["compare", str(base), str(candidate), "--lower-is-better", "f1"]) == 1

    def test_a_reader_that_has_seen_enough_is_no_crash(self, tmp_path: Path) -> None:
        base, candidate = pair(tmp_path, cases([1.0] * 60), cases(WORSE))
        script = f'"{sys.executable}" -m evalharness compare "{base}" "{candidate}" | true'
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=300, check=False)
        assert done.stderr == ""

    def test_a_terminal_without_unicode_is_no_crash(self, tmp_path: Path) -> None:
        base, candidate = pair(tmp_path, [row("站点")], [row("站点", scores={"valid": 0.0})])
        env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
        code, output = python("-m", "evalharness", "compare", base, candidate, env=env)
        assert (code, "\\u7ad9\\u70b9" in output) == (0, True), output


class TestBless:
    def test_a_run_becomes_a_baseline_that_compares(self, tmp_path: Path, printed: Command) -> None:
        base, candidate = pair(tmp_path, cases([1.0] * 60), cases(WORSE))
        path = tmp_path / "baselines" / "nightly.json"
        blessed = printed("bless", base, "nightly", "--to", path.parent)
        assert blessed == f"{path}: 60 of 60 cases judged, {path.stat().st_size:,} bytes\n"
        assert main(["compare", str(path), str(candidate)]) == 1

    @pytest.mark.parametrize("name", ["latest", "a/b", "../x", ".hidden", "x.json", "", "a b", "x" * 101])
    def test_a_name_that_would_be_a_path_or_means_something_else_is_refused(self, tmp_path: Path, name: str, refused: Command) -> None:
        run = run_dir(tmp_path / "run", cases([1.0]))
        assert "cannot be the name of a baseline" in refused("bless", run, name, "--to", tmp_path / "b")
        assert not (tmp_path / "b").exists()

    @pytest.mark.parametrize(
        ("run", "samples", "why"),
        [
            ({"interrupted": "Ctrl-C"}, cases([1.0]), "the run was interrupted"),
            ({"interrupted": "Ctrl-C", "partial": PART}, cases([1.0]), "the run was interrupted"),
            (
                {"partial": PART},
                cases([1.0]),
                "only part of an eval: 1 of 4 cases of stage_a; bless a whole run, or this one with --partial",
            ),
            ({}, [row("a"), invalid("b"), invalid("c")], "only 1 of 3 cases had a verdict"),
        ],
        ids=["interrupted", "both", "partial", "invalid"],
    )
    def test_a_run_that_says_too_little_is_not_blessed(
        self, tmp_path: Path, run: dict[str, object], samples: list[dict[str, object]], why: str, refused: Command
    ) -> None:
        assert why in refused("bless", run_dir(tmp_path / "run", samples, **run), "x", "--to", tmp_path / "b")

    def test_a_partial_run_is_blessed_on_request(self, tmp_path: Path, printed: Command) -> None:
        run = run_dir(tmp_path / "run", cases([1.0]), partial=PART)
        assert "1 of 1 case judged" in printed("bless", run, "x", "--to", tmp_path / "b", "--partial")


class TestSummary:
    def test_it_prints_verdict_gates_and_scores(self, tmp_path: Path, printed: Command) -> None:
        idle = gate(expression="no_regression", metric="no_regression", value=None, threshold=None)
        gates = [gate(False), {**idle, "passed": None, "asked": False, "reason": "not asked: give --baseline NAME"}]
        page = printed("summary", run_dir(tmp_path / "run", cases([1.0] * 20), gates=gates, exit_code=1))
        assert page.startswith("## Run run\n\n**FAILED**: the gate failed; 1 gate skipped, as no baseline was given.\n")
        assert "### Gates" in page
        assert "### Scores and their validity" in page

    def test_it_stays_below_what_github_takes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from evalharness.report import markdown as ci_summary
        from evalharness.report.tables import load_tables

        monkeypatch.setattr(ci_summary, "MAX_BYTES", 600)
        shown = ci_summary.ci_summary(load_tables(run_dir(tmp_path / "run", cases([1.0] * 20), gates=[gate()] * 9)))
        assert len(shown) < 700
        assert shown.endswith("More is left out here; report.md has it.\n")

    def test_a_folder_that_is_no_run_ends_with_2(self, tmp_path: Path, refused: Command) -> None:
        assert "is not a run directory" in refused("summary", tmp_path)
