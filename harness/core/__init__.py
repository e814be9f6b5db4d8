"""Traces, profiles, errors, files and watchdogs: the parts that everything in the harness uses."""
