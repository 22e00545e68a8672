"""Time and memory of reports, a comparison and a timeline on made-up runs: `python benchmarks/reports.py [--cases N] [--images N]`."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

_MISSIONS = ("RRU安装检查", "BBU安装检查", "线缆整理")
_CATEGORIES = tuple(f"category-{number:02d}" for number in range(12))


def make_photos(folder: Path, count: int) -> list[dict[str, Any]]:
    """Write so many JPEGs of a megapixel, each with bytes of its own, and return what a generation says of each."""
    from PIL import Image

    folder.mkdir()
    small = Image.frombytes("RGB", (96, 72), random.Random(0).randbytes(96 * 72 * 3))
    with io.BytesIO() as file:
        small.resize((1152, 864)).save(file, "JPEG", quality=85)
        content = file.getvalue()
    photos = []
    for number in range(count):
        path = folder / f"{number:05d}.jpg"
        path.write_bytes(content + number.to_bytes(8, "big"))
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        photos.append({"width": 1152, "height": 864, "sha256": sha256, "path": str(path)})
    return photos


def sample_row(number: int, rng: random.Random, text_chars: int, photo: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return one row as the recorder writes it; about one in twenty is not parsed, one in fifty hits the length cap."""
    valid = rng.random() > 0.05
    text = (f'{{"统计": [{{"类别": "标签", "文本": {{"DEMO-{number}": 1}}}}]}} ' * (text_chars // 40 + 1))[:text_chars]
    generation = {
        "text": text,
        "raw_text": text + "<|im_end|>",
        "finish_reason": "length" if rng.random() < 0.02 else "stop",
        "stop_reason": 151645,
        "num_prompt_tokens": 812,
        "num_completion_tokens": 64,
        "token_ids": [rng.randrange(150_000) for _ in range(64)],
        "seed": 7,
        "weight_version": None,
        "fallback": None,
        "ignored_options": [],
        "prompt_sha256": f"{number:064x}",
        **({} if photo is None else {"images": [photo]}),
    }
    return {
        "run_id": "bench",
        "nodeid": f"evals/test_stage_a.py::test_summary[fake:tiny-case-{number:05d}]",
        "eval": "stage_a",
        "test": "test_summary",
        "case_id": f"case-{number:05d}",
        "group": f"QC-DEMO-{number // 2:06d}",
        "tags": {"mission": rng.choice(_MISSIONS), "category": rng.choice(_CATEGORIES), "domain": "RRU"},
        "engine": "fake:tiny",
        "checkpoint": "tiny",
        "backend": "fake",
        "outcome": "pass" if valid else "miss",
        "problem": None if valid else f"no JSON object in line {number}",
        "scores": {"valid": float(valid), "category_f1": rng.random(), "exact": float(rng.random() > 0.5)},
        "generation": generation,
        "prompt_sha256": f"{number:064x}",
        "options": {"max_new_tokens": 1024, "temperature": 0.0, "top_p": 1.0},
        "worker": "main",
        "started_at": "2030-01-01T00:00:00+00:00",
        "duration_s": 0.001,
    }


def make_run(run_dir: Path, num_cases: int, text_chars: int, seed: int = 0, photos: Sequence[dict[str, Any]] = ()) -> None:
    """Write run.json and samples.jsonl of a run with `num_cases` cases of one eval on one engine; the first cases have a photo each."""
    rng = random.Random(seed)
    run_dir.mkdir(exist_ok=True)
    with (run_dir / "samples.jsonl").open("w", encoding="utf-8") as file:
        for number in range(num_cases):
            photo = photos[number] if number < len(photos) else None
            file.write(json.dumps(sample_row(number, rng, text_chars, photo)) + "\n")
    gate = {"eval": "stage_a", "test": "test_summary", "engine": "fake:tiny", "expression": "valid >= 0.9", "metric": "valid"}
    run = {
        "schema_version": 1,
        "run_id": "bench",
        "command": ["pytest", "evals"],
        "exit_code": 0,
        "evals": [{"name": "stage_a", "path": "evals/test_stage_a.py", "num_cases": num_cases, "tests": ["test_summary"]}],
        "engines": [{"id": "fake:tiny", "checkpoint": "tiny", "backend": "fake"}],
        "gates": [{**gate, "value": 0.95, "passed": True, "reason": ""}],
    }
    (run_dir / "run.json").write_text(json.dumps(run), encoding="utf-8")


def main() -> None:
    """Print one table: seconds and microseconds per case for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="Number of cases (default 10000)")
    parser.add_argument("--text-chars", type=int, default=200, help="Length of a text in characters (default 200)")
    parser.add_argument("--images", type=int, default=2_000, help="Number of cases with a photo (default 2000)")
    parser.add_argument("--browser", action="store_true", help="Open the page in Chromium too")
    parser.add_argument("--rounds", type=int, default=5, help="Rounds; the best counts (default 5)")
    arguments = parser.parse_args()

    started = time.perf_counter()
    from evalharness.analysis.comparison.compare import compare
    from evalharness.analysis.comparison.sides import read_side
    from evalharness.analysis.comparison.timeline import read_tracks, timeline_of
    from evalharness.report.compare.files import write_comparison
    from evalharness.report.html.report_page import write_report_pages
    from evalharness.report.tables import load_tables
    from evalharness.report.timeline.files import write_timelines
    from evalharness.report.writing import terminal_summary, write_reports

    import_s = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as folder:
        run_dir, other_dir = Path(folder) / "one", Path(folder) / "two"
        photos = make_photos(Path(folder) / "photos", min(arguments.images, arguments.cases))
        make_run(run_dir, arguments.cases, arguments.text_chars, photos=photos)
        make_run(other_dir, arguments.cases, arguments.text_chars, seed=1, photos=photos)
        tables = load_tables(run_dir)
        samples_bytes = (run_dir / "samples.jsonl").stat().st_size
        baseline_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        steps: dict[str, Callable[[], object]] = {
            "load_tables": lambda: load_tables(run_dir),
            "write_report_pages": lambda: write_report_pages(tables),
            "write_reports": lambda: write_reports(run_dir),
            "terminal_summary": lambda: terminal_summary(run_dir),
            "compare": lambda: write_comparison([compare(read_side(str(run_dir)), read_side(str(other_dir)), anyway=True)], other_dir),
            "timeline": lambda: write_timelines(list(map(timeline_of, read_tracks([run_dir], []))), [], other_dir),
        }
        print(f"{arguments.cases} cases, samples.jsonl {samples_bytes / 1e6:.1f} MB; imports {import_s:.2f} s")
        print("| step | best of | wall s | CPU s | CPU µs per case |\n|:--|--:|--:|--:|--:|")
        for name, step in steps.items():
            times = [_seconds(step) for _ in range(arguments.rounds)]
            wall_s, cpu_s = (min(column) for column in zip(*times, strict=True))
            print(f"| {name} | {arguments.rounds} | {wall_s:.3f} | {cpu_s:.3f} | {cpu_s / arguments.cases * 1e6:.0f} |")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - baseline_bytes
        print(f"peak memory above the start: {grown / 1e6:.0f} MB")
        pages = [run_dir / "report.html", *run_dir.glob("report-*.html")]
        print("pages: " + ", ".join(f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in pages))
        if arguments.browser:
            print("\n".join(_in_browser(pages[0], arguments.rounds)))


def _in_browser(path: Path, rounds: int) -> list[str]:
    """Return how long the page takes until its list stands, until a case does, and until a search has read every text."""
    from playwright.sync_api import sync_playwright

    lines = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        for _ in range(rounds):
            page = browser.new_page()
            started = time.perf_counter()
            page.goto(f"{path.as_uri()}#cases")
            page.locator(".item").first.wait_for()
            listed = time.perf_counter()
            page.keyboard.press("j")  # the worst case is open
            page.wait_for_function("() => document.querySelector('#case').ariaLabel?.startsWith('Case 2 of')")
            shown = time.perf_counter()
            page.locator("#search").fill("DEMO-17")
            page.locator("#matches").filter(has_text=" of ").wait_for()
            searched = time.perf_counter()
            lines.append(f"Chromium: list after {listed - started:.2f} s, case {shown - listed:.2f} s, search {searched - shown:.2f} s")
            page.close()
        browser.close()
    return lines


def _seconds(step: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds; the second is the fairer one on a busy machine, all of it being one thread."""
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main()
