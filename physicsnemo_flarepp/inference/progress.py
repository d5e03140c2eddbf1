"""A progress bar for people who watch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(label: str, total: int, wanted: bool) -> Iterator[Callable[[], None]]:
    """Show a bar on stderr if it is a terminal; yield what to call after each of ``total`` steps.

    Of several ranks only the first shows one.

    Examples
    --------
    >>> with progress_bar("predict", 3, wanted=False) as advance:
    ...     advance()
    """
    console = Console(stderr=True)
    if dist.is_initialized() and dist.get_rank() > 0:
        wanted = False
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        disable=not (wanted and console.is_terminal),
        transient=True,
    ) as progress:
        task = progress.add_task(label, total=total)
        yield lambda: progress.advance(task)
