"""KV-cache managers; the files are named as their targets are."""
