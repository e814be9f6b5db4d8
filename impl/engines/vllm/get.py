"""How to get vLLM."""

GET = "pip download --no-deps --no-build-isolation --no-binary vllm vllm==0.33.0, and unpack it"
