"""Messages → prompt. Run: pytest tests/engine/test_chat_template.py"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from evalharness.api.errors import TemplateError
from evalharness.api.options import ChatTemplateOptions
from evalharness.backends.fake import FakeTokenizer
from evalharness.engine import template_probe
from evalharness.engine.chat_template import knows_enable_thinking, left_out_of, render_prompt, template_sha256

MESSAGES = [{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}]


class Owner:
    """Takes whatever it is called with and answers, or raises, as told; notes every call."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.calls: list[tuple[list[Any], dict[str, Any]]] = []

    def apply_chat_template(self, messages: list[Any], **arguments: Any) -> Any:
        self.calls.append((copy.deepcopy(messages), arguments))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_all_four_options_are_passed() -> None:
    owner = Owner("prompt")
    options = ChatTemplateOptions(add_generation_prompt=False, enable_thinking=True, continue_final_message=True)
    assert render_prompt(owner, MESSAGES, options) == "prompt"
    expected = {"add_generation_prompt": False, "tokenize": False, "continue_final_message": True, "enable_thinking": True}
    assert owner.calls == [(MESSAGES, expected)]


UNKNOWN = TypeError("got an unexpected keyword argument 'enable_thinking'")


def test_a_template_that_rejects_enable_thinking_is_asked_once_more_without_it() -> None:
    owner, messages = Owner(UNKNOWN, "prompt"), copy.deepcopy(MESSAGES)
    assert render_prompt(owner, messages, ChatTemplateOptions()) == "prompt"
    (first_messages, first), (second_messages, second) = owner.calls
    assert messages == first_messages == second_messages == MESSAGES, "they are never rewritten"
    assert {**second, "enable_thinking": False} == first


@pytest.mark.parametrize(
    ("errors", "kind", "match"),
    [
        ([UNKNOWN, TypeError("unexpected keyword argument 'tokenize'")], TypeError, "^unexpected keyword argument 'tokenize'$"),
        ([TypeError("can only concatenate str")], TypeError, "^can only concatenate str$"),
        ([ValueError("roles must alternate")], TemplateError, "refuses these messages: ValueError: roles must alternate"),
        ([UNKNOWN, ValueError("no system role")], TemplateError, "refuses these messages: ValueError: no system role"),
        ([MemoryError("full")], MemoryError, "^full$"),
        ([OSError("disk")], OSError, "^disk$"),
    ],
    ids=["second refusal", "unrelated", "refused", "refused after the retry", "memory", "disk"],
)
def test_any_other_error_surfaces_or_is_the_requests_without_a_further_try(errors: list[Any], kind: type[Exception], match: str) -> None:
    owner = Owner(*errors)
    with pytest.raises(kind, match=match):
        render_prompt(owner, MESSAGES, ChatTemplateOptions())
    assert len(owner.calls) == len(errors)


def test_a_result_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^the chat template gave list, not str"):
        render_prompt(Owner([1, 2]), MESSAGES, ChatTemplateOptions())


@pytest.mark.parametrize("owner", [object(), None], ids=["object", "none"])
def test_an_owner_without_template_method_is_refused(owner: Any) -> None:
    with pytest.raises(AttributeError, match=r"(object|NoneType) has no apply_chat_template; this checkpoint cannot render chats"):
        render_prompt(owner, MESSAGES, ChatTemplateOptions())


def test_a_request_without_messages_is_refused() -> None:
    with pytest.raises(TemplateError, match="has no messages; give at least one user message"):
        render_prompt(FakeTokenizer(), [], ChatTemplateOptions())


@pytest.mark.parametrize(
    "error",
    [ValueError("Cannot use chat template functions because tokenizer.chat_template is not set"), AttributeError("no chat_template")],
    ids=["value", "attribute"],
)
def test_a_checkpoint_without_template_says_how_to_get_one(error: Exception) -> None:
    with pytest.raises(TemplateError, match=r"has no chat template; add chat_template\.jinja to it") as raised:
        render_prompt(Owner(error), MESSAGES, ChatTemplateOptions())
    assert raised.value.__cause__ is error


REFUSALS = {
    "system role": ("{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}", "no system role"),
    "two user turns": (
        "{% for m in messages %}{% if not loop.first and m.role == loop.previtem.role %}{{ raise_exception('roles must alternate') }}"
        "{% endif %}{% endfor %}",
        "roles must alternate",
    ),
    "undefined": ("{{ messages[0].content.colour.name }}", "UndefinedError"),
    "syntax": ("{% if %}", "TemplateSyntaxError"),
}


@pytest.fixture
def templated(tiny_tokenizer: Any) -> Any:
    """Returns a copy of the real tokenizer with another template."""

    from evalharness.backends.hf import _transformers  # noqa: F401  # transformers with limits for templates, as the backends import it

    def make(template: Any) -> Any:
        tokenizer = copy.deepcopy(tiny_tokenizer)
        tokenizer.chat_template = template
        return tokenizer

    return make


@pytest.mark.parametrize("template, problem", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_real_template_that_refuses_is_an_error_of_the_request(templated: Any, template: str, problem: str) -> None:
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(TemplateError, match=f"refuses these messages: .*{problem}"):
        render_prompt(templated(template), messages, ChatTemplateOptions())


def test_the_real_template_gets_the_options(tiny_tokenizer: Any) -> None:
    plain = "<|im_start|>system\nbe short<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    asked = plain + "<|im_start|>assistant\n"
    assert render_prompt(tiny_tokenizer, MESSAGES, ChatTemplateOptions()) == asked + "<think>\n\n</think>\n\n"
    assert render_prompt(tiny_tokenizer, MESSAGES, ChatTemplateOptions(enable_thinking=True)) == asked
    assert render_prompt(tiny_tokenizer, MESSAGES, ChatTemplateOptions(add_generation_prompt=False)) == plain
    continued = ChatTemplateOptions(add_generation_prompt=False, continue_final_message=True)
    assert render_prompt(tiny_tokenizer, MESSAGES, continued) == plain.removesuffix("<|im_end|>\n")


def test_a_type_error_inside_a_real_template_surfaces(tiny_tokenizer: Any) -> None:
    with pytest.raises(TypeError, match="'NoneType' object is not iterable"):
        render_prompt(tiny_tokenizer, [{"role": "user", "content": None}], ChatTemplateOptions())


FUNCTION = {"name": "get-weather", "description": "tells it", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}


class Writing:
    """Renders as a function of messages and tools tells it, and notes what it was given last."""

    def __init__(self, write: Callable[..., str]) -> None:
        self._write = write
        self.messages: list[Any] = []

    def apply_chat_template(self, messages: list[Any], *, tools: Any = None, **_: Any) -> str:
        self.messages = messages
        return self._write(messages, tools)


def test_a_template_that_writes_tools_or_one_of_several_gets_them(tiny_tokenizer: Any, templated: Any) -> None:
    prompt = render_prompt(tiny_tokenizer, MESSAGES, ChatTemplateOptions(), tools=[TOOL])
    assert prompt.count("get-weather") == 1
    assert prompt.count("<tools>") == 1
    assert "You can call these tools" not in prompt
    several = templated({"default": "{{ messages }}", "tool_use": "{{ messages }}{{ tools | tojson }}"})
    assert "You can call these tools" not in render_prompt(several, MESSAGES, ChatTemplateOptions(), tools=[TOOL])


CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        "{# This model has no tools. #}" + CHAT,
        "a helpful assistant without tools." + CHAT,
        "{% if not tools is defined %}none{% endif %}" + CHAT,
        "{% set tools = [] %}{{ tools }}" + CHAT,
        "{% if tools and false %}{{ tools }}{% endif %}" + CHAT,
        "{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + CHAT,
        "You have {{ (tools or [])|length }} tools." + CHAT,
    ],
)
def test_a_template_that_only_mentions_tools_does_not_get_them(templated: Any, template: str) -> None:
    owner = templated(template)
    prompt = render_prompt(owner, MESSAGES, ChatTemplateOptions(), tools=[TOOL])
    assert '"name": "get-weather"' in prompt
    assert "You can call these tools" in prompt
    assert left_out_of(prompt, owner, MESSAGES, ChatTemplateOptions(), tools=[TOOL]) == ()


def test_tools_that_nothing_writes_are_named(templated: Any) -> None:
    owner = templated("{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    prompt = render_prompt(owner, MESSAGES, ChatTemplateOptions(), tools=[TOOL])
    assert left_out_of(prompt, owner, MESSAGES, ChatTemplateOptions(), tools=[TOOL])[-1] == "the tools"


@pytest.mark.parametrize(
    ("messages", "system"),
    [
        ([{"role": "user", "content": "hi"}], "You can call"),
        ([{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}], "be short\n\nYou can call"),
    ],
    ids=["no system message", "system message"],
)
def test_to_other_templates_the_system_message_tells_of_tools(messages: list[Any], system: str) -> None:
    owner = Writing(lambda given, tools: str(given))
    before = copy.deepcopy(messages)
    render_prompt(owner, messages, ChatTemplateOptions(), tools=[TOOL])
    assert owner.messages[0]["role"] == "system"
    assert owner.messages[0]["content"].startswith(system)
    assert '"name": "get-weather"' in owner.messages[0]["content"]
    assert owner.messages[-1] == before[-1]
    assert messages == before


def test_a_system_message_of_parts_gets_one_more() -> None:
    owner = Writing(lambda given, tools: str(given))
    render_prompt(owner, [{"role": "system", "content": [{"type": "text", "text": "x"}]}], ChatTemplateOptions(), tools=[TOOL])
    assert [part["text"][:12] for part in owner.messages[0]["content"]] == ["x", "You can call"]


TURNS = [
    {"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "hi"},
]  # fmt: skip
CALLING = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}]},
    {"role": "tool", "name": "f", "content": "sunny"},
]

WORDS = [{"role": "user", "content": "<t>x</t>" + "w " * 50}]
PART = ("a part of the user turn",)
NO_TOOL_TURNS = ("name of the tool turn (2 of 2)", "the tool turn (2 of 2)")
ONLY_TEXTS = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
GONE: dict[str, tuple[str, list[Any], tuple[str, ...]]] = {
    "system": (CHAT.replace("messages", "messages if m.role != 'system'"), TURNS, ("the system turn (1 of 4)",)),
    "last only": ("{{ messages[-1].content }}", TURNS[1:], ("the user turn (1 of 3)", "the assistant turn (2 of 3)")),
    "tool": (CHAT.replace("messages", "messages if m.role != 'tool'"), CALLING[::2], NO_TOOL_TURNS),
    "calls": (CHAT, CALLING[:2], ("tool_calls of the assistant turn (2 of 2)",)),
    "roles": ("{% for m in messages %}{{ m.content }}{% endfor %}", TURNS, ("the role system", "the role user", "the role assistant")),
    "cut": ("{% for m in messages %}{{ m.content[:20] }}{% endfor %}", WORDS, PART),
    "thoughts": (CHAT.replace("m.content", "m.content.split('</t>')[-1]"), WORDS, PART),
    "images": (ONLY_TEXTS, [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}], ("the images",)),
    "parts": (CHAT, [{"role": "user", "content": [{"type": "text", "text": "what?"}]}], ("the form of content in parts",)),
}  # fmt: skip


@pytest.mark.parametrize(("template", "messages", "gone"), GONE.values(), ids=GONE.keys())
def test_what_a_template_leaves_out_is_named(templated: Any, template: str, messages: list[Any], gone: tuple[str, ...]) -> None:
    owner = templated(template)
    prompt = render_prompt(owner, messages, ChatTemplateOptions())
    found = left_out_of(prompt, owner, messages, ChatTemplateOptions())
    found = tuple(what.partition(", ")[0] for what in found if gone[0].startswith("the role") or "the role" not in what)
    assert found == gone


ALL_THERE = {
    "plain": CHAT,
    "stripped": "{% for m in messages %}<{{ m.role }}>{{ m.content | trim | replace('\n', ' ') }}{% endfor %}",
    "json": "{% for m in messages %}{{ m | tojson }}{% endfor %}",
    "json in ascii": "{{ messages | tojson(ensure_ascii=True) }}",
    "html": "{% for m in messages %}<{{ m.role }}>{{ m.content | e }}{% endfor %}",
    "system in the user's turn": (
        "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>"
        "{% if loop.index == 2 %}{{ messages[0].content }}\n{% endif %}{{ m.content }}{% endif %}{% endfor %}"
    ),
}


@pytest.mark.parametrize("template", ALL_THERE.values(), ids=ALL_THERE.keys())
def test_what_is_written_in_another_way_is_there(templated: Any, template: str) -> None:
    owner = templated(template)
    said = ' hi,\n "you" <b>\tü  &\u2028 \\ '
    messages = [{"role": "system", "content": "be short"}, *({"role": role, "content": said} for role in ("user", "assistant", "user"))]
    prompt = render_prompt(owner, messages, ChatTemplateOptions())
    assert left_out_of(prompt, owner, messages, ChatTemplateOptions()) == ()


def test_a_turn_that_is_told_by_its_calls_has_its_role(templated: Any) -> None:
    owner = templated(  # as Llama's
        "{% for m in messages %}{% if m.tool_calls %}<assistant>{{ m.tool_calls | tojson }}"
        "{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{{ m.name }}{% endfor %}"
    )
    prompt = render_prompt(owner, CALLING, ChatTemplateOptions())
    assert left_out_of(prompt, owner, CALLING, ChatTemplateOptions()) == ()


def test_a_long_prompt_is_searched_for_its_letters_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    letters = template_probe._letters
    monkeypatch.setattr(template_probe, "_letters", lambda text: searched.append(len(text)) or letters(text))
    owner = Writing(lambda given, tools: "".join(f"<{m['role']}>{m['content']}" for m in given).replace("\n", " "))
    messages = [{"role": ("user", "assistant")[place % 2], "content": "a\nb" * 10} for place in range(40)]
    prompt = render_prompt(owner, messages, ChatTemplateOptions())
    assert left_out_of(prompt, owner, messages, ChatTemplateOptions()) == ()
    assert sum(searched) < 8 * len(prompt)


def test_a_shape_of_chat_is_rendered_once() -> None:
    rendered = []
    owner = Writing(lambda given, tools: rendered.append(1) or "".join(f"<{m['role']}>{m['content']}" for m in given))  # type: ignore[func-returns-value]
    for text in ("a", "b", "c"):
        messages = [{"role": "system", "content": text}, {"role": "user", "content": text}]
        prompt = render_prompt(owner, messages, ChatTemplateOptions())
        assert left_out_of(prompt, owner, messages, ChatTemplateOptions()) == ()
    assert len(rendered) == 3 + 3  # one for each prompt; the shape, and each of its roles


@pytest.mark.parametrize(
    ("template", "knows"),
    [
        (CHAT + "{% if not enable_thinking %}<think></think>{% endif %}", True),
        ("{# enable_thinking #}" + CHAT, False),
        ("{% if enable_thinking is undefined %}x{% endif %}" + CHAT, False),
        (CHAT + "{{ '/no_think' if m is undefined and messages[0].role == 'system' and not enable_thinking }}", True),
    ],
)
def test_the_switch_is_known_where_prompts_differ_by_it(templated: Any, template: str, knows: bool) -> None:
    assert knows_enable_thinking(templated(template)) is knows


def test_a_template_that_takes_too_much_is_named(templated: Any) -> None:
    owner = templated("{{ 'x' * 10**10 }}")
    owner.name_or_path = "/ckpt/evil"
    with pytest.raises(TemplateError, match="the chat template of /ckpt/evil takes too much: it asks for a value"):
        render_prompt(owner, MESSAGES, ChatTemplateOptions())


def test_the_hash_is_that_of_the_template_or_of_several_whatever_their_order(tiny_tokenizer: Any) -> None:
    assert template_sha256(tiny_tokenizer) == hashlib.sha256(tiny_tokenizer.chat_template.encode()).hexdigest()
    first, second = FakeTokenizer(), FakeTokenizer()
    first.chat_template = {"default": "a", "tools": "b"}  # type: ignore[assignment]
    second.chat_template = {"tools": "b", "default": "a"}  # type: ignore[assignment]
    assert template_sha256(first) == template_sha256(second)
    assert len(str(template_sha256(first))) == 64
    assert template_sha256(object()) is template_sha256(None) is None
