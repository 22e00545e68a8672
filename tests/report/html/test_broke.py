"""What a run's page says first: failed gates and what they lead to, reasons, the worst cases, what lies behind."""

from __future__ import annotations

from evalharness.report.html.broke import failed_gates, weak_lines, weak_slices, worst_cases
from evalharness.report.html.run_before import run_before
from evalharness.report.tables import load_tables
from evalharness.report.worst import goals, worst_first
from tests.report.runs import gate, invalid, row, rows, write_run


def _tagged(mission, count, value):
    return [row(f"{mission}-{number}", tags={"mission": mission}, scores={"f1": value, "cap": 1.0 - value}) for number in range(count)]


def test_a_slice_far_behind_is_named_and_one_of_few_cases_is_not(tmp_path):
    samples = [*_tagged("good", 40, 1.0), *_tagged("bad", 20, 0.0), *_tagged("rare", 2, 0.0)]
    gates = [gate(metric="f1", expression="f1 >= 0.5"), gate(metric="cap", expression="cap <= 0.5")]
    tables = load_tables(write_run(tmp_path, samples, gates=gates))
    found = weak_slices(tables, goals(tables))
    assert [(one["name"], one["column"]) for one in found] == [("mission = bad", "f1"), ("mission = bad", "cap")]
    assert found[0]["text"] == "0.000 on 20 cases, 0.645 over all"
    assert found[0]["link"] == "#cases?eval=stage_a&engine=hf%3Atiny&tag.mission=bad"


def test_lines_far_below_their_tables_median_are_named_the_farthest_first(tmp_path):
    values = {"a": 1.0, "b": 0.95, "c": 0.9, "d": 0.5, "e": 0.0, "f": None}
    lines = [{"domain": "bbu", "category": name, "mean F1": 0.0, "F1": value} for name, value in values.items()]
    write_run(tmp_path, rows(1), tables=[{"eval": "dense", "test": "t", "engine": "hf:a", "title": "Categories", "rows": lines}])
    found = weak_lines(load_tables(tmp_path))
    assert [(one["name"], one["text"]) for one in found] == [
        ("e", "0.000, the median of 5 is 0.900"),
        ("d", "0.500, the median of 5 is 0.900"),
    ]


def _failed(metric, value, limit, **changes):
    reason = f"{value:.3f}, needs {limit.replace('>=', '≥').replace('<=', '≤')}"
    return gate(
        False, metric=metric, expression=f"{metric} {limit}", value=value, threshold=float(limit[3:]), **{"reason": reason, **changes}
    )


def test_a_failed_gate_has_its_interval_and_leads_to_the_cases_that_made_it_fail(tmp_path):
    samples = [row(f"c{n}", group=f"g{n // 2}", scores={"f1": n / 10, "chars": 10.0 * n}) for n in range(10)]
    lines = [{"category": "a", "F1": 0.9}, {"category": "lost", "F1": 0.2}]
    table = {"eval": "stage_a", "test": "test_summary", "engine": "hf:tiny", "title": "by category", "rows": lines}
    gates = [
        _failed("f1", 0.45, ">= 0.5"),
        _failed("chars", 45.0, "<= 20"),
        _failed("pass_rate", 0.1, ">= 0.9"),
        _failed("category_min_f1", 0.2, ">= 0.8"),
    ]
    gates += [_failed("length_rate", 0.5, "<= 0.1", n=7), gate(False, metric="no_regression", expression="no_regression", reason="f1 fell")]
    tables = load_tables(write_run(tmp_path, samples, gates=gates, tables=[table]))
    numbers, other = failed_gates(tables)
    place = "#cases?eval=stage_a&test=test_summary&engine=hf%3Atiny"
    assert (numbers["where"], numbers["size"]) == ("stage_a on hf:tiny", "10 cases in 5 groups")
    assert {one["metric"]: one["link"].removeprefix(place) for one in numbers["gates"]} == {
        "f1": "&score=f1%3C0.5",
        "chars": "&score=chars%3E20",
        "pass_rate": "&outcome=fail%2Cmiss",
        "category_min_f1": "&q=lost",
        "length_rate": "&flag=length_cap",
    }
    assert numbers["gates"][0]["metric"] == "length_rate"  # the farthest from its limit
    assert next(one["interval"] for one in numbers["gates"] if one["metric"] == "chars").count("–") == 1
    assert (other["gates"][0]["metric"], other["gates"][0]["reason"], other["gates"][0]["link"]) == ("no_regression", "f1 fell", place)


def test_gates_without_a_number_and_those_not_judged_are_told_once_for_each_reason(tmp_path):
    gates = [gate(False, eval=f"e{n}", value=None, reason="no case recorded 'valid'; recorded: nothing") for n in range(40)]
    stopped = "not judged: {} of 9 cases were not run (the run was interrupted)"
    gates += [gate(False, eval=f"e{n}", value=None, judged=False, reason=stopped.format(n)) for n in range(2, 5)]
    tables = load_tables(write_run(tmp_path, rows(1), gates=gates))
    failed, idle = failed_gates(tables)
    assert (failed["state"], failed["size"], idle["state"], idle["size"]) == ("failed", "40 gates", "not judged", "3 gates")
    assert failed["where"] == "e0 on hf:tiny, e1 on hf:tiny, e2 on hf:tiny and 37 more"
    assert idle["gates"][0]["reason"] == "not judged: not all cases ran"


def test_a_gate_on_slices_leads_to_those_that_fail(tmp_path):
    failed = [{"value": value, "measured": 0.2, "n": 1} for value in ("a", "")]
    one = gate(
        False, metric="f1", expression="f1[site=*] >= 0.8", value=0.2, threshold=0.8, reason="3 of 4 values of site: a 0.2, needs ≥ 0.80"
    )
    samples = [row(f"c{n}", scores={"f1": 0.2}, tags={"site": "ab"[n % 2]}) for n in range(4)]
    (group,) = failed_gates(load_tables(write_run(tmp_path, samples, gates=[{**one, "tag": "site", "failed_slices": failed}])))
    place = "#cases?eval=stage_a&test=test_summary&engine=hf%3Atiny&score=f1%3C0.8"
    assert group["gates"][0]["metric"] == "f1[site=*]"
    assert group["gates"][0]["reason"] == "3 of 4 values of site, needs ≥ 0.8:"
    assert group["gates"][0]["parts"] == [("a 0.200 (1 case)", f"{place}&tag.site=a"), ("(none) 0.200 (1 case)", place)]
    assert (group["gates"][0]["num_more"], group["size"]) == (1, "4 cases")


def test_a_failed_gate_on_all_cases_names_the_weakest_slice_unless_a_gate_on_slices_does(tmp_path):
    samples = [*_tagged("good", 40, 1.0), *_tagged("<bad>", 20, 0.0)]
    of_slices = gate(
        False, metric="f1", expression="f1[mission=*] >= 0.9", value=0.0, reason="1 of 2 values of mission: <bad> 0, needs ≥ 0.9"
    )
    of_slices = {**of_slices, "tag": "mission"}
    gates = [_failed("f1", 0.667, ">= 0.9"), _failed("cap", 0.333, "<= 0.1"), _failed("length_rate", 0.5, "<= 0.1")]
    (group,) = failed_gates(load_tables(write_run(tmp_path / "one", samples, gates=gates)))
    weakest = {one["metric"]: one["weakest"] for one in group["gates"]}
    assert weakest["f1"] == {
        "name": "mission = <bad>",
        "numbers": "0.000 (20 cases)",
        "link": "#cases?eval=stage_a&engine=hf%3Atiny&tag.mission=%3Cbad%3E",
    }
    assert (weakest["cap"]["numbers"], weakest["length_rate"]) == ("1.000 (20 cases)", None)
    (group,) = failed_gates(load_tables(write_run(tmp_path / "two", samples, gates=[gates[0], of_slices])))
    assert [one["weakest"] for one in group["gates"]] == [None, None]


def test_the_worst_cases_are_those_that_lack_most_one_of_each_reason_first(tmp_path):
    samples = [row(f"c{n}", outcome="miss", problem="too low" if n else "no JSON", scores={"f1": 0.5 - n / 100}) for n in range(4)]
    samples += [row("good", scores={"f1": 1.0}), row("low", scores={"f1": 0.1}), invalid("e", "out of memory", "error")]
    tables = load_tables(write_run(tmp_path, samples))
    order = worst_first(tables)
    assert [tables.case_ids[number] for number in order] == ["c3", "c2", "c1", "c0", "e", "low", "good"]
    worst = worst_cases(tables, order, goals(tables), {"report.html": range(2), "report-2.html": range(2, 7)})
    assert [one["case"] for one in worst] == ["c3", "c0", "c2"]  # what the machine broke is no case that went badly
    assert [one["row"] for one in worst] == [None, 0, None]
    assert worst[0]["link"] == "report-2.html#case=stage_a%3A%3Atest_summary%5Bhf%3Atiny-c3%5D"
    assert worst[0]["scores"] == "f1 0.470"


def test_lower_is_better_where_the_eval_says_so(tmp_path):
    samples = [row(f"c{n}", scores={"cer": n / 10}) for n in range(3)]
    tables = load_tables(write_run(tmp_path, samples, evals=[{"name": "stage_a", "directions": {"cer": "lower"}}]))
    assert worst_first(tables) == [2, 1, 0]


def test_the_run_before_is_the_newest_finished_one_of_the_same_cases(tmp_path):
    def run(name, day, samples, **changes):
        facts = {
            "evals": [{"name": "stage_a"}],
            "counts": {"pass": len(samples)},
            "started_at": f"2030-01-{day:02}T00:00:00",
            "run_id": name,
        }
        write_run(tmp_path / name, samples, **{**facts, **changes})
        (tmp_path / name / "report.html").touch()
        return load_tables(tmp_path / name)

    run("first", 1, rows(4))
    run("before it", 2, [row("case-0", engine="hf:older", outcome="miss"), *rows(3)[1:]])
    run("of one case", 3, rows(1))
    run("of another eval", 4, rows(4), evals=[{"name": "dense"}])
    run("killed", 5, rows(4), finished_at=None)
    tables = run("this", 6, rows(4))
    run("after", 7, rows(4))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    (tmp_path / "broken" / "report.html").touch()
    assert run_before(tables).on_page(tables, range(4)) == {
        "name": "before it",
        "folder": "../before%20it/",
        "engines": ["hf:older", "hf:tiny"],
        "rows": [(0, 1, 1), (1, 0, 1), (1, 0, 1), None],
    }
    assert run_before(load_tables(tmp_path / "first")) is None
    for odd in (b"{\n", b'{"eval":"\xff"}\n', b"[" * 100_000 + b"\n"):
        (tmp_path / "before it" / "samples.jsonl").write_bytes(odd)
        assert run_before(tables) is None, "nor is it a problem of this run"
