"""How long it takes to know a checkpoint: cold, with its files in memory or not, before and beside loading, and remembered.

    python -m benchmarks.checkpoint_identity [--gigabytes 16] [--folder /tmp]

Writes a checkpoint of random bytes in shards, waits until its hashes may be remembered (a minute after the last change), and removes it.
The operating system's cache of the files is dropped where that is allowed (Linux, `posix_fadvise`); else "cold" means read from memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evalharness.checkpoints import file_hashes
from evalharness.checkpoints.identity import fingerprint_of

_SHARD_BYTES = 1 << 30
_TARGET_GB = 16


def write_checkpoint(folder: Path, num_shards: int) -> None:
    """Write shards of one tensor each, of random bytes, with their index and settings."""
    names = [f"model-{number:05}-of-{num_shards:05}.safetensors" for number in range(1, num_shards + 1)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(_write_shard, (folder / name for name in names), range(num_shards)))
    index = {"weight_map": {f"t{number}": name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")


def _write_shard(path: Path, number: int) -> None:
    head = json.dumps({f"t{number}": {"dtype": "U8", "shape": [_SHARD_BYTES], "data_offsets": [0, _SHARD_BYTES]}}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for _ in range(_SHARD_BYTES >> 24):
            file.write(os.urandom(1 << 24))
        os.fsync(file.fileno())


def load(folder: Path) -> None:
    """Read every shard into memory once, one after the other, as an engine does that copies tensors to a GPU."""
    block = bytearray(1 << 24)
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass


def forget(folder: Path) -> None:
    """Drop what the operating system holds of the files, and the hashes that are remembered."""
    shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds(folder: Path) -> tuple[float, float]:
    """Return how long the fingerprint takes, by the clock and of CPU time."""
    started, cpu_started = time.perf_counter(), time.process_time()
    fingerprint_of(folder)
    return time.perf_counter() - started, time.process_time() - cpu_started


def loaded_seconds(folder: Path, *, beside: bool) -> float:
    """Return how long a cold checkpoint takes to be known and loaded, one beside or after the other."""
    forget(folder)
    started = time.perf_counter()
    with ThreadPoolExecutor(1) as pool:
        known = pool.submit(fingerprint_of, folder)
        if not beside:
            known.result()
        load(folder)
        known.result()
    return time.perf_counter() - started


def main() -> None:
    """Measure, print, clean up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=int, default=4, help="Size of the checkpoint, GiB. Default: 4.")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="Where it is written. Default: temporary files.")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="evalharness-identity-", dir=arguments.folder))
    os.environ["XDG_CACHE_HOME"] = str(root / "cache")
    try:
        folder = root / "checkpoint"
        folder.mkdir()
        write_checkpoint(folder, arguments.gigabytes)
        size_mb = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        num_cores = len(os.sched_getaffinity(0))
        warm = seconds(folder)
        after, beside = (loaded_seconds(folder, beside=beside) for beside in (False, True))
        time.sleep(file_hashes.SETTLED_NS / 1e9 + 1)
        forget(folder)
        cold = seconds(folder)
        remembered = [seconds(folder) for _ in range(5)]
        is_remembered = (root / "cache" / "evalharness").is_dir()
        print(f"{size_mb:,.0f} MB in {arguments.gigabytes} files, {num_cores} cores, {shutil.disk_usage(folder).free / 1e9:,.0f} GB free")
        for name, (taken, cpu) in (("files in memory", warm), ("files on disk", cold)):
            print(f"{name}: {taken:.2f} s, {size_mb / taken:,.0f} MB/s; {cpu:.2f} s of CPU, {size_mb / cpu:,.0f} MB/s a core")
        print(f"remembered: {sorted(remembered)[2][0] * 1000:.1f} ms" if is_remembered else "nothing is remembered on this file system")
        print(f"known, then loaded: {after:.2f} s; known beside loading: {beside:.2f} s")
        rate = size_mb / 1e3 / cold[1]
        print(
            f"extrapolated from CPU time, not measured: {_TARGET_GB} GB take {_TARGET_GB / rate / 8:.1f} s on 8 such cores with such a disk"
        )
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
