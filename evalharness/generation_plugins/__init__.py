"""Generation plugins that ship with the harness. Nothing is in force unless an eval or a caller asks for it.

pytestmark = pytest.mark.eval(cases=…, request=…, plugins=[ObjectCap(60), BalancedJsonStop()])
engine.generate_vlm_batch(requests, options, plugins=[DuplicateObjectBan()])
"""

from __future__ import annotations

from evalharness.generation_plugins.dense import (
    BalancedJsonStop as BalancedJsonStop,
    DuplicateObjectBan as DuplicateObjectBan,
    DuplicateObjectStop as DuplicateObjectStop,
    ObjectCap as ObjectCap,
)
