"""Why a gate "no_regression" will refuse its baseline at the end of a run, as far as that is known before anything is asked.

Taken is the run that suits the gate best: each case of the baseline is judged again, with the same prompt. What is refused even then is
refused whatever comes. Prompts, the chat template, and a checkpoint's own limits are known only once an engine is open.
Knows nothing about pytest; loads numpy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from evalharness.analysis.comparison.compare import CATEGORY
from evalharness.analysis.comparison.pairing import paired_cases, pairing
from evalharness.analysis.comparison.sheets import SHORT_HASH, CaseLine, Sheet, Side, without_seed
from evalharness.analysis.gate_grammar import RegressionGate
from evalharness.analysis.judge import too_weak
from evalharness.api.errors import EvalHarnessError
from evalharness.runs.judging import code_of

if TYPE_CHECKING:
    from evalharness.runs.schema import EvalEntry

_GO_ON = "name another baseline, or accept it anyway with --accept-changes"


def refusal_ahead(
    gate: RegressionGate,
    base: Side,
    entry: Mapping[str, Any],
    test: str,
    case_ids: Collection[str],
    limits: Mapping[str, Any],
    *,
    anyway: bool,
) -> str:
    """Return why the gate of a test will refuse the baseline's side, and what to do; "" if nothing is known against it.

    `entry`: an eval's line, with the hashes of `references` by case. `limits`: settings of all requests that the run's options set.
    """
    key = (entry["name"], test)
    sheet = base.sheets.get(key)
    if sheet is None:
        return f"it has no test {'::'.join(key)}; name another baseline, or leave the test out"
    candidate = _best(base, sheet, entry, test, case_ids, limits)
    try:
        found = pairing(replace(base, sheets={key: sheet}), candidate, anyway=anyway, go_on=_GO_ON)
    except EvalHarnessError as error:
        return str(error)
    lines = [candidate.sheets[key].cases[case_id] for case_id in paired_cases(sheet, candidate.sheets[key])]
    known = {name for line in lines for name in (*line.scores, *line.tags, *((CATEGORY,) if line.marks else ()))}
    num_groups = len({line.group or number for number, line in enumerate(lines)})
    refusal = too_weak(gate, candidate, found.coverage[0], known, num_groups, 1)
    return refusal and f"{refusal}; name another baseline, or leave --until-certain out"


def _best(base: Side, sheet: Sheet, entry: Mapping[str, Any], test: str, case_ids: Collection[str], limits: Mapping[str, Any]) -> Side:
    """Return the side of the run that suits the gate best."""
    variants = without_seed(entry["options"])
    new, references = CaseLine("pass", {}, {}, None, None), entry["references"]
    lines = {
        case_id: sheet.cases.get(case_id, new)._replace(
            answer=None,
            group=facts.get("group"),
            tags=facts.get("tags") or {},
            reference=(references.get(case_id) or "")[:SHORT_HASH] or None,
            shown_reference=None,
        )
        for case_id, facts in entry["cases"].items()
        if case_id in case_ids
    }
    best = Sheet(sheet.eval, sheet.test, variants[0] if len(variants) == 1 else variants, lines, code_of(cast("EvalEntry", entry), test))
    return replace(
        base, label="this run", source="", sheets={(sheet.eval, sheet.test): best}, asked={**base.asked, **limits}, own_limits=frozenset()
    )
