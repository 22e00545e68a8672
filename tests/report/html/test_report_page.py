"""report.html as a file: what it holds, what it must never hold, and what happens when it cannot be made."""

from __future__ import annotations

import json
import shlex

import pytest

from evalharness.api.errors import BROKEN, RecordError
from evalharness.report.html.report_page import rerun_commands, write_report_pages
from evalharness.report.markdown import option_lines
from evalharness.report.tables import load_tables
from evalharness.report.writing import write_reports
from tests.report.runs import gate, rows, write_run


def _page(run_dir):
    return write_report_pages(load_tables(run_dir))["report.html"].read_text("utf-8")


def test_failed_gates_that_are_not_shown_at_once_are_counted_on_each_width(tmp_path):
    gates = [gate(False, eval=f"e{number}", metric=f"m{place}") for number in range(5) for place in range(number)]
    page = _page(write_run(tmp_path, rows(1), gates=gates))
    assert '<span class="on-desk">4 more failed gates</span><span class="on-phone">7 more failed gates</span>' in page
    page = _page(write_run(tmp_path, rows(1), gates=gates[:1]))
    assert "more failed gate" not in page


def test_the_same_run_gives_the_same_page_and_surplus_pages_are_removed(tmp_path):
    pages = {_page(write_run(tmp_path / name / "run", rows(3), gates=[gate()])) for name in ("one", "two")}
    assert len(pages) == 1
    write_run(tmp_path, rows(2))
    for name in ("report-2.html", "report-17.html", "report-1.html", "report-final.html"):
        (tmp_path / name).touch()
    _page(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.html")) == ["report-1.html", "report-final.html", "report.html"]


@pytest.mark.parametrize("name", ["api_key", "hub_token", "password", "client_secret", "authorization"])
def test_an_option_whose_name_says_secret_is_shown_without_its_value(name):
    run = {
        "config": {name: {"value": "hf_abc", "origin": "command line"}},
        "engines": [{"id": "hf:a", "checkpoint_path": "a", "backend": "hf"}],
    }
    assert option_lines(run) == ([(name, "…", "command line")], [])
    assert "hf_abc" not in rerun_commands(run)["hf:a"]


def test_a_case_is_asked_again_with_what_was_set_for_it_and_nothing_else():
    settings = {
        "max_new_tokens": (64, "command line"), "seed": (3, "environment EVALHARNESS_SEED"),
        "coordinates": (["a*=unit", "pixels"], "command line"), "enforce_eager": (True, "command line"),
        "trust_remote_code": (False, "command line"), "data": ("/my data", "command line"),
        "temperature": (0.5, "pyproject.toml"), "top_p": (None, "default"), "run_id": ("x", "command line"), "limit": (3, "command line"),
    }  # fmt: skip
    config = {name: {"value": value, "origin": origin} for name, (value, origin) in settings.items()}
    engine = {"id": "hf:a@bfloat16", "checkpoint_path": "/models/it's", "backend": "hf", "dtype": "bfloat16"}
    command = rerun_commands({"config": config, "engines": [engine]})["hf:a@bfloat16"]
    assert shlex.split(command) == [
        "--model", "/models/it's", "--backend", "hf", "--dtype", "bfloat16", "--max-new-tokens", "64", "--seed", "3", "--coordinates",
        "a*=unit", "--coordinates", "pixels", "--enforce-eager", "--no-trust-remote-code", "--data", "/my data",
    ]  # fmt: skip


@pytest.fixture
def broken_page(monkeypatch):
    """Make the template fail, as a fault in it would."""

    def fail(tables):
        raise KeyError("no such cell")

    monkeypatch.setattr("evalharness.report.html.overview.score_cards", fail)


def test_a_page_that_cannot_be_made_costs_no_other_report_and_is_a_problem_of_the_run(tmp_path, broken_page):
    write_run(tmp_path, rows(2), gates=[gate()])
    paths = write_reports(tmp_path)
    run = json.loads((tmp_path / "run.json").read_text())
    assert set(paths) == {"report.md", "report.csv", "samples.csv"}
    assert run["problems"] == ["report.html could not be made: KeyError: 'no such cell'"]
    assert run["exit_code"] == BROKEN
    assert "report.html could not be made" in paths["report.md"].read_text("utf-8")


def test_a_page_that_could_be_made_later_is_no_problem_any_more(tmp_path, monkeypatch):
    write_run(tmp_path, rows(2), problems=["report.html could not be made: KeyError: 1", "the disk was full"])
    write_reports(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["problems"] == ["the disk was full"]


def test_no_half_a_page_is_left_and_an_unreadable_row_is_told(tmp_path, monkeypatch):
    write_run(tmp_path, rows(2))
    monkeypatch.setattr("evalharness.report.html.report_page.case_columns", lambda *arguments: {"nan": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        write_report_pages(load_tables(tmp_path))
    assert not list(tmp_path.glob("*.html*"))
    assert not list(tmp_path.glob(".*tmp"))
    write_run(tmp_path, rows(1))
    tables = load_tables(tmp_path)
    (tmp_path / "samples.jsonl").unlink()
    (tmp_path / "samples.jsonl").mkdir()
    with pytest.raises(RecordError, match=r"samples\.jsonl cannot be read"):
        write_report_pages(tables)
