"""The prediction and the references that a score is given: texts."""

from __future__ import annotations

from collections.abc import Sequence

from evalharness.api.checks import check_text
from evalharness.api.errors import ContractTypeError, ContractValueError


def references_of(reference: str | Sequence[str]) -> Sequence[str]:
    """Return the references as a sequence, at least one; `ContractTypeError` for anything but texts, such as a number out of a table."""
    if isinstance(reference, str):
        return (reference,)
    if not isinstance(reference, Sequence) or not all(isinstance(text, str) for text in reference):
        raise ContractTypeError(f"a reference must be a text, or a list of texts, got {reference!r}; give str(…) of a number")
    if not reference:
        raise ContractValueError("there is no reference to compare with: the list is empty")
    return reference


def texts_of(prediction: str | None, reference: str | Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return both as texts; raises for anything else."""
    check_text("the prediction", prediction, optional=True)
    return prediction, references_of(reference)
