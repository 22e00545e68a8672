"""Property tests here are judged by their results alone: a busy machine must not fail them (hypothesis' deadline is 200 ms)."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
