"""Bug reports that laws and faults cite, as NAME#NUMBER: what they say, and where they are."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from kvlockstep.impl.faulty.reports import reports

# Owners of the repositories that are cited by their name alone. A report of any other one has no link.
OWNERS = {
    "FastDeploy": "PaddlePaddle",
    "LMCache": "LMCache",
    "LMCache-Ascend": "LMCache",
    "Megatron-LM": "NVIDIA",
    "Mooncake": "kvcache-ai",
    "TensorRT-LLM": "NVIDIA",
    "dynamo": "ai-dynamo",
    "flashinfer": "flashinfer-ai",
    "ik_llama.cpp": "ikawrakow",
    "kvcached": "ovg-project",
    "llama.cpp": "ggml-org",
    "llm-d-kv-cache": "llm-d",
    "lmdeploy": "InternLM",
    "mini-sglang": "sgl-project",
    "mlc-llm": "mlc-ai",
    "mlx-lm": "ml-explore",
    "nano-vllm": "GeeeekExplorer",
    "openvino.genai": "openvinotoolkit",
    "rtp-llm": "alibaba",
    "sglang": "sgl-project",
    "sglang-jax": "sgl-project",
    "sglang-omni": "sgl-project",
    "transformers": "huggingface",
    "unified-cache-management": "ModelEngine-Group",
    "vllm": "vllm-project",
    "vllm-ascend": "vllm-project",
}


@cache
def bugs() -> dict[str, dict[str, str]]:
    """Bug reports by repository and thread: `symptom` and `cause`, in the words of this project."""
    known = [report for report in reports() if report.symptom]
    return {id_: {"symptom": report.symptom, "cause": report.cause} for report in known for id_ in report.ids}


def link(report: str) -> str | None:
    """The address of a report, of a pull request also; None where its repository is not known."""
    repository, _, number = report.partition("#")
    if not number.isdecimal():
        return None
    if "/" not in repository:
        if repository not in OWNERS:
            return None
        repository = f"{OWNERS[repository]}/{repository}"
    return f"https://github.com/{repository}/issues/{number}"


def public(ids: Iterable[str]) -> list[str]:
    """Those that stand in a public tracker."""
    return [id_ for id_ in ids if "#" in id_]


def described(ids: Iterable[str]) -> list[dict[str, str]]:
    """Each report once: its `id`, and `symptom`, `cause` and `link` where they are known. Linked ones come first."""
    known = bugs()
    rows = [{"id": id_, **known.get(id_, {}), "link": link(id_)} for id_ in dict.fromkeys(ids)]
    rows.sort(key=lambda row: row["link"] is None)
    return [{key: value for key, value in row.items() if value is not None} for row in rows]
