"""llama-cookbook's finetuning.py: LoRA under FSDP (`--enable_fsdp --use_peft --peft_method lora`), and on one GPU."""

from __future__ import annotations

import functools
import os

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import _or_policy, lambda_auto_wrap_policy, transformer_auto_wrap_policy
from tqdm import tqdm
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from scenarios.support import data, models
from scenarios.support.run import Run

CONTEXT = 4096
BF16 = MixedPrecision(
    param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16, cast_forward_inputs=True
)


def finetune(run: Run, name: str, batch: int, checkpointing: bool, **changes: int) -> None:
    """Trains the model of that name on packed batches of `batch` × 4096 tokens; `changes`: to its configuration."""
    join(run)
    model = sharded(run, models.build(name, run.device, tiny=run.tiny, **changes))
    if checkpointing:
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, LlamaDecoderLayer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    batch = run.pick(batch, 1)
    # All packed samples have the context's length.
    lengths = [run.pick(CONTEXT, 32)] * batch * run.count
    loader = data.loader(lengths, model.config.vocab_size, batch, num_workers=1, pin_memory=not run.tiny)
    batches = iter(loader)
    bar = tqdm(total=run.count, colour="blue", dynamic_ncols=True)
    for step in run.steps():
        inputs = {key: tensor.to(run.device) for key, tensor in next(batches).items()}
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        bar.update(1)
        # The recipe shows each step's loss, and so waits for it.
        bar.set_description(f"step {step}/{run.count} completed (loss: {loss.detach().float()})")
    bar.close()
    dist.destroy_process_group()


def finetune_on_one_gpu(run: Run, name: str, batch: int, lora: bool, casts: bool = True) -> None:
    """The loop without FSDP: full training in bfloat16, or with `lora` only adapters, which `casts` makes float32."""
    plain = models.build(name, run.device, tiny=run.tiny)
    model = adapted(plain, casts) if lora else plain
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    batch = run.pick(batch, 1)
    # All packed samples have the context's length.
    lengths = [run.pick(CONTEXT, 32)] * batch * run.count
    loader = data.loader(lengths, plain.config.vocab_size, batch, num_workers=1, pin_memory=not run.tiny)
    batches = iter(loader)
    total = torch.zeros((), device=run.device)
    bar = tqdm(total=run.count, colour="blue", dynamic_ncols=True)
    for step in run.steps():
        inputs = {key: tensor.to(run.device) for key, tensor in next(batches).items()}
        loss = model(**inputs).loss
        total += loss.detach().float()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        bar.update(1)
        # The recipe shows each step's loss, and so waits for it.
        bar.set_description(f"step {step}/{run.count} completed (loss: {loss.detach().float()})")
    bar.close()


def adapted(model: torch.nn.Module, casts: bool = True) -> torch.nn.Module:
    """The model with the recipe's adapters on its queries and values, in float32 unless `casts` is false."""
    adapters = LoraConfig(
        r=8, lora_alpha=32, lora_dropout=0.05, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )
    return get_peft_model(model, adapters, autocast_adapter_dtype=casts)


def join(run: Run) -> None:
    """Joins torchrun's process group, or makes one of this process alone."""
    if not run.tiny:
        torch.cuda.set_device(run.device)
    backend = "gloo" if run.tiny else "nccl"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def sharded(run: Run, model: torch.nn.Module) -> torch.nn.Module:
    """The model with adapters on its queries and values, wrapped layer by layer, and each adapter separately.

    With one process there is nothing to shard, and FSDP keeps all weights whole."""
    model = adapted(model)
    policies = [
        functools.partial(lambda_auto_wrap_policy, lambda_fn=learns),
        functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer}),
    ]
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=functools.partial(_or_policy, policies=policies),
        mixed_precision=BF16,
        device_id=torch.device(run.device),
        limit_all_gathers=True,
        use_orig_params=True,
    )


def learns(module: torch.nn.Module) -> bool:
    """Whether a module without submodules is trained: adapters are, everything else is frozen."""
    weight = getattr(module, "weight", None)
    return not list(module.children()) and weight is not None and weight.requires_grad
