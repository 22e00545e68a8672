"""Signs of degeneration in any generation: the form of a text, not whether it is right. Linear in the text's length.

repetition  the same long piece again and again with nothing new between; a list of similar items is not one
thinking    a block of thoughts, open or closed, left in the answer
echo        a long piece of the prompt, or a marker of the chat template
drift       hardly anything in the expected script (asked in Chinese, answered in English)
garbled     broken characters, control characters, private-use characters
empty       nothing
cap_hit     ended by the length cap
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalharness.answers.thoughts import leftover_thinking
from evalharness.api.requests import GenerationResult

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

WINDOW = 60
"""Characters of a long piece."""
MIN_REPEATS = 4
MIN_REPEATED_CHARS = 200
END_SHARE = 1 / 3
"""Share of a text that is its end."""
MIN_LETTERS = 20
MIN_EXPECTED_SHARE = 0.1
MAX_GARBLED_SHARE = 0.02
_MIN_PROMPT_SHARE = 0.2  # of a prompt's letters; templates and headers are Latin in any language

SIGNS = ("repetition", "thinking", "echo", "drift", "garbled", "empty", "cap_hit")

_TEMPLATE = re.compile(r"<\|(?:im_start|im_end|endoftext|start_header_id|eot_id)\|>|\n(?:user|assistant|system)\n")
_COUNTER = re.compile(
    r"""(?<=[^\W\d])([0-9]{1,9})(?="\s{0,8}:\s{0,8}[{\[])"""  # "object_12": {
    r"|^[ \t#*-]{0,20}(?:[^\W\d_]{1,12} )?([0-9]{1,9})(?=[.)]\s|[:：、])",  # 12. or Step 12:
    re.MULTILINE,
)
_SCAFFOLD = re.compile(r'"[A-Za-z_][A-Za-z0-9_]{0,40}"\s{0,8}:|<[/|]?[A-Za-z_]{1,20}=?[A-Za-z_]{0,20}\|?>')
"""JSON keys, header tags and special tokens (hundreds for an image): Latin in any language."""
_SCRIPTS = {"CJK": "han", "HIRAGANA": "kana", "KATAKANA": "kana", "FULLWIDTH": "latin"}
_NAMED_SCRIPTS = frozenset({"LATIN", "HANGUL", "CYRILLIC", "ARABIC", "GREEK", "DEVANAGARI", "HEBREW", "THAI"})
"""Scripts by the first word of a letter's Unicode name."""


@dataclass(frozen=True)
class Repetition:
    """A piece that recurs every `period` characters, `num_repeats` times, `num_chars` in all, from `start` on; without counters."""

    period: int
    num_repeats: int
    num_chars: int
    start: int


def find_repetition(text: str, *, cut_off: bool = False) -> Repetition | None:
    """Return the repetition in a text, None without one: pieces of `WINDOW` characters that occur `MIN_REPEATS` times or more.

    They must make up `MIN_REPEATED_CHARS` characters, or half of the text, and everything between two of them must be repeated
    as well. So equal descriptions of objects at different places are a list, however long they are; the same few objects again
    and again, in any order, are a loop. Counters in JSON keys and before items are ignored. An answer that was `cut_off` by its
    cap is also a loop where such pieces fill most of its end, even with small differences between them.
    """
    import numpy as np

    kept = _without_counters(text)
    hashes = _window_hashes(text, kept)
    if len(hashes) < MIN_REPEATS:
        return None
    order = np.argsort(hashes, kind="stable")
    is_same = hashes[order[1:]] == hashes[order[:-1]]
    starts = np.flatnonzero(np.concatenate(([True], ~is_same)))
    counts = np.diff(np.append(starts, len(order)))
    occurrences: Array = np.zeros(len(hashes), dtype=np.int64)
    occurrences[order] = np.repeat(counts, counts)
    is_repeated = occurrences >= MIN_REPEATS
    # A stretch consists of repeated places only; a stretch with a piece twice contains everything between the two.
    stretches = np.cumsum(~is_repeated)
    again = is_same & is_repeated[order[1:]] & (stretches[order[1:]] == stretches[order[:-1]])
    looping = is_repeated & np.isin(stretches, stretches[order[1:][again]])
    if not _is_long(looping, len(kept)):
        end = len(hashes) - int(len(kept) * END_SHARE)
        if not cut_off or _num_covered(is_repeated[end:]) < END_SHARE * len(kept) / 2 or not _is_long(is_repeated, len(kept)):
            return None
        again, looping = is_same & is_repeated[order[1:]], is_repeated
    places = np.flatnonzero(looping)
    periods, seen = np.unique(np.diff(order)[again], return_counts=True)
    return Repetition(int(periods[seen.argmax()]), int(occurrences[places].max()), _num_covered(looping), int(kept[places[0]]))


def _is_long(places: Array, num_chars: int) -> bool:
    """Return whether the pieces that begin at these places, bool (n,), make up enough of a text of `num_chars`."""
    return _num_covered(places) >= max(1, min(MIN_REPEATED_CHARS, max(num_chars / 2, WINDOW)))


def _num_covered(places: Array) -> int:
    """Return how many characters the pieces that begin at these places, bool (n,), cover together."""
    import numpy as np

    starts = np.flatnonzero(places)
    return int(np.minimum(np.diff(starts, append=starts[-1] + WINDOW), WINDOW).sum()) if len(starts) else 0


def _without_counters(text: str) -> Array:
    """Return the places of all characters except the digits of counters, int64 (n,)."""
    import numpy as np

    kept: Array = np.ones(len(text), dtype=bool)
    for counter in _COUNTER.finditer(text):
        kept[slice(*counter.span(counter.lastindex or 0))] = False
    return np.flatnonzero(kept)


def _window_hashes(text: str, kept: Array | None = None) -> Array:
    """Return one hash per piece of `WINDOW` of the `kept` characters (default: all), uint64 `(n - WINDOW + 1,)`; empty for less."""
    import numpy as np

    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    codes = codes if kept is None else codes[kept]
    num_windows = len(codes) - WINDOW + 1
    if num_windows <= 0:
        return np.zeros(0, dtype=np.uint64)
    hashes: Array = np.zeros(num_windows, dtype=np.uint64)
    for offset in range(WINDOW):  # wraps around at 2**64, as is fine for a hash
        hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + codes[offset : offset + num_windows]
    return hashes


def find_echo(text: str, prompt: str) -> str | None:
    """Return a marker of the chat template, or the first long piece of the prompt in a text; None without either."""
    import numpy as np

    mark = _TEMPLATE.search(text)
    if mark is not None:
        return mark[0].strip()
    known = np.isin(_window_hashes(text), _window_hashes(prompt))
    if not known.any():
        return None
    start = int(known.argmax())
    return text[start : start + WINDOW]


def script_of_letters(char: str) -> str | None:
    """Return the script of a letter, "other" for rarer scripts, None for other characters."""
    if not char.isalpha():
        return None
    if "a" <= char <= "z" or "A" <= char <= "Z":
        return "latin"
    if "\u4e00" <= char <= "\u9fff":
        return "han"
    name = unicodedata.name(char, "").partition(" ")[0]
    return _SCRIPTS.get(name) or (name.lower() if name in _NAMED_SCRIPTS else "other")


def scripts(text: str) -> Counter[str]:
    """Return the number of letters in a text by script."""
    counts: Counter[str] = Counter()
    for char, number in Counter(text).items():
        script = script_of_letters(char)
        if script is not None:
            counts[script] += number
    return counts


def expected_script(prompt: str) -> str:
    """Return the script of a prompt: the most common one besides Latin if it makes up a fifth of the letters."""
    counts = scripts(_SCAFFOLD.sub("", prompt))
    others = [(number, script) for script, number in counts.items() if script not in ("latin", "other")]
    number, script = max(others, default=(0, "latin"))
    return script if number >= _MIN_PROMPT_SHARE * max(counts.total(), 1) else "latin"


def _drift(text: str, expected: str) -> str | None:
    counts = scripts(_SCAFFOLD.sub("", text))
    if counts.total() < MIN_LETTERS:
        return None
    share = counts[expected] / counts.total()
    return f"{share:.0%} of the letters are {expected}" if share < MIN_EXPECTED_SHARE else None


def _garbled(text: str) -> str | None:
    def is_broken(char: str) -> bool:
        return char == "\ufffd" or (unicodedata.category(char) in ("Cc", "Co", "Cs", "Cn") and char not in "\n\r\t")

    broken = sum(number for char, number in Counter(text).items() if is_broken(char))
    return f"{broken} broken characters" if broken > MAX_GARBLED_SHARE * len(text) else None


def find_signs(generation: GenerationResult, script: str | None = None) -> dict[str, str]:
    """Return the signs of degeneration in a generation, each with its evidence; {} for a sound one.

    `script` is the expected script of answers ("han", "latin", …), None for that of the prompt. Texts with fewer than
    `MIN_LETTERS` letters, JSON keys and tags not counted, have no drift.
    """
    text = generation.text
    repetition = find_repetition(text, cut_off=generation.finish_reason == "length")
    signs: Mapping[str, str | None] = {
        "repetition": f"a piece {repetition.num_repeats} times, every {repetition.period} characters" if repetition else None,
        "thinking": leftover_thinking(text),
        "echo": find_echo(text, generation.prompt_text),
        "drift": _drift(text, script or expected_script(generation.prompt_text)),
        "garbled": _garbled(text),
        "empty": None if text.strip() else "nothing",
        "cap_hit": f"{generation.num_completion_tokens} tokens" if generation.finish_reason == "length" else None,
    }
    return {sign: evidence for sign, evidence in signs.items() if evidence is not None}


def scores(signs: Mapping[str, str]) -> dict[str, float]:
    """Return 1.0 or 0.0 for each sign, and for `degenerate`, any of them."""
    return {**{sign: float(sign in signs) for sign in SIGNS}, "degenerate": float(bool(signs))}
