"""What one stack frame says about memory allocated under it.

Read off the names of files and functions of PyTorch, transformers, PEFT, TRL, Accelerate, bitsandbytes, DeepSpeed and
Unsloth as they are today. A frame that matches nothing says nothing.
"""

from __future__ import annotations

import re

from gpuprof.memory.snapshot import Frame

CALL, BACKWARD, RECOMPUTE, OPTIMIZER, STATE, LOSS, LOSS_MODULE, ACCUMULATE = (1 << i for i in range(8))
LOSS_GRADIENT, COMMUNICATION, WORKSPACE, LOAD, ADAPTER, CACHE, INPUT, LINEAR, NATIVE, INSIDE = (
    1 << i for i in range(8, 18)
)
"""Marks of a frame, a bit each."""

_PYTHON = re.compile(r"\.py$|^<|\.ipynb|^/tmp/ipykernel")
_TORCH = re.compile(r"(^|/)(torch|torch/.*|_?functorch|triton)/[^/]*$|(^|/)torch/")
_OPTIMIZERS = re.compile(
    r"(^|/)(torch/optim/(?!lr_scheduler|swa_utils)|bitsandbytes/optim/|apex/optimizers/|torchao/optim/|torch_optimizer/"
    r"|deepspeed/ops/(adam|lion|lamb|adagrad)/|deepspeed/runtime/(bf16_optimizer|zero/stage))"
)
_STATE = {"_init_group", "init_state", "_init_state", "state_init", "get_state_buffer", "initialize_optimizer_states"}
_LOADING_FILES = re.compile(
    r"(^|/)(torch/nn/(init|parameter)\.py|safetensors/|transformers/(modeling_utils|core_model_loading)\.py"
    r"|accelerate/(big_modeling|utils/modeling)\.py|torch/distributed/fsdp/_(flat_param|init_utils)\.py)"
)
_LOADING = {
    "from_pretrained", "load_state_dict", "_load_from_state_dict", "set_module_tensor_to_device", "reset_parameters",
    "init_weights", "_init_weights", "_load_state_dict_into_model", "_load_pretrained_model", "to_empty", "_apply",
}  # fmt: skip
_MODULES = re.compile(r"(^|/)torch/nn/modules/")
_INPUTS = {"_prepare_inputs", "_prepare_input", "send_to_device", "recursively_apply", "pin_memory", "get_batch"}
_COLLECTIVE_FILES = re.compile(r"(^|/)(torch/distributed/|torch/nn/parallel/distributed\.py|deepspeed/(comm|runtime)/)")
_COLLECTIVE = re.compile(
    r"all_?gather|reduce_?scatter|all_?reduce|all_?to_?all|unshard|broadcast|_ddp_init|bucket|reduce_grad|_coalesced"
)
_NATIVE_COLLECTIVE = re.compile(r"c10d::|ProcessGroup|nccl", re.IGNORECASE)
_WORKSPACE = re.compile(r"cublas|cudnn|cusolver|cusparse|workspace", re.IGNORECASE)
_LOSS = re.compile(r"cross_?entropy|log_softmax|nll_loss|(?<!compute_)loss(?!_step|_metrics|es_)", re.IGNORECASE)
_NO_LOSS = re.compile(r"^(compute_loss|training_step|prediction_step|get_batch_loss.*|.*loss_metrics)$")
_LOSS_GRADIENT = re.compile(r"(LogSoftmax|NllLoss|CrossEntropy)\w*Backward")
_CACHES = re.compile(r"(^|/)(transformers/cache_utils\.py|vllm/.*cache.*\.py)|(^|/)[^/]*(kv_cache|kvcache)[^/]*\.py")


def marks(frame: Frame) -> int:
    """The marks of a frame."""
    file, name = frame.filename.replace("\\", "/"), frame.name
    return _python(file, name) if _PYTHON.search(file) else _native(name)


def _native(name: str) -> int:
    """Marks of a C++ frame."""
    found = NATIVE | INSIDE
    if "torch::autograd::Engine" in name or "evaluate_function" in name:
        found |= BACKWARD
    if "AccumulateGrad" in name:
        found |= BACKWARD | ACCUMULATE
    if _LOSS_GRADIENT.search(name):
        found |= BACKWARD | LOSS_GRADIENT
    if _NATIVE_COLLECTIVE.search(name):
        found |= COMMUNICATION
    if _WORKSPACE.search(name):
        found |= WORKSPACE
    return found


def _python(file: str, name: str) -> int:
    found = INSIDE if _TORCH.search(file) else 0
    found |= _of_module(file, name) | _of_training(file, name)
    if _CACHES.search(file) or "kv_cache" in name:
        found |= CACHE
    if name in _INPUTS:
        found |= INPUT
    if _COLLECTIVE_FILES.search(file) and _COLLECTIVE.search(name):
        found |= COMMUNICATION
    if re.search(r"(^|/)peft/", file):
        found |= ADAPTER
    if _is_loss(file, name):
        found |= LOSS
    return found


def _of_module(file: str, name: str) -> int:
    """Marks of frames that call, build or load modules."""
    found = 0
    if file.endswith("torch/nn/modules/module.py"):
        if name in ("_call_impl", "_wrapped_call_impl", "__call__"):
            found |= CALL
        elif name in ("to", "cuda", "half", "float", "bfloat16", "_apply"):
            found |= LOAD
    elif _MODULES.search(file) and name == "__init__":
        found |= LOAD
    if file.endswith("torch/nn/modules/linear.py") and name == "forward":
        found |= LINEAR
    if file.endswith("torch/nn/modules/loss.py"):
        found |= LOSS_MODULE
    if name in _LOADING or _LOADING_FILES.search(file):
        found |= LOAD
    return found


def _of_training(file: str, name: str) -> int:
    """Marks of frames of a backward pass, a recomputation or an optimizer."""
    found = 0
    if file.endswith("torch/utils/checkpoint.py"):
        if name in ("unpack_hook", "recompute_fn", "backward", "recompute"):
            found |= RECOMPUTE
    elif "gradient_checkpointing" in file and name == "backward":
        found |= RECOMPUTE
    elif name in ("backward", "_engine_run_backward") and not file.endswith("/checkpoint.py"):
        found |= BACKWARD
    if _OPTIMIZERS.search(file):
        found |= OPTIMIZER | (STATE if name in _STATE else 0)
    elif name == "step" and "optim" in file.rsplit("/", 1)[-1]:
        found |= OPTIMIZER
    return found


def _is_loss(file: str, name: str) -> bool:
    if _NO_LOSS.match(name):
        return False
    return bool(_LOSS.search(name)) or bool(re.search(r"loss|cross_entropy", file.rsplit("/", 1)[-1]))
