"""How to get LightLLM."""

GET = "git clone https://github.com/ModelTC/lightllm and check out fc72ffab9a"
