"""Make the pictures of docs/images/ from a real run of the shipped checkpoints: `python docs/make_screenshots.py [--run RUN_DIR]`.

Without --run, a quarter of the cases of Stage-A and of dense dumps is asked of two shipped checkpoints first: one whose averages
look fine and that lost a category, and the last good one. Needs Chromium and the extra `test`; a font with Chinese characters
shows names as they are.
"""

from __future__ import annotations

import argparse
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
CHECKPOINTS = ("final", "regressed")
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


SHOTS = (
    Shot("report", "report.html"),
    Shot("report-case", "report.html", "#cases?eval=dense_dump&engine=hf%3Aregressed&sort=%3Ccategory_f1", scheme="dark", keys=("j",)),
    Shot("report-gallery", "report.html", "#cases?eval=dense_dump&engine=hf%3Aregressed", keys=("g",)),
    Shot("report-phone", "report.html", "#cases?eval=dense_dump&engine=hf%3Aregressed&sort=%3Ccategory_f1", size=PHONE, keys=("j",)),
)


def make_run(folder: Path) -> Path:
    """Return the folder of a new run on the shipped checkpoints; a failed gate is no failure here."""
    models = ",".join(str(ROOT / "fixtures" / "checkpoints" / name) for name in CHECKPOINTS)
    evals = ["evals/test_stage_a.py", "evals/test_dense_dump.py"]
    options = ["--shard", "1/4", "--model", models, "--run-id", "site-photos", "--report-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pytest", "-q", *evals, *options], cwd=ROOT, check=False)
    return folder / "site-photos"


def take(run_dir: Path, shots: Sequence[Shot], images: Path) -> None:
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
            page.goto(f"{(run_dir / shot.page).absolute().as_uri()}{shot.anchor}")
            page.wait_for_timeout(500)
            for key in shot.keys:
                page.keyboard.press(key)
                page.wait_for_timeout(800)
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
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        take(asked.run or make_run(Path(folder)), SHOTS, IMAGES)


if __name__ == "__main__":
    main()
