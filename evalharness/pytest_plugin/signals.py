"""Ends a run on SIGTERM and SIGHUP as Ctrl-C does: with everything written. By default they end a process at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_NUMBERS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class EndSignals:
    """Handles the signals from `take` to `give_back`. One that is ignored (nohup) or handled by others stays as it is."""

    def __init__(self) -> None:
        self.received: str | None = None
        """The name of the last one."""
        self._before: dict[int, Any] = {}

    def take(self) -> None:
        """Begin to handle them; does nothing outside of the main thread, where Python allows no handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._before[number] = signal.signal(number, self._on_signal)

    def give_back(self) -> None:
        """Put the former handlers back. Idempotent."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name
        on_interrupt = signal.getsignal(signal.SIGINT)
        if callable(on_interrupt):
            on_interrupt(signal.SIGINT, frame)
        else:  # Ctrl-C is ignored, as in the background of a script
            raise KeyboardInterrupt
