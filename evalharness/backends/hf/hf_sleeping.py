"""Weights put away while something else needs their memory, and brought back to the bit.

Those of a GPU wait in the machine's memory, those of a CPU in a temporary file.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch

from evalharness.api.errors import CapabilityError

__all__ = ["SleepingWeights"]


class SleepingWeights:
    """The parameters of a model, put away when this is made. Each piece of memory is kept once, so ties stay ties."""

    def __init__(self, model: Any) -> None:
        parameters = list(model.parameters())
        if any(parameter.is_meta for parameter in parameters):
            raise CapabilityError("parts of the model are kept on disk already (device_map); it cannot be put to sleep")
        self._file: Any = None
        pieces: dict[int, Any] = {parameter.untyped_storage().data_ptr(): parameter.untyped_storage() for parameter in parameters}
        kept = {place: self._put_away(storage) for place, storage in pieces.items()}
        self._views = [
            (
                parameter,
                kept[parameter.untyped_storage().data_ptr()],
                parameter.storage_offset(),
                tuple(parameter.shape),
                parameter.stride(),
            )
            for parameter in parameters
        ]
        self.num_bytes = sum(storage.nbytes() for storage in pieces.values())
        for parameter in parameters:
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)

    def _put_away(self, storage: Any) -> _Piece:
        values = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        if storage.device.type != "cpu":
            return _Piece(storage.device, len(values), values.cpu(), 0)
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="evalharness-sleeping-")  # noqa: SIM115 (closed when the weights wake)
        start = self._file.tell()
        self._file.write(memoryview(values.numpy()))
        return _Piece(storage.device, len(values), None, start)

    def wake(self) -> None:
        """Bring every parameter back, each where it was."""
        back: dict[int, torch.Tensor] = {}
        for parameter, piece, offset, shape, stride in self._views:
            if id(piece) not in back:
                back[id(piece)] = self._bring_back(piece)
            whole = back[id(piece)].untyped_storage()
            empty = torch.empty(0, dtype=parameter.dtype, device=piece.device)
            parameter.data = empty.set_(whole, offset, shape, stride)
        if self._file is not None:
            self._file.close()

    def _bring_back(self, piece: _Piece) -> torch.Tensor:
        if piece.values is not None:
            return piece.values.to(piece.device)
        values = torch.empty(piece.num_bytes, dtype=torch.uint8)
        self._file.seek(piece.start)
        if self._file.readinto(memoryview(values.numpy())) != piece.num_bytes:
            raise OSError("the file of sleeping weights is shorter than what was written")
        return values


class _Piece:
    """One piece of memory: its values, or where they begin in the file."""

    def __init__(self, device: torch.device, num_bytes: int, values: torch.Tensor | None, start: int) -> None:
        self.device, self.num_bytes, self.values, self.start = device, num_bytes, values, start
