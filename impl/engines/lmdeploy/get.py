"""How to get LMDeploy."""

GET = "git clone https://github.com/InternLM/lmdeploy and check out 1263d5cd88"
