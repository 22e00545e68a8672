"""The scripts of docs/many_machines.md, run as they are written, with the fake backend."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pytest_plugin.project import eval_module, unwanted

PAGE = Path(__file__).parents[2] / "docs" / "many_machines.md"
_, _RAY, ARRAY, MERGE, NIGHTLY, *_ = re.findall(r"```bash\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
[CRON] = re.findall(r"^15 2,5 \* \* \*  (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
EVAL = eval_module("""
pytestmark = pytest.mark.eval(cases=lambda d: [Case(id=f"c{i}") for i in range(7)], request=ask)

@pytest.mark.gate("x >= 1")
def test_s(case, generation, score):
    score(x=1)
    if os.environ.get("BREAK") and case.id == "c4":
        os.kill(os.getpid(), 9)
""")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals" / "test_a.py").write_text(EVAL)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def run(project: Path, script: str, *arguments: str, **variables: str) -> tuple[int, str]:
    path = project / "script.sh"
    path.write_text(script)
    env = {name: value for name, value in os.environ.items() if name not in unwanted(os.environ)}
    env |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}", "MODEL": "echo", "BACKEND": "fake", **variables}
    command = ["bash", str(path), *arguments]
    done = subprocess.run(command, cwd=project, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, check=False)
    return done.returncode, done.stdout.decode("utf-8", "replace")


def run_by_cron(project: Path, **variables: str) -> tuple[int, str]:
    """Run the line of the crontab, with the variables that cron sets and no others, and return its exit code and its log."""
    (project / "nightly.sh").write_text(NIGHTLY)
    (project / "nightly.sh").chmod(0o755)
    env = {"HOME": str(project), "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh", "MODEL": "echo", "BACKEND": "fake", **variables}
    done = subprocess.run(["sh", "-c", CRON.replace("/path/to/project", str(project))], env=env, timeout=300, check=False)
    return done.returncode, (project / "nightly.log").read_text("utf-8", "replace")


def facts(project: Path, name: str) -> Any:
    return json.loads((project / "reports" / name / "run.json").read_bytes())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_job_array_of_which_one_job_was_killed_becomes_one_run(project: Path) -> None:
    jobs = [{"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_ID": str(number)} for number in (1, 2)]
    code, output = run(project, ARRAY, **jobs[0], BREAK="1")
    assert code != 0, output
    for job in jobs:
        code, output = run(project, ARRAY, **job)
        assert code == 0, output
    assert len(facts(project, "evals-7-1")["resumptions"]) == 1
    code, output = run(project, MERGE, "7")
    assert code == 0, output
    assert facts(project, "evals-7")["counts"] == {"pass": 7}
    assert facts(project, "evals-7")["gates"][0]["n"] == 7


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_night_that_broke_off_goes_on(project: Path) -> None:
    code, output = run_by_cron(project, BREAK="1")
    assert code == 10, output
    code, output = run_by_cron(project)
    assert code == 0, output
    (name,) = [path.name for path in (project / "reports").iterdir() if path.is_dir()]
    assert re.fullmatch(r"nightly-\d{4}-\d\d-\d\d", name)
    assert facts(project, name)["counts"] == {"pass": 7}
    assert len(facts(project, name)["resumptions"]) == 1
