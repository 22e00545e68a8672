"""The choice of rows at once, on a simulated engine with a clock of its own and on a real one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from evalharness.api.remembered import remember
from evalharness.backends.base import Prompt
from evalharness.backends.vllm import tuning
from evalharness.backends.vllm.tuning import RowTuner, RowTuning
from tests.backends.vllm_models import chat, completions, plan, prompt_of

if TYPE_CHECKING:
    from evalharness.backends.vllm.backend import VllmBackend

ANSWER = 32


class Simulated:
    """An engine whose step takes as long as `step_s` says of so many rows; answers have 16 to 48 tokens."""

    def __init__(self, step_s: Callable[[int], float], seed: int = 0) -> None:
        self.clock, self._step_s, self._draw = 0.0, step_s, random.Random(seed)

    def run(self, tuner: RowTuner, num_prompts: int) -> float:
        """Answer so many prompts, told how many may be under way; return the seconds that it took."""
        began, num_left = self.clock, num_prompts
        rows: list[list[int]] = []  # tokens to make, tokens made
        while num_left or rows:
            while num_left and len(rows) < tuner.limit:
                rows.append([self._draw.randint(ANSWER // 2, ANSWER * 3 // 2), 0])
                num_left -= 1
            at_work = rows[: tuner.most]
            self.clock += self._step_s(len(at_work)) * self._draw.uniform(0.97, 1.03)
            for row in at_work:
                row[1] += 1
            done = [row for row in rows if row[0] == row[1]]
            rows = [row for row in rows if row[0] != row[1]]
            if num_left and tuner.is_measuring:
                going = sum(row[1] for row in rows)
                tuner.note(len(rows), len(done), sum(row[1] for row in done), lambda going=going: going)  # type: ignore[misc]
        return self.clock - began


def few_are_faster(num_rows: int) -> float:
    """A step beyond 512 rows takes a fifth longer: it has no CUDA graph."""
    return (0.002 + 75e-6 * num_rows) * (1.2 if num_rows > 512 else 1.0)


def many_are_faster(num_rows: int) -> float:
    return 0.03 + 45e-6 * num_rows


def alike(num_rows: int) -> float:
    return 1e-4 * num_rows


def choice(step_s: Callable[[int], float], seed: int, num_prompts: int = 20_000) -> tuple[RowTuner, float]:
    engine = Simulated(step_s, seed)
    tuner = RowTuner(1024, now=lambda: engine.clock)
    return tuner, engine.run(tuner, num_prompts)


@pytest.mark.parametrize("seed", range(3))
def test_fewer_rows_are_taken_where_they_are_clearly_faster(seed: int) -> None:
    tuner, seconds = choice(few_are_faster, seed)
    assert (tuner.how, tuner.rows) == ("measured", 512)
    assert seconds < Simulated(few_are_faster, seed).run(RowTuner(1024, how="measured"), 20_000)


@pytest.mark.parametrize("step_s", [many_are_faster, alike])
@pytest.mark.parametrize("seed", range(3))
def test_otherwise_vllms_own_number_stays_and_looking_costs_little(step_s: Callable[[int], float], seed: int) -> None:
    tuner, seconds = choice(step_s, seed)
    assert (tuner.how, tuner.rows, tuner.limit) == ("measured", 1024, 2048)
    assert seconds < 1.03 * Simulated(step_s, seed).run(RowTuner(1024, how="measured"), 20_000)  # once for a machine; later it is known


def test_too_little_work_decides_nothing_and_changes_nothing() -> None:
    tuner, seconds = choice(few_are_faster, 0, num_prompts=2000)
    assert tuner.facts() == {"rows": 1024, "default": 1024, "how": "measuring", "tokens_per_s": {}}
    assert seconds == Simulated(few_are_faster, 0).run(RowTuner(1024, how="measured"), 2000)


@pytest.mark.vllm
def test_a_choice_is_remembered_for_the_same_machine_and_lengths_alone(
    vllm_vlm_backend: VllmBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "MIN_SECONDS", 0.0)
    prompts = [
        prompt_of(vllm_vlm_backend.tokenizer, chat(f"say {index} times yes"), index, max_new_tokens=1 + index % 7) for index in range(120)
    ]
    prompts.sort(key=lambda prompt: -prompt.plan.max_new_tokens % 5)
    undisturbed = completions(vllm_vlm_backend.generate(prompts))
    monkeypatch.setattr(vllm_vlm_backend, "_tuning", first := RowTuning(8, {"device": "a"}))
    monkeypatch.setattr(vllm_vlm_backend, "_window", vllm_vlm_backend._window)  # set back at the end
    assert completions(vllm_vlm_backend.generate(prompts)) == undisturbed
    ((lengths, facts),) = first.facts().items()
    assert facts["how"] == "measured"
    assert set(facts["tokens_per_s"]) >= {"8", "4"}
    assert json.loads(json.dumps(vllm_vlm_backend.describe()))["rows_at_once"] == {lengths: facts}
    for device, how in (("a", "remembered"), ("b", "measuring")):
        again = RowTuning(8, {"device": device})
        again.begin(prompts[0])
        assert [facts["how"] for facts in again.facts().values()] == [how]
    (tmp_path / "evalharness" / "rows-at-once-1.json").write_text("[]")
    damaged = RowTuning(8, {"device": "a"})
    assert damaged.begin(prompts[0]) == 16
    assert damaged.begin(None) == 16


@pytest.mark.vllm
def test_a_machine_is_told_by_plain_json(vllm_vlm_backend: VllmBackend) -> None:
    machine = tuning.machine_of(vllm_vlm_backend._engine.config, vllm_vlm_backend._arguments, vllm_vlm_backend._versions())
    assert json.loads(json.dumps(machine, default=str))["scheduler"][0] == vllm_vlm_backend._window // 2
    assert machine["model"]["architectures"]


def asked(num_tokens: int, max_new_tokens: int = 16, **more: Any) -> Prompt:
    return Prompt(0, "", (5,) * num_tokens, num_tokens, plan(max_new_tokens=max_new_tokens), **more)


def test_each_kind_of_requests_has_a_number_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuning_ = RowTuning(64, {})
    assert tuning_.begin(asked(100)) == 128
    for following in (asked(100), asked(130), asked(20), None, asked(99), asked(900, 512), asked(900, response_ids=(5,)), asked(90)):
        assert tuning_.note(64, 1, 16, lambda: 0, following) == 128
    assert list(tuning_.facts()) == ["prompts up to 128 tokens, answers up to 16", "prompts up to 1024 tokens, answers up to 512"]


def test_an_engine_that_runs_empty_is_no_measure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "MIN_SECONDS", 0.0)
    tuning_ = RowTuning(8, {})
    tuning_.begin(asked(100))
    for _ in range(20):  # seven at most are under way: tests are waited for
        assert tuning_.note(7, 4, 64, lambda: 0, None) == 16
    ((_, facts),) = tuning_.facts().items()
    assert facts["how"] == "measuring"
    assert facts["tokens_per_s"] == {}


def test_what_a_short_run_leaves_open_the_next_one_goes_on_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "MIN_SECONDS", 0.0)
    rates = {64: 100, 32: 140, 16: 120}
    seen = []
    for _ in range(4):
        tuning_ = RowTuning(64, {})
        limit = tuning_.begin(asked(100))
        (tuner,) = tuning_._tuners.values()
        seen.append((tuner.how, tuner.rows))
        clock = [0.0]
        tuner.now = lambda clock=clock: clock[0]  # type: ignore[misc]
        for _ in range(4):  # one number is measured in each run
            clock[0] += 0.5
            if len(tuner.rates) < len(seen):
                tuning_.note(limit // 2, tuner.rows // 2, rates[tuner.rows] // 2, lambda: 0, asked(100))
    assert seen == [("measuring", 64), ("measuring", 32), ("measuring", 16), ("remembered", 32)]


@pytest.mark.parametrize("rates", [{"0": 10**9, "64": 1}, {"x": 5, "64": "fast"}, {"64": -1}, [], {"128": 9}], ids=str)
def test_a_damaged_memory_leaves_a_number_that_works(rates: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuning_ = RowTuning(64, {})
    entry = {"rows": 64, "how": "measuring", "tokens_per_s": rates}
    remember(tuning._MEMORY, {tuning_._key(tuning.lengths_of(asked(100))): entry}, 9)
    assert tuning_.begin(asked(100)) in (128, 32)
