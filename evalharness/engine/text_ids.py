"""Texts → token ids: chats as rendered, bare texts with the tokenizer's beginning, responses behind their prompts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from evalharness.api.errors import RequestError
from evalharness.api.requests import CompletionRequest
from evalharness.api.scoring import ScoringRequest, chat_of
from evalharness.api.wording import plural
from evalharness.engine.template_probe import remembered

if TYPE_CHECKING:
    from evalharness.engine.data_tokens import KeptTexts

_Ids: TypeAlias = "tuple[int, ...]"
_WORD_SPACE = "\u2581"  # how SentencePiece's tokenizers write the space before a word


def text_ids(text: str, tokenizer: Any, what: str = "prompt", *, special_tokens: bool = True) -> _Ids:
    """Return the ids of a text, nothing added; `RequestError` for half a surrogate pair.

    `special_tokens` False: what is written like a special token is text. `RequestError` for a tokenizer that cannot read it so.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the {what} holds {text[error.start]!r} at character {error.start}, half of a surrogate pair, which no model can read"
        ) from None
    ids = tuple(tokenizer.encode(text, add_special_tokens=False))
    if special_tokens or special_ids(tokenizer).isdisjoint(ids):
        return ids
    with suppress(TypeError):  # of a tokenizer of its own kind
        ids = tuple(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
    read = special_ids(tokenizer).intersection(ids) - {getattr(tokenizer, "unk_token_id", None)}  # any text may hold unknown words
    if read:
        raise RequestError(
            f"the {what} holds {text_of_ids([min(read)], tokenizer)!r}, which this tokenizer reads as a special token and not as text; "
            "take it out of the data, or say special_tokens=True"
        )
    return ids


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Return the ids of special tokens."""

    def find() -> frozenset[int]:
        added = getattr(tokenizer, "added_tokens_decoder", {})
        return frozenset({token_id for token_id, token in added.items() if token.special} | set(getattr(tokenizer, "all_special_ids", ())))

    return remembered(tokenizer, "special ids", find)


def text_of_ids(ids: Sequence[int], tokenizer: Any) -> str:
    """Return the text that a prompt's ids decode to, special tokens and spaces included."""
    size = len(tokenizer)
    known = [token_id for token_id in ids if token_id < size]  # a model may have more, which mean nothing
    return str(tokenizer.decode(known, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def bare_prompt(prompt: str | CompletionRequest | _Ids, tokenizer: Any) -> tuple[str, _Ids]:
    """Return text and ids of a prompt that is not a chat: the tokenizer's beginning (BOS) is added once, and no end token.

    In a `str`, special tokens are read as such.
    """
    if isinstance(prompt, tuple):
        return text_of_ids(prompt, tokenizer), prompt
    if isinstance(prompt, str):
        prompt = CompletionRequest(prompt, special_tokens=True)
    return prompt.prompt, _begun(text_ids(prompt.prompt, tokenizer, special_tokens=prompt.special_tokens), tokenizer)


def _begun(ids: _Ids, tokenizer: Any) -> _Ids:
    beginning = beginning_ids(tokenizer)
    return ids if ids[: len(beginning)] == beginning else (*beginning, *ids)


def beginning_ids(tokenizer: Any) -> _Ids:
    """Return what the tokenizer puts before a text: BOS, more than one token, or nothing."""

    def find() -> _Ids:
        alone, whole = (tokenizer.encode("a", add_special_tokens=added) for added in (False, True))
        num_before = next((place for place in range(len(whole)) if whole[place : place + len(alone)] == alone), 0)
        return tuple(whole[:num_before])

    return remembered(tokenizer, "beginning", find)


class Joined(NamedTuple):
    """The ids of a prompt and of the response behind it; `spans`: a token of both together spans their border."""

    prompt: _Ids
    response: _Ids
    spans: bool


def joined_ids(request: ScoringRequest, prompt: str, tokenizer: Any, kept: KeptTexts | None = None) -> Joined:
    """Return the ids of a prompt and its response as one text, as lm-evaluation-harness makes them; see `ScoringRequest.join`.

    `prompt`: the text of the request's prompt, of a chat the rendered one, with `kept` its marks. `RequestError` where no id is left to the
    response.
    """
    is_bare, special_tokens = chat_of(request) is None, _reads_special_tokens(request)
    head = prompt.rstrip()
    behind = prompt[len(head) :] + str(request.response if kept is None else kept.marked(request.response))

    def ids_of(text: str, what: str) -> _Ids:
        return text_ids(text, tokenizer, what, special_tokens=special_tokens) if kept is None else kept.ids(text, what)

    if not head:
        return _without_prompt(ids_of(behind, "response"), tokenizer)
    before, whole = ids_of(head, "prompt"), ids_of(head + behind, "response")
    if is_bare:
        before, whole = _begun(before, tokenizer), _begun(whole, tokenizer)
    if len(whole) <= len(before):
        raise RequestError(
            f"the response {behind[:60]!r} has no token of its own: the prompt alone has {plural(len(before), 'token')}, both together "
            f"{len(whole)}; let it begin with a space, or score it with join='ids'"
        )
    return Joined(before, whole[len(before) :], whole[: len(before)] != before)


def _without_prompt(response: _Ids, tokenizer: Any) -> Joined:
    """Return a response behind BOS, or else EOS, which stands in for an empty prompt; once, if it begins with that."""
    names = ("bos_token_id", "eos_token_id")
    stand_in = next((found for name in names if (found := getattr(tokenizer, name, None)) is not None), None)
    if stand_in is None:
        raise RequestError("the prompt is empty, and the tokenizer has neither BOS nor EOS to put in its place; give the text a beginning")
    response = response[1:] if response[:1] == (stand_in,) else response
    if not response:
        raise RequestError("there is neither a prompt nor a response; give one of them a text")
    return Joined((stand_in,), response, spans=False)


def response_ids(request: ScoringRequest, tokenizer: Any, *, is_kept_text: bool = False) -> _Ids:
    """Return the ids of a response that is joined to its prompt as ids; `is_kept_text`: special tokens in it are text."""
    response = request.response
    if not isinstance(response, str):
        return tuple(response)
    return continuation_ids(response, tokenizer, special_tokens=not is_kept_text and _reads_special_tokens(request))


def _reads_special_tokens(request: ScoringRequest) -> bool:
    return not isinstance(request.prompt, CompletionRequest) or request.prompt.special_tokens


def continuation_ids(text: str, tokenizer: Any, *, special_tokens: bool) -> _Ids:
    """Return the ids of a text that continues another one.

    SentencePiece tokenizers put a space before a text that stands alone, which would make it another response; after a line break they do
    not.
    """
    alone = text_ids(text, tokenizer, "response", special_tokens=special_tokens)
    convert = getattr(tokenizer, "convert_ids_to_tokens", None)
    if not alone or convert is None or text.startswith(" ") or not str(convert(alone[0])).startswith(_WORD_SPACE):
        return alone
    line_break = tuple(tokenizer.encode("\n", add_special_tokens=False))
    behind = text_ids("\n" + text, tokenizer, "response", special_tokens=special_tokens)
    return behind[len(line_break) :] if behind[: len(line_break)] == line_break else alone
