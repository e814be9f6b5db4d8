"""Names of targets: the several that one target can have, and the one that they have in common."""

from __future__ import annotations

import os

SUFFIX = ".py"


def one_name(target: str) -> str:
    """The name by which two names of one target are told to be the same; not always one that can be imported.

    `file.py:factory` is `module:factory`, with the packages that the file lies in, or else with its folders below the
    current directory. Imports nothing; any other name is returned as it is.
    """
    file, _, factory = target.rpartition(":")
    if not file.endswith(SUFFIX):
        return target
    path = os.path.abspath(file)
    folder, parts = os.path.dirname(path), [os.path.basename(path).removesuffix(SUFFIX)]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        parts.insert(0, package)
    if len(parts) == 1:
        parts = os.path.relpath(path).removesuffix(SUFFIX).split(os.sep)
    return f"{'.'.join(parts)}:{factory}" if all(map(str.isidentifier, parts)) else target
