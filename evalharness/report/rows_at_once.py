"""What `--tune` has chosen, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from evalharness.report.text import terminal_text
from evalharness.runs.schema import RunFile, entries_of, mapping, text_of

_UNDECIDED = "too few answers to measure it; vLLM's own number stays"


def tuning_lines(run: RunFile) -> Iterator[str]:
    """Yield a sentence for each engine and length that `--tune` has seen: how many rows at once, and what others gave."""
    for engine in entries_of(run.get("engines")):
        for lengths, choice in mapping(mapping(engine.get("settings")).get("rows_at_once")).items():
            facts = mapping(choice)
            rates = mapping(facts.get("tokens_per_s"))
            measured = ", ".join(f"{number(count)}: {number(rate)} tok/s" for count, rate in rates.items())
            how = _UNDECIDED if facts.get("how") == "measuring" else f"{text_of(facts.get('how'))}; {measured}"
            line = f"rows at once on {text_of(engine.get('id'))}: {number(facts.get('rows'))} ({how}), for {lengths}"
            yield terminal_text(line, 400)


def number(value: object) -> str:
    """Return a whole number with separators of thousands; anything else, in a run that others wrote, as text."""
    text = str(value)
    return f"{int(text):,}" if text.isascii() and text.isdigit() and len(text) < 16 else text[:40]
