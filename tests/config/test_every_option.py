"""Every option of the command line on every backend: it reaches an engine, or is refused, or another test shows what it does.

Made from the table of options, so that a new one needs its line here. Run: pytest tests/config/test_every_option.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.cases import Case
from evalharness.api.errors import ConfigError
from evalharness.api.options import GenerationOptions
from evalharness.backends import known_backends
from evalharness.backends.option_support import SHIPPED
from evalharness.config import resolve
from evalharness.config.checks import check_combinations
from evalharness.config.options import ALIASES, DECODING, OPTIONS
from evalharness.pytest_plugin.eval_module import read_eval
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec, concerns
from evalharness.pytest_plugin.execution.engines import how_to_build, load_config

ROOT = Path(__file__).parents[2]
TO_ENGINES: dict[str, object] = {
    "thinking": True,
    "thinking_marks": "<a>,</a>",
    "special_tokens_as_text": True,
    "max_pixels": "5000",
    "min_pixels": "50",
    "device": "cpu",
    "attn_implementation": "eager",
    "tensor_parallel_size": "2",
    "pipeline_parallel_size": "2",
    "distributed_executor_backend": "mp",
    "engine_option": ["max_num_seqs=3"],
    "gpu_memory_utilization": "0.5",
    "max_model_len": "64",
    "enforce_eager": True,
    "batch_invariant": True,
    "tune": True,
    "server": "openai",
    "base_url": "http://x",
    "served_model": "m",
    "concurrency": "3",
    "request_timeout": "5",
    "adapter_dir": "d",
    "fallback_backend": None,
    "unsupported_options": "warn",
    "trust_remote_code": True,
    "allow_pickle": True,
    "variant": "vlm",
}
"""Options that change how an engine is built, with another value than the default; the fallback is any other backend."""
_PLUGIN = "tests/pytest_plugin"
SHOWN_BY = {
    "backend": f"{_PLUGIN}/test_auto_runs.py",
    "model": f"{_PLUGIN}/test_warm_engines.py",
    "base_model": f"{_PLUGIN}/test_warm_engines.py",
    "download": "tests/checkpoints/test_hub.py",
    "wait": "tests/checkpoints/test_discovery.py",
    "data": "tests/tasks/dense/test_dense.py",
    "limit": f"{_PLUGIN}/test_foreign_sessions.py",
    "limit_first": f"{_PLUGIN}/test_eval_module.py",
    "as_chat": "tests/prompts/test_in_a_run.py",
    "noise": f"{_PLUGIN}/test_noise.py",
    "noise_cases": f"{_PLUGIN}/test_noise.py",
    "shard": f"{_PLUGIN}/test_judging_changes.py",
    "spot": f"{_PLUGIN}/test_idle_options.py",
    "plugin": "tests/generation_plugins/test_named.py",
    "seed": f"{_PLUGIN}/test_fixtures.py",
    "num_samples": f"{_PLUGIN}/test_eval_module.py",
    "dtype": f"{_PLUGIN}/test_warm_engines.py",
    "devices": "tests/hardware/test_devices.py",
    "share_devices": f"{_PLUGIN}/distributed/test_gpus.py",
    "hang_timeout": f"{_PLUGIN}/test_idle_options.py",
    "executor": f"{_PLUGIN}/distributed/test_ray.py",
    "ray_address": f"{_PLUGIN}/distributed/test_ray.py",
    "cache": f"{_PLUGIN}/test_warm_engines.py",
    "cache_dir": f"{_PLUGIN}/test_eval_module.py",
    "run_id": f"{_PLUGIN}/test_resume.py",
    "resume": f"{_PLUGIN}/test_resume.py",
    "accept_changes": f"{_PLUGIN}/test_idle_options.py",
    "keep_going": f"{_PLUGIN}/execution/test_early_end.py",
    "draft_from": f"{_PLUGIN}/test_drafts.py",
    "report_dir": f"{_PLUGIN}/test_strangers_runs.py",
    "baseline": f"{_PLUGIN}/test_idle_options.py",
    "until_certain": f"{_PLUGIN}/test_until_certain.py",
    "coordinates": f"{_PLUGIN}/test_idle_options.py",
}
"""What the other options do, by the tests that show it."""


def test_no_option_is_forgotten() -> None:
    assert {option.name for option in OPTIONS} == {*TO_ENGINES, *DECODING, *SHOWN_BY}
    assert {option.name for option in ALIASES} == {"inference_engine", "inference_url"}  # tests/config/test_config_aliases.py
    assert set(known_backends()) >= SHIPPED


@pytest.mark.parametrize("name", SHOWN_BY)
def test_another_test_shows_what_an_option_does(name: str) -> None:
    text = (ROOT / SHOWN_BY[name]).read_text("utf-8")
    assert f"--{name.replace('_', '-')}" in text or f'"{name}"' in text or f"{name}=" in text


@pytest.mark.parametrize("name", DECODING)
def test_options_of_decoding_outrank_those_of_every_eval(name: str, tmp_path: Path) -> None:
    marked = GenerationOptions(temperature=1.5, top_p=0.9, max_thinking_tokens=9)
    marker = pytest.mark.eval(cases=lambda data: [Case(id="a")], request=id, options=marked).mark
    (made,) = read_eval(marker, "test_a.py", run_on("fake", tmp_path, **{name: "0.5" if name == "top_p" else "1"}), tmp_path).variants
    assert made == replace(marked, **{name: 0.5 if name == "top_p" else 1, "seed": 0})


def run_on(backend: str, tmp_path: Path, **options: object) -> Any:
    return resolve({"backend": [backend], "model": ["x"], **options}, {}, tmp_path)


def built(backend: str, run: Any, variant: str | None = None) -> object:
    spec = EngineSpec(f"{backend}:x", backend, "x", "x", variant=variant)
    return load_config(spec, run), how_to_build(spec, run)


@pytest.mark.parametrize("backend", sorted(SHIPPED))
@pytest.mark.parametrize("name", TO_ENGINES)
def test_an_option_reaches_the_engine_or_the_run_is_refused(name: str, backend: str, tmp_path: Path) -> None:
    (option,) = [option for option in OPTIONS if option.name == name]
    value = TO_ENGINES[name] or ("openai" if backend == "hf" else "hf")
    run = run_on(backend, tmp_path, **{name: value})
    if option.is_for(backend):
        check_combinations(run)
        assert built(backend, run) != built(backend, run_on(backend, tmp_path))
        return
    with pytest.raises(
        ConfigError, match=rf"^--{name.replace('_', '-')}.* is honoured by .* only, but the run is on --backend {backend}; leave"
    ):
        check_combinations(run)
    both = run_on(f"{backend},{'hf' if option.is_for('hf') else 'vllm' if option.is_for('vllm') else 'openai'}", tmp_path, **{name: value})
    check_combinations(both)
    assert built(backend, both) == built(backend, run_on(backend, tmp_path))


@pytest.mark.parametrize("name", ["dtype", "download", "base_model", "wait", "share_devices", "devices", "plugin"])
@pytest.mark.parametrize("backend", sorted(SHIPPED))
def test_the_others_are_refused_where_no_backend_of_the_run_honours_them(name: str, backend: str, tmp_path: Path) -> None:
    values: dict[str, object] = {
        "dtype": ["float32"],
        "download": True,
        "base_model": "b",
        "wait": "1",
        "share_devices": True,
        "devices": "cpu",
    }
    values["plugin"] = ["duplicate-object-ban"]
    run = run_on(backend, tmp_path, **{name: values[name]})
    (option,) = [option for option in OPTIONS if option.name == name]
    only_noticed = (name, backend) == ("devices", "openai")  # loops that train give them beside the server's address
    if only_noticed or (option.is_for(backend) and (name != "plugin" or backend == "hf")):
        check_combinations(run)
    else:
        with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')}"):
            check_combinations(run)


def test_options_of_images_are_none_of_a_text_checkpoint(tmp_path: Path) -> None:
    run = run_on("hf", tmp_path, max_pixels="5000")
    assert built("hf", run, "text") == built("hf", run_on("hf", tmp_path), "text")
    assert built("hf", run, "vlm") != built("hf", run_on("hf", tmp_path), "vlm")
    assert [concerns(option, "hf", run, "text") for option in OPTIONS if option.name.endswith("_pixels")] == [False, False]


def test_a_third_backend_takes_options_of_loading(tmp_path: Path) -> None:
    run = run_on("hf", tmp_path, max_pixels="5000", dtype=["float32"], variant="vlm")
    assert all(concerns(option, "acme", run) for option in OPTIONS if option.name in ("max_pixels", "dtype", "variant"))
