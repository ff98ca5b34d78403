"""What torch 2.13's Dynamo says of graph breaks and guards of small programs, and the way out that is named."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpuprof.diagnosis.detect.compiled.dynamo_reasons import guard_kind, in_words, subject_of, way_into_graphs, way_out
from gpuprof.record.model.compiler import _breaks, _explained, _skip
from gpuprof.tracefile.run_folder.compiler import FailedGuard, GraphBreak, Place

SKIPPED = "Attempted to call function marked as skipped"
BUILTIN = "Dynamo does not know how to trace the builtin `{}.` It is either a Python builtin (e.g. _warnings.warn) or"
OPERATOR = "Dynamo does not know how to trace builtin operator `{}` with argument types ['str'] (has_kwargs False)"
SCALAR = "Unsupported Tensor.item() call with capture_scalar_outputs=False"
SIZED = "Operator `{}`'s output shape depends on input Tensor data."


@pytest.mark.parametrize(
    ("reason", "detail", "way"),
    [
        ("Data-dependent branching", "Detected it (e.g. `if my_tensor.sum() > 0:`).", "torch.cond"),
        ("generic_jump TensorVariable()", None, "torch.cond"),
        (SCALAR, "Dynamo does not support tracing `Tensor.item()` with config.", "capture_scalar_outputs = True"),
        ("Tensor.tolist() with non-integer tensor", None, "read it after the step"),
        ("Dynamic shape operator", SIZED.format("aten.nonzero.default"), "multiply by the mask"),
        ("Dynamic shape operator", SIZED.format("aten._unique2.default"), "multiply by the mask"),
        ("Failed to trace builtin operator", OPERATOR.format("print"), "reorderable_logging_functions"),
        ("Failed to trace builtin operator", OPERATOR.format("open"), "files"),
        ("logging.Logger method not supported for non-export cases", None, "ignore_logging_functions"),
        (SKIPPED, "Dynamo does not know how to trace the Python builtin `_warnings.warn`.", "print outside"),
        (SKIPPED, BUILTIN.format("time.time"), "times"),
        (SKIPPED, BUILTIN.format("<unknown module>.Random.random"), "torch.rand"),
        (SKIPPED, BUILTIN.format("gc.collect"), "call it outside"),
        (SKIPPED, BUILTIN.format("PIL._imaging.fill"), "torch.library.custom_op"),
        (SKIPPED, BUILTIN.format("_thread.allocate_lock"), "locks"),
        (SKIPPED, "the function `Adam.step` in file `adam.py` should not be traced.", "optimizer.step()"),
        (SKIPPED, "the function `manual_seed` in file `random.py` should not be traced.", "seed"),
        (SKIPPED, "the function `tqdm.__new__` in file `std.py` should not be traced.", "tqdm"),
        ("attempted to trace numpy function unsupported by PyTorch", "Can't find <function partition>", "NumPy"),
        ("Skip calling `torch.compiler.disable()`d function", "Skip calling `<function f>`", "remove the disable"),
        ("Unsupported Tensor.backward() call", None, "forward pass alone"),
        ("Attempted to use `torch.nn.Parameter()` constructor with Dynamo", None, "in __init__"),
        ("Attempted to wrap RNN, GRU, or LSTM", "Dynamo does not support RNN, GRU, or LSTM.", "allow_rnn"),
        ("Unsupported context manager", None, "context manager"),
        ("Observed exception", "raised exception TypeError(\"object of type 'str' has no len()\")", "without values"),
        ("Unsupported method call", "Dynamo does not know how to trace method `now` of class `type`", "times"),
        (SKIPPED, BUILTIN.format("posix.stat"), "files"),
        (SKIPPED, "the function `torch.set_num_threads` should not be traced.", "before the first call"),
        ("Module-level backwards hooks require compiled autograd.", None, "compiled_autograd = True"),
        ("Unsupported autograd.Function context `mark_dirty`", None, "custom operator"),
        ("Something new", None, "move what breaks the graph"),
    ],
)  # fmt: skip
def test_each_reason_has_a_way_out(reason: str, detail: str | None, way: str):
    assert way in way_out(GraphBreak(reason, detail)).replace("\n", " ")


def test_the_way_out_of_a_new_reason_is_what_dynamo_advises():
    assert way_out(GraphBreak("Something new", None, hint="Set x = True")) == "Set x = True"
    in_optimizer = (Place("torch/optim/optimizer.py", 90, "step"),)
    assert "optimizer.step()" in way_out(GraphBreak("setattr() on unsupported type", None, in_optimizer))


def test_a_reason_says_what_it_is_about():
    assert in_words(SKIPPED, BUILTIN.format("<unknown module>.Random.random")) == f"{SKIPPED} (Random.random)"
    assert in_words(SCALAR, "Dynamo does not support tracing `Tensor.item()` with config.") == SCALAR
    assert subject_of("(e.g. `if my_tensor.sum() > 0:`)") == subject_of(None) == ""


@pytest.mark.parametrize(
    ("guard", "what", "way"),
    [
        ("tensor 'x' size mismatch at index 0. expected 2, actual 3", "shape", "dynamic=True"),
        ("2 <= x.size()[0]", "shape", "mark_dynamic"),
        ("tensor 'x' rank mismatch. expected 2, actual 3", "shape", "pad"),
        ("tensor 'x' stride mismatch at index 0. expected 8, actual 1", "layout", "contiguous"),
        ("tensor 'x' dtype mismatch. expected Float, actual Half", "type", "one type"),
        ("tensor 'x' requires_grad mismatch. expected requires_grad=0", "gradient", "freeze"),
        ("GLOBAL_STATE changed: grad_mode", "evaluation", "two versions"),
        ("m._modules['drop'].training == True", "evaluation", "two versions"),
        ("GLOBAL_STATE changed: autocast(cpu)_enabled", "setting", "before the first call"),
        ("self.param_groups[0]['lr'] == 0.1", "learning rate", "lr=torch.tensor"),
        ("s.k == 0", "attribute", "register_buffer"),
        ("self.strength == 0", "attribute", "register_buffer"),
        ("s.cfg['a'] == 0", "attribute", "register_buffer"),
        ("G['COUNT'] == 0", "global", "register_buffer"),
        ("not ___dict_contains('n', G['CFG'])", "keys", "size"),
        ("len(s.hist) == 1", "list", "grows"),
        ("___stack1 == 0.3653437923759497", "before a graph break", "remove the break"),
        ("t == 1795710970.6568234", "argument", "tensor"),
        ("n == 2", "argument", "tensor"),
        ("n == 'a'", "option", "versions"),
        ("p.grad is None", "gradients", "set_to_none=False"),
        ("___check_obj_id(f.__code__, 140359511551200), type=<class 'code'>", "made again", "once"),
        ("Cache line invalidated because L['x'] got deallocated", "made again", "once"),
        ("self.number == 0", "number of a layer", "out of forward"),
    ],
)  # fmt: skip
def test_each_failed_guard_has_a_cause_and_a_way_out(guard: str, what: str, way: str):
    kind = guard_kind(FailedGuard(guard, Place(None, None, None)))
    assert kind is not None and what in kind.what and way in kind.way.replace("\n", " ")


TEXT = """{reason}
  Explanation: the function `save` in file `/home/me/lib/site-packages/a/b.py` should not be traced
  Hint: It may be possible to write Dynamo tracing rules for this code. Please report an issue to PyTorch.
  Hint: Avoid calling the function `save`.

  Developer debug context: {context}
"""


def test_of_what_dynamo_says_the_explanation_and_a_hint_are_kept_without_folders():
    said = TEXT.format(reason=SKIPPED, context="module: torch")
    (row,) = _breaks([SimpleNamespace(reason=said, user_stack=[])], str)
    assert row["reason"] == SKIPPED and row["hint"] == "Avoid calling the function `save`."
    assert "in file `b.py`" in row["detail"] and "home" not in row["detail"]
    raised = _explained(TEXT.format(reason="Observed exception", context="raised exception KeyError('a')"))
    assert raised["detail"] == "raised exception KeyError('a')"
    assert _explained("generic_jump TensorVariable()") == {"detail": None, "hint": None}


@pytest.mark.parametrize(
    ("text", "reason", "way"),
    [
        ("skipping cudagraphs due to mutated inputs (1 instances)", "mutated inputs (1 instances)", "buffer"),
        ("skipping cudagraphs due to cpu device (arg0_1)", "cpu device (arg0_1)", "to the GPU"),
        ("skipping cudagraphs due to graph with symbolic shapes inputs and config", None, "shapes of batches"),
        ("disabling cudagraphs due to incompatible op aten._local_scalar_dense.default", None, "graph_partition"),
        ("skipping cudagraphs due to control flow operator: torch.cond.", None, "torch.where"),
        (
            'skipping cudagraphs due to mutated inputs (2 instances). Found from : \n   File "/a/train.py", line 7, in '
            'forward\n    self.inner(x)\n  File "/a/train.py", line 25, in g\n    mean.lerp_(x, SECRET)',
            "mutated inputs (2 instances) (train.py:25)",
            "buffer",
        ),
    ],
)
def test_skipped_graphs_have_their_line_and_a_way_out(text: str, reason: str | None, way: str):
    said = _skip(text, lambda file: file.rpartition("/")[2])
    assert said == (reason or said) and "cudagraphs" not in said and "SECRET" not in said
    assert way in way_into_graphs(said)
