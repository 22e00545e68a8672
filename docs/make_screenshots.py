"""Make the pictures of docs/images/ from a real run of the shipped checkpoints: `python docs/make_screenshots.py [--run RUN_DIR]`.

Without --run, a quarter of the cases of Stage-A and of dense dumps is asked of two shipped checkpoints first: one from the
beginning of its training, and the last good one; and all cases, of four steps of a training run, for
compare.html and timeline.html (--training-run; about ten minutes on two cores, less with --backend vllm). Needs Chromium and
the extra `test`; a font with Chinese characters shows names as they are.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
CHECKPOINTS = ("early", "final")
STEPS = {"early": 67, "middle": 393, "final": 2592, "regressed": 2652}
"""Steps of the training run that made the checkpoints; training.json has them. `regressed` was tuned for 60 more."""
MAX_BYTES = 300_000
DESKTOP, PHONE = (1280, 860), (390, 844)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync")


@dataclass(frozen=True)
class Shot:
    """One picture: which page of the run, at which address, seen how, and the keys that are pressed first."""

    name: str
    page: str
    anchor: str = ""
    size: tuple[int, int] = DESKTOP
    scheme: str = "light"
    keys: Sequence[str] = ()
    choose: tuple[tuple[str, str], ...] = ()
    """Selector and value of what is selected before."""
    scroll_to: str = ""
    """Selector of what then stands at the top; "" for the page's top."""


SHOTS = (
    Shot("report", "report.html"),
    Shot("report-case", "report.html", "#cases?eval=dense_dump&engine={backend}%3Aearly&sort=%3Ccategory_f1", scheme="dark"),
    Shot("report-gallery", "report.html", "#cases?eval=dense_dump&engine={backend}%3Aearly", keys=("g",)),
    Shot("report-phone", "report.html", "#cases?eval=dense_dump&engine={backend}%3Aearly&sort=%3Ccategory_f1", size=PHONE, keys=("j",)),
)
TRAINING_SHOTS = (
    Shot("compare", "compare.html"),
    Shot("compare-case", "compare.html", choose=(("#f-test", "dense_dump · test_objects"),), keys=("j",), scroll_to="#cases"),
    Shot("timeline", "timeline.html"),
    Shot("timeline-curves", "timeline.html", scroll_to=".slices"),
    Shot(
        "timeline-cases",
        "timeline.html",
        scheme="dark",
        choose=(("#case-test", "1"), ("#case-filter", "lost")),
        keys=("j", "Enter"),
        scroll_to="#cases",
    ),
    Shot("index", "../index.html", size=(1280, 620)),
)


def make_training_run(folder: Path, backend: str) -> Path:
    """Return the folder of a run on four steps of a training run, whole, the last two compared: the last has forgotten a category."""
    for name, step in STEPS.items():
        checkpoint = folder / "sft-42" / f"checkpoint-{step}"
        shutil.copytree(ROOT / "fixtures" / "checkpoints" / name, checkpoint)
        (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": max(STEPS.values())}))
    evals = ["evals/test_stage_a.py", "evals/test_dense_dump.py", "evals/test_stage_b.py"]
    options = ["--backend", backend, "--model", str(folder / "sft-42"), "--run-id", "sft-42", "--report-dir", str(folder / "reports")]
    subprocess.run([sys.executable, "-m", "pytest", "-q", *evals, *options], cwd=ROOT, check=False)
    return folder / "reports" / "sft-42"


def compare_last_steps(run_dir: Path) -> None:
    """Write compare.html of the last two steps into the run's folder; that it ends with 1 is what it is to show."""
    sides = [f"{run_dir}:checkpoint-{STEPS[name]}" for name in ("final", "regressed")]
    subprocess.run([sys.executable, "-m", "evalharness", "compare", *sides], stdout=subprocess.DEVNULL, check=False)


def make_run(folder: Path, backend: str) -> Path:
    """Return the folder of a new run on the shipped checkpoints; a failed gate is no failure here."""
    models = ",".join(str(ROOT / "fixtures" / "checkpoints" / name) for name in CHECKPOINTS)
    evals = ["evals/test_stage_a.py", "evals/test_dense_dump.py"]
    options = ["--backend", backend, "--shard", "1/4", "--model", models, "--run-id", "site-photos", "--report-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pytest", "-q", *evals, *options], cwd=ROOT, check=False)
    return folder / "site-photos"


def take(run_dir: Path, shots: Sequence[Shot], images: Path, backend: str) -> None:
    """Write one PNG per shot whose page the run has; shots of pages that it lacks are named and left out."""
    from playwright.sync_api import sync_playwright

    images.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        for shot in shots:
            if not (run_dir / shot.page).exists():
                print(f"{shot.name}: the run has no {shot.page}")
                continue
            size = {"width": shot.size[0], "height": shot.size[1]}
            page = browser.new_page(viewport=size, color_scheme=shot.scheme, reduced_motion="reduce")
            page.goto(f"{(run_dir / shot.page).absolute().as_uri()}{shot.anchor.format(backend=backend)}")
            page.wait_for_timeout(500)
            for selector, value in shot.choose:
                page.select_option(selector, value)
                page.wait_for_timeout(300)
            for key in shot.keys:
                page.keyboard.press(key)
                page.wait_for_timeout(800)
            if shot.scroll_to:
                page.evaluate("selector => document.querySelector(selector).scrollIntoView()", shot.scroll_to)
                page.wait_for_timeout(300)
            page.screenshot(path=images / f"{shot.name}.png")
            page.close()
            _shrink(images / f"{shot.name}.png")
        browser.close()


def _shrink(path: Path) -> None:
    """Make the picture one of few colours, fewer until it is small enough."""
    with Image.open(path) as picture:
        whole = picture.convert("RGB")
    for num_colours in (256, 128, 64, 32):
        whole.quantize(num_colours, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size <= MAX_BYTES:
            break
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, metavar="RUN_DIR", help="Take pictures of this run (default: make one)")
    parser.add_argument("--training-run", type=Path, metavar="RUN_DIR", help="Likewise, of compare.html, timeline.html and the index")
    parser.add_argument("--backend", default="hf", help="What makes the runs, or made the given one; vllm is quicker (default: hf)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        is_all = asked.run is None and asked.training_run is None
        if is_all or asked.run is not None:
            take(asked.run or make_run(Path(folder), asked.backend), SHOTS, IMAGES, asked.backend)
        if is_all or asked.training_run is not None:
            training_run = asked.training_run or make_training_run(Path(folder), asked.backend)
            compare_last_steps(training_run)
            take(training_run, TRAINING_SHOTS, IMAGES, asked.backend)


if __name__ == "__main__":
    main()
