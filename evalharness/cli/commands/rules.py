"""`evalharness rules RUN`: searches for better Stage-B rules from the wrong verdicts of a run, with the checkpoint that gave them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evalharness.api.cases import folder_name, one_test_per_case
from evalharness.api.errors import BROKEN, DONE, ConfigError, ContractTypeError, EvalHarnessError, RecordError, did_you_mean
from evalharness.api.options import GenerationOptions
from evalharness.api.wording import part_of
from evalharness.cli.commands.generate import OF_RUNS
from evalharness.cli.completion import ENGINE, RUN
from evalharness.cli.framework import PATH, command, find_run, own_stdout, resolve_options, run_options
from evalharness.config import RunConfig
from evalharness.config.kinds import Setting
from evalharness.config.options import ARGUMENTS, DECODING, OPTIONS
from evalharness.config.sources import project_root
from evalharness.runs.run_file import read_run, read_samples
from evalharness.runs.schema import EngineEntry, Row, entries_of, items_of, mapping

if TYPE_CHECKING:
    from evalharness.engine.engine import Engine
    from evalharness.pytest_plugin.execution.engine_specs import EngineSpec
    from evalharness.tasks.stage_b.files import Guidance, Ticket
    from evalharness.tasks.stage_b.rule_search import RuleSearch, SearchSettings

_OF_VERDICTS = frozenset(
    {
        *DECODING, "seed", "num_samples", "thinking", "thinking_marks", "plugin", "coordinates", "max_pixels", "min_pixels",
        "fallback_backend", "special_tokens_as_text",
    }
)  # fmt: skip
"""What the run's verdicts were given under stays as it was; the tickets have no images."""
_ENGINE_OPTIONS = tuple(option.name for option in ARGUMENTS if option.name not in (OF_RUNS | _OF_VERDICTS) - {"data"})
_DEFAULTS = {"model": "the run's checkpoint", "backend": "the run's", "dtype": "the run's", "data": "the run's"}


@command(
    "rules",
    examples=[
        "evalharness rules latest",
        "evalharness rules reports/RUN_ID --engine hf:final --rounds 5 --out rules",
        "evalharness rules RUN_ID --mission rru-cable --max-changed 0.2",
    ],
    exit_codes={DONE: "the search came to its end, whatever it found", BROKEN: "the engine failed; the same command goes on from there"},
    takes_runs=True,
)
@click.argument("run", metavar="RUN", type=RUN)
@click.option(
    "--engine", metavar="ID", type=ENGINE, help="Engine whose verdicts to improve, such as hf:final (default: the run's only one)"
)
@click.option("--eval", "eval_name", metavar="NAME", help="Eval that gave the verdicts (default: the run's only Stage-B eval)")
@click.option("--mission", "missions", multiple=True, metavar="NAME", help="Mission, by name or as in case ids; repeatable (default: all)")
@click.option("--out", type=PATH, metavar="FOLDER", help="Folder for the searches, one folder per mission (default: RUN/rules/ENGINE)")
@click.option("--rounds", type=click.IntRange(1), metavar="N", default=3, help="Rounds of reflection, at most (default: 3)")
@click.option(
    "--patience",
    type=click.IntRange(1),
    metavar="N",
    default=2,
    help="Rounds in a row without a promoted rule that end the search (default: 2)",
)
@click.option("--hard-cases", type=click.IntRange(1), metavar="N", default=8, help="Wrong verdicts shown in a round, at most (default: 8)")
@click.option(
    "--held-out",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="SHARE",
    default=0.25,
    help="Share of tickets that only audit (default: 0.25)",
)
@click.option(
    "--evidence-chars",
    type=click.IntRange(1),
    metavar="N",
    default=12_000,
    help="Characters of wrong verdicts in a round, about (default: 12000)",
)
@click.option(
    "--answer-tokens",
    type=click.IntRange(1),
    metavar="N",
    default=1024,
    help="Longest answer to a question about mistakes, in tokens (default: 1024)",
)
@click.option("--split-seed", type=click.IntRange(0), metavar="N", default=0, help="Seed that draws the held-out tickets (default: 0)")
@click.option(
    "--min-gain",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    default=0.1,
    help="Share of the errors that a rule must remove (default: 0.1)",
)
@click.option(
    "--max-changed",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    default=0.05,
    help="Share of verdicts that a rule may change (default: 0.05)",
)
@click.option(
    "--min-probability", type=click.FloatRange(0, 1), metavar="SHARE", default=0.8, help="Probability that the gain holds (default: 0.8)"
)
@click.option("--json", "as_json", is_flag=True, help="Print one object per mission (default: tables)")
@run_options(*_ENGINE_OPTIONS, defaults=_DEFAULTS)
def rules(run: str, out: Path | None, as_json: bool, missions: Sequence[str], **given: Any) -> int:
    """Search for better Stage-B rules: the checkpoint reflects on its wrong verdicts and proposes changes, which are tried on all tickets.

    A change is promoted if it passes the gate on train tickets; held-out ones audit. The run's own files are not changed. A search that was
    stopped goes on where it was, also with more --rounds; the folder of another search is refused. docs/shipped_evals.md lists the files.
    """
    from evalharness.report.text import markdown_cell
    from evalharness.tasks.shared import write_whole
    from evalharness.tasks.stage_b.rule_gate import GateLimits
    from evalharness.tasks.stage_b.rule_report import summary, tables
    from evalharness.tasks.stage_b.rule_search import SearchSettings

    run_dir = find_run(run)
    settings = SearchSettings(
        rounds=given.pop("rounds"),
        patience=given.pop("patience"),
        num_hard_cases=given.pop("hard_cases"),
        max_evidence_chars=given.pop("evidence_chars"),
        max_answer_tokens=given.pop("answer_tokens"),
        held_out=given.pop("held_out"),
        seed=given.pop("split_seed"),
        limits=GateLimits(
            min_rer=given.pop("min_gain"), max_changed_fraction=given.pop("max_changed"), min_probability=given.pop("min_probability")
        ),
    )
    entry = _engine(run_dir, given.pop("engine"))
    rows = _verdicts(run_dir, entry["id"], given.pop("eval_name"))
    config = _config(run_dir, entry, given)
    starts = _starts(config, rows, missions)
    root = out or run_dir / "rules" / folder_name(entry["id"])
    with own_stdout() as stream:
        summaries = []
        with _LazyEngine(entry, config) as engine:
            for start in starts:
                search = _search(start, root, settings, entry, engine)
                summaries.append(summary(start.mission, search.logs))
                title = f"# Rules of {markdown_cell(start.mission)}, found from run {markdown_cell(run_dir.name)}"
                report = "\n\n".join([title, f"The search ended: {search.ended}.", *_markdown(tables(summaries[-1:]))])
                write_whole(root / start.mission / "report.md", f"{report}\n".encode())
                _put_into(root / "guidance.json", start, search)
        shown = [json.dumps(one, allow_nan=False) for one in summaries] if as_json else _lines(tables(summaries))
        stream.write("".join(f"{line}\n" for line in shown))
        stream.flush()
    _notice(f"{root / 'guidance.json'} holds the rules, {root}/<mission>/ what led to them")
    return DONE


_NAMED = ("id", "backend", "checkpoint", "checkpoint_path")


def _engine(run_dir: Path, wanted: str | None) -> EngineEntry:
    """Return the engine of the run whose verdicts are meant."""
    entries = entries_of(read_run(run_dir).get("engines"))
    engines = {entry["id"]: entry for entry in entries if all(isinstance(entry.get(name), str) for name in _NAMED)}
    chosen = [entry for name, entry in engines.items() if wanted in (None, name, entry.get("checkpoint"))]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(engines) or "none"
    if wanted is None or chosen:
        raise ConfigError(f"{run_dir} has {len(engines)} engines: {names}; choose one with --engine")
    raise ConfigError(f"--engine {wanted!r} is not an engine of {run_dir}{did_you_mean(wanted, engines) or '.'} Known: {names}")


def _verdicts(run_dir: Path, engine: str, wanted: str | None) -> list[Row]:
    """Return one row per judged ticket of the run's Stage-B eval."""
    if not (run_dir / "samples.jsonl").is_file():
        raise RecordError(f"{run_dir} has no samples.jsonl; evalharness report {run_dir} makes it from the journal")
    by_eval: dict[str, list[Row]] = {}
    for row in read_samples(run_dir):
        details = mapping(row.get("details"))
        is_chain = "cause" in details  # its verdicts are on summaries that the checkpoint wrote itself
        if row.get("engine") == engine and {"votes", "ticket_key"} <= details.keys() and not is_chain:
            by_eval.setdefault(str(row.get("eval")), []).append(row)
    if wanted is None and len(by_eval) > 1:
        raise ConfigError(f"{run_dir} has verdicts of {len(by_eval)} evals: {', '.join(by_eval)}; choose one with --eval")
    if not by_eval or (wanted is not None and wanted not in by_eval):
        known = f"of {', '.join(by_eval)} only" if by_eval else "of no ticket"
        raise RecordError(f"{run_dir} holds verdicts {known} on {engine}; make some: pytest evals/test_stage_b.py")
    name = wanted or next(iter(by_eval))
    _refuse_plugins(run_dir, name)
    return [_checked(row, run_dir) for row in one_test_per_case(by_eval[name], "votes")]


def _refuse_plugins(run_dir: Path, name: str) -> None:
    """Raise `ConfigError` where plugins acted on an eval's verdicts: the search has none, so its verdicts would differ by them."""
    for entry in entries_of(read_run(run_dir).get("evals")):
        if entry.get("name") == name and (plugins := items_of(entry.get("plugins"))):
            named = ", ".join(map(str, plugins))
            raise ConfigError(f"plugins acted on the verdicts of {name}: {named}; judge the tickets without them, --plugin none")


def _checked(row: Row, run_dir: Path) -> Row:
    """Return a row that has all of a verdict. Raises `RecordError` for another, which someone else may have written."""
    from evalharness.tasks.stage_b.files import wrong_cases
    from evalharness.tasks.stage_b.rule_gate import read_verdict

    try:
        read_verdict(row)
        wrong_cases([row])
        _options(row)
        texts = [row["tags"]["mission"], row["details"]["ticket_key"], *filter(None, row["details"]["reasons"])]
        if not all(isinstance(text, str) for text in texts):
            raise ContractTypeError("mission, ticket_key and reasons must be texts")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        where = f"{run_dir / 'samples.jsonl'}: the row of {row.get('case_id')!r}"
        raise RecordError(f"{where} is not a verdict: {type(error).__name__}: {error}") from error
    return row


def _config(run_dir: Path, entry: EngineEntry, given: Mapping[str, Any]) -> RunConfig:
    """Return the run's options for its engine and data, or those given now; what only the user decides must be given."""
    from evalharness.pytest_plugin.replay.trust import check_options

    run = read_run(run_dir)
    try:
        then = RunConfig.from_json(run["config"])
    except (EvalHarnessError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{run_dir / 'run.json'} has no readable options: {type(error).__name__}: {error}") from error
    now = resolve_options(given)
    own: dict[str, Any] = {"model": (entry["checkpoint_path"],), "backend": (entry["backend"],)}
    own["dtype"] = (entry["dtype"],) if entry.get("dtype") else None
    settings = {}
    for option in OPTIONS:
        name = option.name
        if now.origin(name).startswith(("command line", "environment")):
            settings[name] = now.settings[name]
        elif name in own:
            settings[name] = Setting(own[name], "command line" if own[name] else "default")
        elif name not in OF_RUNS or name == "data":
            settings[name] = then.settings[name]
    config = RunConfig.from_settings(settings)
    check_options(config, now, project_root(Path.cwd()), run_dir.name)
    return config


@dataclasses.dataclass(frozen=True)
class _Start:
    """Where the search of one mission starts: its tickets, rules, verdicts, and the options under which these were given."""

    mission: str
    tickets: Sequence[Ticket]
    guidance: Guidance
    decode: Mapping[str, Sequence[GenerationOptions]]
    verdicts: dict[str, Row]
    all_guidance: Mapping[str, Guidance]
    """The rules of every mission of the data."""


def _starts(config: RunConfig, rows: Sequence[Row], wanted: Sequence[str]) -> list[_Start]:
    """Return the start of every mission of the rows, in their order."""
    from evalharness.tasks.stage_a.schema import MISSIONS
    from evalharness.tasks.stage_b import rules as stage_b_rules

    cases = {case.mission: case for case in stage_b_rules.load_cases(config.data) if isinstance(case, stage_b_rules.RulesCase)}
    verdicts: dict[str, dict[str, Row]] = {}
    for row in rows:
        verdicts.setdefault(row["tags"]["mission"], {})[row["details"]["ticket_key"]] = row
    names = {name: mission for mission in verdicts if mission in MISSIONS for name in (mission, MISSIONS[mission].slug)}
    if unknown := [name for name in wanted if name not in names]:
        raise ConfigError(
            f"--mission {unknown[0]!r} has no verdicts in this run{did_you_mean(unknown[0], names) or '.'} Known: {', '.join(names)}"
        )
    starts = []
    for mission in dict.fromkeys(names[name] for name in wanted or names):
        if mission not in cases:
            raise ConfigError(f"{config.data} has no tickets of {mission}, which this run judged; give the run's own folder with --data")
        case, known = cases[mission], verdicts[mission]
        _check_prompts(mission, case.tickets, case.guidance.experiences, known, config.data)
        decode = {key: _options(row) for key, row in known.items()}
        starts.append(_Start(mission, case.tickets, case.guidance, decode, known, {name: one.guidance for name, one in cases.items()}))
    return starts


def _options(row: Row) -> list[GenerationOptions]:
    """Return the options of each of a ticket's answers; each answer has its own seed, derived from that of the options."""
    options: Any = row.get("options")
    each = options if isinstance(options, list) else [options] * len(_generations(row))
    return [
        GenerationOptions.from_mapping({**one, "seed": generation["seed"] if generation["seed"] is not None else one.get("seed")})
        for one, generation in zip(each, _generations(row), strict=True)
    ]


def _generations(row: Row) -> list[Any]:
    """Return all answers to a ticket."""
    return list(row.get("generations") or [row.get("generation")])


def _check_prompts(mission: str, tickets: Sequence[Ticket], rules: Mapping[str, str], known: dict[str, Row], data: Path | None) -> None:
    """Raise `ConfigError` unless the verdicts were given on these summaries, under these rules."""
    from evalharness.tasks.stage_b.prompt import messages

    gone = known.keys() - {ticket.key for ticket in tickets}
    asked = ((ticket.key, messages(mission, ticket.summaries, rules)) for ticket in tickets if ticket.key in known)
    other = [key for key, chat in asked if not _was_asked(chat, known[key])]
    if gone or other:
        raise ConfigError(
            f"{part_of(len(gone) + len(other), len(known), 'verdict')} on {mission} were given on other summaries or "
            f"rules than those in {data} "
            f"(first: {sorted(gone)[0] if gone else other[0]}); give the run's own folder with --data, or judge these tickets first"
        )


def _was_asked(chat: Sequence[Mapping[str, Any]], row: Row) -> bool:
    prompt = str(_generations(row)[0].get("prompt_text") or "")
    return not prompt or all(str(message["content"]) in prompt for message in chat)  # some servers do not tell their prompt


class _LazyEngine:
    """Opens the run's engine at the first call, checked to be the one that gave the verdicts."""

    def __init__(self, entry: EngineEntry, config: RunConfig) -> None:
        from evalharness.pytest_plugin.execution.engine_specs import engine_specs

        specs = engine_specs(config, project_root(Path.cwd()), _notice)
        self._spec: EngineSpec = specs[0]
        self._config = config
        self._engine: Engine | None = None
        facts = ("backend", "fingerprint", "base_fingerprint", "adapter_fingerprint")
        if len(specs) != 1 or any(getattr(specs[0], name) != entry.get(name) for name in facts):
            raise ConfigError(
                f"the verdicts are {entry['id']}'s, and {', '.join(spec.id for spec in specs)} has other weights or another backend; "
                "search with what gave the verdicts, or let it judge the tickets first: pytest evals/test_stage_b.py"
            )

    def __call__(self) -> Engine:
        from evalharness.pytest_plugin.execution.engines import open_engine

        if self._engine is None:
            self._engine = open_engine(self._spec, self._config, _notice)
        return self._engine

    def __enter__(self) -> _LazyEngine:
        return self

    def __exit__(self, *error: object) -> None:
        if self._engine is not None:
            self._engine.close()


def _search(start: _Start, root: Path, settings: SearchSettings, entry: EngineEntry, engine: Callable[[], Engine]) -> RuleSearch:
    """Return one mission's search, at its end."""
    from evalharness.tasks.stage_b.rule_folder import SearchFolder
    from evalharness.tasks.stage_b.rule_search import RuleSearch

    plain = dataclasses.asdict(settings)
    started_from = {
        "engine": {"id": entry["id"], "fingerprint": entry.get("fingerprint")},
        "rules": dict(start.guidance.experiences),
        "settings": {name: value for name, value in plain.items() if name not in ("rounds", "patience")},
        "tickets": _digest([[ticket.key, list(ticket.summaries)] for ticket in start.tickets]),
        "verdicts": _digest({key: row["details"] for key, row in start.verdicts.items()}),
        "decoding": _digest({key: [one.to_json() for one in options] for key, options in start.decode.items()}),
    }
    folder = SearchFolder(root / start.mission, started_from)
    search = RuleSearch(start.mission, start.tickets, start.guidance, start.decode, settings, known=start.verdicts, stamp=folder.stamp)
    folder.run(search, engine)
    _notice(f"{start.mission}: {search.ended}")
    return search


def _put_into(path: Path, start: _Start, search: RuleSearch) -> None:
    """Write the rules that were found beside those of the data's other missions, or of searches before this one."""
    from evalharness.tasks.stage_b.files import read_guidance, write_guidance

    before = read_guidance(path) if path.is_file() else {}
    found = {**start.all_guidance, **before, search.mission: search.guidance}
    if found != before:
        write_guidance(path, found)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _markdown(made: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    from evalharness.report.score_tables import markdown_table
    from evalharness.report.text import cell_text, markdown_cell

    blocks = []
    for title, rows in made.items():
        lines = [[markdown_cell(cell_text(value)) for value in row.values()] for row in rows]
        blocks += [f"## {title}", markdown_table(list(rows[0]), lines, _num_text_columns(rows[0]))]
    return blocks


def _lines(made: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    from evalharness.report.terminal import table_lines
    from evalharness.report.text import cell_text, terminal_text

    shown = []
    for title, rows in made.items():
        lines = [[terminal_text(cell_text(value), 80) for value in row.values()] for row in rows]
        shown += [f"── {title}", *table_lines([list(rows[0]), *lines], _num_text_columns(rows[0]))]
    return shown


def _num_text_columns(row: Mapping[str, Any]) -> int:
    return sum(isinstance(value, str) for value in row.values())


def _notice(message: str) -> None:
    from evalharness.report.text import one_line

    print(f"evalharness: {one_line(message, 1000)}", file=sys.stderr)
