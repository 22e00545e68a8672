"""Which engines a run uses: checkpoint × backend × dtype. Loads no torch; `engines.py` opens them."""

from __future__ import annotations

import glob
import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from evalharness.api.errors import CheckpointError
from evalharness.backends import AUTO
from evalharness.checkpoints.discovery import find_models, training_facts
from evalharness.checkpoints.gguf import refuse_gguf
from evalharness.checkpoints.hub import hub_facts
from evalharness.checkpoints.identity import fingerprint_adapted, fingerprint_of, stamp_of
from evalharness.checkpoints.info import CheckpointInfo, inspect_checkpoint, name_checkpoints
from evalharness.config import RunConfig
from evalharness.config.checks import constraints_of, idle_devices
from evalharness.config.kinds import Option
from evalharness.config.options import OPTIONS
from evalharness.hardware.auto_backend import Chosen
from evalharness.hardware.devices import installed_cards, uses_cards, visible_cards
from evalharness.runs.schema import EngineEntry

_ECHO = "echo"
_GIVE = "give 'echo' or a JSONL file of answers"


@dataclass(frozen=True)
class EngineSpec:
    """One engine of the run; `id` ("hf:final") names it in test ids, rows and reports."""

    id: str
    backend: str
    checkpoint: str
    checkpoint_path: str
    fingerprint: str | None = None
    variant: str | None = None
    options_not_taken: tuple[str, ...] = ()
    """Options that were set for the run, but that mean nothing to this backend."""
    dtype: str | None = None
    """The type of the weights that was asked for, None for the default."""
    base_path: str | None = None
    """The folder of the base where `checkpoint_path` is an adapter's."""
    base_fingerprint: str | None = None
    adapter_fingerprint: str | None = None
    """Of an adapter, `fingerprint` is made of both."""
    stamp: str | None = None
    """What the file system said of the checkpoint's files before they were read for the fingerprint, see `stamp_of`."""
    chosen: str | None = None
    """Why `--backend auto` took this backend, None where it was named."""
    quantization: Mapping[str, Any] | None = None
    """How the weights are kept in fewer bits, as the checkpoint says."""
    training: Mapping[str, Any] | None = None
    """Step, epoch and time of saving, where trainer_state.json tells."""
    hub: Mapping[str, Any] | None = None
    """Name, revision and licence's file of a checkpoint from the hub."""
    base_hub: Mapping[str, Any] | None = None
    """Those of an adapter's base."""

    def to_json(self) -> EngineEntry:
        """Return plain JSON data."""
        return cast("EngineEntry", {**asdict(self), "options_not_taken": list(self.options_not_taken)})

    def check_unchanged(self) -> None:
        """Raise `CheckpointError` where the files are not those of the fingerprint any more: a trainer has written another step there."""
        if self.stamp is not None and not self._is_unchanged():
            raise CheckpointError(
                f"{self.checkpoint_path} was written to, or removed, after the run had begun, so its answers would go by the name of other "
                "weights; start again, with folders that no trainer writes to"
            )

    def _is_unchanged(self) -> bool:
        own, *base = (Path(path) for path in (self.checkpoint_path, self.base_path) if path is not None)
        try:
            if stamp_of(own, *base) == self.stamp:
                return True
            found = fingerprint_of(own)  # it may have been touched only
            return self.fingerprint == (fingerprint_adapted(fingerprint_of(base[0]), found) if base else found)
        except CheckpointError:
            return False

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> EngineSpec:
        """Return the spec that `to_json` wrote."""
        return cls(**{**values, "options_not_taken": tuple(values["options_not_taken"])})


def engine_specs(
    run: RunConfig, root: Path, on_notice: Callable[[str], None] = warnings.warn, *, chosen: Mapping[str, Chosen] | None = None
) -> list[EngineSpec]:
    """Return one spec per checkpoint × backend × dtype, ordered so that checkpoints of one kind of engine can be swapped.

    Raises `CheckpointError` or `ConfigError` before anything is loaded. `on_notice` is told of skipped checkpoints and oddities of
    adapters. `chosen`: what `--backend auto` stands for, by path, where that is known already.
    """
    specs: list[EngineSpec] = []
    dtypes = run.dtype or (None,)
    real = [name for name in run.backend if name != "fake"]
    if real:
        paths = find_models(run.model, root, wait_s=run.wait, on_notice=on_notice, download=run.download)
        how: dict[str, Any] = {name: getattr(run, name) for name in ("trust_remote_code", "allow_pickle", "base_model", "download")}
        infos, stamps = [], []
        seen: dict[Path, CheckpointInfo] = {}
        for path in paths:
            info = inspect_checkpoint(path, root=root, **how)
            stamps.append(info.stamp())  # before its files are read, which may take minutes
            if info.base is not None:  # of several adapters, and maybe evaluated itself: it is read once
                info = replace(info, base=seen.setdefault(info.base.path, info.base))
            infos.append(seen.setdefault(path, info))
        for path in dict.fromkeys(info.path for info in infos if not info.has_chat_template):
            on_notice(
                f"checkpoint {path} has no chat template, so only bare texts can be asked (CompletionRequest); "
                "for chats copy the chat_template.jinja of the checkpoint that it was trained from into it"
            )
        backends = _backends(run, infos, chosen or {})
        for path, own_name, info, stamp in zip(paths, name_checkpoints(paths), infos, stamps, strict=True):
            for backend, _ in backends[path]:
                refuse_gguf(path, backend)
            name = own_name if info.base is None else f"{name_checkpoints([info.base.path])[0]}+{own_name}"
            for notice in info.adapter.notices if info.adapter is not None else ():
                on_notice(notice)
            specs += [
                EngineSpec(
                    f"{backend}:{name}{f'@{dtype}' if dtype is not None and len(dtypes) > 1 else ''}",
                    backend,
                    name,
                    str(path),
                    info.fingerprint,
                    info.variant,
                    _not_taken(backend, run, info.variant),
                    dtype,
                    base_path=str(info.base.path) if info.base is not None else None,
                    base_fingerprint=info.base.fingerprint if info.base is not None else None,
                    adapter_fingerprint=info.adapter.fingerprint if info.adapter is not None else None,
                    stamp=stamp,
                    quantization=info.quantization,
                    chosen=why,
                    training=training_facts(path),
                    hub=hub_facts(path),
                    base_hub=hub_facts(info.base.path) if info.base is not None else None,
                )
                for backend, why in backends[path]
                for dtype in (dtypes if _DTYPE.is_for(backend) else (None,))
            ]
        order = list(dict.fromkeys(backend for each in backends.values() for backend, _ in each))
        specs.sort(key=lambda spec: (order.index(spec.backend), dtypes.index(spec.dtype) if spec.dtype is not None else 0))
    if "fake" in run.backend:
        scripts = _scripts(run)
        names = _script_names(scripts)
        not_taken = _not_taken("fake", run)
        specs += [
            EngineSpec(f"fake:{name}", "fake", name, script, _script_fingerprint(script), None, not_taken)
            for script, name in zip(scripts, names, strict=True)
        ]
    for notice in _idle_options(run, specs):
        on_notice(notice)
    return specs


def _backends(run: RunConfig, infos: Sequence[CheckpointInfo], chosen: Mapping[str, Chosen]) -> dict[Path, list[tuple[str, str | None]]]:
    """Return the backends of each checkpoint by its path, and the reason where `auto` chose."""
    if AUTO not in run.backend:
        return {info.path: [(name, None) for name in run.backend if name != "fake"] for info in infos}
    from evalharness.hardware.auto_backend import choose_backends  # few runs let it choose

    open_infos = [info for info in infos if str(info.path) not in chosen]
    has_cards = uses_cards(run) and bool(visible_cards(os.environ, installed_cards()))
    backends = choose_backends(constraints_of(run), open_infos, has_cards=has_cards)
    choices = {**chosen, **{str(info.path): choice for info, choice in zip(open_infos, backends, strict=True)}}
    return {info.path: [(choices[str(info.path)].backend, choices[str(info.path)].why)] for info in infos}


def choices_of_auto(specs: Iterable[EngineSpec]) -> Iterator[str]:
    """Yield what `--backend auto` chose and why, equal choices together."""
    by_choice: dict[tuple[str, str], list[str]] = {}
    for spec in specs:
        if spec.chosen is not None:
            by_choice.setdefault((spec.backend, spec.chosen), []).append(spec.checkpoint)
    for (backend, why), names in by_choice.items():
        yield f"auto chose {backend} for {', '.join(dict.fromkeys(names))}: {why}"


def _idle_options(run: RunConfig, specs: Sequence[EngineSpec]) -> Iterator[str]:
    """Yield command-line options that concern no checkpoint of this run; options in a settings file may be meant for other runs."""
    for name in OF_IMAGES:
        if run.origin(name) == "command line" and all((run.variant or spec.variant) == "text" for spec in specs):
            yield f"--{name.replace('_', '-')} {getattr(run, name)} is not used: no checkpoint of this run takes images"
    if run.origin("base_model") == "command line" and all(spec.base_path is None for spec in specs):
        yield f"--base-model {run.base_model} is not used: no checkpoint of this run is an adapter"
    if idle_devices(run):
        yield f"--devices {run.devices} is not used: the server has its own, and nothing of this run needs one"
    for pattern, space in (run.coordinates or ()) if run.origin("coordinates") == "command line" else ():
        if pattern and not any(fnmatchcase(spec.checkpoint, pattern) for spec in specs):
            names = ", ".join(dict.fromkeys(spec.checkpoint for spec in specs))
            yield f"--coordinates {pattern}={space} matches no checkpoint of this run: {names}"


def _not_taken(backend: str, run: RunConfig, variant: str | None = None) -> tuple[str, ...]:
    """Return the set options that only other engines of the run take."""
    return tuple(option.name for option in OPTIONS if run.is_set(option.name) and not concerns(option, backend, run, variant))


OF_IMAGES = ("max_pixels", "min_pixels")
_DTYPE = next(option for option in OPTIONS if option.name == "dtype")


def concerns(option: Option, backend: str, run: RunConfig, variant: str | None = None) -> bool:
    """Return whether an option means anything to a checkpoint of a variant on a backend of this run, or on its fallback."""
    if option.name in OF_IMAGES and (run.variant or variant) == "text":
        return False
    return any(option.is_for(name) for name in (backend, run.fallback_backend) if name is not None)


def _script_names(scripts: Sequence[str]) -> list[str]:
    bare = [Path(script).with_suffix("") for script in scripts]
    paths = [Path(script) if bare.count(path) > 1 else path for script, path in zip(scripts, bare, strict=True)]
    # `echo` is not a file; as a path of one part it keeps its name, whatever scripts are called.
    return name_checkpoints([Path("/", _ECHO) if script == _ECHO else path for script, path in zip(scripts, paths, strict=True)])


def _script_fingerprint(script: str) -> str | None:
    """Return the SHA-256 of a file of answers, so that a resumed run notices a different one; None for `echo`."""
    if script == _ECHO:
        return None
    try:
        return hashlib.sha256(Path(script).read_bytes()).hexdigest()
    except OSError as error:
        raise CheckpointError(f"{script} cannot be read: {error.strerror}; {_GIVE}") from error


def _scripts(run: RunConfig) -> list[str]:
    """Return the scripts of the fake backend: `echo`, or files of answers. Raises `CheckpointError` for any other path."""
    # A project's settings name a real checkpoint; the fake backend then echoes unless a file of answers was asked for.
    from_settings = run.origin("model") not in ("command line", "environment EVALHARNESS_MODEL")
    if from_settings and not (run.model and all(Path(path).is_file() for path in run.model)):
        return [_ECHO]
    if set(run.backend) != {"fake"}:
        return [_ECHO]  # the others have refused everything that is no checkpoint
    return list(dict.fromkeys(script for path in run.model for script in _scripts_of(path)))


def _scripts_of(pattern: str) -> list[str]:
    path = Path(pattern)
    if path.is_file():
        return [pattern]
    if path.is_dir():
        raise CheckpointError(f"backend 'fake' takes no checkpoint, but got the folder {pattern}; {_GIVE} or choose --backend hf or vllm")
    if path.name == _ECHO:
        return [_ECHO]
    matches = sorted(match for match in glob.glob(pattern, recursive=True) if os.path.isfile(match))
    if not matches:
        raise CheckpointError(f"backend 'fake' got --model {pattern}, which is not a file; {_GIVE}")
    return matches
