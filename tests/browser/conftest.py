"""One Chromium for all tests of the pages, and runs whose pages they open. Every page must load without a request or a complaint."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from PIL import Image, ImageDraw

from evalharness.api.images import image_sha256
from evalharness.report.html.report_page import write_report_pages
from evalharness.report.tables import load_tables
from tests.report.hostile import HOSTILE_TEXTS
from tests.report.runs import gate, generation, invalid, row, write_run

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
TIMEOUT_MS = 15_000
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 780}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test here; .ci/run fails if one of them is skipped."""
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents:
            item.add_marker("browser")
            item.user_properties.append(("starts", "browser"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The installed Chromium, headless; skips where there is none."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser is installed, none of {', '.join(NAMES)}: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[test]'")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a page's file; at the end, no page may have asked for anything, complained, or shown a dialog."""
    contexts: list[Any] = []
    noted: list[str] = []

    def open_page(path: Path, anchor: str = "", **options: Any) -> Any:
        context = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce", **options})
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        page.on("console", lambda message: noted.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: noted.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (noted.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: _note_request(noted, request.url, path.parent))
        page.goto(f"{path.as_uri()}{anchor}")
        page.noted = noted
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert noted == []


def _note_request(noted: list[str], url: str, folder: Path) -> None:
    parts = urlsplit(url)
    own = parts.scheme == "file" and Path(unquote(parts.path)).parent == folder
    if not own and parts.scheme not in ("data", "blob"):
        noted.append(f"request: {url[:200]}")


def make_photo(path: Path, size: tuple[int, int] = (288, 352)) -> dict[str, Any]:
    """Write a photo and return what a generation says of it."""
    picture = Image.new("RGB", size, (120, 140, 160))
    ImageDraw.Draw(picture).rectangle((40, 60, 140, 200), fill=(230, 200, 40))
    picture.save(path, quality=90)
    return {"width": size[0], "height": size[1], "sha256": image_sha256(path), "path": str(path)}


def dense_row(photo: dict[str, Any]) -> dict[str, Any]:
    """Return a row with objects: one found, one missed, one that is not there."""
    truth = [
        {"type": "bbox_2d", "points": [100, 100, 500, 600], "desc": "类别=标签,文本=F1", "pixels": [29, 35, 144, 211]},
        {"type": "line", "points": [600, 200, 700, 500, 800, 900], "desc": "类别=光纤", "pixels": [173, 70, 202, 176, 230, 317]},
    ]
    predictions = [
        {"type": "bbox_2d", "points": [110, 100, 500, 590], "desc": "类别=标签,文本=F7"},
        {"type": "poly", "points": [700, 700, 800, 700, 800, 800], "desc": "类别=螺丝"},
    ]
    details = {"truth": truth, "predictions": predictions, "pairs": {"category": [[0, 0, 0.9]]}, "image": {"width": 288, "height": 352}}
    made = generation(text='{"object_1": {}}', images=[photo])
    return row(
        "dense/photo-1", eval="dense", test="test_objects", outcome="miss", problem="one is missed", details=details, generation=made
    )


def sample_rows(folder: Path) -> list[dict[str, Any]]:
    """Return rows of two engines and three evals, of every kind that a page shows."""
    folder.mkdir(parents=True, exist_ok=True)
    photo = make_photo(folder / "photo one.jpg")
    found = []
    for engine in ("hf:early", "hf:final"):
        for number in range(20):
            right = engine == "hf:final" or number % 3 > 0
            text = f'{{"count": {number if right else 99}, "name": "case {number}"}}'
            made = generation(text=text, raw_text=f"{text}<|im_end|>", prompt_text=f"<|im_start|>user\nCount {number}", images=[photo])
            changes = {"outcome": "pass" if right else "miss", "problem": None if right else "99 is not the count"}
            scores = {"valid": 1.0, "f1": number / 20 if right else 0.1}
            reference = f'{{"name": "case {number}", "count": {number}}}'
            tags = {"mission": "left" if number % 2 else "right"}
            found.append(
                row(f"photo-{number:02}", engine=engine, generation=made, scores=scores, reference=reference, tags=tags, **changes)
            )
        found.append(invalid("photo-20", engine=engine))
        found.append(invalid("photo-21", "CUDA is out of memory", "error", engine=engine))
    votes = [generation(text=text, seed=seed) for seed, text in enumerate(("Verdict: pass", "Verdict: fail", "Verdict: pass"))]
    step = [[generation(text="a first summary"), None]]
    found.append(
        row("it's a 'quoted' case", eval="votes", test="test_vote", generation=votes[0], generations=votes, steps=step, reference="pass")
    )
    found.append(dense_row(photo))
    return found


def engines(*ids: str) -> list[dict[str, Any]]:
    """Return what run.json says of engines."""
    pairs = [name.split(":", 1) for name in ids]
    return [{"id": f"{kind}:{name}", "backend": kind, "checkpoint": name, "checkpoint_path": f"/models/a b/{name}"} for kind, name in pairs]


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with cases of every kind."""
    folder = tmp_path_factory.mktemp("run")
    rows = sample_rows(folder / "photos")
    gates = [gate(engine="hf:final"), gate(False, engine="hf:early", metric="f1", expression="f1 >= 0.8", threshold=0.8)]
    lines = [{"category": name, "F1": value} for name, value in (("b", 0.5), ("a", 0.9), ("c", 1))]
    table = {"eval": "stage_a", "test": "test_summary", "engine": "hf:final", "title": "Categories", "rows": lines}
    write_run(folder / "first", rows, gates=gates, tables=[table], engines=engines("hf:early", "hf:final", "hf:tiny"), exit_code=1)
    return write_report_pages(load_tables(folder / "first"))["report.html"]


HOSTILE = {
    **HOSTILE_TEXTS,
    "ends script": "</script><script>alert(2)</script><!--",
    "breaks attribute": "\"' onmouseover=alert(3) autofocus onfocus=alert(4) x='",
    "svg": "<svg onload=alert(5)><a xlink:href='javascript:alert(6)'>x</a></svg>",
    "link": "javascript:alert(7)",
    "template": "{{ 7 * 7 }}{% raw %}${alert(8)}",
    "long": "W" * 1_000_000,
}


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run in which every text is hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = []
    for name, text in HOSTILE.items():
        short = text[:2000]
        image = {"path": short, "sha256": short, "width": short}
        texts = {"text": text, "raw_text": text, "prompt_text": text, "finish_reason": short, "fallback": short}
        made = generation(**texts, ignored_options=[short], images=[image])
        names = {"eval": short, "test": short, "tags": {short: short}, "group": short, "nodeid": f"evals/{short}"}
        changes = {**names, "problem": text, "outcome": "miss", "reference": text + "x"}
        truth = [{"type": short, "points": [1, 2, 3, 4], "desc": text}]
        details = {"summary": text, short: short, "truth": truth, "image": {"width": 10, "height": 10}}
        rows.append(
            row(f"{name} {short}", engine=f"hf:{short}", scores={short: 0.5}, generation=made, steps=[[made]], details=details, **changes)
        )
    text = " ".join(value[:100] for value in HOSTILE.values())
    gates = [gate(False, eval=text, test=text, engine=text, expression=text, metric=text, reason=text)]
    table = {"eval": text, "test": text, "engine": text, "title": text, "rows": [{text: text, "F1": 1}]}
    facts = {"run_id": text, "command": ["pytest", text], "problems": [text], "interrupted": text, "versions": {text: text}}
    facts["git"] = {"commit": text}
    config = {text: {"value": text, "origin": text}}
    found = engines(*(f"hf:{value[:2000]}" for value in HOSTILE.values()))
    write_run(folder / "run", rows, gates=gates, tables=[table], engines=found, config=config, **facts)
    return write_report_pages(load_tables(folder / "run"))["report.html"]
