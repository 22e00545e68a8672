"""Answers from memory and from disk: what shares a key, what is kept, what two processes and damaged files do to it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest

from evalharness.api.errors import ConfigError
from evalharness.backends.base import Completion, Prompt
from evalharness.engine.cache import ResponseCache, cache_key, is_deterministic
from tests.backends.plans import PLAN

PROMPT = Prompt(0, "a", (1, 5), 2, PLAN)
ANSWER = Completion(0, (7, 8, 2), 2, "id", logprobs=(-0.5, -0.25, -1.0), image_grids=((1, 4, 6),))
IDENTITY = {"fingerprint": "f", "backend": "hf"}


def test_what_was_put_comes_back_with_the_index_that_asks(tmp_path):
    for cache in (ResponseCache(), ResponseCache(tmp_path)):
        cache.put("k", ANSWER)
        assert cache.get("k", 5) == replace(ANSWER, index=5)
        assert cache.get("other", 5) is None
        assert (cache.counts.hits, cache.counts.misses) == (1, 1)
        cache.close()


OTHERS = {
    "text": (IDENTITY, replace(PROMPT, text="b"), []),
    "ids": (IDENTITY, replace(PROMPT, token_ids=(1, 6)), []),
    "images": (IDENTITY, PROMPT, ["h"]),
    "joined images": (IDENTITY, PROMPT, ["a|||b"]),
    "number of tokens": (IDENTITY, replace(PROMPT, plan=replace(PLAN, max_new_tokens=9)), []),
    "temperature": (IDENTITY, replace(PROMPT, plan=replace(PLAN, temperature=1.0)), []),
    "seed": (IDENTITY, replace(PROMPT, plan=replace(PLAN, seed=1)), []),
    "logprobs": (IDENTITY, replace(PROMPT, plan=replace(PLAN, logprobs=True)), []),
    "stops": (IDENTITY, replace(PROMPT, plan=replace(PLAN, stop_strings=("x",))), []),
    "extra": (IDENTITY, replace(PROMPT, plan=replace(PLAN, extra=(("top_k", 3),))), []),
    "checkpoint": ({**IDENTITY, "fingerprint": "g"}, PROMPT, []),
    "weight version": ({**IDENTITY, "weight_version": 2}, PROMPT, []),
    "backend": ({**IDENTITY, "backend": "vllm"}, PROMPT, []),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=list(OTHERS))
def test_whatever_an_answer_depends_on_is_in_its_key(other):
    assert cache_key(*other) != cache_key(IDENTITY, PROMPT, [])
    assert cache_key(*other) == cache_key(*other)
    assert cache_key(other[0], replace(other[1], index=3), other[2]) == cache_key(*other), "its place in the batch is not"


def test_a_sampled_answer_without_a_given_seed_is_not_deterministic():
    sampled = replace(PLAN, temperature=1.0, seed=12)
    assert not is_deterministic(sampled, seed_was_given=False)
    assert is_deterministic(sampled, seed_was_given=True)
    assert is_deterministic(PLAN, seed_was_given=False)


def test_the_least_recently_used_answer_is_given_up():
    cache = ResponseCache(max_entries=2)
    cache.put("A", ANSWER)
    cache.put("B", ANSWER)
    assert cache.get("A", 0)
    cache.put("C", ANSWER)
    assert [bool(cache.get(key, 0)) for key in "ABC"] == [True, False, True]


def test_the_file_is_bounded_as_well(tmp_path):
    cache = ResponseCache(tmp_path, max_entries=1, max_entries_on_disk=3)
    for number in range(10):
        cache.put(str(number), ANSWER)
    cache.close()
    [file] = tmp_path.glob("*.sqlite")
    with sqlite3.connect(file) as kept:
        assert kept.execute("SELECT count(*) FROM answers").fetchone()[0] <= 5  # what was put since the last look may be on top
    kept.close()
    assert ResponseCache(tmp_path).get("9", 0) == ANSWER


def test_answers_outlive_their_process_unless_they_are_cleared(tmp_path):
    for is_cleared in (False, True):
        cache = ResponseCache(tmp_path)
        cache.put("k", ANSWER)
        if is_cleared:
            cache.clear()
        cache.close()
        later = ResponseCache(tmp_path)
        assert later.get("k", 0) == (None if is_cleared else ANSWER)
        later.close()


_WRITER = """
import sys
from pathlib import Path
from evalharness.backends.base import Completion
from evalharness.engine.cache import ResponseCache
problems = []
cache = ResponseCache(Path(sys.argv[1]), on_notice=problems.append)
for number in range(300):
    cache.put(f"{number}", Completion(0, (number,), 1, "length"))
    assert cache.get(f"{number}", 0).token_ids == (number,)
cache.put(sys.argv[2], Completion(0, (1,), 1, "length"))
cache.close()
sys.exit("; ".join(problems) or None)
"""


def test_two_processes_may_share_a_folder(tmp_path):
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path), name], stderr=subprocess.PIPE) for name in ("a", "b")]
    assert [(writer.communicate(timeout=300)[1], writer.returncode) for writer in writers] == [(b"", 0), (b"", 0)]
    cache = ResponseCache(tmp_path)
    assert all(cache.get(f"{number}", 0).token_ids == (number,) for number in range(300))
    assert cache.get("a", 0)
    assert cache.get("b", 0)
    cache.close()


def test_a_damaged_line_is_a_miss(tmp_path):
    cache = ResponseCache(tmp_path)
    cache.put("k", ANSWER)
    cache.close()
    [file] = tmp_path.glob("*.sqlite")
    with sqlite3.connect(file) as kept:
        kept.execute("UPDATE answers SET value = ?", (json.dumps({"index": 0}),))
    kept.close()
    cache = ResponseCache(tmp_path)
    assert cache.get("k", 0) is None
    cache.close()


def test_a_file_that_is_no_cache_or_a_cache_without_room_is_refused(tmp_path):
    (tmp_path / "answers-2.sqlite").write_bytes(b"x" * 8192)
    with pytest.raises(ConfigError, match="cannot be used: file is not a database; choose another folder"):
        ResponseCache(tmp_path)
    with pytest.raises(ConfigError, match="cannot be used"):
        ResponseCache(tmp_path / "answers-2.sqlite" / "cache")
    with pytest.raises(ConfigError, match="at least 1 answer, got 0 in memory"):
        ResponseCache(max_entries=0)


def test_a_file_that_breaks_on_the_way_costs_hits_only(tmp_path):
    notices: list[str] = []
    cache = ResponseCache(tmp_path, on_notice=notices.append)
    cache.put("k", ANSWER)
    [file] = tmp_path.glob("*.sqlite")
    with sqlite3.connect(file) as kept:
        kept.execute("DROP TABLE answers")
    kept.close()
    assert cache.get("k", 0) == ANSWER
    assert cache.get("other", 0) is None
    assert cache.get("another", 0) is None
    assert len(notices) == 1
    assert "not used from here on" in notices[0]
