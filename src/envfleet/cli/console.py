"""Output of commands: results to standard output, progress and errors to standard error."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from typer.core import TyperGroup

from envfleet.errors import EnvfleetError, InvalidArgument, MissingDependency
from envfleet.extras import is_optional, missing
from envfleet.files import NO_ROOM, check_writable, write_whole

_NO_PLACE = {
    errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EPERM, errno.EROFS,
}  # fmt: skip
"""Error codes of unusable files; without a file name the same codes may concern anything, such as a port."""
_FILE_WIDTH = 110  # for output to a file or a pipe, unless COLUMNS is set


def make_console() -> Console:
    """Make the console for results."""
    console = Console(highlight=False)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return console
    return Console(highlight=False, width=_FILE_WIDTH)


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Show an `EnvfleetError` in a panel (exit code 2), and end with one line on Ctrl-C (exit code 130).

    Files that cannot be written, for lack of space or permission, are shown in a panel too. With `ENVFLEET_DEBUG=1` in
    the environment the traceback is printed above the panel.
    """
    try:
        yield
    except EnvfleetError as failure:
        error = failure.__cause__ if isinstance(failure.__cause__, MissingDependency) else failure
        _show_error(error.code.replace("_", " "), str(error))
        raise typer.Exit(2) from None
    except ModuleNotFoundError as error:
        if not is_optional(error):
            raise
        _show_error("missing dependency", str(missing("this command", error)))
        raise typer.Exit(2) from None
    except OSError as error:
        if error.errno not in NO_ROOM and not (error.errno in _NO_PLACE and error.filename):
            raise
        what = f"{error.filename} cannot be written" if error.filename else "a file cannot be written"
        advice = "; ".join(getattr(error, "__notes__", ())) or "free some space, or pass another path"
        _show_error("disk full" if error.errno in NO_ROOM else "no file", f"{what} ({error.strerror}): {advice}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo("\rInterrupted.", err=True)  # overwrites the terminal's ^C
        raise typer.Exit(130) from None


class Commands(TyperGroup):
    """Group of commands; `readable_errors` shows errors of the commands and of their arguments."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with readable_errors():
            return super().invoke(ctx)


def check_output(path: Path | None) -> Path | None:
    """Reject a file that cannot be written when the command line is parsed, before minutes of work."""
    if str(path) == "-":
        raise InvalidArgument(
            "'-' is not a file name, and tables are printed to stdout: pass a name such as figures.json"
        )
    try:
        if path is not None:
            check_writable(path)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written ({error.strerror}): pass another path") from error
    return path


JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", callback=check_output, help="Also write all figures to a JSON file."),
]


def write_figures(file: Path | None, text: str) -> None:
    """Write the file of `--json`, if given, and print its path."""
    if file is not None:
        write_whole(file, text)
        show_file("Figures", file)


def show_file(what: str, file: Path) -> None:
    """Print where a file is that was written."""
    make_console().print(f"{what}: {file}", style="dim", markup=False, soft_wrap=True)


def make_table(*headings: str, texts: int = 1, title: str | None = None) -> Table:
    """Make a table: first some columns of texts, then columns of numbers. Cells and title are markup.

    Where the table is too wide, texts continue on the next line; numbers stay whole.
    """
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for place, heading in enumerate(headings):
        is_text = place < texts
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    return table


def require(extra: str, *modules: str) -> None:
    """Check that what a command needs is installed.

    Raises:
        MissingDependency: A module cannot be found; names the extra that installs it.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise MissingDependency(f"this needs {error.name}: pip install 'envfleet[{extra}]'") from error


def _show_error(title: str, text: str) -> None:
    console = Console(stderr=True, highlight=False)
    if os.environ.get("ENVFLEET_DEBUG", "0") not in {"", "0"}:
        console.print(escape(traceback.format_exc()))
    console.print(Panel(escape(text), title=title, title_align="left", border_style="red"))


@contextlib.contextmanager
def progress_bar(text: str = "") -> Iterator[Callable[[str, float], None]]:
    """Show a progress bar in a terminal, nothing elsewhere; yield a function that updates its text and fraction.

    Text that other code prints meanwhile appears above the bar, or in the file that standard output is redirected to.
    """
    console = Console(stderr=True)
    description = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True))  # alone may be cut
    with Progress(
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        description,
        console=console,
        transient=True,
        expand=True,
        redirect_stdout=sys.stdout.isatty(),
        disable=not console.is_interactive,
    ) as progress:
        task = progress.add_task(escape(text), total=1.0)

        def update(text: str, fraction: float) -> None:
            progress.update(task, description=escape(text), completed=fraction)

        yield update


def show_places(places: Mapping[str, str], console: Console) -> None:
    """Print paths and commands, one per line, unwrapped for copying."""
    width = max(map(len, places))
    for name, place in places.items():
        console.print(f"{name:<{width}}  {escape(place)}", soft_wrap=True)
