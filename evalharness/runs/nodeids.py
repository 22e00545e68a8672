"""What the node id of an eval test says. Plain functions on text, the same in every process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["EvalNode", "parse_nodeid", "test_name"]


class EvalNode(NamedTuple):
    """What the node id of an eval test says. `test` has its class and its other parameters: "TestA::test_b[x]"."""

    path: str
    test: str
    engine: str
    case_id: str


def parse_nodeid(nodeid: str, engine_ids: Iterable[str]) -> EvalNode | None:
    """Return what the id of an eval test says, None for any other test. `case_id` is as pytest writes it, maybe escaped.

    Ids are written as `[<other parameters>-<engine>-<case>]`; the longest engine id that fits wins.
    """
    path, _, rest = nodeid.partition("::")
    name, bracket, parameters = rest.partition("[")
    if not bracket or not parameters.endswith("]"):
        return None
    parameters = "-" + parameters[:-1]
    best: EvalNode | None = None
    for engine_id in engine_ids:
        others, found, case_id = parameters.partition(f"-{engine_id}-")
        if found and (best is None or len(engine_id) > len(best.engine)):
            best = EvalNode(path, f"{name}[{others[1:]}]" if others else name, engine_id, case_id)
    return best


def test_name(nodeid: str, path: str, engine_id: str) -> str:
    """Return the test in the id of an eval test, whose engine is known: its class, its name, its other parameters."""
    name, bracket, parameters = nodeid[len(path) + 2 :].partition("[")
    others = "" if parameters.startswith(f"{engine_id}-") else parameters.partition(f"-{engine_id}-")[0]
    return f"{name}{bracket}{others}]" if others else name
