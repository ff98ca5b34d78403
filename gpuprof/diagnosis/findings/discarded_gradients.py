"""A backward pass continues into a part whose gradients are discarded."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from gpuprof.calibration import recompute as calibrated
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.repeated.discarded_gradients import find_discarded
from gpuprof.diagnosis.detect.repeated.idle_weights import IdleWeights, idle_weights
from gpuprof.diagnosis.detect.repeated.passed_weights import passed_weights
from gpuprof.diagnosis.result.fix import Code, Fix, call, code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.stretches import nodes_in
from gpuprof.replay.transform import removed, scaled

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

_TITLE = "no backward pass into a part whose gradients are not used"
_BACKWARD = "a backward pass whose gradients are not used"
_PASSED_TITLE = "no gradients for weights that a loss does not train"
_PASSED = "gradients of weights that another loss trains"
PASSED = "passed"
"""Key of the proposal for gradients on the way of a backward pass."""

PAGE = Page(
    id="discarded_gradients",
    applies=("training",),
    title="A backward pass continues into a part whose gradients are discarded",
    means="""
A discriminator's loss on generated pictures goes back through the generator, whose gradients are cleared before its own
step. A frozen part below the first trained layer has inputs with `requires_grad` (as `enable_input_require_grads()`
does), and gradients go through it to an input that is not updated. The training needs none of these gradients:
`detach()` ends the backward pass where the trained part begins, and what comes before it need not keep its activations.
A second encoder that is in `eval()` and in no optimizer, but still has `requires_grad`, gets a whole backward pass of
its own: `requires_grad_(False)` removes it.

A generator's loss goes back through the discriminator, an actor's through its critics: gradients have to pass, but
those of the weights on the way are cleared before their own optimizer's step. `loss.backward(inputs=...)` computes only
those of the weights that the loss trains.
""",
    detected="""
The profiler records the shape of each gradient that a backward pass makes, whether it is added to an existing one, and
the shapes of the tensors in each optimizer's step. After the last gradient of a pass that an optimizer may use, at
least 10 more nodes of autograd run, and the gradients made there are new again in the next pass, with no optimizer's
step on tensors of their shapes in between. A gradient with the shape of looked-up embeddings counts as a gradient of an
input. Gradients of weights are not reported if shapes do not decide (half of the discarded gradients have a shape that
is updated), or if the tensors of an optimizer's step are not visible (flattened, compiled, in kernels of its own, or a
list of more than 30, whose shapes torch does not record). Then numbers decide: where the only optimizer has all weights
that get gradients, and a pass makes more gradients than there are such weights, those after a longer way than between
any two weights are of inputs.

A part of weights that no optimizer has is found as in `idle_gradients`: this finding has those through which no
gradient goes on to a trained layer.

Weights on the way: gradients that a pass adds to those of an earlier pass, with which an optimizer has made its step in
between; or new ones at the beginning of a pass that the next optimizer's step does not have, and another one's has. In
both cases they are new again in the next pass that makes them. Where the tensors of an optimizer do not show, a pass
must add to just those gradients that the pass before has made, make others, and steps of optimizers must come after
both; the end of a pass is found in this way, too.
""",
    gain="""
The end of the backward pass is removed; at worst 40 % of it stays (assumed, as in `idle_gradients`). Activations that
need not be kept are not counted. Of weights on the way, the sums into their gradients, the matrix multiplications that
compute these and the kernels of convolutions for them are removed, as in `idle_gradients`.
""",
    wrong=f"""
Gradients of inputs that the program reads itself (adversarial samples, saliency) look the same as unread ones: the
probability is {calibrated.UNUSED_ODDS.value:g} (assumed), and {calibrated.UNCLEARED_ODDS.value:g} for weights on the
way. Gradient checkpointing with `use_reentrant=True` needs inputs
with `requires_grad`: without them, checkpointed layers get no gradients. Set `use_reentrant=False` first.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to end the backward pass after the last gradient that is used, and not to compute gradients that it
    passes on its way and that are cleared."""
    yield from _passed(case)
    yield from _end(case)


def _passed(case: Analysis) -> Iterator[Proposal]:
    found = passed_weights(case)
    if found is None:
        return
    graph, ns = case.graph, found.gpu_ns(case)
    text = (
        f"on its way to the weights that it trains, a backward pass computes gradients of {found.tensors:,} others"
        f" ({found.elements / 1e6:,.1f} M parameters), which are cleared before their own optimizer's step:"
        f" {duration(ns)} of GPU time {case.unit.a}"
    )
    yield Proposal(
        title=_PASSED_TITLE,
        evidence=spans(case, text, (found.gone | found.halved) & graph.on_gpu),
        fix=code("generator_loss.backward(inputs=list(generator.parameters()))")
        + "  # the weights that this loss trains; or\n"
        + call("discriminator.requires_grad_", False)
        + "  # before its call in this loss, and "
        + call("requires_grad_", True)
        + " before its own",
        change=found.without,
        worst=found.without_the_least,
        odds=calibrated.UNCLEARED_ODDS.value,
        item=(_PASSED, "they are cleared before an optimizer uses them"),
        needs="nothing else in the program reads these gradients",
        key=PASSED,
    )


def _end(case: Analysis) -> Iterator[Proposal]:
    idle = idle_weights(case)
    if idle is not None:
        if idle.below_nothing:
            yield _of_part(case, idle)
        return
    found = find_discarded(case)
    if found is None:
        return
    graph = case.graph
    nodes = (nodes_in(graph, found.stretches) >= 0) & ~graph.waits
    if not nodes.any():
        return
    ns = case.per_step(float(graph.duration_ns[nodes & graph.on_gpu].sum()))
    what = "that are cleared before an optimizer uses them" if found.weights else "that no optimizer uses"
    why = "they are cleared before an optimizer uses them" if found.weights else "no optimizer uses them"
    text = (
        f"after the last gradient that an optimizer uses, backward passes continue to {found.gradients:,.0f} gradients"
        f" {case.unit.a} {what}: {duration(ns)} of GPU time"
    )
    worst = 1.0 - calibrated.IDLE_PART.rising[0]
    yield Proposal(
        title=_TITLE,
        evidence=spans(case, text, nodes),
        fix=_transformers() if case.stack.package == "transformers" and not found.weights else _detached(),
        change=partial(removed, nodes=nodes),
        worst=partial(scaled, nodes=nodes, factor=worst),
        odds=calibrated.UNUSED_ODDS.value,
        item=(_BACKWARD, why),
        needs="nothing else in the program reads these gradients",
    )


def _of_part(case: Analysis, found: IdleWeights) -> Proposal:
    """The proposal for a part of weights that no optimizer has, and whose inputs need no gradients."""
    graph, names = case.graph, found.names
    gpu = found.gone & graph.on_gpu
    ns = case.per_step(float(graph.duration_ns[gpu].sum()))
    text = (
        f"backward passes go through {f'{names}, ' if names else ''}a part of {found.tensors:,} weights"
        f" ({found.elements / 1e6:,.1f} M parameters) that the optimizer does not have: {duration(ns)} of GPU time"
        f" {case.unit.a}"
    )
    return Proposal(
        title=_TITLE,
        evidence=spans(case, text, gpu),
        fix=call("encoder.requires_grad_", False)
        + f"  # {names or 'the part'} that is not trained: eval() does not freeze it",
        change=found.without,
        worst=found.without_the_least,
        odds=found.odds,
        item=(_BACKWARD, f"no optimizer has the weights{f' of {names}' if names else ''}, but they have requires_grad"),
        needs=found.needs,
    )


def _detached() -> Fix:
    """For a loss that trains only what comes after, and for frozen layers."""
    return (
        code("loss = discriminator(fake.detach())")
        + "  # where a loss trains only what comes after; for frozen layers:\n# no requires_grad_() on their inputs"
        + " (enable_input_require_grads), or their call under torch.no_grad();\n"
        + "# with gradient checkpointing set use_reentrant=False first"
    )


def _transformers() -> Fix:
    """For inputs of a transformers model, whose gradient checkpointing asks for these gradients by itself."""
    return (
        call("model.gradient_checkpointing_enable", gradient_checkpointing_kwargs=Code('{"use_reentrant": False}'))
        + "  # if at all; it also switches these gradients on, so after it:\n"
        + call("model.disable_input_require_grads")
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(_BACKWARD, stage="discarded"),
    synonyms=("detach", "enable_input_require_grads", "discriminator", "gan", "critic", "actor_critic"),
    titles=(
        "no_backward_pass_into_a_part_whose_gradients_are_not_used",
        "no_gradients_for_weights_that_a_loss_does_not_train",
    ),
)
