"""The metrics of a run: rows in ``metrics.jsonl``, and their numbers for TensorBoard."""

import itertools
import json
import os
import socket
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import scalar

from ..files import append_whole, make_folder, replace_text, sync_file

FILE_NAME = "metrics.jsonl"
Row = Mapping[str, object]

_numbers = itertools.count()


def read_metrics(directory: str | Path) -> list[dict]:
    """Return the rows of a run's ``metrics.jsonl`` in the order of steps.

    A step that was done again after a kill counts once, as it was done last. A last line cut by a
    kill is left out; so are other lines that are no rows, with a warning.

    Parameters
    ----------
    directory : str or Path
        The run directory.
    """
    path = Path(directory) / FILE_NAME
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give the directory of a training run")
    rows: dict[tuple[int, str, object], dict] = {}
    strange = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            is_row = type(row["step"]) is int and type(row["kind"]) is str
        except (ValueError, TypeError, KeyError, RecursionError):
            is_row = False
        if is_row:
            rows[row["step"], row["kind"], str(row.get("split"))] = row
        elif number < len(lines):
            strange.append(str(number))
    if strange:
        warnings.warn(
            f"{path}: line {', '.join(strange[:5])}{' ...' if len(strange) > 5 else ''} of "
            f"{len(lines) - 1} is no row of metrics and is left out",
            stacklevel=2,
        )
    return sorted(rows.values(), key=lambda row: row["step"])


class MetricsLog:
    """Appends rows to the files of a run; what a full disk refuses waits for the next call.

    Parameters
    ----------
    directory : Path
        The run directory.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = MetricsLog(Path(folder))
    ...     log.append([{"kind": "step", "step": 1, "loss": 0.5}])
    ...     log.show()
    ...     [row["loss"] for row in read_metrics(folder)]
    [0.5]
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self.board = EventFile(directory / "tensorboard")
        self._unwritten: list[Row] = []
        self._unshown: list[Row] = []

    @property
    def waiting(self) -> int:
        """Number of rows that could not be written yet."""
        return len(self._unwritten)

    @property
    def unshown(self) -> int:
        """Number of rows that TensorBoard does not have yet."""
        return len(self._unshown)

    def append(self, rows: Sequence[Row]) -> None:
        """Append `rows` to the metrics; OSError where the disk is full."""
        self._unwritten += rows
        if self._unwritten:
            append_whole(self.path, _lines(self._unwritten).encode())
        self._unshown += self._unwritten
        self._unwritten = []

    def show(self) -> None:
        """Hand TensorBoard the numbers of the rows written; OSError where the disk is full."""
        if self._unshown:
            self.board.append(self._unshown)
        self._unshown = []

    def replace(self, rows: Sequence[Row], next_step: int) -> None:
        """Put `rows` in the place of all rows, before a resumed run does `next_step`."""
        self.board.forget_from(next_step)
        replace_text(self.path, _lines(rows))

    def sync(self) -> None:
        """Wait until the disk has the rows; a checkpoint counts only then."""
        if self.path.exists():
            sync_file(self.path)


class EventFile:
    """A file of TensorBoard's that rows of metrics are appended to, in the calling thread.

    ``SummaryWriter`` writes in a thread of its own, which the first failed write ends for good;
    here a full disk is an OSError of the call.

    Parameters
    ----------
    folder : Path
        Where TensorBoard looks; made with the first rows.
    """

    def __init__(self, folder: Path) -> None:
        place = f"{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self.path = folder / f"events.out.tfevents.{place}"
        self._head = [Event(file_version="brain.Event:2")]

    def forget_from(self, step: int) -> None:
        """Let TensorBoard forget what other files in the folder have from this step on."""
        self._head.append(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def append(self, rows: Iterable[Row]) -> None:
        """Append the floats of `rows`, all or nothing; OSError where they cannot be written."""
        events = self._head + [
            Event(step=row["step"], summary=scalar(tag, value))
            for row in rows
            for tag, value in _numbers_of(_place(row), row)
        ]
        buffer = BytesIO()
        records = RecordWriter(buffer)
        for event in events:
            event.wall_time = time.time()
            records.write(event.SerializeToString())
        make_folder(self.path.parent)
        append_whole(self.path, buffer.getvalue())
        self._head = []


def _lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _place(row: Row) -> str:
    """Return where TensorBoard shows a row: its kind and, where it has one, its split."""
    return "/".join(str(row[key]) for key in ("kind", "split") if key in row)


def _numbers_of(name: str, value: object) -> Iterable[tuple[str, float]]:
    """Return the floats in a row by their paths, such as ``evaluation/errors/pMeanTrim``."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers_of(f"{name}/{key}", inner)
    elif isinstance(value, float):
        yield name, value
