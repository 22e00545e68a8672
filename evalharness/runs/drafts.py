"""The answers of an earlier run as drafts for this one: where each stands in the journals, read when its case is asked again.

An answer is found by engine, eval, case, and sample or request of a step, not by its prompt: photos have equal prompts, and where a prompt
has changed, its old answer is mostly right still. About 20 bytes are kept for each answer.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from pathlib import Path
from typing import Any

from evalharness.api.errors import RecordError
from evalharness.runs.files import numbered_lines, open_for_reading
from evalharness.runs.journal import journals_of

_KINDS = (b'{"kind":"generation",', b'{"kind":"step",')
_GENERATION = b',"generation":'
_MOST_ENGINES = 100
"""That are asked for an answer which an engine has not; a stranger's journal may name a million."""


class RecordedAnswers:
    """The answers in a run's journals, as they are now: the run may still go on."""

    def __init__(self, run_dir: Path) -> None:
        import numpy as np

        engines: dict[str, None] = {}
        self._run_dir = run_dir
        self._paths = journals_of(run_dir)
        keys, files, offsets, sizes = array("Q"), array("I"), array("Q"), array("I")
        for number, path in enumerate(self._paths):
            try:
                with open_for_reading(path, run_dir) as file:
                    offset = 0
                    for _, raw in numbered_lines(file, path):
                        if raw.startswith(_KINDS) and raw.endswith(b"\n"):
                            keys.append(_key_of(raw, engines))
                            files.append(number)
                            offsets.append(offset)
                            sizes.append(len(raw))
                        offset += len(raw)
            except OSError as error:
                raise RecordError(f"{path} cannot be read for drafts: {error.strerror}") from error
        self._engines = tuple(reversed(engines))[:_MOST_ENGINES]
        # Of several with one key the last counts: an answer that was made again.
        order = np.argsort(np.frombuffer(keys, np.uint64), kind="stable") if keys else np.zeros(0, np.int64)
        self._keys, self._files, self._offsets, self._sizes = (
            np.frombuffer(values, kind)[order] if len(values) else np.zeros(0, kind)
            for values, kind in ((keys, np.uint64), (files, np.uint32), (offsets, np.uint64), (sizes, np.uint32))
        )

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, engine: str, eval_name: str, case_id: str, place: tuple[int, ...]) -> list[int]:
        """Return the ids of an answer, that engine's if there is one, else of the engine that came last; none where there is no answer.

        `place`: the sample, or step and request.
        """
        for name in (engine, *self._engines):
            key = self._keys.dtype.type(_key(name, eval_name, case_id, place))
            index = int(self._keys.searchsorted(key, side="right")) - 1
            if index >= 0 and self._keys[index] == key:
                return self._read(index)
        return []

    def _read(self, index: int) -> list[int]:
        try:
            with open_for_reading(self._paths[int(self._files[index])], self._run_dir) as file:
                file.seek(int(self._offsets[index]))
                made = json.loads(file.read(int(self._sizes[index])))["generation"]
            return ids_of(made)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # damaged, or removed meanwhile: no draft
            return []


def ids_of(made: Any) -> list[int]:
    """Return the ids of a recorded generation, with the one that ended it; none of a given response."""
    ids, reason = made.get("token_ids"), made.get("stop_reason")
    if not isinstance(ids, list) or made.get("finish_reason") == "scored" or not all(type(one) is int and 0 <= one < 2**31 for one in ids):
        return []
    ends = type(reason) is int and 0 <= reason < 2**31 and ids[-1:] != [reason]
    return [*ids, reason] if ends else ids


def _key_of(raw: bytes, engines: dict[str, None]) -> int:
    """Return the key of a line's answer, 0 for a damaged line; its engine goes into `engines`."""
    head, _, _ = raw.partition(_GENERATION)
    try:
        values = json.loads(head + b"}")
        place = (values["sample"],) if "sample" in values else (values["step"], values["request"])
        key = _key(values["engine"], values["eval"], values["case_id"], place)
        engines.setdefault(values["engine"])
        return key
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0


def _key(engine: str, eval_name: str, case_id: str, place: tuple[int, ...]) -> int:
    text = "\0".join((engine, eval_name, case_id, *map(str, place)))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
