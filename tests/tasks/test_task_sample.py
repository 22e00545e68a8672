"""A sample of cases of every task. Run: pytest tests/tasks/test_task_sample.py"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from evalharness.api.errors import ConfigError
from evalharness.tasks import DataWarning, dense, stage_a, task_sample

ROOT = Path(__file__).parents[2] / "fixtures" / "site_photos"


def test_every_task_gives_as_many_cases_with_their_tags_and_groups() -> None:
    cases = task_sample.load_cases(ROOT, num_per_task=5)
    assert Counter(case.task for case in cases) == {"stage_a": 5, "dense": 5, "stage_b": 5}
    for case in cases:
        assert case.id == f"{ {'stage_a': 'stage-a', 'dense': 'detection', 'stage_b': 'stage-b'}[case.task] }/{case.case.id}"
        assert case.tags["task"] == case.task
        assert case.group == case.case.group
    first = cases[0]
    assert task_sample.request(first) == stage_a.request(first.case)
    assert task_sample.request(cases[5]) == dense.request(cases[5].case)


def test_the_seed_draws_and_order_stays() -> None:
    first, again, other = (task_sample.load_cases(ROOT, num_per_task=6, seed=seed) for seed in (1, 1, 2))
    assert [case.id for case in first] == [case.id for case in again] != [case.id for case in other]
    order = [case.id for case in stage_a.load_cases(ROOT)]
    places = [order.index(case.case.id) for case in first if case.task == "stage_a"]
    assert places == sorted(places)
    assert sum(case.task == "stage_a" for case in task_sample.load_cases(ROOT, num_per_task=10_000)) == len(order)


def test_a_task_without_data_is_a_warning_and_the_others_are_loaded(tmp_path: Path) -> None:
    mission = "RRU线缆"
    shutil.copytree(ROOT / mission, tmp_path / mission)
    with pytest.warns(DataWarning) as caught:
        cases = task_sample.load_cases(tmp_path, num_per_task=2)
    assert {case.task for case in cases} == {"stage_a"}
    told = [str(one.message).split(":")[0] for one in caught if "no cases of" in str(one.message)]
    assert told == ["no cases of dense", "no cases of stage_b"]
    shutil.rmtree(tmp_path / mission)
    with pytest.raises(ConfigError, match=r"no cases of any task: stage_a: .*; dense: .*; stage_b: "):
        task_sample.load_cases(tmp_path)


def test_no_id_holds_the_name_of_a_shipped_eval_which_would_select_it_too() -> None:
    names = {path.stem.removeprefix("test_") for path in (ROOT.parents[1] / "evals").glob("test_*.py")}
    assert "stage_a" in names
    assert not [case.id for case in task_sample.load_cases(ROOT, num_per_task=10_000) if any(name in case.id for name in names)]
