"""Several ranks, one a GPU, as torchrun starts them; gloo stands in for NCCL where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from scenarios.support.run import Run


@contextmanager
def ranks(run: Run) -> Iterator[tuple[int, int]]:
    """This process's rank and how many there are, for as long as they belong together."""
    if not run.tiny:
        torch.cuda.set_device(run.device)
    dist.init_process_group("gloo" if run.tiny else "nccl")
    yield dist.get_rank(), dist.get_world_size()
    dist.barrier()  # who leaves while another is still at work may take it down
    dist.destroy_process_group()
