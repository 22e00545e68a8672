"""Compares a recorded run's cases, prompts, references and code with those of today, as far as that works without a tokenizer.

Every text of the messages must stand in the recorded prompt, and every image must have its recorded SHA-256. A text that has only
lost its end is not noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evalharness.api.cases import Case
from evalharness.api.errors import EvalHarnessError
from evalharness.api.images import image_sha256
from evalharness.api.requests import CompletionRequest, GenerationFailure, GenerationResult, Request, TokenGenerationRequest
from evalharness.api.scoring import ScoringRequest, chat_of
from evalharness.api.tools import read_tools
from evalharness.api.wording import plural
from evalharness.pytest_plugin.eval_code import eval_code
from evalharness.pytest_plugin.eval_module import EvalModule
from evalharness.pytest_plugin.execution.case_request import CaseRequest, Step
from evalharness.pytest_plugin.outcomes import reference_of
from evalharness.runs.judging import code_change, reference_sha256, row_reference, shown_reference
from evalharness.runs.recorded import RecordedRun, outcome_of
from evalharness.runs.records import CaseRecords, Recorded
from evalharness.runs.schema import mapping


def case_changes(then: Mapping[str, Any], now: Sequence[Case]) -> Iterator[tuple[str, str]]:
    """Yield id and change of each case that is gone, new or described differently; `then`: the journal's cases by id."""
    known = {case.id: {"group": case.group, "tags": dict(case.tags)} for case in now}
    yield from ((case_id, "the case no longer exists") for case_id in then if case_id not in known)
    for case_id, facts in known.items():
        if case_id not in then:
            yield case_id, "the case is new and was never run"
        elif facts != then[case_id]:
            yield case_id, "its group or tags have changed"


class JudgingChange(NamedTuple):
    """A difference in what cases are judged against; `detail` is of the first of them, or of all."""

    what: str
    case_ids: list[str]
    detail: str

    @property
    def text(self) -> str:
        """The difference in one sentence."""
        num = len(self.case_ids)
        return f"{plural(num, 'case')}: {self.what}, {self.detail}"


def judging_changes(recorded: RecordedRun, module: EvalModule, root: Path) -> Iterator[JudgingChange]:
    """Yield how an eval's cases are judged otherwise than in a recorded run: by other references, or by other code."""
    changed = []
    for case in module.cases:
        row = recorded.judged_rows.get((module.name, case.id))
        if row is None:
            continue
        # As it stands, without the copy for a row: there may be many, and large ones.
        hashes = row_reference(row), reference_sha256(object.__getattribute__(case, "reference"))
        if None not in hashes and hashes[0] != hashes[1]:
            changed.append((case.id, f"first {case.id}: {shown_reference(reference_of(case))} now, {shown_reference(row)} in the run"))
    if changed:
        yield JudgingChange("the reference differs", [case_id for case_id, _ in changed], changed[0][1])
    then = mapping(recorded.records.evals[module.path].get("code"))
    now_code = eval_code(root, module.path, then)
    judged = [case.id for case in module.cases if (module.name, case.id) in recorded.judged_rows]
    differences = {test: code_change(then[test], now_code.get(test)) for test in then}
    texts = list(dict.fromkeys(text for text in differences.values() if text))
    if texts and judged:
        yield JudgingChange("the eval's code differs", judged, "; ".join(texts[:3]))


class PromptChange(NamedTuple):
    """A difference, in the same words for every case, and the detail of this case."""

    what: str
    detail: str | None = None


_OTHER_TEXT = PromptChange("the text of its prompt would be different now")
_STEPS = PromptChange("its steps would be different now")


def prompt_change(request: CaseRequest, recorded: CaseRecords) -> PromptChange | None:
    """Return how today's request differs from the recorded one; None if it does not, or if nothing was requested then."""
    made = [sample for sample in recorded.samples.values() if isinstance(sample, Recorded)]
    if not made:
        return None
    try:
        asks = request.begin()
        for number, size in enumerate(recorded.shape or ()):
            if not isinstance(asks, Step) or len(asks.requests) != size:
                return _STEPS
            steps = [recorded.in_steps.get((number, position)) for position in range(size)]
            results = [outcome for step in steps if step is not None and isinstance(outcome := outcome_of(step), GenerationResult)]
            if len(results) < size:
                return None  # torn away; the generations are there all the same
            for step_request, result in zip(asks.requests, results, strict=True):
                if (difference := _difference(step_request, result)) is not None:
                    return difference
            asks = request.go_on(results)
    finally:
        request.close()
    if isinstance(asks, GenerationFailure):
        return PromptChange("its request can no longer be made", asks.problem)
    if isinstance(asks, Step):
        return _STEPS
    return _difference(asks, GenerationResult.from_json(made[0].whole()))


def _difference(request: Request, made: GenerationResult) -> PromptChange | None:
    from evalharness.engine.request_images import images_of  # brings what engines need, and most runs compare nothing

    chat = chat_of(request)
    if isinstance(request, ScoringRequest) and not _same_response(request, made):
        return PromptChange("the response that is scored would be different now")
    if isinstance(request, ScoringRequest) and request.join != made.join:
        return PromptChange("prompt and response would be joined in another way now")
    if chat is not None and chat.prefill != made.prefill:
        return PromptChange("its answer would be started in another way now")
    if chat is None:
        return _without_chat(request, made)
    if not chat.special_tokens and any(remark.endswith(" read as a token") for remark in made.ignored_options):
        return PromptChange("special tokens in its data would be text now")
    texts = [*_texts(chat.messages), *(tool.name for tool in read_tools(chat.tools))]
    if any(text.strip() not in made.prompt_text for text in texts):
        return _OTHER_TEXT
    try:
        images = images_of(chat)
        now = [image_sha256(source) for source in images.sources] if images is not None else []
    except (EvalHarnessError, OSError) as error:
        return PromptChange("its images cannot be read now", str(error))
    return None if now == [image.get("sha256") for image in made.images] else PromptChange("its images would be different now")


def _same_response(request: ScoringRequest, made: GenerationResult) -> bool:
    if isinstance(request.response, str):
        return request.response == made.text
    ids = made.token_ids
    return ids[: len(request.response)] == request.response and len(ids) == len(request.response) + request.ends


def _without_chat(request: Request, made: GenerationResult) -> PromptChange | None:
    from evalharness.engine.prompts import bare_sha256, token_ids_sha256

    prompt = request.prompt if isinstance(request, ScoringRequest) else request
    if isinstance(prompt, CompletionRequest):
        response = made.token_ids if isinstance(request, ScoringRequest) else None
        return None if bare_sha256(prompt, response) == made.prompt_sha256 else _OTHER_TEXT
    if isinstance(prompt, str):
        return None if prompt == made.prompt_text else _OTHER_TEXT
    if isinstance(request, TokenGenerationRequest):
        ids = token_ids_sha256(request.prompt_token_ids)
    else:
        assert isinstance(request, ScoringRequest)
        assert isinstance(request.prompt, tuple)
        ids = token_ids_sha256(request.prompt, made.token_ids)
    return None if ids == made.prompt_sha256 else PromptChange("the token ids of its prompt would be others now")


def _texts(messages: Any) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        for part in [{"text": content}] if isinstance(content, str) else content or ():
            if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                yield part["text"]
