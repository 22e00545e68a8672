"""What an engine on a GPU starts uses one thread of torch's own; what the user has named stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from evalharness.api import threads
from evalharness.api.threads import set_default_threads
from evalharness.backends.vllm.processes import one_thread_each, use_one_thread

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(threads, "_ours", set())
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # set back at the end
    monkeypatch.delenv("OMP_NUM_THREADS")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def seen() -> tuple[str | None, int]:
    return os.environ.get("OMP_NUM_THREADS"), num_threads()


def num_threads() -> int:
    import torch

    return torch.get_num_threads()


@pytest.mark.parametrize("default", [None, "16"])
def test_what_starts_on_a_gpu_has_one_thread(default: str | None) -> None:
    if default is not None:
        set_default_threads(int(default))  # of a worker: the harness's own choice
    with one_thread_each(wanted=True):
        assert seen() == ("1", 1)
    assert seen() == (default, 2)
    with one_thread_each(wanted=False):
        assert seen() == (default, 2)


def test_what_the_user_has_named_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    set_default_threads(16)
    with one_thread_each(wanted=True):
        assert seen() == ("7", 2)
    with ThreadPoolExecutor(1, initializer=use_one_thread) as pool:
        assert pool.submit(num_threads).result() == 2


def test_threads_that_make_pictures_ready_have_one_and_others_keep_theirs() -> None:
    with ThreadPoolExecutor(1, initializer=use_one_thread) as pool:
        assert pool.submit(num_threads).result() == 1
    assert num_threads() == 2
