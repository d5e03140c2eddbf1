"""The metrics of a run: rows in ``metrics.jsonl``, and their numbers for TensorBoard."""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from ..files import append_whole, make_folder, replace_text, sync_file

FILE_NAME = "metrics.jsonl"
BOARD = "tensorboard"
# By this a restart knows which of the event files are the run's.
_OWN_SUFFIX = ".flarepp"
OWN_EVENTS = f"events.out.tfevents.*{_OWN_SUFFIX}"
_ALL = 0  # the step before which nothing is kept: all rows are shown anew
Row = Mapping[str, object]


def read_metrics(directory: str | Path) -> list[dict]:
    """Return the rows of a run's ``metrics.jsonl`` in the order of steps.

    A step that was repeated after a kill counts once, as it was done last. A last line cut by a
    kill is left out; so are other lines that are not rows, with a warning.

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
            f"{len(lines) - 1} is not a row of metrics and is left out",
            stacklevel=2,
        )
    return sorted(rows.values(), key=lambda row: row["step"])


class MetricsLog:
    """Appends rows to the files of a run; rows that a full disk refuses wait for the next call."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self.waiting: list[Row] = []
        self._board: SummaryWriter | None = None
        self._next_step: int | None = None

    def append(self, rows: Sequence[Row]) -> None:
        """Append `rows` to the metrics, then to TensorBoard; OSError where the disk is full."""
        self.waiting += rows
        if self.waiting:
            append_whole(self.path, _lines(self.waiting).encode())
        written, self.waiting = self.waiting, []
        if written or self._next_step == _ALL:
            self._show(written)

    def _show(self, rows: Sequence[Row]) -> None:
        """Hand TensorBoard the numbers of rows that are written.

        The first failed write ends the thread of a SummaryWriter for good, and which of the rows
        before it are in its file is not known: its successor gets all rows anew.
        """
        try:
            if self._board is None:
                folder = self.path.parent / BOARD
                make_folder(folder)
                self._board = SummaryWriter(
                    str(folder), purge_step=self._next_step, filename_suffix=_OWN_SUFFIX
                )
                if self._next_step == _ALL:
                    rows = read_metrics(self.path.parent)
                self._next_step = None
            for row in rows:
                for tag, value in _numbers_of(_place(row), row):
                    self._board.add_scalar(tag, value, row["step"])
            self._board.flush()
        except Exception as error:  # tensorflow, where it is installed, has classes of its own
            self._end_board()
            self._next_step = _ALL
            raise OSError(f"TensorBoard's file cannot be written: {error}") from error

    def replace(self, rows: Sequence[Row], next_step: int) -> None:
        """Put `rows` in the place of all rows, before a resumed run does `next_step`."""
        self._end_board()
        self._next_step = next_step  # TensorBoard forgets what other files have from there on
        replace_text(self.path, _lines(rows))

    def sync(self) -> None:
        """Wait until the disk has the rows; a checkpoint counts only then."""
        if self.path.exists():
            sync_file(self.path)

    def close(self) -> None:
        """End TensorBoard's writer; if it has died unnoticed, show all rows once more."""
        self._end_board()
        if self._next_step == _ALL:
            with suppress(OSError):  # the metrics have the rows all the same
                self._show([])
            self._end_board()

    def _end_board(self) -> None:
        board, self._board = self._board, None
        if board is not None:
            try:
                board.close()
            except Exception:  # what ended its thread
                self._next_step = _ALL


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
