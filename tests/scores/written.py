"""Texts that follow IFEval's instructions or do not, and the model of sentences that lm-eval's checker would download."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

INSTRUCTIONS: list[tuple[str, list[dict]]] = [
    ("keywords:existence", [{"keywords": ["cat", "the"]}, {"keywords": ["mat"]}]),
    ("keywords:frequency", [{"keyword": "cat", "frequency": 2, "relation": relation} for relation in ("at least", "less than")]),
    ("keywords:forbidden_words", [{"forbidden_words": ["cat"]}]),
    ("keywords:letter_frequency", [{"letter": "T", "let_frequency": 6, "let_relation": "less than"}]),
    ("language:response_language", [{"language": "en"}, {"language": "de"}]),
    ("length_constraints:number_sentences", [{"num_sentences": number, "relation": "at least"} for number in (1, 2, 3, 5)]),
    ("length_constraints:number_paragraphs", [{"num_paragraphs": 1}, {"num_paragraphs": 2}]),
    ("length_constraints:number_words", [{"num_words": 12, "relation": "at least"}]),
    ("length_constraints:nth_paragraph_first_word", [{"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "the"}]),
    ("detectable_content:number_placeholders", [{"num_placeholders": 1}, {"num_placeholders": 2}]),
    ("detectable_content:postscript", [{"postscript_marker": "P.S."}, {"postscript_marker": "P.P.S"}]),
    ("detectable_format:number_bullet_lists", [{"num_bullets": 1}, {"num_bullets": 2}]),
    ("detectable_format:constrained_response", [{}]),
    ("detectable_format:number_highlighted_sections", [{"num_highlights": 1}, {"num_highlights": 2}]),
    ("detectable_format:multiple_sections", [{"section_spliter": "Section", "num_sections": 1}]),
    ("detectable_format:json_format", [{}]),
    ("detectable_format:title", [{}]),
    ("combination:two_responses", [{}]),
    ("combination:repeat_prompt", [{"prompt_to_repeat": "The cat"}]),
    ("startend:end_checker", [{"end_phrase": "the end."}]),
    ("startend:quotation", [{}]),
    ("change_case:capital_word_frequency", [{"capital_frequency": 2, "capital_relation": "at least"}]),
    ("change_case:english_capital", [{}]),
    ("change_case:english_lowercase", [{}]),
    ("punctuation:no_comma", [{}]),
]
PARTS = [
    "The cat sat on the mat. ", "Mr. Smith went home! ", "Is it the U.S. or not? ", "NASA and ESA ", "* bullet\n", "- one\n", "**bold** ",
    "*it* ", "[name] ", "[", "<<title>>", "<<", ">>", "\n\n", "\n", "***", "******", " ", "P.S. bye ", "P.P.S hi ", "Section 1\n",
    "My answer is yes.", '{"a": 1}', "```json\n", "```", '"', "the end.", "...", "Ph.D. ", "3.14 ", '"Hello." she said. ', "(See fig. 3.) ",
    "*\n", "das ist ein Tag ", "1234 ", "I.B.M. ", "Jan. 5 ", "etc. And ", "can't ", "x\u2028y",
]  # fmt: skip


class Written(NamedTuple):
    """A text, and the instructions that it is asked to follow."""

    text: str
    names: list[str]
    values: list[dict[str, Any]]


def written(number: int, seed: int) -> Iterator[Written]:
    """Yield texts out of parts, each with five instructions; after 25 texts each instruction was asked five times."""
    draw = random.Random(seed)
    for place in range(number):
        text = "".join(draw.choices(PARTS, k=draw.randint(0, 9)))
        text = [text, text, text.upper(), text.lower(), f"The cat{text}", f'"{text}"', '{"a": 1}', "* b\nSection 1"][place % 8]
        chosen = [INSTRUCTIONS[(place + step) % len(INSTRUCTIONS)] for step in range(0, 25, 5)]
        yield Written(text, [name for name, _ in chosen], [draw.choice(ways) for _, ways in chosen])


def write_sentence_model(folder: Path) -> None:
    """Write nltk's model of English sentences, as its own package has it, out of the one that is installed."""
    import punkt

    model = punkt.load_model("english")
    folder = folder / "tokenizers" / "punkt_tab" / "english"
    folder.mkdir(parents=True)
    (folder / "abbrev_types.txt").write_text("\n".join(model.abbrev_types))
    (folder / "sent_starters.txt").write_text("\n".join(model.sent_starters))
    (folder / "collocations.tab").write_text("\n".join("\t".join(pair) for pair in model.collocations))
    (folder / "ortho_context.tab").write_text("\n".join(f"{word}\t{number}" for word, number in model.ortho_context.items()))
