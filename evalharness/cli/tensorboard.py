"""A run as TensorBoard's event files: one folder per training run, steps are those of the checkpoints. Needs no TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from evalharness.cli.libraries import load
from evalharness.cli.metrics import Track

__all__ = ["write_tensorboard"]


def write_tensorboard(tracks: Sequence[Track], folder: Path) -> list[Path]:
    """Write scalars and pictures below `folder` and return the tracks' folders; further runs of a track go beside the first."""
    writers = load("tensorboard.summary.writer.event_file_writer", "tensorboard")
    events, summaries = (
        load("tensorboard.compat.proto.event_pb2", "tensorboard"),
        load("tensorboard.compat.proto.summary_pb2", "tensorboard"),
    )
    from PIL import Image

    paths = []
    for track in tracks:
        path = folder / track.name
        writer = writers.EventFileWriter(str(path), filename_suffix=f".{track.run_id}")
        for point in track.points:
            values = [summaries.Summary.Value(tag=name, simple_value=value) for name, value in point.metrics.items()]
            for name, picture in point.pictures.items():
                with Image.open(picture) as opened:
                    width, height = opened.size
                image = summaries.Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=picture.read_bytes())
                values.append(summaries.Summary.Value(tag=name, image=image))
            writer.add_event(events.Event(step=point.step, wall_time=time.time(), summary=summaries.Summary(value=values)))
        writer.close()
        paths.append(path)
    return paths
