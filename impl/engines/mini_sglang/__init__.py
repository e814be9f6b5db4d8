"""mini-sglang."""
