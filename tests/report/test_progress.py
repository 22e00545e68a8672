"""A run's progress in one line, of any width, and in several."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from evalharness.report.progress import left_text, progress_line, progress_page, rate_text
from evalharness.report.text import terminal_text
from evalharness.runs.progress import EngineProgress, RunProgress, WorkerProgress
from tests.report.hostile import HOSTILE_TEXTS

FINAL = EngineProgress("hf:final", num_done=31, num_asked=120, num_in_flight=16, num_tokens=4120, tokens_per_s=38.2)
GENERATING = WorkerProgress("main", "generating", "hf:final", "stage_a", 80.0)
RUN = RunProgress(90.0, 240, 60, 3, 187.0, (EngineProgress("hf:early", 120, 120, num_tokens=9000), FINAL), (GENERATING,))


def run_of(*workers: WorkerProgress, engines: tuple[EngineProgress, ...] = RUN.engines, **changes: object) -> RunProgress:
    return RunProgress(**{**vars(RUN), "workers": workers, "engines": engines, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (None, "evalharness: stage_a on hf:final (2 of 2): 31/120 answers, 16 in flight, 38 tokens/s, 60/240 tests, 3 not passed, "
               "about 3 min 10 s left"),
        (120, "stage_a on hf:final: 31/120 answers, 16 in flight, 38 tokens/s, 60/240 tests, 3 not passed, about 3 min 10 s left"),
        (100, "stage_a on hf:final: 31/120 answers, 16 in flight, 38 tokens/s, 60/240 tests, about 3 min 10 s left"),
        (80, "stage_a on hf:final: 31/120, 16 in flight, 38 tokens/s, about 3 min 10 s left"),
        (65, "stage_a on hf:final: 31/120, 38 tokens/s, about 3 min 10 s left"),
        (60, "hf:final: 31/120, 38 tokens/s, about 3 min 10 s left"),
    ],
)  # fmt: skip
def test_a_narrow_line_loses_the_least_telling_first(columns: int | None, expected: str) -> None:
    assert progress_line(RUN, columns) == expected


@pytest.mark.parametrize("columns", range(20, 201, 20))
@pytest.mark.parametrize("kind", HOSTILE_TEXTS)
def test_it_fits_whatever_the_names_are_and_steers_no_terminal(columns: int, kind: str) -> None:
    hostile = HOSTILE_TEXTS[kind]
    worker = WorkerProgress("gw0", "generating", f"hf:final{hostile}", hostile or "统计统计统计")
    loading = WorkerProgress("gw1", "loading", f"hf:{hostile}", "", 12)
    line = progress_line(run_of(worker, loading, engines=(EngineProgress(f"hf:final{hostile}", 3, 9, 2, 10, 3.0),)), columns)
    assert cell_len(line) <= columns
    assert line == terminal_text(line, 1000)


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (run_of(WorkerProgress("main", "loading", "hf:final", "", 12), left_s=None), "loading hf:final … 12 s, 60/240 tests, 3 not passed"),
        (
            run_of(GENERATING, WorkerProgress("gw1", "loading", "hf:next", "", 75)),
            "loading hf:next … 1 min 15 s, stage_a on hf:final (2 of 2): 31/120 answers",
        ),
        (
            run_of(GENERATING, WorkerProgress("gw1", "generating", "hf:final", "dense"), WorkerProgress("gw2", "dead")),
            "2 evals on hf:final (2 of 2): 31/120 answers",
        ),
        (
            run_of(GENERATING, engines=(EngineProgress("hf:final", 0, 120, 16, 0, None),), left_s=None),
            "stage_a on hf:final: 0/120 answers, 16 in flight, no token yet, 60/240 tests",
        ),
        (
            run_of(GENERATING, engines=(EngineProgress("hf:final", 8, 120, 16, 900, 31.0, is_told=False),)),
            "stage_a on hf:final: 8/120 answers, 16 in flight, 31 tokens/s in finished answers",
        ),
        (run_of(WorkerProgress("main", "testing", "hf:final", "stage_a"), left_s=None), "running tests, 60/240 tests"),
        (run_of(left_s=None, engines=()), "starting, 60/240 tests"),
        (run_of(WorkerProgress("main"), num_tests_done=240, left_s=None), "closing engines, judging gates, writing reports, 240/240 tests"),
    ],
)
def test_it_says_what_goes_on(progress: RunProgress, expected: str) -> None:
    assert progress_line(progress).startswith(f"evalharness: {expected}")


def test_many_engines_at_work_are_told_together() -> None:
    engines = tuple(EngineProgress(f"hf:step-{step}", 10, 50, 8, 900, 20.0) for step in range(8))
    workers = tuple(WorkerProgress(f"gw{step}", "generating", engine.id, "stage_a") for step, engine in enumerate(engines))
    line = progress_line(run_of(*workers, engines=engines))
    assert line.startswith("evalharness: 8 engines, 80/400 answers, 64 in flight, 160 tokens/s, ")


def test_a_page_has_a_line_per_engine_and_worker() -> None:
    loading = WorkerProgress("gw1", "loading", "hf:next", "", 75)
    assert progress_page(run_of(WorkerProgress("gw0", "generating", "hf:final", "stage_a"), loading)) == [
        "  60 of 240 tests, 3 not passed, running for 1 min 30 s, about 3 min 10 s left",
        "  hf:early  120/120 answers",
        "  hf:final  31/120 answers, 16 in flight, 38 tokens/s",
        "  gw0  generates stage_a on hf:final",
        "  gw1  loading hf:next … 1 min 15 s",
    ]


def test_times_and_rates_are_told_as_exactly_as_they_are_known() -> None:
    assert [left_text(each) for each in (0.2, 33, 58, 118, 187, 1000, 5000)] == [
        "5 s", "35 s", "1 min", "2 min", "3 min 10 s", "17 min", "1 h 25 min",
    ]  # fmt: skip
    assert [rate_text(each) for each in (0.0, 0.42, 9.94, 38.2, 1204.4)] == ["0", "0.4", "9.9", "38", "1,204"]
