"""A call that an answer holds, and an answer with all of its calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Found", "ToolAnswer", "ToolCall"]


@dataclass(frozen=True)
class ToolCall:
    """One call in an answer. `span`: start and end in the text, counted in characters. `error`: why it must not be executed.

    `name` is None where the text does not say it; `arguments` hold what could be read.
    """

    name: str | None
    arguments: Mapping[str, Any]
    raw_text: str
    span: tuple[int, int]
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the call as plain JSON types."""
        return {**vars(self), "arguments": dict(self.arguments), "span": list(self.span)}


@dataclass(frozen=True)
class ToolAnswer:
    """What an answer calls, in the order of the text, and what it says beside (`content`). `format`: how calls were written."""

    calls: tuple[ToolCall, ...]
    content: str
    format: str | None = None

    @property
    def executable(self) -> tuple[ToolCall, ...]:
        """The calls without error."""
        return tuple(call for call in self.calls if call.error is None)

    @property
    def failed(self) -> tuple[ToolCall, ...]:
        """The calls with an error: attempts, which an eval counts and nobody executes."""
        return tuple(call for call in self.calls if call.error is not None)


@dataclass(frozen=True)
class Found:
    """A call as a format has it, before names and arguments are compared with the tools.

    `texts`: arguments are texts, whose types only the schema knows.
    """

    name: str | None
    arguments: Mapping[str, Any]
    span: tuple[int, int]
    error: str | None = None
    texts: bool = False
