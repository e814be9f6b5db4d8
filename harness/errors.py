"""What a user can do wrong."""

from __future__ import annotations


class UsageError(Exception):
    """Bad input: the message names the argument and the way out. The command line exits with 2."""
