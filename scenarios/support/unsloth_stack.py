"""unsloth's way of fine-tuning in 4 bits, from checkpoints of random weights that are written here.

Nothing of unsloth, TRL or transformers is imported before `start`: unsloth patches them, and reads its switches.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import tempfile
from pathlib import Path
from typing import Any

from scenarios.support.run import Run

ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""The modules that unsloth's own examples adapt."""
RANK = 16
QUANTIZATION = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": "bfloat16",
    "llm_int8_skip_modules": ["embed_tokens", "lm_head", "router"],
}
FUSED = {"gate_up_proj": "gate_up_projs", "down_proj": "down_projs"}
"""transformers' parameter with all experts, and the list of layers that unsloth's 4-bit models have instead."""


def start(run: Run, **switches: str) -> None:
    """Sets unsloth's switches and imports it."""
    os.environ.update(switches)
    # The code that unsloth generates: a separate folder per process, because several may start at once.
    os.environ["UNSLOTH_COMPILE_LOCATION"] = tempfile.mkdtemp(prefix="unsloth_compiled_")
    # It would compile for minutes, and again for later lengths; the layers' own kernels need no compiler.
    os.environ.setdefault("UNSLOTH_COMPILE_DISABLE", "1")
    # By default it would choose by the batch size, so that a fix would change two things at once.
    os.environ.setdefault("UNSLOTH_PADDING_CHOICE", "padding_free")
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if run.tiny:
        os.environ["UNSLOTH_ALLOW_CPU"] = "1"
    importlib.import_module("unsloth")


def train(
    run: Run, name: str, batch: int, data: str = "alpaca", layers: int | None = None, checkpointing: bool = True
) -> None:
    """SFT of the 4-bit model of that name, as in unsloth's examples; call `start` first."""
    from trl import SFTTrainer
    from unsloth import FastLanguageModel

    from scenarios.support import lengths, sft

    # unsloth's own checkpointing, which keeps large inputs of layers in host memory, needs a GPU.
    recomputes = run.pick("unsloth", True) if checkpointing else False
    model, tokenizer = FastLanguageModel.from_pretrained(
        str(checkpoint(run, name, layers)),
        max_seq_length=lengths.LONGEST,
        dtype=None,
        load_in_4bit=True,
        use_gradient_checkpointing=recomputes,
    )
    vocabulary = model.config.vocab_size
    model = FastLanguageModel.get_peft_model(
        model,
        r=RANK,
        lora_alpha=RANK,
        lora_dropout=0,
        bias="none",
        target_modules=ADAPTED,
        use_gradient_checkpointing=recomputes,
        random_state=0,
    )
    trainer = SFTTrainer(
        model=model,
        processing_class=tokenizer,
        args=sft.arguments(run, batch, optim=run.pick("adamw_8bit", "adamw_torch")),
        train_dataset=sft.dataset(run, data, batch, vocabulary),
        callbacks=[run.callback()],
    )
    trainer.data_collator = sft.Counted(run, trainer.data_collator)
    trainer.train()


def checkpoint(run: Run, name: str, layers: int | None = None) -> Path:
    """The folder of a 4-bit checkpoint with `layers` layers, written on first use and kept for later processes."""
    from scenarios.support import models, sft

    changes = {} if layers is None else {"num_hidden_layers": layers}
    config = models.config(name, run.tiny, **changes)
    size = "tiny" if run.tiny else f"{config.num_hidden_layers}-layers"
    folder = Path(tempfile.gettempdir()) / "scenarios_checkpoints" / size / f"{name}-nf4"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        # One of the processes that start together writes, which takes a minute; the others wait for it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            begun = Path(tempfile.mkdtemp(dir=folder.parent))
            _write(config, run.device, begun)
            sft.tokenizer().save_pretrained(begun)
            begun.rename(folder)
    return folder


def _write(config: Any, device: str, folder: Path) -> None:
    """Writes a configuration and random weights, as bitsandbytes and unsloth store them."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    from scenarios.support import models

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    linears = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    torch.manual_seed(0)
    weights: dict[str, torch.Tensor] = {}

    def put(name: str, shape: tuple[int, ...], packed: bool) -> None:
        norm = len(shape) == 1 and "norm" in name
        weight = torch.ones(shape) if norm else torch.randn(shape, device=device) * models.SPREAD
        weight = weight.to(torch.bfloat16)
        stored = _packed(name, weight) if packed else {name: weight}
        weights.update({key: value.contiguous().cpu() for key, value in stored.items()})

    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        parent, _, own = name.rpartition(".")
        if parent.endswith("mlp.experts"):
            bias = own.endswith("_bias")
            layers = FUSED[own.removesuffix("_bias")]
            for expert in range(shape[0]):
                # Stored with inputs as rows and outputs as columns; a linear layer has the transpose.
                to = f"{parent}.{layers}.{expert}.{'bias' if bias else 'weight'}"
                put(to, shape[1:] if bias else (shape[2], shape[1]), packed=not bias)
        elif parent.endswith("mlp.router"):
            put(f"{parent}.linear.{own}", shape, packed=False)
        else:
            put(name, shape, packed=name in linears and name != "lm_head.weight")
    config.architectures = [type(model).__name__]
    config.dtype = torch.bfloat16
    config.quantization_config = QUANTIZATION
    config.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _packed(name: str, weight: Any) -> dict[str, Any]:
    """A weight in NF4, with the tensors that are needed to unpack it."""
    from bitsandbytes.functional import quantize_4bit

    packed, state = quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    return {name: packed} | {f"{name}.{key}": value for key, value in state.as_dict(packed=True).items()}
