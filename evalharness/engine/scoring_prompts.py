"""Token ids of prompts and responses that are scored: texts that are no chat, responses, and what must fit. Knows no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evalharness.api.errors import PromptTooLong, RequestError, UnsupportedOption
from evalharness.api.options import GenerationOptions
from evalharness.api.scoring import ScoringRequest

__all__ = ["bare_prompt", "check_options", "check_room", "response_ids", "text_ids", "text_of_ids"]

_WORD_SPACE = "\u2581"  # how SentencePiece's tokenizers write the space before a word


def text_ids(text: str, tokenizer: Any, what: str = "prompt") -> tuple[int, ...]:
    """Return the ids of a text, nothing added; `RequestError` for half a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the {what} holds {text[error.start]!r} at character {error.start}, half of a surrogate pair, which no model can read"
        ) from None
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def text_of_ids(ids: Sequence[int], tokenizer: Any) -> str:
    """Return what the ids of a prompt decode to, special tokens and spaces as they are."""
    size = len(tokenizer)
    known = [token_id for token_id in ids if token_id < size]  # a model may have more, which mean nothing
    return str(tokenizer.decode(known, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def bare_prompt(prompt: str | tuple[int, ...], tokenizer: Any) -> tuple[str, tuple[int, ...]]:
    """Return text and ids of a prompt that is no chat: a text begins as its tokenizer begins texts (BOS), once, and has no end token."""
    if not isinstance(prompt, str):
        return text_of_ids(prompt, tokenizer), prompt
    ids = text_ids(prompt, tokenizer)
    bos = getattr(tokenizer, "bos_token_id", None)
    begins = tokenizer.encode("", add_special_tokens=True)[:1]
    if bos is not None and begins == [bos] and ids[:1] != (bos,):
        ids = (bos, *ids)
    return prompt, ids


def response_ids(request: ScoringRequest, tokenizer: Any, eos_token_ids: tuple[int, ...], image_token_id: int | None) -> tuple[int, ...]:
    """Return the ids of a response, its end token included where it is asked for; `RequestError` where it cannot be scored."""
    given = request.response
    ids = _continuation_ids(given, tokenizer) if isinstance(given, str) else tuple(given)
    if image_token_id is not None and image_token_id in ids:
        raise RequestError(f"the response holds the image placeholder (token {image_token_id}); pictures belong into the prompt")
    if not request.ends:
        return ids
    if not eos_token_ids:
        raise RequestError("the response is to end, but the checkpoint names no end-of-sequence token; give eos_token_id, or ends=False")
    return (*ids, eos_token_ids[0])


def _continuation_ids(text: str, tokenizer: Any) -> tuple[int, ...]:
    """Return the ids of a text that goes on.

    Tokenizers of SentencePiece's kind put a space before a text that stands alone, which would make another response of it; behind a
    line break they do not.
    """
    alone = text_ids(text, tokenizer, "response")
    convert = getattr(tokenizer, "convert_ids_to_tokens", None)
    if not alone or convert is None or text.startswith(" ") or not str(convert(alone[0])).startswith(_WORD_SPACE):
        return alone
    line_break = tuple(tokenizer.encode("\n", add_special_tokens=False))
    behind = tuple(tokenizer.encode("\n" + text, add_special_tokens=False))
    return behind[len(line_break) :] if behind[: len(line_break)] == line_break else alone


def check_options(options: GenerationOptions) -> None:
    """Raise `UnsupportedOption` for what depends on generated text, where the distribution after all options is asked for."""
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


def check_room(num_prompt_tokens: int | None, num_response_tokens: int, max_model_len: int | None) -> None:
    """Raise `PromptTooLong` where prompt and response together do not fit the context: nothing is ever cut."""
    if num_prompt_tokens is None or max_model_len is None:
        return
    if num_prompt_tokens + num_response_tokens > max_model_len:
        raise PromptTooLong(
            f"prompt ({num_prompt_tokens} tokens) + response ({num_response_tokens} tokens) exceed the context of {max_model_len}; "
            "shorten one of them or use smaller images (--max-pixels)"
        )
