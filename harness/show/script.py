"""A trace as a Python script that fails while the defect is there, and ends well when it is gone."""

from __future__ import annotations

from kvlockstep.core.trace import Trace
from kvlockstep.models.registry import model_of


def script_of(trace: Trace) -> str:
    """The steps of a trace as calls on the contract's model; needs kvlockstep and the target, and no trace file."""
    scope, last = trace.scope, len(trace.ops)
    law = model_of(trace.contract).law(trace.law)
    verdict = f"VIOLATED {trace.law} at step {last} of {last}" if trace.law else f"{last} steps, every law held"
    about = [f"{trace.contract} on {trace.target}: {verdict}."]
    if law is not None:
        about += ["", f"{law.id}: {law.statement}"]
    lines = [
        "\n".join(_comment(line) for line in about),
        "",
        "from kvlockstep.models.core.op import NotEnabled, Op",
        "from kvlockstep.models.registry import model_of",
        "from kvlockstep.targets import resolve",
        "",
        f"target = resolve({trace.contract!r}, {trace.target!r})",
        f"model_type = model_of({trace.contract!r})",
        f"scope = model_type.scope_type.from_json({scope.to_json()!r})",
        "model = model_type(scope, target.factory)",
        "",
        "",
        "def step(name, **args):",
        "    try:",
        "        model.step(Op(name, **args))",
        "    except NotEnabled:",
        '        print(name, args, "is not possible here on this target")',
        "",
        "",
    ]
    answers = (*trace.answers, *[""] * (last - len(trace.answers)))
    for number, (op, answer) in enumerate(zip(trace.ops, answers, strict=True), 1):
        comment = f"{trace.law}: {trace.message}" if trace.law and number == last else answer
        arguments = ", ".join([repr(op.name), *(f"{name}={value!r}" for name, value in op.args.items())])
        lines.append(f"step({arguments})" + (f"  # {' '.join(comment.split())}" if comment else ""))
    return "\n".join(lines) + "\n"


def _comment(line: str) -> str:
    return f"# {' '.join(line.split())}".rstrip()  # a line end in a target's name would end the comment
