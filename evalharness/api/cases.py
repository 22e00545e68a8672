"""What an eval asks about: one case per sample. Knows nothing about engines or pytest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Case"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One sample of an eval; tasks subclass it with what they need.

    `id` is stable and unique within its eval: it names the test, the row and the case in every comparison.
    `group` joins cases that belong together (photos of one work order). `tags` become breakdown tables.
    `invalid` says why the case cannot be asked at all (an unreadable image): it ends as an `invalid` row.
    """

    id: str
    group: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    reference: Any = None
    invalid: str | None = None
