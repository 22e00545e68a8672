"""Answers that need not be generated again: in memory, and on disk across runs. Off unless requested.

Only deterministic requests are cached: greedy ones, and sampled ones with a given seed. The key holds all that an answer depends on: the
rendered prompt, each image's SHA-256, every resolved option, and the identity of the engine (checkpoint and adapter by fingerprint, weight
version, backend, dtype, versions of the libraries). The cache stores token ids, no texts: stop policy and decoding run anew. Float32
answers do not depend on the rest of a batch; 16-bit answers may, at near-ties, so a cached answer may differ from what this batch would
have given.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalharness.api.errors import ConfigError
from evalharness.backends.base import Completion, Prompt, SamplingPlan

if TYPE_CHECKING:
    import sqlite3

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, value TEXT NOT NULL, used_at REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answers_used_at ON answers (used_at);
"""
_FILE = "answers-2.sqlite"  # the number changes with the stored format
_BUSY_S = 30.0
_EVICT_EVERY = 256  # answers; counting the file's rows for each would cost more than it saves


@dataclass
class CacheCounts:
    """How many requests the cache answered, how many it could have answered but did not, and how many can never be cached."""

    hits: int = 0
    misses: int = 0
    not_cacheable: int = 0


def cache_key(identity: Mapping[str, Any], prompt: Prompt, image_hashes: Sequence[str]) -> str:
    """Return the SHA-256 (hex) of everything that an answer depends on, hashed as structure, so that joined texts cannot collide."""
    plan = asdict(prompt.plan)
    question = {
        "engine": dict(identity),
        "prompt": prompt.text,
        "token_ids": list(prompt.token_ids),
        "response": None if prompt.response_ids is None else list(prompt.response_ids),
        "images": list(image_hashes),
        "plan": plan,
        **({"greedy": True} if prompt.asks_greedy else {}),
    }
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()


def is_deterministic(plan: SamplingPlan, *, seed_was_given: bool) -> bool:
    """Return whether the same request must always give the same answer."""
    return plan.temperature == 0.0 or seed_was_given


class ResponseCache:
    """At most `max_entries` answers in memory, the least recently used dropped first; with a `folder`, on disk as well.

    Threads and processes may share a folder. An unreadable or unwritable file costs hits, never an answer: `on_notice` is told once. Raises
    `ConfigError` if the folder cannot be made.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        max_entries: int = 4096,
        max_entries_on_disk: int = 1_000_000,
        on_notice: Callable[[str], None] = lambda message: None,
    ) -> None:
        if max_entries < 1 or max_entries_on_disk < 1:
            raise ConfigError(f"a cache needs room for at least 1 answer, got {max_entries} in memory and {max_entries_on_disk} on disk")
        self.counts = CacheCounts()
        self._entries: OrderedDict[str, str] = OrderedDict()
        self._max_entries = max_entries
        self._max_on_disk = max_entries_on_disk
        self._on_notice = on_notice
        self._lock = threading.Lock()
        self._put_since_eviction = 0
        self._file = _open(folder) if folder is not None else None

    def __len__(self) -> int:
        """Return the number of answers in memory."""
        return len(self._entries)

    def get(self, key: str, index: int) -> Completion | None:
        """Return a new copy of the answer, for the prompt of that index; None if there is none."""
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            else:
                value = self._read(key)
                if value is not None:
                    self._remember(key, value)
            answer = _completion(value) if value is not None else None
            self.counts.hits += answer is not None
            self.counts.misses += answer is None
        return None if answer is None else replace(answer, index=index)

    def put(self, key: str, completion: Completion, *, on_disk: bool = True) -> None:
        """Store an answer; `on_disk` False: in memory only."""
        value = json.dumps(asdict(completion))
        with self._lock:
            self._remember(key, value)
            if on_disk:
                self._write(key, value)

    def clear(self) -> None:
        """Forget all answers, those on disk too; counts go on."""
        with self._lock:
            self._entries.clear()
            self._on_file(lambda file: file.execute("DELETE FROM answers"))

    def _remember(self, key: str, value: str) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def _read(self, key: str) -> str | None:
        def read(file: sqlite3.Connection) -> str | None:
            row = file.execute("SELECT value FROM answers WHERE key = ?", (key,)).fetchone()
            if row is not None:
                file.execute("UPDATE answers SET used_at = ? WHERE key = ?", (time.time(), key))
            return row[0] if row is not None else None

        return self._on_file(read)

    def _write(self, key: str, value: str) -> None:
        def write(file: sqlite3.Connection) -> None:
            file.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (key, value, time.time()))
            self._put_since_eviction += 1
            if self._put_since_eviction >= min(_EVICT_EVERY, self._max_on_disk):
                self._put_since_eviction = 0
                surplus = file.execute("SELECT count(*) FROM answers").fetchone()[0] - self._max_on_disk
                oldest = "SELECT key FROM answers ORDER BY used_at LIMIT ?"
                file.execute(f"DELETE FROM answers WHERE key IN ({oldest})", (max(0, surplus),))

        self._on_file(write)

    def _on_file(self, do: Callable[[sqlite3.Connection], Any]) -> Any:
        if self._file is None:
            return None
        import sqlite3

        try:
            with self._file:
                return do(self._file)
        except sqlite3.Error as error:
            self._on_notice(f"the cache on disk is not used from here on: {error}")
            self._close_file()
            return None

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close the file; the answers in memory are forgotten."""
        with self._lock:
            self._entries.clear()
            self._close_file()


def _open(folder: Path) -> sqlite3.Connection:
    import sqlite3  # only where answers are kept on disk

    path = folder / _FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False)
        file.execute("PRAGMA journal_mode = WAL")  # readers need not wait for a writer
        file.execute("PRAGMA synchronous = NORMAL")
        with file:
            file.executescript(_SCHEMA)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"the cache {path} cannot be used: {error}; choose another folder, or remove the file") from error
    return file


def _completion(value: str) -> Completion | None:
    """Return the stored completion, None if the line is damaged."""
    try:
        kept = json.loads(value)
        lists = {name: tuple(kept[name]) for name in ("token_ids", "logprobs", "entropies") if kept[name] is not None}
        return Completion(**{**kept, **lists, "image_grids": tuple(map(tuple, kept["image_grids"]))})
    except (ValueError, KeyError, TypeError):
        return None
