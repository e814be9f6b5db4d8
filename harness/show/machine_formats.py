"""The options for machine formats, and the files that they ask for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from kvlockstep.core.errors import UsageError
from kvlockstep.show.findings import Results
from kvlockstep.show.github import github_annotations
from kvlockstep.show.junit import junit
from kvlockstep.show.sarif import sarif

F = TypeVar("F", bound=Callable[..., Any])

FILES = "kvlockstep.formats"
BEGAN = "kvlockstep.show.machine_formats.began"


def machine_formats(function: F) -> F:
    """Gives a verb the options --junit and --sarif; it has to call `publish`."""
    for name, what in (("sarif", "SARIF 2.1.0"), ("junit", "JUnit XML")):
        function = click.option(
            f"--{name}",
            metavar="FILE",
            type=click.Path(path_type=Path),
            expose_value=False,
            callback=_remember,
            help=f"Write the results as {what} to FILE as well.",
        )(function)
    return function


def _remember(context: click.Context, option: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--{option.name} {path}: cannot write there")
    context.meta.setdefault(FILES, {})[option.name] = path
    context.meta.setdefault(BEGAN, datetime.now(UTC))


def publish(results: Results) -> None:
    """Writes the files that were asked for, and annotations if this runs in a GitHub workflow."""
    meta = click.get_current_context().meta
    files: Mapping[str, Path] = meta.get(FILES, {})
    for name, path in files.items():
        text = sarif(results) if name == "sarif" else junit(results, meta[BEGAN], socket.gethostname())
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--{name} {path}: cannot write: {error.strerror}") from error
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in github_annotations(results):
            click.echo(line, err=True)
