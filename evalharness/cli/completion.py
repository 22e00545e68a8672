"""Parameters that a shell completes: runs, their engines, their cases. Reads files only as far as it must, and imports nothing heavy."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from evalharness.api.errors import EvalHarnessError
from evalharness.cli.framework import find_run, report_folder, run_names
from evalharness.runs.files import open_for_reading
from evalharness.runs.run_file import LATEST, read_run
from evalharness.runs.schema import entries_of, text_of

_MOST = 200
_HEAD_BYTES = 4000  # of a row: its names come first, before what was generated
_CASE_ID = re.compile(rb'"case_id": ?("(?:[^"\\]|\\.)*")')


class _Completed(click.types.StringParamType):
    """Text whose completions are names that begin with what was typed."""

    def names(self, ctx: click.Context) -> Iterable[str]:
        raise NotImplementedError

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names; none where the run that they are of cannot be read."""
        with suppress(EvalHarnessError, OSError, ValueError):
            found = (name for name in self.names(ctx) if name.startswith(incomplete) and name.isprintable())
            return [CompletionItem(name) for name in islice(dict.fromkeys(found), _MOST)]
        return []


class RunName(_Completed):
    """A run: its name, or a path."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names; the shell completes what begins as a path."""
        if "/" in incomplete or incomplete.startswith("."):
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, param, incomplete)

    def names(self, ctx: click.Context) -> Iterable[str]:
        """Return `latest` and the runs of the report folder."""
        folder = report_folder()
        return [LATEST, *(name for name in run_names(folder) if os.path.isfile(folder / name / "run.json"))]


class EngineName(_Completed):
    """An engine of the run that stands before it; its checkpoint's name is enough, and has no colon, at which bash breaks words."""

    def names(self, ctx: click.Context) -> Iterable[str]:
        """Return the checkpoints of the run's engines, then the ids."""
        engines = entries_of(read_run(_run_dir(ctx)).get("engines"))
        return [*(text_of(engine.get("checkpoint")) for engine in engines), *(text_of(engine.get("id")) for engine in engines)]


class CaseId(_Completed):
    """A case of the run that stands before it."""

    def names(self, ctx: click.Context) -> Iterator[str]:
        """Yield the ids of samples.jsonl, without parsing its rows."""
        run_dir = _run_dir(ctx)
        with open_for_reading(run_dir / "samples.jsonl", run_dir) as rows:
            for row in rows:
                if (found := _CASE_ID.search(row, 0, _HEAD_BYTES)) is not None:
                    yield json.loads(found[1])


def _run_dir(ctx: click.Context) -> Path:
    # Behind an option that still lacks its value, click has not sorted the words yet.
    return find_run(str(ctx.params.get("run") or next((word for word in ctx.args if not word.startswith("-")), "")), quiet=True)


RUN, ENGINE, CASE = RunName(), EngineName(), CaseId()
