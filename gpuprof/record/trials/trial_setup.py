"""Prepares a process of a trial: redirects writes to scratch, silences saving and trackers, installs patches and meter.

The recording that `gpuprof try` makes itself is protected in the same way, without patches and meter.

Like `arm`, imports nothing on the program's behalf.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...runfile import read_json, write_json
from ..entry.arm import ImportWatch
from ..files.scratch import BLOCKED, Scratch
from ..files.scratch_calls import cover
from ..files.written import Written
from ..model import trainer_arguments
from ..patches import NAMES, PROBE, patch_at, patch_named
from ..patches.context import Context, Hub, Proof, wrap

PLAN = "plan.json"
"""File in the trial's folder with the instructions for its processes."""
SANDBOX = "sandbox.json"
"""File in the trial's folder that says how the user's files are protected: `kind`, and the folders `read_only`."""
FAILED = "failed.json"
"""File in the trial's folder with the error that ended a recorded program."""


def arm(folder: str, run: str | None = None) -> None:
    """Makes this process one of a trial. run: it is recorded into this folder, and not timed."""
    plan = read_json(Path(folder) / PLAN)
    if plan is None:
        raise FileNotFoundError(f"{folder}/{PLAN}: this trial has no plan")
    seen = None if run is None else Written(run).note
    allowed = (folder, *plan["allowed"])
    box = read_json(Path(folder) / SANDBOX) or {}
    is_private = box.get("kind") == "namespace"
    log = os.path.join(folder, BLOCKED)
    apart = tuple(box.get("read_only") or ()) if is_private else None
    scratch = Scratch(plan["scratch"], allowed, bool(plan["network"]), log, seen, apart)
    hub = Hub()
    proofs = apply_all(hub, plan["fixes"])
    keep_quiet(hub, plan["scratch"])
    if run is None:
        _attach(hub, Path(folder), plan, proofs)
    else:
        atexit.register(_note_failure, Path(folder))
    wanted = hub.wanted()
    if wanted:
        sys.meta_path.insert(0, ImportWatch(wanted, folder))
    if is_private and not apart:
        sys.addaudithook(scratch.audit())  # the program sees its own changes without redirection
    else:
        cover(scratch)


def _note_failure(folder: Path) -> None:
    """Writes down the error that ended this program."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        write_json(folder / FAILED, {"error": f"{type(error).__name__}: {error}"})


def apply_all(hub: Hub, fixes: list[dict[str, Any]]) -> dict[str, Callable[[], Proof]]:
    """Applies patches, in the order of their list, then those in files of their own; name → its proof."""
    proofs: dict[str, Callable[[], Proof]] = {}
    order = (*NAMES, PROBE)
    for fix in sorted(fixes, key=lambda one: order.index(one["name"]) if one["name"] in order else len(order)):
        name, path = fix["name"], fix.get("path")
        try:
            patch = patch_at(path) if path else patch_named(name)
            proofs[name] = patch.apply(Context(hub, name, fix["value"], fix.get("by_flag")))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            proofs[name] = lambda text=text: Proof(False, text)
    return proofs


def _attach(hub: Hub, folder: Path, plan: dict[str, Any], proofs: dict[str, Callable[[], Proof]]) -> None:
    """Begins to time with the first optimizer or trainer."""
    from .trial_meter import TrialMeter

    made: list[TrialMeter] = []

    def meter() -> TrialMeter:
        if not made or made[0].pid != os.getpid():
            made[:] = [TrialMeter(folder, plan, hub, proofs)]
        return made[0]

    def optimizers(module: Any) -> None:
        opened: list[int] = []

        def before(optimizer: Any, _: Any, __: Any) -> None:
            if not opened:  # torch 2.13 calls its global hooks twice, and a subclass may call its parent's step
                opened.append(id(optimizer))
                meter().on_optimizer_begin(optimizer)

        def after(optimizer: Any, _: Any, __: Any) -> None:
            if opened and opened[-1] == id(optimizer):
                opened.pop()
            meter().on_optimizer_end(optimizer)

        for hook in (before, after):
            hook._torchdynamo_disable = True  # type: ignore[attr-defined]
        module.register_optimizer_step_pre_hook(before)
        module.register_optimizer_step_post_hook(after)

    def trainer(module: Any) -> None:
        from ..entry.trainer import callback_class

        def session_of(_: str) -> TrialMeter | None:
            found = meter()
            return None if found.ended else found

        module.DEFAULT_CALLBACKS.append(callback_class(module.TrainerCallback, session_of))

    hub.on_import("torch", lambda _: meter().watch_passes())
    hub.on_import("torch.utils.data.dataloader", lambda _: meter().watch_loaders())
    hub.on_import("torch.optim.optimizer", optimizers)
    hub.on_import("transformers.trainer", trainer)


# -- what would be saved, uploaded or reported

_SAVERS = (
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained"),
    ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase", "save_pretrained"),
    ("transformers.processing_utils", "ProcessorMixin", "save_pretrained"),
    ("transformers.utils.hub", "PushToHubMixin", "push_to_hub"),
    ("transformers.trainer", "Trainer", "save_model"),
    ("transformers.trainer", "Trainer", "_save_checkpoint"),
    ("transformers.trainer", "Trainer", "push_to_hub"),
    ("transformers.trainer", "Trainer", "init_hf_repo"),
    ("transformers.trainer", "Trainer", "create_model_card"),
    ("trl.trainer.base_trainer", "_BaseTrainer", "create_model_card"),
    ("peft.peft_model", "PeftModel", "save_pretrained"),
    ("accelerate.accelerator", "Accelerator", "save_state"),
    ("accelerate.accelerator", "Accelerator", "save_model"),
    ("huggingface_hub.hf_api", "HfApi", "upload_folder"),
    ("huggingface_hub.hf_api", "HfApi", "upload_file"),
    ("huggingface_hub.hf_api", "HfApi", "upload_large_folder"),
    ("huggingface_hub.hf_api", "HfApi", "create_commit"),
    ("huggingface_hub.hf_api", "HfApi", "create_repo"),
    ("torch.distributed.checkpoint.state_dict_saver", "", "save"),
    ("torch.distributed.checkpoint.state_dict_saver", "", "async_save"),
)
"""(module, class, function) that do nothing in a trial; class "" for a function of the module."""
_TO_FILES = (("torch.serialization", "save", 1, "f"), ("safetensors.torch", "save_file", 1, "filename"))
"""(module, function, position and name of its file argument) that make an empty file in scratch instead."""


def keep_quiet(hub: Hub, folder: str) -> None:
    """Nothing is saved, uploaded or reported: neither is part of what is compared, and both would leave traces."""

    def silent(module: Any, owner: str, name: str) -> None:
        home = getattr(module, owner, None) if owner else module
        if home is None or not hasattr(home, name):
            return

        def make(_: Any) -> Any:
            def wrapper(*args: Any, **kwargs: Any) -> None:
                return None

            return wrapper

        wrap(home, name, make)

    def empty(module: Any, name: str, position: int, keyword: str) -> None:
        def make(save: Any) -> Any:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                file = kwargs.get(keyword, args[position] if len(args) > position else None)
                if not isinstance(file, (str, bytes, os.PathLike)):
                    return save(*args, **kwargs)
                with open(file, "wb"):  # redirected to scratch, like every file that is written
                    return None

            return wrapper

        wrap(module, name, make)
        package = sys.modules.get("torch")
        if module.__name__ == "torch.serialization" and package is not None and hasattr(package, name):
            setattr(package, name, module.save)

    def arguments(found: Any) -> dict[str, Any]:
        new: dict[str, Any] = {trainer_arguments.OUTPUT: os.path.join(folder, "output")}
        for name, value in trainer_arguments.SILENT.items():
            if hasattr(found, name):
                new[name] = _like(getattr(found, name), value)
        if getattr(found, trainer_arguments.LOGGING, None):
            new[trainer_arguments.LOGGING] = os.path.join(folder, "logging")
        return new

    for module, owner, name in _SAVERS:
        hub.on_import(module, lambda found, owner=owner, name=name: silent(found, owner, name))
    for module, name, position, keyword in _TO_FILES:
        hub.on_import(
            module, lambda found, name=name, at=position, word=keyword: empty(found, name, at, word)
        )  # fmt: skip
    hub.set_arguments(arguments)
    watch_arguments(hub)


def watch_arguments(hub: Hub) -> None:
    """Makes the changes chosen for a trainer's arguments, when they are created and when a trainer takes them."""

    def training_arguments(module: Any) -> None:
        def make(init: Any) -> Any:
            def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
                hub.change_arguments(self)
                return init(self, *args, **kwargs)

            return wrapper

        wrap(getattr(module, trainer_arguments.CLASS), "__post_init__", make)

    def trainer(module: Any) -> None:
        def make(init: Any) -> Any:
            def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
                found = kwargs.get("args", args[1] if len(args) > 1 else None)
                if found is not None:
                    hub.change_arguments(found)
                return init(self, *args, **kwargs)

            return wrapper

        wrap(module.Trainer, "__init__", make)

    hub.on_import(trainer_arguments.MODULE, training_arguments)
    hub.on_import("transformers.trainer", trainer)


def _like(before: Any, value: Any) -> Any:
    """The value converted to the field's current type: text becomes a member of an enumeration."""
    enumeration = type(before)
    if isinstance(value, str) and hasattr(enumeration, "__members__"):
        return enumeration(value)
    return value
