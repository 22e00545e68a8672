"""What `--draft-from` and `--tune` have brought, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from evalharness.report.text import terminal_text, when_finite
from evalharness.runs.schema import RunFile, entries_of, mapping, text_of

_ROUNDS = "; not in float32, so near-ties may fall otherwise than without"
_UNDECIDED = "too few answers to measure it; vLLM's own number stays"


def draft_lines(run: RunFile) -> Iterator[str]:
    """Yield a sentence for each engine that checked drafts, or why there were none; nothing for a run without --draft-from."""
    facts = run.get("drafts")
    if not facts or not isinstance(facts, dict):
        return
    source = f"run {text_of(facts.get('run'))}" if facts.get("run") else "this run's own answers"
    if facts.get("why_off"):
        yield terminal_text(f"no drafts from {source}: {text_of(facts.get('why_off'))}", 400)
        return
    dtypes = {text_of(engine.get("id")): text_of(mapping(engine.get("settings")).get("dtype")) for engine in entries_of(run.get("engines"))}
    for entry in entries_of(run.get("throughput")):
        sums = mapping(entry.get("drafts"))
        names = ("num_drafted", "num_taken", "num_tokens", "num_row_steps", "num_found", "num_answers", "saved_s")
        drafted, taken, tokens, steps, found, answers, saved_s = (when_finite(sums.get(name)) or 0.0 for name in names)
        if not steps:
            continue
        rate = f"{taken / drafted:.0%} of {drafted:,.0f} drafted tokens were the model's own" if drafted else "none were drafted"
        rate += f", {tokens / steps:.1f} tokens a step"
        change = f"about {abs(saved_s):,.1f} s {'saved' if saved_s > 0 else 'lost'} against this engine's own steps without drafts"
        seconds, made = when_finite(entry.get("generation_s")), when_finite(entry.get("num_completion_tokens"))
        before = when_finite(facts.get("rate_without"))
        rounds = "" if dtypes.get(text_of(entry.get("engine"))) == "float32" else _ROUNDS
        than = f"; {made / seconds:,.0f} tokens/s a worker, {before:,.0f} without in an earlier run" if seconds and made and before else ""
        parts = [f"{found:,.0f} of {answers:,.0f} answers had one", rate, *([change] if saved_s else [])]
        yield terminal_text(f"drafts from {source} on {text_of(entry.get('engine'))}: {'; '.join(parts)}{than}{rounds}", 500)


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
