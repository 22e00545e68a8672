"""The numbers of a report as pandas tables, computed from a run directory alone. Knows nothing of how they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from evalharness.report.collecting import OUTCOMES, Codes, Collected, collect, mapping, text_of
from evalharness.report.score_summary import summarise, with_kinds

__all__ = ["COUNTS", "GROUP", "RunTables", "load_tables", "records"]

GROUP = ["eval", "test", "engine"]
"""What a line of the score table stands for."""

COUNTS = ["cases", *OUTCOMES, "other", "answered", "form_judged", "malformed", "length_cap", "empty", "fallback", "unclosed"]
"""Countable facts of rows: outcomes, and the validity of what was answered.

`form_judged` rows have a score `valid`, `malformed` have it at 0; `length_cap` and `empty` rows have at least one
generation that hit the cap, or whose text is empty or white space, `unclosed` ones a thought without an end.
"""

_TAGGED = [*GROUP, "key", "value"]


@dataclass(frozen=True)
class RunTables:
    """A run in tables. `rows` has one line per sample; `counts`, `scores` and the tag tables are indexed by group."""

    collected: Collected
    rows: pd.DataFrame
    """eval, test, engine (categories in order of first use), case_id, text_hash and the columns `COUNTS` as 0 or 1."""
    row_scores: pd.DataFrame
    """row, metric, score: one line per row and score."""
    row_tags: pd.DataFrame
    """row, key, value: one line per row and tag."""
    derived: dict[str, list[str]] = field(default_factory=dict, compare=False, repr=False)
    """What others have worked out of the rows, by name, so that it is done once."""

    @property
    def run_dir(self) -> Path:
        """Where the run lies."""
        return self.collected.run_dir

    @property
    def run(self) -> dict[str, Any]:
        """run.json; empty if it is missing."""
        return self.collected.run

    @cached_property
    def counts(self) -> pd.DataFrame:
        """Sums of `COUNTS` by eval, test, engine."""
        return self.rows.groupby(GROUP, observed=True)[COUNTS].sum()

    @cached_property
    def scores(self) -> pd.DataFrame:
        """What `score_summary.SUMMARY` lists, by eval, test, engine, metric."""
        return summarise(self._scored, self.collected.groups, GROUP)

    def metrics(self, eval_name: str, test: str) -> list[str]:
        """Return the scores of a test: those that its gates ask for, then the others in the order of their first use."""
        table = self.scores
        index = table[(table.index.get_level_values("eval") == eval_name) & (table.index.get_level_values("test") == test)].index
        known = list(index.get_level_values("metric").unique().sort_values())
        gates = (gate for gate in records(self.run, "gates") if gate.get("eval") == eval_name and gate.get("test") == test)
        return [name for name in dict.fromkeys([*(text_of(gate.get("metric")) for gate in gates), *known]) if name in known]

    @cached_property
    def tag_counts(self) -> pd.DataFrame:
        """Sums of `COUNTS` by eval, test, engine, tag key, tag value."""
        tagged = self.row_tags.join(self.rows[GROUP + COUNTS], on="row")
        return tagged.groupby(_TAGGED, observed=True)[COUNTS].sum()

    @cached_property
    def tag_scores(self) -> pd.DataFrame:
        """Like `scores`, by eval, test, engine, tag key, tag value, metric."""
        return summarise(self.row_tags.merge(self._scored, on="row"), self.collected.groups, _TAGGED)

    @cached_property
    def _scored(self) -> pd.DataFrame:
        return with_kinds(self.row_scores.join(self.rows[GROUP], on="row"))


def load_tables(run_dir: Path, rows: Iterable[dict[str, Any]] | None = None) -> RunTables:
    """Return the tables of a run directory. Raises `RecordError` if it cannot be read.

    `rows` are those of samples.jsonl where somebody has them in memory.
    """
    collected = collect(run_dir, rows)
    row_scores = pd.DataFrame(collected.scores, columns=["row", "metric", "score"]).astype({"row": "int64", "score": "float64"})
    table = _rows(collected)
    _add_form_verdicts(table, row_scores, collected.score_names)
    row_scores["metric"] = _categories(row_scores["metric"], collected.score_names)
    row_tags = pd.DataFrame(collected.tags, columns=["row", "key", "value"]).astype({"row": "int64"})
    row_tags["key"] = _categories(row_tags["key"], collected.tag_keys)
    row_tags["value"] = _categories(row_tags["value"], collected.tag_values)
    return RunTables(collected, table, row_scores, row_tags)


def _rows(collected: Collected) -> pd.DataFrame:
    keys = pd.DataFrame(collected.row_keys, columns=GROUP)
    for name, codes in zip(GROUP, (collected.evals, collected.tests, collected.engines), strict=True):
        keys[name] = _categories(keys[name], codes)
    facts = pd.DataFrame(collected.facts, columns=["answered", "length_cap", "empty", "fallback", "unclosed", "text_hash"]).astype("int64")
    outcomes = pd.Series(collected.outcomes, dtype=object)
    shares = {outcome: (outcomes == outcome).astype("int64") for outcome in (*OUTCOMES, "other")}
    return pd.concat([keys, facts], axis=1).assign(case_id=pd.Series(collected.case_ids, dtype=object), cases=1, **shares)


def _add_form_verdicts(rows: pd.DataFrame, row_scores: pd.DataFrame, names: Codes) -> None:
    """Add `form_judged` and `malformed` to `rows`, in place."""
    rows["form_judged"] = rows["malformed"] = 0
    if "valid" in names.names:
        verdicts = row_scores[row_scores["metric"] == names.of("valid")]
        rows.loc[verdicts["row"], "form_judged"] = 1
        rows.loc[verdicts.loc[verdicts["score"] == 0, "row"], "malformed"] = 1


def _categories(codes: pd.Series, names: Codes) -> pd.Categorical:
    # object, not pandas' string type: names come in the order of their first use and stay exactly as they are.
    return pd.Categorical.from_codes(codes.astype("int64").to_numpy(), categories=pd.Index(names.names, dtype=object), ordered=True)


def records(run: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the entries of a list in run.json that are objects; absent or wrongly typed gives none."""
    entries = run.get(name)
    return [dict(entry) for entry in entries if mapping(entry)] if isinstance(entries, list) else []
