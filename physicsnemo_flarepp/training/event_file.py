"""Metrics for TensorBoard, written in the calling thread so that a full disk is an OSError here.

``SummaryWriter`` writes in a thread of its own, which the first failed write ends for good.
"""

import itertools
import os
import socket
import time
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import scalar

from ..files import append_whole, make_folder

_numbers = itertools.count()


class EventFile:
    """A file of TensorBoard's that rows of metrics are appended to.

    Parameters
    ----------
    folder : Path
        Where TensorBoard looks; made with the first rows.
    purge_step : int, optional
        TensorBoard forgets what other files in the folder have from this step on.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        place = f"{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self.path = folder / f"events.out.tfevents.{place}"
        self._head = [Event(file_version="brain.Event:2")]
        if purge_step is not None:
            start = SessionLog(status=SessionLog.START)
            self._head.append(Event(step=purge_step, session_log=start))

    def append(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Append the floats of `rows`, all or nothing; OSError where they cannot be written."""
        events = self._head + [
            Event(step=row["step"], summary=scalar(f"{row['kind']}/{name}", value))
            for row in rows
            for name, value in row.items()
            if isinstance(value, float)
        ]
        buffer = BytesIO()
        records = RecordWriter(buffer)
        for event in events:
            event.wall_time = time.time()
            records.write(event.SerializeToString())
        make_folder(self.path.parent)
        append_whole(self.path, buffer.getvalue())
        self._head = []
