"""How fast a run's engines were, as lines for the terminal and as a section of report.md: figures, what limits, what is not known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalharness.report.score_tables import markdown_table
from evalharness.report.text import markdown_cell, one_line
from evalharness.runs.measured import EngineSpeed

_NAMES = {"pictures": "waiting for pictures", "generation": "generating", "card": "the card at its limit", "tests": "waiting for tests"}
_GENERATING = ("prefill", "decode", "generation")
_LEAST_SHARE = 0.005
_WITH_DRAFTS = 1.02


def speed_lines(speeds: Sequence[EngineSpeed]) -> Iterator[str]:
    """Yield the lines of `evalharness speed`, a block for each engine."""
    for place, speed in enumerate(speeds):
        if place:
            yield ""
        yield f"{one_line(speed['engine'])}: {_where(speed)}"
        facts = [fact for fact in _facts(speed) if fact[1]]
        width = max(len(name) for name, _ in facts)
        yield from (f"  {name:<{width}}  {value}" for name, value in facts)
        yield f"  {'what limits':<{width}}  {one_line(speed['limit'], 600)}"
        yield from (f"  {'not known':<{width}}  {name}: {one_line(why, 300)}" for name, why in speed["unknown"].items())


def speed_section(speeds: Sequence[EngineSpeed]) -> Iterator[str]:
    """Yield the section "Speed" of report.md; nothing where no engine was measured."""
    measured = [speed for speed in speeds if speed["num_steps"] or speed["bound_s"] is not None]
    if not measured:
        return
    yield "## Speed"
    yield "Seconds are summed over workers. The limit is what the cards need for the same answers (docs/speed.md)."
    headers = ["engine", "tokens/s", "of the limit", "MFU", "MBU", "J/token", "loading (s)", "prefill (s)", "decode (s)"]
    headers += ["pictures (s)", "tests (s)", "idle (s)"]
    yield markdown_table(headers, [_line(speed) for speed in measured], 1)
    for speed in measured:
        yield f"{markdown_cell(speed['engine'])}: {markdown_cell(speed['limit'], 600)}."


def _line(speed: EngineSpeed) -> list[str]:
    seconds = (speed["load_s"], speed["prefill_s"], speed["decode_s"], speed["picture_wait_s"], speed["tests_s"], speed["idle_s"])
    shares = [_or_dash(value, ".1%") for value in (speed["share_of_bound"], speed["mfu"], speed["mbu"])]
    energy = _or_dash(speed["j_per_token"], ",.2f")
    rate = _or_dash(speed["tokens_per_s"], ",.0f")
    return [markdown_cell(speed["engine"]), rate, *shares, energy, *(_or_dash(value, ",.1f") for value in seconds)]


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _where(speed: EngineSpeed) -> str:
    name = "" if speed["card"] is None else one_line(speed["card"], 60)
    cards = f"{speed['num_cards']} x {name}" if speed["num_cards"] > 1 else name
    if speed["num_workers"] == 1:
        return cards or "card not known"
    return f"{speed['num_workers']} workers, {f'each on {cards}' if cards else 'cards not known'}"


def _facts(speed: EngineSpeed) -> Iterator[tuple[str, str]]:
    per_worker = "" if speed["num_workers"] == 1 else " a worker"
    yield "tokens", f"{speed['num_prompt_tokens']:,} of prompts, {speed['num_completion_tokens']:,} of answers"
    rate = speed["tokens_per_s"] if speed["num_completion_tokens"] else None  # an eval by likelihood makes none
    yield "rate", _text(rate, ",.0f", f" tokens/s{per_worker} while generating")
    yield "of the limit", _of_the_limit(speed)
    uses = [("MFU", speed["mfu"]), ("MBU", speed["mbu"]), ("GPU busy", speed["busy"])]
    yield "use", ", ".join(f"{name} {value:.1%}" for name, value in uses if value is not None)
    yield "energy", _text(speed["j_per_token"], ",.2f", " J a token") + _text(speed["watts"], ",.0f", " W", before=", ")
    yield "steps", _steps(speed)
    yield "seconds", ", ".join(_seconds(speed))
    yield "where they went", ", ".join(_shares(speed))


def _shares(speed: EngineSpeed) -> Iterator[str]:
    total = sum(speed["shares"].values())
    for name, value in sorted(speed["shares"].items(), key=lambda share: -share[1]):
        if total and value >= _LEAST_SHARE * total:
            beyond = " beyond the limit" if name in _GENERATING and speed["bound_s"] is not None else ""
            yield f"{_NAMES.get(name, name)}{beyond} {value / total:.0%}"


def _of_the_limit(speed: EngineSpeed) -> str:
    if speed["share_of_bound"] is None:
        return ""
    return f"{speed['share_of_bound']:.1%} of {_text(speed['bound_tokens_per_s'], ',.0f', ' tokens/s')} that the card could do"


def _steps(speed: EngineSpeed) -> str:
    if not speed["num_steps"]:
        return ""
    made = f"{speed['num_steps']:,}, of {_text(speed['rows_per_step'], ',.0f', ' rows')} in the mean"
    if (speed["tokens_per_row"] or 1.0) >= _WITH_DRAFTS:
        made += f", {speed['tokens_per_row']:.2f} tokens for each in a step"
    costs = [
        "" if not speed["step_s"] else f"{speed['step_s'] * 1000:,.1f} ms",
        "" if not speed["row_s"] else f"{speed['row_s'] * 1e6:,.0f} µs a row",
    ]
    cost = " and ".join(filter(None, costs))
    return f"{made}; one without prompts costs {cost}" if cost else made


def _seconds(speed: EngineSpeed) -> Iterator[str]:
    for name, value in (
        ("loading", speed["load_s"]),
        ("generating", speed["generation_s"]),
        ("prefill", speed["prefill_s"]),
        ("decode", speed["decode_s"]),
        ("first picture", speed["first_picture_s"]),
        ("waiting for pictures", speed["picture_wait_s"]),
        ("waiting for tests", speed["tests_s"]),
        ("idle", speed["idle_s"]),
    ):
        if value is not None:
            yield f"{name} {value:,.1f}"


def _text(value: float | None, form: str, unit: str, *, before: str = "") -> str:
    return "" if value is None else f"{before}{value:{form}}{unit}"
