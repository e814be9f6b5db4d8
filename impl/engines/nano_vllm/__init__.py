"""nano-vllm."""
