"""How long torch.compile takes before the first compiled step: the measurements behind gpuprof's estimate of it.

    python -m benchmarks.compile_time --measure > times.json     on a GPU, some five minutes
    python -m benchmarks.compile_time --one llama-12 --mode default

Each model runs in a fresh process with an empty compiler cache. This measures the first forward and backward pass of
the compiled model minus a later one, the same for a second sequence length (torch then makes lengths dynamic), and what
the estimate starts from: the kernels that one eager pass launches, forward and backward.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

CASES = (
    ("llama-4", "default"), ("llama-12", "default"), ("llama-24", "default"), ("bert-12", "default"),
    ("resnet50", "default"), ("llama-12", "reduce-overhead"),
)  # fmt: skip


def build(name: str) -> tuple[Any, Any]:
    """(model on the GPU, a function from a length to its loss)."""
    import torch

    kind, _, layers = name.partition("-")
    if kind == "resnet50":
        import timm

        model = timm.create_model("resnet50", pretrained=False).cuda().train()
        return model, lambda _: model(torch.randn(16, 3, 224, 224, device="cuda")).float().square().mean()
    from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": int(layers), "num_attention_heads": 8,
        "vocab_size": 8000,
    }  # fmt: skip
    model: Any
    if kind == "bert":
        model = BertForMaskedLM(BertConfig(**sizes))
    else:
        model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=8))
    model = model.to(device="cuda", dtype=torch.bfloat16).train()

    def loss(length: int) -> Any:
        ids = torch.randint(0, 8000, (4, length), device="cuda")
        return model(input_ids=ids, labels=ids).loss

    return model, loss


def launches(step: Any) -> int:
    """Kernels that an eager pass launches."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    return sum(str(event.device_type).endswith("CUDA") for event in found.events() or ())


def one(name: str, mode: str) -> dict[str, Any]:
    """Measures a model in this process."""
    import torch

    model, loss = build(name)

    def timed(length: int) -> float:
        begun = time.perf_counter()
        loss(length).backward()
        torch.cuda.synchronize()
        model.zero_grad(set_to_none=True)
        return time.perf_counter() - begun

    eager_s = [timed(256) for _ in range(3)][-1]
    kernels = launches(lambda: loss(256).backward())
    model.compile(mode=None if mode == "default" else mode)
    first = timed(256)
    later = [timed(256) for _ in range(6)][-1]
    found = {"model": name, "mode": mode, "kernels": kernels, "eager_ms": 1e3 * eager_s, "compiled_ms": 1e3 * later}
    found["compile_s"] = first - later
    if name.startswith("llama") and mode == "default":
        second = timed(384)
        third = timed(320)
        found |= {"second_length_s": second - later, "third_length_s": third - later}
    return found


def measure() -> list[dict[str, Any]]:
    """Every case in a fresh process with an empty cache; one that fails is left out, with a message on stderr."""
    found = []
    for name, mode in CASES:
        with tempfile.TemporaryDirectory() as cache:
            environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
            command = [sys.executable, "-m", "benchmarks.compile_time", "--one", name, "--mode", mode]
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
        lines = done.stdout.splitlines()
        if done.returncode or not lines:
            print(f"{name} {mode}: {done.stderr[-500:]}", file=sys.stderr)
            continue
        print(lines[-1], file=sys.stderr)
        found.append(json.loads(lines[-1]))
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--one")
    options.add_argument("--mode", default="default")
    options.add_argument("--measure", action="store_true")
    chosen = options.parse_args()
    if chosen.one:
        print(json.dumps(one(chosen.one, chosen.mode)))
    elif chosen.measure:
        print(json.dumps(measure(), indent=1))
    else:
        options.print_help()


if __name__ == "__main__":
    main()
