"""Image prompts for vLLM: token ids and images in, expanded ids out, checked against the checkpoint's own image processor."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from evalharness.api.errors import BackendError, RequestError
from evalharness.backends.base import Prompt, SamplingPlan

if TYPE_CHECKING:
    from PIL import Image

    from evalharness.backends.vllm.engine import VllmEngine

ImageGrid: TypeAlias = "tuple[int, int, int]"
"""Patches of one image: time, height, width."""

MAX_GRIDS = 65_536  # some 15 MB; vLLM's cache of 4 GiB holds fewer images, unless they are of less than 64 KiB
PROBE_SIZES = ((64, 48), (3000, 2000))  # width, height: below and above any usual budget


WARM_UP_SIZES = ((512, 512), (448, 512), (512, 448), (448, 448))
"""Width and height of the photos that an engine is warmed up with: sides of 16 or 32 patches and others, as kernels differ for them."""


def warm_up_prompts(processor: Any, tokenizer: Any, plan: SamplingPlan) -> list[Prompt]:
    """Return prompts with one plain photo each; [] for a checkpoint whose template or placeholder is not known."""
    from PIL import Image

    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}]
    try:
        text = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        token_ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    except Exception:  # the template's own: a run that needs it will say so
        return []
    if token_ids.count(getattr(processor, "image_token_id", None)) != 1:
        return []
    images = [Image.new("RGB", size, "gray") for size in WARM_UP_SIZES]
    return [
        Prompt(index, text, token_ids, None, plan, load_images=lambda image=image: [image])  # type: ignore[misc]
        for index, image in enumerate(images)
    ]


def why_no_images(processor: Any, model_config: Any) -> str | None:
    """Return why prompts with images cannot run on a loaded model, None if they can; `processor` is its checkpoint's, if it has one."""
    if processor is None:
        return "the checkpoint was loaded as a text model"
    try:
        if hasattr(type(model_config), "supports_multimodal_inputs"):
            supported = bool(model_config.supports_multimodal_inputs)
        else:  # older releases ask the registry
            from vllm.multimodal import MULTIMODAL_REGISTRY

            supported = MULTIMODAL_REGISTRY.supports_multimodal_inputs(model_config)
    except (ImportError, AttributeError, ValueError, TypeError, RuntimeError) as error:
        return f"vLLM could not tell whether it takes images: {type(error).__name__}: {error}"
    return None if supported else "vLLM takes no images for this model"


class ImagePrompts:
    """Turns prompts with images into vLLM's engine inputs."""

    def __init__(self, engine: VllmEngine, processor: Any) -> None:
        self._engine = engine
        self._image_processor = processor.image_processor
        self._image_token_id: int | None = getattr(processor, "image_token_id", None)
        self._grid_of_hash: OrderedDict[str, ImageGrid] = OrderedDict()  # the latest used last, as in vLLM's own cache
        self._lock = threading.Lock()  # for the fields above: prompts may be rendered in several threads

    @property
    def can_verify(self) -> bool:
        """Whether the image processor can say beforehand how many tokens an image takes."""
        return hasattr(self._image_processor, "get_number_of_image_patches") and self._image_token_id is not None

    def render(self, prompt: Prompt) -> tuple[Any, tuple[ImageGrid, ...]]:
        """Return the engine input, its images processed, and their patch grids.

        The ids go in unexpanded and vLLM expands each placeholder, so that a text is never tokenised a second time.
        `ImageError` when an image cannot be opened or used, `BackendError` when vLLM made other tokens than the
        checkpoint's image processor would.
        """
        assert prompt.load_images is not None
        images = prompt.load_images()
        sizes = [image.size for image in images]
        response_ids = prompt.response_ids or ()
        engine_input = self._render(prompt.token_ids + response_ids, images)
        self._check_tokens(engine_input, sizes)
        num_tokens = len(engine_input["prompt_token_ids"]) - len(response_ids)
        if prompt.num_tokens is not None and num_tokens != prompt.num_tokens:
            raise BackendError(f"vLLM made {num_tokens} prompt tokens where {prompt.num_tokens} are right")
        with self._lock:
            return engine_input, self._grids(engine_input, images)

    def check_pixel_budget(self) -> None:
        """Raise `BackendError` unless vLLM resizes as the checkpoint's image processor does, with the budget that was set."""
        if not self.can_verify:
            return
        from PIL import Image

        for size in PROBE_SIZES:
            try:
                engine_input = self._render((self._image_token_id,), [Image.new("RGB", size, "gray")])
            except RequestError as error:
                raise BackendError(f"vLLM cannot take a plain image of {size} pixels: {error}") from error
            self._check_tokens(engine_input, [size])

    def _render(self, token_ids: Sequence[int | None], images: list[Image.Image]) -> Any:
        return self._engine.render({"prompt_token_ids": list(token_ids), "multi_modal_data": {"image": images}})

    def _check_tokens(self, engine_input: Any, sizes: Sequence[tuple[int, int]]) -> None:
        if not self.can_verify:
            return
        made = [place.length for place in engine_input["mm_placeholders"]["image"]]
        right = [self._num_tokens(width, height) for width, height in sizes]
        if made != right:
            raise BackendError(
                f"vLLM made {made} image tokens of images of {list(sizes)} pixels where the image processor makes {right}: "
                f"the pixel budget {dict(self._image_processor.size)} is not in force"
            )

    def _num_tokens(self, width: int, height: int) -> int:
        processor = self._image_processor
        if getattr(processor, "do_resize", True):
            num_patches = processor.get_number_of_image_patches(height, width, {})
        else:
            num_patches = (height // processor.patch_size) * (width // processor.patch_size)
        return int(num_patches // processor.merge_size**2)

    def _grids(self, engine_input: Any, images: Sequence[Image.Image]) -> tuple[ImageGrid, ...]:
        """Return the patch grid of each image.

        vLLM leaves out the data of images that the engine core has already; a grid that is not known from an earlier
        prompt (somebody else asked about the image) is worked out once more.
        """
        grids: list[ImageGrid] = []
        items = engine_input["mm_kwargs"].get("image", ())
        for item, image_hash, image in zip(items, engine_input["mm_hashes"]["image"], images, strict=True):
            if item is not None and "image_grid_thw" in item:
                self._grid_of_hash[image_hash] = _grid(item["image_grid_thw"].data)
            elif image_hash not in self._grid_of_hash:
                self._grid_of_hash[image_hash] = _grid(self._image_processor(images=[image], return_tensors="pt")["image_grid_thw"])
            self._grid_of_hash.move_to_end(image_hash)
            grids.append(self._grid_of_hash[image_hash])
        while len(self._grid_of_hash) > MAX_GRIDS:
            self._grid_of_hash.popitem(last=False)
        return tuple(grids)


def _grid(values: Any) -> ImageGrid:
    time, height, width = values.flatten().tolist()
    return int(time), int(height), int(width)


Rendered = TypeVar("Rendered")


class PromptsAhead(Generic[Rendered]):
    """The prompts of a source, in order, each with what gives its rendering; `threads` render those with images ahead.

    Without threads nothing is pulled before the prompt before it was taken, and nothing rendered before it is asked for.
    """

    def __init__(
        self, source: Iterator[Prompt], render: Callable[[Prompt], Rendered], threads: ThreadPoolExecutor | None, num_ahead: int
    ) -> None:
        self._source = source
        self._render = render
        self._threads = threads
        self._num_ahead = num_ahead if threads is not None else 1
        self._waiting: deque[tuple[Prompt, Callable[[], Rendered]]] = deque()
        self._futures: deque[Future[Rendered]] = deque()
        self._pull()

    @property
    def next(self) -> Prompt | None:
        """The prompt that `take` gives, None while the source has none; it is asked again each time."""
        if not self._waiting:
            self._pull()
        return self._waiting[0][0] if self._waiting else None

    def take(self) -> tuple[Prompt, Callable[[], Rendered]]:
        """Return the next prompt, and what returns its rendering or raises what rendering raised; the one after it is pulled."""
        taken = self._waiting.popleft()
        self._pull()
        return taken

    def close(self) -> None:
        """Render no more; what threads are at comes to its end unseen."""
        for future in self._futures:
            future.cancel()

    def _pull(self) -> None:
        while len(self._waiting) < self._num_ahead:
            prompt = next(self._source, None)
            if prompt is None:
                return
            if self._threads is None or not prompt.has_images:
                self._waiting.append((prompt, partial(self._render, prompt)))
                continue
            future = self._threads.submit(self._render, prompt)
            self._waiting.append((prompt, future.result))
            self._futures.append(future)
            while self._futures and self._futures[0].done():
                self._futures.popleft()


def pixel_bytes(engine_input: Any) -> int:
    """Return how many bytes of pixels go to the engine core with a rendered prompt."""
    items = (item for kind in engine_input.get("mm_kwargs", {}).values() for item in kind if item is not None)
    return sum(getattr(element.data, "nbytes", 0) for item in items for element in item.values())
