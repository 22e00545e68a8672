"""How far a running run is, in words: the line of the running session, and what `evalharness top` shows. Pure: knows no clock, no file."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from evalharness.report.columns import fit
from evalharness.report.text import duration_text, plural, terminal_text
from evalharness.runs.progress import EngineProgress, RunProgress, WorkerProgress

PREFIX = "evalharness: "
_NAME_CHARS = 60
_ENGINES_APART = 3
"""So many engines at work are told apart in one line."""
_PREFIX, _ORDER, _PROBLEMS, _TESTS, _NOUN, _IN_FLIGHT, _EVAL = range(1, 8)
"""What a line loses where it is too long, in this order."""


def progress_line(progress: RunProgress, columns: int | None = None) -> str:
    """Return one line: what loads, what generates and how fast, tests, time left. Where it is too long, the least telling goes first."""
    for level in range(_EVAL + 1):
        line = _line(progress, level)
        if columns is None or cell_len(line) <= columns:
            return line
    return fit(line, columns or 0)


def _line(progress: RunProgress, level: int) -> str:
    parts = [*_at_work(progress, level)]
    if level < _TESTS and progress.num_tests:
        parts.append(f"{progress.num_tests_done:,}/{progress.num_tests:,} tests")
    if level < _PROBLEMS and progress.num_problems:
        parts.append(f"{progress.num_problems:,} not passed")
    if progress.left_s is not None:
        parts.append(f"about {left_text(progress.left_s)} left")
    return (PREFIX if level < _PREFIX else "") + ", ".join(parts)


def _at_work(progress: RunProgress, level: int) -> list[str]:
    """Return what is loaded and generated just now, each engine by itself where they are few."""
    loading: dict[str, float] = {}
    for worker in _doing(progress, "loading"):
        loading[worker.engine] = max(worker.for_s, loading.get(worker.engine, 0.0))
    busy = list(dict.fromkeys(worker.engine for worker in _doing(progress, "generating")))
    known = {engine.id: engine for engine in progress.engines}
    told = [known[name] for name in busy if name in known]
    parts = [f"loading {_name(name)} … {duration_text(for_s)}" for name, for_s in list(loading.items())[:_ENGINES_APART]]
    if len(told) > (_ENGINES_APART if level < _TESTS else 1):
        return [f"{len(told)} engines", *_counts(_together(told), level), *parts]
    for engine in told:
        head = _head(progress, engine, level)
        parts.append(f"{head}: {', '.join(_counts(engine, level))}")
    return parts or [_idle(progress)]


def _idle(progress: RunProgress) -> str:
    if progress.num_tests_done < progress.num_tests:
        return "running tests" if any(engine.num_done for engine in progress.engines) else "starting"
    return "closing engines, judging gates, writing reports"


def _doing(progress: RunProgress, doing: str) -> list[WorkerProgress]:
    return [worker for worker in progress.workers if worker.doing == doing]


def _head(progress: RunProgress, engine: EngineProgress, level: int) -> str:
    """Return "stage_a on hf:final (2 of 3)"."""
    evals = list(dict.fromkeys(worker.eval for worker in _doing(progress, "generating") if worker.engine == engine.id))
    what = "" if level >= _EVAL else _name(evals[0]) if len(evals) == 1 else f"{len(evals)} evals"
    place = 1 + [each.id for each in progress.engines].index(engine.id)
    order = f" ({place} of {len(progress.engines)})" if len(progress.engines) > 1 and level < _ORDER else ""
    return f"{what} on {_name(engine.id)}{order}" if what else _name(engine.id)


def _together(engines: Sequence[EngineProgress]) -> EngineProgress:
    rates = [engine.tokens_per_s for engine in engines if engine.tokens_per_s is not None]
    return EngineProgress(
        id="",
        num_done=sum(engine.num_done for engine in engines),
        num_asked=sum(engine.num_asked for engine in engines),
        num_in_flight=sum(engine.num_in_flight for engine in engines),
        num_tokens=sum(engine.num_tokens for engine in engines),
        tokens_per_s=sum(rates) if rates else None,
        is_told=all(engine.is_told for engine in engines),
    )


def _counts(engine: EngineProgress, level: int) -> list[str]:
    """Return "31/120 answers", "16 in flight" and "38 tokens/s": of tokens as they are made, else of those in finished answers."""
    asked = f"/{engine.num_asked:,}" if engine.num_asked else ""
    parts = [f"{engine.num_done:,}{asked}{' answers' if level < _NOUN else ''}"]
    if engine.num_in_flight and level < _IN_FLIGHT:
        parts.append(f"{engine.num_in_flight:,} in flight")
    if engine.tokens_per_s is not None:
        parts.append(f"{rate_text(engine.tokens_per_s)} tokens/s{'' if engine.is_told or level >= _PROBLEMS else ' in finished answers'}")
    elif engine.num_in_flight and engine.is_told and not engine.num_tokens:
        parts.append("no token yet")
    return parts


def rate_text(per_s: float) -> str:
    """Return "0.4", "38", "1,204"."""
    return f"{per_s:.1f}" if 0 < per_s < 9.95 else f"{per_s:,.0f}"


def left_text(seconds: float) -> str:
    """Return a duration as exactly as it is known: "40 s", "4 min", "1 h 20 min"."""
    for step, below in ((5, 60), (10, 300), (60, 3600)):
        if seconds < below:
            return duration_text(max(step, round(seconds / step) * step)).replace(" min 00 s", " min")
    return duration_text(round(seconds / 300) * 300)


def progress_page(progress: RunProgress) -> list[str]:
    """Return a run's tests and time left, then a line per engine, and per worker where there are several."""
    tests = [f"{progress.num_tests_done:,} of {plural(progress.num_tests, 'test')}"] if progress.num_tests else []
    problems = [f"{progress.num_problems:,} not passed"] if progress.num_problems else []
    left = [f"about {left_text(progress.left_s)} left"] if progress.left_s is not None else []
    lines = ["  " + ", ".join([*tests, *problems, f"running for {duration_text(progress.elapsed_s)}", *left])]
    width = max((cell_len(_name(engine.id)) for engine in progress.engines), default=0)
    for engine in progress.engines:
        name = _name(engine.id)
        lines.append(f"  {name}{' ' * (width - cell_len(name))}  {', '.join(_counts(engine, 0))}")
    width = max((len(worker.name) for worker in progress.workers), default=0)
    return [*lines, *(f"  {terminal_text(worker.name, 40):{width}}  {_doing_text(worker)}" for worker in progress.workers)]


def _doing_text(worker: WorkerProgress) -> str:
    where = f"{_name(worker.eval)} on {_name(worker.engine)}" if worker.eval else _name(worker.engine)
    if worker.doing == "loading":
        return f"loading {_name(worker.engine)} … {duration_text(worker.for_s)}"
    return {"generating": f"generates {where}", "dead": "has died", "done": "has no tests left"}.get(worker.doing, "runs tests")


def _name(text: str) -> str:
    return fit(terminal_text(text, _NAME_CHARS), _NAME_CHARS)
