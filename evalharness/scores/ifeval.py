"""IFEval: whether an answer follows the instructions of its prompt, without a judge.

Zhou et al. 2023, https://arxiv.org/abs/2311.07911. The four official numbers are accuracies of prompts (all instructions followed) and of
instructions, strict and loose: loosely, also the answer without its first or last line or its asterisks may follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalharness.api.checks import shown
from evalharness.api.errors import ConfigError
from evalharness.scores.ifeval_checks import instruction_of


@dataclass(frozen=True)
class InstructionsFollowed:
    """By instruction, in the prompt's order: whether it is followed strictly, loosely, and strictly by the corrected checks."""

    names: tuple[str, ...]
    strict: tuple[bool, ...]
    loose: tuple[bool, ...]
    corrected: tuple[bool, ...]

    @property
    def scores(self) -> dict[str, float]:
        """The prompt's scores, under the official names; that of the corrected checks under its own."""
        return {
            "prompt_level_strict_acc": float(all(self.strict)),
            "prompt_level_loose_acc": float(all(self.loose)),
            "prompt_level_strict_acc_corrected": float(all(self.corrected)),
        }

    @property
    def details(self) -> dict[str, Any]:
        """What `ifeval_aggregate` needs, and a reader wants to see."""
        keys = ("name", "strict", "loose", "corrected")
        each = zip(self.names, self.strict, self.loose, self.corrected, strict=True)
        return {"instructions": [dict(zip(keys, values, strict=True)) for values in each]}


def ifeval(response: str | None, instruction_id_list: Sequence[str], kwargs: Sequence[Mapping[str, Any] | None]) -> InstructionsFollowed:
    """Return which instructions a response follows, None none; the other arguments are the data set's columns of these names.

    Equal to the official checker but where that draws a random number: for a missing argument (`ConfigError`), for one that is 0, and for
    a letter such as "#", which is counted. Language is detected with a fixed seed. The corrected checks: a text whose language cannot be
    told is in none; capitals may be English as small letters; rules (`---`) are no bullets; blank paragraphs do not count.
    """
    if len(instruction_id_list) != len(kwargs):
        raise ConfigError(f"IFEval: {len(instruction_id_list)} instructions have {len(kwargs)} kwargs; each has its own")
    found = [instruction_of(name, values or {}) for name, values in zip(instruction_id_list, kwargs, strict=True)]
    response = "" if response is None else response
    versions = _versions(response)
    strict, loose, corrected = [], [], []
    for (instruction, values), name in zip(found, instruction_id_list, strict=True):
        try:
            strict.append(bool(response.strip()) and instruction.check(response, values))
            loose.append(strict[-1] or any(instruction.check(text, values) for text in versions))
            check = instruction.corrected
            corrected.append(strict[-1] if check is None else bool(response.strip()) and check(response, values))
        except (TypeError, AttributeError) as error:
            raise ConfigError(f"IFEval: {name} cannot take {shown(dict(values))}, its kwargs: {error}") from error
    return InstructionsFollowed(tuple(instruction_id_list), tuple(strict), tuple(loose), tuple(corrected))


def _versions(response: str) -> list[str]:
    """Return the other texts of which one may follow, without blank and equal ones."""
    lines = response.split("\n")
    cut = [response, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [text for text in dict.fromkeys([*cut, *(text.replace("*", "") for text in cut)]) if text.strip() and text != response]


def ifeval_aggregate(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the accuracies of instructions, each counted once: the `aggregate` of an eval whose tests record `details`."""
    each = [entry for row in rows for entry in (row.get("details") or {}).get("instructions", ())]
    kinds = {"inst_level_strict_acc": "strict", "inst_level_loose_acc": "loose", "inst_level_strict_acc_corrected": "corrected"}
    return {name: sum(entry[kind] for entry in each) / len(each) for name, kind in kinds.items()} if each else {}
