"""Every backend keeps the contract that third parties' backends are tested by. Run: pytest tests/contract/test_contract.py"""

from __future__ import annotations

from evalharness.engine.backend_contract import BackendContract


class TestBackend(BackendContract):
    """All backends: `engine` of conftest.py."""
