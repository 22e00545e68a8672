"""Templates are compiled once for many runs. Run: pytest tests/report/html/test_compiled_templates.py"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jinja2 import DictLoader, Environment

from evalharness.report.html import compiled_templates
from evalharness.report.html.compiled_templates import CompiledTemplates


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "__pycache__"
    monkeypatch.setattr(compiled_templates, "_FOLDER", folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return folder


def _rendered(source: str, *, autoescape: bool = True) -> str:
    environment = Environment(loader=DictLoader({"page.html.j2": source}), autoescape=autoescape, bytecode_cache=CompiledTemplates())
    return environment.get_template("page.html.j2").render(text="<b>")


def test_a_template_is_compiled_once(folder: Path) -> None:
    assert _rendered("one {{ text }}") == "one &lt;b&gt;"
    (kept,) = folder.iterdir()
    made = kept.stat().st_ino
    assert _rendered("one {{ text }}") == "one &lt;b&gt;"
    assert kept.stat().st_ino == made


def test_what_was_compiled_from_another_source_is_not_used(folder: Path) -> None:
    _rendered("one")
    assert _rendered("two {{ text }}") == "two &lt;b&gt;"
    assert len(list(folder.iterdir())) == 1


def test_what_was_compiled_without_escaping_is_not_used_where_texts_are_escaped(folder: Path) -> None:
    assert _rendered("one {{ text }}", autoescape=False) == "one <b>"
    assert _rendered("one {{ text }}") == "one &lt;b&gt;"


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-20], lambda _: b"", lambda content: b"x" + content], ids=["cut", "empty", "longer"]
)
def test_a_damaged_file_is_compiled_again(folder: Path, damage: object) -> None:
    _rendered("one {{ text }}")
    (kept,) = folder.iterdir()
    kept.write_bytes(damage(kept.read_bytes()))  # type: ignore[operator]
    assert _rendered("one {{ text }}") == "one &lt;b&gt;"


def test_a_folder_that_cannot_be_written_changes_nothing(folder: Path) -> None:
    folder.write_text("a file where the folder would be")
    assert _rendered("one {{ text }}") == "one &lt;b&gt;"


def test_nothing_is_kept_where_python_is_told_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert _rendered("one {{ text }}") == "one &lt;b&gt;"
    assert not folder.exists()
