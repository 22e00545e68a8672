"""What a shell completes: runs, engines and cases."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from evalharness.cli import group
from tests.analysis.comparison.runs import run_dir
from tests.report.runs import row
from tests.test_meta import HEAVY, run_python

ENGINES = [{"id": f"hf:{name}", "backend": "hf", "checkpoint": name} for name in ("early", "final")]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("EVALHARNESS_REPORT_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").touch()
    rows = [row(name, engine=engine["id"]) for engine in ENGINES for name in ("bbu/1", 'say "x"', "统计")]
    run_dir(tmp_path / "reports" / "nightly", rows, engines=ENGINES)
    (tmp_path / "reports" / "no-run").mkdir()
    return tmp_path


def completed(*words: str) -> list[str]:
    *before, begun = words
    return [item.value for item in ShellComplete(group, {}, "evalharness", "").get_completions(before, begun)]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        pytest.param(["show", ""], ["latest", "nightly"], id="runs"),
        pytest.param(["show", "ni"], ["nightly"], id="runs-begun"),
        pytest.param(["compare", "latest", "n"], ["nightly"], id="second-run"),
        pytest.param(["rescore", "l"], ["latest"], id="rescore"),
        pytest.param(["show", "nightly", ""], ["bbu/1", 'say "x"', "统计"], id="cases"),
        pytest.param(["show", "latest", "b"], ["bbu/1"], id="cases-of-latest"),
        pytest.param(["show", "nightly", "bbu/1", "--engine", ""], ["early", "final", "hf:early", "hf:final"], id="engines"),
        pytest.param(["show", "nowhere", ""], [], id="no-such-run"),
        pytest.param(["show", "nightly", "--engine", "f"], ["final"], id="engine-before-case"),
    ],
)
def test_names_are_completed(words: list[str], found: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert completed(*words) == found
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["no JSON text", "not UTF-8", "pipe", "link out of the run"])
def test_odd_records_of_a_stranger_complete_nothing(kind: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = root / "reports" / "nightly" / "samples.jsonl"
    whole = samples.rename(root / "elsewhere.jsonl")
    if kind == "pipe":
        os.mkfifo(samples)
    elif kind == "link out of the run":
        samples.symlink_to(whole)
    else:
        samples.write_bytes(rb'{"case_id": "\q"}' if kind == "no JSON text" else b'{"case_id": "\xff"}')
    assert completed("show", "nightly", "") == []
    assert capsys.readouterr() == ("", "")


def test_a_path_is_left_to_the_shell() -> None:
    (item,) = ShellComplete(group, {}, "evalharness", "").get_completions(["show"], "reports/ni")
    assert (item.type, item.value) == ("file", "reports/ni")


def test_every_argument_that_is_a_run_is_completed() -> None:
    for name in ("show", "report", "summary", "rescore", "merge", "export", "compare", "bless", "timeline", "rules", "open"):
        assert "nightly" in completed(name, "")


def test_it_loads_nothing_heavy() -> None:
    code = f"""
import sys, os
os.chdir({os.getcwd()!r})
from click.shell_completion import ShellComplete
from evalharness.cli import group
assert ShellComplete(group, {{}}, "evalharness", "").get_completions(["show", "latest"], "")
print(*[name for name in {(*HEAVY, "rich", "pytest", "jinja2", "numpy")!r} if name in sys.modules])"""
    assert run_python(code).splitlines()[-1] == ""
