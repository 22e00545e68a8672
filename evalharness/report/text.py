"""Hostile text made safe for Markdown, CSV and terminals. Pure: knows no run.

Generated texts, file names, case ids and metric names may hold anything: pipes, newlines, ANSI codes, bidi overrides, lone
surrogates, HTML, spreadsheet formulas, a million characters. No function here raises on any text. Where a text is cut, a
marker says how many characters are missing; the full text is always in samples.jsonl.
"""

from __future__ import annotations

import math
import numbers
import re
from typing import Any

from evalharness.api.checks import excerpt
from evalharness.api.wording import figure_text as figure_text, number_text as number_text, part_of as part_of, plural as plural

CSV_CELL_CHARS = 32_767
"""What one spreadsheet cell can hold; a longer cell is cut by us, with a marker, not by the spreadsheet in silence."""

_SURROGATE = re.compile(r"[\ud800-\udfff]")
# C0, DEL, C1, bidi marks, line separators, bidi embeddings and isolates, deprecated format characters, lone surrogates.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]")
# A CSV cell keeps newlines and tabs (they are quoted) and bidi marks (they are data); NUL and CR trip up CSV readers.
_UNSAFE_IN_CSV = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LONGEST_ESCAPE = 6

# What spreadsheets run as a formula, with the full-width and small forms that East Asian input methods accept, also
# behind spaces and invisible characters.
_INVISIBLE = r"\s\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_FORMULA = re.compile(rf"[\t\n]|[{_INVISIBLE}]*[=+\-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b\u2212]")

_MARKDOWN = str.maketrans({**{mark: "\\" + mark for mark in "\\|`*[]~$"}, "<": "&lt;", "&": "&amp;"})
# An underscore inside a word is no emphasis and stays readable (`category_f1`).
_OUTER_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
# What would open a heading, quote, list or rule at the start of a line of prose.
_BLOCK_START = re.compile(r"\A(\d*)([#>]|[-+](?![\w.])|(?<=\d)[.)](?=\s|$))")
# What GitHub and GitLab make a mention, a mail address or a reference of, in the rendered text, so that no backslash stops it.
_REFERENCE = re.compile(
    r"(?<![A-Za-z0-9_])@(?=[A-Za-z0-9_])|@(?=[\w-]+\.\w)|@(?=[0-9a-f]{7})|[#!](?=\d)|\bGH-(?=\d)", re.ASCII | re.IGNORECASE
)
_NOTHING = "&#8203;"  # a space without width: the text looks as before
_AUTOLINK = re.compile(r":(?=//)|(?<=www)\.", re.IGNORECASE)


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    code = ord(char)
    return _NAMED.get(char) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def _cut(text: str, max_chars: int) -> tuple[str, str]:
    """Return the first `max_chars` characters and the marker that tells how many are missing ("" if none)."""
    return text[:max_chars], excerpt(text, max_chars, count_rest=True)[max_chars:]


def printable(text: str) -> str:
    """Return `text` with lone surrogates shown as `\\udc80`, so that encoding it as UTF-8 never fails."""
    return text if text.isascii() else _SURROGATE.sub(_escape, text)


def terminal_text(text: str, max_chars: int = 200) -> str:
    """Return one line that cannot steer a terminal: control, line-breaking and bidi characters are shown escaped.

    At most `max_chars` characters of `text`, then the marker; escapes may make the result longer.
    """
    head, marker = _cut(text, max_chars)
    return (head if head.isprintable() else _UNSAFE.sub(_escape, head)) + marker


def visible_text(text: str) -> str:
    """Return the text with control, line-separating and bidi characters escaped, but newlines and tabs as they are; nothing is cut."""
    return text if text.isprintable() else _UNSAFE.sub(lambda match: match[0] if match[0] in "\n\t" else _escape(match), text)


def one_line(text: str, max_chars: int = 200) -> str:
    """Return a message as one line: runs of white space become one space, all else as in `terminal_text`."""
    head, marker = _cut(text.strip(), max_chars)
    return terminal_text(" ".join(head.split()), max_chars) + marker


def markdown_cell(text: str, max_chars: int = 200) -> str:
    """Return text that Markdown shows as written, on one line: for a table cell, or inside a line of prose.

    No pipe ends the cell; HTML, links, images, code, emphasis, formulas and headings stay text, and nobody is notified by `@team` or
    linked by `#1`. Cut and escaped as in `terminal_text`; white space at both ends is dropped, as Markdown would.
    """
    shown = terminal_text(text, max_chars).strip()
    if shown.isalnum():
        return shown
    shown = _OUTER_UNDERSCORE.sub(r"\\_", shown.translate(_MARKDOWN))
    shown = _AUTOLINK.sub(lambda match: "\\" + match.group(), shown)
    shown = _BLOCK_START.sub(r"\1\\\2", shown)
    return _REFERENCE.sub(lambda match: match.group() + _NOTHING, shown)


def code_block(lines: list[str]) -> str:
    """Return a fenced Markdown block; no line can close it, control characters are shown escaped, nothing is cut."""
    shown = [terminal_text(line, len(line)) for line in lines]
    longest = max((len(run) for line in shown for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([fence, *shown, fence])


def csv_cell(value: object) -> str:
    """Return what to hand to `csv.writer` for a value. Numbers stay numbers; None and NaN become the empty cell.

    A text that a spreadsheet might run as a formula gets a leading apostrophe. Control characters other than newline and
    tab are shown escaped; beyond `CSV_CELL_CHARS` the text is cut with a marker. Safe for readers that split at commas;
    a spreadsheet told to split at other characters sees other cells.
    """
    if isinstance(value, str):
        # Most cells: nothing to escape, nothing that a formula begins with.
        return value if value[:1].isalnum() and len(value) < CSV_CELL_CHARS and value.isprintable() else _csv_text(value)
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):  # numpy's float64 too, whose own repr is no number
        return "" if value != value else float.__repr__(value)
    if isinstance(value, numbers.Real):
        return str(int(value)) if isinstance(value, numbers.Integral) else csv_cell(float(value))
    return _csv_text(str(value))


def _csv_text(text: str) -> str:
    if not text.isprintable() or len(text) >= CSV_CELL_CHARS:
        text = _escape_for_csv(text)
    if text[:1].isalnum() or not _FORMULA.match(text):
        return text
    return "'" + text


def _escape_for_csv(text: str) -> str:
    """Return the escaped text, cut so that marker and apostrophe still fit into one cell."""
    room = CSV_CELL_CHARS - 64
    head, marker = (text, "") if len(text) < CSV_CELL_CHARS else _cut(text, room)
    shown = _UNSAFE_IN_CSV.sub(_escape, head)
    if len(shown) + len(marker) >= CSV_CELL_CHARS:
        head, marker = _cut(text, room // _LONGEST_ESCAPE)
        shown = _UNSAFE_IN_CSV.sub(_escape, head)
    return shown + marker


def duration_text(seconds: float) -> str:
    """Return "3 s", "5 min 03 s", "1 h 05 min"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def share_text(part: int, whole: int, noun: str) -> str:
    """Return "3 of 20 cases", "1 of 1 case"; "all 20 cases" when it is all of several, "both cases" of two."""
    if part == whole and whole > 1:
        return f"both {noun}s" if whole == 2 else f"all {plural(whole, noun)}"
    return part_of(part, whole, noun)


def when_finite(value: Any) -> float | None:
    """Return a number, None for anything that is none or not finite."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) else None


def cell_text(value: object) -> str:
    """Return a value of an eval's table for people: yes or no, a whole number with all its digits, others as `number_text`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) and abs(value) < 10**15 else number_text(value)


def score_text(name: str, mean: float, low: float, high: float, n: int, num_groups: int) -> str:
    """Return a score's mean with its 95 % interval, where there is one, and n, in how many groups where cases have some."""
    interval = f" [{figure_text(low, name)} … {figure_text(high, name)}]" if low == low else ""
    groups = f" in {plural(num_groups, 'group')}" if num_groups < n else ""
    return f"{figure_text(mean, name)}{interval} n={n}{groups}"
