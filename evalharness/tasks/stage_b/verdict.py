"""A model's text → a Stage-B verdict: whether it carries one (valid), and whether it has the exact form (strict).

The documented answer is two lines, `Verdict: 通过` or `Verdict: 不通过` and `Reason: …`. Tolerated are blank lines, a chat
marker before the answer, full-width colons, `未通过`, `pass`, `fail`, a full stop after the Chinese words, traditional
characters, and keys that only begin with Verdict or Reason. Each tolerated deviation is named, and so is every problem of the
reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from evalharness.answers.thoughts import leftover_thinking
from evalharness.api.errors import ContractValueError
from evalharness.api.wording import plural
from evalharness.tasks.stage_a.data import LABELS, Label
from evalharness.tasks.stage_b.prompt import plain, simplify, third_states

MAX_REASON_CHARS = 240
MAX_SHOWN = 60
WORDS: dict[Label, str] = {"pass": "通过", "fail": "不通过"}
_ACCEPTED: dict[str, Label] = {
    **dict.fromkeys(("通过", "通过。", "pass"), "pass"),
    **dict.fromkeys(("不通过", "不通过。", "未通过", "fail"), "fail"),
}
# A chat marker before the answer, as a line of its own only: a reason may contain the word.
_TURNS = frozenset({"assistant", "assistant:", "<|im_start|>assistant"})
_MARKDOWN = "*_#` "
_RULE_ID = re.compile(r"(?<![A-Za-z0-9])[GS][0-9]+(?![A-Za-z0-9])")
_IMAGE = re.compile(r"Image([0-9]{1,6})")
_SUMMARY = re.compile(r"总结\s*[:：]\s*\S")
_CHINESE = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")
_LATIN = re.compile(r"[a-z]")


class Problem(NamedTuple):
    """A violation of the strict form: its kind, for counting, and a sentence."""

    kind: str
    text: str


@dataclass(frozen=True, repr=False)
class Verdict:
    """The contents of one answer. `label` is None where it carries no verdict; `problems` are all violations of the strict form."""

    label: Label | None
    reason: str
    has_thinking: bool
    problems: tuple[Problem, ...]

    def __repr__(self) -> str:
        # Short and escaped: pytest shows it below every failed assertion about a verdict.
        return f"Verdict({self.label}, {self.reason[:MAX_SHOWN]!r}{'…' if len(self.reason) > MAX_SHOWN else ''})"

    @property
    def valid(self) -> bool:
        """Whether the answer carries a verdict and thus a vote."""
        return self.label is not None

    @property
    def strict(self) -> bool:
        """Whether form and wording are exactly as documented."""
        return self.valid and not self.problems

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of problems, each once."""
        return tuple(dict.fromkeys(problem.kind for problem in self.problems))

    @property
    def problem(self) -> str:
        """All problems in one line, "" for a strict answer."""
        return "; ".join(problem.text for problem in self.problems)


def parse_verdict(text: str, num_images: int | None = None) -> Verdict:
    """Return the verdict in `text`; never raises on any text, linear in its length.

    With `num_images`, that of the ticket, the reason must name every image and no others.
    """
    text = text.strip()
    lines = _answer_lines(text)
    if leftover_thinking(text) is not None:
        return Verdict(None, "", True, (Problem("thinking", "a think block was written"),))
    refused = _refusal(lines)
    if refused is not None:
        return Verdict(None, "", False, (refused,))
    label, reason = _ACCEPTED[_word(_value(lines[0]))], _value(lines[1])
    form = () if text == render_verdict(label, reason) else tuple(_form_problems(text, lines, label))
    return Verdict(label, reason, False, (*form, *_reason_problems(reason, num_images)))


def render_verdict(label: Label, reason: str) -> str:
    """Return the strict text of a verdict; `ContractValueError` for an unknown label."""
    if label not in LABELS:
        raise ContractValueError(f"label must be one of {', '.join(LABELS)}, got {label!r}")
    return f"Verdict: {WORDS[label]}\nReason: {reason}"


def _answer_lines(text: str) -> list[str]:
    """Return the lines after the last chat marker that are not blank."""
    lines = [line.strip() for line in text.split("\n")]
    last = max((place for place, line in enumerate(lines) if line in _TURNS), default=-1)
    return [line for line in lines[last + 1 :] if line]


def _value(line: str) -> str:
    """Return the text after the first colon, half- or full-width."""
    return re.split("[:：]", line, maxsplit=1)[-1].strip()


def _word(value: str) -> str:
    return "".join(simplify(value).split()).lower()


def _refusal(lines: list[str]) -> Problem | None:
    """Return why these lines carry no verdict, None if they carry one."""
    if not lines:
        return Problem("empty", "the answer is empty")
    if any("**" in line or line.startswith(("#", "`")) for line in lines):
        marked = next((line for line in lines if _starts(line.lstrip(_MARKDOWN), "verdict")), "")
        if marked and not _starts(marked, "verdict"):
            return Problem("markdown", "markdown stands around the answer")
    if len(lines) != 2:
        return Problem("lines", f"{plural(len(lines), 'line')} instead of two")
    if _starts(lines[0], "reason") and _starts(lines[1], "verdict"):
        return Problem("order", "the two lines are swapped")
    for number, (line, word) in enumerate(zip(lines, ("verdict", "reason"), strict=True), start=1):
        if not _starts(line, word):
            return Problem("key", f"line {number} must begin with {word.title()}, got {line[:MAX_SHOWN]!r}")
        if not re.search("[:：]", line):
            return Problem("key", f"line {number} has no colon")
    if _word(_value(lines[0])) not in _ACCEPTED:
        word = _value(lines[0])
        kind = "third_state" if third_states(word) else "markdown" if _word(word.strip(_MARKDOWN)) in _ACCEPTED else "word"
        return Problem(kind, f"the verdict must be 通过 or 不通过, got {word[:MAX_SHOWN]!r}")
    return None if _value(lines[1]) else Problem("no_reason", "the reason is empty")


def _starts(line: str, word: str) -> bool:
    return line[: len(word)].lower() == word


def _form_problems(text: str, lines: list[str], label: Label) -> Iterator[Problem]:
    """Yield the tolerated deviations of an answer that is not in the strict form, at least one."""
    texts = []
    if len(text.split("\n")) != 2:
        texts.append("lines around the answer: blank ones or a chat marker")
    for line, key in zip(lines, ("Verdict", "Reason"), strict=True):
        if not line.startswith(f"{key}: "):
            texts.append(f"a line must begin with '{key}: ', got {line[: len(key) + 4]!r}")
    word = _value(lines[0])
    if word != WORDS[label]:
        texts.append(f"the verdict is written {word[:MAX_SHOWN]!r} instead of {WORDS[label]}")
    yield from (Problem("form", problem) for problem in texts or ["white space around the parts of a line"])


def _reason_problems(reason: str, num_images: int | None) -> Iterator[Problem]:
    if len(reason) > MAX_REASON_CHARS:
        yield Problem("length", f"the reason has {len(reason)} characters, at most {MAX_REASON_CHARS} are allowed")
    if len(reason.splitlines()) > 1:
        yield Problem("form", "the reason must be one line")
    for phrase in third_states(reason):
        yield Problem("third_state", f"the reason names a third state: {phrase}")
    for rule_id in dict.fromkeys(_RULE_ID.findall(reason)):
        yield Problem("rule_id", f"the reason names rule {rule_id}")
    num_chinese = len(_CHINESE.findall(reason))
    if not num_chinese or len(_LATIN.findall(_IMAGE.sub("", reason))) > num_chinese:
        yield Problem("language", "the reason is not in Chinese")
    named = {int(number) for number in _IMAGE.findall(reason)}
    expected = set(range(1, num_images + 1)) if num_images is not None else {1}
    missing = sorted(expected - named)
    if missing:
        yield Problem("structure", f"the reason says nothing about {', '.join(f'Image{number}' for number in missing[:5])}")
    absent = sorted(named - expected) if num_images is not None else []
    if absent:
        yield Problem("structure", f"the reason names {', '.join(f'Image{number}' for number in absent[:5])}, of {num_images} images")
    if not _SUMMARY.search(plain(reason)):
        yield Problem("structure", "the reason has no 总结")
