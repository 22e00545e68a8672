"""Generation plugins that ship with the harness. Nothing is in force unless an eval or a caller asks for it.

pytestmark = pytest.mark.eval(cases=…, request=…, plugins=[ObjectCap(60), BalancedJsonStop()])
engine.generate_vlm_batch(requests, options, plugins=[DuplicateObjectBan()])
"""

from __future__ import annotations

from evalharness.generation_plugins.dense import BalancedJsonStop, DuplicateObjectBan, DuplicateObjectStop, ObjectCap

__all__ = ["BalancedJsonStop", "DuplicateObjectBan", "DuplicateObjectStop", "ObjectCap"]
