"""Runs the campaign; see `benchmarks/hostile/__init__.py`."""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.hostile.files import Damage, damages, make_bases
from benchmarks.hostile.images import images
from benchmarks.hostile.readers import READERS
from benchmarks.hostile.replies import replies
from benchmarks.hostile.texts import texts
from benchmarks.hostile.watched import LONG_START_S, START_S, Watched, run_watched

_DEVICE, _OUTSIDE = "/dev/zero", "/etc/hostname"


def corpus(folder: Path, seed: int) -> Iterator[Damage]:
    """Yield all inputs; the real folders that are damaged are made in `folder`."""
    empty = folder / "empty"
    empty.mkdir()
    yield from (Damage("text", name, empty, {"text": text.encode("utf-8", "surrogatepass")}) for name, text in texts(seed))
    yield from (Damage("image", name, empty, {"image.png": content}) for name, content in images(seed))
    for name, content in replies(seed):
        yield Damage("reply", name, empty, {"reply": content, **({"silent": b""} if name.endswith("then silence") else {})})
    yield from damages(make_bases(folder), seed)


def put(damage: Damage, folder: Path) -> int:
    """Write an input; return the number of bytes of what was damaged."""
    shutil.copytree(damage.base, folder, copy_function=os.link)
    for name, content in damage.files.items():
        (folder / name).unlink(missing_ok=True)  # a link to the original
        (folder / name).write_bytes(content)
    for name, what in damage.special.items():
        path = folder / name
        path.unlink(missing_ok=True)
        if what == "folder":
            path.mkdir()
        elif what == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to({"link to a device": _DEVICE, "link outside": _OUTSIDE}.get(what, path))
    return sum(map(len, damage.files.values()))


def main() -> int:
    """Run every reader on every input of its kind; return 1 if any did what it must not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(READERS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=1, help="take only every nth input")
    parser.add_argument("--jobs", type=int, default=1, help="inputs that are read side by side")
    parser.add_argument("--write", type=Path, help="keep the corpus here, with corpus.tsv: kind, name, bytes, SHA-256")
    options = parser.parse_args()
    num_inputs: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    faults: dict[str, list[str]] = {}
    slowest: dict[str, tuple[float, str]] = {}
    lines: list[str] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        (top / "bases").mkdir()
        chosen = [
            (number, damage)
            for number, damage in enumerate(corpus(top / "bases", options.seed))
            if number % options.every == 0 and options.only in (None, damage.kind)
        ]
        with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("fork")) as pool:
            for (number, damage), readings in zip(chosen, pool.map(partial(_readings, top), chosen), strict=True):
                num_inputs[damage.kind] += 1
                digest = hashlib.sha256(b"".join(damage.files.values())).hexdigest()
                num_bytes = sum(map(len, damage.files.values()))
                lines.append(f"{damage.kind}\t{damage.name}\t{num_bytes}\t{digest}\n")
                for reader, done in readings.items():
                    _note(f"{damage.kind}: {reader}", damage, num_bytes, done, outcomes, faults, slowest)
                if options.write is not None:
                    _keep(damage, options.write / damage.kind / f"{number:04}")
    if options.write is not None:
        (options.write / "corpus.tsv").write_text("".join(lines), encoding="utf-8", errors="backslashreplace")
    counts = ", ".join(f"{count} {kind}" for kind, count in num_inputs.items())
    print(f"{platform.machine()}, Python {platform.python_version()}, seed {options.seed}: {sum(num_inputs.values())} inputs ({counts})")
    print(
        f"{sum(outcomes.values())} readings in {time.monotonic() - started:.0f} s: "
        + ", ".join(f"{n} {what}" for what, n in outcomes.most_common())
    )
    for reader, (cpu_s, which) in sorted(slowest.items(), key=lambda each: -each[1][0])[:10]:
        print(f"slowest of {reader}: {cpu_s:.2f} s of CPU, {which}")
    for fault, inputs in sorted(faults.items(), key=lambda each: -len(each[1])):
        print(f"FAULT {len(inputs)} × {fault}\n      {'; '.join(inputs[:3])}")
    return 1 if faults else 0


def _readings(top: Path, given: tuple[int, Damage]) -> dict[str, Watched]:
    """Return what each reader of its kind did with an input."""
    number, damage = given
    done = {}
    for reader, read in READERS[damage.kind].items():
        folder = top / f"input-{number}"
        num_bytes = put(damage, folder)
        done[reader] = run_watched(read, folder, num_bytes, START_S.get(damage.kind, LONG_START_S))
        shutil.rmtree(folder)
    return done


def _note(
    reader: str,
    damage: Damage,
    num_bytes: int,
    done: Watched,
    outcomes: Counter[str],
    faults: dict[str, list[str]],
    slowest: dict[str, tuple[float, str]],
) -> None:
    outcomes[done.outcome.partition(":")[0]] += 1
    slowest[reader] = max(slowest.get(reader, (0.0, "")), (done.cpu_s, f"{damage.name}, {num_bytes / 1e6:.2f} MB"))
    for fault in done.faults:
        faults.setdefault(f"{reader}: {fault}", []).append(damage.name)


def _keep(damage: Damage, folder: Path) -> None:
    for name, content in damage.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
