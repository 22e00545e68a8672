"""The images of a request: their sources in prompt order, and their facts once they are opened. Knows no torch.

A request refers to its images and does not hold them: a prompt opens them when its backend asks for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

from evalharness.api import images
from evalharness.api.checks import shown
from evalharness.api.errors import ImageError, RequestError
from evalharness.api.requests import TextGenerationRequest
from evalharness.api.scoring import Chat
from evalharness.api.wording import part_of, plural

if TYPE_CHECKING:
    from PIL import Image


@dataclass
class RequestImages:
    """The images of one request, in prompt order; `facts` is filled in when they are opened."""

    sources: tuple[Any, ...]
    verify: bool
    facts: tuple[dict[str, Any], ...] = field(default=())

    def identify(self) -> tuple[dict[str, Any], ...]:
        """Return and note size, hash and file of each image without decoding its pixels; raises `ImageError`."""
        return self._note([images.image_size(source) for source in self.sources])

    def load(self) -> list[Image.Image]:
        """Return the opened images and note their size, hash and file."""
        loaded = [images.load_image(source) for source in self.sources]
        self._note([picture.size for picture in loaded])
        return loaded

    def _note(self, sizes: Sequence[tuple[int, int]]) -> tuple[dict[str, Any], ...]:
        self.facts = tuple(
            {"width": width, "height": height, "sha256": images.image_sha256(source), **images.image_file(source)}
            for (width, height), source in zip(sizes, self.sources, strict=True)
        )
        return self.facts


def _image_parts(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    parts: list[Mapping[str, Any]] = []
    for message in messages:
        content = message.get("content")
        if _is_list(content):
            parts += [part for part in content if _is_image(part)]
    return parts


_OTHER_MEDIA = re.compile("image|audio|video|^file$")


def _check_media(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise `RequestError` for a part that no prompt could show: a template that does not know it would leave it out."""
    for message in messages:
        content = message.get("content")
        for part in content if _is_list(content) else ():
            kind = part.get("type") if isinstance(part, Mapping) else None
            if isinstance(kind, str) and kind != "image" and _OTHER_MEDIA.search(kind):
                raise RequestError(
                    f"a message has a part of type {shown(kind)}; parts are texts, {{'type': 'text', 'text': …}}, or images, "
                    "{'type': 'image', 'image': PATH}; other media cannot be asked"
                )


def images_of(request: Chat | None) -> RequestImages | None:
    """Return the images of a request in prompt order, None for a text request; raises `RequestError` if they do not match it."""
    if request is None:
        return None
    _check_media(request.messages)
    parts = _image_parts(request.messages)
    if isinstance(request, TextGenerationRequest):
        if parts:
            raise RequestError(f"a TextGenerationRequest has {plural(len(parts), 'image part')}; use VlmGenerationRequest")
        return None
    waiting = list(request.images)
    sources = []
    for part in parts:
        source = part.get("image")
        if source is None:
            if not waiting:
                counts = f"{plural(len(parts), 'placeholder')}, {len(request.images)} in request.images"
                raise ImageError(f"the messages have more image placeholders than images: {counts}")
            source = waiting.pop(0)
        sources.append(source)
    if waiting:
        raise ImageError(
            f"{part_of(len(waiting), len(request.images), 'image')} in request.images without a placeholder "
            f"{{'type': 'image'}} in the messages"
        )
    if not sources:
        raise ImageError("a VlmGenerationRequest needs at least one image; use TextGenerationRequest for a chat without")
    return RequestImages(tuple(sources), request.verify)


def without_pictures(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the messages unchanged, but with image parts that name no source: templates only place them."""
    if not _image_parts(messages):
        return messages
    bare = []
    for message in messages:
        content = message.get("content")
        if _is_list(content):
            message = {**message, "content": [{"type": "image"} if _is_image(part) else part for part in content]}
        bare.append(message)
    return bare


def _is_list(content: object) -> TypeGuard[Sequence[Any]]:
    return not isinstance(content, (str, bytes)) and isinstance(content, Sequence)  # most are texts, and this check is the slower


def _is_image(part: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(part, Mapping) and part.get("type") == "image"
