"""Text that came from a target or from somebody's file, made fit for a terminal and for every format of ours."""

from __future__ import annotations

import re

# Control characters but for the tab and the line end, what turns the direction of writing, line ends that only some
# programs know, lone surrogates, and what XML does not hold.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff]"
)


def safe_text(text: str) -> str:
    r"""The text with each character that could do harm written as Python does it, like `\x1b` or `\ud800`."""
    return _UNSAFE.sub(_written, text)


def _written(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
