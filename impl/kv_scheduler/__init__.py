"""Schedulers that are built on the reference."""
