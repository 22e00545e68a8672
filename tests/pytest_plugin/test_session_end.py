from __future__ import annotations

import pytest

from tests.pytest_plugin.project import PLAIN, Project

pytestmark = pytest.mark.slow

INTERRUPTED_END = """
import os, signal, time
from evalharness.pytest_plugin import finish

def interrupted(*arguments, **more):
    {how}

finish.write_rows = interrupted
"""


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("os.kill(os.getpid(), signal.SIGINT)", id="ctrl-c"),
        pytest.param("exec('raise KeyboardInterrupt')", id="in-a-text-that-is-executed"),  # Python would end by SIGINT, though it is caught
        pytest.param("os.kill(os.getpid(), signal.SIGHUP); time.sleep(60)", id="hup"),
    ],
)
def test_an_interruption_while_the_end_is_written_says_where_the_results_are(project: Project, how: str) -> None:
    run = project.write(conftest=INTERRUPTED_END.format(how=how), test_a=PLAIN).run(apart=True)
    assert run.exit_code == pytest.ExitCode.INTERRUPTED
    safe = "interrupted while the end of the run was written; the results are safe in the journal: evalharness report"
    assert f"no report: {safe}" in run.output
    assert "Traceback" not in run.output
    assert "writing the report" not in run.output, "it is not"


TERMINATED = """
import os, pytest, signal, time

def end(): os.kill(os.getpid(), signal.SIGTERM)

def in_a_destructor():
    class Ended:
        def __del__(self): end()
    Ended()

def pytest_sessionfinish():
    if {when!r} == "other-plugins-end": end(); time.sleep(60)

def pytest_runtest_teardown(item):
    if {when!r} == "destructor" and "c1" in item.name: in_a_destructor()

def pytest_terminal_summary():
    if {when!r} == "summary": end()
"""


@pytest.mark.parametrize(("when", "exit_code"), [("other-plugins-end", 2), ("destructor", 2), ("summary", 0)])
def test_a_signal_at_an_awkward_moment_ends_the_run_as_documented_with_its_reports(project: Project, when: str, exit_code: int) -> None:
    run = project.write(conftest=TERMINATED.format(when=when), test_a=PLAIN).run(apart=True)
    assert run.exit_code == exit_code, run.output
    assert run.facts["interrupted"] == ("interrupted by SIGTERM" if exit_code else None)
    assert (run.run_dir / "report.md").exists()
    assert len(run.rows) == 4


WARNING_LOADER = """
    import warnings
    warnings.warn("g7 has no photos, left out")
    return [Case"""


@pytest.mark.parametrize("mode", ["no-xdist", "n2"])
def test_what_a_loader_warns_of_is_in_run_json_and_report_md(project: Project, mode: str) -> None:
    run = project.write(test_a=PLAIN.replace("\n    return [Case", WARNING_LOADER, 1)).run(mode=mode)
    assert run.facts["evals"][0]["notices"] == ["g7 has no photos, left out"]
    assert "a: g7 has no photos, left out" in (run.run_dir / "report.md").read_text("utf-8")
    assert "UserWarning: g7 has no photos, left out" in run.output
