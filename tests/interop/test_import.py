"""Samples of lm-eval, lmms-eval and Inspect as runs: their numbers, case by case, and what works on them."""

from __future__ import annotations

import contextlib
import json
import math
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.comparison.compare import compare
from evalharness.analysis.comparison.sides import read_side
from evalharness.api.errors import ConfigError, RecordError
from evalharness.cli import main
from evalharness.interop.inspect_log import _read, read_inspect
from evalharness.interop.lm_eval import read_lm_eval
from evalharness.runs.run_file import read_run, read_samples
from tests.interop.samples import DATE, chosen, generated, inspect_log, inspect_sample, write_lm_eval

GSM = [generated(number, name, float(number % 3 == at)) for at, name in enumerate(("strict", "flexible")) for number in range(6)]
ARC = [chosen(0, (-1.0, -2.0, float("-inf")), 0), chosen(1, (-1.5, -2.0, -0.5), 0)]
RESULTS = {
    "results": {
        "gsm": {"exact_match,strict": 2 / 6, "exact_match,flexible": 2 / 6},
        "arc": {"acc,none": 0.5, "word_perplexity,none": 5.75},
    },
    "higher_is_better": {"arc": {"acc": True, "word_perplexity": False}},
}


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "reports"


def run_import(*arguments: object, code: int = 0, run_id: str = "mine") -> Path:
    assert main(["import", *map(str, arguments), "--run-id", run_id]) == code
    return Path("reports") / run_id


def test_lm_evals_numbers_are_kept_case_by_case(reports: Path) -> None:
    run_dir = run_import("lm-eval", write_lm_eval(Path("out"), {"gsm": GSM, "arc": ARC}, **RESULTS), "--tag", "kind")
    rows = {(row["eval"], row["case_id"]): row for row in read_samples(run_dir)}
    assert len(rows) == 8
    first, second = rows["gsm", "0"], rows["arc", "1"]
    assert first["scores"] == {"exact_match@strict": 1.0, "exact_match@flexible": 0.0}
    assert (first["outcome"], rows["gsm", "1"]["outcome"], rows["gsm", "1"]["problem"]) == ("pass", "miss", "exact_match@strict is 0")
    assert (first["tags"], first["reference"], first["prompt_sha256"]) == ({"kind": "even"}, "1", f"{0:064}")
    assert first["generation"] is not None
    assert (first["generation"]["text"], first["generation"]["prompt_text"]) == ("A: 4", "Q: 0 + 1?\nA:")
    assert first["options"]["until"] == ["\n\n"]
    assert first["details"]["filtered"] == {"strict": ["4"], "flexible": ["4"]}
    assert second["generation"] is not None
    assert (second["scores"], second["generation"]["text"], second["generation"]["finish_reason"]) == ({"acc": 0.0}, " c", "scored")
    assert [choice["logprob"] for choice in second["details"]["choices"]] == [-1.5, -2.0, -0.5]
    run = read_run(run_dir)
    assert [(entry["eval"], entry["metric"], entry["value"]) for entry in run["aggregates"]] == [("arc", "word_perplexity", 5.75)]
    assert run["evals"][0]["directions"] == {"word_perplexity": "lower"}
    assert run["notices"] == [f"imported from lm-eval 0.4.13: samples_arc_{DATE}.jsonl, samples_gsm_{DATE}.jsonl"]
    assert (run_dir / "report.html").is_file()


def test_gates_compare_and_rescore_work_on_it(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_lm_eval(Path("out"), {"gsm": GSM, "arc": ARC}, **RESULTS)
    run_import("lm-eval", folder, "--gate", "acc >= 0.5", "--gate", "exact_match@strict[kind=*] >= 0.5", "--tag", "kind", code=1)
    gates = {gate["expression"]: gate for gate in read_run(reports / "mine")["gates"]}
    assert [(gate["eval"], gate["passed"]) for gate in gates.values()] == [("arc", True), ("gsm", False)]
    worse = [{**line, "exact_match": 0.0} for line in GSM]
    other = write_lm_eval(Path("worse"), {"gsm": worse})
    run_import("lm-eval", other, "--gate", "drop(exact_match@strict) <= 0.1", "--baseline", "reports/mine", code=1, run_id="worse")
    (drop,) = read_run(reports / "worse")["gates"]
    assert drop["value"] == pytest.approx(2 / 6)
    assert drop["n"] == 6
    comparison = compare(read_side("reports/mine"), read_side("reports/worse"))
    assert {change.metric: change.change.num_down for change in comparison.metrics}["exact_match@strict"] == 2
    marked = "import pytest\n@pytest.mark.gate('short >= 1')\n"
    Path("checks.py").write_text(f"{marked}def test_short(case, generation, score):\n    score(short=len(generation.text) < 9)\n")
    assert main(["rescore", "mine", "--tests", "checks.py", "--run-id", "again"]) == 0
    assert {row["scores"]["short"] for row in read_samples(reports / "again")} == {1.0}


def test_a_file_of_lmms_eval_is_read_too(reports: Path) -> None:
    lines = [{name: value for name, value in line.items() if name not in ("filter", "metrics")} for line in GSM[:6]]
    # As its tracker leaves them: the names of the options, and the prompt apart.
    lines = [{**line, "arguments": {"0": "until", "1": "temperature"}, "input": line["arguments"]["gen_args_0"]["arg_0"]} for line in lines]
    Path("logs").mkdir()
    path = Path("logs/20300101_100000_samples_chartqa.jsonl")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    Path("logs/20300101_100000_results.json").write_text(json.dumps({"model_name": "qwen", "results": {}}), encoding="utf-8")
    read = read_lm_eval([Path("logs")], "lmms-eval")
    assert (read.model, [task.name for task in read.tasks], read.tasks[0].samples[3].scores) == ("qwen", ["chartqa"], {"exact_match": 1.0})
    assert (read.tasks[0].samples[0].answers[0].prompt, read.tasks[0].samples[0].answers[0].text) == ("Q: 0 + 1?\nA:", "A: 4")


def test_a_perplexitys_samples_are_log_probabilities_and_predictions_alone_have_no_scores(tmp_path: Path) -> None:
    lines = [{**chosen(number, (-1.0,), 0), "metrics": ["perplexity"], "perplexity": -1.0 - number} for number in range(2)]
    results = {"lambada": {"perplexity,none": math.exp(1.5), "bypass,none": 999}}
    higher = {"lambada": {"perplexity": False}}
    read = read_lm_eval([write_lm_eval(tmp_path, {"lambada": lines}, results=results, higher_is_better=higher)], "lm-eval")
    (task,) = read.tasks
    assert [sample.scores for sample in task.samples] == [{"perplexity_logprob": -1.0}, {"perplexity_logprob": -2.0}]
    assert task.aggregates == {"perplexity": pytest.approx(math.exp(1.5))}
    assert task.directions == {"perplexity": "lower"}


LMMS = {"token_counts": [None], "doc_hash": "74234e98", "input": "What is 1?"}
"""What every line has that lmms-eval 0.7.3 wrote of a task of five pictures of our own; the lines below are cut to what differs."""


@pytest.mark.parametrize(
    ("lines", "texts", "scores"),
    [
        ([{"filtered_resps": "A", "anls": 1.0, "submission": {"id": "q1"}}], ["A"], {"anls": 1.0}),
        ([{"resps": "<think>hm</think>A", "filtered_resps": "A", "anls": 1.0}], ["<think>hm</think>A"], {"anls": 1.0}),
        ([{"filtered_resps": ["A", "B"], "token_counts": [{"output_tokens": 1}], "anls": 0.5}], ["A", "B"], {"anls": 0.5}),
        ([{"filtered_resps": "A 1", "anls": 0.0}, {"filtered_resps": "1", "anls": 1.0}], ["A 1"], {"anls@first": 0.0, "anls@digits": 1.0}),
        ([{"filtered_resps": "A", "mme_score": {"category": "count", "score": 1.0}}], ["A"], {"mme_score": 1.0}),
    ],
    ids=["unfiltered", "thinking", "rounds", "two filters", "an object with the score"],
)
def test_what_lmms_evals_tracker_leaves_out_is_understood(
    tmp_path: Path, lines: list[dict[str, Any]], texts: list[str], scores: dict[str, float]
) -> None:
    path = tmp_path / "20301130_093523_samples_tiny.jsonl"
    path.write_text("".join(json.dumps({"doc_id": 1, "target": "1", **LMMS, **line}) + "\n" for line in lines), encoding="utf-8")
    filters = {"filter_list": [{"name": "first"}, {"name": "digits"}]} if len(lines) > 1 else {}
    numbers = {"anls_stderr,none": 0.2, "anls_stderr_clt,none": 0.2, "anls_stderr_clustered,none": 0.2, "submission,none": 0.25}
    results = {"results": {"tiny": numbers}, "configs": {"tiny": filters}, "config": {"model": "dummy"}, "model_name": ""}
    (tmp_path / "20301130_093523_results.json").write_text(json.dumps(results), encoding="utf-8")
    read = read_lm_eval([tmp_path], "lmms-eval")
    (sample,) = read.tasks[0].samples
    assert (read.model, [answer.text for answer in sample.answers], sample.scores) == ("dummy", texts, scores)
    assert {answer.prompt for answer in sample.answers} == {"What is 1?"}
    assert sample.columns.get("category") == ("count" if "mme_score" in scores else None)
    assert not any("stderr" in name for name in read.tasks[0].aggregates)
    assert [answer.num_completion_tokens for answer in sample.answers] == ([1, None] if len(texts) > 1 else [None])


def test_a_torn_last_line_is_left_out_and_any_other_named(tmp_path: Path) -> None:
    path = tmp_path / "samples_gsm.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in GSM[:2]) + '{"doc_id": 2, "doc')
    read = read_lm_eval([path], "lm-eval")
    assert [sample.id for sample in read.tasks[0].samples] == ["0", "1"]
    assert read.notices[-1].startswith("samples_gsm.jsonl is cut off: line 3 is left out")
    path.write_text((json.dumps(GSM[0]) + "\n") * 2)
    with pytest.raises(RecordError, match="line 2, is the doc_id 0 of line 1 again"):
        read_lm_eval([path], "lm-eval")
    path.write_text('{"doc_id": 2, "doc\n' + json.dumps(GSM[0]) + "\n")
    with pytest.raises(RecordError, match="samples_gsm.jsonl, line 1, is not JSON"):
        read_lm_eval([path], "lm-eval")
    path.write_text('{"text": 1}\n')
    with pytest.raises(RecordError, match="line 1, is not a sample, which is a JSON object with a doc_id; give a samples_"):
        read_lm_eval([path], "lm-eval")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--gate", "exact_mach@strict >= 1"], "no task has the metric 'exact_mach@strict'; did you mean 'exact_match@strict'? they have"),
        (["--tag", "kin"], "no sample has the column 'kin'; did you mean 'kind'? they have: gold, question, kind"),
        (["--gate", "acc[kind=*] >= 1", "--tag", "gold"], "no case has the tag 'kind'"),
        (["--gate", "acc => 1"], "did you mean '>=' in place of '=>'?"),
        (["--gate", "drop(acc) <= 0", "--baseline", "gone"], "baselines/gone.json does not exist; create it with: evalharness bless"),
    ],
)
def test_what_is_misspelt_is_refused(reports: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str) -> None:
    run_import("lm-eval", write_lm_eval(Path("out"), {"gsm": GSM, "arc": ARC}), *arguments, code=2)
    assert problem in capsys.readouterr().err
    assert not (reports / "mine").exists()


def test_ids_and_texts_are_hostile(reports: Path) -> None:
    ids = ["a::b", "a:b", "a:b~2", "b~2", "b", " b", "\x1b[2J\u202e", "x" * 500, "", "统"]
    lines = [{**generated(0, "none", 1.0, "<script>\x1b]0;\x07"), "doc_id": name} for name in ids]
    lines[1]["doc"] = {"deep": json.loads("[" * 150 + "]" * 150), "nan": float("nan")}
    run_dir = run_import("lm-eval", write_lm_eval(Path("out"), {"gsm": lines}))
    assert len({row["case_id"] for row in read_samples(run_dir)}) == len(ids)
    assert "<script>\\u001b" not in (run_dir / "report.html").read_text(encoding="utf-8")


SAMPLES = [
    inspect_sample(1, "Paris", "C"),
    inspect_sample(1, "Rome", "I", epoch=2),
    inspect_sample(2, "attachment", {"f1": 0.5, "em": True}),
    inspect_sample(3, "", "P", error={"message": "boom"}),
    inspect_sample(4, "0.25", "0.25", messages=[{"role": "user", "content": "attachment://a"}], attachments={"a": "Long?"}),
]


def write_log(path: Path, log: dict[str, Any]) -> Path:
    if path.suffix == ".json":
        path.write_text(json.dumps(log), encoding="utf-8")
        return path
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, sample in enumerate(log["samples"]):
            archive.writestr(f"samples/{number}.json", json.dumps(sample))
        archive.writestr("header.json", json.dumps({name: value for name, value in log.items() if name != "samples"}))
    return path


@pytest.mark.parametrize("suffix", [".json", ".eval"])
def test_inspects_numbers_are_kept(reports: Path, suffix: str) -> None:
    run_dir = run_import("inspect", write_log(Path(f"log{suffix}"), inspect_log(SAMPLES)), "--tag", "continent", code=10)
    rows = {row["case_id"]: row for row in read_samples(run_dir)}
    assert rows["1"]["scores"] == {"match": 0.5}
    assert [answer["text"] for answer in rows["1"]["generations"] if answer] == ["Paris", "Rome"]
    assert rows["2"]["scores"] == {"f1": 0.5, "em": 1.0}
    assert (rows["3"]["outcome"], rows["3"]["problem"], rows["3"]["scores"]) == ("error", "boom", {})
    assert rows["4"]["scores"] == {"match": 0.25}
    assert rows["4"]["generation"] is not None
    assert rows["4"]["generation"]["prompt_text"] == "Long?"
    assert rows["1"]["tags"] == {"continent": "Europe"}


def test_a_log_that_inspect_itself_compressed_is_read() -> None:
    pytest.importorskip("pyarrow")
    read = read_inspect([Path(__file__).with_name("two_and_two.eval")])
    (sample,) = read.tasks[0].samples
    assert (read.model, read.version, read.tasks[0].name) == ("mockllm/model", "0.3.285", "mc")
    assert (sample.scores, sample.answers[0].text, sample.reference) == ({"choice": 1.0}, "ANSWER: B", "B")
    assert sample.answers[0].prompt.startswith("Answer the following multiple choice question.")


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"PK\x03\x04", b'{"eval": {}}', b"[" * 100_000])
def test_what_is_no_log_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.eval").write_bytes(content)
    with pytest.raises(RecordError, match="x.eval"):
        read_inspect([tmp_path / "x.eval"])


def test_a_damaged_log_is_refused_wherever_the_damage_is(tmp_path: Path) -> None:
    whole = write_log(tmp_path / "whole.eval", inspect_log(SAMPLES)).read_bytes()
    path, draw = tmp_path / "x.eval", random.Random(0)
    for _ in range(60):
        content = bytearray(whole)
        content[draw.randrange(len(content))] ^= draw.randrange(1, 256)
        path.write_bytes(content)
        with contextlib.suppress(RecordError):
            read_inspect([path])


def test_a_log_that_unpacks_to_far_more_than_a_log_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_log(tmp_path / "x.eval", inspect_log([inspect_sample(1, "Paris", "C", events=[" " * 500_000])]))
    assert not [name for sample in _read(path)["samples"] for name in sample if name == "events"]
    monkeypatch.setattr("evalharness.interop.inspect_log._MOST_UNPACKED", 1000)
    with pytest.raises(RecordError, match=r"x.eval would unpack to 5\d\d,\d\d\d bytes, [34]\d\d times its own: it is no log"):
        read_inspect([path])


def test_a_run_goes_out_and_comes_back(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lm_eval = write_lm_eval(Path("out"), {"gsm": GSM, "arc": ARC}, **RESULTS)
    first = run_import("lm-eval", lm_eval, run_id="a")
    for tool in ("lm-eval", "inspect"):
        assert main(["export", "a", "--format", tool, "--out", tool]) == 0
        again = run_import(tool, tool, run_id=f"a-{tool}")
        before, after = ({(row["eval"], row["case_id"]): row for row in read_samples(path)} for path in (first, again))
        assert before.keys() == after.keys()
        for key, row in before.items():
            assert (row["scores"], row["outcome"]) == (after[key]["scores"], after[key]["outcome"])
            made = [(answer["text"], answer["prompt_text"]) for answer in (row["generation"], after[key]["generation"]) if answer]
            assert made[0] == made[1]
        values = [[entry["value"] for entry in read_run(path)["aggregates"]] for path in (first, again)]
        assert values[0] == values[1]
    shutil.rmtree("lm-eval")
    # A choice behind a prompt of its own keeps it, and whether one is greedy stays unknown where it was not told.
    arc = [{**line, "arguments": {f"gen_args_{n}": {"arg_0": f"Q {n}" * (n < 2), "arg_1": " a"} for n in range(3)}} for line in ARC]
    arc[0]["resps"] = [[["-1.5", "True"]], [["-inf", "None"]], [["-2.0", "False"]]]
    choices = read_lm_eval([write_lm_eval(Path("apart"), {"arc": arc})], "lm-eval").tasks[0].samples[0].details["choices"]
    assert choices[1] == {"text": " a", "logprob": "-inf", "context": "Q 1"}
    run_import("lm-eval", "apart", run_id="c")
    assert main(["export", "c", "--format", "lm-eval", "--out", "again"]) == 0
    (path,) = Path("again").rglob("samples_*.jsonl")
    line = json.loads(path.read_text().splitlines()[0])
    assert (line["arguments"], line["resps"]) == (arc[0]["arguments"], arc[0]["resps"])
    # "1" and "01", and a number beside names, are different cases; their documents must not be one.
    named = [inspect_sample(name, "Paris", value) for name, value in (("1", "C"), ("01", "I"), ("kenya", "C"), ("2", "I"))]
    run_import("inspect", write_log(Path("named.json"), inspect_log(named)), run_id="b")
    assert main(["export", "b", "--format", "lm-eval", "--out", "named"]) == 0
    rows = list(read_samples(run_import("lm-eval", "named", run_id="b-again")))
    assert [row["scores"] for row in rows] == [row["scores"] for row in read_samples(reports / "b")]
    with pytest.raises(ConfigError, match="no sample has the column"):
        from evalharness.interop.imported import check_columns

        check_columns(read_lm_eval([lm_eval], "lm-eval").tasks, ["nothing"])
