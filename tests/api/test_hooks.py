"""Plugins: what they may leave out, what is checked before anything runs. Run: pytest tests/api/test_hooks.py"""

from __future__ import annotations

import threading
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.api.errors import CapabilityError
from evalharness.api.hooks import RequestType, RowWatchers, normalise_plugins, postprocess_text
from evalharness.backends.base import Capabilities
from evalharness.engine.jobs import check_plugin
from evalharness.generation_plugins import BalancedJsonStop, DuplicateObjectBan, DuplicateObjectStop, ObjectCap

CAN = {
    "hf": Capabilities(supports_hf_hooks=True, supports_token_watchers=True, supports_token_bans=True),
    "vllm": Capabilities(supports_token_watchers=True),
    "fake": Capabilities(supports_token_watchers=True),
    "plain": Capabilities(),
}


class Quoting:
    """A plugin without any attribute but a hook."""

    def postprocess_text(self, text: str) -> str:
        return text


class Stopper:
    def __init__(self, *criteria: Any) -> None:
        self._criteria = criteria
        self.seen: Any = None

    def hf_stopping_criteria(self, prompt_lengths: list[int]) -> tuple[Any, ...]:
        self.seen = prompt_lengths
        return self._criteria


def HOOK(*given: Any) -> None:  # stands for any hook
    """Do nothing."""


def check(plugin: Any, backend: str = "hf", request_types: tuple[RequestType, ...] = ("text", "vlm")) -> None:
    for one in normalise_plugins([plugin]):
        check_plugin(one, backend, CAN[backend], request_types)


@pytest.mark.parametrize("backend", ["hf", "vllm", "fake"])
def test_a_plugin_needs_no_attribute_beside_its_hook(backend: str) -> None:
    check(Quoting(), backend)
    (plugin,) = normalise_plugins([Quoting()])
    assert plugin.name == "Quoting"
    assert plugin.hf_stopping_criteria([3]) == plugin.hf_logits_processor([3]) == []
    assert not plugin.uses_hf_hooks


REFUSED = {
    "backend": ({"backends": "vllm", "watch": HOOK}, "vllm", "hf", "does not work on backend 'hf'; it works on: vllm"),
    "backends": ({"backends": {"vllm"}, "watch": HOOK}, "vllm", "hf", "does not work on backend 'hf'; it works on: vllm"),
    "criteria": ({"hf_stopping_criteria": HOOK}, "hf", "vllm", "uses transformers hooks, .* 'vllm' cannot run; use backend 'hf'"),
    "processor": ({"hf_logits_processor": HOOK}, "hf", "vllm", "uses transformers hooks, .* 'vllm' cannot run; use backend 'hf'"),
    "watcher": ({"watch": HOOK}, "vllm", "plain", "ends rows by their tokens, .* 'plain' cannot do; use backend 'hf'"),
    "ban": ({"ban": HOOK}, "hf", "vllm", "bans tokens while a row is written, which backend 'vllm' cannot do"),
}


@pytest.mark.parametrize(("attributes", "accepted_by", "refused_by", "message"), REFUSED.values(), ids=REFUSED)
def test_a_plugin_is_refused_where_it_cannot_work(attributes: dict[str, Any], accepted_by: str, refused_by: str, message: str) -> None:
    plugin = SimpleNamespace(name="p", **attributes)
    check(plugin, accepted_by)
    with pytest.raises(CapabilityError, match=f"^plugin 'p' {message}"):
        check(plugin, refused_by)


@pytest.mark.parametrize("flags", [{}, {"watches_tokens": False, "bans_tokens": False, "uses_hf_logits_processor": False}])
@pytest.mark.parametrize("hook", ["watch", "ban", "hf_stopping_criteria", "hf_logits_processor", "postprocess_text"])
def test_a_hook_is_known_by_being_there_whatever_else_the_plugin_says(hook: str, flags: dict[str, bool]) -> None:
    (plugin,) = normalise_plugins([SimpleNamespace(**flags, **{hook: HOOK})])
    assert plugin.hooks == {hook}
    assert (plugin.watches_tokens, plugin.bans_tokens) == (hook == "watch", hook == "ban")
    assert plugin.uses_hf_hooks == hook.startswith("hf_")


NO_HOOK: dict[str, Any] = {
    "object": object(),
    "claims": SimpleNamespace(name="claims", watches_tokens=True),
    "helper": type("Helper", (), {"helper": lambda self: None})(),
    "turned off": SimpleNamespace(watch=None),
    "function": lambda ids, scores: scores,
    "name": "object-cap",
    "list": [ObjectCap(3)],
    "none": None,
}


@pytest.mark.parametrize("plugin", NO_HOOK.values(), ids=NO_HOOK)
def test_an_object_without_any_hook_is_refused(plugin: Any) -> None:
    with pytest.raises(CapabilityError, match=r"^plugin '.*' has no hook, so generation would never call it: .* Give it one of hf_stopp"):
        check(plugin)


def test_a_class_a_plugin_outside_of_a_list_and_a_hook_that_is_no_method_are_refused() -> None:
    with pytest.raises(CapabilityError, match="^plugins holds the class ObjectCap; make one of it: ObjectCap"):
        check(ObjectCap)
    for alone in (ObjectCap(3), "object-cap"):
        with pytest.raises(CapabilityError, match=r"^plugins must be a list such as \[ObjectCap\(60\)\], got "):
            normalise_plugins(alone)  # type: ignore[arg-type]
    with pytest.raises(CapabilityError, match=r"^plugin 'p' has watch = True, which is not a method; write watch\(tokenizer\)"):
        check(SimpleNamespace(name="p", watch=True))


def test_a_plugin_for_other_backends_or_requests_is_refused() -> None:
    with pytest.raises(CapabilityError, match="it works on: none"):
        check(SimpleNamespace(backends=(), watch=HOOK))
    plugin = SimpleNamespace(name="boxes", request_types=("vlm",), watch=HOOK)
    check(plugin, request_types=("vlm",))
    with pytest.raises(RuntimeError, match="^plugin 'boxes' does not take text requests; it takes: vlm"):
        check(plugin, request_types=("text", "vlm"))


WRONG_NAMES: dict[str, tuple[str, Any, str]] = {
    "number": ("backends", 3, r"backends = 3; it must be a list such as \['hf', 'vllm'\], or None for all"),
    "mixed": ("backends", ["hf", 3], "it must be a list such as"),
    "unknown": ("request_types", "image", "request_types = 'image'; it must be a list of text and vlm, or None for all"),
}


@pytest.mark.parametrize("attribute, value, message", WRONG_NAMES.values(), ids=WRONG_NAMES)
def test_backends_and_request_types_must_be_names(attribute: str, value: Any, message: str) -> None:
    with pytest.raises(CapabilityError, match=f"^plugin 'p' has .*{message}"):
        check(SimpleNamespace(name="p", watch=HOOK, **{attribute: value}))


class EndsOn:
    def __init__(self, name: str, token_id: int) -> None:
        self.name = name
        self._token_id = token_id
        self.seen: list[int] = []

    def watch(self, tokenizer: Any) -> EndsOn:
        return self

    def push(self, token_id: int) -> bool:
        self.seen.append(token_id)
        return token_id == self._token_id


def test_watchers_end_a_row_by_the_first_plugin_unless_a_stop_id_ends_it() -> None:
    watchers = RowWatchers(normalise_plugins([Quoting(), EndsOn("late", 9), EndsOn("first", 5), EndsOn("second", 5)]), None, ())
    assert [watchers.push(token_id) for token_id in (1, 2, 5)] == [None, None, "first"]
    plugin = EndsOn("watcher", 5)
    watchers = RowWatchers(normalise_plugins([plugin]), None, (5,))
    assert [watchers.push(token_id) for token_id in (1, 5)] == [None, None]
    assert plugin.seen == [1]


@pytest.mark.parametrize(
    ("method", "hook"),
    [
        ("wach", r"watch\(tokenizer\)"),
        ("wacth", r"watch\(tokenizer\)"),
        ("Ban", r"ban\(tokenizer, vocab_size\)"),
        ("hf_stopping_criterion", r"hf_stopping_criteria\(prompt_lengths\)"),
        ("logits_processor", r"hf_logits_processor\(prompt_lengths\)"),
        ("postprocess", r"postprocess_text\(text\)"),
        ("post_process_text", r"postprocess_text\(text\)"),
        ("postProcessText", r"postprocess_text\(text\)"),
    ],
)
@pytest.mark.parametrize("backend", ["hf", "plain"])
def test_a_method_that_is_named_almost_like_a_hook_is_refused(method: str, hook: str, backend: str) -> None:
    asked = rf"which is not a hook: generation never calls it; did you mean {hook}\? Hooks: .*, postprocess_text\(text\)\. If it is a"
    with pytest.raises(CapabilityError, match=rf"^plugin 'Late' has a method '{method}', {asked}"):
        check(type("Late", (), {method: lambda self, text: text})(), backend)


@pytest.mark.parametrize("kind", [classmethod, staticmethod])
def test_a_misspelt_hook_of_any_kind_of_method_is_refused(kind: Any) -> None:
    with pytest.raises(CapabilityError, match="has a method 'postproces_text'"):
        check(type("Late", (), {"postproces_text": kind(lambda *given: "")})())


def test_a_misspelt_hook_of_a_base_class_or_of_the_object_itself_is_refused() -> None:
    class Base:
        def postproces_text(self, text: str) -> str:
            return text

    for plugin in (type("Sub", (Base,), {})(), SimpleNamespace(postproces_text=Base().postproces_text)):
        with pytest.raises(CapabilityError, match="has a method 'postproces_text'"):
            check(plugin)
    plugin = type("Cap", (), {"watchs": lambda self, tokenizer: None})()
    with pytest.raises(
        CapabilityError, match=r"^plugin 'Cap' has a method 'watchs', which is not a hook: .*; did you mean watch\(tokenizer\)"
    ):
        check(plugin)


@pytest.mark.parametrize(
    "name",
    ["batch", "match", "watcher", "watched", "unwatch", "bank", "bans", "banned", "preprocess_text", "postprocess_tokens", "on_token",
     "_watchs", "_postprocess"]
)  # fmt: skip
def test_a_helper_with_a_name_of_its_own_or_a_private_one_is_left_alone(name: str) -> None:
    check(type("Helped", (Quoting,), {name: lambda self: None})())


def test_helpers_data_and_classes_beside_hooks_are_left_alone() -> None:
    check(type("Capped", (), {"postprocess_text": lambda self, text: text, "postprocess_texts": lambda self, texts: texts})())
    check(SimpleNamespace(ban=HOOK, postprocess=True, watchs=[1], wach=Quoting))


@pytest.mark.parametrize("kind", [property, cached_property])
def test_a_property_is_neither_a_misspelt_hook_nor_read(kind: Any) -> None:
    def read(self: Any) -> None:
        raise AssertionError("a check of names reads no values")

    check(type("Proud", (), {"postprocess": kind(read), "watch": HOOK})())


@pytest.mark.parametrize(
    "plugin", [BalancedJsonStop(), ObjectCap(3), DuplicateObjectStop(), DuplicateObjectBan()], ids=lambda one: one.name
)
def test_no_ready_plugin_is_taken_for_a_misspelt_one(plugin: Any) -> None:
    check(plugin)


@pytest.mark.parametrize(("made", "listed"), [(None, []), ("one", ["one"]), (["a", "b"], ["a", "b"]), (("a",), ["a"])], ids=repr)
def test_a_hook_for_a_batch_may_give_one_object_or_none(made: Any, listed: list[Any]) -> None:
    (plugin,) = normalise_plugins([SimpleNamespace(hf_logits_processor=lambda lengths: made, hf_stopping_criteria=lambda lengths: made)])
    assert plugin.hf_logits_processor([3]) == plugin.hf_stopping_criteria([3]) == listed


@pytest.mark.parametrize(("hook", "arguments"), [("watch", ()), ("watch", (1, 2)), ("ban", (1,)), ("postprocess_text", ())])
def test_a_hook_with_other_arguments_is_refused(hook: str, arguments: tuple[int, ...]) -> None:
    names = ", ".join(f"argument_{number}" for number in arguments)
    plugin = SimpleNamespace(name="p", **{hook: eval(f"lambda {names}: None")})
    with pytest.raises(CapabilityError, match=rf"^plugin 'p': {hook} is called as {hook}\(.*\), and (missing|too many)"):
        check(plugin)


@pytest.mark.engine
def test_objects_of_transformers_are_plugins_on_hf_and_refused_by_name_elsewhere() -> None:
    transformers = pytest.importorskip("transformers")
    mine = type("Mine", (transformers.MinLengthLogitsProcessor,), {})(3, 1)
    both = transformers.LogitsProcessorList([mine]), transformers.StoppingCriteriaList([transformers.MaxTimeCriteria(0)])
    assert [(plugin.name, set(plugin.hooks)) for plugin in normalise_plugins(both)] == [
        ("Mine", {"LogitsProcessor"}),
        ("MaxTimeCriteria", {"StoppingCriteria"}),
    ]
    for plugin in (mine, transformers.MaxTimeCriteria(0)):
        check(plugin)
        with pytest.raises(CapabilityError, match=f"^plugin '{type(plugin).__name__}' uses transformers hooks, which backend 'vllm'"):
            check(plugin, "vllm")
    mine.lock = threading.Lock()
    with pytest.raises(CapabilityError, match=r"^plugin 'Mine' cannot be copied, and each row needs its own copy .*TypeError.*__deepc"):
        check(mine)


@pytest.mark.engine
def test_copies_for_rows_share_models_and_tokenizers_and_nothing_else() -> None:
    transformers = pytest.importorskip("transformers")
    plugin = type("Guided", (transformers.LogitsProcessor,), {})()
    plugin.model, plugin.tokenizer, plugin.seen = SimpleNamespace(forward=id), SimpleNamespace(decode=id), []
    (made,) = normalise_plugins([plugin])
    row = made.for_row()
    assert row.model is plugin.model
    assert row.tokenizer is plugin.tokenizer
    assert row.seen is not plugin.seen


def test_normalising_twice_changes_nothing() -> None:
    once = normalise_plugins([Quoting()])
    assert normalise_plugins(once) == once


def test_hooks_for_a_batch_are_called_with_the_prompt_lengths_as_a_list() -> None:
    stopper = Stopper("a", "b")
    (plugin,) = normalise_plugins([stopper])
    assert plugin.hf_stopping_criteria((4, 4)) == ["a", "b"]
    assert stopper.seen == [4, 4]


def test_post_processors_work_in_order_and_must_give_text() -> None:
    plugins = normalise_plugins([SimpleNamespace(postprocess_text=str.upper), Quoting(), SimpleNamespace(postprocess_text=" {} \n".format)])
    assert postprocess_text(plugins, "ab") == " AB \n"
    plugins = normalise_plugins([SimpleNamespace(name="counter", postprocess_text=len)])
    with pytest.raises(TypeError, match="^plugin 'counter' made int of a text; postprocess_text must return str"):
        postprocess_text(plugins, "ab")
    assert postprocess_text((), " ab ") == " ab "
