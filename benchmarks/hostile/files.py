"""Folders and files of strangers: runs, baselines, checkpoints, adapters, data. Real ones, each damaged in one place."""

from __future__ import annotations

import copy
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_ODD: list[Any] = [None, True, -1, 0, 1e308, 10**400, "", "x", "\ud800", "../../../../etc/passwd", "/etc/passwd", "a" * 100_000, [], {}]
_ODD += [[None], {"": {}}, [[[]]], {"value": {"value": None}}, "2026-99-99T00:00:00", float("nan"), "__import__('os').system('id')"]
_WHOLE: Mapping[str, bytes] = {
    "empty": b"",
    "null": b"null",
    "number": b"17",
    "text": b'"text"',
    "list": b"[]",
    "object": b"{}",
    "not JSON": b"{'a': 1}",
    "not UTF-8": b'{"a": "\xff\xfe\x80"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "nested": b"[" * 100_000,
    "nested and closed": b'{"a":' * 60_000 + b"1" + b"}" * 60_000,
    "digits": b"9" * 100_000,
    "zeros": b"\0" * 100_000,
    "one key ten thousand times": b"{" + b'"a":1,' * 10_000 + b'"a":1}',
    "lines": b"\n" * 100_000,
    "a pickle": b"cos\nsystem\n(S'touch owned'\ntR.",
    "LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n",
}
SPECIAL = ("folder", "fifo", "link to a device", "link to itself", "link outside")
"""What a file may be instead.

The last is no damage where users keep their own files: hub caches are made of such links, and a baseline may be one.
"""

_EVAL = """
import pytest
from evalharness import Case, GenerationOptions, TextGenerationRequest
def load(data_dir): return [Case(id=f"c{i}", group=f"g{i % 2}", tags={"t": str(i % 3)}, reference=str(i)) for i in range(6)]
def request(case): return TextGenerationRequest([{"role": "user", "content": f"<b>{case.id}</b>"}])
pytestmark = pytest.mark.eval(cases=load, request=request, num_samples=2, options=GenerationOptions(temperature=1.0))
@pytest.mark.gate("right >= 0.5")
def test_a(case, generations, score, details):
    score(right=case.id != "c3", length=len(generations[0].text)); details(parsed={"n": [1, 2]})
    assert case.id != "c4", "it is c4"
"""


@dataclass(frozen=True)
class Damage:
    """`base` is the folder to copy; `files` are written over it; `special`: {path: one of `SPECIAL`}."""

    kind: str
    name: str
    base: Path
    files: Mapping[str, bytes] = field(default_factory=dict)
    special: Mapping[str, str] = field(default_factory=dict)


def make_bases(folder: Path) -> dict[str, Path]:
    """Make the folders that are damaged: {kind: folder}. Runs one eval on the fake backend."""
    project = folder / "project"
    project.mkdir()
    (project / "test_a.py").write_text(_EVAL)
    (project / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--backend", "fake", "--run-id", "run"]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    run = folder / "run"
    (project / "reports" / "run").rename(run)
    baseline = folder / "baseline"
    baseline.mkdir()
    bless = [sys.executable, "-m", "evalharness", "bless", str(run), "base", "--to", str(baseline)]
    subprocess.run(bless, cwd=project, check=True, capture_output=True)
    checkpoints = ROOT / "fixtures" / "checkpoints"
    shutil.copytree(checkpoints / "final", folder / "checkpoint")
    shutil.copytree(checkpoints / "lora-helps", folder / "adapter")
    data = folder / "data"
    data.mkdir()
    photos = ROOT / "fixtures" / "site_photos"
    for path in (
        *photos.glob("*.json*"),
        *(ROOT / "fixtures" / "given_text").glob("*.jsonl"),
        *(ROOT / "fixtures" / "tool_calls").iterdir(),
    ):
        lines = path.read_bytes().splitlines(keepends=True)
        (data / path.name.replace("（正装）", "")).write_bytes(b"".join(lines[:20] if path.suffix == ".jsonl" else lines))
    return {kind: folder / kind for kind in ("run", "baseline", "checkpoint", "adapter", "data")}


_FILES: Mapping[str, tuple[str, ...]] = {
    "run": ("run.json", "journal/main.jsonl", "samples.jsonl"),
    "baseline": ("base.json",),
    "checkpoint": (
        "config.json",
        "tokenizer_config.json",
        "generation_config.json",
        "preprocessor_config.json",
        "model.safetensors.index.json",
    ),
    "adapter": ("adapter_config.json",),
    "data": (),
}
_HEADS: Mapping[str, str] = {"checkpoint": "model.safetensors", "adapter": "adapter_model.safetensors"}
_CHANGES: Mapping[str, int] = {"run": 80, "baseline": 80, "checkpoint": 14, "adapter": 30, "data": 8}
"""Damaged values in each file."""


def damages(bases: Mapping[str, Path], seed: int) -> Iterator[Damage]:
    """Yield about 1,000 folders, each with one damaged file."""
    draw = random.Random(f"files {seed}")
    for kind, base in bases.items():
        names = _FILES[kind] or tuple(sorted(path.name for path in base.iterdir()))
        for name in names:
            for what, content in _WHOLE.items():
                yield Damage(kind, f"{name}: {what}", base, {name: content})
            for special in SPECIAL if kind == "run" else SPECIAL[:-1]:
                yield Damage(kind, f"{name}: {special}", base, special={name: special})
            if (base / name).exists():
                original = (base / name).read_bytes()
                yield from (Damage(kind, f"{name}: {what}", base, {name: content}) for what, content in _bytes_changed(original, draw))
                yield from (
                    Damage(kind, f"{name}: value {number}", base, {name: content})
                    for number, content in enumerate(_values_changed(name, original, draw, _CHANGES[kind]))
                )
        if kind in _HEADS:
            original = (base / _HEADS[kind]).read_bytes()
            yield from (Damage(kind, f"weights: {what}", base, {_HEADS[kind]: content}) for what, content in _heads(original, draw))


def _bytes_changed(original: bytes, draw: random.Random) -> Iterator[tuple[str, bytes]]:
    yield "BOM", b"\xef\xbb\xbf" + original
    yield "CRLF", original.replace(b"\n", b"\r\n")
    yield "CR only", original.replace(b"\n", b"\r")
    yield "twice", original + original
    yield "cut", original[: draw.randrange(len(original))]
    yield "half a line more", original + original[:40]
    yield "deep line more", original + b"[" * 5_000 + b"]" * 5_000 + b"\n"


def _values_changed(name: str, original: bytes, draw: random.Random, number: int) -> Iterator[bytes]:
    """Yield copies in which one value, anywhere, is odd, or one key is gone."""
    lines = original.splitlines() if name.endswith(".jsonl") else [original]
    for _ in range(number):
        place = draw.randrange(len(lines))
        value = json.loads(lines[place])
        changed = odd_value(copy.deepcopy(value), draw)
        yield b"\n".join([*lines[:place], json.dumps(changed).encode(), *lines[place + 1 :]]) + b"\n"


def odd_value(value: Any, draw: random.Random) -> Any:
    """Return the value with one odd part: deeper parts are as likely as shallow ones."""
    if not isinstance(value, (dict, list)) or not value or draw.random() < 0.15:
        return draw.choice(_ODD)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw.choice(keys)
    if draw.random() < 0.15:
        del value[key]
    else:
        value[key] = odd_value(value[key], draw)
    return value


def _heads(original: bytes, draw: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield safetensors files with a damaged head."""
    size = int.from_bytes(original[:8], "little")
    head, rest = json.loads(original[8 : 8 + size]), original[8 + size :]
    for claimed in (0, 1, size - 1, size + 1, 10**8, 2**63, 2**64 - 1):
        yield f"head of {claimed} bytes", claimed.to_bytes(8, "little") + original[8:]
    yield "only a head", original[: 8 + size]
    yield "cut", original[: len(original) // 2]
    for what, content in _WHOLE.items():
        yield what, content
        yield f"head is {what}", len(content).to_bytes(8, "little") + content + rest
    for number in range(30):
        text = json.dumps(odd_value(copy.deepcopy(head), draw)).encode()
        yield f"head value {number}", len(text).to_bytes(8, "little") + text + rest
