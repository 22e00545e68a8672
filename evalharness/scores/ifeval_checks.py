"""IFEval's 25 instructions: whether a text follows each, as the official checker has it.

Source: https://github.com/google-research/google-research/tree/master/instruction_following_eval (Apache 2.0), and lm-eval's copy. Where
the patterns there take quadratic time on hostile texts, these find the same in linear time; patterns out of the data are bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from evalharness.answers.patterns import pattern
from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.scores import ifeval_language

Values = Mapping[str, Any]
Check = Callable[[str, Values], bool]
_JSON_FENCES = ("```json", "```Json", "```JSON", "```")
_OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_RELATIONS = ("less than", "at least")


class Instruction(NamedTuple):
    """`check`: whether a text follows; `needs`: its arguments; `corrected`: the check without the official one's mistake, if it has one."""

    check: Check
    needs: tuple[str, ...] = ()
    corrected: Check | None = None


def _compared(number: int, values: Values, relation: str, threshold: str) -> bool:
    if values[relation] not in _RELATIONS:
        raise ConfigError(f"IFEval: {relation} must be one of {', '.join(map(repr, _RELATIONS))}, got {values[relation]!r}")
    return bool(number < values[threshold] if values[relation] == _RELATIONS[0] else number >= values[threshold])


def _matches(keyword: str, text: str) -> int:
    return len(pattern(keyword, re.IGNORECASE).matches(text))


def _is_json(text: str, values: Values) -> bool:
    text = text.strip()
    for fence in _JSON_FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _placeholders(text: str, values: Values) -> bool:
    """A placeholder is `[`, and the next `]` on the same line."""
    found = 0
    for line in text.split("\n"):
        found += len(re.findall(r"\[[^\]]*\]", line.rpartition("]")[0] + "]")) if "]" in line else 0
    return bool(found >= values["num_placeholders"])


_BULLETS = [re.compile(rf"^[^\S\n]*{mark}.*$", re.MULTILINE) for mark in (r"\*[^\*]", "-")]
_RULE = re.compile(r"[^\S\n]*(?:-[^\S\n]*){3,}")


def _bullets(text: str, values: Values) -> bool:
    return bool(sum(len(bullet.findall(text)) for bullet in _BULLETS) == values["num_bullets"])


def _bullets_corrected(text: str, values: Values) -> bool:
    """A line of dashes is a rule, and an empty bullet hides not the next line."""
    lines = [line for line in text.split("\n") if not _RULE.fullmatch(line)]
    return bool(sum(re.match(r"\s*(?:\*(?!\*)|-)", line) is not None for line in lines) == values["num_bullets"])


def _highlights(text: str, values: Values) -> bool:
    single = sum(bool(found.strip("*").strip()) for found in re.findall(r"\*[^\n\*]*\*", text))
    double = sum(bool(found[2:-2].strip()) for found in re.findall(r"\*\*[^\n\*]*\*\*", text))
    return bool(single + double >= values["num_highlights"])


def _sections(text: str, values: Values) -> bool:
    return bool(_split(rf"{values['section_spliter'].strip()}\s?\d+", text) > values["num_sections"])


def _split(expression: str, text: str) -> int:
    """Return the number of parts that `re.split` gives: groups of the pattern are parts, too."""
    compiled = pattern(expression)
    return 1 + len(compiled.matches(text)) * (1 + compiled.num_groups)


def _paragraphs(text: str, values: Values) -> bool:
    parts = [part.strip() for part in text.split("***")]
    if any(not part for part in parts[1:-1]):
        return False
    num_empty = (not parts[0]) + (len(parts) > 1 and not parts[-1])
    return bool(len(parts) - num_empty == values["num_paragraphs"])


def _first_word(paragraphs: list[str], values: Values) -> bool:
    place = values["nth_paragraph"]
    num_paragraphs = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    if not 1 <= place <= num_paragraphs or not paragraphs[place - 1].strip():
        return False
    word = paragraphs[place - 1].split()[0].lstrip("'").lstrip('"')
    return bool(num_paragraphs == values["num_paragraphs"] and re.split("[.,?!'\"]", word)[0].lower() == values["first_word"].lower())


def _postscript(text: str, values: Values) -> bool:
    marker = values["postscript_marker"].strip()
    return _matches_in({"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}.get(marker, marker.lower()), text.lower())


def _matches_in(expression: str, text: str) -> bool:
    return bool(pattern(expression, re.MULTILINE).matches(text))


def _two_responses(text: str, values: Values) -> bool:
    parts = text.split("******")
    if any(not part.strip() for part in parts[1:-1]):
        return False
    given = [part.strip() for part in parts if part.strip()]
    return len(given) == 2 and given[0] != given[1]


def _title(text: str, values: Values) -> bool:
    """A title is all from the first `<<` of a line to its last `>>`."""
    for line in text.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if start >= 0 and start + 2 < end and line[start : end + 2].lstrip("<").rstrip(">").strip():
            return True
    return False


def _letter(text: str, values: Values) -> bool:
    return _compared(text.lower().count(values["letter"].strip().lower()), values, "let_relation", "let_frequency")


def _language(text: str, wanted: str, *, if_unknown: bool) -> bool:
    language = ifeval_language.language_of(text)
    return if_unknown if language is None else language == wanted


def _is_quoted(text: str, values: Values) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


INSTRUCTIONS: dict[str, Instruction] = {
    "keywords:existence": Instruction(lambda text, of: all(_matches(word, text) for word in of["keywords"]), ("keywords",)),
    "keywords:frequency": Instruction(
        lambda text, of: _compared(_matches(of["keyword"].strip(), text), of, "relation", "frequency"), ("keyword", "frequency", "relation")
    ),
    "keywords:forbidden_words": Instruction(
        lambda text, of: not any(_matches(rf"\b{word}\b", text) for word in of["forbidden_words"]), ("forbidden_words",)
    ),
    "keywords:letter_frequency": Instruction(_letter, ("letter", "let_frequency", "let_relation")),
    "language:response_language": Instruction(
        lambda text, of: _language(text, of["language"], if_unknown=True),
        ("language",),
        lambda text, of: _language(text, of["language"], if_unknown=False),
    ),
    "length_constraints:number_sentences": Instruction(
        lambda text, of: _compared(ifeval_language.num_sentences(text), of, "relation", "num_sentences"), ("num_sentences", "relation")
    ),
    "length_constraints:number_paragraphs": Instruction(_paragraphs, ("num_paragraphs",)),
    "length_constraints:number_words": Instruction(
        lambda text, of: _compared(len(re.findall(r"\w+", text)), of, "relation", "num_words"), ("num_words", "relation")
    ),
    "length_constraints:nth_paragraph_first_word": Instruction(
        lambda text, of: _first_word(text.split("\n\n"), of),
        ("num_paragraphs", "nth_paragraph", "first_word"),
        # The official one counts blank paragraphs where it looks for the n-th, and none where it counts them.
        lambda text, of: _first_word([part for part in text.split("\n\n") if part.strip()], of),
    ),
    "detectable_content:number_placeholders": Instruction(_placeholders, ("num_placeholders",)),
    "detectable_content:postscript": Instruction(_postscript, ("postscript_marker",)),
    "detectable_format:number_bullet_lists": Instruction(_bullets, ("num_bullets",), _bullets_corrected),
    "detectable_format:constrained_response": Instruction(lambda text, of: any(option in text for option in _OPTIONS)),
    "detectable_format:number_highlighted_sections": Instruction(_highlights, ("num_highlights",)),
    "detectable_format:multiple_sections": Instruction(_sections, ("section_spliter", "num_sections")),
    "detectable_format:json_format": Instruction(_is_json),
    "detectable_format:title": Instruction(_title),
    "combination:two_responses": Instruction(_two_responses),
    "combination:repeat_prompt": Instruction(
        lambda text, of: text.strip().lower().startswith(of["prompt_to_repeat"].strip().lower()), ("prompt_to_repeat",)
    ),
    "startend:end_checker": Instruction(
        lambda text, of: text.strip().strip('"').lower().endswith(of["end_phrase"].strip().lower()), ("end_phrase",)
    ),
    "startend:quotation": Instruction(_is_quoted),
    "change_case:capital_word_frequency": Instruction(
        lambda text, of: _compared(sum(map(str.isupper, ifeval_language.words(text))), of, "capital_relation", "capital_frequency"),
        ("capital_frequency", "capital_relation"),
    ),
    # Letters in capitals look like another language to langdetect.
    "change_case:english_capital": Instruction(
        lambda text, of: text.isupper() and _language(text, "en", if_unknown=True),
        (),
        lambda text, of: text.isupper() and any(_language(one, "en", if_unknown=False) for one in (text, text.lower())),
    ),
    "change_case:english_lowercase": Instruction(
        lambda text, of: text.islower() and _language(text, "en", if_unknown=True),
        (),
        lambda text, of: text.islower() and _language(text, "en", if_unknown=False),
    ),
    "punctuation:no_comma": Instruction(lambda text, of: "," not in text),
}


def instruction_of(name: str, values: Mapping[str, Any]) -> tuple[Instruction, Values]:
    """Return an instruction and its arguments; `ConfigError` for an unknown one, and where an argument is missing."""
    if name not in INSTRUCTIONS:
        raise ConfigError(f"IFEval has no instruction {name!r}{did_you_mean(name, INSTRUCTIONS)}")
    instruction = INSTRUCTIONS[name]
    missing = [key for key in instruction.needs if values.get(key) is None]
    if missing:  # the official checker draws a random one
        raise ConfigError(f"IFEval: {name} needs {', '.join(instruction.needs)}; {', '.join(missing)} is missing in its kwargs")
    return instruction, values
