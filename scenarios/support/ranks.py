"""Several ranks, one per GPU, as torchrun starts them; gloo replaces NCCL where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from scenarios.support.run import Run


@contextmanager
def ranks(run: Run) -> Iterator[tuple[int, int]]:
    """This process's rank and the number of ranks; within the block they form a process group."""
    if not run.tiny:
        torch.cuda.set_device(run.device)
    dist.init_process_group("gloo" if run.tiny else "nccl")
    yield dist.get_rank(), dist.get_world_size()
    dist.barrier()  # a rank that leaves while another still works may make it fail
    dist.destroy_process_group()
