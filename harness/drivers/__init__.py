"""Engines that run a model's commands: saved traces, exhaustive exploration, Hypothesis, random walks."""
