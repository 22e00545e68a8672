"""The README's eval, run as the page says: it prints what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.pytest_plugin.project import Project

PAGE = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
FILE = re.compile(r"^`([\w/.]+)`[^\n]*:\n```\w+\n(.*?)```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^`pytest ([^`]+)` prints:\n```text\n(.*?)```", re.MULTILINE | re.DOTALL)


def lines_of(output: str, root: Path) -> list[str]:
    """Return lines without what differs from machine to machine: folders, seconds, warnings, and how wide a terminal is."""
    text = re.sub(r"(, \d+ warnings?)?(, .*)? in [\d.]+s", r"\2 in 0s", output.replace(f"{root.resolve()}/", "").replace(f"{root}/", ""))
    return [re.sub(r"={2,}", "==", re.sub(r" {2,}\[", " [", line)) for line in text.splitlines()]


def test_the_example_prints_what_the_readme_shows(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    files = dict(FILE.findall(PAGE))
    assert set(files) == {"evals/test_capitals.py", "data/capitals.jsonl", "answers.jsonl"}
    for name, text in files.items():
        path = project.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    [(command, shown)] = COMMAND.findall(PAGE)

    run = project.run(*shlex.split(command), backend=None)

    assert run.exit_code == 1
    printed = lines_of(run.output, project.root)
    assert [line for line in lines_of(shown, project.root) if line not in printed] == [], run.output
