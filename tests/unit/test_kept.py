"""What autograd keeps: counted from recorded ops, compared with what it really keeps."""

from __future__ import annotations

import pytest
from helpers.installed import need

from gpuprof.projection.memory.kept import OpUse, TrainedPart, kept

torch = pytest.importorskip("torch")
need("transformers")

BATCH, LENGTH = 2, 48


def model(whole: bool):
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=176, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=97, attn_implementation="sdpa", use_cache=False,  # pyright: ignore[reportCallIssue]
    )  # fmt: skip
    built = transformers.LlamaModel(config).to(torch.bfloat16)
    return built.requires_grad_(whole)


def adapted(built, dtype):
    peft = pytest.importorskip("peft")
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = peft.LoraConfig(r=8, target_modules=names)
    return peft.get_peft_model(built, config, autocast_adapter_dtype=dtype == torch.float32)


def measured(built, ids) -> float:
    """Bytes of the distinct storages that autograd holds after a forward pass, without parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in [*built.parameters(), *built.buffers()]}
    sizes, alive = {}, []

    def pack(tensor):
        place = tensor.untyped_storage().data_ptr()
        if place not in own:
            sizes[place] = tensor.untyped_storage().nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        built(ids)
    return float(sum(sizes.values()))


def counted(built, ids, training: TrainedPart) -> float:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        built(ids)
    uses = []
    for event in profiler.profiler.kineto_results.events():
        if str(event.device_type()).endswith("CPU"):
            shapes = tuple(tuple(shape) if shape else None for shape in event.shapes())
            uses.append(OpUse(event.name(), shapes, tuple(event.dtypes()), 1.0))
    found = kept(uses, training)
    assert found is not None
    return found.total_bytes


def ids():
    return torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % 97


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_adapters_of_a_frozen_model(dtype):
    built = adapted(model(whole=False), dtype)
    names: dict[str, int] = dict.fromkeys(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), 3
    )
    training = TrainedPart(names, 8, dtype == torch.float32, whole=False)
    assert counted(built, ids(), training) == pytest.approx(measured(built, ids()), rel=0.06)


def test_all_weights():
    built = model(whole=True)
    assert counted(built, ids(), TrainedPart({}, None, False, whole=True)) == pytest.approx(
        measured(built, ids()), rel=0.06
    )


def test_what_is_not_a_transformer_is_not_counted():
    assert kept([OpUse("aten::conv2d", ((2, 3, 8, 8), (4, 3, 3, 3)), ("float", "float"), 1.0)],
                TrainedPart({}, None, False, whole=True)) is None  # fmt: skip
