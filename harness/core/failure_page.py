"""The failure page that every door shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvlockstep.core.errors import UsageError
from kvlockstep.core.trace import Trace, replay_line, save_trace
from kvlockstep.models.registry import model_of

# How far to the right what is available stands, but for steps that are longer.
COLUMN = 90
FLAKY_SAYS = (
    "It did not repeat in a new target: does it keep something in its class or module, or depend on time, threads or "
    "random numbers?"
)


def failure_page(trace: Trace, path: Path | str | None = None) -> str:
    """Failure page: the steps with their answers, the violation, the law, and the command that replays it."""
    scope = ", ".join(f"{k}={_plain(v)}" for k, v in trace.scope.shown().items())
    last = len(trace.ops)
    lines = [
        f"{trace.contract} on {trace.target} - VIOLATED {trace.law} at step {last} of {last}{_shrunk(trace)}"
        + (" - FLAKY, it did not repeat" if trace.flaky else ""),
        f"  with {scope}",
    ]
    texts = [str(op) for op in trace.ops]
    width = min(60, max((len(text) for text in texts), default=0))
    answers: Sequence[str] = trace.answers + ("",) * last
    steps = [
        f"  {number:>3}  {text:<{width}}{f'  -> {answer}' if answer else ''}".rstrip()
        for number, (text, answer) in enumerate(zip(texts, answers, strict=False), 1)
    ]
    lines += _with_avail(steps, trace.avails)
    lines += [f"       {trace.message}", *(f"       {detail}" for detail in trace.details)]
    lines += ["       the target printed last:"] * bool(trace.printed)
    lines += [f"       | {line}" for line in trace.printed]
    law = model_of(trace.contract).law(trace.law)
    if law is not None:
        lines.append(f"law {law.id}: {law.statement}")
    if trace.flaky:
        lines.append(FLAKY_SAYS)
    if path is not None:
        lines.append(f"replay: {replay_line(trace.target, path)}")
    return "\n".join(lines)


def save_found(trace: Trace, directory: Path) -> Path:
    """Saves the trace of a finding, as `save_trace` does. Its UsageError has the page of the finding."""
    try:
        return save_trace(trace, directory)
    except UsageError as error:
        error.found = failure_page(trace)
        raise


def _with_avail(steps: Sequence[str], avails: Sequence[int | None]) -> list[str]:
    """The steps with what was available after each, in a column as far as they are short."""
    width = max((len(step) for step in steps if len(step) <= COLUMN), default=0)
    known = (*avails, *(None,) * (len(steps) - len(avails)))
    return [
        step if avail is None else f"{step:<{width}}  avail {avail}" for step, avail in zip(steps, known, strict=False)
    ]


def _shrunk(trace: Trace) -> str:
    if trace.original > len(trace.ops):
        return f" (shrunk from {trace.original}{', shrinking not finished' if trace.unfinished else ''})"
    return " (not shrunk to the end)" if trace.unfinished else ""


def _plain(value: Any) -> str:
    return "[" + ",".join(map(str, value)) + "]" if isinstance(value, (list, tuple)) else str(value)
