"""The parts of vLLM used beyond its documented interface; `tests/backends/vllm/test_internals.py` fails if a release drops one.

Replaced or read in a running engine: the command that inspects a model's class, the queue of results and what reads it, the renderer.
Named: an executor. Read from vLLM's source, as importing those modules takes seconds or touches CUDA: the engine's arguments, and the
limits of the V2 model runner (the usual one on GPUs). vLLM checks these limits when a request runs, not when it arrives, and an error
there ends the engine.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evalharness.api.errors import UnsupportedOption
from evalharness.backends import PLACEMENT_GROUP

UNI_EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""The one that runs the model in the engine core's own process. On a CPU vLLM silently takes its name `uni` for `mp`, not this one."""


@contextlib.contextmanager
def inspecting_with(code: str) -> Iterator[None]:
    """Have vLLM run this code in the program that inspects a model's class."""
    from vllm.model_executor.models import registry

    command = registry._SUBPROCESS_COMMAND
    registry._SUBPROCESS_COMMAND = [command[0], "-c", code]
    try:
        yield
    finally:
        registry._SUBPROCESS_COMMAND = command


@contextlib.contextmanager
def in_placement_group() -> Iterator[None]:
    """Have an engine that starts take the GPUs that Ray has reserved for this process, where there are such; vLLM asks in actors alone."""
    name = os.environ.get(PLACEMENT_GROUP)
    if name is None:
        yield
        return
    import ray
    from ray.util.placement_group import PlacementGroup, PlacementGroupID
    from vllm.engine import arg_utils

    group = PlacementGroup(PlacementGroupID(bytes.fromhex(name)))
    before = arg_utils.is_in_ray_actor, ray.util.get_current_placement_group
    arg_utils.is_in_ray_actor, ray.util.get_current_placement_group = (lambda: True), (lambda: group)
    try:
        yield
    finally:
        arg_utils.is_in_ray_actor, ray.util.get_current_placement_group = before


def result_queue(llm: Any) -> tuple[Any, Any]:
    """Return the queue of results of an engine core in a process of its own, and the thread that fills it; None where there is none."""
    core = llm.llm_engine.engine_core
    return getattr(core, "outputs_queue", None), getattr(core, "output_queue_thread", None)


def listen_to_steps(llm: Any, hear: Callable[[int, float], None]) -> None:
    """Have `hear` called with every step's number of rows that got tokens, and its time by vLLM's monotonic clock."""
    core = llm.llm_engine.engine_core
    get_output = core.get_output

    def heard() -> Any:
        outputs = get_output()
        hear(len(outputs.outputs), outputs.timestamp)
        return outputs

    core.get_output = heard


def num_tokens_running(llm: Any) -> int | None:
    """Return how many tokens the running requests have so far, together; None where this vLLM does not tell. For any thread.

    It holds for requests whose tokens are given out at their end, too: vLLM gathers them step by step in this process.
    """
    try:
        states = tuple(llm.llm_engine.output_processor.request_states.values())
        return sum(state.detokenizer.num_output_tokens() for state in states if state.detokenizer is not None)
    except (AttributeError, RuntimeError):  # another release; or a request has ended while this was read
        return None


def render(llm: Any, prompt: Mapping[str, Any]) -> Any:
    """Return vLLM's engine input of one prompt, its images processed."""
    (engine_input,) = llm.renderer.render_cmpl([dict(prompt)])
    return engine_input


def validate_structure(params: Any, llm: Any) -> None:
    """Raise what vLLM would raise of the structure when the request comes in; nothing where this release cannot be asked.

    vLLM notes its choice of a grammar's engine in `params`, so these are to be thrown away.
    """
    validate = getattr(params, "_validate_structured_outputs", None)
    if validate is not None:
        config = llm.llm_engine.vllm_config
        validate(config.model_config, config.structured_outputs_config, llm.get_tokenizer())


def known_engine_arguments() -> tuple[str, ...] | None:
    """Return the arguments of vLLM's engine, sorted; None where vLLM is not installed, or its source is not where it was."""
    spec = importlib.util.find_spec("vllm")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        try:
            tree = ast.parse((Path(folder) / "engine" / "arg_utils.py").read_bytes())
        except (OSError, SyntaxError):
            return None
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == "EngineArgs":
                fields = (line.target for line in node.body if isinstance(line, ast.AnnAssign))
                names = (target.id for target in fields if isinstance(target, ast.Name))
                return tuple(sorted(name for name in names if not name.startswith("_")))
    return None


_SAMPLE = Path("v1", "worker", "gpu", "sample")
_WAY_OUT = "more would end its engine; name fewer, or start with VLLM_USE_V2_MODEL_RUNNER=0 in the environment"
_IN_ENVIRONMENT = {"MAX_NUM_BAD_WORDS": "VLLM_MAX_NUM_BAD_WORDS", "MAX_BAD_WORDS_TOTAL_TOKENS": "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS"}
"""Constants of older releases that are variables in newer ones."""


def uses_v2_runner(engine_config: Any) -> bool:
    """Return whether requests run in the V2 model runner; `engine_config` is vLLM's own."""
    return bool(getattr(engine_config, "use_v2_model_runner", False))


def knows_thinking(folder: Path | None = None) -> bool:
    """Return whether the V2 runner of this vLLM, or of the one in `folder`, keeps a budget of thinking tokens."""
    return ((folder or _vllm_folder()) / _SAMPLE / "thinking_budget.py").is_file()


def limits_in(folder: Path) -> Mapping[str, int]:
    """Return the constants `MAX_…` of the modules that hold biases and bad words, of the vLLM in this folder."""
    limits: dict[str, int] = {}
    for name in ("logit_bias.py", "bad_words.py"):
        for node in ast.parse((folder / _SAMPLE / name).read_bytes()).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and type(node.value.value) is int:
                limits |= {target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)}
    return limits


@functools.cache
def _limits() -> Mapping[str, int]:
    from vllm import envs

    of_environment = {constant: getattr(envs, variable, None) for constant, variable in _IN_ENVIRONMENT.items()}
    return {**{name: value for name, value in of_environment.items() if value is not None}, **limits_in(_vllm_folder())}


def _vllm_folder() -> Path:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None  # asked only where an engine runs
    return Path((spec.submodule_search_locations or [""])[0])


def check_room(params: Any, tokenizer: Any) -> None:
    """Raise `UnsupportedOption` where `vllm.SamplingParams` hold more than the V2 runner takes; they are used up by it."""
    stop_ids = params.all_stop_token_ids if params.min_tokens else ()
    for option, given, limit in (
        ("allowed_token_ids", params.allowed_token_ids, "MAX_NUM_ALLOWED_TOKEN_IDS"),
        ("logit_bias", params.logit_bias, "MAX_NUM_LOGIT_BIAS_TOKENS"),
        ("min_new_tokens", stop_ids, "MAX_NUM_STOP_TOKEN_IDS"),
    ):
        what = "stop ids beside it" if option == "min_new_tokens" else "token ids"
        _compare(option, len(given or ()), what, limit)
    if params.bad_words:
        from vllm.exceptions import VLLMValidationError

        try:
            params.update_from_tokenizer(tokenizer)  # each word is one or two rows of ids, with and without a space before it
        except (ValueError, VLLMValidationError) as error:  # newer releases look themselves, but when the request comes in
            raise UnsupportedOption(f"option bad_words cannot be passed to vLLM: {str(error)[:200]}") from error
        rows = params.bad_words_token_ids
        _compare("bad_words", len(rows), "rows of ids", "MAX_NUM_BAD_WORDS")
        _compare("bad_words", sum(map(len, rows)), "token ids in all", "MAX_BAD_WORDS_TOTAL_TOKENS")


def _compare(option: str, num_given: int, what: str, limit: str) -> None:
    room = _limits().get(limit)
    if room is not None and num_given > room:
        raise UnsupportedOption(
            f"option {option} cannot be honoured by this vLLM: {num_given} {what}, of which its V2 runner takes {room}; {_WAY_OUT}"
        )
