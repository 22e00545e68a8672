"""Several answers to one ticket: how they are drawn, and what they decide together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalharness.api.errors import ConfigError
from evalharness.api.options import DecodeOptions, GenerationOptions, StopOptions
from evalharness.tasks.stage_a.data import Label

__all__ = ["Ballot", "cast", "decode_grid"]

_REQUIRED = ("temperature", "top_p", "max_new_tokens")
_OPTIONAL = ("repetition_penalty", "no_repeat_ngram_size", "seed", "stop", "max_prompt_tokens")


@dataclass(frozen=True)
class Ballot:
    """The votes on one ticket. An answer without a verdict is `num_invalid` and carries no vote."""

    num_pass: int
    num_fail: int
    num_invalid: int

    @property
    def num_valid(self) -> int:
        """How many answers carry a vote."""
        return self.num_pass + self.num_fail

    @property
    def prediction(self) -> Label | None:
        """What the majority says; a tie is fail, no vote at all None."""
        if not self.num_valid:
            return None
        return "pass" if self.num_pass > self.num_fail else "fail"

    @property
    def agreement(self) -> float:
        """Share of the votes on the side that has more of them, 0.5–1; 0 without votes."""
        return max(self.num_pass, self.num_fail) / self.num_valid if self.num_valid else 0.0

    @property
    def difficulty(self) -> float:
        """1 − agreement, 0–0.5; 0.5 without votes."""
        return 1 - self.agreement if self.num_valid else 0.5

    def hard_wrong(self, label: Label) -> float:
        """Return how sure the votes are of a wrong prediction: the agreement, or 0 where the prediction is right."""
        return 0.0 if self.prediction == label else self.agreement


def cast(votes: Iterable[Label | None]) -> Ballot:
    """Return the ballot of these answers' verdicts, None where an answer carries none; order does not matter."""
    counts = Counter(votes)
    return Ballot(counts["pass"], counts["fail"], counts[None])


def decode_grid(grid: Sequence[Mapping[str, Any]], samples_per_decode: int = 1) -> list[GenerationOptions]:
    """Return one options object per answer: every setting of the grid × samples; sample i of a setting has its seed + i.

    A setting needs temperature, top_p and max_new_tokens; repetition_penalty, no_repeat_ngram_size, seed, stop (strings)
    and max_prompt_tokens are free. Several samples of a setting without a seed count from 0; greedy settings give one
    answer each, as more would be equal. Of each seed the harness makes one for every case. Answers are decoded with
    clean-up of spaces, as Stage-B always does.
    """
    if isinstance(samples_per_decode, bool) or not isinstance(samples_per_decode, int) or samples_per_decode < 1:
        raise ConfigError(f"samples_per_decode must be an int of at least 1, got {samples_per_decode!r}")
    if not grid:
        raise ConfigError("the decode grid is empty; give at least one setting")
    answers = []
    for place, setting in enumerate(grid):
        options = _options(f"grid[{place}]", setting)
        if samples_per_decode > 1 and not options.samples:
            raise ConfigError(f"grid[{place}] is greedy: {samples_per_decode} samples would be equal; set a temperature above 0")
        if samples_per_decode == 1:
            answers.append(options)
        else:
            answers += [replace(options, seed=(options.seed or 0) + number) for number in range(samples_per_decode)]
    return answers


def _options(where: str, setting: Mapping[str, Any]) -> GenerationOptions:
    missing = [name for name in _REQUIRED if setting.get(name) is None]
    if missing:
        raise ConfigError(f"{where} lacks {', '.join(missing)}; a setting needs {', '.join(_REQUIRED)}")
    unknown = [name for name in setting if name not in (*_REQUIRED, *_OPTIONAL)]
    if unknown:
        raise ConfigError(f"{where} has an unknown {unknown[0]!r}; known: {', '.join((*_REQUIRED, *_OPTIONAL))}")
    given = {name: value for name, value in setting.items() if value is not None}
    stop = StopOptions.from_mapping({"stop": given.pop("stop", ())})
    return GenerationOptions.from_mapping({**given, "stop": stop, "decode": DecodeOptions(clean_up_tokenization_spaces=True)})
