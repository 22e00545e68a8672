"""The protocol of a backend: it turns prepared prompts into token ids, nothing more.

Rendering, tokenising, stop policy, decoding and recording happen once, in `engine/`, the same for every backend. A backend knows nothing
about chat templates, texts, evals or pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from evalharness.api.errors import BackendError, PromptTooLong, RequestError
from evalharness.api.hooks import GenerationPlugin
from evalharness.api.requests import CompletionRequest, GenerationFailure

if TYPE_CHECKING:
    from PIL import Image

    from evalharness.api.options import ModelLoadConfig
    from evalharness.api.scoring import ResponseLogits, ResponseScores
    from evalharness.api.structured_output import StructuredOutput
    from evalharness.api.thinking import ThinkingBudget
    from evalharness.backends.work import WorkSums


@runtime_checkable
class Backend(Protocol):
    """The protocol that hf, vllm, fake and later backends share; tested by one contract suite."""

    name: str
    capabilities: Capabilities
    tokenizer: Any
    processor: Any
    eos_token_ids: tuple[int, ...]
    max_model_len: int | None

    @property
    def weights(self) -> LiveWeights | None:
        """The interface for changing the weights while the backend runs; None, as a class attribute, if they cannot change."""

    def check_plan(self, plan: SamplingPlan) -> None:
        """Raise `ConfigError` (`UnsupportedOption`) for a plan that cannot be honoured; called before anything is generated."""

    def generate(
        self, prompts: Iterable[Prompt], *, plugins: Sequence[GenerationPlugin] = (), should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[BackendOutput]:
        """Yield one output per prompt, each as soon as it is finished (hf: some steps later), in any order.

        Prompts are pulled when there is room for them. If they end while others still run, pull again: more may have arrived. A prompt that
        cannot run (`RequestError` while its images are opened, too long once they are expanded) yields its failure and the others go on.
        `BackendError` if the engine itself breaks. Closing the iterator early aborts what still runs; so does `should_stop()` returning
        True, which must be called at least once per decoding step (another thread may want the engine to end): nothing more is yielded
        then.
        """

    def describe(self) -> Mapping[str, Any]:
        """Return plain JSON facts for run.json: library versions, dtype, device, settings in force."""

    def close(self) -> None:
        """Free the model's memory and end all child processes. Idempotent."""


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do; the engine refuses the rest before anything runs."""

    supports_vlm: bool = False
    supports_logprobs: bool = True
    supports_processed_logprobs: bool = False
    """Whether log-probabilities may be asked for as they are after temperature, penalties and cuts."""
    supports_entropies: bool = False
    supports_scoring: bool = False
    """Whether given responses get their log-probabilities (`ScoringRequest`)."""
    supports_greedy_checks: bool = False
    """Whether it is told of them if greedy decoding gives them."""
    supports_logits: bool = False
    """Whether given responses get logits, and gradients through them (`TensorBackend`)."""
    supports_hf_hooks: bool = False
    supports_token_watchers: bool = False
    """Whether plugins that `watch` tokens may end rows."""
    supports_token_bans: bool = False
    """Whether plugins may `ban` tokens while a row is written."""
    supports_no_repeat_ngram: bool = False
    supports_use_cache_off: bool = False
    structures: frozenset[str] = frozenset()
    """Which kinds of `StructuredOutput` answers can be held to."""
    supports_thinking_budget: bool = False
    extra_options: frozenset[str] = frozenset()
    """Names that `GenerationOptions.extra_generation_kwargs` may carry."""
    vocab_size: int | None = None
    """How many token ids there are for prompts; None: those of the tokenizer."""


@dataclass(frozen=True)
class SamplingPlan:
    """The resolved decoding of one prompt; equal plans (seed apart) may share a batch.

    `temperature` 0.0 is greedy. `stop_token_ids` holds every id that ends generation: end-of-sequence first, then explicit ids, then
    single-token stop strings. `stop_strings` are those that can be found only in the text. `structured`: the required form of the text; it
    may end, by one of `stop_token_ids`, only where the form is complete.
    """

    max_new_tokens: int
    temperature: float
    top_p: float
    repetition_penalty: float
    no_repeat_ngram_size: int
    stop_token_ids: tuple[int, ...]
    stop_strings: tuple[str, ...]
    skip_special_tokens: bool
    seed: int | None
    logprobs: bool
    use_cache: bool
    pad_token_id: int | None
    extra: tuple[tuple[str, Any], ...] = ()
    max_prompt_tokens: int | None = None
    logprobs_kind: Literal["raw", "processed"] = "raw"
    entropies: bool = False
    structured: StructuredOutput | None = None
    thinking: ThinkingBudget | None = None


@dataclass(frozen=True)
class ChatCall:
    """The chat behind a prompt, for servers that take images only with messages and render those themselves.

    Image parts name no source; the images come from `Prompt.load_images`, in the same order.
    """

    messages: Sequence[Mapping[str, Any]]
    add_generation_prompt: bool
    continue_final_message: bool
    enable_thinking: bool
    tools: tuple[Mapping[str, Any], ...] = ()


class KeptText(NamedTuple):
    """A prompt with marks in place of special tokens that stay text, for backends that tokenise it themselves, with images.

    `pieces`: of each piece with marks, in order, the ids as it is and the ids that it is to have.
    """

    text: str
    pieces: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@dataclass(frozen=True)
class Prompt:
    """One prompt, ready to run.

    `token_ids` are those of the rendered text; for an image prompt the placeholders are not expanded yet.
    `num_tokens` is the exact length with images expanded, or None where only the backend can tell: it then calls `check_length` itself.
    `load_images` opens the images, RGB, upright, in prompt order; it may raise `ImageError`. Call it late, drop the
    images early. `chat`: of a prompt with images, what it was rendered from. `given_as_ids`: `token_ids` are what was asked,
    and `text` is only what they decode to. `response_ids`: a given response, whose log-probabilities are asked for; nothing is
    generated then, and `num_tokens` does not count it.
    `asks_greedy`: it is also asked whether greedy decoding gives that response.
    `bare`: of a bare text, what was asked; `text` is then without the tokenizer's beginning, which `token_ids` have.
    `kept`: of a chat in whose data special tokens stay text; `text`, tokenised again, would have other ids than `token_ids`.
    `draft_ids`: what the answer will probably be, for backends that check many tokens at once; it never changes the answer.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    num_tokens: int | None
    plan: SamplingPlan
    load_images: Callable[[], list[Image.Image]] | None = None
    chat: ChatCall | None = None
    given_as_ids: bool = False
    response_ids: tuple[int, ...] | None = None
    draft_ids: tuple[int, ...] = ()
    bare: CompletionRequest | None = None
    kept: KeptText | None = None
    asks_greedy: bool = False

    @property
    def has_images(self) -> bool:
        """Whether this prompt carries images."""
        return self.load_images is not None

    def check_length(self, num_tokens: int, max_model_len: int | None, *, num_behind: int = 0) -> None:
        """Raise `PromptTooLong` if a prompt of so many tokens, images expanded, is longer than allowed or leaves no room in the context.

        `num_behind`: how many tokens a backend needs behind a given response. Nothing is ever cut.
        """
        most, num_new = self.plan.max_prompt_tokens, self.plan.max_new_tokens
        if most is not None and num_tokens > most:
            raise PromptTooLong(f"the prompt has {num_tokens} tokens, max_prompt_tokens is {most}; shorten the prompt or allow more")
        if max_model_len is None:
            return
        if self.response_ids is not None:
            num_response = len(self.response_ids)
            if num_tokens + num_response + num_behind > max_model_len:
                free = f", of which {num_behind} must stay free" if num_behind else ""
                raise PromptTooLong(
                    f"prompt ({num_tokens} tokens) + response ({num_response} tokens) exceed the context of {max_model_len}{free}; "
                    "shorten one of them or use smaller images (--max-pixels)"
                )
        elif num_tokens >= max_model_len:
            raise PromptTooLong(
                f"the prompt has {num_tokens} tokens, the context {max_model_len}; shorten it or use smaller images (--max-pixels)"
            )
        elif num_tokens + num_new > max_model_len:
            raise PromptTooLong(
                f"prompt ({num_tokens} tokens) + max_new_tokens ({num_new}) exceed the context of {max_model_len}; "
                f"lower --max-new-tokens to at most {max_model_len - num_tokens} or shorten the prompt"
            )


StoppedBy: TypeAlias = Literal["id", "string", "plugin", "length", "given"]


@dataclass(frozen=True)
class Completion:
    """The ids that one prompt produced: up to and including the first stop id, never padding.

    `stopped_by`: "id" (the last token is one of `plan.stop_token_ids`), "string" (a stop string was completed),
    "plugin" (a generation plugin, or a rule of the engine itself such as vLLM's detection of repetition, ended the row;
    `stop_name` says which), "length" (the budget is used up), "given" (the ids are the prompt's `response_ids`).
    `logprobs`: one log-probability per id, natural log, of the kind that the plan asked for; None for a first token that nothing
    stands before. `entropies`: likewise, in nats. `exact_ids` False: the ids are those
    of the text, tokenised again, as the backend could not get the ones that were generated; then `num_completion_tokens` is
    how many those were, where that is known. `is_greedy`, of a given response and if asked: whether no token is less likely than
    another in its place; of equal ones, hf takes the one that it would generate, and others take any. None where a token has no value.
    """

    index: int
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    stopped_by: StoppedBy
    logprobs: tuple[float | None, ...] | None = None
    image_grids: tuple[tuple[int, int, int], ...] = field(default=())
    stop_name: str | None = None
    exact_ids: bool = True
    num_completion_tokens: int | None = None
    entropies: tuple[float | None, ...] | None = None
    is_greedy: bool | None = None


BackendOutput: TypeAlias = "Completion | tuple[int, GenerationFailure]"


class UnderWay(NamedTuple):
    """What a backend generates at one moment: answers that have begun and are not given out, and how many tokens they have together.

    `num_tokens` is None where tokens are learned of only once an answer is finished.
    """

    num_rows: int = 0
    num_tokens: int | None = 0


@runtime_checkable
class ToldProgress(Protocol):
    """An addition to `Backend`: it says, while it generates, how far it is."""

    def under_way(self) -> UnderWay:
        """Return what is generated now. Another thread asks this about twice a second, so it costs nothing per token and locks nothing."""


@runtime_checkable
class CountedWork(Protocol):
    """An addition to `Backend`: it counts its steps, and what it waits for."""

    work: WorkSums


@runtime_checkable
class TensorBackend(Protocol):
    """The additions to `Backend` if `capabilities.supports_logits`: given responses run through the model in this process."""

    vocab_size: int

    def response_logprobs(self, prompts: Sequence[Prompt], *, grad: bool) -> ResponseScores:
        """Return torch tensors; `RequestsFailed` (`requests.nothing_ran`) where a prompt cannot run, `BackendError` for want of memory."""

    def response_logits(self, prompts: Sequence[Prompt], *, grad: bool) -> ResponseLogits:
        """Return torch tensors; raises as `response_logprobs`."""


LiveChange: TypeAlias = Literal["checkpoint", "adapter", "tensors", "sleep"]
"""What a backend can do to its weights while it runs; `LiveWeights.changes` says which of them it can."""


@dataclass(frozen=True)
class WeightReport:
    """The effects of a change of weights.

    `source`: a path, or "tensors". `num_loaded` tensors were taken. `not_matched`: given names that match no weight of the model.
    `missing`: weights of the model that were not given and stay unchanged. `tied`: names given beside another name of the same weight.
    `not_matched` and `missing` are empty unless `strict` was False. `adapter`: facts about the current adapter, None if there is none.
    `weight_version` and `duration_s` (seconds) are the engine's.
    """

    source: str
    num_loaded: int
    not_matched: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()
    adapter: Mapping[str, Any] | None = None
    weight_version: str = ""
    duration_s: float = field(default=0.0, compare=False)


@runtime_checkable
class LiveWeights(Protocol):
    """The weights of a running backend. Only the methods that `changes` names are called.

    A method that refuses (`CheckpointError`, `CapabilityError`, `ContractValueError`) leaves the weights unchanged. After any other error
    the backend generates nothing more until a whole checkpoint has been loaded, or ever.
    """

    @property
    def changes(self) -> frozenset[LiveChange]:
        """The possible changes; with "sleep" the weights are `SleepableWeights`."""

    @property
    def why_not(self) -> Mapping[LiveChange, str]:
        """Reasons and remedies by impossible change, where there is more to say than that the backend lacks it."""

    def why_not_swap(self, config: ModelLoadConfig) -> str | None:
        """Return why this checkpoint cannot replace the loaded one, None if `swap` will work.

        Everything but checkpoint and adapter stays as it was when the backend was made.
        """

    def swap(self, config: ModelLoadConfig) -> None:
        """Replace the loaded checkpoint or adapter with another one of the same architecture.

        Answers are then those of a new start, to the bit, and no state of the old weights is used. After an error the backend can only be
        closed.
        """

    def reload(self, path: str, adapter_path: str | None) -> WeightReport:
        """Load the checkpoint in that folder, read anew even if it was loaded before; removes the adapter unless one is given."""

    def load_adapter(self, path: str) -> WeightReport:
        """Put an adapter on the loaded base, in place of the previous adapter."""

    def unload_adapter(self) -> WeightReport:
        """Restore the base to its state without adapter."""

    def sync_from_state_dict(self, tensors: Mapping[str, Any], adapter_config: Any, *, strict: bool) -> WeightReport:
        """Take weights, or an adapter, from memory; see `EngineWeights.sync_from_state_dict`."""


@runtime_checkable
class SleepableWeights(Protocol):
    """Weights that can be moved away while other work needs their memory."""

    def sleep(self) -> None:
        """Free the device's memory; the weights wait elsewhere. Generating is refused until `wake`."""

    def wake(self, tags: Sequence[str] | None) -> None:
        """Restore sleeping memory, to the bit: all, or "weights" or "kv_cache" only."""


@runtime_checkable
class WatchedWeights(Protocol):
    """Weights that others can reach and change without telling the engine: a trainer's optimizer."""

    @property
    def is_shared(self) -> bool:
        """Whether the model belongs to someone else, such as a trainer."""

    def stamp(self) -> Hashable | None:
        """Return a value that changes with each visible change of the weights."""


def failure_of(error: Exception, doing: str = "") -> GenerationFailure:
    """Return an exception as the outcome of its prompt: `invalid` for a `RequestError`, else `error`; the message names the step.

    No traceback is kept: it would keep a batch's tensors alive.
    """
    if isinstance(error, RequestError):
        return GenerationFailure("invalid", str(error), error.with_traceback(None))
    problem = str(error) if isinstance(error, BackendError) else f"{doing} failed: {describe_error(error)}"
    return GenerationFailure("error", problem, BackendError(problem))


def describe_error(error: BaseException) -> str:
    """Return type and message."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
