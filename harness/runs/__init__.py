"""Runs of a check, a comparison or a score, and their results. Nothing here prints."""
