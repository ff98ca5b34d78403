"""What Dynamo's reasons for graph breaks, failed guards and skipped CUDA graphs are about, and the way out of each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuprof.tracefile.run_folder.compiler import CompiledFunction, FailedGuard, GraphBreak

_NAMED = re.compile(r"(?<!e\.g\. )`([^`]{1,120})`|<function (\w+)|^raised exception (.{1,120})")
"""What an explanation is about, but not its examples; or the exception that a line raised."""
_UNKNOWN = re.compile(r"^(<unknown module>\.|<function |<built-in \w+ )|[.>]+$")
_OPTIMIZER = re.compile(r"(^|/)torch/optim/")
OUTSIDE = "outside of the compiled function"
STEP_OUTSIDE = f"call optimizer.step() {OUTSIDE}"

_BREAKS: tuple[tuple[str, str], ...] = (
    (
        r"data.dependent (branching|assert)|generic_jump",
        "compute both sides and choose with torch.where (or torch.cond),\nor look at the value after the step",
    ),
    (
        r"Tensor\.(item|tolist)|\.item\(\)|tolist|data.dependent operator|_local_scalar_dense|Tensor.*bool",
        "keep the value on the GPU (torch.where, clamp), or read it after the step;\nwhere no branch depends on it, "
        "torch._dynamo.config.capture_scalar_outputs = True",
    ),
    (
        r"dynamic shape operator|nonzero|masked_select|unique",
        "keep the size: multiply by the mask, or choose with torch.where;\nor set "
        "torch._dynamo.config.capture_dynamic_output_shape_ops = True",
    ),
    (
        r"logg(er|ing)",
        f"log {OUTSIDE}, or add logger.info\nto torch._dynamo.config.ignore_logging_functions",
    ),
    (
        r"\bprint\b|warnings\b",
        f"print {OUTSIDE},\nor add print to torch._dynamo.config.reorderable_logging_functions",
    ),
    (r"\b(Adam\w*|SGD|\w*Optimizer)\.step", STEP_OUTSIDE),
    (
        r"_dynamo\.(graph_break|skip_frame|step_unsupported)\(|step_unsupported",
        "remove the call that asks for the break",
    ),
    (r"disable", "call the disabled function before the compiled one, or remove the disable"),
    (r"recompile limit|cache_size", "pass what the guard compares as a tensor"),
    (r"\.backward\(\)|autograd\.grad\b", f"compile the forward pass alone: call it {OUTSIDE}"),
    (r"requires_grad_", f"set requires_grad {OUTSIDE}"),
    (r"nn\.Parameter|__build_class__", "create parameters, modules and classes once, in __init__"),
    (
        r"RNN, GRU",
        "leave the recurrent layer out (cuDNN runs it as one kernel),\nor set torch._dynamo.config.allow_rnn = True",
    ),
    (r"sparse|NestedTensor", f"make sparse and nested tensors {OUTSIDE}, or use padded ones with a mask"),
    (r"manual_seed|set_rng_state", f"seed {OUTSIDE}"),
    (
        r"\b[Rr]andom\b|\brand(int|n|om)?\b|\bshuffle\b",
        "draw with torch on the GPU (torch.rand), or before the call and pass a tensor",
    ),
    (r"numpy|ndarray", f"compute it with torch instead of NumPy, or {OUTSIDE}"),
    (r"\btime\.|perf_counter|monotonic|\bnow\b|datetime", f"take times and wait {OUTSIDE}"),
    (r"\bset_(num_threads|detect_anomaly|default_\w+|float32_matmul_precision)", "set it once, before the first call"),
    (
        r"backwards? hook",
        "remove the hook of the backward pass, or set torch._dynamo.config.compiled_autograd = True",
    ),
    (
        r"autograd\.Function",
        "let its forward return what it changes in place, without other use of ctx,\nor make it a custom operator "
        "(torch.library.custom_op)",
    ),
    (
        r"`?\bopen`?$|\bwrite\b|\bsave\b|\bload\b|TextIO|posix\.|\bjson\b|pickle|add_scalar",
        f"read and write files {OUTSIDE}",
    ),
    (r"\bgc\b|memory_|non-Tensor", f"call it {OUTSIDE}"),
    (r"deepcopy", f"copy {OUTSIDE}, or clone the tensors"),
    (r"allocate_lock|\bR?Lock\b", f"take locks, and start threads and processes, {OUTSIDE}"),
    (r"context manager", f"enter the context manager {OUTSIDE}"),
    (r"tqdm", "loop without tqdm in the compiled function"),
    (
        r"observed exception",
        f"the line raises it while Dynamo traces it without values: move it\n{OUTSIDE}",
    ),
    (r"recursion", "unroll the recursion into a loop"),
    (r"import failure", f"import the module {OUTSIDE}; it is missing here"),
    (r"_make_wrapper_subclass|as_subclass|tensor subclass", f"make the tensor of another class {OUTSIDE}"),
    (
        r"skipfiles|marked as skipped|builtin|C/C\+\+|extension|not traceable|polyfill|C method",
        "move the call out, or make it a custom operator (torch.library.custom_op)",
    ),
)
"""(pattern of Dynamo's reason and what it is about, what to do about it); the first that fits counts."""


_SKIPPED_GRAPHS = (
    (
        r"mutat(ed|ion)",
        "register the tensor that forward() changes in place as a buffer, or change it outside",
    ),
    (r"cpu device", "move the CPU tensors that the model reads to the GPU"),
    (r"multiple devices", "keep the model and its inputs on one GPU, or compile the part of each GPU"),
    (r"dynamic shape|symbolic shapes", "keep the shapes of batches fixed"),
    (r"control flow", "choose with torch.where in place of torch.cond and torch.while_loop"),
    (r"boolean indexing|index_put_", "choose with torch.where or masked_fill in place of a boolean index"),
    (r"spars", "compile the part without sparse tensors"),
    (r"caching allocator", "leave PyTorch's caching allocator on (PYTORCH_NO_CUDA_MEMORY_CACHING)"),
    (r"incompatible op", "replace the op, or set torch._inductor.config.graph_partition = True, which leaves it out"),
)
"""(pattern of a reason for which torch skips CUDA graphs (torch/_inductor), what to do about it)."""


@dataclass(frozen=True, slots=True)
class GuardKind:
    """A kind of guard that fails."""

    pattern: str
    what: str
    """What changes between two calls."""
    way: str


IN_A_TENSOR = "hold the value in a tensor (register_buffer), or pass it as one"
_GUARDS = (
    GuardKind(
        r"size mismatch|\.size\(\)|\brank mismatch", "the shape of a tensor",
        "pad to a few sizes, or let them vary: torch.compile(dynamic=True),\ntorch._dynamo.mark_dynamic(tensor, 1)",
    ),
    GuardKind(r"stride mismatch", "the memory layout of a tensor", "pass tensors of one layout (.contiguous())"),
    GuardKind(r"dtype mismatch", "the type of a tensor", "pass tensors of one type"),
    GuardKind(
        r"requires_grad mismatch", "whether a tensor requires a gradient",
        "freeze and unfreeze before compiling; pass tensors that require gradients always or never",
    ),
    GuardKind(r"dispatch key|device|tensor type", "the device or class of a tensor", "pass tensors of one kind"),
    GuardKind(
        r"grad_mode|inference_mode|\.training\b", "training and evaluation take turns",
        "two versions are enough; compile the model once for each where the limit is reached",
    ),
    GuardKind(
        r"GLOBAL_STATE", "a setting of torch",
        "change threads, autocast and deterministic algorithms before the first call, not between calls",
    ),
    GuardKind(
        r"\['lr'\]|learning_rate|\blr\b", "the learning rate",
        "make it a tensor: AdamW(parameters, lr=torch.tensor(1e-4))",
    ),
    GuardKind(
        r"got deallocated|___check_obj_id|___check_type_id|ID_MATCH", "an object or a function that is made again",
        "make it once, and pass the same one in each step",
    ),
    GuardKind(
        r"\blen\(|^not |___dict_contains|dict\.keys|___dict", "the size or the keys of a list or dictionary",
        "keep its size: a tensor made once, or no list that grows in the compiled function",
    ),
    GuardKind(r"___stack", "a number from before a graph break", f"remove the break, or {IN_A_TENSOR}"),
    GuardKind(r"\bgrad is None", "whether gradients are there", "zero them: optimizer.zero_grad(set_to_none=False)"),
    GuardKind(r"\bis None\b|\bis\b|== None|== (True|False)|== '", "an option", "two or three versions are enough"),
    GuardKind(r"^G\[", "a global variable", IN_A_TENSOR),
    GuardKind(
        r"\.(layer_idx|layer_id|index|idx|number|i)\b ==", "the number of a layer",
        "keep it out of forward: each layer is a version",
    ),
    GuardKind(
        r"^self\b|L\['self'\]|[A-Za-z_]\w*\.[A-Za-z_]", "an attribute",
        f"{IN_A_TENSOR};\nfor whole numbers of a module, torch._dynamo.config.allow_unspec_int_on_nn_module = True",
    ),
    GuardKind(r"==", "an argument that is a Python number", IN_A_TENSOR),
)  # fmt: skip


def subject_of(detail: str | None) -> str:
    """The function, op or class that an explanation of Dynamo's is about; empty where it names none."""
    found = _NAMED.search(detail or "")
    return _UNKNOWN.sub("", _UNKNOWN.sub("", found[1] or found[2] or found[3])) if found else ""


def in_words(reason: str, detail: str | None) -> str:
    """`Attempted to call function marked as skipped (time.time)`: a reason with what it is about."""
    subject = subject_of(detail)
    return reason if not subject or subject.lower() in reason.lower() else f"{reason} ({subject})"


def way_out(one: GraphBreak) -> str:
    """What to do about a graph break; where no rule fits, what Dynamo advises."""
    if _OPTIMIZER.search((one.place.file or "").replace("\\", "/")):
        return STEP_OUTSIDE
    about = f"{one.reason} | {subject_of(one.detail)}"
    rule = next((way for pattern, way in _BREAKS if re.search(pattern, about, re.IGNORECASE)), "")
    return rule or one.hint or "move what breaks the graph out of it"


def way_into_graphs(reason: str) -> str:
    """What to do about a reason for which torch skipped CUDA graphs; empty where no rule fits."""
    return next((way for pattern, way in _SKIPPED_GRAPHS if re.search(pattern, reason)), "")


def guard_kind(one: FailedGuard) -> GuardKind | None:
    """The kind of a guard that failed; None: unknown."""
    return next((kind for kind in _GUARDS if re.search(kind.pattern, one.guard)), None)


def guards_of(functions: tuple[CompiledFunction, ...]) -> list[FailedGuard]:
    """Guards that had a function compiled again, those first that failed most often."""
    return sorted((guard for one in functions for guard in one.failed_guards), key=lambda one: -one.count)
