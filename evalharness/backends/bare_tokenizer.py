"""A checkpoint's tokenizer and chat template from its own files, with `tokenizers` and jinja2 alone: for asking servers.

Where transformers is installed it reads the checkpoint, and this module is not used. Both give the same ids, texts and prompts.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from evalharness.api.errors import MissingDependency
from evalharness.api.installing import install_command
from evalharness.checkpoints.weights import read_json

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "


class BareTokenizer:
    """A tokenizer that also stands for the processor of a vision checkpoint: it renders images' placeholders, and measures none.

    `MissingDependency` for a checkpoint that only transformers can read: one without tokenizer.json, or with code of its own.
    """

    def __init__(self, folder: Path) -> None:
        config = read_json(folder / "tokenizer_config.json") or {}
        if not (folder / "tokenizer.json").is_file() or "AutoTokenizer" in config.get("auto_map", {}):
            why = "comes with its own code" if "auto_map" in config else "has no tokenizer.json"
            raise MissingDependency(f"the tokenizer of {folder} {why}, so only transformers reads it; {install_command('hf')}")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._named = {name: text for name in _NAMED_TOKENS if (text := _content(config.get(name))) is not None}
        self._add_missing_tokens(config)
        self.eos_token, self.pad_token = self._named.get("eos_token"), self._named.get("pad_token")
        names = ("eos_token", "bos_token", "unk_token")
        self.eos_token_id, self.bos_token_id, self.unk_token_id = (self._id_of(self._named.get(name)) for name in names)
        self.chat_template = _chat_template(folder, config)
        self._templates: dict[str, Any] = {}
        model = read_json(folder / "config.json") or {}
        self.image_token_id: int | None = model.get("image_token_id")
        self.image_token = self._text_of(self.image_token_id)
        self.video_token = self._text_of(model.get("video_token_id"))

    def _add_missing_tokens(self, config: Mapping[str, Any]) -> None:
        declared = sorted(config.get("added_tokens_decoder", {}).items(), key=lambda entry: int(entry[0]))
        tokens = [AddedToken(**{**token, "special": token.get("special", False)}) for _, token in declared]
        tokens += [AddedToken(text, special=True, normalized=False) for text in self._named.values()]
        for token in tokens:
            if self._tokenizer.token_to_id(token.content) is None:
                self._tokenizer.add_tokens([token])

    def _id_of(self, text: str | None) -> int | None:
        return None if text is None else self._tokenizer.token_to_id(text)

    def _text_of(self, token_id: int | None) -> str | None:
        return None if token_id is None else self._tokenizer.id_to_token(token_id)

    def __len__(self) -> int:
        """Return the number of ids, added tokens included."""
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str, add_special_tokens: bool = True, *, split_special_tokens: bool = False) -> list[int]:
        """Return the ids of a text; `split_special_tokens`: what is written like a special token is text."""
        self._tokenizer.encode_special_tokens = split_special_tokens
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False) -> str:
        """Return the text of ids; spaces are left as they are."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def convert_ids_to_tokens(self, token_id: int) -> str | None:
        """Return how the vocabulary writes an id."""
        return self._tokenizer.id_to_token(token_id)

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """The tokens that were added to the vocabulary, special ones among them."""
        return self._tokenizer.get_added_tokens_decoder()

    def get_added_vocab(self) -> dict[str, int]:
        """Return the ids of the tokens that were added to the vocabulary."""
        return {token.content: token_id for token_id, token in self.added_tokens_decoder.items()}

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = False,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Return the prompt that the chat template makes of the messages; `ValueError` where it cannot make one."""
        if continue_final_message and add_generation_prompt:
            raise ValueError("continue_final_message and add_generation_prompt exclude each other")
        template = self._template("tool_use" if tools else "default")
        messages = _with_mark(messages) if continue_final_message else messages
        named = self._named if self.pad_token is None else {**self._named, "pad_token": self.pad_token}
        values = {**named, **variables}
        prompt: str = template.render(messages=messages, tools=tools, documents=None, add_generation_prompt=add_generation_prompt, **values)
        return _cut_at_mark(prompt) if continue_final_message else prompt

    def _template(self, name: str) -> Any:
        source = self.chat_template
        if isinstance(source, Mapping):
            source = source.get(name, source.get("default"))
        if not source:
            raise ValueError("the checkpoint has no chat_template")
        if source not in self._templates:
            self._templates[source] = self._environment.from_string(source)
        return self._templates[source]

    @cached_property
    def _environment(self) -> Any:
        """Jinja as chat templates expect it: sandboxed, with limits, and with the functions and tags that transformers gives them."""
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension, loopcontrols

        from evalharness.backends.template_sandbox import LimitedEnvironment

        class Generation(Extension):
            """`{% generation %}` marks what a model is trained on; it renders as if it was not there."""

            tags = {"generation"}  # noqa: RUF012 - what jinja2 declares

            def parse(self, parser: Any) -> Any:
                line = next(parser.stream).lineno
                return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)

        def refuse(message: str) -> None:
            raise TemplateError(message)

        def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
            return json.dumps(value, ensure_ascii=ensure_ascii, **options)

        environment = LimitedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
        environment.filters["tojson"] = tojson
        environment.globals.update(raise_exception=refuse, strftime_now=lambda form: datetime.now().strftime(form))
        return environment


def _content(token: Any) -> str | None:
    return token.get("content") if isinstance(token, Mapping) else token


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | dict[str, str] | None:
    """Return the checkpoint's chat template, or several by name: a file of its own goes before tokenizer_config.json."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    processor = (read_json(folder / "chat_template.json") or {}).get("chat_template")
    declared: Any = processor or config.get("chat_template")
    return {entry["name"]: entry["template"] for entry in declared} if isinstance(declared, list) else declared


def _with_mark(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the messages with a mark where the last one's text ends, so that the prompt can be cut there."""
    marked: list[Any] = copy.deepcopy(list(messages))
    last = marked[-1]
    parts = [last] if isinstance(last.get("content"), str) else last.get("content") or []
    for part, key in ((part, "content" if part is last else "text") for part in reversed(parts)):
        if key in part:
            part[key] += _CONTINUED
            return marked
    raise ValueError("the final message has no text to continue")


def _cut_at_mark(prompt: str) -> str:
    place = prompt.rfind(_CONTINUED.strip())
    if place < 0:
        raise ValueError("the chat template leaves the final message out, so it cannot be continued")
    kept = prompt[:place]
    return kept if prompt.startswith(_CONTINUED, place) else kept.rstrip()  # a template that strips messages
