"""Slots for the tokens of requests, from pages of several slots."""
