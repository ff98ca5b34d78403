"""Several backward passes go through the same part of the graph."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from gpuprof.calibration import loops as loops_calibrated
from gpuprof.calibration import recompute as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.repeated.derivative_loops import FEWEST_PASSES, find_derivative_loops
from gpuprof.diagnosis.detect.repeated.gradient_penalties import MOST_CHANNELS, SMALLEST_SIDE, find_penalties
from gpuprof.diagnosis.detect.repeated.repeated_backward import find_repeated_backward
from gpuprof.diagnosis.detect.repeated.repeated_derivatives import find_repeated_derivatives
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.replay.transform import removed, scaled
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

STAYING_SHARE: Assumed[Share] = 0.15
"""Share of the repeated work's time that stays at worst: sums of gradients where the passes meet."""

PAGE = Page(
    id="repeated_backward",
    applies=("training",),
    title="Several backward passes go through the same part of the graph",
    means="""
A model has several losses (tasks, heads, auxiliary losses), and each has a backward pass of its own, with
`retain_graph=True`. Each of these passes goes through everything that the losses share, the whole encoder for example,
and adds to the same gradients. The gradient of a sum is the sum of the gradients: one backward pass of the summed
losses gives the same gradients, and goes through the shared part once. It also frees the graph as it goes, which saves
memory.

The residual of a differential equation needs derivatives of a network's output by several inputs. Each call of
`torch.autograd.grad(u, x, create_graph=True)` goes through the whole network, and makes a graph that the backward pass
of the loss goes through as well. One call with all inputs computes their derivatives in one pass.

Rows of a Jacobian, second derivatives by each coordinate (a Laplacian) and gradients of each sample are often computed
in a loop, one call of `torch.autograd.grad` for each. One batched call (`is_grads_batched=True`) launches each kernel
once for all of them.

A penalty on a discriminator's gradient (WGAN-GP, R1) costs a pass through the whole network and its second derivatives,
often more than the rest of its step. In every 16th step, with 16 times its weight, it does about the same.
""",
    detected=f"""
Autograd numbers the nodes of its graph, and the profiler records the number of each that runs. At least 20 nodes run
more than once in a step, and the later passes add to existing gradients. Nothing is reported where the optimizer steps
between two passes, where gradients are copied, zeroed or measured there (balancing or projecting the gradients of
tasks), or for passes whose gradients are differentiated again (forces, gradient penalties).

Derivatives: two or more passes of a step whose gradients are differentiated again begin at the same node, but for sums,
directly after a sum or a tensor of ones was made; derivatives along other directions, and of other outputs, are not the
same.

Loops: {FEWEST_PASSES} passes or more in a row that share most of their nodes, begin at different ones, and add to no
gradients.

A penalty: such a pass ends in the backward pass of a convolution of pictures (at most {MOST_CHANNELS} channels, sides
of at least {SMALLEST_SIDE}) that is called twice or more in a step.
""",
    gain=f"""
All runs of a node but the first of each step are removed, with what the engine does between them. At worst
{percent(STAYING_SHARE)} % of that stays (assumed). Gains in memory are not counted. Of derivatives, the same holds for
the nodes that an earlier pass has run for the same output, and, where later passes go through the graphs of both, for
the nodes of the repeated one's graph. Of a penalty's pass, and of later passes through what it made, a 16th is left (at
worst a quarter); the network's forward pass for it stays. A loop's passes, and later passes through what they made,
become one that costs the CPU {loops_calibrated.BATCHED_PASS.value:g} times as much as one of them
({loops_calibrated.BATCHED_PASS.low:g} to {loops_calibrated.BATCHED_PASS.high:g}, assumed); arithmetic stays as it is.
""",
    wrong=f"""
If the losses' weights depend on each loss's gradient, each loss needs a pass of its own. Most such programs copy or
measure gradients between the passes, so nothing is reported for them. Hooks on parameters see one gradient instead of
several. Gradients of 16-bit weights are summed in another order, so they are rounded differently. Calls for derivatives
along other directions that were made before look the same: the probability is {calibrated.SAME_OUTPUT_ODDS.value:g}
(assumed). A penalty in fewer steps changes the training: the probability is {calibrated.RARE_PENALTY_ODDS.value:g}
(assumed).
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes one backward pass of the sum of the losses, one call for all derivatives of an output or of
    several ones, and a penalty on a gradient in fewer steps."""
    yield from _losses(case)
    yield from _derivatives(case)
    yield from _penalties(case)
    yield from _outputs(case)


def _outputs(case: Analysis) -> Iterator[Proposal]:
    found = find_derivative_loops(case)
    if found is None:
        return
    graph, inside = case.graph, found.group >= 0
    took = case.per_step(float(graph.duration_ns[inside & ~graph.on_gpu & ~graph.waits].sum()))
    text = (
        f"{found.per_step:,.0f} calls of torch.autograd.grad {case.unit.a} go through the same graph, at least"
        f" {int(found.passes.min())} in a row, each for another output: {duration(took)} of CPU time, later passes"
        " through what they made included"
    )
    best, usual, worst = found.changes(case)
    yield Proposal(
        title="one batched torch.autograd.grad for all outputs",
        evidence=spans(case, text, inside),
        fix=code("torch.autograd.grad(y, x, torch.eye(n).unsqueeze(1).expand(n, *y.shape), is_grads_batched=True)")
        + "  # y of n columns, with\n# create_graph as before; or torch.func.vmap(torch.func.jacrev(f))(x)",
        change=usual,
        best=best,
        worst=worst,
        odds=loops_calibrated.BATCHED_PASS_ODDS.value,
        item=("derivatives of one output after another", "one batched pass computes those of all outputs"),
        needs="torch can batch every op of the network, and memory suffices for all outputs at once",
        key="outputs",
    )


def _penalties(case: Analysis) -> Iterator[Proposal]:
    found = find_penalties(case)
    if found is None:
        return
    nodes, ns = _work(case, found.work)
    text = (
        f"{found.times:,.0f} × {case.unit.a} a network is differentiated by pictures of"
        f" {' × '.join(f'{side:,}' for side in found.shape)}, and the result again: {duration(ns)} of GPU time for a"
        " penalty on its gradient"
    )
    best, usual, worst = (partial(scaled, nodes=nodes, factor=left) for left in calibrated.RARE_PENALTY_LEFT.rising)
    yield Proposal(
        title="the gradient penalty in every 16th step",
        evidence=spans(case, text, nodes),
        fix=code("if step % 16 == 0: loss = loss + 16 * weight * gradient_penalty(discriminator, pictures)"),
        change=usual,
        best=best,
        worst=worst,
        changes="the penalty acts in one step of 16, 16 times as strong",
        odds=calibrated.RARE_PENALTY_ODDS.value,
        item=("a penalty on a network's gradient", "it is computed in each step"),
        needs="what is differentiated is a penalty, not what the network learns",
        key="penalty",
    )


def _derivatives(case: Analysis) -> Iterator[Proposal]:
    found = find_repeated_derivatives(case)
    if found is None:
        return
    nodes, ns = _work(case, found.again)
    if not nodes.any():
        return
    text = (
        f"{found.calls:,.0f} calls of torch.autograd.grad {case.unit.a} differentiate an output that another call has"
        f" differentiated: {found.nodes:,.0f} nodes of autograd's graph run again, in these calls and in later passes"
        f" through what they made: {duration(ns)} of GPU time"
    )
    yield Proposal(
        title="one torch.autograd.grad for all inputs",
        evidence=spans(case, text, nodes),
        fix=code("u_x, u_t = torch.autograd.grad(u, (x, t), torch.ones_like(u), create_graph=True)")
        + "  # in place of one call for each input;\n# of one input (x and t are its columns) one call has both"
        + " derivatives",
        change=partial(removed, nodes=nodes),
        worst=partial(_less, nodes=nodes),
        odds=calibrated.SAME_OUTPUT_ODDS.value,
        item=("derivatives of one output in several passes", "one pass computes those by all inputs"),
        needs="the calls differ only in the input by which the output is differentiated",
        key="derivatives",
    )


def _losses(case: Analysis) -> Iterator[Proposal]:
    found = find_repeated_backward(case)
    if found is None:
        return
    nodes, ns = _work(case, found.again)
    if not nodes.any():
        return
    text = (
        f"{found.nodes:,.0f} nodes of autograd's graph run {found.times} times {case.unit.a}, in one backward pass"
        f" after the other, and add to the same gradients: {duration(ns)} of GPU time more than once"
    )
    yield Proposal(
        title="one backward pass of the sum of the losses",
        evidence=spans(case, text, nodes),
        fix=code("sum(losses).backward()")
        + "  # in place of loss.backward(retain_graph=True) for each; or\n"
        + code("used = features.detach().requires_grad_()  # each loss goes back to `used` alone, then\n")
        + code("features.backward(used.grad)"),
        change=partial(removed, nodes=nodes),
        worst=partial(_less, nodes=nodes),
    )


def _work(case: Analysis, work: Stretches) -> tuple[Mask, float]:
    """Nodes of the graph that work in some stretches, and their GPU time, ns a step."""
    graph = case.graph
    nodes = (nodes_in(graph, work) >= 0) & ~graph.waits
    return nodes, case.per_step(float(graph.duration_ns[nodes & graph.on_gpu].sum()))


def _less(graph: Graph, nodes: Mask) -> Graph:
    return scaled(graph, nodes, STAYING_SHARE)


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "the same part of the graph in several backward passes",
        "the gradient of the losses' sum needs one",
        stage="repeated",
    ),
    synonyms=(
        "retain_graph", "multi_task", "sum_of_losses", "several_losses", "autograd_grad", "create_graph", "pinn",
        "gradient_penalty", "wgan_gp", "r1", "jacobian", "laplacian",
    ),
    titles=(
        "one_backward_pass_of_the_sum_of_the_losses",
        "one_torch_autograd_grad_for_all_inputs",
        "the_gradient_penalty_in_every_16th_step",
        "one_batched_torch_autograd_grad_for_all_outputs",
    ),
)  # fmt: skip
