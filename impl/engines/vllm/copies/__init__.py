"""What vLLM copies KV and states with."""
