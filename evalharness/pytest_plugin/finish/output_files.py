"""Files for other tools: the `outputs` functions of evals, each asked once per engine with all rows of its eval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from evalharness.api.outputs import OutputTarget, folder_name
from evalharness.config import RunConfig
from evalharness.pytest_plugin.finish.eval_functions import ANY_FAILURE, EvalFunctions, Row, rows_by_engine

__all__ = ["write_outputs"]


def write_outputs(
    evals: Iterable[EvalFunctions], rows: Sequence[Row], run_dir: Path, run: RunConfig, problems: list[str]
) -> list[dict[str, Any]]:
    """Return `{eval, engine, path, num_bytes}` for every file written, paths relative to `run_dir`; failures are `problems`."""
    entries: list[dict[str, Any]] = []
    for functions in evals:
        for engine, own in rows_by_engine(rows, functions.name).items() if functions.outputs else ():
            folder = run_dir / "outputs" / folder_name(engine)
            target = OutputTarget(folder, engine, functions.data_dir, run.spot, run.seed)
            before = _files(folder)
            _write(functions, own, target, problems)
            for path, facts in _files(folder).items():
                if before.get(path) != facts:
                    name = path.relative_to(run_dir).as_posix()
                    entries.append({"eval": functions.name, "engine": engine, "path": name, "num_bytes": facts[0]})
    return entries


def _write(functions: EvalFunctions, rows: Sequence[Row], target: OutputTarget, problems: list[str]) -> None:
    assert functions.outputs is not None
    try:
        target.folder.mkdir(parents=True, exist_ok=True)
        functions.outputs(rows, target)
    except ANY_FAILURE as error:
        problems.append(f"{functions.path}: outputs for {target.engine} failed: {type(error).__name__}: {error}")
    for folder in (target.folder, target.folder.parent):  # of one that wrote nothing
        with suppress(OSError):
            folder.rmdir()


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return size and time of change of every file below a folder."""
    found = {path: path.stat() for path in sorted(folder.rglob("*")) if path.is_file()}
    return {path: (facts.st_size, facts.st_mtime_ns) for path, facts in found.items()}
