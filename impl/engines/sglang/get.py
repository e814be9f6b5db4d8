"""How to get SGLang."""

GET = "pip download --no-deps sglang==0.5.23, and unzip the wheel"
