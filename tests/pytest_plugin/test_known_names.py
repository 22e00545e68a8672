"""Names of scores and metrics are read from code: those that can come, or none where it leaves a doubt. Nothing here is ever called."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evalharness.analysis.statistics.samples import sample_scores
from evalharness.answers import by_filter, first_match, last_number
from evalharness.pytest_plugin.known_names import names_recorded, names_returned
from evalharness.scores import all_of, choice_aggregates, choice_scores, macro_over, perplexity_aggregates, translation

FILTERS = {"strict": first_match("#"), "flexible": last_number()}
FIELDS = ("title", "year")
PREFIX = ""
NAMES = ["a"]
HANDED_ON = {"a": 1.0}
FILLED_LATER: dict[str, float] = {}


@dataclass(frozen=True)
class Judged:
    answer: str
    scores: Mapping[str, float]

    def scored(self, name: str) -> dict[str, float]:
        return {f"{name}_right": 1.0}


@dataclass(frozen=True)
class Computed:
    answer: str

    @property
    def scores(self) -> dict[str, float]:
        return {"made": 1.0}


class Pair(NamedTuple):
    scores: dict[str, float]
    problem: str


@dataclass
class Checked:
    scores: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scores["checked"] = 1.0


@dataclass
class Counted:
    scores: dict[str, float]

    def __eq__(self, other: object) -> bool:
        self.scores["compared"] = 1.0
        return False


class Proxy:
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("there is nothing behind it yet")


PROXY: Any = Proxy()


class Free:
    def __init__(self, scores: dict[str, float]) -> None:
        self.scores = scores
        scores["free"] = 1.0


def judge(text: str, *, strict: bool = False) -> Judged:
    scores = {"valid": 1.0}
    if strict:
        scores["strict"] = 0.0
    elif text:
        scores |= {"long": 1.0}
    scores.update(short=0.0)
    for name in FIELDS:
        scores[f"{name}_found"] = 1.0
    return Judged(text, {name: value for name, value in scores.items() if value is not None})


def pair_of(text: str) -> Pair:
    return Pair({"a": 1.0}, "")


def two_of(text: str) -> tuple[dict[str, float], str]:
    scores = dict.fromkeys(("x", "y"), 0.0)
    return scores, text


def configure(prefix: str) -> None:
    global PREFIX
    PREFIX = prefix
    NAMES.append(prefix)


def fill(scores: dict[str, float]) -> None:
    scores["filled"] = 1.0


def returned(scores: dict[str, float]) -> dict[str, float]:
    return scores


def kept(scores: dict[str, float] = {"a": 1.0}) -> dict[str, float]:  # noqa: B006
    return scores


def look_at(scores: Mapping[str, float]) -> float:
    return scores["valid"]


def record(score: Any, judged: Judged, **others: float) -> None:
    score(**judged.scores, **others)


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    def inner(*args: Any) -> Any:
        return {"inner": 1, **function(*args)}

    return inner


@wrapped
def decorated(text: str) -> dict[str, float]:
    return {"outer": 1}


VALID = {"valid", "strict", "long", "short", "title_found", "year_found"}


# Told ----------------------------------------------------------------------------------------------------------------------------


def plain(generation: Any, score: Any, details: Any) -> None:
    judged = judge(generation.text)
    score(**judged.scores, mine=1)
    details(**judged.scores, seen=judged)
    assert look_at(judged.scores), judged.answer


def of_methods(generation: Any, score: Any) -> None:
    score(**judge(generation.text).scored("name"))


def of_tuples(generation: Any, score: Any) -> None:
    scores, problem = two_of(generation.text)
    score(**scores, **pair_of(problem).scores)


def of_loops(generation: Any, score: Any) -> None:
    for name in ("p", "q"):
        score(**{f"{name}_{kind}": 1 for kind in ("a", "b")})


def of_zip(generation: Any, score: Any) -> None:
    score(**dict(zip(FIELDS, generation.values)), **{f"n{name}": value for name, value in zip(FIELDS, generation.values)})  # noqa: B905


def of_filters(generation: Any, score: Any) -> None:
    score(**by_filter(generation.answer, FILTERS, right=lambda found: float(found == "1")).scores)


def of_choices(steps: Any, score: Any) -> None:
    judged = {name: choice_scores(steps[0], ["a", "b"], 0) for name in ("mc1", "mc2")}
    score(**{f"{name}_{kind}": each.scores[kind] for name, each in judged.items() for kind in ("acc",)})


def of_samples(generations: Any, score: Any) -> None:
    score(**sample_scores([True for _ in generations]))


def handed_on(generation: Any, score: Any) -> None:
    record(score, judge(generation.text), more=1)


def of_a_decorated(generation: Any, score: Any) -> None:
    score(**decorated(generation.text))


def of_a_global_that_is_bound_again(generation: Any, score: Any) -> None:
    score(**{f"{PREFIX}acc": 1})


def nothing(generation: Any) -> None:
    assert generation


TOLD: list[tuple[Any, set[str]]] = [
    (plain, {*VALID, "mine"}),
    (of_methods, {"name_right"}),
    (of_tuples, {"x", "y", "a"}),
    (of_loops, {"p_a", "p_b", "q_a", "q_b"}),
    (of_zip, {"title", "year", "ntitle", "nyear"}),
    (of_filters, {"right_strict", "right_flexible", "not_found_strict", "not_found_flexible"}),
    (of_choices, {"mc1_acc", "mc2_acc"}),
    (of_samples, {"pass@*", "pass^*", "majority"}),
    (handed_on, {*VALID, "more"}),
    (of_a_decorated, {"inner", "outer"}),
    (of_a_global_that_is_bound_again, {"*acc"}),
    (nothing, set()),
]


@pytest.mark.parametrize(("test", "names"), TOLD, ids=lambda value: getattr(value, "__name__", ""))
def test_names_are_those_that_can_come(test: Any, names: set[str]) -> None:
    known = names_recorded(test)
    assert known is not None
    assert {*known} == names


# Not told ------------------------------------------------------------------------------------------------------------------------


def changed_by_a_function(generation: Any, score: Any) -> None:
    scores = {"a": 1.0}
    fill(scores)
    score(**scores)


def changed_within_an_object(generation: Any, score: Any) -> None:
    judged = judge(generation.text)
    fill(judged.scores)  # type: ignore[arg-type]
    score(**judged.scores)


def changed_by_another_name(generation: Any, score: Any) -> None:
    scores = {"a": 1.0}
    same = scores
    same["b"] = 1.0
    score(**scores)


def changed_through_a_list(generation: Any, score: Any) -> None:
    scores = {"a": 1.0}
    for each in [scores]:
        each["b"] = 1.0
    score(**scores)


def changed_in_an_inner_function(generation: Any, score: Any) -> None:
    scores = {"a": 1.0}

    def more() -> None:
        scores.update(b=1.0)

    more()
    score(**scores)


def attribute_replaced(generation: Any, score: Any) -> None:
    pair = Checked({"a": 1.0})
    pair.scores = {"b": 1.0}
    score(**pair.scores)


def set_by_name(generation: Any, score: Any) -> None:
    judged = judge(generation.text)
    setattr(judged, "scores", {"b": 1.0})  # noqa: B010
    score(**judged.scores)


def checked_after(generation: Any, score: Any) -> None:
    score(**Checked({"a": 1.0}).scores)


def of_a_property(generation: Any, score: Any) -> None:
    score(**Computed("").scores)


def made_freely(generation: Any, score: Any) -> None:
    scores = {"a": 1.0}
    Free(scores)
    score(**scores)


def of_data(case: Any, score: Any) -> None:
    score(**dict.fromkeys(case.reference, 1))


def of_an_argument(case: Any, score: Any, judge: Any) -> None:
    score(**judge(case).scores)


def of_a_global_that_is_filled(generation: Any, score: Any) -> None:
    score(**FILLED_LATER)


def of_a_global_that_is_filled_elsewhere(generation: Any, score: Any) -> None:
    score(**dict.fromkeys(NAMES, 1))


def by_another_name(generation: Any, score: Any) -> None:
    note = score
    note(a=1)


def by_a_partial(generation: Any, score: Any) -> None:
    partial(score, a=1)()


def in_a_comprehension(generation: Any, score: Any) -> None:
    [score(**scores) for scores in ({"a": 1}, {"b": 1})]


def in_a_lambda(generation: Any, score: Any) -> None:
    (lambda note: note(a=1))(score)


def in_a_list(generation: Any, score: Any) -> None:
    pair = pair_of(generation.text)
    for each in [pair.scores]:
        each["b"] = 1.0
    score(**pair.scores)


def changed_through_what_holds_it(generation: Any, score: Any) -> None:
    scores = {"a": 1.0}
    judged = Judged("", scores)
    judged.scores["b"] = 1.0  # type: ignore[index]
    score(**scores)


def changed_through_what_is_returned(generation: Any, score: Any) -> None:
    scores = {"a": 1.0}
    same = returned(scores)
    same["b"] = 1.0
    score(**scores)


def rebound_within(generation: Any, score: Any) -> None:
    scores = {"a": 1.0}

    def other() -> None:
        nonlocal scores
        scores = {"b": 1.0}

    other()
    score(**scores)


def changed_by_what_a_function_returns(generation: Any, score: Any) -> None:
    scores = {"a": 1.0}
    returned(scores)["b"] = 1.0
    score(**scores)


def changed_by_a_method_that_is_handed_on(generation: Any, score: Any) -> None:
    scores = {"a": 1.0}
    list(map(scores.update, [{"b": 1.0}]))
    score(**scores)


def changed_by_a_method_with_a_name(generation: Any, score: Any) -> None:
    scores = {"a": 1.0}
    add = scores.update
    add(b=1.0)
    score(**scores)


def changed_through_a_default(generation: Any, score: Any) -> None:
    scores = {"a": 1.0}

    def more(scores: dict[str, float] = scores) -> None:
        scores["b"] = 1.0

    more()
    score(**scores)


def changed_in_a_loop_over_values(generation: Any, score: Any) -> None:
    parts = {"part": {"a": 1.0}}
    [fill(scores) for scores in parts.values()]
    score(**parts["part"])


def changed_when_it_is_compared(generation: Any, score: Any) -> None:
    counted = Counted({"a": 1.0})
    score(same=counted == 1, **counted.scores)


def of_two_targets(generation: Any, score: Any) -> None:
    scores = more = {"a": 1.0}
    more["b"] = 1.0
    score(**scores)


def of_the_last_of_several(generation: Any, score: Any) -> None:
    *_, scores = {"a": 1.0}, {"b": 1.0}, {"c": 1.0}
    score(**scores)


def of_a_global_that_is_handed_on(generation: Any, score: Any) -> None:
    fill(HANDED_ON)
    score(**HANDED_ON)


def of_a_default_that_is_kept(generation: Any, score: Any) -> None:
    kept()["b"] = 1.0
    score(**kept())


def of_an_object_that_cannot_be_looked_at(generation: Any, score: Any) -> None:
    score(**PROXY)


def in_a_text(generation: Any, score: Any) -> None:
    eval("score(a=1)")


def by_what_a_function_returns(generation: Any, score: Any) -> None:
    note: Any = returned(score)
    note(a=1)


def in_a_default(generation: Any, score: Any) -> None:
    (lambda note=score: note(a=1))()


def with_fixtures_of_another(*arguments: Any) -> None: ...


def unbounded(generation: Any, score: Any) -> None:
    unbounded(generation, score)


setattr(with_fixtures_of_another, "__signature__", inspect.signature(nothing))  # noqa: B010


@pytest.mark.parametrize(
    "test",
    [
        changed_by_a_function,
        changed_within_an_object,
        changed_by_another_name,
        changed_through_a_list,
        changed_in_an_inner_function,
        attribute_replaced,
        set_by_name,
        checked_after,
        of_a_property,
        made_freely,
        of_data,
        of_an_argument,
        of_a_global_that_is_filled,
        of_a_global_that_is_filled_elsewhere,
        by_another_name,
        by_a_partial,
        in_a_comprehension,
        in_a_lambda,
        in_a_list,
        changed_through_what_holds_it,
        changed_through_what_is_returned,
        rebound_within,
        changed_by_what_a_function_returns,
        changed_by_a_method_that_is_handed_on,
        changed_by_a_method_with_a_name,
        changed_through_a_default,
        changed_in_a_loop_over_values,
        changed_when_it_is_compared,
        of_two_targets,
        of_the_last_of_several,
        of_a_global_that_is_handed_on,
        of_a_default_that_is_kept,
        of_an_object_that_cannot_be_looked_at,
        in_a_text,
        by_what_a_function_returns,
        in_a_default,
        with_fixtures_of_another,
        functools.wraps(nothing)(lambda *arguments: None),
        unbounded,
    ],
)
def test_where_code_leaves_a_doubt_there_are_no_names(test: Any) -> None:
    assert names_recorded(test) is None


# What evals add ------------------------------------------------------------------------------------------------------------------


def by_engine(rows: Mapping[str, Sequence[Any]], engines: Any) -> dict[str, dict[str, float]]:
    return {engine: {"same": 1.0} for engine in rows}


def by_class(rows: Sequence[Any]) -> dict[str, float]:
    return {f"f1_{row['reference']}": 1.0 for row in rows}


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (all_of(choice_aggregates, macro_over("subject", "acc", "f1")), {"ece", "mcc", "macro_f1", "f1", "acc_macro", "f1_macro"}),
        (translation("bleu", "chrf"), {"bleu", "chrf"}),
        (perplexity_aggregates, {"word_perplexity", "byte_perplexity", "bits_per_byte"}),
        (partial(judge, strict=True), None),
        (lambda rows: {"total": len(rows)}, {"total"}),
        *[(lambda rows: {"a": 1}, {"a"}), (lambda cases: {"b": 1}, {"b"}), (lambda lines: {"c": 1}, None), (lambda lines: {"d": 1}, None)],
        (by_class, {"f1_*"}),
        (Judged("", {}).scored, None),
        (len, None),
    ],
    ids=["all of several", "translation", "perplexity", "no mapping", "lambda", *"abcd", "by class", "method", "built in"],
)
def test_names_of_aggregates(function: Any, names: set[str] | None) -> None:
    assert names_returned(function) == names


def test_names_that_a_comparison_of_engines_gives() -> None:
    assert names_returned(by_engine, nested=True) == frozenset({"same"})


SHIPPED = sorted((Path(__file__).parents[2] / "evals").rglob("test_*.py"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_all_names_of_shipped_evals_are_known(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"shipped_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tests = [test for name, test in vars(module).items() if name.startswith("test_")]
    assert tests
    assert all(names_recorded(test) for test in tests)
    marker = module.pytestmark.kwargs
    assert all(names_returned(marker[key], nested=key == "across") for key in ("aggregate", "across") if key in marker)
