from __future__ import annotations

import pytest

from tests.pytest_plugin.project import HEADER, MARK, Project

pytestmark = pytest.mark.slow

INTERRUPTED_END = """
from evalharness.pytest_plugin import finish

def interrupted(*arguments, **more):
    raise KeyboardInterrupt

finish.write_rows = interrupted
"""


def test_ctrl_c_while_the_end_is_written_says_where_the_results_are(project: Project) -> None:
    run = project.write(conftest=INTERRUPTED_END, test_a=MARK + "def test_s(case, generation): pass\n").run(apart=True)
    assert run.exit_code == pytest.ExitCode.INTERRUPTED
    assert (
        "no report: interrupted while the end of the run was written; the results are safe in the journal: evalharness report" in run.output
    )
    assert "Traceback" not in run.output


WARNING_LOADER = """
import warnings

def load(data_dir):
    warnings.warn("g7 has no photos, left out")
    return cases(data_dir)

pytestmark = pytest.mark.eval(cases=load, request=ask)
"""


@pytest.mark.parametrize("mode", ["no-xdist", "n2"])
def test_what_a_loader_warns_of_is_in_run_json_and_report_md(project: Project, mode: str) -> None:
    run = project.write(test_a=HEADER + WARNING_LOADER + "def test_s(case, generation): pass\n").run(mode=mode)
    assert run.facts["evals"][0]["notices"] == ["g7 has no photos, left out"]
    assert "a: g7 has no photos, left out" in (run.run_dir / "report.md").read_text("utf-8")
    assert "UserWarning: g7 has no photos, left out" in run.output
