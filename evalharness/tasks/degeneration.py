"""Signs that a model has degenerated, in any generation: what it says does not matter, only how. Linear in the text's length.

repetition  the same long piece again and again
thinking    a block of thoughts, open or closed, left in the answer
echo        a long piece of the prompt, or a mark of the chat template
drift       hardly anything in the script that was asked in (Chinese asked, English answered)
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

from evalharness.contracts import GenerationResult

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "SIGNS",
    "Repetition",
    "expected_script",
    "find_echo",
    "find_repetition",
    "find_signs",
    "leftover_thinking",
    "scores",
    "script_of_letters",
    "scripts",
]

WINDOW = 60
"""How many characters make a piece long: two objects of a dump that differ in a coordinate share fewer."""
MIN_REPEATS = 4
MIN_REPEATED_CHARS = 200
MIN_LETTERS = 20
MIN_EXPECTED_SHARE = 0.1
MAX_GARBLED_SHARE = 0.02
_MIN_PROMPT_SHARE = 0.2  # of a prompt's letters; templates, headers and JSON keys are Latin in any language

SIGNS = ("repetition", "thinking", "echo", "drift", "garbled", "empty", "cap_hit")

_THINKING = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_TEMPLATE = re.compile(r"<\|(?:im_start|im_end|endoftext|start_header_id|eot_id)\|>|\n(?:user|assistant|system)\n")
_SCAFFOLD = re.compile(r'"[A-Za-z_][A-Za-z0-9_]{0,40}"\s{0,8}:|<[/|]?[A-Za-z_]{1,20}=?[A-Za-z_]{0,20}\|?>')
"""JSON keys, header tags and special tokens, which stand for pictures by the hundred: Latin in any language."""
_SCRIPTS: tuple[tuple[str, str], ...] = (
    ("CJK", "han"),
    ("LATIN", "latin"),
    ("HIRAGANA", "kana"),
    ("KATAKANA", "kana"),
    ("HANGUL", "hangul"),
    ("CYRILLIC", "cyrillic"),
    ("ARABIC", "arabic"),
    ("GREEK", "greek"),
    ("DEVANAGARI", "devanagari"),
    ("HEBREW", "hebrew"),
    ("THAI", "thai"),
    ("FULLWIDTH LATIN", "latin"),
)


@dataclass(frozen=True)
class Repetition:
    """A piece that comes again and again: every `period` characters, `num_repeats` times, `num_chars` in all, from `start` on."""

    period: int
    num_repeats: int
    num_chars: int
    start: int


def find_repetition(text: str) -> Repetition | None:
    """Return what a text repeats, None where there is nothing: pieces of `WINDOW` characters found `MIN_REPEATS` times or more.

    They must make up `MIN_REPEATED_CHARS` characters, or half of the text. Repeats need not be next to each other, so a
    loop with a counter in it is found, as long as what stays the same is long enough.
    """
    import numpy as np

    hashes = _window_hashes(text)
    if len(hashes) < MIN_REPEATS:
        return None
    order = np.argsort(hashes, kind="stable")
    ranked = hashes[order]
    starts = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
    counts = np.diff(np.append(starts, len(ranked)))
    is_repeated: np.ndarray[Any, Any] = np.repeat(counts >= MIN_REPEATS, counts)
    if not is_repeated.any():
        return None
    places = order[is_repeated]
    covered: np.ndarray[Any, Any] = np.zeros(len(text) + 1, dtype=np.int64)
    np.add.at(covered, places, 1)
    np.add.at(covered, places + WINDOW, -1)
    num_chars = int((np.cumsum(covered) > 0).sum())
    if num_chars < min(MIN_REPEATED_CHARS, max(len(text) / 2, WINDOW)):
        return None
    steps = np.diff(order)[(ranked[1:] == ranked[:-1]) & is_repeated[1:]]
    periods, seen = np.unique(steps, return_counts=True)
    return Repetition(int(periods[seen.argmax()]), int(counts.max()), num_chars, int(places.min()))


def _window_hashes(text: str) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return one hash per piece of `WINDOW` characters, uint64 `(len(text) - WINDOW + 1,)`; empty for a shorter text."""
    import numpy as np

    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    num_windows = len(codes) - WINDOW + 1
    if num_windows <= 0:
        return np.zeros(0, dtype=np.uint64)
    hashes: np.ndarray[Any, np.dtype[np.uint64]] = np.zeros(num_windows, dtype=np.uint64)
    for offset in range(WINDOW):  # wraps around at 2**64, which is what a hash of this kind does
        hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + codes[offset : offset + num_windows]
    return hashes


def leftover_thinking(text: str) -> str | None:
    """Return "open", "closed" or "end only" for a block of thoughts in a text, None where there is none."""
    marks = [mark[1] for mark in _THINKING.finditer(text)]
    if not marks:
        return None
    if "" not in marks:
        return "end only"
    return "open" if marks[-1] == "" else "closed"


def find_echo(text: str, prompt: str) -> str | None:
    """Return the first long piece of the prompt in a text, or a mark of the chat template; None where there is neither."""
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
    """Return the script of a letter, "other" for a rarer one, None for what is no letter."""
    if not char.isalpha():
        return None
    if "a" <= char <= "z" or "A" <= char <= "Z":
        return "latin"
    if "\u4e00" <= char <= "\u9fff":
        return "han"
    name = unicodedata.name(char, "")
    return next((script for start, script in _SCRIPTS if name.startswith(start)), "other")


def scripts(text: str) -> Counter[str]:
    """Return how many letters of each script a text has."""
    counts: Counter[str] = Counter()
    for char, number in Counter(text).items():
        script = script_of_letters(char)
        if script is not None:
            counts[script] += number
    return counts


def expected_script(prompt: str) -> str:
    """Return the script that a prompt asks in: the commonest one besides Latin, if it makes up a fifth of the letters."""
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
    broken = sum(number for char, number in Counter(text).items() if _is_broken(char))
    return f"{broken} broken characters" if broken > MAX_GARBLED_SHARE * len(text) else None


def _is_broken(char: str) -> bool:
    return char == "\ufffd" or (unicodedata.category(char) in ("Cc", "Co", "Cs", "Cn") and char not in "\n\r\t")


def find_signs(generation: GenerationResult, script: str | None = None) -> dict[str, str]:
    """Return the signs of degeneration that a generation shows, each with what shows it; {} for a sound one.

    `script` is what answers are to be written in ("han", "latin", …); None goes by the prompt. Texts with fewer than
    `MIN_LETTERS` letters, JSON keys and tags not counted, have no drift.
    """
    text = generation.text
    repetition = find_repetition(text)
    found: Mapping[str, str | None] = {
        "repetition": f"a piece {repetition.num_repeats} times, every {repetition.period} characters" if repetition else None,
        "thinking": leftover_thinking(text),
        "echo": find_echo(text, generation.prompt_text),
        "drift": _drift(text, script or expected_script(generation.prompt_text)),
        "garbled": _garbled(text),
        "empty": None if text.strip() else "nothing",
        "cap_hit": f"{generation.num_completion_tokens} tokens" if generation.finish_reason == "length" else None,
    }
    return {sign: shown for sign, shown in found.items() if shown is not None}


def scores(signs: Mapping[str, str]) -> dict[str, float]:
    """Return 1.0 or 0.0 for each sign, and for `degenerate`: any of them."""
    return {**{sign: float(sign in signs) for sign in SIGNS}, "degenerate": float(bool(signs))}
