"""The command line."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from kvlockstep.core.errors import UsageError, did_you_mean
from kvlockstep.core.isolation import ChildLost
from kvlockstep.core.processes import WorkerLost
from kvlockstep.runs.results import ERROR, EXIT_CODES, INTERRUPTED, VIOLATED
from kvlockstep.show.console import stderr

# The errors of a full disk, of a pipe that nobody reads, and of a closed file.
UNWRITABLE = (errno.ENOSPC, errno.EPIPE, errno.EBADF, errno.EIO)
# The exit code that a shell gives a program that SIGPIPE has ended.
READER_GONE = 128 + 13


# The verbs with their summaries. The command of the verb a-verb is `a_verb_command` in commands/a_verb.py. It is
# imported when the verb is called: all of them together take half a second.
GROUPS = {
    "Check": {
        "check": "Check targets against a contract",
        "explore": "Visit every state of small scopes",
        "fuzz": "Run random episodes for hours",
        "status": "Show a campaign",
        "replay": "Replay a saved or Mooncake trace",
        "diff": "Compare two managers on the same trace",
        "engines": "Check every installed engine",
        "quality": "Measure hit rate and lost blocks",
    },
    "Understand": {
        "new-target": "Write an adapter to fill in",
        "init": "Set up a repository: adapter, test, CI",
        "list": "List contracts, laws, targets, faults",
        "explain": "Explain a law, fault or contract",
        "report": "Make an HTML page, a picture or a script",
    },
    "Trust": {
        "score": "Run the suite on its own faults",
        "prove": "Prove small pure functions",
        "bench": "Measure speed",
    },
}
VERBS = [verb for verbs in GROUPS.values() for verb in verbs]


class _Verbs(click.Group):
    """Verbs in groups. Results that cannot be written are a usage error, whatever their verdict.

    If a pipe has no reader any more, the command ends without a word.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return VERBS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(importlib.import_module(f"kvlockstep.commands.{name}"), f"{name}_command")
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # A group would import every verb for its summary.
        known = [pair for verbs in GROUPS.values() for pair in verbs.items()]
        found = [CompletionItem(verb, help=summary) for verb, summary in known if verb.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            hint = did_you_mean(args[0], VERBS) or "; `kvlockstep --help` shows them"
            raise UsageError(f"no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, verbs in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(list(verbs.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            # What is still buffered would fail again when Python ends.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            if error.errno == errno.EPIPE:
                # `kvlockstep list | head`: the reader has what it wants.
                sys.exit(READER_GONE)
            raise UsageError(f"cannot write the results: {error.strerror}") from error


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvlockstep")
def cli() -> None:
    """Find bugs in KV-cache managers: run yours in lockstep with an executable specification.

    Exit codes: 0 holds, 1 violated, 2 usage or configuration, 3 inconclusive, 4 internal error, 128 + N ended by signal
    N: 130 after Ctrl-C, 141 if the reader of the output has gone.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Turns what can go wrong into one message and an exit code."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a target's words may be in no alphabet of the terminal
    try:
        if sys.stdout is None:
            raise UsageError("standard output is closed; redirect it, for example to /dev/null")
        cli.main(args=None if arguments is None else list(arguments), prog_name="kvlockstep", standalone_mode=False)
    except UsageError as error:
        if error.found:
            stderr().print(f"{error.found}\n", markup=False)
        stderr().print(f"kvlockstep: {error.message}", markup=False)
        sys.exit(2)
    except ChildLost as lost:
        # Verbs that make traces of it do so; for the others it is a call that raised what no contract names.
        stderr().print(
            "\n".join([f"kvlockstep: VIOLATED error_contract: {lost}", *lost.details, *lost.printed]), markup=False
        )
        sys.exit(EXIT_CODES[VIOLATED])
    except WorkerLost as lost:
        stderr().print(f"kvlockstep: {lost}; fewer --jobs need less memory", markup=False)
        sys.exit(EXIT_CODES[ERROR])
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        stderr().print("kvlockstep: interrupted")
        sys.exit(INTERRUPTED)
    except SystemExit:
        raise
    except BaseException:
        stderr().print(f"kvlockstep: internal error\n{traceback.format_exc()}", markup=False)
        sys.exit(EXIT_CODES[ERROR])
