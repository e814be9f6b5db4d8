"""Variants of the references that are right: no law may blame them."""
