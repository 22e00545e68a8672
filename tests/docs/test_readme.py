"""The README's first commands, run as it says: the code is what they write, and the output is what they print."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import PAGES, ROOT, blocks
from tests.pytest_plugin.project import Project

[CODE] = [block.text for block in blocks("python") if block.page == "README.md"]
[SHOWN] = [block.text for block in blocks("text") if block.page == "README.md"]


def lines_of(output: str, root: Path) -> list[str]:
    """Return lines without what differs from run to run: folders, run ids, seconds, warnings, rulers."""
    text = re.sub(r"(, \d+ warnings?)?(, .*)? in [\d.]+s", r"\2 in 0s", output.replace(f"{root.resolve()}/", "").replace(f"{root}/", ""))
    text = re.sub(r"\d{8}-\d{6}-[0-9a-f]{6}", "RUN", text)
    return [re.sub(r"={2,}", "==", re.sub(r" {2,}\[", " [", line)) for line in text.splitlines()]


def test_the_first_commands_write_and_print_what_the_readme_shows(tmp_path: Path) -> None:
    project = Project(tmp_path / "demo")
    (project.root / "pytest.ini").unlink()
    assert project.evalharness("init")[0] == 0
    assert (project.root / "evals" / "test_capitals.py").read_text("utf-8") == CODE

    run = project.run_inline("evals", backend=None, env={"COLUMNS": "100"})

    assert run.exit_code == 0
    printed = lines_of(run.output, project.root)
    assert [line for line in lines_of(SHOWN, project.root) if line not in printed] == [], run.output


def test_the_readme_is_short_and_says_what_a_newcomer_asks() -> None:
    page = PAGES["README.md"]
    assert len(page.split()) <= 900
    (python,) = re.findall(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert f"Python {python} or newer" in page
