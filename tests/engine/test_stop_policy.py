"""Where a text ends and why. Run: pytest tests/engine/test_stop_policy.py"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from evalharness.api.errors import ConfigError
from evalharness.api.options import DecodeOptions, StopOptions
from evalharness.backends.base import Completion
from evalharness.backends.fake import FakeTokenizer
from evalharness.backends.stops import StopStringWatcher, trim_at_stop_id
from evalharness.engine.stop_policy import Ending, finish, resolve_stops

FAKE = FakeTokenizer()
END, PAD = FAKE.eos_token_id, FAKE.pad_token_id


def end(
    text_or_ids: str | Sequence[int],
    *,
    stop: Sequence[str] = (),
    stop_token_ids: Sequence[int] = (),
    eos: Sequence[int] = (END,),
    stopped_by: str = "length",
    tokenizer: Any = FAKE,
    **decode: bool,
) -> Ending:
    """Return the ending of a completion, given as text or ids."""
    token_ids = tokenizer.encode(text_or_ids, add_special_tokens=False) if isinstance(text_or_ids, str) else text_or_ids
    options = DecodeOptions(**decode)
    stops = resolve_stops(StopOptions(tuple(stop), tuple(stop_token_ids)), eos, tokenizer, skip_special_tokens=options.skip_special_tokens)
    return finish(Completion(0, tuple(token_ids), 1, stopped_by), stops, tokenizer, options)  # type: ignore[arg-type]


def test_a_single_token_stop_gives_its_id_and_others_stay_strings(tiny_tokenizer: Any) -> None:
    plan = resolve_stops(StopOptions(("<think>", "no such thing")), (642,), tiny_tokenizer)
    assert plan.token_ids == (642, tiny_tokenizer.convert_tokens_to_ids("<think>"))
    assert plan.strings == ("<think>", "no such thing")
    assert "no such thing" in plan.watched


def test_an_id_that_is_given_and_spelled_appears_once(tiny_tokenizer: Any) -> None:
    plan = resolve_stops(StopOptions(("<|im_end|>", "a"), (64, 5)), (642, 640), tiny_tokenizer)
    assert tiny_tokenizer.encode("a") == [64]
    assert plan.token_ids == (642, 640, 64, 5)


def test_end_of_sequence_ids_come_first_then_given_ids_then_strings() -> None:
    assert resolve_stops(StopOptions(("X",), (9, 8)), (END, 0), FAKE).token_ids == (END, 0, 9, 8, *FAKE.encode("X"))


def test_a_special_token_is_seen_by_its_id_alone_and_a_word_also_in_pieces(tiny_tokenizer: Any) -> None:
    plan = resolve_stops(StopOptions(("<|im_start|>", "a", "<think>")), (), tiny_tokenizer)
    assert plan.watched == ("a", "<think>")


@pytest.mark.parametrize("string", ["done<|im_end|>", "<|im_end|>\n", "<|im_end|><|im_end|>"])
def test_a_stop_string_around_a_special_token_is_refused(string: str) -> None:
    with pytest.raises(
        ConfigError, match=r"can never be found: it holds the special token '<\|im_end\|>', which decoding skips; stop at that"
    ):
        resolve_stops(StopOptions((string,)), (END,), FAKE)
    assert resolve_stops(StopOptions((string,)), (END,), FAKE, skip_special_tokens=False).watched == (string,)


class Odd(FakeTokenizer):
    """Knows no letters but a to z: others are unknown; encoding "!" fails; "A" is normalised to "a"."""

    def encode(self, text: str, add_special_tokens: bool = False, **_: Any) -> list[int]:
        if "!" in text:
            raise ValueError("not encodable")
        return [0 if not c.isascii() else super(Odd, self).encode(c.lower())[0] for c in text]


@pytest.mark.parametrize("string", ["!", "é", "A", "\ud800"], ids=["fails", "unknown", "normalised", "surrogate"])
def test_a_string_that_no_token_spells_gives_no_id_and_stays(string: str) -> None:
    plan = resolve_stops(StopOptions((string,)), (), Odd())
    assert plan.token_ids == ()
    assert plan.watched == (string,)


TRIM = {
    "at the end": ([5, 6, 7], [7], ((5, 6, 7), True)),
    "padding behind it": ([5, 7, 0, 0], [7, 0], ((5, 7), True)),
    "the first of several": ([5, 8, 7], [7, 8], ((5, 8), True)),
    "first of all": ([7, 5], [7], ((7,), True)),
    "id 0": ([5, 0, 6], [0], ((5, 0), True)),
    "none": ([5, 6], [7], ((5, 6), False)),
    "no stops": ([5, 6], [], ((5, 6), False)),
    "empty": ([], [7], ((), False)),
}


@pytest.mark.parametrize("token_ids, stops, expected", TRIM.values(), ids=TRIM.keys())
def test_ids_are_kept_up_to_and_including_the_first_stop(token_ids: list[int], stops: list[int], expected: Any) -> None:
    assert trim_at_stop_id(token_ids, stops) == expected


START = FAKE.encode("<|im_start|>")[0]
# What came, how it was ended, and (text, raw text, finish reason, stop reason, number of tokens).
ENDINGS: dict[str, tuple[Any, dict[str, Any], tuple[Any, ...]]] = {
    "the earliest of several": ("abcXX", {"stop": ("YY", "XX"), "stopped_by": "string"}, ("abc", "abcXX", "stop", "XX", 5)),
    "completed by the last token": ("abXX", {"stop": ("XX",)}, ("ab", "abXX", "stop", "XX", 4)),
    "before whitespace is stripped": ("\n\nab", {"stop": ("\n\n",)}, ("", "", "stop", "\n\n", 2)),
    "a special token": ([*FAKE.encode("ab"), START, *FAKE.encode("c")], {"stop": ("<|im_start|>",)},
                        ("ab", "ab<|im_start|>", "stop", "<|im_start|>", 3)),
    "special tokens on request": ([START, *FAKE.encode("ab"), END], {"skip_special_tokens": False},
                                  ("<|im_start|>ab", "<|im_start|>ab<|im_end|>", "stop", None, 4)),
    "an end token and padding": ([*FAKE.encode("\n ab \n"), END, PAD, PAD], {}, ("ab", "ab \n<|im_end|>", "stop", None, 7)),
    "an end token first": ([END, PAD], {}, ("", "<|im_end|>", "stop", None, 1)),
    "a plugin": ("abc", {"stopped_by": "plugin"}, ("abc", "abc", "stop", "plugin", 3)),
    "nothing": ([], {}, ("", "", "length", None, 0)),
}  # fmt: skip


@pytest.mark.parametrize(("came", "how", "expected"), ENDINGS.values(), ids=ENDINGS)
def test_texts_and_reason_of_an_ending(came: Any, how: dict[str, Any], expected: tuple[Any, ...]) -> None:
    ending = end(came, **how)
    assert (ending.text, ending.raw_text, ending.finish_reason, ending.stop_reason, len(ending.token_ids)) == expected


@pytest.mark.parametrize("more", ["d", "defYY", "def<|im_end|>"], ids=["a token late", "another stop", "an end token"])
@pytest.mark.parametrize("stopped_by", ["string", "length"])
def test_tokens_behind_the_one_that_completes_a_stop_string_do_not_count(more: str, stopped_by: str) -> None:
    ending = end("abcXX" + more, stop=("YY", "XX"), stopped_by=stopped_by)
    assert ending == end("abcXX", stop=("YY", "XX"), stopped_by="string")
    assert len(ending.token_ids) == 5


def test_raw_text_shows_all_of_the_token_that_completes_a_stop_string(tiny_tokenizer: Any) -> None:
    ids = tiny_tokenizer.encode("a quick fox", add_special_tokens=False)
    spelled = [tiny_tokenizer.decode(ids[:n]) for n in range(len(ids) + 1)]
    num_tokens = next(n for n, text in enumerate(spelled) if "ui" in text)
    ending = end(ids, stop=("ui",), tokenizer=tiny_tokenizer, eos=(642,))
    assert (ending.text, ending.raw_text, ending.token_ids) == ("a q", spelled[num_tokens].strip(), tuple(ids[:num_tokens]))


def test_a_stop_string_that_the_backend_saw_is_a_stop_even_if_clean_up_took_it_from_the_text() -> None:
    ending = end("a ,", stop=(" ,",), stopped_by="string", tokenizer=Cleaning(), clean_up_tokenization_spaces=True)
    assert (ending.text, ending.finish_reason) == ("a,", "stop")


class Cleaning(FakeTokenizer):
    """Cleans spaces up, as word-piece tokenizers do; transformers leaves it out for the others."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False) -> str:
        text = super().decode(token_ids, skip_special_tokens)
        return text.replace(" ,", ",").replace(" .", ".") if clean_up_tokenization_spaces else text


def test_clean_up_of_spaces_reaches_both_texts_and_is_off_by_default() -> None:
    cleaned = end("a , b .", tokenizer=Cleaning(), clean_up_tokenization_spaces=True)
    assert (cleaned.text, cleaned.raw_text) == ("a, b.", "a, b.")
    assert end("a , b .", tokenizer=Cleaning()).text == "a , b ."


@given(st.text(alphabet="abX\n", max_size=12), st.lists(st.text(alphabet="abX\n", min_size=1, max_size=3), max_size=3))
def test_text_never_holds_a_stop_string_and_is_a_part_of_the_whole(text: str, stops: list[str]) -> None:
    ending = end(text, stop=stops, strip_whitespace=False)
    assert text.startswith(ending.text)
    assert not any(stop in ending.text for stop in stops)
    assert (ending.finish_reason == "stop") == any(stop in text for stop in stops)


def first_by_find(tokenizer: Any, ids: Sequence[int], strings: Sequence[str], skip: bool) -> int | None:
    """Return after how many tokens the whole decoded text holds a string: the slow way."""
    for num_tokens in range(1, len(ids) + 1):
        text = tokenizer.decode(list(ids[:num_tokens]), skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        if any(string in text for string in strings):
            return num_tokens
    return None


def first_by_watcher(tokenizer: Any, ids: Sequence[int], strings: Sequence[str], skip: bool) -> int | None:
    watcher = StopStringWatcher(tokenizer, strings, skip)
    return next((position for position, token_id in enumerate(ids, 1) if watcher.push(token_id)), None)


@given(st.text(alphabet="abc€", max_size=30), st.lists(st.text(alphabet="abc€", min_size=1, max_size=4), min_size=1, max_size=3))
def test_character_tokens_are_watched_as_str_find_would(text: str, strings: list[str]) -> None:
    ids = FAKE.encode(text)
    assert first_by_watcher(FAKE, ids, strings, True) == first_by_find(FAKE, ids, strings, True)


@given(ids=st.lists(st.integers(0, 651), max_size=80), place=st.tuples(st.integers(0, 80), st.integers(1, 6)), skip=st.booleans())
@example(ids=[*range(188, 256)] * 2, place=(100, 3), skip=True)  # long runs of broken characters
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_tokens_are_watched_as_str_find_would(tiny_tokenizer: Any, ids: list[int], place: tuple[int, int], skip: bool) -> None:
    text = tiny_tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    string = text[place[0] : place[0] + place[1]].replace("\ufffd", "") or "zz"
    assert first_by_watcher(tiny_tokenizer, ids, [string], skip) == first_by_find(tiny_tokenizer, ids, [string], skip)


@given(text=st.text(max_size=30), cuts=st.sets(st.integers(0, 120), max_size=20), place=st.tuples(st.integers(0, 30), st.integers(1, 5)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_text_cut_into_tokens_anywhere_even_inside_a_character_is_watched(
    tiny_tokenizer: Any, text: str, cuts: set[int], place: tuple[int, int]
) -> None:
    data = text.encode("utf-8", "ignore")
    bounds = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    ids: list[int] = []
    for first, last in itertools.pairwise(bounds):
        ids += byte_ids(tiny_tokenizer, data[first:last])
    whole = tiny_tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    string = whole[place[0] : place[0] + place[1]] or "zz"
    if "\ufffd" not in string:
        assert first_by_watcher(tiny_tokenizer, ids, [string], True) == first_by_find(tiny_tokenizer, ids, [string], True)


def byte_ids(tokenizer: Any, data: bytes) -> list[int]:
    """Return the ids of these bytes, merged where they are characters and single bytes where they are not."""
    try:
        return tokenizer.encode(data.decode("utf-8"), add_special_tokens=False)
    except UnicodeDecodeError:
        return [tokenizer.convert_tokens_to_ids(BYTE_NAMES[byte]) for byte in data]


def _byte_names() -> dict[int, str]:
    """Return GPT-2's printable stand-in for each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}


BYTE_NAMES = _byte_names()


def test_a_stop_string_is_seen_although_the_token_that_completes_it_begins_another_character(tiny_tokenizer: Any) -> None:
    ids = [*tiny_tokenizer.encode("ST"), *byte_ids(tiny_tokenizer, b"OP"), *byte_ids(tiny_tokenizer, "你".encode()[:1])]
    watcher = StopStringWatcher(Joined(tiny_tokenizer, ids), ["STOP"], True)
    assert watcher.push(0)


class Joined:
    """A tokenizer with one token, id 0, that stands for many of another's."""

    def __init__(self, tokenizer: Any, ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(ids)

    def decode(self, token_ids: Sequence[int], **options: bool) -> Any:
        return self._tokenizer.decode(self._ids * len(token_ids), **options)


def test_watching_decodes_a_window_not_the_whole_text() -> None:
    longest = 0

    class Counting(FakeTokenizer):
        def decode(self, token_ids: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False) -> str:
            nonlocal longest
            longest = max(longest, len(token_ids))
            return super().decode(token_ids, skip_special_tokens)

    watcher = StopStringWatcher(Counting(), ("zz",), True)
    for token_id in [*FAKE.encode("a" * 200), *[PAD] * 200, *FAKE.encode("\ufffd" * 200)]:
        assert not watcher.push(token_id)
    assert longest <= 33
