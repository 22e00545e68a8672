"""Where texts end and why, on every backend. Run: pytest tests/contract/test_stops.py

The models are random, so each test first lets the engine speak freely, then stops it at something that it said.
"""

from __future__ import annotations

from dataclasses import replace

from evalharness.api.options import DecodeOptions, GenerationOptions, StopOptions
from evalharness.api.requests import GenerationResult
from evalharness.engine.backend_contract import FREE, TEXTS, ask, decode, generate
from evalharness.engine.engine import Engine

END = "<|im_end|>"


def test_a_stop_at_the_very_start_leaves_an_empty_text(engine: Engine, free: list[GenerationResult]) -> None:
    starts = [(text, decode(engine, answer.token_ids)[:2]) for text, answer in zip(TEXTS, free, strict=True)]
    starts = [(text, string) for text, string in starts if string.strip() == string and "\ufffd" not in string]
    assert starts
    results = generate(engine, [ask(text) for text, _ in starts], [replace(FREE, stop=StopOptions((string,))) for _, string in starts])
    for result, (_, string) in zip(results, starts, strict=True):
        assert (result.text, result.finish_reason) == ("", "stop")
        assert string in result.raw_text
        assert string not in decode(engine, result.token_ids[:-1])


def test_text_is_cut_at_a_special_token_although_it_is_skipped(engine: Engine, free: list[GenerationResult]) -> None:
    end = engine.tokenizer.encode(END, add_special_tokens=False)[0]
    places = [(asked, answer) for asked, answer in zip(TEXTS, free, strict=True) if end in answer.token_ids[1:-1]]
    assert places
    results = generate(engine, [ask(asked) for asked, _ in places], replace(FREE, stop=StopOptions((END,))))
    for (_, answer), result in zip(places, results, strict=True):
        ids = answer.token_ids[: answer.token_ids.index(end) + 1]
        assert result.token_ids == ids
        assert result.text == decode(engine, ids[:-1]).strip()
        assert result.raw_text.endswith(END)
        assert (result.finish_reason, result.stop_reason) == ("stop", END)


def test_without_stops_raw_text_keeps_the_end_token(engine: Engine) -> None:
    results = generate(engine, [ask(text) for text in TEXTS], GenerationOptions(max_new_tokens=64))
    ended = [result for result in results if result.finish_reason == "stop"]
    assert ended
    for result in ended:
        assert result.stop_reason is None
        assert result.raw_text.endswith(END)
        assert END not in result.text
        assert result.text == decode(engine, result.token_ids).strip()


def test_special_tokens_are_kept_in_text_on_request(engine: Engine) -> None:
    options = replace(FREE, decode=DecodeOptions(skip_special_tokens=False))
    results = generate(engine, [ask(text) for text in TEXTS], options)
    assert any(END in result.text for result in results)
    assert all(result.text == result.raw_text for result in results)


def test_completions_of_a_batch_are_counted_one_by_one(engine: Engine, free: list[GenerationResult]) -> None:
    ends = set(engine.backend.eos_token_ids)
    results = generate(engine, [ask(text) for text in TEXTS], replace(FREE, eos_token_id=None))
    expected = [next((i + 1 for i, token in enumerate(answer.token_ids) if token in ends), FREE.max_new_tokens) for answer in free]
    assert [result.num_completion_tokens for result in results] == expected
    assert [len(result.token_ids) for result in results] == expected
    assert len(set(expected)) > 1


def test_an_end_of_sequence_id_of_0_ends_a_text(real_engine: Engine) -> None:
    options = replace(FREE, max_new_tokens=96, temperature=2.0)
    each = [replace(options, seed=seed) for seed in range(24)]
    answer = generate(real_engine, [ask("hi")] * len(each), each)
    found = [(one, chosen) for one, chosen in zip(answer, each, strict=True) if 0 in one.token_ids[1:-1]]
    assert found
    results = generate(real_engine, [ask("hi")] * len(found), [replace(chosen, eos_token_id=0) for _, chosen in found])
    for (one, _), result in zip(found, results, strict=True):
        assert result.token_ids == one.token_ids[: one.token_ids.index(0) + 1]
        assert result.finish_reason == "stop"
