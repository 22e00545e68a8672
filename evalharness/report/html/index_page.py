"""reports/index.html: every run of a reports folder, the newest first, with its gates, its scores in brief and links to its pages.

Rewritten whenever a run ends, and each minute while one runs. Runs that end together take turns at a lock, so that the last to write has
seen them all; a lock that is not given within seconds, or a folder that cannot be written, leaves the index as it is and breaks no run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from evalharness.api.checks import finite_number, read_regular, refuse_constant
from evalharness.api.errors import RecordError
from evalharness.report.findings import gate_counts, gate_state, gate_words, is_on_mean
from evalharness.report.html.page import write_page
from evalharness.report.html.site import INDEX, compare_command, compare_side, is_index, renew_links
from evalharness.report.markdown import go_on_command
from evalharness.report.progress import PREFIX, progress_line
from evalharness.report.text import duration_text, figure_text
from evalharness.report.worst import parts_of
from evalharness.report.writing import report_file
from evalharness.runs.files import lock_within
from evalharness.runs.partial import share_of
from evalharness.runs.progress import read_progress, state_without_end
from evalharness.runs.run_file import read_run, run_state
from evalharness.runs.schema import GateVerdict, PartOfEval, RunFile, entries_of, mapping, text_of

Entry: TypeAlias = "dict[str, Any]"
"""name, state, started_at, duration_s, checkpoints, evals, counts, gates, failed, brief, scores, problem, partial, exit_code: JSON."""

CACHE = ".index.json"
_CACHE_VERSION = 3
MAX_NAMES, MAX_SCORES, MAX_FAILED = 40, 40, 20
_NAME_CHARS = 200


def run_entries(report_dir: Path) -> list[Entry]:
    """Return an entry per run directory, newest first; a folder without run.json is not a run.

    A run that cannot be read gets an entry that says so. Raises `OSError` where the folder cannot be listed.
    """
    cache = _read_cache(report_dir / CACHE)
    kept: dict[str, list[Any]] = {}
    entries: list[Entry] = []
    for folder in report_dir.iterdir():
        try:
            about = (folder / "run.json").stat()
        except (OSError, ValueError):
            continue
        known = cache.get(folder.name)
        if isinstance(known, list) and known[:2] == [about.st_mtime_ns, about.st_size]:
            entry = known[2]
        else:
            entry = _entry(folder)
        if entry["state"] != "running":  # its run.json may be replaced within the clock's resolution
            kept[folder.name] = [about.st_mtime_ns, about.st_size, entry]
        else:
            entry = {**entry, "state": state_without_end(folder)}
        entries.append(entry)
    if kept != cache:
        with suppress(RecordError), report_file(report_dir / CACHE) as file:  # the cache only saves time
            json.dump({"version": _CACHE_VERSION, "runs": kept}, file, allow_nan=False)
    return sorted(entries, key=lambda entry: (entry["started_at"], entry["name"]), reverse=True)


def _read_cache(path: Path) -> dict[str, Any]:
    try:
        cache = json.loads(read_regular(path), parse_constant=refuse_constant, parse_float=finite_number)
    except (OSError, ValueError, RecursionError):
        return {}
    runs = mapping(cache).get("runs") if mapping(cache).get("version") == _CACHE_VERSION else {}
    known = {name: entry for name, entry in mapping(runs).items() if isinstance(entry, list) and len(entry) == 3}
    return {name: entry for name, entry in known.items() if _is_entry(mapping(entry[2]), name)}


def _is_entry(entry: Any, name: str) -> bool:
    """Return whether an entry is of the form of `_entry`, and of this run: a folder from somebody else brings its cache."""

    def are(kinds: Any, values: Iterable[object]) -> bool:
        return all(isinstance(value, kinds) for value in values)

    return (
        all(isinstance(entry.get(key), type(blank)) for key, blank in _BROKEN.items() if blank is not None)
        and entry["name"] == name
        and are(_NUMBER, [entry.get("duration_s"), entry.get("exit_code"), *entry["counts"].values(), *entry["gates"].values()])
        and are(str, [*entry["checkpoints"], *entry["failed"], *entry["brief"], *entry["partial"].values()])
        and are(list, [*entry["evals"], *entry["scores"]])
        and all(len(part) == 2 and are(str, part[:1]) and are(_NUMBER, part[1:]) for part in entry["evals"])
        and all(len(score) == 6 and are(str, score[:4]) and are((int, float), score[4:]) for score in entry["scores"])
    )


_NUMBER = (int, float, type(None))
_BROKEN: Entry = {
    "name": "", "state": "broken", "started_at": "", "duration_s": None, "checkpoints": [], "evals": [], "counts": {}, "gates": {},
    "failed": [], "brief": [], "scores": [], "problem": "", "partial": {}, "exit_code": None,
}  # fmt: skip


def _entry(folder: Path) -> Entry:
    try:
        run = read_run(folder)
    except RecordError as error:
        return {**_BROKEN, "name": folder.name, "problem": str(error)[:500]}
    gates = entries_of(run.get("gates"))
    failed = [_failed(gate) for gate in gates if gate_state(gate) == "failed"]
    sizes = [(entry.get("name"), entry.get("num_cases")) for entry in entries_of(run.get("evals"))[:MAX_NAMES]]
    return {
        "name": folder.name,
        "state": run_state(run),
        "started_at": text_of(run.get("started_at"))[:40],
        "duration_s": run["duration_s"] if isinstance(run.get("duration_s"), (int, float)) else None,
        "checkpoints": [_name(engine.get("id")) for engine in entries_of(run.get("engines"))[:MAX_NAMES]],
        "evals": [[_name(name), size if isinstance(size, int) else None] for name, size in sizes],
        "counts": {name: count for name, count in mapping(run.get("counts")).items() if isinstance(count, int)},
        "gates": dict(gate_counts(run)),
        "failed": failed[:MAX_FAILED],
        "brief": _brief(gates)[:MAX_NAMES],
        "scores": _scores(gates),
        "problem": _problem(run)[:500],
        "partial": {_name(part.get("eval")): _part(part) for part in entries_of(run.get("partial"))},
        "exit_code": run["exit_code"] if isinstance(run.get("exit_code"), int) else None,
    }


def _problem(run: RunFile) -> str:
    """Return why a run broke off, and the command that goes on with one that is over."""
    command = "" if run_state(run) == "running" else go_on_command(run)
    return "; ".join(filter(None, (text_of(run.get("interrupted")), f"go on with: {command}" if command else "")))


def _part(part: PartOfEval) -> str:
    what = "" if part.get("what") == "cases" else f" {text_of(part.get('what'))}"
    return f"{share_of(part)}{what}"


def _failed(gate: GateVerdict) -> str:
    """Return "photos: correct[site=*] >= 0.7 on hf:final: site=roof 0.067"."""
    value, metric = gate.get("value"), text_of(gate.get("metric"))
    number = figure_text(value, metric) if isinstance(value, (int, float)) else ""
    measured = " ".join(filter(None, (_worst_slice(gate), number)))
    words = f"{_name(gate.get('eval'))}: {_name(gate.get('expression'))} on {_name(gate.get('engine'))}"
    return f"{words}: {measured}" if measured else words


def _worst_slice(gate: GateVerdict) -> str:
    """Return "site=roof", the slice whose value a gate on slices has; "" for another gate."""
    slices = entries_of(gate.get("failed_slices"))
    return f"{_name(gate.get('tag'))}={_name(slices[0].get('value')) or '(none)'}" if slices else ""


def _brief(gates: Sequence[GateVerdict]) -> list[str]:
    """Return the first scores of each eval on the run's last engine in a line, those first whose gate failed: "stage_a: ✗ valid 0.500".

    A gate on slices that failed has the value of the worst one, since the mean over all cases may look well.
    """
    numbers = [gate for gate in gates if isinstance(gate.get("value"), (int, float)) and gate.get("threshold") is not None]
    by_eval: dict[str, dict[str, str]] = {}
    for gate in sorted(numbers, key=lambda gate: gate_state(gate) != "failed"):
        failed, metric = gate_state(gate) == "failed", _name(gate.get("metric"))
        if gate.get("engine") != numbers[-1].get("engine") or not (failed or (is_on_mean(gate) and metric not in _COVERAGE)):
            continue
        slice_ = _worst_slice(gate)
        name = f"{metric}[{slice_}]" if slice_ else parts_of(gate)[0] if failed else metric
        text = f"{'✗ ' if failed else ''}{name} {figure_text(gate['value'], metric)}"
        by_eval.setdefault(_name(gate.get("eval")), {}).setdefault(name, text)
    return [f"{name}: {', '.join(list(texts.values())[:NUM_SCORES])}" for name, texts in by_eval.items()]


def _scores(gates: list[GateVerdict]) -> list[list[Any]]:
    """Return eval, test, engine, metric, value and whether it passed, of every gate on a metric over all cases."""
    return [
        [
            *map(_name, (gate.get("eval"), gate.get("test"), gate.get("engine"), gate.get("metric"))),
            round(float(gate["value"] or 0), 6),
            gate.get("passed") is True,
        ]
        for gate in gates
        if isinstance(gate.get("value"), (int, float)) and is_on_mean(gate)
    ][:MAX_SCORES]


def _name(value: str | None) -> str:
    return text_of(value)[:_NAME_CHARS]


MAX_RUNS = 500
MAX_TRENDS, TREND_RUNS = 12, 20
NUM_SCORES = 3
_COVERAGE = ("invalid_rate", "error_rate")  # of interest where they are not 0: then the column of verdicts has them
_LOCK, _LOCK_S = ".index.lock", 5.0
_PAGES = (
    ("report.html", "report"), ("report.md", "report.md"), ("compare.html", "compare"), ("compare.md", "compare.md"),
    ("timeline.html", "timeline"), ("status.html", "status"),
)  # fmt: skip
_SHOWN = ("failed", "passed")
_STATES = {"finished": "", "unfinished": "running, or killed", "broken": "cannot be read"}
"""How the page calls states that it does not show by their own names."""


def write_index(report_dir: Path) -> Path | None:
    """Write the index of a reports folder and return its path; None where it is left as it is. Raises nothing for a broken run.

    Left alone: an index.html that somebody else made, a folder that cannot be written, a lock that others hold for too long.
    """
    path = report_dir / INDEX
    try:
        with _locked(report_dir):
            is_new = not path.exists()
            if not is_new and not is_index(path):
                return None
            entries = run_entries(report_dir)
            with report_file(path) as file:
                write_page(file, "index.html.j2", path=path, title=f"Runs in {report_dir.name or report_dir}", scripts=["index.js"],
                           styles=["timeline.css", "index.css"], runs=[_run(report_dir, entry) for entry in entries[:MAX_RUNS]],
                           num_older=max(0, len(entries) - MAX_RUNS), trends=_trends(entries),
                           suggested=list(_suggested(report_dir, entries)))  # fmt: skip
            for entry in entries if is_new else entries[:1]:  # pages that were there before the index
                renew_links(report_dir / entry["name"])
    except (OSError, RecordError):
        return None
    return path


def renew_index(folder: Path) -> None:
    """Write the index anew that lists a folder of pages, or lies in it, where there is one: the folder has new pages."""
    for report_dir in (folder, folder.absolute().parent):
        if is_index(report_dir / INDEX):
            write_index(report_dir)


@contextmanager
def _locked(report_dir: Path) -> Iterator[None]:
    """Hold the folder's lock; `BlockingIOError` where others hold it for too long. On a file system without locks, go ahead."""
    file = os.open(report_dir / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            lock_within(file, _LOCK_S)
        except BlockingIOError:
            raise
        except OSError:
            pass
        yield
    finally:
        os.close(file)


def _run(report_dir: Path, entry: Entry) -> dict[str, Any]:
    folder = quote(entry["name"], safe="", errors="surrogatepass")
    links = [(f"{folder}/{name}", text) for name, text in _PAGES if (report_dir / entry["name"] / name).is_file()]
    has = {text for _, text in links}
    shown = [(target, text) for target, text in links if not (text.endswith(".md") and text.removesuffix(".md") in has)]
    return {
        **entry,
        # A baseline's file, or a run that is cut short, can be compared, too; one that cannot be read cannot.
        "path": "" if entry["state"] == "broken" else compare_side(report_dir / entry["name"]),
        "engine_list": json.dumps(entry["checkpoints"]),
        "started": entry["started_at"][:16].replace("T", " "),
        "duration": "" if entry["duration_s"] is None else duration_text(entry["duration_s"]),
        "state_text": "part of an eval"
        if entry["state"] == "finished" and entry["partial"]
        else _STATES.get(entry["state"], entry["state"]),
        "progress": "",
        **(_progress(report_dir / entry["name"]) if entry["state"] == "running" else {}),
        "evals": [f"{name} ({size})" if (size := _size(entry, name, count)) else name for name, count in entry["evals"]],
        "verdict": verdict if (verdict := next(filter(entry["gates"].get, ("failed", "not judged", "passed")), "")) in _SHOWN else "none",
        "gate_words": [words[0].upper() + words[1:] for words in gate_words(entry["gates"])] or ["No gate"],
        "links": shown,
    }


def _size(entry: Entry, name: str, count: int | None) -> str:
    """Return how many cases of an eval a run has: "60", or "3 of 60"."""
    whole = "" if count is None else f"{count:,}"
    return text_of(entry["partial"].get(name)) or whole


def _suggested(report_dir: Path, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the commands that compare the newest whole run's checkpoints, and that run with the one of the same evals before it."""
    finished = [entry for entry in _whole(entries) if entry["checkpoints"]]
    if not finished:
        return
    newest, engines = finished[0], finished[0]["checkpoints"]
    if len(engines) > 1:
        yield compare_command(*(compare_side(report_dir / newest["name"], engine) for engine in (engines[0], engines[-1])))
    evals = {name for name, _ in newest["evals"]}
    older = next((entry for entry in finished[1:] if {name for name, _ in entry["evals"]} == evals), None)
    if older is not None:
        last = [entry["checkpoints"][-1] if len(entry["checkpoints"]) > 1 else "" for entry in (older, newest)]
        yield compare_command(*(compare_side(report_dir / entry["name"], name) for entry, name in zip((older, newest), last, strict=True)))


def _whole(entries: Sequence[Entry]) -> list[Entry]:
    """Return the finished runs of whole evals: a few cases that were tried again say nothing of how a checkpoint is."""
    return [entry for entry in entries if entry["state"] == "finished" and not entry["partial"]]


def _progress(run_dir: Path) -> dict[str, Any]:
    """Return how far a running run is, when that was, and its engines, which run.json names at its end."""
    progress = read_progress(run_dir)
    if progress is None:
        return {}
    words = f"{progress_line(progress)[len(PREFIX) :]} (at {datetime.now(timezone.utc):%H:%M} UTC)"
    return {"progress": words, "checkpoints": [_name(engine.id) for engine in progress.engines[:MAX_NAMES]]}


def _last_engine(entry: Entry) -> list[list[Any]]:
    """Return the scores of the run's last engine: of a training run the last step."""
    scores: list[list[Any]] = entry["scores"]
    return [score for score in scores if score[2] == scores[-1][2]]


def _trends(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return small curves of the scores that the most runs have, oldest run first: each run's last engine."""
    curves: dict[tuple[str, str, str], list[tuple[str, float]]] = {}
    for entry in reversed(_whole(entries)[:TREND_RUNS]):
        for eval_name, test, engine, metric, value, _ in _last_engine(entry):
            if metric in _COVERAGE:
                continue
            points = curves.setdefault((eval_name, test, metric), [])
            name = f"{entry['name']} ({engine})"
            if not points or points[-1][0] != name:  # two gates may be about one metric
                points.append((name, value))
    chosen = sorted((item for item in curves.items() if len(item[1]) > 1), key=lambda item: -len(item[1]))[:MAX_TRENDS]
    return [_trend(*key, points) for key, points in chosen]


def _trend(eval_name: str, test: str, metric: str, points: Sequence[tuple[str, float]]) -> dict[str, Any]:
    values = [value for _, value in points]
    low, high = (0.0, 1.0) if all(0 <= value <= 1 for value in values) else (min(values), max(values))
    span = high - low or 1.0
    spots = [(place / (len(values) - 1), 1 - (value - low) / span) for place, value in enumerate(values)]
    return {
        "metric": metric,
        "test": f"{eval_name} · {test}",
        "line": " ".join(f"{4 + 152 * x:.1f},{4 + 32 * y:.1f}" for x, y in spots),
        "last": (f"{4 + 152 * spots[-1][0]:.1f}", f"{4 + 32 * spots[-1][1]:.1f}"),
        "value": figure_text(values[-1], metric),
        "before": figure_text(values[-2], metric),
        "words": ", ".join(f"{name} {figure_text(value, metric)}" for name, value in points),
    }
