"""Constrains an answer token by token: JSON of a schema, a regular expression, one of several texts, or a grammar.

    GenerationOptions(structured=StructuredOutput(choice=("yes", "no")))

Checked at construction as far as possible without an engine; features that an engine's grammars lack are refused before anything runs.
Imports neither torch nor an engine.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from evalharness.api.checks import check_boolean, check_instance, check_json, check_sequence, check_text, known_keys
from evalharness.api.errors import ContractValueError
from evalharness.api.json_schema import AnswerDecoder, check_schema, is_match, problems_of

STRUCTURES = ("json_schema", "regex", "choice", "grammar")
_MAX_DEPTH = 64  # engines build grammars by recursion, in C++


@dataclass(frozen=True)
class StructuredOutput:
    """The form of an answer; set exactly one field. `json_schema`: draft 2020-12; `{"type": "object"}` allows any object.

    `regex` must match the whole answer. `choice`: the allowed texts. `grammar`: EBNF as in llama.cpp (GBNF), starting at `root`.
    `optional`: where the backend cannot hold an answer to the form, it is free, and its `ignored_options` say so. Raises
    `ContractTypeError` or `ContractValueError`.
    """

    json_schema: Mapping[str, Any] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        check_boolean("structured.optional", self.optional)
        names = [name for name in STRUCTURES if getattr(self, name) is not None]
        if len(names) != 1:
            raise ContractValueError(f"structured needs exactly one of {', '.join(STRUCTURES)}, got {', '.join(names) or 'none'}")
        getattr(self, f"_check_{names[0]}")()

    def _check_json_schema(self) -> None:
        check_instance("structured.json_schema", self.json_schema, Mapping)
        schema = dict(self.json_schema or {})
        check_json("structured.json_schema", schema)
        _check_depth(schema)
        check_schema(schema, "structured.json_schema")
        object.__setattr__(self, "json_schema", copy.deepcopy(schema))

    def _check_regex(self) -> None:
        check_text("structured.regex", self.regex)
        try:
            re.compile(self.regex or "")
        except re.error as error:
            raise ContractValueError(f"structured.regex {self.regex!r} is not a regular expression: {error}") from None
        if not self.regex or "\0" in self.regex:
            raise ContractValueError(f"structured.regex must be a pattern without NUL characters, got {self.regex!r}")

    def _check_choice(self) -> None:
        check_sequence("structured.choice", self.choice, "texts")
        texts = tuple(self.choice or ())
        for position, text in enumerate(texts):
            check_text(f"structured.choice[{position}]", text)
            if not text:
                raise ContractValueError(f"structured.choice[{position}] is empty; an answer must say something")
        if not texts:
            raise ContractValueError("structured.choice is empty; give the texts that an answer may be")
        if len(set(texts)) != len(texts):
            raise ContractValueError(f"structured.choice holds a text twice: {list(texts)!r}")
        object.__setattr__(self, "choice", texts)

    def _check_grammar(self) -> None:
        check_text("structured.grammar", self.grammar)
        if not re.search(r"^\s*root\s*::=", self.grammar or "", re.MULTILINE):
            raise ContractValueError("structured.grammar has no rule 'root ::= …'; write it in EBNF, as llama.cpp takes it")

    @property
    def kind(self) -> str:
        """Which of the four fields is set."""
        return next(name for name in STRUCTURES if getattr(self, name) is not None)

    @property
    def value(self) -> Any:
        """The field that is set, as plain JSON data."""
        value = getattr(self, self.kind)
        return list(value) if isinstance(value, tuple) else value

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json(), sort_keys=True))

    def to_json(self) -> dict[str, Any]:
        """Return the field that is set, and `optional` where it is, as plain JSON data."""
        return {self.kind: self.value, "optional": True} if self.optional else {self.kind: self.value}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> StructuredOutput:
        """Return the output that `to_json` or a settings file describes. Raises `ContractValueError` for an unknown key."""
        values = {key: value for key, value in known_keys("structured", mapping, cls).items() if value is not None}
        if isinstance(values.get("choice"), list):
            values["choice"] = tuple(values["choice"])
        return cls(**values)

    def as_choice_grammar(self) -> str:
        """Return the grammar of a `choice`, as vLLM writes it."""
        return "root ::= " + " | ".join(f'"{_escaped(text)}"' for text in self.choice or ())


assert tuple(f.name for f in fields(StructuredOutput)) == (*STRUCTURES, "optional")

_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(c) or (f"\\u{ord(c):04x}" if ord(c) < 0x20 or ord(c) == 0x7F else c) for c in text)


def _check_depth(value: Any, depth: int = 0) -> None:
    if depth > _MAX_DEPTH:
        raise ContractValueError(f"structured.json_schema is nested more than {_MAX_DEPTH} deep; give parts names in $defs")
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        _check_depth(inner, depth + 1)


def fits(text: str, structured: StructuredOutput) -> bool:
    """Return whether a whole text has the required form; a `grammar` is not checked and always fits."""
    if structured.choice is not None:
        return text in structured.choice
    if structured.regex is not None:
        return is_match(structured.regex, text)
    if structured.json_schema is None:
        return True
    try:
        return not problems_of(AnswerDecoder().decode(text), structured.json_schema)
    except ValueError:
        return False


# Keywords that xgrammar ignores, so that an answer could violate them; it logs most of them, but not all.
_UNHELD = frozenset({"multipleOf", "uniqueItems", "contains", "minContains", "maxContains", "not", "if", "then", "else"}) | {
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "propertyNames",
    "patternProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
}
_NAMED = frozenset({"properties", "$defs", "definitions"})  # their keys are names, not keywords
_VALUES = frozenset({"enum", "const", "default", "examples", "example"})
_FORMATS = frozenset({"email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "uri-reference"}) | {
    "uri-template",
    "json-pointer",
    "relative-json-pointer",
}


def unheld_keywords(schema: Any, path: str = "#") -> Iterator[str]:
    """Yield every keyword of a schema that xgrammar would silently ignore, as `keyword at #/place`."""
    if not isinstance(schema, Mapping):
        return
    for keyword, value in schema.items():
        here = f"{path}/{keyword}"
        if keyword in _UNHELD or (keyword == "allOf" and isinstance(value, list) and len(value) > 1):
            yield f"{keyword} at {path}"
        elif keyword == "format" and value not in _FORMATS:
            yield f"format {value!r} at {path}"
        elif keyword in ("pattern", "format") and not {"minLength", "maxLength"}.isdisjoint(schema):
            yield f"{keyword} beside a length at {path}"
        elif keyword in _NAMED and isinstance(value, Mapping):
            for name, inner in value.items():
                yield from unheld_keywords(inner, f"{here}/{name}")
        elif keyword not in _VALUES:
            for position, inner in enumerate(value) if isinstance(value, list) else [("", value)]:
                yield from unheld_keywords(inner, f"{here}/{position}" if position != "" else here)
