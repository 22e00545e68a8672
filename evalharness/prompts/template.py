"""Request functions made of rows: an instruction, worked examples, the question, and the start of the answer.

    request = template("Question: {{question}}\\nAnswer:", target="{{answer}}", shots=few_shot("train.parquet", 5))

The parts and their borders are those of lm-evaluation-harness, so that a task's `doc_to_text`, `doc_to_target`, `doc_to_choice` and
delimiters give the same prompt here, as one text or as the turns of a chat.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from evalharness.api.cases import Case
from evalharness.api.checks import check_boolean, check_instance, check_text, named_parameters
from evalharness.api.errors import ConfigError, RequestError
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import CompletionRequest, GenerationResult, TextGenerationRequest, VlmGenerationRequest
from evalharness.api.scoring import ScoringRequest
from evalharness.prompts.rendering import Answer, Field, Row, answer_of, check_field, choices_of, row_of, text_of
from evalharness.prompts.shots import FewShot, Shot


class _Part(NamedTuple):
    """One turn; `behind` follows it where all is one text."""

    role: str
    content: str
    behind: str = ""
    images: Sequence[Any] = ()


@dataclass(frozen=True)
class Template:
    """What `template` returns: called with a case, it gives its request.

    `choice_requests` and `ask_choices` score the choices of a case instead, `ask_target` its right answer, which `target_of` gives.
    """

    text: Field
    target: Field | int | None
    choices: Field | Sequence[str] | None
    description: Field
    shots: FewShot | None
    chat: bool
    turns: bool
    delimiter: str
    target_delimiter: str
    prefill: Field
    special_tokens: bool | None
    _worked: dict[Shot, list[_Part]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, case: Case) -> CompletionRequest | TextGenerationRequest | VlmGenerationRequest:
        """Return the request of a case; `RequestError`, which makes it invalid, where its row lacks a column."""
        row = row_of(case)
        shots = () if self.shots is None else tuple(self.shots.of(case, row))
        parts = list(self._before(row))
        for shot in shots:
            if shot not in self._worked:
                try:
                    self._worked[shot] = self._shot_parts(shot.row, shot.images)
                except RequestError as error:
                    raise RequestError(f"worked example {shot.id}: {error}") from error
            parts += self._worked[shot]
        parts += self._parts(row, self.text, None, self._prefill(row), getattr(case, "images", ()))
        ids = tuple(shot.id for shot in shots)
        return self._as_chat(parts, ids) if self.chat else self._as_text(parts, ids)

    def as_chat(self) -> Template:
        """Return the template that asks the same as a chat."""
        return replace(self, chat=True)

    def check_data(self, data_dir: Path | None) -> None:
        """Raise an error where there are no rows for the worked examples; called once the cases are loaded, before any engine is."""
        if self.shots is not None:
            self.shots.check_data(data_dir)

    def target_of(self, case: Case) -> Answer:
        """Return the right answer of a case: a text, or several; or the place of the right choice, from 0."""
        return self._target(row_of(case))

    def choices_of(self, case: Case) -> list[str]:
        """Return the choices of a case."""
        if self.choices is None:
            raise ConfigError("this template has no choices; give template(…, choices=…)")
        return choices_of(self.choices, row_of(case), "choices")

    def choice_requests(self, case: Case, *, without_prompt: bool = False) -> list[ScoringRequest]:
        """Return the requests to score each choice behind the prompt, joined as texts; `without_prompt`: alone, for mutual information."""
        prompt = CompletionRequest("", bool(self.special_tokens)) if without_prompt else self(case)
        delimiter = self._delimiter_of(case)
        return [ScoringRequest(prompt, delimiter + choice, join="text") for choice in self.choices_of(case)]

    def ask_target(self, case: Case) -> ScoringRequest:
        """Score the target of a case behind its prompt, and whether greedy decoding gives it: an eval's `request`."""
        target = self.target_of(case)
        if isinstance(target, int):
            target = str(target) if self.choices is None else self.choices_of(case)[target]
        if not isinstance(target, str):
            raise ConfigError(f"a target that is scored must be one text, got {target!r}; take one of them in the template")
        return ScoringRequest(self(case), self._delimiter_of(case) + target, join="text", greedy=True)

    def _delimiter_of(self, case: Case) -> str:
        """Return what stands between the prompt and what is scored behind it."""
        prefill = self._prefill(row_of(case)) if self.chat else ""
        is_apart = not self.chat or (prefill and not prefill[-1].isspace())
        return self.target_delimiter if is_apart else ""

    def ask_choices(self, case: Case) -> Generator[tuple[list[ScoringRequest], GenerationOptions], list[GenerationResult], ScoringRequest]:
        """Score the choices of a case: an eval's `request`. `steps[0]` has all results; the case's `generation` is the first."""
        requests = self.choice_requests(case)
        yield requests, GenerationOptions()  # together, so that their common prompt is read once
        return requests[0]

    def _target(self, row: Row) -> Answer:
        if self.target is None:
            raise ConfigError("this template has no target; give template(…, target=…)")
        return answer_of(self.target, row, self._choices(self.choices, row), "target")

    def _choices(self, source: Field | Sequence[str] | None, row: Row) -> list[str] | None:
        return None if source is None else choices_of(source, row, "choices")

    def _prefill(self, row: Row) -> str:
        return text_of(self.prefill, row, "prefill") if self.prefill else ""

    def _before(self, row: Row) -> Iterator[_Part]:
        text = text_of(self.description, row, "description") if self.description else ""
        if text:
            yield _Part("system", text)

    def _shot_parts(self, row: Row, images: Sequence[Any]) -> list[_Part]:
        own = self.shots
        assert own is not None
        text, target = own.text or self.text, self.target if own.target is None else own.target
        if target is None:
            raise ConfigError("shots need their answers; give template(…, target=…)")
        choices = self._choices(own.choices or self.choices, row)
        answer = answer_of(target, row, choices, "target of a shot")
        if isinstance(answer, list):
            answer = answer[0]
        if isinstance(answer, int):
            if choices is None and isinstance(target, int):
                raise ConfigError(f"a shot's target is {answer}, and there are no choices to take it from; give template(…, choices=…)")
            answer = str(answer) if choices is None else choices[answer]  # without choices a number in a row is the answer
        prefill = text_of(own.prefill, row, "prefill") if own.prefill is not None else self._prefill(row)
        return self._parts(row, text, answer, prefill, images)

    def _parts(self, row: Row, text: Field, answer: str | None, prefill: str, images: Sequence[Any]) -> list[_Part]:
        """Return the turns of a question, with its answer, or with the start of one."""
        own = self.shots if answer is not None else None
        delimiter = self.target_delimiter if own is None or own.target_delimiter is None else own.target_delimiter
        behind = self.delimiter if own is None or own.delimiter is None else own.delimiter
        question = text_of(text, row, "text")
        is_apart = _needs_space(question, prefill) if prefill else bool(answer)
        parts = [_Part("user", question, delimiter if is_apart else "", images)]
        if answer:
            space = " " if prefill and _needs_space(prefill, answer) else ""
            parts.append(_Part("assistant", f"{prefill}{space}{answer}", behind))
        elif prefill:
            parts.append(_Part("assistant", prefill))
        return parts

    def _as_text(self, parts: Sequence[_Part], ids: tuple[str, ...]) -> CompletionRequest:
        if any(part.images for part in parts):
            raise RequestError("there are images, which a bare text cannot show; give template(…, chat=True)")
        return CompletionRequest("".join(part.content + part.behind for part in parts), bool(self.special_tokens), shots=ids)

    def _as_chat(self, parts: list[_Part], ids: tuple[str, ...]) -> TextGenerationRequest | VlmGenerationRequest:
        prefill = parts.pop().content if parts[-1].role == "assistant" else ""
        if not self.turns:
            parts = _in_one_turn(parts)
        messages = [{"role": part.role, "content": _content(part)} for part in parts]
        images = [image for part in parts for image in part.images]
        if images:
            return VlmGenerationRequest(messages, images, prefill=prefill, shots=ids, special_tokens=self.special_tokens is not False)
        return TextGenerationRequest(messages, prefill=prefill, shots=ids, special_tokens=self.special_tokens is not False)


def _needs_space(before: str, behind: str) -> bool:
    return bool(before and behind) and not before[-1].isspace() and not behind[0].isspace()


def _in_one_turn(parts: Sequence[_Part]) -> list[_Part]:
    """Return the parts with shots and question in one user turn."""
    system = [part for part in parts[:1] if part.role == "system"]
    asked = parts[len(system) :]
    text = "".join(part.content + part.behind for part in asked[:-1]) + asked[-1].content
    return [*system, _Part("user", text, images=[image for part in asked for image in part.images])]


def _content(part: _Part) -> Any:
    if not part.images:
        return part.content
    return [*({"type": "image"} for _ in part.images), {"type": "text", "text": part.content}]


@named_parameters(
    doc_to_text="text",
    doc_to_target="target",
    doc_to_choice="choices",
    gen_prefix="prefill",
    fewshot_delimiter="delimiter",
    system="description",
    **dict.fromkeys(("num_fewshot", "few_shot", "fewshot_split"), "shots=few_shot(POOL, k)"),
)
def template(
    text: Field,
    *,
    target: Field | int | None = None,
    choices: Field | Sequence[str] | None = None,
    description: Field = "",
    shots: FewShot | None = None,
    chat: bool = False,
    turns: bool = True,
    delimiter: str = "\n\n",
    target_delimiter: str = " ",
    prefill: Field = "",
    special_tokens: bool | None = None,
) -> Template:
    """Return a request function that fills a template with each case's row.

    Fields are Jinja over the row's columns, the name of a column, or a function of the row. `text`: the question; `target`: the right
    answer, or its place among the `choices`; shots end with it. `description` stands before all, in a chat as the system message.
    `chat`: as messages, with the images of the case, instead of as one text; `turns`: each shot as a user and an assistant turn, instead of
    all in one. `delimiter` ends a shot, `target_delimiter` stands before its answer and before a choice that is scored. `prefill` starts
    the answer. `special_tokens`: read what rows write like such a token as one; None: in chats, not in texts, as their requests do.
    """
    for name, value in (("text", text), ("description", description), ("prefill", prefill), ("target", target), ("choices", choices)):
        is_given_out = name in ("target", "choices") and (value is None or isinstance(value, (int, list, tuple)))
        if not is_given_out:
            check_field(f"template.{name}", value)
    check_instance("template.shots", shots, FewShot, optional=True)
    for name, flag in (("chat", chat), ("turns", turns), ("special_tokens", special_tokens)):
        check_boolean(f"template.{name}", flag, optional=name == "special_tokens")
    for name, between in (("delimiter", delimiter), ("target_delimiter", target_delimiter)):
        check_text(f"template.{name}", between)
    return Template(text, target, choices, description, shots, chat, turns, delimiter, target_delimiter, prefill, special_tokens)
