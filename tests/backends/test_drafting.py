"""Drafts on simulated models: no draft changes an answer, whatever it says, and the counts are right."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, strategies as st

from evalharness.backends.drafting import AnswersSoFar, Drafter, Pace

PROMPT = (7, 8, 9, 10)
STOP = 0


def decoded(
    drafter: Drafter, name: str, answer: Sequence[int], draft: Sequence[int], cut: Callable[[int], int] = lambda num: num
) -> list[int]:
    """Return what an engine makes whose model would make `answer`; `cut`: how many tokens of a draft it checks."""
    drafter.begin(name, PROMPT, draft, frozenset({STOP}))
    made: list[int] = []
    drafted: list[int] = []
    while len(made) < len(answer):
        checked = drafted[: cut(len(drafted))]
        num = 0
        while num < len(checked) and checked[num] == answer[len(made) + num]:
            num += 1
        new = list(answer[len(made) : len(made) + num + 1])
        made += new
        drafter.take(name, new)
        drafted = drafter.draft(name, len(answer) - len(made) - 1)
        assert len(drafted) <= max(0, len(answer) - len(made) - 1)
    drafter.end(name)
    return made


IDS = st.lists(st.integers(1, 12), min_size=1, max_size=60)


@given(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=6), st.integers(1, 16), st.randoms(use_true_random=False))
def test_no_draft_changes_an_answer_and_the_counts_are_right(
    pairs: list[tuple[list[int], list[int]]], longest: int, draw: random.Random
) -> None:
    drafter = Drafter(longest)
    for number, (answer, draft) in enumerate(pairs):
        given_draft = draw.choice([draft, answer, answer[len(answer) // 2 :], array("i", answer[1:] + draft)])
        assert decoded(drafter, str(number), answer, given_draft, lambda num: draw.randint(0, num)) == answer
    counts = drafter.counts
    assert counts.num_tokens == sum(len(answer) for answer, _ in pairs)
    assert counts.num_tokens == counts.num_row_steps + counts.num_taken
    assert counts.num_taken <= counts.num_drafted
    assert (counts.num_answers, counts.num_found) == (len(pairs), len(pairs))


def text(num: int, seed: int, vocabulary: int = 600) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(1, vocabulary) for _ in range(num)]


def tokens_a_step(answers: Sequence[Sequence[int]], drafts: Sequence[Sequence[int]]) -> float:
    drafter = Drafter(16)
    for number, (answer, draft) in enumerate(zip(answers, drafts, strict=True)):
        assert decoded(drafter, str(number), answer, draft) == answer
    return drafter.counts.num_tokens / drafter.counts.num_row_steps


ANSWERS = [text(300, seed) for seed in range(12)]


def test_a_right_draft_is_followed_to_its_end() -> None:
    assert tokens_a_step(ANSWERS, ANSWERS) > 14


@pytest.mark.parametrize(
    "change",
    [
        lambda ids: [*ids[:100], 601, *ids[101:200], 602, *ids[201:]],
        lambda ids: [*ids[:100], *ids[103:200], *ids[201:]],
        lambda ids: [*ids[:100], 601, 602, 603, *ids[100:200], 604, *ids[200:]],
    ],
    ids=["replaced", "left-out", "put-in"],
)
def test_a_draft_is_followed_again_after_a_difference(change: Callable[[list[int]], list[int]]) -> None:
    assert tokens_a_step(ANSWERS, [change(answer) for answer in ANSWERS]) > 9


def test_a_hostile_draft_is_soon_left_alone() -> None:
    drafter = Drafter(16)
    for seed, answer in enumerate(ANSWERS):
        decoded(drafter, str(seed), answer, text(300, 1000 + seed))
    assert drafter.counts.num_drafted < 0.1 * drafter.counts.num_tokens


def test_an_answer_that_changes_half_way_costs_little() -> None:
    drafter = Drafter(16)
    for seed, answer in enumerate(ANSWERS):
        decoded(drafter, str(seed), answer, [*answer[:150], *text(150, 1000 + seed)])
    counts = drafter.counts
    assert counts.num_taken > 0.4 * counts.num_tokens
    assert counts.num_drafted - counts.num_taken < 0.25 * counts.num_tokens


def test_repeating_answers_are_drafted_from_each_other() -> None:
    draw = random.Random(3)
    line = lambda: [1, 2, 3, draw.randrange(20, 40), 5, 6, draw.randrange(40, 60), 7, 8, 9, 11, 12, 13]  # noqa: E731
    answers = [[token for _ in range(20) for token in line()] for _ in range(12)]
    assert tokens_a_step(answers, [[]] * 12) > 2.0


def test_nothing_is_drafted_behind_the_end() -> None:
    drafter = Drafter(16)
    drafter.begin("a", PROMPT, [5, 6, STOP, 7, 8], frozenset({STOP}))
    drafter.take("a", [5, 6, STOP])
    assert drafter.draft("a", 100) == []


def test_no_draft_goes_on_into_the_next_answer() -> None:
    answers = AnswersSoFar()
    answers.add([1, 2, 3, 4, 5])
    answers.add([6, 7, 8, 9])
    tokens, place = answers.find((1, 2, 3, 4)) or ([], 0)
    assert list(tokens[place : place + 2]) == [5, -1]
    drafter = Drafter(16)
    decoded(drafter, "a", [1, 2, 3, 4, 5], [])
    decoded(drafter, "b", [60, 70, 80], [])
    drafter.begin("c", (0, 0, 0, 0), [])
    drafter.take("c", [1, 2, 3, 4])
    assert drafter.draft("c", 100) == [5]


def test_the_oldest_answers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalharness.backends.drafting._MAX_REMEMBERED", 10)
    answers = AnswersSoFar()
    for first in (0, 100, 200):
        answers.add(range(first, first + 10))
    assert answers.find((0, 1, 2, 3)) is None
    assert answers.find((200, 201, 202, 203)) is not None


def paced(step_s: Callable[[bool], float], tokens: float, num_steps: int = 600) -> tuple[Pace, list[bool]]:
    """Return a pace behind steps of so many seconds with drafts and without, and which steps had some; a row gains `tokens` with them."""
    pace, asked = Pace(), []
    for _ in range(num_steps):
        drafted = pace.wants_drafts()
        asked.append(drafted)
        pace.note(10, int(10 * tokens) if drafted else 10, step_s(drafted), 80 if drafted else 0)
    return pace, asked


def test_drafts_that_pay_stay_and_the_seconds_saved_are_right() -> None:
    pace, asked = paced(lambda drafted: 0.03 if drafted else 0.02, tokens=4)
    assert sum(asked) > 0.94 * len(asked)
    assert pace.gain == pytest.approx(4 * 0.02 / 0.03)
    assert pace.saved_s == pytest.approx(sum(asked) * (4 * 0.02 - 0.03), rel=0.05)
    assert pace.lost_s == 0
    assert pace.worth == 0.1  # eight tokens cost half a step


@pytest.mark.parametrize(("drafted_s", "worth"), [(0.021, 0.1), (0.06, 0.25), (0.1, 0.5), (0.9, 0.9)])
def test_a_token_is_worth_drafting_by_what_it_costs(drafted_s: float, worth: float) -> None:
    pace, _ = paced(lambda drafted: drafted_s if drafted else 0.02, tokens=100)
    assert pace.worth == pytest.approx(worth)


def test_drafts_that_cost_time_are_stopped_and_tried_again_later() -> None:
    pace, asked = paced(lambda drafted: 0.05 if drafted else 0.02, tokens=2)
    assert 0 < sum(asked[200:]) < 0.3 * len(asked[200:])
    assert pace.lost_s > 0


def test_a_machines_hiccups_do_not_stop_drafts() -> None:
    draw = random.Random(0)
    _, asked = paced(lambda drafted: (0.03 if drafted else 0.02) * (20 if draw.random() < 0.15 else 1), tokens=4)
    assert sum(asked) > 0.9 * len(asked)
