"""The reference answers that a score is given: a text, or several."""

from __future__ import annotations

from collections.abc import Sequence

from evalharness.api.errors import ContractTypeError


def references_of(reference: str | Sequence[str]) -> Sequence[str]:
    """Return the references as a sequence; `ContractTypeError` for anything but texts, such as a number out of a table."""
    if isinstance(reference, str):
        return (reference,)
    if not isinstance(reference, Sequence) or not all(isinstance(text, str) for text in reference):
        raise ContractTypeError(f"a reference must be a text, or a list of texts, got {reference!r}; give str(…) of a number")
    return reference
