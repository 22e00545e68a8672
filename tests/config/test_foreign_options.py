"""Options of lm-eval and lmms-eval: each is one of ours, or what to write instead is known."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from evalharness.api.errors import did_you_mean
from evalharness.config.foreign_options import instead_of
from evalharness.config.options import ARGUMENTS

FLAGS = [option.flag for option in ARGUMENTS]
RARE = {
    "--agentic_trace_mode", "--force_simple", "--launcher_args", "--process-docs-parallel",
    "--process_docs_parallel", "--process_with_media", "--swanlab_args", "--swanlab_log_samples", "--timezone", "--tui",
    "--alpha", "--correlation", "--effect-size", "--power", "--power-analysis", "--std-a", "--std-b",
}  # fmt: skip
PYTESTS = {"--verbosity"}


@pytest.mark.parametrize(("package", "source"), [("lm_eval", "_cli/run.py"), ("lmms_eval", "__main__.py")])
def test_every_option_of_another_harness_is_ours_or_has_something_instead(package: str, source: str) -> None:
    spec = importlib.util.find_spec(package)  # only found: importing it would load torch
    if spec is None or spec.origin is None:
        pytest.skip(f"{package.replace('_', '-')} is not installed")
    text = (Path(spec.origin).parent / source).read_text("utf-8")
    theirs = set(re.findall(r'^ +(?:parser\.add_argument\()?"(--[a-z_-]+)"', text, re.MULTILINE))
    assert {"--tasks", "--model_args", "--num_fewshot"} <= theirs
    unknown = {flag for flag in theirs - RARE - PYTESTS if not instead_of(flag) and not did_you_mean(flag, FLAGS, cutoff=0.75)}
    assert unknown == set()


def test_what_is_named_instead_is_there() -> None:
    from evalharness.config.foreign_options import _INSTEAD

    named = {flag for text in _INSTEAD.values() for flag in re.findall(r"--[a-z-]+", text)}
    assert named - {*FLAGS, "--format"} == set()
