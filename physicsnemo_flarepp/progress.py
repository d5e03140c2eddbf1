"""A progress bar on terminals."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(label: str, total: int, wanted: bool) -> Iterator[Callable[[], None]]:
    """Show a bar on stderr if it is a terminal; yield what to call after each of ``total`` steps.

    Only the first rank shows a bar.
    """
    console = Console(stderr=True)
    # Ranks need torch to be imported already; generating data should not wait for that import.
    ranks = sys.modules.get("torch.distributed")
    if ranks is not None and ranks.is_initialized() and ranks.get_rank() > 0:
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
