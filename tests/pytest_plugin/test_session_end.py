from __future__ import annotations

import pytest

from tests.pytest_plugin.project import PLAIN, Project

pytestmark = pytest.mark.slow

INTERRUPTED_END = """
from evalharness.pytest_plugin import finish

def interrupted(*arguments, **more):
    raise KeyboardInterrupt

finish.write_rows = interrupted
"""


def test_ctrl_c_while_the_end_is_written_says_where_the_results_are(project: Project) -> None:
    run = project.write(conftest=INTERRUPTED_END, test_a=PLAIN).run(apart=True)
    assert run.exit_code == pytest.ExitCode.INTERRUPTED
    safe = "interrupted while the end of the run was written; the results are safe in the journal: evalharness report"
    assert f"no report: {safe}" in run.output
    assert "Traceback" not in run.output


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
