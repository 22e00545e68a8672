"""What given responses have in common is read once, and their numbers stay those of rows on their own."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from evalharness.api.options import GenerationOptions
from evalharness.api.scoring import ScoringRequest
from evalharness.engine.engine import Engine
from tests.backends.hf_models import load, prompt

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("torch_in_one_thread")]

CONTEXTS = [list(range(20, 60)), list(range(20, 50)), [7], []]
RESPONSES = [[8, 9], [8, 9, 10, 11], [8], [100], [100], [90, 91, 92]]
"""Of each context: some begin alike, one goes on where another ends, two are equal, one token alone."""


@pytest.fixture(scope="module")
def engine(hf_text_checkpoint):
    with Engine(load(hf_text_checkpoint)) as engine:
        yield engine


def asked(context, response, index=0):
    from evalharness.backends.hf.decoding import Row
    from evalharness.backends.hf.scoring import row_to_score

    one = replace(prompt(index, context), response_ids=tuple(response))
    return row_to_score(Row(one, one.token_ids))


def test_shared_numbers_are_those_of_rows_alone(engine, monkeypatch):
    requests = [ScoringRequest(context, response) for context in CONTEXTS for response in (*RESPONSES, [])]
    options, widths = GenerationOptions(entropies=True), []
    forward = engine.backend.model.forward
    list(engine.stream(requests, options))  # with the comparison of the first pack

    @functools.wraps(forward)
    def counted(*args, input_ids, **kwargs):
        widths.append(input_ids.shape)
        return forward(*args, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(engine.backend.model, "forward", counted)
    together = dict(engine.stream(requests, options))
    assert sum(rows * width for rows, width in widths) < 240  # 474 one by one
    for place, request in enumerate(requests):
        [(_, alone)] = engine.stream([request], options)
        assert together[place].logprobs == pytest.approx(alone.logprobs, abs=1e-5), request
        assert together[place].entropies == pytest.approx(alone.entropies, abs=1e-5)
        assert together[place].token_ids == alone.token_ids
        assert together[place].num_prompt_tokens == len(request.prompt)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), min_size=1, max_size=4)), max_size=8))
def test_every_path_of_a_pack_spells_its_row(pairs):
    from evalharness.backends.hf.shared_prefixes import has_values, packs_of

    rows = [row for index, pair in enumerate(pairs) if has_values(row := asked(pair[0], pair[1], index))]
    packs = packs_of(rows, 100.0)
    assert sorted(row.prompt.index for pack in packs for row in pack.rows) == [row.prompt.index for row in rows]
    for pack in packs:
        for row, path in zip(pack.rows, pack.paths, strict=True):
            node, spelt = path[-1], []
            while node >= 0:
                assert pack.depths[node] == len(row.token_ids) - 2 - len(spelt)
                spelt.append(pack.token_ids[node])
                node = pack.parents[node]
            assert tuple(reversed(spelt)) == row.token_ids[:-1]
            assert len(path) == min(len(row.prompt.response_ids), len(row.token_ids) - 1)
        assert len(set(zip(pack.parents, pack.token_ids, strict=True))) == pack.width  # nothing twice
        for node, seen in enumerate(pack.ancestors().tolist()):
            assert sum(seen) == pack.depths[node] + 1
            assert seen[node]
            assert pack.parents[node] < 0 or seen[pack.parents[node]]


def test_rows_with_little_in_common_stay_alone():
    from evalharness.backends.hf.shared_prefixes import packs_of

    rows = [asked([1, *range(10 * index, 10 * index + 9)], [5], index) for index in range(4)]  # a beginning-of-sequence token
    assert [len(pack.rows) for pack in packs_of(rows, 8.0)] == [1, 1, 1, 1]
    assert [len(pack.rows) for pack in packs_of(rows, 1e6)] == [4]


def test_a_model_that_gives_other_numbers_is_run_row_by_row(hf_text_checkpoint, monkeypatch, caplog):
    backend = load(hf_text_checkpoint)
    forward = backend.model.forward

    @functools.wraps(forward)
    def without_positions(*args, position_ids=None, **kwargs):
        return forward(*args, **kwargs)

    monkeypatch.setattr(backend.model, "forward", without_positions)
    requests = [ScoringRequest(list(range(20, 60)), response) for response in RESPONSES]
    with Engine(backend) as engine:
        together = dict(engine.stream(requests, GenerationOptions()))
        alone = [next(iter(engine.stream([request], GenerationOptions())))[1] for request in requests]
        assert "read again for each: log-probabilities in a tree of tokens differ by" in caplog.text
        assert "log-probabilities in a tree" in engine.backend.describe()["shared_prefixes"]
    assert [together[place].logprobs for place in range(6)] == [pytest.approx(one.logprobs, abs=1e-5) for one in alone]
