"""OCRBench's rule: the answer is right if it contains one of the references."""

from __future__ import annotations

from collections.abc import Sequence

from evalharness.scores.references import texts_of

# The full-width forms of ASCII, and the ideographic space.
_NARROW = {wide: wide - 0xFEE0 for wide in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}


def ocr_contains(answer: str | None, references: str | Sequence[str], *, formula: bool = False, fold_width: bool = False) -> bool:
    """Return whether a reference stands in the answer, in any case; for a formula in the same case, but with any spaces; None does not.

    `fold_width` takes full-width letters for their usual forms, as lmms-eval does; the authors' script does not.
    """

    def compared(text: str) -> str:
        if formula:
            return text.strip().replace("\n", "").replace(" ", "")
        return (text.translate(_NARROW) if fold_width else text).lower().strip().replace("\n", " ")

    answer, references = texts_of(answer, references)
    if answer is None:
        return False
    given = compared(answer.strip())
    return any(compared(reference) in given for reference in references)
