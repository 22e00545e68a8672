"""Messages → prompt. Run: pytest tests/engine/test_chat_template.py"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import pytest

from evalharness.api.errors import TemplateError
from evalharness.api.options import ChatTemplateOptions
from evalharness.backends.fake import FakeTokenizer
from evalharness.engine.chat_template import render_prompt, template_sha256

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

    def make(template: str | None) -> Any:
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


def test_a_template_that_knows_tools_or_one_of_several_gets_them(tiny_tokenizer: Any) -> None:
    prompt = render_prompt(tiny_tokenizer, MESSAGES, ChatTemplateOptions(), tools=[TOOL])
    assert prompt.count("get-weather") == 1
    assert prompt.count("<tools>") == 1
    assert "You can call these tools" not in prompt
    owner: Any = Owner("prompt")
    owner.chat_template = {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
    render_prompt(owner, MESSAGES, ChatTemplateOptions(), tools=[TOOL])
    assert owner.calls[0][1]["tools"] == [TOOL]


@pytest.mark.parametrize(
    ("messages", "system"),
    [
        ([{"role": "user", "content": "hi"}], "You can call"),
        ([{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}], "be short\n\nYou can call"),
    ],
    ids=["no system message", "system message"],
)
def test_to_other_templates_the_system_message_tells_of_tools(messages: list[Any], system: str) -> None:
    owner = Owner("prompt")
    owner.chat_template = "{{ messages }}"  # type: ignore[attr-defined]
    before = copy.deepcopy(messages)
    render_prompt(owner, messages, ChatTemplateOptions(), tools=[TOOL])
    [(sent, arguments)] = owner.calls
    assert sent[0]["role"] == "system"
    assert sent[0]["content"].startswith(system)
    assert '"name": "get-weather"' in sent[0]["content"]
    assert sent[-1] == before[-1]
    assert "tools" not in arguments
    assert messages == before


def test_a_system_message_of_parts_gets_one_more() -> None:
    owner = Owner("prompt")
    render_prompt(owner, [{"role": "system", "content": [{"type": "text", "text": "x"}]}], ChatTemplateOptions(), tools=[TOOL])
    assert [part["text"][:12] for part in owner.calls[0][0][0]["content"]] == ["x", "You can call"]


def test_the_hash_is_that_of_the_template_or_of_several_whatever_their_order(tiny_tokenizer: Any) -> None:
    assert template_sha256(tiny_tokenizer) == hashlib.sha256(tiny_tokenizer.chat_template.encode()).hexdigest()
    first, second = FakeTokenizer(), FakeTokenizer()
    first.chat_template = {"default": "a", "tools": "b"}  # type: ignore[assignment]
    second.chat_template = {"tools": "b", "default": "a"}  # type: ignore[assignment]
    assert template_sha256(first) == template_sha256(second)
    assert len(str(template_sha256(first))) == 64
    assert template_sha256(object()) is template_sha256(None) is None
