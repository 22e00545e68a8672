"""Requests → prompts: rendered, tokenised and measured once, before any backend sees them. Knows no torch.

Images are opened later (`request_images.py`).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from evalharness.api import images
from evalharness.api.errors import ConfigError, ImageError, RequestError, UnsupportedOption
from evalharness.api.hooks import RequestType
from evalharness.api.options import ChatTemplateOptions, GenerationOptions
from evalharness.api.requests import CompletionRequest, Request, TextGenerationRequest, TokenGenerationRequest, VlmGenerationRequest
from evalharness.api.scoring import Chat, ScoringRequest, chat_of, shots_of
from evalharness.api.thinking import ThinkingBudget, ThinkingMarks
from evalharness.api.wording import plural
from evalharness.backends.base import Backend, ChatCall, Prompt, SamplingPlan
from evalharness.engine.chat_template import left_out_of, render_prompt
from evalharness.engine.data_tokens import KeptTexts, special_tokens_in
from evalharness.engine.request_images import RequestImages, images_of, without_pictures
from evalharness.engine.rolling import window_prompts
from evalharness.engine.stop_policy import StopPlan, resolve_stops
from evalharness.engine.text_ids import bare_prompt, joined_ids, response_ids, text_ids, text_of_ids


def check_options(options: GenerationOptions) -> None:
    """Raise `UnsupportedOption` for options that depend on generated text, if the distribution after all options is requested."""
    if options.logprobs_kind != "processed":
        return
    if options.repetition_penalty != 1.0 or options.no_repeat_ngram_size:
        raise UnsupportedOption(
            "a given response cannot be scored after penalties: set repetition_penalty to 1 and no_repeat_ngram_size to 0, or ask for "
            "logprobs_kind='raw'"
        )
    bans = [name for name in ("bad_words_ids", "suppress_tokens", "min_new_tokens") if options.extra_generation_kwargs.get(name)]
    bans += [name for name in ("structured", "max_thinking_tokens") if getattr(options, name) is not None]
    if bans:
        raise UnsupportedOption(f"a given response cannot be scored with bans ({', '.join(bans)}); leave them out")


_SEED_LIMIT = 2**31  # what torch, vLLM and HTTP servers all take


class PreparedRequest(NamedTuple):
    """A prompt with everything needed to turn its completion into a result.

    `response_text`: the text of a given response, unchanged. `ignored`: the options that its backend cannot honour.
    """

    prompt: Prompt
    stops: StopPlan
    options: GenerationOptions
    images: RequestImages | None
    response_text: str | None = None
    thinking_marks: ThinkingMarks | None = None
    ignored: tuple[str, ...] = ()
    shots: tuple[str, ...] = ()
    prefill: str = ""
    join: Literal["ids", "text"] = "ids"
    windows: tuple[Prompt, ...] = ()


class _Rendered(NamedTuple):
    """A prompt's text and ids, remarks for the record, and `kept` where special tokens in its data stay text."""

    text: str
    token_ids: tuple[int, ...]
    remarks: tuple[str, ...] = ()
    kept: KeptTexts | None = None


class PromptBuilder:
    """Turns requests into prompts for one backend."""

    def __init__(self, backend: Backend, chat_template: ChatTemplateOptions) -> None:
        self._backend = backend
        self._chat_template = chat_template
        self._stops: dict[int, tuple[GenerationOptions, StopPlan]] = {}
        self._plans: dict[int, tuple[GenerationOptions, SamplingPlan]] = {}
        self._decoded: tuple[TokenGenerationRequest, str] | None = None

    def build(self, index: int, request: Request, options: GenerationOptions) -> PreparedRequest:
        """Return the prompt of one request; raises `RequestError` if it cannot be run."""
        chat = chat_of(request)
        request_images = images_of(chat)
        request, remarks = self._without_special_tokens(request) if chat is None else (request, ())
        rendered = _Rendered(*self._without_chat(request), remarks) if chat is None else self._rendered(chat, request, request_images)
        text, token_ids, ignored, kept = rendered
        asked = request.prompt if isinstance(request, ScoringRequest) else request
        bare = asked if isinstance(asked, CompletionRequest) else None
        if bare is None or bare.special_tokens:
            self._check_placeholders(text if kept is None else kept.prompt, request_images)
        response = None
        if isinstance(request, ScoringRequest):
            token_ids, response, remarks = self._with_response(request, rendered, options)
            ignored += remarks
        num_tokens = self._num_tokens(token_ids, request_images)
        plan = self.sampling_plan(options)
        self._check_ids(token_ids, response)
        if response is not None:
            plan = replace(plan, seed=None)  # nothing is drawn
        load = request_images.load if request_images is not None else None
        given_as_ids = isinstance(asked, (tuple, TokenGenerationRequest))
        call = self._chat(chat) if chat is not None and request_images is not None else None
        prompt = Prompt(
            index,
            text,
            token_ids,
            num_tokens,
            plan,
            load,
            call,
            given_as_ids,
            response,
            bare=bare,
            kept=None if kept is None else kept.for_backend(),
            asks_greedy=isinstance(request, ScoringRequest) and request.greedy,
        )
        rolling = request.rolling if isinstance(request, ScoringRequest) else False
        windows = window_prompts(prompt, rolling, self._backend.max_model_len) if rolling else ()
        for part in windows or (prompt,):
            if part.num_tokens is not None:
                part.check_length(part.num_tokens, self._backend.max_model_len)
        response_text = request.response if isinstance(request, ScoringRequest) and isinstance(request.response, str) else None
        prefill, join = "" if chat is None else chat.prefill, request.join if isinstance(request, ScoringRequest) else "ids"
        marks = None if isinstance(request, ScoringRequest) else self._marks_of(text, bool(prefill))
        stops, shots = self._stop_plan(options), shots_of(request)
        return PreparedRequest(prompt, stops, options, request_images, response_text, marks, ignored, shots, prefill, join, windows)

    def _check_ids(self, token_ids: tuple[int, ...], response: tuple[int, ...] | None) -> None:
        """Refuse a prompt without ids, and ids that no embedding has: they would crash a GPU."""
        if not token_ids and response is None:
            raise RequestError("the prompt has no tokens")
        vocab_size, largest = self._backend.capabilities.vocab_size, max((*token_ids, *(response or ())), default=0)
        if vocab_size is not None and largest >= vocab_size:
            raise RequestError(f"there is token id {largest}; the model's vocabulary ends at {vocab_size - 1}")

    def _rendered(self, chat: Chat, request: Request, request_images: RequestImages | None) -> _Rendered:
        owner, tokenizer = self.template_owner("text" if request_images is None else "vlm"), self._backend.tokenizer
        messages, options = self._begun(chat)
        text = render_prompt(owner, messages, options, tools=chat.tools)
        gone = left_out_of(text, owner, messages, options, tools=chat.tools)
        if chat.prefill and not text.endswith(chat.prefill) and not gone:  # some strip messages
            gone = (f"the end {chat.prefill[len(chat.prefill.rstrip()) :]!r} of prefill",)
        remarks = tuple(f"chat template: {what} left out of the prompt" for what in gone)
        tools = [tool if isinstance(tool, Mapping) else tool.to_json() for tool in chat.tools]
        data: list[Sequence[Any]] = [messages[:-1] if chat.prefill else messages, tools]
        is_kept = not (chat.special_tokens and options.special_tokens)
        if is_kept and isinstance(request, ScoringRequest) and isinstance(request.response, str):
            data.append([request.response])
        found = special_tokens_in(data, tokenizer)
        if not is_kept:  # what a template leaves out is not read
            found = tuple(token for token in found if token in text)
        remarks += _data_remarks(found, is_kept=is_kept)
        if not (found and is_kept):
            return _Rendered(text, text_ids(text, tokenizer), remarks)
        kept = KeptTexts(data, text, tokenizer)
        data = kept.marked(data)
        kept.check(render_prompt(owner, [*data[0], *messages[len(data[0]) :]], options, tools=data[1]), text, data)
        return _Rendered(text, kept.ids(kept.prompt), remarks, kept)

    def _without_special_tokens(self, request: Request) -> tuple[Request, tuple[str, ...]]:
        """Return a request of bare texts, in which special tokens are text where it or the options say so, and remarks about them."""
        asked = request.prompt if isinstance(request, ScoringRequest) else request
        if not isinstance(asked, (str, CompletionRequest)) or (isinstance(asked, CompletionRequest) and asked.special_tokens):
            return request, ()
        texts = [asked if isinstance(asked, str) else asked.prompt]
        if isinstance(request, ScoringRequest) and isinstance(request.response, str):
            texts.append(request.response)
        found = special_tokens_in(texts, self._backend.tokenizer)
        is_kept = isinstance(asked, CompletionRequest) or not self._chat_template.special_tokens
        if found and is_kept and isinstance(request, ScoringRequest) and isinstance(asked, str):
            request = replace(request, prompt=CompletionRequest(asked))
        return request, _data_remarks(found, is_kept=is_kept)

    def _begun(self, chat: Chat) -> tuple[Sequence[Mapping[str, Any]], ChatTemplateOptions]:
        """Return a chat's messages without pictures, the start of the answer as the last one, and how to render them."""
        messages = without_pictures(chat.messages)
        if not chat.prefill:
            return messages, self._chat_template
        if self._chat_template.continue_final_message:
            raise RequestError("chat_template.continue_final_message has the last message go on, and prefill is one more; leave one out")
        options = replace(self._chat_template, add_generation_prompt=False, continue_final_message=True)
        return [*messages, {"role": "assistant", "content": chat.prefill}], options

    def _without_chat(self, request: Request) -> tuple[str, tuple[int, ...]]:
        if isinstance(request, TokenGenerationRequest):
            return self._decode(request), tuple(request.prompt_token_ids)
        prompt = request.prompt if isinstance(request, ScoringRequest) else request
        assert isinstance(prompt, (str, tuple, CompletionRequest))
        return bare_prompt(prompt, self._backend.tokenizer)

    def _with_response(
        self, request: ScoringRequest, rendered: _Rendered, options: GenerationOptions
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]:
        """Return the ids of prompt and response, and a remark where no border of tokens lies between them."""
        tokenizer, remarks = self._backend.tokenizer, tuple[str, ...]()
        text, token_ids, _, kept = rendered
        if request.join == "text":
            assert isinstance(request.response, str)
            token_ids, response, spans = joined_ids(request, text if kept is None else kept.prompt, tokenizer, kept)
            remarks = ("joined texts: a token spans prompt and response",) * spans
        else:
            response = response_ids(request, tokenizer, is_kept_text=kept is not None)
        placeholder = getattr(self._backend.processor, "image_token_id", None)
        if placeholder is not None and placeholder in response:
            raise RequestError(f"the response holds the image placeholder (token {placeholder}); pictures belong into the prompt")
        return token_ids, (*response, *self._end_ids(request, options)), remarks

    def _end_ids(self, request: ScoringRequest, options: GenerationOptions) -> tuple[int, ...]:
        if not request.ends:
            return ()
        ends = self._eos_token_ids(options)
        if not ends:
            raise RequestError("the response is to end, but the checkpoint names no end-of-sequence token: give eos_token_id or ends=False")
        return ends[:1]

    def _marks_of(self, prompt_text: str, is_begun: bool) -> ThinkingMarks:
        (start, end), options = self._chat_template.thinking_marks, self._chat_template
        is_open = prompt_text.rstrip().endswith(start)
        if options.continue_final_message or is_begun:  # the message may end amid a thought
            is_open = prompt_text.rfind(start) > prompt_text.rfind(end)
        return ThinkingMarks(start, end, is_open, is_expected=options.enable_thinking or is_open)

    def _decode(self, request: TokenGenerationRequest) -> str:
        """Return the text of a prompt of ids; `RequestError` for ids outside the vocabulary."""
        if self._decoded is not None and self._decoded[0] is request:  # samples of one prompt follow each other
            return self._decoded[1]
        ids, tokenizer = list(request.prompt_token_ids), self._backend.tokenizer
        if not ids:
            raise RequestError("the prompt has no token ids; give at least one")
        vocab_size = self._backend.capabilities.vocab_size or len(tokenizer)
        if max(ids) >= vocab_size:
            raise RequestError(f"the prompt has token id {max(ids)}; the vocabulary ends at {vocab_size - 1}")
        text = text_of_ids(ids, tokenizer)
        self._decoded = (request, text)
        return text

    def _chat(self, request: TextGenerationRequest | VlmGenerationRequest) -> ChatCall:
        messages, options = self._begun(request)
        return ChatCall(
            messages,
            options.add_generation_prompt,
            options.continue_final_message,
            options.enable_thinking,
            tuple(tool if isinstance(tool, Mapping) else tool.to_json() for tool in request.tools),
        )

    def template_owner(self, request_type: RequestType) -> Any:
        """Return the object whose chat template renders such requests: the processor for images, else the tokenizer."""
        if request_type == "vlm":
            return self._backend.processor or self._backend.tokenizer
        return self._backend.tokenizer

    def sampling_plan(self, options: GenerationOptions) -> SamplingPlan:
        """Return the resolved options; `ConfigError` for stops that could never be found, and for contradictory options."""
        known = self._plans.get(id(options))  # holding the options keeps their id from being given to others
        if known is not None:
            return known[1]
        stops = self._stop_plan(options)
        if options.structured is not None:
            self._check_structured(options, stops)
        plan = _sampling_plan(options, stops, self._thinking_budget(options.max_thinking_tokens))
        if plan.seed == options.seed:  # else it was drawn for this request
            self._plans[id(options)] = (options, plan)
        return plan

    def _check_structured(self, options: GenerationOptions, stops: StopPlan) -> None:
        if not stops.token_ids:
            raise ConfigError("options.structured needs a token that ends the answer; leave options.eos_token_id unset")
        if options.extra_generation_kwargs.get("min_new_tokens"):
            raise ConfigError("options.min_new_tokens would forbid a structured answer to end where it is complete; leave one of them out")
        if self._chat_template.enable_thinking:
            raise ConfigError("options.structured holds from the first token on, so that nothing could be thought; turn thinking off")

    def _thinking_budget(self, max_tokens: int | None) -> ThinkingBudget | None:
        if max_tokens is None:
            return None
        marks, tokenizer = self._chat_template.thinking_marks, self._backend.tokenizer
        start, end = (tuple(int(i) for i in tokenizer.encode(mark, add_special_tokens=False)) for mark in marks)
        tokens_of_their_own: dict[str, int] = getattr(tokenizer, "get_added_vocab", dict)()
        return ThinkingBudget(start, end, max_tokens, None if all(mark in tokens_of_their_own for mark in marks) else marks)

    def _stop_plan(self, options: GenerationOptions) -> StopPlan:
        known = self._stops.get(id(options))  # holding the options keeps their id from being given to others
        if known is None:
            skip = options.decode.skip_special_tokens
            known = (options, resolve_stops(options.stop, self._eos_token_ids(options), self._backend.tokenizer, skip_special_tokens=skip))
            self._stops[id(options)] = known
        return known[1]

    def _eos_token_ids(self, options: GenerationOptions) -> tuple[int, ...]:
        if options.eos_token_id is None:
            return tuple(self._backend.eos_token_ids)
        return (options.eos_token_id,) if isinstance(options.eos_token_id, int) else options.eos_token_id

    def _check_placeholders(self, text: str, request_images: RequestImages | None) -> None:
        video = getattr(self._backend.processor, "video_token", None)
        if video and video in text:
            raise RequestError(f"the rendered prompt has a video placeholder ({video}); videos cannot be asked, and no text may hold one")
        placeholder = getattr(self._backend.processor, "image_token", None)
        if not placeholder:
            return
        wanted = len(request_images.sources) if request_images is not None else 0
        num_placeholders = text.count(placeholder)
        if num_placeholders != wanted:
            raise ImageError(
                f"the rendered prompt has {plural(num_placeholders, 'image placeholder')} ({placeholder}) for {plural(wanted, 'image')}; "
                "write no placeholder into a message's text, or say special_tokens=False; use a chat template that gives each image one"
            )

    def _num_tokens(self, token_ids: tuple[int, ...], request_images: RequestImages | None) -> int | None:
        if request_images is None:
            return len(token_ids)
        processor = self._backend.processor
        if not getattr(getattr(processor, "image_processor", None), "do_resize", False):
            _check_sides(getattr(processor, "image_processor", None), request_images)
            return None  # the backend checks the length once it has expanded the placeholders
        from evalharness.backends.hf._transformers import num_image_tokens

        counts = num_image_tokens(processor, [images.image_size(source) for source in request_images.sources])
        return None if counts is None else len(token_ids) - len(counts) + sum(counts)


def _data_remarks(found: Sequence[str], *, is_kept: bool) -> tuple[str, ...]:
    return tuple(f"data: special token {token} {'kept as text' if is_kept else 'read as a token'}" for token in found)


def _check_sides(image_processor: Any, request_images: RequestImages) -> None:
    """Raise `ImageError` for an image that is not resized and whose sides fit no grid of patches."""
    patch, merge = (getattr(image_processor, name, None) for name in ("patch_size", "merge_size"))
    if not isinstance(patch, int) or not isinstance(merge, int):
        return
    for number, source in enumerate(request_images.sources):
        sides = images.image_size(source)
        if any(side % (patch * merge) for side in sides):
            raise ImageError(
                f"image {number} has {sides[0]} x {sides[1]} pixels, and without resizing (do_resize=False) both sides must be multiples "
                f"of {patch * merge}; resize it, or leave do_resize out"
            )


def _sampling_plan(options: GenerationOptions, stops: StopPlan, thinking: ThinkingBudget | None) -> SamplingPlan:
    seed = options.seed
    if options.samples and seed is None:
        seed = secrets.randbelow(_SEED_LIMIT)
    return SamplingPlan(
        max_new_tokens=options.max_new_tokens,
        temperature=float(options.temperature) if options.samples else 0.0,
        top_p=float(options.top_p) if options.samples else 1.0,
        repetition_penalty=float(options.repetition_penalty),
        no_repeat_ngram_size=options.no_repeat_ngram_size or 0,
        stop_token_ids=stops.token_ids,
        stop_strings=stops.watched,
        skip_special_tokens=options.decode.skip_special_tokens,
        seed=seed,
        logprobs=options.logprobs,
        use_cache=options.use_cache,
        pad_token_id=options.pad_token_id,
        extra=tuple(sorted(options.extra_generation_kwargs.items())),
        max_prompt_tokens=options.max_prompt_tokens,
        logprobs_kind=options.logprobs_kind,
        entropies=options.entropies,
        structured=options.structured,
        thinking=thinking,
    )


def bare_sha256(request: CompletionRequest, response_ids: Sequence[int] | None = None) -> str:
    """Return the identity of a bare text, and of a response behind it."""
    return _text_sha256(request.prompt, b"\0special tokens" if request.special_tokens else b"", response_ids)


def _text_sha256(text: str, more: bytes, response_ids: Sequence[int] | None) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass") + more + _written_response(response_ids)).hexdigest()


def prompt_sha256(prompt: Prompt, facts: Sequence[Mapping[str, Any]]) -> str:
    """Return the identity of a prompt: SHA-256 (hex) over the rendered prompt, or the ids given, the images and a given response."""
    if prompt.given_as_ids:
        return token_ids_sha256(prompt.token_ids, prompt.response_ids)
    if prompt.bare is not None:
        return bare_sha256(prompt.bare, prompt.response_ids)
    more = b"".join(b"\0" + fact["sha256"].encode("ascii") for fact in facts) + b"\0special tokens kept text" * (prompt.kept is not None)
    return _text_sha256(prompt.text, more, prompt.response_ids)


def token_ids_sha256(token_ids: Sequence[int], response_ids: Sequence[int] | None = None) -> str:
    """Return the identity of a prompt given as ids, and of a given response: other ids may decode to the same text."""
    return hashlib.sha256(b"token ids " + " ".join(map(str, token_ids)).encode("ascii") + _written_response(response_ids)).hexdigest()


def _written_response(response_ids: Sequence[int] | None) -> bytes:
    return b"" if response_ids is None else b"\0response " + " ".join(map(str, response_ids)).encode("ascii")
