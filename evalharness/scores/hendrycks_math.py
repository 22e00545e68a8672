r"""Whether two LaTeX answers are written alike, as the MATH benchmark compares them: `\tfrac12` and `\frac{1}{2}`, `x=5` and `5`.

It compares spellings, not values: `2\sqrt{3}` and `\sqrt{12}` differ, and so do `0.25` and `\frac{1}{4}`. It is there because published
numbers were made with it; `math_equal` compares values. https://github.com/hendrycks/math/blob/main/modeling/math_equivalence.py
"""

from __future__ import annotations

from evalharness.answers import Extractor

_GONE_AT_FIRST = ("\n", r"\!")
_ALIKE = ((r"\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"))
_GONE = (r"\left", r"\right", r"^{\circ}", r"^\circ", r"\$")
_UNIT = r"\text{ "


def math_spelled_alike(prediction: str | None, reference: str) -> bool:
    """Return whether two answers have one spelling; None, nothing found, has none.

    Where one of them has no normal form, whether they are the same text.
    """
    if prediction is None:
        return False
    try:
        return _normal_form(prediction) == _normal_form(reference)
    except ValueError:
        return prediction == reference


def between_dollars() -> Extractor:
    """Return the extractor of the text between the first and the last dollar sign, of the whole text where there are not two."""

    def find(text: str) -> str:
        first, last = text.find("$"), text.rfind("$")
        return text if first == last else text[first + 1 : last]

    return Extractor("between_dollars", find)


def _normal_form(text: str) -> str:
    """Return the text in the form that is compared; `ValueError` for one on which the benchmark's own code fails."""
    for gone in _GONE_AT_FIRST:
        text = text.replace(gone, "")
    for written, form in _ALIKE:
        text = text.replace(written, form)
    for gone in _GONE:
        text = text.replace(gone, "")
    text, *units = text.split(_UNIT)
    if len(units) > 1:
        raise ValueError("two units")
    text = text.replace(r"\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if not text:
        return text
    text = f"0{text}" if text[0] == "." else text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        text = sides[1]
    text = _braced_fractions(_braced_roots(text).replace(" ", ""))
    return _slash_as_fraction(r"\frac{1}{2}" if text == "0.5" else text)


def _braced_roots(text: str) -> str:
    r"""Return a text with `\sqrt3` as `\sqrt{3}`."""
    first, *rest = text.split(r"\sqrt")
    if not all(rest):
        raise ValueError("a root of nothing")
    return first + "".join(r"\sqrt" + (part if part[0] == "{" else f"{{{part[0]}}}{part[1:]}") for part in rest)


def _braced_fractions(text: str) -> str:
    r"""Return a text with `\frac12` as `\frac{1}{2}` and `\frac1{72}` as `\frac{1}{72}`; unchanged if a fraction lacks its second part."""
    first, *rest = text.split(r"\frac")
    parts = [first]
    for part in rest:
        if not part:
            raise ValueError("a fraction of nothing")
        if part[0] == "{":
            parts.append(part)
        elif len(part) < 2:
            return text
        else:
            parts.append(f"{{{part[0]}}}" + (part[1:] if part[1] == "{" else f"{{{part[1]}}}{part[2:]}"))
    return r"\frac".join(parts)


def _slash_as_fraction(text: str) -> str:
    r"""Return `3/4` as `\frac{3}{4}`; `ValueError` for a slash between anything else than whole numbers."""
    sides = text.split("/")
    if len(sides) != 2:
        return text
    above, below = int(sides[0]), int(sides[1])
    return rf"\frac{{{above}}}{{{below}}}" if text == f"{above}/{below}" else text
