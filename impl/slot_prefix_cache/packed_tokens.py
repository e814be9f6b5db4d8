"""Tokens packed as 64-bit words, whose runs are compared as bytes. All lengths and positions are in bytes."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence

from kvlockstep.reference.errors import InvalidArgument

TOKEN = 8
_FIRST_COMPARED = 32 * TOKEN
_MOST_COMPARED = 8192 * TOKEN


def packed(tokens: Sequence[int]) -> bytes:
    """The tokens as 64-bit little-endian words. Raises InvalidArgument for what is not a 64-bit integer."""
    if isinstance(tokens, array) and tokens.typecode == "q" and sys.byteorder == "little":
        return tokens.tobytes()
    try:
        return struct.pack(f"<{len(tokens)}q", *tokens)
    except struct.error as error:
        raise InvalidArgument(f"tokens must be 64-bit integers: {error}") from error


def unpacked(run: bytes) -> tuple[int, ...]:
    """The tokens of such words."""
    return struct.unpack(f"<{len(run) // TOKEN}q", run)


def common(a: bytes, i: int, b: bytes, j: int, most: int) -> int:
    """Length of the common prefix of a[i:] and b[j:], up to `most`, in whole tokens.

    Compares parts of growing size, then halves the part that differs: never reads far beyond the difference.
    """
    done, size = 0, min(_FIRST_COMPARED, most)
    while done < most and a.startswith(b[j + done : j + done + size], i + done):
        done += size
        size = min(2 * size, _MOST_COMPARED, most - done)
    if done == most:
        return most
    while size > TOKEN:
        half = size // (2 * TOKEN) * TOKEN
        if a.startswith(b[j + done : j + done + half], i + done):
            done += half
            size -= half
        else:
            size = half
    return done
