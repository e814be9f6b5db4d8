"""What is right: executable specifications in plain Python. Imports the standard library only."""
