from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from markdown_it import MarkdownIt

from evalharness.report.markdown import NUM_PROBLEM_GROUPS, markdown_report, worker_sections
from evalharness.report.score_tables import (
    NUM_SCORE_COLUMNS,
    NUM_TABLE_COLUMNS,
    NUM_TABLE_LINES,
    NUM_TABLES,
    NUM_TAG_KEYS,
    NUM_TAG_LINES,
    TABLE_COLUMNS,
    table_sections,
    write_tables_csv,
)
from evalharness.report.tables import load_tables
from tests.report.hostile import HOSTILE_TEXTS, hostile_text
from tests.report.runs import gate, generation, invalid, row, rows, write_run

PARSER = MarkdownIt("commonmark").enable("table").enable("strikethrough")
OURS = {"text", "text_special", "code_inline", "strong_open", "strong_close", "em_open", "em_close", "softbreak"}


def report_of(tmp_path: Path, samples: list[dict[str, Any]], **run: Any) -> str:
    return "\n\n".join(markdown_report(load_tables(write_run(tmp_path, samples, **run)))) + "\n"


def tables_in(report: str) -> dict[str, list[dict[str, str]]]:
    """Return every table, parsed, by the heading above it: one mapping of header to cell per line."""
    found: dict[str, list[dict[str, str]]] = {}
    heading = kind = ""
    header: list[str] = []
    cells: list[str] = []
    for token in PARSER.parse(report):
        if token.type in ("heading_open", "th_open", "td_open"):
            kind = token.type
        elif token.type == "inline" and kind:
            text = "".join(child.content for child in token.children or ())
            if kind == "heading_open":
                heading = text
            else:
                (header if kind == "th_open" else cells).append(text)
            kind = ""
        elif token.type == "thead_open":
            header = []
        elif token.type == "tr_close" and cells:
            found.setdefault(heading, []).append(dict(zip(header, cells, strict=True)))
            cells = []
    return found


def test_a_score_stands_beside_its_validity(tmp_path: Path) -> None:
    samples = [
        row("a"),
        row("b", scores={"valid": 0.0}, outcome="miss", problem="no JSON"),
        row("c", generation=generation(finish_reason="length")),
        row("d", text=""),
        invalid("e"),
        invalid("f", outcome="error"),
    ]
    (line,) = tables_in(report_of(tmp_path, samples))["stage_a · test_summary"]
    assert line == {
        "engine": "hf:tiny",
        "valid": "0.750 [0.301 … 0.954] n=4",
        "cases": "6",
        "malformed": "1",
        "hit length cap": "1",
        "empty": "1",
        "invalid": "1",
        "errors": "1",
        "pass": "3",
        "miss": "1",
    }


def test_engines_stand_side_by_side_and_what_is_missing_is_a_dash(tmp_path: Path) -> None:
    (line,) = tables_in(report_of(tmp_path, rows(2, scores={"f1": 0.5})))["stage_a · test_summary"]
    assert (line["f1"], line["malformed"]) == ("0.500 n=2", "-")
    lines = tables_in(report_of(tmp_path, [row("a"), row("a", engine="vllm:tiny", scores={"f1": 0.25})]))["stage_a · test_summary"]
    assert [(line["engine"], line["valid"], line["f1"]) for line in lines] == [
        ("hf:tiny", "1.000 [0.207 … 1.000] n=1", "-"),
        ("vllm:tiny", "-", "0.250 n=1"),
    ]


def test_scores_of_gates_come_first_and_many_go_to_further_tables(tmp_path: Path) -> None:
    report = report_of(tmp_path, [row("a", scores={f"s{number}": 0.5 for number in range(NUM_SCORE_COLUMNS + 1)})])
    first, second = tables_in(report)["stage_a · test_summary"]
    assert "s0" in first
    assert f"s{NUM_SCORE_COLUMNS}" in second
    assert first["cases"] == second["cases"] == "1"
    (line,) = tables_in(report_of(tmp_path, rows(2, scores={"a": 0.5, "b": 0.5}), gates=[gate(metric="b"), gate(metric="absent")]))[
        "stage_a · test_summary"
    ]
    assert list(line)[1:3] == ["b", "a"]


def test_the_top_says_in_words_what_the_run_is_worth(tmp_path: Path) -> None:
    report = report_of(tmp_path, [row(f"c{number}", scores={"valid": 0.0}) for number in range(20)], gates=[gate(False)])
    top = report.split("## ")[0]
    assert top.startswith("# Run first\n\n**FAILED**: the gate failed.\n\n20 cases in 1 eval on 1 engine, 20 samples: 20 pass.\n")
    assert "- All 20 answers of stage_a::test_summary on hf:tiny are malformed (valid is 0): its other scores may say little.\n" in top
    report = report_of(tmp_path, [])
    assert "**EMPTY**: no case was recorded" in report
    assert "## Scores" not in report


def test_gates_show_value_threshold_and_reason(tmp_path: Path) -> None:
    silent = gate(False, value=None, n=None, reason="no case recorded 'f1'")
    first, second = tables_in(report_of(tmp_path, rows(4), gates=[gate(), silent]))["Gates"]
    assert (first["gate"], first["passed"], first["value"], first["threshold"], first["n"]) == (
        "valid >= 0.95",
        "yes",
        "1.000",
        "0.95",
        "4",
    )
    assert (second["passed"], second["value"], second["reason"]) == ("NO", "-", "no case recorded 'f1'")


def test_aggregates_and_throughput_have_their_tables(tmp_path: Path) -> None:
    speed = {"engine": "hf:tiny", "generation_s": 2.0, "num_prompt_tokens": 3000, "num_completion_tokens": 1000, "num_generations": 4}
    aggregate = {"eval": "stage_a", "engine": "hf:tiny", "metric": "macro_f1", "value": 0.81251}
    found = tables_in(report_of(tmp_path, rows(4), throughput=[speed, {"engine": "vllm:tiny"}], aggregates=[aggregate]))
    assert found["Aggregates"] == [{"eval": "stage_a", "engine": "hf:tiny", "metric": "macro_f1", "value": "0.813"}]
    assert list(found["Throughput"][0].values()) == ["hf:tiny", "-", "2.00", "4", "3,000", "1,000", "500.0", "2,000.0"]
    assert list(found["Throughput"][1].values()) == ["vllm:tiny", *["-"] * 7]
    aggregates = [{"eval": "stage_a", "test": f"test_{i}", "engine": "hf:tiny", "metric": "f1", "value": i} for i in range(2)]
    named = tables_in(report_of(tmp_path, rows(4), aggregates=aggregates))["Aggregates"]
    assert [(line["test"], line["value"]) for line in named] == [("test_0", "0.000"), ("test_1", "1.000")]
    speed = {"engine": "hf:tiny", "num_workers": 4, "generation_s": 8.0, "num_prompt_tokens": 0, "num_completion_tokens": 16}
    report = report_of(tmp_path, rows(4), throughput=[{**speed, "num_generations": 4, "num_untimed_generations": 3}])
    (line,) = tables_in(report)["Throughput"]
    assert (line["workers"], line["worker-seconds"], line["completion tokens/s per worker"]) == ("4", "8.00", "2.0")
    assert "a rate is per worker, not for the run" in report
    assert "3 generations of work units that broke left out, as their time is not known." in report


def test_tags_are_broken_down_unless_they_have_one_value(tmp_path: Path) -> None:
    samples = [row(f"{tag}-{engine}", engine=engine, tags={"domain": tag}) for engine in ("hf:tiny", "vllm:tiny") for tag in ("RRU", "BBU")]
    lines = tables_in(report_of(tmp_path, samples))["stage_a · test_summary by domain"]
    assert [(line["value"], line["engine"]) for line in lines] == [
        ("RRU", "hf:tiny"), ("RRU", "vllm:tiny"), ("BBU", "hf:tiny"), ("BBU", "vllm:tiny"),
    ]  # fmt: skip
    assert "The only value is RRU." in report_of(tmp_path, rows(3, tags={"domain": "RRU"}))


def test_long_breakdowns_are_cut_and_say_so(tmp_path: Path) -> None:
    samples = [row(f"c{number}", tags={"photo": f"p{number:03d}"}) for number in range(NUM_TAG_LINES + 5)]
    report = report_of(tmp_path, [*samples, row("z", tags={"photo": "p044"})])
    lines = tables_in(report)["stage_a · test_summary by photo"]
    assert len(lines) == NUM_TAG_LINES
    assert "p044" in [line["value"] for line in lines]
    assert "5 more values with fewer cases left out here; report.csv has them." in report
    report = report_of(tmp_path, [row("a", tags={f"key{number}": "x" for number in range(NUM_TAG_KEYS + 2)})])
    assert "2 more tag keys left out here; report.csv has them." in report
    samples = [
        row(tag, tags={"domain": tag}, scores={f"s{number}": 0.5 for number in range(NUM_SCORE_COLUMNS + 2)}) for tag in ("RRU", "BBU")
    ]
    report = report_of(tmp_path, samples)
    assert len(tables_in(report)["stage_a · test_summary by domain"]) == 2
    assert "2 more scores by tag left out here; report.csv has them." in report


def test_problems_are_grouped_by_reason_and_many_are_cut(tmp_path: Path) -> None:
    samples = [
        *(row(f"m{number}", outcome="miss", problem=f"no JSON at line {number}", text=f"sorry {number}") for number in range(5)),
        invalid("i", "photo.jpg is empty"),
        invalid("e", "CUDA error", outcome="error"),
        invalid("f", "assert 1 == 2", outcome="fail"),
    ]
    found = tables_in(report_of(tmp_path, samples))
    (miss,) = found["Misses"]
    assert (miss["count"], miss["reason"], miss["first answer"]) == ("5", "no JSON at line …; such as: no JSON at line 0", "sorry 0")
    assert miss["first cases"].count("test_summary[hf:tiny-m") == 3
    assert [found[title][0]["reason"] for title in ("Errors", "Invalid", "Failures")] == [
        "CUDA error",
        "photo.jpg is empty",
        "assert 1 == 2",
    ]
    samples = [row(f"c{number}", outcome="miss", problem=chr(97 + number) * 3) for number in range(NUM_PROBLEM_GROUPS + 2)]
    assert "2 more reasons, 2 rows, left out here; samples.csv has them." in report_of(tmp_path, samples)


def test_settings_name_what_is_no_default_and_the_command_can_be_pasted(tmp_path: Path) -> None:
    found = tables_in(
        report_of(
            tmp_path,
            rows(1),
            config={"limit": {"value": 2, "origin": "command line"}, "seed": {"value": 0, "origin": "default"}},
            engines=[
                {"id": "hf:tiny", "checkpoint_path": "models/tiny", "fingerprint": "f00", "backend": "hf", "settings": {"dtype": "float32"}}
            ],
            versions={"torch": "2.13", "vllm": "0.32"},
            git={"commit": "abc", "dirty": True},
            hardware={"cpus": 2, "gpus": []},
        )
    )
    assert found["Options"] == [{"option": "limit", "value": "2", "set by": "command line"}]
    (engine,) = found["Engines"]
    assert (engine["path"], engine["fingerprint"], engine["settings"], engine["load (s)"]) == ("models/tiny", "f00", "dtype=float32", "-")
    facts = [(line[""], line["value"]) for line in found["What ran"]]
    assert ("git", "abc with uncommitted changes") in facts
    assert ("versions", "torch 2.13, vllm 0.32") in facts
    assert ("hardware", "cpus 2, gpus none") in facts
    assert "```\npytest evals -k 'a or b'\n```" in report_of(tmp_path, rows(1), command=["pytest", "evals", "-k", "a or b"])


@pytest.mark.parametrize(
    "command",
    [["lib/pytest/__main__.py", "evals"], ["bin/pytest", "evals", "--run-id", "x"], ["pytest", "--run-id=x", "evals"]],
    ids=["module", "script", "joined"],
)
def test_the_command_is_as_one_types_it_without_the_run_id(tmp_path: Path, command: list[str]) -> None:
    assert re.search(r"^(python -m )?pytest evals$", report_of(tmp_path, rows(1), command=command), re.MULTILINE)


def hostile_run(text: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return rows and run.json in which every name and every text is `text`."""
    names: dict[str, Any] = {"eval": text, "test": text, "engine": text, "nodeid": text, "checkpoint": text, "group": text}
    made = generation(text=text, raw_text=text, fallback=text, ignored_options=[text], stop_reason=text)
    shared = {**names, "tags": {text: text, "t": text}, "problem": text, "generation": made}
    samples = [row(text, outcome=outcome, scores={text: 0.5}, **shared) for outcome in ("miss", "error", "invalid", "fail", text)]
    samples.append(row("other", **{**shared, "tags": {"t": "second", text: "second"}}))
    run: dict[str, Any] = dict.fromkeys(("run_id", "started_at", "interrupted", "python", "platform", "exit_code", "duration_s"), text)
    run["gates"] = [dict.fromkeys(gate(), text)]
    run["aggregates"] = [{"eval": text, "engine": text, "metric": text, "value": text}]
    run["tables"] = [{"eval": text, "test": text, "engine": text, "title": text, "rows": [{text: text, "n": 1}, {text: 0.5}]}]
    run["outputs"] = [{"eval": text, "engine": text, "path": text, "num_bytes": text}]
    run["throughput"] = [{"engine": text, "generation_s": text}]
    run["engines"] = [dict.fromkeys(("id", "checkpoint_path", "fingerprint", "backend", "load_s"), text) | {"settings": {text: text}}]
    run["evals"] = [{"name": text, "num_cases": 100, "tests": [text]}]
    run["config"] = {text: {"value": text, "origin": text}}
    run["versions"] = run["hardware"] = {text: text}
    run["git"] = {"commit": text}
    run["command"] = ["pytest", text]
    return samples, run


@pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS)
def test_hostile_names_and_texts_stay_text(tmp_path: Path, text: str) -> None:
    samples, run = hostile_run(text)
    report = report_of(tmp_path, samples, **run)
    report.encode("utf-8")
    tokens = PARSER.parse(report)
    kinds = {token.type for token in tokens} | {child.type for token in tokens for child in token.children or ()}
    blocks = {"heading", "paragraph", "table", "thead", "tbody", "tr", "th", "td", "bullet_list", "list_item"}
    assert kinds <= OURS | {"inline", "fence"} | {f"{block}_{end}" for block in blocks for end in ("open", "close")}
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", report)
    plain_samples, plain_run = hostile_run("plain")
    plain = PARSER.parse(report_of(tmp_path / "plain", plain_samples, **plain_run))
    assert [token.type for token in tokens if token.type.startswith("heading")] == [
        token.type for token in plain if token.type.startswith("heading")
    ]


def worker(name: str, **more: Any) -> dict[str, Any]:
    facts = {"devices": None, "num_loads": 2, "num_swaps": 1, "num_units": 3, "load_s": 12.34, "generation_s": 1234.5, "idle_share": 0.0625}
    return {"worker": name, **facts, **more}


def cells(run: dict[str, Any]) -> list[list[str]]:
    *_, table = worker_sections(run)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_each_worker_has_a_line_and_what_is_unknown_is_a_dash() -> None:
    header, _, first, second = cells({"workers": [worker("gw0", devices=["0", "1"]), worker("gw1", devices=[], idle_share=None)]})
    assert header == ["worker", "devices", "loads", "swaps", "units", "loading (s)", "generating (s)", "idle"]
    assert first == ["gw0", "0, 1", "2", "1", "3", "12.3", "1,234.5", "6.2%"]
    assert (second[1], second[-1]) == ("cpu", "-")
    assert cells({"workers": [worker("gw0"), worker("gw1")]})[2][1] == "not assigned"
    line = cells({"workers": [{"worker": "gw|0", "num_loads": "many", "num_units": True}, worker("gw1")]})[2]
    assert line[-6:] == ["-"] * 6


@pytest.mark.parametrize("run", [{}, {"workers": []}, {"workers": [worker("main")]}, {"workers": "odd"}], ids=["old", "none", "one", "odd"])
def test_without_several_workers_there_is_no_section(run: dict[str, Any]) -> None:
    assert list(worker_sections(run)) == []


def entry(lines: Any, title: str = "By category", engine: str = "hf:tiny", test: str = "test_summary") -> dict[str, Any]:
    return {"eval": "stage_a", "test": test, "engine": engine, "title": title, "rows": lines}


def markdown_of(tmp_path: Path, *entries: Any) -> str:
    return "\n\n".join(table_sections(load_tables(write_run(tmp_path, rows(1), tables=list(entries))))) + "\n"


def cells_of(tmp_path: Path, *entries: Any) -> list[dict[str, str]]:
    file = io.StringIO()
    write_tables_csv(load_tables(write_run(tmp_path, rows(1), tables=list(entries))), file)
    return list(csv.DictReader(io.StringIO(file.getvalue())))


def test_a_table_has_its_columns_in_order_and_numbers_for_people(tmp_path: Path) -> None:
    report = markdown_of(tmp_path, entry([{"category": "光纤", "f1": 0.81251, "n": 1200}, {"category": "电线", "f1": None, "n": 3}]))
    assert tables_in(report) == {
        "stage_a · test_summary · By category": [
            {"category": "光纤", "f1": "0.813", "n": "1,200"},
            {"category": "电线", "f1": "-", "n": "3"},
        ]
    }


def test_engines_stand_one_below_the_other_and_tests_apart(tmp_path: Path) -> None:
    report = markdown_of(tmp_path, entry([{"f1": 0.5}], engine="hf:a"), entry([{"f1": 0.25, "more": "x"}], engine="hf:b"))
    assert tables_in(report)["stage_a · test_summary · By category"] == [
        {"engine": "hf:a", "f1": "0.500", "more": "-"},
        {"engine": "hf:b", "f1": "0.250", "more": "x"},
    ]
    report = markdown_of(tmp_path, *(entry([{"word": "x"}, {"word": "x"}], engine=engine) for engine in ("hf:a", "hf:b")))
    (found,) = tables_in(report).values()
    assert [tuple(line.values()) for line in found] == [("hf:a", "x")] * 2 + [("hf:b", "x")] * 2
    apart = tables_in(markdown_of(tmp_path, entry([{"a": 1}]), entry([{"a": 2}], title="Other"), entry([{"a": 3}], test="test_b")))
    assert [lines[0]["a"] for lines in apart.values()] == ["1", "2", "3"]


def test_lines_of_one_name_stand_together(tmp_path: Path) -> None:
    lines = {engine: [{"category": name, "f1": number} for name in ("光纤", "电线")] for number, engine in enumerate(("hf:a", "hf:b"))}
    report = markdown_of(tmp_path, *(entry(mine, engine=engine) for engine, mine in lines.items()))
    (found,) = tables_in(report).values()
    assert list(found[0]) == ["category", "engine", "f1"]
    assert [tuple(line.values()) for line in found] == [
        ("光纤", "hf:a", "0"),
        ("光纤", "hf:b", "1"),
        ("电线", "hf:a", "0"),
        ("电线", "hf:b", "1"),
    ]


def test_long_and_many_tables_are_cut_with_a_note(tmp_path: Path) -> None:
    wide = {f"c{number}": number for number in range(NUM_TABLE_COLUMNS + 2)}
    report = markdown_of(tmp_path, entry([wide] * (NUM_TABLE_LINES + 1)))
    (lines,) = tables_in(report).values()
    assert (len(lines), len(lines[0])) == (NUM_TABLE_LINES, NUM_TABLE_COLUMNS)
    assert "1 more row and 2 more columns left out here; tables.csv has them." in report
    assert len(cells_of(tmp_path, entry([wide] * (NUM_TABLE_LINES + 1)))) == (NUM_TABLE_LINES + 1) * (NUM_TABLE_COLUMNS + 2)
    report = markdown_of(tmp_path, *(entry([{"a": 1}], title=f"T{number}") for number in range(NUM_TABLES + 3)))
    assert len(tables_in(report)) == NUM_TABLES
    assert "3 more tables left out here; tables.csv has them." in report
    assert markdown_of(tmp_path, entry([])).rstrip().endswith("No rows.")
    assert markdown_of(tmp_path) == "\n"


def test_the_csv_has_one_line_per_cell(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, entry([{"category": "光纤", "f1": 0.8125}, {"category": None}]))
    assert list(cells[0]) == TABLE_COLUMNS
    assert [(cell["row"], cell["column"], cell["value"]) for cell in cells] == [
        ("1", "category", "光纤"),
        ("1", "f1", "0.8125"),
        ("2", "category", ""),
    ]


@pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS)
def test_hostile_cells_run_nothing_in_a_spreadsheet(tmp_path: Path, text: str) -> None:
    for cell in cells_of(tmp_path, entry([{text: text}], title=text, engine=text)):
        assert not any(value.lstrip("\u200b\ufeff \t\n").startswith(("=", "+", "-", "@", "＝")) for value in cell.values())


_values = st.one_of(hostile_text, st.integers(), st.floats(), st.none(), st.lists(st.integers(), max_size=2))


@given(
    lines=st.one_of(
        st.none(), st.integers(), st.lists(st.one_of(st.integers(), st.dictionaries(hostile_text, _values, max_size=4)), max_size=4)
    ),
    title=hostile_text,
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_nothing_in_run_json_breaks_the_tables(tmp_path: Path, lines: Any, title: str) -> None:
    report = markdown_of(tmp_path, entry(lines, title=title))
    report.encode("utf-8")
    assert len(tables_in(report)) <= 1
    cells_of(tmp_path, entry(lines, title=title))
