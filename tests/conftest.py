"""Checkpoints and engines that several folders of tests share; a vLLM engine takes half a minute to start, so there is one."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests import vllm_installed
from tests.fast_tier import FastTier

if TYPE_CHECKING:
    from evalharness.backends.hf.backend import HfBackend
    from evalharness.backends.max.backend import MaxBackend
    from evalharness.backends.vllm.backend import VllmBackend
    from evalharness.engine.engine import Engine
    from tests.backends.vllm_models import Reference

# Property tests are judged by their results alone, and no test fails by chance: no deadline on a busy machine, and the same examples in
# each run. Others are looked for with --hypothesis-profile=explore, which is for whoever changes what a property is about.
_UNHURRIED = settings(settings.get_profile("default"), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", _UNHURRIED, derandomize=False, max_examples=1000)
settings.register_profile("repeatable", _UNHURRIED, derandomize=True, database=None, max_examples=50)
settings.register_profile("fast", settings.get_profile("repeatable"), max_examples=15)
settings.load_profile("repeatable")

_WARNINGS = (
    "error",
    # What a data folder holds is its owner's: shown in the summary, never a reason to stop.
    "default::evalharness.tasks.DataWarning",
    # SWIG modules inside torch and sentencepiece, Python 3.12 and newer.
    "ignore:builtin type (SwigPy|swigvarlink).* has no __module__ attribute:DeprecationWarning",
    # vLLM forks its engine from a process in which torch has started threads.
    "ignore:This process .* is multi-threaded, use of fork\\(\\) may lead to deadlocks in the child:DeprecationWarning",
    # vLLM's client closes an engine's sockets, but never their zmq context, which the garbage collector meets in any later test.
    "ignore:Unclosed context <zmq:ResourceWarning",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--fast`."""
    parser.addoption("--fast", action="store_true", help="Run the fast tier only: no real engine, no browser, nothing slow. Default: all.")


def pytest_configure(config: pytest.Config) -> None:
    """Make warnings errors, here and not in pyproject.toml: evals run under that file too, on a user's libraries and data."""
    for line in _WARNINGS:
        config.addinivalue_line("filterwarnings", line)
    # Started in the background of a script, or by nohup: processes that the tests start would inherit it, and signals are what some test.
    for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, action)
    if config.getoption("fast"):
        config.pluginmanager.register(FastTier(), "fast-tier")
        settings.load_profile("fast")
    if hasattr(config, "workerinput"):
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch, not imported yet: every worker has a core to itself, and models are tiny


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return how many workers `-n auto` starts: one more than there are cores, as many tests wait; at most four."""
    return min(4, 1 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out files, as --dist=loadfile says, but all that start vLLM to one worker; None leaves other ways to xdist."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.distribution import FileScheduling

    return FileScheduling(config, log)


_VLLM_ENGINES = frozenset({"vllm_vlm_backend", "vllm_endless", "vllm_engine"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Write into the JUnit file which tests start vLLM, by their marker, as .ci/run counts them; one that kills its engine comes last."""
    items.sort(key=lambda item: item.get_closest_marker("kills_engine") is not None)
    for item in items:
        if item.get_closest_marker("vllm") is not None:
            item.user_properties.append(("starts", "vllm"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from all tests, and from what they import: it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test that would not be spread or counted as it should; an error at collection would lose its text in a worker."""
    problem = _problem(item)
    if problem is not None:
        pytest.fail(problem, pytrace=False)
    if item.get_closest_marker("vllm") is not None and not vllm_installed.IS_INSTALLED:
        pytest.skip(vllm_installed.WHY_NOT)  # .ci/run does not let it be skipped


def _problem(item: pytest.Item) -> str | None:
    if " at 0x" in item.nodeid:
        return f"{item.nodeid} has an id that each process writes otherwise, so workers cannot share it: give ids="
    if item.get_closest_marker("vllm") is None:
        if _VLLM_ENGINES.intersection(getattr(item, "fixturenames", ())):
            return f"{item.nodeid} takes a vLLM engine, so it needs the marker vllm: without it, no one sees it skipped"
    elif hasattr(item.config, "workerinput"):
        from tests.distribution import VLLM, unit_of

        path = item.nodeid.partition("::")[0]
        if unit_of(item.config.rootpath, path) != VLLM:  # the controller knows no more of a test than its source
            return f"{path} starts vLLM, and its source does not say so: write pytest.mark.vllm (tests/distribution.py)"
    return None


@pytest.fixture(scope="session")
def tiny_vlm_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Qwen3-VL whose generation_config is full of traps."""
    from tests.backends.vllm_models import make_checkpoint

    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny-vlm")


@pytest.fixture(scope="session")
def vllm_vlm_backend(tiny_vlm_checkpoint: Path) -> Iterator[VllmBackend]:
    """A running engine on the tiny Qwen3-VL, with a pixel budget and otherwise default options; takes text prompts too."""
    from evalharness.api.options import ModelLoadConfig, VllmEngineOptions
    from evalharness.backends.vllm.backend import VllmBackend
    from tests.backends.vllm_models import BUDGET

    backend = VllmBackend(ModelLoadConfig(str(tiny_vlm_checkpoint), torch_dtype="float32"), BUDGET, VllmEngineOptions())
    yield backend
    backend.close()


@pytest.fixture(scope="session")
def vllm_endless() -> Iterator[Engine]:
    """A running engine on the trained checkpoint `endless`, in one process as on a GPU; who swaps that puts it back."""
    from evalharness.api.options import ModelLoadConfig, VllmEngineOptions
    from evalharness.engine.build import build_engine

    path = Path(__file__).parents[1] / "fixtures" / "checkpoints" / "endless"
    options = VllmEngineOptions(max_model_len=2048, distributed_executor_backend="uni")
    with build_engine("vllm", ModelLoadConfig(str(path), torch_dtype="float32"), vllm_options=options) as engine:
        yield engine


@pytest.fixture(scope="session")
def reference(tiny_vlm_checkpoint: Path) -> Reference:
    """Plain transformers on the tiny Qwen3-VL."""
    from tests.backends.vllm_models import Reference

    return Reference(tiny_vlm_checkpoint)


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_vlm_checkpoint: Path) -> Any:
    """The tokenizer of the tiny Qwen3-VL: byte-level, 652 tokens."""
    from evalharness.backends.torchvision_cpu import register_missing_operators

    register_missing_operators()
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_vlm_checkpoint)


@pytest.fixture
def torch(torch_in_one_thread: None) -> Any:
    """The module torch, for tests of engines: modules of tests do not import it, as the fast tier reads them all."""
    import torch

    return torch


@pytest.fixture(scope="module")
def torch_in_one_thread() -> Iterator[None]:
    """Torch kept to one thread while the tests of a module run: see `hf_models.one_thread`."""
    from tests.backends.hf_models import one_thread

    with one_thread():
        yield


@pytest.fixture(scope="session")
def hf_text_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama of `hf_models`; who changes it takes a copy."""
    from tests.backends.hf_models import make_text_checkpoint

    return make_text_checkpoint(tmp_path_factory.mktemp("checkpoints") / "hf-text")


@pytest.fixture
def trainers_parts(hf_text_checkpoint: Path) -> tuple[Any, Any]:
    """A model of a trainer's on that checkpoint, as `from_pretrained` gives it, and its tokenizer."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(hf_text_checkpoint)
    return model, transformers.AutoTokenizer.from_pretrained(hf_text_checkpoint)


@pytest.fixture(scope="session")
def hf_vlm_backend(tiny_vlm_checkpoint: Path) -> Iterator[HfBackend]:
    """Transformers on the tiny Qwen3-VL, with a pixel budget and otherwise default options."""
    from evalharness.api.options import ModelLoadConfig
    from evalharness.backends.hf.backend import HfBackend
    from tests.backends.hf_models import one_thread
    from tests.backends.vllm_models import BUDGET

    with one_thread():
        backend = HfBackend(ModelLoadConfig(str(tiny_vlm_checkpoint), torch_dtype="float32"), BUDGET)
        yield backend
        backend.close()


@pytest.fixture(scope="session")
def max_text_checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with the tokenizer, template and generation_config of the tiny Qwen3-VL; only where MAX is installed."""
    from tests.backends.max_models import IS_INSTALLED, WHY_NOT, make_text_checkpoint

    if not IS_INSTALLED:
        pytest.skip(WHY_NOT)
    return make_text_checkpoint(request.getfixturevalue("tiny_vlm_checkpoint"), tmp_path_factory.mktemp("checkpoints") / "tiny-llama")


@pytest.fixture(scope="session")
def max_text_backend(max_text_checkpoint: Path) -> Iterator[MaxBackend]:
    """MAX with default options on that checkpoint; its first start on a machine compiles for minutes."""
    from evalharness.api.options import ModelLoadConfig, VlmPreprocessOptions
    from evalharness.backends.max.backend import MaxBackend

    backend = MaxBackend(ModelLoadConfig(str(max_text_checkpoint)), VlmPreprocessOptions())
    yield backend
    backend.close()
