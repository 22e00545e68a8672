"""The engines that the contract suite runs on; each backend starts once in a session."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import TypeAlias

import pytest

from evalharness.api.errors import CapabilityError
from evalharness.api.requests import GenerationResult
from evalharness.backends.base import Backend
from evalharness.engine.backend_contract import FREE, TEXTS, ask, generate
from evalharness.engine.engine import Engine
from tests.backends.max_models import IS_INSTALLED
from tests.backends.vllm_models import Reference
from tests.contract.stand_ins import arbitrary_fake

FAKE = pytest.param("fake", id="fake")
MAX = [pytest.param("max", id="max", marks=pytest.mark.engine)] if IS_INSTALLED else []  # an environment of its own: docs/max.md
HF = pytest.param("hf", id="hf", marks=pytest.mark.engine)
REAL = [HF, pytest.param("vllm", id="vllm", marks=pytest.mark.vllm), *MAX]

NOT_IN_MAX = {"image requests": "takes no pictures", "score given responses": "scores no given responses"}


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Skip what MAX cannot be asked, once the engine has refused it."""
    try:
        return (yield)
    except CapabilityError as error:
        is_max = "max" in getattr(pyfuncitem, "callspec", SimpleNamespace(params={})).params.values()
        for asked, reason in NOT_IN_MAX.items():
            if is_max and asked in str(error):
                pytest.skip(f"MAX in this process {reason}")
        raise


BackendOf: TypeAlias = "Callable[[str], Backend]"


@pytest.fixture(scope="session")
def backend_of(request: pytest.FixtureRequest) -> BackendOf:
    """Returns the session's backend of that name, started when it is first asked for."""

    def start(name: str) -> Backend:
        kind = "text" if name == "max" else "vlm"
        return arbitrary_fake() if name == "fake" else request.getfixturevalue(f"{name}_{kind}_backend")

    return start


@pytest.fixture(scope="session", params=[FAKE, *REAL])
def engine(request: pytest.FixtureRequest, backend_of: BackendOf) -> Engine:
    """Every backend's engine; the checkpoint's generation_config is full of traps."""
    return Engine(backend_of(request.param))


@pytest.fixture(scope="session")
def free(engine: Engine) -> list[GenerationResult]:
    """What the engine says to `TEXTS` where nothing ends it but the length cap."""
    return generate(engine, [ask(text) for text in TEXTS], FREE)


@pytest.fixture(scope="session", params=REAL)
def real_engine(request: pytest.FixtureRequest, backend_of: BackendOf) -> Engine:
    """The engines with a model."""
    return Engine(backend_of(request.param))


@pytest.fixture(scope="session")
def reference(request: pytest.FixtureRequest, real_engine: Engine) -> Reference:
    """Plain transformers on the checkpoint of `real_engine`."""
    if real_engine.name != "max":
        return request.getfixturevalue("reference")
    from tests.backends.max_models import TextReference

    return TextReference(request.getfixturevalue("max_text_checkpoint"))


@pytest.fixture(scope="session")
def hf_engine(backend_of: BackendOf) -> Engine:
    """The engine that runs transformers."""
    return Engine(backend_of("hf"))


@pytest.fixture(scope="session")
def vllm_engine(backend_of: BackendOf) -> Engine:
    """The engine that runs vLLM."""
    return Engine(backend_of("vllm"))
