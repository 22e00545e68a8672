"""Servers with an OpenAI API: vLLM, SGLang, TensorRT-LLM, MLX, MAX, and compatible ones.

The checkpoint folder gives tokenizer, chat template and, for images, the processor; the server has the weights, and only its owner knows
whether they are those of the folder. Servers that take token ids (vllm, sglang) get the ids of the prompt and return the generated ids:
texts, stops and counts are then as on the other backends. Other servers get the rendered text; their results say `exact_ids: false`. Images
go with their messages to the chat route, where the server renders the prompt: if its number of tokens differs from the checkpoint's, that
request is an error.
"""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from evalharness.api.errors import BackendError, CheckpointError, ConfigError, RequestError
from evalharness.api.hooks import GenerationPlugin
from evalharness.api.options import ModelLoadConfig, ServerOptions, VlmPreprocessOptions
from evalharness.api.redaction import API_KEY
from evalharness.backends.base import BackendOutput, Capabilities, Prompt, SamplingPlan, UnderWay, failure_of
from evalharness.backends.checkpoint_reading import declared_vocab_size, read_companions
from evalharness.backends.loaded_weights import WeightSource
from evalharness.backends.openai.client import HttpClient, RefusedRequest
from evalharness.backends.openai.flavours import FLAVOURS, base_url
from evalharness.backends.openai.payload import RequestWriter, completion_of, completion_of_response, scoring_body
from evalharness.backends.openai.weights import ServerAdapters, ServerWeights
from evalharness.checkpoints.architecture import LoadedFolder
from evalharness.checkpoints.identity import fingerprint_adapter, fingerprint_weights
from evalharness.checkpoints.weights import is_adapter

_HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class ServedModel:
    """A model of a server's list; `is_adapter`: the server says that it is an adapter, loaded already."""

    name: str
    max_model_len: int | None
    is_adapter: bool
    root: str | None


def listed_models(client: HttpClient) -> list[ServedModel]:
    """Return the models that a server lists; `BackendError` where it has no such list."""
    try:
        listed = client.ask("/v1/models")
    except RequestError as error:  # no request of an eval's, so none is at fault
        raise BackendError(f"{client.url}/v1/models cannot be read: {error}") from error
    cards = listed.get("data") if isinstance(listed, Mapping) else None
    if not isinstance(cards, list) or not all(isinstance(card, Mapping) and isinstance(card.get("id"), str) for card in cards):
        raise BackendError(f"{client.url}/v1/models lists no models; is this a server of OpenAI's form?")
    lengths = {card["id"]: _length(card) for card in cards}
    return [
        ServedModel(
            card["id"],
            lengths[card["id"]] or lengths.get(_text(card.get("parent")) or ""),
            _text(card.get("parent")) is not None,
            _text(card.get("root")),
        )
        for card in cards
    ]


def find_model(client: HttpClient, wanted: str | None) -> ServedModel:
    """Return the model of that name; without a name, the only one that is not an adapter. `ConfigError` where there is none."""
    models = listed_models(client)
    candidates = [model for model in models if (not model.is_adapter if wanted is None else model.name == wanted)]
    if len(candidates) == 1:
        return candidates[0]
    names = ", ".join(model.name for model in models[:20])
    if wanted is not None:
        raise ConfigError(f"the server has no model {wanted!r}; it has: {names or 'none'}")
    raise ConfigError(f"the server has {len(candidates)} models; name one with --served-model: {names}")


def check_weights(served: ServedModel, config: ModelLoadConfig, url: str) -> None:
    """Raise `ConfigError` where the server runs on this machine, from a folder whose weights are others than the checkpoint's.

    What is served from elsewhere cannot be told: then it is its owner's word.
    """
    root = Path(served.root) if served.root is not None and urlsplit(url).hostname in _HERE else None
    if root is None or not os.path.isdir(root):  # a name that is no folder's at all is none
        return
    wanted = Path(config.adapter_path if served.is_adapter and config.adapter_path is not None else config.model_name_or_path)
    if is_adapter(root) != is_adapter(wanted):
        return  # the base of an adapter that was named with --served-model
    try:
        if root.samefile(wanted):
            return
        theirs, ours = (_fingerprint(folder) for folder in (root, wanted))
    except (CheckpointError, OSError):
        return  # no folder that we understand
    if theirs != ours:
        raise ConfigError(f"the server at {url} runs {root}, whose weights are others than those of {wanted}; serve that, or ask for that")


def _fingerprint(folder: Path) -> str:
    return fingerprint_adapter(folder) if is_adapter(folder) else fingerprint_weights(folder)


def _length(card: Mapping[str, Any]) -> int | None:
    length = card.get("max_model_len")
    return length if isinstance(length, int) and length > 0 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


_KEYS = (API_KEY, "OPENAI_API_KEY")
_Done: TypeAlias = "queue.SimpleQueue[tuple[Prompt, bool, Future[Any]]]"
"""Prompts, whether they were sent as text, and what came of them."""
_TICK_S = 0.1  # how often `should_stop` is asked while nothing comes


class OpenAIBackend:
    """A server. `BackendError` where none answers, `ConfigError` for options that it cannot be asked with."""

    name = "openai"

    def __init__(self, config: ModelLoadConfig, preprocess: VlmPreprocessOptions, server_options: ServerOptions) -> None:
        url = base_url(server_options.server, server_options.base_url)
        self._flavour_name, self._flavour = server_options.server, FLAVOURS[server_options.server]
        if server_options.adapter_dir is not None and self._flavour.adapters is None:
            raise ConfigError(f"server {self._flavour_name!r} loads no adapters, so it needs no folder for them; leave --adapter-dir out")
        self._take_companions(*read_companions(config, preprocess))
        self._concurrency = server_options.concurrency
        self._ids_refused = False
        self._running: dict[int, Future[Any]] = {}
        self._vocab_size = declared_vocab_size(config.model_name_or_path, self.tokenizer)
        self._client = HttpClient(
            url,
            api_key=next((os.environ[name] for name in _KEYS if os.environ.get(name)), None),
            concurrency=server_options.concurrency,
            timeout_s=server_options.request_timeout_s,
            max_attempts=server_options.max_attempts,
        )
        with contextlib.ExitStack() as undo:
            undo.callback(self._client.close)
            served = find_model(self._client, server_options.served_model)
            check_weights(served, config, self._client.url)
            self._model, self.max_model_len = served.name, served.max_model_len
            way = self._flavour.adapters if not served.is_adapter else None
            adapter_dir = Path(server_options.adapter_dir) if server_options.adapter_dir is not None else None
            self._adapters = ServerAdapters(self._client, way, served.name, adapter_dir, self._listed)
            undo.callback(self._adapters.close)
            if config.adapter_path is not None and way is None and server_options.served_model is None:
                raise ConfigError(
                    f"server {self._flavour_name!r} cannot be told to load adapter {config.adapter_path}; start it with that adapter and "
                    "name it with --served-model"
                )
            if way is not None:
                source = WeightSource.read(config, preprocess)
            else:  # an adapter may be there already, under the name of the served model
                source = WeightSource(config, preprocess, LoadedFolder.read(Path(config.model_name_or_path)))
            if source.adapter is not None:
                self._adapters.load(source.adapter)
            undo.pop_all()
        self.weights = ServerWeights(self._client, self._flavour_name, source, self._adapters, self._take_companions)
        self.capabilities = Capabilities(
            supports_vlm=self.processor is not None,  # what the served model takes, only the server knows
            supports_logprobs=self._flavour.token_ids,
            supports_processed_logprobs=self._flavour.tempered_logprobs,
            supports_scoring=self._flavour.scores_prompts,
            supports_greedy_checks=self._flavour.scores_prompts,
            structures=frozenset(self._flavour.structures),
            extra_options=frozenset(self._flavour.extras),
            vocab_size=self._vocab_size,
        )

    def _take_companions(self, tokenizer: Any, processor: Any, eos_token_ids: tuple[int, ...]) -> None:
        self.tokenizer, self.processor, self.eos_token_ids = tokenizer, processor, eos_token_ids
        self._writer = RequestWriter(self._flavour_name, tokenizer, eos_token_ids)

    def _listed(self) -> frozenset[str]:
        return frozenset(model.name for model in listed_models(self._client))

    def check_plan(self, plan: SamplingPlan) -> None:
        """Raise `ConfigError` (`UnsupportedOption`) for a plan that cannot be honoured."""
        self._writer.check_plan(plan)

    def generate(
        self, prompts: Iterable[Prompt], *, plugins: Sequence[GenerationPlugin] = (), should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[BackendOutput]:
        """Yield one output per prompt, each as soon as it is finished; see `Backend.generate`. One failure takes no other along."""
        self.weights.require_usable()
        return self._generate(iter(prompts), should_stop)

    def _generate(self, source: Iterator[Prompt], should_stop: Callable[[], bool]) -> Iterator[BackendOutput]:
        done: _Done = queue.SimpleQueue()
        running: dict[int, Future[Any]] = {}
        self._running = running
        try:
            while not should_stop():
                while len(running) < self._concurrency and (prompt := next(source, None)) is not None:
                    yield from self._send(prompt, running, done)
                if not running:
                    return
                try:
                    prompt, as_text, future = done.get(timeout=_TICK_S)
                except queue.Empty:
                    continue
                del running[prompt.index]
                if self._takes_no_ids(prompt, as_text, future):
                    yield from self._send(prompt, running, done, as_text=True)
                else:
                    yield self._read(prompt, as_text, future)
        finally:
            for future in running.values():
                future.cancel()
            running.clear()

    def under_way(self) -> UnderWay:
        """Return how many requests wait for their answers, which come whole."""
        return UnderWay(len(self._running), None)

    def _send(self, prompt: Prompt, running: dict[int, Future[Any]], done: _Done, *, as_text: bool = False) -> Iterator[BackendOutput]:
        """Send a prompt, or yield why it cannot be sent: its images, or what cannot be written as JSON. The others go on."""
        try:
            self._submit(prompt, running, done, as_text=as_text or self._ids_refused or not self._flavour.token_ids)
        except Exception as error:
            yield prompt.index, failure_of(error, "asking the server")

    def _submit(self, prompt: Prompt, running: dict[int, Future[Any]], done: _Done, *, as_text: bool) -> None:
        path, model = "/v1/completions", self._adapters.model
        if prompt.response_ids is not None:
            body = scoring_body(prompt, model, has_adapter=self._adapters.adapter is not None)
        elif prompt.load_images is not None and prompt.chat is not None:
            path, body = "/v1/chat/completions", self._writer.chat_body(prompt, prompt.chat, prompt.load_images(), model)
        else:
            body = self._writer.completion_body(prompt, model, as_text=as_text)
        future = self._client.submit(path, {**body, **self._adapters.fields})
        running[prompt.index] = future
        future.add_done_callback(lambda ended: done.put((prompt, as_text, ended)))

    def _takes_no_ids(self, prompt: Prompt, as_text: bool, future: Future[Any]) -> bool:
        """Return whether the server may refuse the form of the prompt alone (422, told by the status): then it is asked as text."""
        if as_text or prompt.has_images or prompt.response_ids is not None or future.cancelled():
            return False
        error = future.exception()
        return isinstance(error, RefusedRequest) and error.status == 422

    def _read(self, prompt: Prompt, as_text: bool, future: Future[Any]) -> BackendOutput:
        exact = prompt.has_images or not as_text
        try:
            answer = future.result()
            self._check_who_answered(answer)
            if prompt.response_ids is not None:
                return completion_of_response(answer, prompt)
            self._ids_refused |= not exact and self._flavour.token_ids  # a text was taken where ids were not: so will others
            return completion_of(answer, prompt, tokenizer=self.tokenizer, vocab_size=self._vocab_size, exact_prompt=exact)
        except Exception as error:  # whatever a server says concerns the request that it says it to
            return prompt.index, failure_of(error, "asking the server")

    def _check_who_answered(self, answer: Any) -> None:
        name = answer.get("model") if isinstance(answer, Mapping) else None
        if name == self._model != self._adapters.model:
            raise BackendError(f"the server answered with {name!r}, the base, instead of the adapter {self._adapters.model!r}")

    def describe(self) -> Mapping[str, Any]:
        """Return plain JSON facts: server, model, and how often requests were sent again or refused. No key is among them."""
        return {
            "server": self._flavour_name,
            "base_url": self._client.url,
            "served_model": self._model,
            "concurrency": self._concurrency,
            "prompts_as_text": self._ids_refused or not self._flavour.token_ids,
            **vars(self._client.counts),
            **self._adapters.describe(),
        }

    def close(self) -> None:
        """Give up what still waits and close the connections; may be called twice."""
        try:
            self._adapters.close()
        finally:
            self._client.close()
