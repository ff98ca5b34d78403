"""A small Llama trained on all of torchrun's ranks: tensor, pipeline and sharded data parallel, with PyTorch's own
APIs.

`tensor_data`: tensor parallel in pairs, FSDP2 across the pairs. `tensor_pipeline`: two stages (1F1B), tensor parallel
within each. `fsdp`: FSDP2 over all ranks. `hsdp`: FSDP2 that shards within each half of the ranks and replicates
between the halves.

Three changes make a job slow, each in one known way: `slow_rank` lets Python sleep on one rank in every step;
`long_stage` gives the last pipeline stage a third more layers than the first, with the same total; `uneven` gives
batches different lengths with the same mean. Each step ends with the mean loss of all ranks, which all read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module
from torch.nn import functional

from scenarios.support.ranks import ranks
from scenarios.support.run import Run

PAIR = 2
"""Ranks of a tensor group, stages of a pipeline, and copies in HSDP."""
SLOW_RANK = 1
SLEEP_S = 0.06
LENGTHS = (1.4, 0.6, 1.2, 0.8)
"""Lengths of consecutive batches, over their mean. Each data rank, or micro-batch, starts at a different one."""
ROPE_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the model, and of one step of a data rank."""

    hidden: int
    inner: int
    heads: int
    layers: int
    long_layers: int
    """Layers of the last stage where it is the longer one; the first has the rest."""
    vocabulary: int
    """Small, so that embedding and head add little work to their stages."""
    batch: int
    """Rows of a data rank per step; the pipeline, which consists of all ranks, takes twice that."""
    length: int
    micro_batches: int


USUAL = Size(4096, 11_008, 32, 14, 8, 4096, 8, 2048, 4)
TINY = Size(64, 128, 4, 4, 3, 128, 4, 20, 4)


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.width = size.hidden // size.heads
        self.query, self.key, self.value, self.out = (nn.Linear(size.hidden, size.hidden, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        # A rank of a tensor group has only some of the heads, so their number comes from the shape.
        q, k, v = (
            linear(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(rotated(q, turn), rotated(k, turn), v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Inner(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(size.hidden, size.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(size.inner, size.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.before_attention, self.before_inner = (nn.RMSNorm(size.hidden) for _ in range(2))
        self.attention, self.inner = Attention(size), Inner(size)

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x), turn)
        return x + self.inner(self.before_inner(x))


class Model(nn.Module):
    """All layers, or those of one stage: the first embeds, the last has the head."""

    def __init__(self, size: Size, layers: int, first: bool = True, last: bool = True) -> None:
        super().__init__()
        self.width = size.hidden // size.heads
        self.embedding = nn.Embedding(size.vocabulary, size.hidden) if first else None
        self.layers = nn.ModuleList(Layer(size) for _ in range(layers))
        self.norm = nn.RMSNorm(size.hidden) if last else None
        self.head = nn.Linear(size.hidden, size.vocabulary, bias=False) if last else None

    def forward(self, x: torch.Tensor, length: torch.Tensor | None = None) -> torch.Tensor:
        """Logits, or the input of the next stage. `length`: [1], on the CPU: the positions of each row that are
        computed, since stages exchange rows of one length."""
        if self.embedding is not None:
            x = self.embedding(x)
        whole = x.shape[1]
        if length is not None:
            x = x[:, : int(length)]
        turn = turns(x, self.width)
        for layer in self.layers:
            x = layer(x, turn)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return functional.pad(x, (0, 0, 0, whole - x.shape[1])) if x.shape[1] < whole else x


def turns(x: torch.Tensor, width: int) -> torch.Tensor:
    """Cosine and sine of the rotary embedding for each position: [2, length, width / 2]."""
    rates = ROPE_BASE ** (-torch.arange(0, width, 2, device=x.device) / width)
    angle = torch.arange(x.shape[1], device=x.device)[:, None] * rates
    return torch.stack([angle.cos(), angle.sin()]).to(x.dtype)


def rotated(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * turn[0] - b * turn[1], a * turn[1] + b * turn[0]], dim=-1)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def split_by_tensor(model: Model, mesh: DeviceMesh) -> None:
    """Splits attention and MLPs over the ranks of the mesh; the rest is replicated."""
    for layer in model.layers:
        plan: dict[str, Any] = {
            "attention": PrepareModuleInput(
                input_layouts=(Replicate(), None), desired_input_layouts=(Replicate(), None)
            ),
            "inner": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)),
            "attention.out": RowwiseParallel(),
            "inner.down": RowwiseParallel(),
        }
        columns = ("attention.query", "attention.key", "attention.value", "inner.gate", "inner.up")
        plan.update({name: ColwiseParallel() for name in columns})
        parallelize_module(layer, mesh, plan)


def shard(model: Model, mesh: DeviceMesh) -> None:
    """FSDP2 with one unit per layer."""
    mixed = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=mixed)
    fully_shard(model, mesh=mesh, mp_policy=mixed)


class Batches:
    """The data of each data rank: random tokens, of equal or different lengths as the run says."""

    def __init__(self, run: Run, size: Size, place: int, rows: int) -> None:
        self.run, self.size, self.place = run, size, place
        rng = torch.Generator().manual_seed(place)
        longest = int(size.length * max(LENGTHS))
        self.tokens = torch.randint(size.vocabulary, (rows, longest + 1), generator=rng).to(run.device)

    def length(self, number: int) -> int:
        return int(self.size.length * (LENGTHS[number % len(LENGTHS)] if self.run.fix == "uneven" else 1))

    def of(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and targets of a step of this data rank."""
        length = self.length(step + self.place)
        return self.tokens[:, :length], self.tokens[:, 1 : length + 1]

    def whole(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the longest length, for stages."""
        longest = max(self.length(number) for number in range(len(LENGTHS)))
        return self.tokens[:, :longest], self.tokens[:, 1 : longest + 1]

    def lengths(self, step: int) -> torch.Tensor:
        """Lengths of the micro-batches of a step: [micro_batches], on the CPU."""
        return torch.tensor([self.length(step + m) for m in range(self.size.micro_batches)])


Step = Callable[[int], torch.Tensor]
"""Forward and backward pass of a step; returns its loss, 0 where the rank has none."""


def train(run: Run, layout: str) -> None:
    """Trains with a layout, one of LAYOUTS."""
    size = run.pick(USUAL, TINY)
    with ranks(run) as (rank, world):
        torch.manual_seed(0)
        model, step = LAYOUTS[layout](run, size, rank, world)
        optimizer = torch.optim.AdamW(groups(model), lr=1e-5, fused=not run.tiny)
        for number in run.steps():
            loss = step(number).detach().float()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            dist.all_reduce(loss)
            loss.item()
            if run.fix == "slow_rank" and rank == SLOW_RANK % world:
                time.sleep(SLEEP_S)


def groups(model: nn.Module) -> list[dict]:
    """Parameter groups: optimizers need tensors without a mesh, and those of each mesh, in separate groups."""
    found: dict[object, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        found.setdefault(mesh, []).append(parameter)
    return [{"params": parameters} for parameters in found.values()]


def _made(run: Run, model: Callable[[], Model]) -> Model:
    with torch.device(run.device):
        made = model().to(torch.float32 if run.tiny else torch.bfloat16)
    return made.train()


def _mesh(run: Run, *dimensions: tuple[str, int]) -> DeviceMesh:
    names, sizes = zip(*dimensions, strict=True)
    return init_device_mesh("cpu" if run.tiny else "cuda", sizes, mesh_dim_names=names)


def _plain(model: Model, batches: Batches) -> tuple[Model, Step]:
    def step(number: int) -> torch.Tensor:
        tokens, targets = batches.of(number)
        loss = loss_of(model(tokens), targets)
        loss.backward()
        return loss

    return model, step


def tensor_data(run: Run, size: Size, rank: int, world: int) -> tuple[Model, Step]:
    tensor = min(PAIR, world)
    mesh = _mesh(run, ("dp", world // tensor), ("tp", tensor))
    model = _made(run, lambda: Model(size, size.layers // 2))
    split_by_tensor(model, mesh["tp"])
    if world > tensor:
        shard(model, mesh["dp"])
    return _plain(model, Batches(run, size, rank // tensor, size.batch))


def tensor_pipeline(run: Run, size: Size, rank: int, world: int) -> tuple[Model, Step]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stages, tensor = min(PAIR, world), max(world // PAIR, 1)
    mesh = _mesh(run, ("pp", stages), ("tp", tensor))
    place = rank // tensor
    first, last = place == 0, place == stages - 1
    longer = size.long_layers if run.fix == "long_stage" else size.layers // stages
    layers = longer if last else (size.layers - longer) // max(stages - 1, 1)
    model = _made(run, lambda: Model(size, layers, first, last))
    if tensor > 1:
        split_by_tensor(model, mesh["tp"])
    stage = PipelineStage(model, place, stages, torch.device(run.device), group=mesh["pp"].get_group())
    batches = Batches(run, size, 0, 2 * size.batch)

    def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss_of(logits, targets)

    schedule = Schedule1F1B(stage, size.micro_batches, loss_fn)
    tokens, targets = batches.whole()

    def step(number: int) -> torch.Tensor:
        lengths: dict[str, Any] = {"length": batches.lengths(number)} if run.fix == "uneven" else {}
        losses: list[torch.Tensor] = []
        given = (tokens,) if first else ()
        schedule.step(*given, target=targets if last else None, losses=losses if last else None, **lengths)
        return torch.stack(losses).mean() if losses else torch.zeros((), device=run.device)

    return model, step


def fsdp(run: Run, size: Size, rank: int, world: int) -> tuple[Model, Step]:
    model = _made(run, lambda: Model(size, size.layers // 2))
    shard(model, _mesh(run, ("dp", world)))
    return _plain(model, Batches(run, size, rank, size.batch))


def hsdp(run: Run, size: Size, rank: int, world: int) -> tuple[Model, Step]:
    copies = min(PAIR, world)
    model = _made(run, lambda: Model(size, size.layers // 2))
    shard(model, _mesh(run, ("dp_replicate", copies), ("dp_shard", world // copies)))
    return _plain(model, Batches(run, size, rank, size.batch))


LAYOUTS = {"tensor_data": tensor_data, "tensor_pipeline": tensor_pipeline, "fsdp": fsdp, "hsdp": hsdp}
