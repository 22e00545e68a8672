"""Turns an eval marker into tests: one per case and engine, with written ids. Loads no torch."""

from __future__ import annotations

import hashlib
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.gates import DIRECTIONS
from evalharness.analysis.slice_gates import refuse_unknown_slices
from evalharness.api.cases import Case
from evalharness.api.errors import ConfigError, EvalHarnessError, MissingData, did_you_mean
from evalharness.api.hooks import GenerationPlugin, normalise_plugins
from evalharness.api.options import GenerationOptions
from evalharness.config import RunConfig
from evalharness.config.options import DECODING, cases_of_shard
from evalharness.pytest_plugin._pytest_internals import parameters_of, parametrised_fixture, report_collection
from evalharness.pytest_plugin.execution.case_request import CaseRequest, has_steps, is_async
from evalharness.pytest_plugin.execution.units import misread
from evalharness.pytest_plugin.gate_names import gates_of, refuse_unknown_metrics
from evalharness.pytest_plugin.loading import CasesNotLoaded, Loaded, load_cases

_LATE = ("aggregate", "across", "tables", "outputs")
_KEYWORDS = ("cases", "request", "options", "num_samples", "plugins", *_LATE, "draws", "suite", "directions", "data", "optional")
_FEWEST_DRAWS, _MOST_DRAWS = 100, 10_000
_NOTHING_TO_COMPARE = (
    "nothing to compare: this eval compares engines of one checkpoint, and each stands alone in this run; "
    "give it several with --backend hf,vllm or --dtype float32,bfloat16"
)
_EMPTY_PART = "the eval has fewer cases than there are parts (--shard): none is in this one"


@dataclass(frozen=True)
class EvalModule:
    """One eval: its cases, how each becomes a request, and how it is decoded.

    `variants` are the decodings of every case, decode settings × samples; their seed is the run's or the marker's. `plugins` act on the
    question, not on its steps. `marker` has the keywords of the eval marker.
    """

    name: str
    path: str
    cases: Sequence[Case]
    request: Callable[[Any], Any]
    variants: tuple[GenerationOptions, ...]
    num_samples: int
    run: RunConfig = field(default_factory=RunConfig)
    """Its decoding options outrank the eval's own."""
    marker: Mapping[str, Any] = field(default_factory=dict)
    plugins: tuple[GenerationPlugin, ...] = ()
    directions: Mapping[str, str] = field(default_factory=dict)
    """Scores that are not better when higher: "lower", or "none" for scores without a better direction."""
    no_data: str | None = None
    """Why there are no cases, where the eval is an optional one."""
    notices: tuple[str, ...] = ()
    """What the loader of the cases warned of."""
    num_loaded: int = 0
    """Of its cases, those included that --limit, --limit-first and --shard leave out."""
    repeats: Mapping[str, Case] = field(default_factory=dict)
    """The cases that are asked again (--noise), by the id of each repeat, in their order; drawn once tests are selected."""
    on_edge: frozenset[str] = frozenset()
    """With --until-certain, cases of which more are asked first; `cases` are then in the order of drawing."""

    def original(self, case: Case) -> Case:
        """Return the case that a repeat repeats, as the eval made it; any other case as it is."""
        return self.repeats.get(case.id, case) if self.repeats else case

    def options_for(self, case: Case) -> list[GenerationOptions]:
        """Return the variants of one case; where they sample, each has a seed of its own, the same on every engine.

        A single seed would make every case draw the same noise.
        """
        return [
            replace(options, seed=_derived_seed(options.seed, self.name, self.original(case).id, position % self.num_samples))
            if options.samples
            else options
            for position, options in enumerate(self.variants)
        ]

    def request_of(self, case: Case, check: Callable[[Iterable[GenerationOptions]], None] = lambda options: None) -> CaseRequest:
        """Return the request of a case; `check` raises for options of a step that cannot be honoured."""
        original = self.original(case)
        ask = self.request if original is case else _asking_of(original, self.request)
        return CaseRequest(case, ask, partial(self._step_options, original), check)

    def _step_options(self, case: Case, step: int, position: int, options: GenerationOptions) -> GenerationOptions:
        options = _overridden(options, self.run, f"request of {self.name}")
        if not options.samples:
            return options
        seed = self.run.seed if options.seed is None or self.run.is_set("seed") else options.seed
        return replace(options, seed=_derived_seed(seed, self.name, case.id, "step", step, position))


def _asking_of(original: Case, request: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the request function of a repeat, which asks what its original asks; a generator function stays one."""
    if has_steps(request):

        def in_steps(case: Case) -> Any:
            return (yield from request(original))

        return in_steps
    return lambda case: request(original)


def _derived_seed(*parts: object) -> int:
    text = "\0".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big") % 2**31


def read_eval(marker: pytest.Mark, path: str, run: RunConfig, root: Path, file: Path | None = None) -> EvalModule:
    """Return the eval that a marker describes, its cases loaded; raises `ConfigError` or `CasesNotLoaded`.

    `path` is what node ids say of it, which is not the path of its `file` if that is outside of rootdir.
    """
    given = dict(marker.kwargs)
    if marker.args:
        raise ConfigError(f"{path}: the eval marker takes keywords only: {', '.join(_KEYWORDS)}")
    for key in given:
        if key not in _KEYWORDS:
            if key in ("gate", "gates"):
                raise ConfigError(f"{path}: the eval marker has no {key!r}; put gates on a test: @pytest.mark.gate('valid >= 0.95')")
            raise ConfigError(f"{path}: the eval marker has no {key!r}{did_you_mean(key, _KEYWORDS) or '.'} Known: {', '.join(_KEYWORDS)}")
    for key in ("cases", "request"):
        if not callable(given.get(key)):
            raise ConfigError(f"{path}: the eval marker needs {key}=FUNCTION, got {reprlib.repr(given.get(key))}")
    if is_async(given["request"]):
        raise ConfigError(f"{path}: the eval marker's request is an async function; write a function, or a generator function for steps")
    _check_late(given, path)
    name = (file or Path(path)).stem.removeprefix("test_")
    loaded, no_data = _cases(given, path, run, root)
    cases = cases_of_shard(loaded.cases, run.shard)
    num_samples = _num_samples(given, path, run)
    variants = _variants(given, num_samples, path, run)
    plugins, directions = _plugins(given, path, run), _directions(given, path)
    request, unchanged = _as_chat(given["request"]) if run.as_chat else (given["request"], ())
    return EvalModule(
        name,
        path,
        cases,
        request,
        variants,
        num_samples,
        run,
        given,
        plugins,
        directions,
        no_data,
        (*loaded.notices, *unchanged),
        loaded.num_cases,
    )


def _check_late(given: Mapping[str, Any], path: str) -> None:
    """Raise `ConfigError` for what is used at the end of a run and would be wrong there."""
    for key in _LATE:
        if given.get(key) is not None and not callable(given[key]):
            raise ConfigError(f"{path}: the eval marker's {key} must be a function, got {reprlib.repr(given[key])}")
    draws, suite = given.get("draws", 0), given.get("suite")
    if not isinstance(draws, int) or isinstance(draws, bool) or not (draws == 0 or _FEWEST_DRAWS <= draws <= _MOST_DRAWS):
        raise ConfigError(f"{path}: the eval marker's draws must be 0 or {_FEWEST_DRAWS} to {_MOST_DRAWS:,}, got {reprlib.repr(draws)}")
    if draws and given.get("aggregate") is None:
        raise ConfigError(f"{path}: the eval marker has draws={draws} and no aggregate to call on them; means have intervals anyway")
    if suite is not None and (not isinstance(suite, str) or not re.fullmatch(r"[A-Za-z_]\w*", suite)):
        raise ConfigError(f"{path}: the eval marker's suite must be a name of letters, digits and _, got {reprlib.repr(suite)}")


def _cases(given: Mapping[str, Any], path: str, run: RunConfig, root: Path) -> tuple[Loaded, str | None]:
    """Return the cases, and why an optional eval without data has none."""
    optional = given.get("optional", False)
    if not isinstance(optional, bool):
        raise ConfigError(f"{path}: the eval marker's optional must be True or False, got {reprlib.repr(optional)}")
    try:
        folder = data_folder(given.get("data"), run, root)
        loaded = load_cases(given["cases"], folder, path, run)
        _check_data(given["request"], folder)
        return loaded, None
    except Exception as error:
        if optional and isinstance(error, MissingData):
            return Loaded((), 0, ()), f"this eval is optional, and has no data: {error}"
        raise CasesNotLoaded(error) from error


def _as_chat(request: Callable[[Any], Any]) -> tuple[Callable[[Any], Any], tuple[str, ...]]:
    """Return the request function of a template, or of one of its methods, that asks as a chat; another one as it is, and a notice."""
    owner = getattr(request, "__self__", request)
    make = getattr(owner, "as_chat", None)
    if not callable(make):
        return request, ("--as-chat left its requests as they are, which no template makes",)
    return (make() if owner is request else getattr(make(), request.__name__)), ()


def _check_data(request: Callable[[Any], Any], folder: Path | None) -> None:
    """Let a request that takes more than its case look for it now: a template for the pool of its worked examples."""
    check = getattr(getattr(request, "__self__", request), "check_data", None)
    if callable(check):
        check(folder)


def _overridden(options: GenerationOptions, run: RunConfig, where: str) -> GenerationOptions:
    overrides: dict[str, Any] = {name: getattr(run, name) for name in DECODING if run.is_set(name) and getattr(run, name) is not None}
    options = replace(options, **overrides) if overrides else options  # the same object is checked once
    if "top_p" in overrides and not options.samples:
        problem = f"--top-p {overrides['top_p']} has no effect with greedy decoding; set a temperature above 0 or leave it out"
        raise ConfigError(f"{where}: {problem}")
    return options


def _directions(given: Mapping[str, Any], path: str) -> dict[str, str]:
    directions = given.get("directions", {})
    if not isinstance(directions, Mapping) or not all(isinstance(name, str) and way in DIRECTIONS for name, way in directions.items()):
        legal = f"scores by name, each one of {', '.join(DIRECTIONS)}"
        raise ConfigError(f"{path}: the eval marker's directions must be {legal}; got {reprlib.repr(directions)}")
    return dict(directions)


def data_folder(marked: str | Path | None, run: RunConfig, root: Path) -> Path | None:
    """Return the argument of an eval's `cases` function: --data, else the marker's folder, else None."""
    if run.data is not None:
        return Path(run.data)
    return root / marked if marked is not None else None


def _plugins(given: Mapping[str, Any], path: str, run: RunConfig) -> tuple[GenerationPlugin, ...]:
    """Return the marker's plugins and the run's, which stand for the marker's of the same names."""
    plugins = given.get("plugins", ())
    if not isinstance(plugins, (list, tuple)):
        raise ConfigError(f"{path}: plugins must be a list such as [ObjectCap(60)], got {reprlib.repr(plugins)}")
    try:
        marked = normalise_plugins(plugins)
    except EvalHarnessError as error:
        raise ConfigError(f"{path}: {error}") from error
    named = {plugin.name for plugin in run.plugins}
    return (*(plugin for plugin in marked if plugin.name not in named), *run.plugins)


def plugin_names(plugins: Sequence[GenerationPlugin]) -> list[str]:
    """Return the names of plugins in records: the repr of a dataclass, else the plugin's name."""
    return [repr(plugin.plugin) if is_dataclass(plugin.plugin) else plugin.name for plugin in plugins]


def _num_samples(given: Mapping[str, Any], path: str, run: RunConfig) -> int:
    num_samples = run.num_samples if run.is_set("num_samples") else given.get("num_samples", 1)
    if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples < 1:
        raise ConfigError(f"{path}: num_samples must be an int of at least 1, got {num_samples!r}")
    return num_samples


def _variants(given: Mapping[str, Any], num_samples: int, path: str, run: RunConfig) -> tuple[GenerationOptions, ...]:
    marked = given.get("options", GenerationOptions())
    settings = list(marked) if isinstance(marked, (list, tuple)) else [marked]
    if not settings or not all(isinstance(options, GenerationOptions) for options in settings):
        raise ConfigError(f"{path}: options must be GenerationOptions or a list of them, got {marked!r}")
    first_seed = min((options.seed for options in settings if options.seed is not None), default=0)
    variants: list[GenerationOptions] = []
    for options in settings:
        options = _overridden(options, run, path)
        options.check_num_samples(f"{path}: num_samples", num_samples)
        seed = run.seed if options.seed is None else options.seed
        if options.seed is not None and run.is_set("seed"):
            # Seeds that differ still do: several samples of one setting would otherwise draw the same.
            seed = (run.seed + options.seed - first_seed) % 2**63
        variants += [replace(options, seed=seed)] * num_samples
    return tuple(variants)


def marks_of(holder: object) -> list[pytest.Mark]:
    """Return the marks in the `pytestmark` of a module, class or function."""
    marks: Any = getattr(holder, "pytestmark", ())
    marks = [getattr(mark, "mark", mark) for mark in (marks if isinstance(marks, (list, tuple)) else (marks,))]
    return [mark for mark in marks if isinstance(mark, pytest.Mark)]


def parametrize_eval(metafunc: pytest.Metafunc, engine_ids: Sequence[str], module: EvalModule | None) -> None:
    """Parametrise a test over engines and, in an eval module, over cases; ids read `engine-case`.

    Without engines (an eval that compares them, and none has a counterpart), or without a case in this part of the cases,
    there is one test, skipped with the reason.
    """
    nodeid = metafunc.definition.nodeid
    is_empty = module is not None and not module.cases
    if (not engine_ids or is_empty) and takes(metafunc, "case"):
        reason, name = (_EMPTY_PART, "empty-part") if is_empty else (_NOTHING_TO_COMPARE, "nothing-to-compare")
        if module is not None and module.no_data is not None:
            reason, name = module.no_data, "no-data"
        _parametrize_once(metafunc, None, name, pytest.mark.skip(reason=reason))
        return
    asks = takes(metafunc, "engine")
    if parameters_of(metafunc, "engine"):
        if module is not None and takes(metafunc, "case"):
            raise ConfigError(f"{nodeid} is parametrised with engines, but a test of cases runs on each engine of the run; leave that out")
    elif asks:
        metafunc.parametrize("engine", engine_ids, ids=engine_ids, indirect=True, scope="session")
    if not takes(metafunc, "case"):
        return
    if module is None:
        raise ConfigError(f"{nodeid}: fixtures case, generation and score need pytestmark = pytest.mark.eval(...) in the module")
    if takes(metafunc, "generation") and len(module.variants) > 1:
        raise ConfigError(f"{nodeid} takes `generation`, but {len(module.variants)} generations are made per case; take `generations`")
    if takes(metafunc, "steps") and not has_steps(module.request):
        raise ConfigError(
            f"{nodeid} takes `steps`, but the eval's request has no earlier steps; make it a generator that yields them, or drop `steps`"
        )
    gates = gates_of(metafunc.definition)  # a wrong expression is an error now, not after the run
    refuse_unknown_metrics(metafunc, module.marker, gates, module.cases)
    # Of --limit and --shard other cases may have the tag.
    are_all = len(module.cases) == module.num_loaded
    declared = None if are_all else _declared_tags(module.marker["cases"])
    refuse_unknown_slices(gates, (case.tags for case in module.cases), are_all=are_all, declared=declared)
    metafunc.parametrize("case", module.cases, ids=[case.id for case in module.cases])


def _declared_tags(cases: Any) -> Sequence[str] | None:
    """Return the names of all tags that cases can have; None where no declaration has them."""
    from evalharness.data.cases import RowCases  # loaded already by whoever made such ones

    return tuple(cases.tags) if isinstance(cases, RowCases) else None


def _parametrize_once(metafunc: pytest.Metafunc, value: object, name: str, *marks: pytest.MarkDecorator) -> None:
    """Give a test one parameter, the value of both engine and case."""
    names = [name for name in ("engine", "case") if takes(metafunc, name)]
    once = pytest.param(*[value] * len(names), id=name, marks=marks)
    metafunc.parametrize(names, [once], indirect=[name for name in names if name == "engine"])


def takes(metafunc: pytest.Metafunc, fixture: str) -> bool:
    """Return whether a test, or one of its fixtures, takes the plugin's fixture of this name rather than another one."""
    return fixture in metafunc.fixturenames and is_ours(parametrised_fixture(metafunc, fixture))


def is_named(metafunc: pytest.Metafunc, *, with_case: bool = False) -> bool:
    """Return whether the command line names the test's file, not only its folder; `with_case`: names one case in it."""
    here = metafunc.config.invocation_params.dir
    named = (arg.partition("::") for arg in metafunc.config.args)
    return metafunc.definition.path in {here / path for path, _, test in named if not with_case or "[" in test}


def refuse_misspelt_markers(metafunc: pytest.Metafunc) -> None:
    """Raise `ConfigError` for an unknown marker close to `eval` or `gate`, which would otherwise be ignored silently."""
    registered = {line.partition(":")[0].partition("(")[0].strip() for line in metafunc.config.getini("markers")}
    for marker in metafunc.definition.iter_markers():
        if marker.name not in registered and (meant := did_you_mean(marker.name, ("eval", "gate"), cutoff=0.75)):
            raise ConfigError(f"{metafunc.definition.nodeid} has the marker {marker.name!r}{meant} Markers here are: eval, gate")


def refuse_idle_gates(metafunc: pytest.Metafunc) -> None:
    """Raise `ConfigError` for a gate on a test that has no cases: it would never be judged."""
    if any(marker.name == "gate" for marker in metafunc.definition.own_markers):
        raise ConfigError(f"{metafunc.definition.nodeid} has a gate, but no cases to judge; take `case` and `generation` or `score`")


def is_ours(definitions: Sequence[Any] | None) -> bool:
    """Return whether the last definition of a fixture, which takes effect, is the plugin's own."""
    return definitions is not None and len(definitions) > 0 and definitions[-1].func.__module__ == "evalharness.pytest_plugin.fixtures"


def as_collection_error(error: EvalHarnessError) -> Exception:
    """Return an error that pytest shows as a short message, without a traceback."""
    return pytest.Collector.CollectError(str(error))


@dataclass(frozen=True)
class _Unloaded:
    """Stands for case and engine of a test whose cases cannot be loaded; a collection error unless it is deselected."""

    error: Exception


class _Cases(pytest.Collector):
    """A collector that raises the error, under the name of the module."""

    error: Exception

    def collect(self) -> Iterable[pytest.Item]:
        raise as_collection_error(self.error) if isinstance(self.error, EvalHarnessError) else self.error


def stand_in(metafunc: pytest.Metafunc, error: Exception) -> None:
    """Give a test one parameter that stands for an eval that cannot be loaded, or raise the error at once if it cannot wait.

    A test that is named with its case, or was selected because it failed before, would not be found, without any reason shown.
    """
    if metafunc.config.getoption("lf", False) or is_named(metafunc, with_case=True):
        raise error
    _parametrize_once(metafunc, _Unloaded(error), "no-cases")


def report_unloaded(session: pytest.Session, engine_ids: Sequence[str]) -> None:
    """Report a collection error for each module that still has such a test, or one with a misleading id, and take these tests out."""
    standing = {item: error for item in session.items if (error := _error_of(item) or misread(item, engine_ids)) is not None}
    if standing:
        session.items[:] = [item for item in session.items if item not in standing]
    for module, error in {item.getparent(pytest.Module): error for item, error in standing.items()}.items():
        assert module is not None
        cases: Any = _Cases.from_parent(module, name=module.name, nodeid=module.nodeid)
        cases.error = error
        report_collection(cases)


def _error_of(item: pytest.Item) -> Exception | None:
    params = getattr(getattr(item, "callspec", None), "params", {})
    return next((value.error for value in params.values() if isinstance(value, _Unloaded)), None)
