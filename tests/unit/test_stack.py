"""Fixes are written for the program: the class and fields of its arguments, its own flags, its model's library."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from helpers.case import case_of, run_of, with_facts
from helpers.installed import need
from helpers.make_run import RECORDING
from helpers.make_trace import TraceBuilder
from helpers.program import FLOAT, MS, Program, checkpointed
from helpers.quick import few

from gpuprof.diagnosis import findings
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import FINDINGS
from gpuprof.diagnosis.result.fix import Code, arguments
from gpuprof.diagnosis.result.run_model import StepWork
from gpuprof.diagnosis.run.stack import Stack, stack_of
from gpuprof.diagnosis.run.trainer_arguments import of_file
from gpuprof.tracefile.recording import resolve
from gpuprof.tracefile.run_folder.program import ClassName, Flag
from gpuprof.tracefile.run_folder.program import Program as Known
from gpuprof.tracefile.trace import Trace

FOLDER = Path(str(findings.__file__)).parent


def known(name: str, *fields: str, kind: str = "trl") -> Stack:
    return Stack(kind, False, own_arguments=name, fields=frozenset(fields))


# -- settings


def test_a_setting_names_the_programs_own_class():
    stack = known("DPOConfig", "gradient_checkpointing")
    assert str(stack.setting({"gradient_checkpointing": False})) == "DPOConfig(gradient_checkpointing=False)"
    assert str(stack.setting({"packing": True})) == ""
    assert (
        str(stack.setting({"gradient_checkpointing": True}, {"packing": True}))
        == "DPOConfig(gradient_checkpointing=True)"
    )


def test_checkpointing_has_two_names():
    assert known("DPOConfig", "gradient_checkpointing", "activation_checkpointing").checkpointing.startswith("act")
    flags = (Flag(("--gradient_checkpointing",), "switch"),)
    own = replace(Stack("torch", False), flags=flags)
    assert str(own.setting({own.checkpointing: False})) == "without --gradient_checkpointing"
    assert Stack("trl", False).checkpointing == "gradient_checkpointing"


def test_without_knowledge_of_the_class_none_of_trl_is_named():
    unnamed = Stack("trl", False)
    assert str(unnamed.setting({"tf32": True})) == "in the trainer's arguments:\ntf32=True"
    assert str(unnamed.setting({"tf32": True}, note="  # x")) == "in the trainer's arguments:\ntf32=True  # x"
    assert str(unnamed.fix("torch", "setting", trl=arguments("SFTConfig", {"packing": True}))) == "setting"
    assert (
        str(Stack("transformers", False).setting({"tf32": True}, note="  # x")) == "TrainingArguments(tf32=True)  # x"
    )
    assert str(Stack("torch", False).setting({"tf32": True})) == ""
    nested = Stack("trl", False, own_arguments="SFTConfig").setting({"model_init_kwargs": {"a": "b"}, "n": None})
    assert str(nested) == 'SFTConfig(model_init_kwargs={"a": "b"}, n=None)'


def test_attn_implementation_is_named_only_for_classes_that_have_it():
    model: dict = {"class": "Qwen2ForCausalLM", "library": "transformers"}
    known = {"attention_options": ["sdpa"]}
    unknown, some, none, other = (
        stack_of_run(Known(), model=one)
        for one in (model, model | known, model | {"attention_options": None}, model | known | {"library": "timm"})
    )
    for name, wanted in {"sdpa": [True, True, False, False], "flex_attention": [True, False, False, False]}.items():
        found = [stack.loaded(attn_implementation=name) for stack in (unknown, some, none, other)]
        assert [bool(one) for one in found] == wanted
    assert some.loaded(dtype="bfloat16") and none.loaded(dtype="bfloat16")


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        (Flag(("--gradient_checkpointing", "--gradient-checkpointing"), "boolean"), False, "false"),
        (Flag(("--gradient-checkpointing",), "switch"), True, "--gradient-checkpointing"),
        (Flag(("--gradient-checkpointing",), "switch"), False, "without --gradient-checkpointing"),
        (Flag(("--gradient-checkpointing", "--no-gradient-checkpointing"), "on_off"), False, "--no-gradient-check"),
        (Flag(("--gradient_checkpointing",), "assigned"), False, "--gradient_checkpointing=False"),
        (Flag(("--gradient_checkpointing",), "value"), False, ""),
        (Flag(("--checkpointing",), "switch"), False, ""),
    ],
)
def test_the_programs_own_flag_comes_first(flag: Flag, value: bool, says: str):
    stack = Stack("torch", False, flags=(flag,))
    assert says in str(stack.setting({"gradient_checkpointing": value}))
    assert bool(says) == bool(stack.setting({"gradient_checkpointing": value}))
    assert str(stack.fix("by hand", stack.setting({"gradient_checkpointing": value}))) != "by hand" or not says


def test_a_script_of_its_own_kind_is_compiled_by_its_flag():
    stack = Stack("torch", False, flags=(Flag(("--compile",), "assigned"), Flag(("--num-workers",), "value")))
    assert str(stack.setting({"torch_compile": True})) == "--compile=True"
    assert str(stack.setting({"torch_compile": True, "torch_compile_mode": "reduce-overhead"})) == "", (
        "no flag for the mode"
    )
    assert (
        str(stack.setting({"dataloader_num_workers": 8}, {"dataloader_persistent_workers": True})) == "--num-workers 8"
    )
    assert str(stack.setting({"optim": "adamw_torch_fused"})) == ""
    batch = replace(stack, flags=tuple(Flag((f"--{n}",), "assigned") for n in ("batch_size", "grad_accum_steps")))
    wanted = {"per_device_train_batch_size": Code("32"), "gradient_accumulation_steps": 1}
    assert str(batch.setting(wanted)) == "--batch_size=32 --grad_accum_steps=1"
    assert str(batch.setting(wanted | {"per_device_train_batch_size": Code("8 * batch_size")})) == ""


def test_a_text_for_another_class_is_not_taken():
    stack = known("DPOConfig", "per_device_train_batch_size")
    trl = arguments("SFTConfig", {"per_device_train_batch_size": 8}) + "\nor, with short samples: "
    trl += arguments("SFTConfig", {"packing": True}).otherwise()
    own = arguments("DPOConfig", {"per_device_train_batch_size": 8})
    assert stack.fix("torch", trl=trl, transformers=own) == own
    assert str(stack.fix("torch", trl=arguments("DPOConfig", {"packing": True}))) == "torch"
    assert stack.fits(arguments("DPOConfig", {"per_device_train_batch_size": Code('dict(packing="a=b")')}))
    assert Stack("trl", False, own_arguments="SFTConfig").fix("torch", trl=trl) == trl
    assert [one.instead for one in trl.settings] == [False, True]


def test_models_are_loaded_by_their_own_class():
    assert str(Stack("torch", False).loaded(a="b")) == 'AutoModelForCausalLM.from_pretrained(..., a="b")'
    reward = Stack("trl", False, model_class="Qwen2ForSequenceClassification", package="transformers")
    assert str(reward.loaded(a="b")) == 'AutoModelForSequenceClassification.from_pretrained(..., a="b")'
    assert not reward.is_causal
    assert str(Stack("torch", False, model_class="GPT", package="__main__").loaded(a="b")) == ""
    sentences = Stack("transformers", False, model_class="SentenceTransformer", package="sentence_transformers")
    assert str(sentences.loaded(a="b")) == 'SentenceTransformer(..., model_kwargs={"a": "b"})'


# -- what a trace shows of its program


@pytest.mark.parametrize(
    ("names", "trainer"),
    [
        (("/site-packages/trl/trainer/dpo_trainer.py(900): compute_loss",), "DPO"),
        (("trl/trainer/reward_trainer.py(12): compute_loss", "transformers/trainer.py(3): training_step"), "Reward"),
        (("trl/trainer/sft_trainer.py(1): compute_loss", "trl/trainer/base_trainer.py(7): log"), "SFT"),
        (("trl/experimental/online_dpo/online_dpo_trainer.py(7): training_step",), "OnlineDPO"),
        (("unsloth_compiled_cache/UnslothKTOTrainer.py(7): training_step",), "KTO"),
        (("RewardTrainer.training_step", "trl/core.py(1): flatten"), "Reward"),
        (("trl/trainer/dpo_trainer.py(1): <module>", "trl/trainer/utils.py(3): pad"), None),
        (("trl/trainer/minillm_trainer.py(9): compute_loss",), None),
    ],
)
def test_the_trainer_is_the_one_that_the_trace_shows(tmp_path: Path, names: tuple[str, ...], trainer: str | None):
    made = TraceBuilder()
    for i, name in enumerate(names):
        made.frame(name, 10 * i, 10 * i + 5)
    trace = resolve(str(made.write(tmp_path / "trace.json"))).read().trace
    assert trace is not None
    stack = stack_of(trace, None)
    assert stack.kind == ("unsloth" if "unsloth" in names[0] else "trl")
    shown = stack.setting({"per_device_train_batch_size": Code("8 * batch_size")})
    packing = arguments("SFTConfig", {"packing": True})
    assert stack.trainer == (trainer and f"{trainer}Trainer")
    assert str(shown).startswith(f"{trainer}Config(" if trainer else "in the trainer's arguments:\nper_device")
    assert ("SFTConfig" in str(stack.fix("", shown, trl=packing))) == (trainer == "SFT")


def test_files_of_the_installed_trl_are_named_as_their_classes():
    need("trl")
    root = Path(str(importlib.util.find_spec("trl").origin)).parent  # type: ignore[union-attr]
    files = [path for path in root.rglob("*_trainer.py") if path.name != "base_trainer.py"]
    assert len(files) > 10
    for path in files:
        classes = re.findall(r"^class (\w+)Trainer\b", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert of_file(path.stem.removesuffix("_trainer")) in classes, path


# -- what a run says about its program


@cache
def recorded() -> Trace:
    trace = resolve(str(RECORDING)).read().trace
    assert trace is not None
    return trace


def stack_of_run(program: Known | None, source: str = "trainer", packages=("transformers", "trl"), model=None) -> Stack:
    run = replace(run_of(), program=program, step_source=source, model=model)
    return stack_of(recorded(), run, frozenset(packages))


def test_the_kind_is_that_of_the_trainer_and_its_arguments():
    plain = ClassName("TrainingArguments", "transformers.training_args")
    dpo = ClassName("DPOConfig", "trl.trainer.dpo_config", ("transformers.training_args.TrainingArguments",))
    mine = ClassName("Mine", "__main__", ("transformers.training_args.TrainingArguments",))
    assert stack_of_run(None).arguments == "", "an older run, whose trace shows no trainer"
    found = stack_of_run(Known(arguments=plain, fields=("tf32",)))
    assert (found.kind, found.arguments) == ("transformers", "TrainingArguments")
    assert stack_of_run(Known(arguments=dpo)).kind == "trl"
    assert stack_of_run(Known(arguments=mine)).arguments == "Mine"
    unsloth = ClassName("UnslothSFTConfig", "unsloth_compiled_cache.UnslothSFTTrainer", ("trl.SFTConfig",))
    assert stack_of_run(Known(arguments=unsloth), packages=("unsloth",)).arguments == "SFTConfig"
    lightning = Known(trainer=ClassName("Trainer", "lightning.pytorch.trainer.trainer"))
    assert stack_of_run(lightning, source="optimizer").kind == "lightning"
    odd = stack_of_run(Known(), source="optimizer", model={"class": "bad name", "library": 3})
    assert (odd.package, odd.model_class) == (None, None)


# -- every finding, for real classes


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> tuple[Analysis, Analysis]:
    """A program with many findings, and a launch-bound recording."""
    demo = case_of(RECORDING, ms=81, run=run_of(StepWork(4, 512, 512, 1)))
    return program_case(tmp_path_factory.mktemp("program")), demo


def program_case(tmp_path: Path) -> Analysis:
    """A program with fp32 matmuls, checkpointing and padding."""
    program = Program()

    def body() -> None:
        for _ in range(10):
            program.mm(4096, 4096, 4096, gpu=3 * MS, type=FLOAT, kernel="ampere_sgemm_128x64_tn")
        checkpointed(program)

    for _ in range(3):
        program.step(body)
    case = program.case(tmp_path)
    return with_facts(case, run=run_of(StepWork(8, 8192, 2048, 1)))


CLASSES = (
    ("transformers", "TrainingArguments"), ("trl", "SFTConfig"), ("trl", "DPOConfig"), ("trl", "RewardConfig"),
    ("trl", "GRPOConfig"), ("sentence_transformers", "SentenceTransformerTrainingArguments"),
)  # fmt: skip


def real(package: str, name: str) -> Stack:
    need(package)
    kind = getattr(importlib.import_module(package), name)
    fields = frozenset(field.name for field in dataclasses.fields(kind))
    return Stack("trl" if package == "trl" else "transformers", True, own_arguments=name, fields=fields)


def calls_in(text: str) -> Iterator[tuple[str, set[str]]]:
    """Classes of arguments that a fix names, and the fields that it gives them."""
    for found in re.finditer(r"\b[A-Z]\w*(?:Config|Arguments)\(", text):
        depth, end = 0, found.start()
        for end in range(found.end() - 1, len(text)):
            depth += (text[end] in "([{") - (text[end] in ")]}")
            if depth == 0:
                break
        call = ast.parse(text[found.start() : end + 1], mode="eval").body
        assert isinstance(call, ast.Call)
        yield text[found.start() : found.end() - 1], {keyword.arg or "" for keyword in call.keywords}


@pytest.mark.parametrize(
    ("package", "name"),
    few([pytest.param(*one, id="-".join(one)) for one in CLASSES], ["transformers-TrainingArguments", "trl-SFTConfig"]),
)
def test_a_fix_names_only_fields_that_the_class_has(cases: tuple[Analysis, Analysis], package: str, name: str):
    stack = real(package, name)
    named = set()
    for case in cases:
        for page, find in FINDINGS:
            for proposal in find(with_facts(case, stack=stack)):
                for called, fields in calls_in(str(proposal.fix)):
                    assert called == name, f"{page.id}: {proposal.fix}"
                    assert fields <= (stack.fields or set()), f"{page.id}: {proposal.fix}"
                    named.add(page.id)
    assert named >= {"tf32", "recompute", "larger_batch", "compile", "cuda_graphs", "padding"}, named


def settings_in_code() -> Iterator[tuple[str, list[str]]]:
    """(file, fields) of every call of `setting` in the findings."""
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setting":
                for given in (*node.args, *(word.value for word in node.keywords)):
                    for one in (given.body, given.orelse) if isinstance(given, ast.IfExp) else (given,):
                        if isinstance(one, ast.Dict):
                            yield path.name, [str(key.value) for key in one.keys if isinstance(key, ast.Constant)]


def test_every_field_that_findings_set_exists_somewhere():
    need("transformers", "trl")
    known_fields = frozenset().union(*(real(*each).fields or () for each in CLASSES[:5])) | {"group_by_length"}
    found = list(settings_in_code())
    assert len(found) > 12
    for file, fields in found:
        assert known_fields.issuperset(fields), file


def test_packing_is_not_advised_where_the_trainer_cannot_pack(cases: tuple[Analysis, Analysis]):
    case = cases[0]
    find = {page.id: find for page, find in FINDINGS}["padding"]
    dpo = known("DPOConfig", "padding_free", "train_sampling_strategy", "model_init_kwargs")
    for stack, keys in (
        (dpo, {"padding_free", "grouped"}),
        (known("RewardConfig", "train_sampling_strategy"), {"grouped"}),
        (Stack("trl", False), {"packing", "padding_free", "grouped"}),
        (known("TrainingArguments", kind="transformers"), {"packing", "padding_free", "grouped"}),
    ):
        assert {p.key for p in find(with_facts(case, stack=stack))} == keys, stack.arguments


def test_fused_kernels_for_a_model_of_ones_own():
    from gpuprof.diagnosis.findings.fused_elementwise import _liger

    assert "AutoLigerKernelForCausalLM" in str(_liger(True, {"loss"}, {}))
    assert "import LigerCrossEntropyLoss " in str(_liger(False, {"loss"}, {}))
    assert Stack("torch", False, model_class="GPT", package="__main__").is_causal is False
