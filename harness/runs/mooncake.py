"""Request traces in the Mooncake format.

One JSON object a line: `timestamp` in ms, `input_length` and `output_length` in tokens, `hash_ids` with one id per
block of 512 prompt tokens. Source: https://github.com/kvcache-ai/Mooncake, FAST'25 traces.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvlockstep.core.errors import UsageError

BLOCK_TOKENS = 512
FIRST_OUTPUT_TOKEN = 1 << 30
HASH_IDS = FIRST_OUTPUT_TOKEN // BLOCK_TOKENS


class MalformedTrace(UsageError):
    """A line that is not a Mooncake request. `line` counts from 1, `reason` says what is wrong with it."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason} (--skip-bad skips such lines and counts them)")
        self.line = line
        self.reason = reason


@dataclass(frozen=True)
class MooncakeRequest:
    """One line of a trace; `timestamp` in ms, lengths in tokens."""

    line: int
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


class MooncakeReader:
    """Iterates over the requests of a trace, one line at a time. `skipped` counts the malformed lines passed over."""

    def __init__(self, path: Path, skip_bad: bool) -> None:
        self.path = path
        self.skipped = 0
        self._skip_bad = skip_bad

    def __iter__(self) -> Iterator[MooncakeRequest]:
        earliest = 0.0
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.strip():
                        continue
                    try:
                        request = _request(number, line, earliest)
                    except _BadLineError as error:
                        if not self._skip_bad:
                            raise MalformedTrace(self.path, number, str(error)) from None
                        self.skipped += 1
                        continue
                    earliest = request.timestamp
                    yield request
        except OSError as error:
            raise UsageError(f"cannot read trace {self.path}: {error.strerror}") from error


def read_mooncake(path: str | Path, skip_bad: bool = False) -> MooncakeReader:
    """The requests of a trace file, streamed. Iterating raises MalformedTrace at a bad line unless `skip_bad`."""
    return MooncakeReader(Path(path), skip_bad)


def prompt_tokens(request: MooncakeRequest) -> list[int]:
    """The prompt: token `id * 512 + offset` for each id, the last block cut to `input_length`; all below 2**30."""
    tokens = [t for i in request.hash_ids for t in range(i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS)]
    del tokens[request.input_length :]
    return tokens


class _BadLineError(Exception):
    pass


def _request(number: int, line: bytes, earliest: float) -> MooncakeRequest:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise _BadLineError(f"bad JSON: {error.msg} at column {error.colno}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise _BadLineError(f"bad JSON: {error}") from None
    if not isinstance(record, dict):
        raise _BadLineError(f"bad JSON: an object is expected, not {type(record).__name__}")
    missing = [name for name in ("timestamp", "input_length", "output_length", "hash_ids") if name not in record]
    if missing:
        raise _BadLineError(f"missing field {', '.join(missing)}")
    timestamp = _timestamp(record["timestamp"], earliest)
    prompt, output = _length(record, "input_length", 1), _length(record, "output_length", 0)
    return MooncakeRequest(number, timestamp, prompt, output, _hash_ids(record["hash_ids"], prompt))


def _timestamp(value: object, earliest: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _BadLineError(f"timestamp must be a number of ms, not {value!r:.40}")
    if value < earliest:
        raise _BadLineError(f"timestamp {value} goes backwards: the request before it came at {earliest}")
    return float(value)


def _length(record: dict[str, Any], name: str, least: int) -> int:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise _BadLineError(f"{name} must be a number of tokens, not {value!r:.40}")
    if value < least:
        raise _BadLineError(f"{name}={value}: at least {least} is expected")
    return value


def _hash_ids(value: object, prompt: int) -> tuple[int, ...]:
    if not isinstance(value, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in value):
        raise _BadLineError(f"hash_ids must be a list of integers, not {value!r:.40}")
    blocks = -(-prompt // BLOCK_TOKENS)
    if len(value) != blocks:
        raise _BadLineError(f"{len(value)} hash_ids, but input_length={prompt} makes {blocks} blocks of {BLOCK_TOKENS}")
    outside = next((i for i in value if not 0 <= i < HASH_IDS), None)
    if outside is not None:
        raise _BadLineError(f"hash id {outside} is not one of 0..{HASH_IDS - 1}")
    return tuple(value)
