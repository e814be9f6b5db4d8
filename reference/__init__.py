"""Reference models: executable specifications in plain Python. Imports the standard library only."""
