"""The packages: the import name kvlockstep is the folder harness, its other four rooms lie beside it."""

from __future__ import annotations

from setuptools import find_packages, setup

ROOMS = {"kvlockstep": "harness", **{f"kvlockstep.{r}": r for r in ("reference", "properties", "models", "impl")}}
setup(
    package_dir=ROOMS,
    packages=[
        name for room, folder in ROOMS.items() for name in (room, *(f"{room}.{p}" for p in find_packages(folder)))
    ],
)
