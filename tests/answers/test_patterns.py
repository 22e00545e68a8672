"""Patterns of users on hostile texts: bounded, and elsewhere equal to `re`."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from pathlib import Path

import pytest

from evalharness.answers.bounded import BoundedFunction, OutOfBounds
from evalharness.answers.patterns import MAX_STEPS, BoundedPattern
from evalharness.api.errors import EvalHarnessError

LONG = 40_000
"""Characters of a long answer."""


@pytest.mark.parametrize(
    "pattern",
    [
        r"#### (\-?[0-9\.\,]+)",
        r"(-?[$0-9.,]{2,})|(-?[0-9]+)",
        r"(?i)answer is \(?([A-J])\)?",
        r"\$",
        r"\.$",
        r"\\boxed\{(.*)\}",
        r"\b(yes|no)\b",
        r"(?<=is )\w+",
        r"#### (a+)+b",  # the text holds no place to begin at
        r"(?<=the best answer is )(.*)(?=.)",  # nor a place to look back to
    ],
)
def test_usual_patterns_run_at_once_on_long_texts(pattern: str) -> None:
    assert BoundedPattern(pattern).steps("the answer is 1 " * (LONG // 16)) <= MAX_STEPS


@pytest.mark.parametrize("pattern", [r"(a+)+b", r"(a|a)*b", r"(a*)*", r"a*a*a*a*b", r"(?:a?){20}b", r"(x+x+)+y", r"(.*)\1b"])
def test_patterns_with_many_ways_are_no_danger(pattern: str) -> None:
    assert BoundedPattern(pattern).steps("a" * LONG) > MAX_STEPS


@pytest.mark.parametrize(
    "pattern", [r"(?s).*#### ", r".+ is (\w+)", r"\s+$", r"([^#]*)####", r"(?m)[ \t]+$", r"^\s*(.*)", r"[\s\S]*####\s*(\S+)"]
)
def test_a_run_that_a_pattern_begins_with_is_tried_once(pattern: str) -> None:
    bounded = BoundedPattern(pattern)
    for text in ("a" * LONG, " " * LONG + "x", "a #### is b\n" + "a\n" * LONG):
        assert bounded.steps(text) <= MAX_STEPS
        bounded.replace(text)


def test_searches_run_by_run_find_what_re_finds() -> None:
    draw = random.Random(3)
    begins = [".*", ".+?", "a*", "[ab]+", "[^b]*?", r"\s*", "(.*)", "(?:a+)", "((.+))", "(a*b)", r"(?P<x>\w{2,})", "b{3,}?"]
    ends = ["a", ".", r"\n", "[^a]", "(a|b)", "b*", "c+", "(?=b)", "(?<=a)", "$", r"\b", "(?<!b)", "^"]
    for _ in range(600):
        pattern = draw.choice(["", "(?s)", "(?i)", "(?m)"]) + draw.choice(begins) + "".join(draw.choices(ends, k=draw.randint(1, 4)))
        bounded, compiled = BoundedPattern(pattern), re.compile(pattern)
        text, count, new = "".join(draw.choices("aab bc\nA", k=24)), draw.choice([0, 1, 2]), draw.choice(["", "X", r"<\g<0>>"])
        if bounded.runs is not None:
            assert bounded.runs.find_all(compiled, text) == compiled.findall(text), (pattern, text)
            assert bounded.runs.replace_all(compiled, text, new, count, None) == compiled.sub(new, text, count), (pattern, text)
    assert BoundedPattern("a+b").runs is not None
    assert [BoundedPattern(each).runs for each in (r"(.*)\1b", ".*", "a{0,9}b", "(?i:a+)b", "ba+")] == [None] * 5


def test_a_search_that_would_never_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = BoundedFunction("evalharness.answers.patterns:run_pattern", limit_s=0.2)
    monkeypatch.setattr("evalharness.answers.patterns._elsewhere", bounded)
    pattern = BoundedPattern("(a+)+b")
    with pytest.raises(
        EvalHarnessError, match=r"the pattern '\(a\+\)\+b' was given up on a text of 60 characters: it took more than 0.2 s"
    ):
        pattern.matches("a" * 60)
    text = "caab" * 1000
    assert pattern.matches(text) == re.findall("(a+)+b", text)  # the next call has a process of its own
    assert BoundedPattern(r"(a+)+(b)").matches(text) == re.findall("(a+)+(b)", text)
    assert BoundedPattern("(a+)+").replace(text) == re.sub("(a+)+", "", text)
    assert BoundedPattern("(a+)+b").replace(text, r"<\1>", 2) == re.sub("(a+)+b", r"<\1>", text, count=2)
    assert BoundedPattern("(a+)+b").replace(text, "", 0, 9) == re.sub("(a+)+b", "", text)
    with pytest.raises(EvalHarnessError, match="is replaced by more than 9 characters"):
        BoundedPattern("(a+)+b").replace(text, "x", 0, 9)


def loop() -> None:
    while True:
        pass


def print_and_return(value: object) -> object:
    print("noise")
    return value


def use_memory() -> int:
    return len(bytearray(64 << 30))


def test_a_bounded_function_may_be_called_by_any_thread_and_leaves_signals_alone() -> None:
    function = BoundedFunction(f"{__name__}:print_and_return", limit_s=5)
    before = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0
    replies: list[object] = []
    threads = [threading.Thread(target=lambda place=place: replies.append(function([place, "é\ud800"]))) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(replies, key=str) == [[place, "é\ud800"] for place in range(4)]
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0) == before


def test_a_bounded_function_ends_with_its_bounds() -> None:
    with pytest.raises(OutOfBounds, match="more than 0.2 s of processor time"):
        BoundedFunction(f"{__name__}:loop", limit_s=0.2)()
    with pytest.raises(OutOfBounds, match="more than 4 GiB of memory"):
        BoundedFunction(f"{__name__}:use_memory", limit_s=5)()
    with pytest.raises(EvalHarnessError, match="ModuleNotFoundError: No module named 'absent'"):
        BoundedFunction("absent:it", limit_s=5)()


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave() -> None:
    os._exit(3)


def test_a_process_that_breaks_is_told_from_one_that_took_too_much() -> None:
    with pytest.raises(OutOfBounds, match=r"its process down \(signal 11\)"):
        BoundedFunction(f"{__name__}:crash", limit_s=5)()
    with pytest.raises(EvalHarnessError, match="ended with code 3 before it answered"):
        BoundedFunction(f"{__name__}:leave", limit_s=5)()


def test_the_working_folder_is_not_imported_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('code of a stranger')\n")
    monkeypatch.chdir(tmp_path)
    assert BoundedFunction(f"{__name__}:print_and_return", limit_s=5)(1) == 1
