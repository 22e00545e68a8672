"""ARCHITECTURE.md says what is so: its rooms, and the calls from a test's setup to the backend."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from tests.processes import python
from tests.pytest_plugin.project import MARK
from tests.test_meta import ROOMS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
MAX_CALLS, MAX_FILES = 8, 6

# Runs an eval and prints the package's frames where the engine's thread is started, and then where that thread reaches the backend.
TRACE = """
import json, sys, threading, traceback
import pytest
from evalharness.backends.fake import FakeBackend

def frames():
    files = [(frame, frame.filename.replace("\\\\", "/").rpartition("/evalharness/")) for frame in traceback.extract_stack()]
    return [(frame.name, file) for frame, (_, package, file) in files if package]

way = []
start, generate = threading.Thread.start, FakeBackend.generate

def traced_start(thread):
    if thread.name == "engine-queue":
        way.extend(frames())
    start(thread)

def traced_generate(backend, prompts, **others):
    way.extend([*frames(), ("generate", "backends/fake.py")])
    yield from generate(backend, prompts, **others)

threading.Thread.start, FakeBackend.generate = traced_start, traced_generate
code = pytest.main(["-p", "evalharness.pytest_plugin", "--backend", "fake", "--model", "echo", "-p", "no:cacheprovider"])
print(json.dumps([int(code), way]))
"""


def test_the_way_of_a_sample_is_as_listed_and_short(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(MARK + "def test_s(case, generation): pass\n")
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    _, output = python("-c", TRACE, cwd=tmp_path, env=environment)
    code, way = json.loads(output.splitlines()[-1])
    assert code == 0, output
    section = TEXT.partition("## The way of one sample")[2].partition("\n## ")[0]
    listed = re.findall(r"^\d+\. `(?:\w+\.)?(\w+)`", section, re.MULTILINE)
    assert [function for function, _ in way] == listed
    assert len(way) <= MAX_CALLS
    assert len({file for _, file in way}) <= MAX_FILES


def test_the_rooms_are_listed_in_their_order() -> None:
    section = TEXT.partition("## Rooms")[2].partition("\n## ")[0]
    assert re.findall(r"^  (\w+)/ ", section, re.MULTILINE) == list(ROOMS)
