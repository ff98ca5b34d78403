"""What ranks and groups are for: pipeline stages, hosts, and tensor, data and world groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.ranks.digest_data import Ints
from gpuprof.ranks.job import Job
from gpuprof.timeline.collectives import p2p_pair
from gpuprof.tracefile.trace import ABSENT

ROLES = ("world", "pipeline", "tensor", "data")
WORLD, PIPELINE, TENSOR, DATA = range(len(ROLES))
OFTEN = 4
"""Collectives of tensor groups per collective of data groups, at least: a layer has two in each direction."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Per group its role, per rank its place."""

    of_group: Ints
    """Index into ROLES."""
    stage: Ints
    """[ranks] Pipeline stage, from 0; all 0 without a pipeline."""
    host: tuple[str, ...]
    """[ranks] The machine: its name, or `host N` by counting GPUs; all equal where unknown or one."""
    members: tuple[Ints, ...]
    """Per group the ranks (by index) that are here."""


def roles_of(job: Job) -> Roles:
    """Read from who exchanges what with whom; names of groups only help people."""
    shared = np.flatnonzero(job.group >= 0)
    pairs = np.unique(job.group[shared].astype(np.int64) * job.ranks + job.rank[shared])
    bounds = np.searchsorted(pairs, np.arange(len(job.groups) + 1) * job.ranks)
    members = tuple(pairs[bounds[g] : bounds[g + 1]] % job.ranks for g in range(len(job.groups)))
    return Roles(_roles(job, members), _stages(job), _hosts(job), members)


def _roles(job: Job, members: tuple[Ints, ...]) -> Ints:
    """All ranks are the world, sends and receives the pipeline. Of the others, those with the most collectives a rank
    are tensor groups if others have OFTEN times fewer: every layer exchanges activations, a step its gradients.
    """
    found = np.full(len(job.groups), DATA)
    shared = job.group >= 0
    rows = np.bincount(job.group[shared], minlength=len(job.groups))
    size = np.zeros(len(job.groups), np.int64)
    np.maximum.at(size, job.group[shared], np.where(job.size[shared] == ABSENT, 0, job.size[shared]))
    world = max(max((one.world_size or 0 for one in job.digests), default=0), job.ranks)
    each = {}
    for g, text in enumerate(job.groups):
        size[g] = max(size[g], len(members[g]))
        if p2p_pair(text) is not None:
            found[g] = PIPELINE
        elif size[g] >= world:
            found[g] = WORLD
        else:
            each[g] = rows[g] / max(len(members[g]), 1)
    if each:
        most = max(each.values())
        frequent = [g for g, count in each.items() if count * OFTEN > most]
        if len(frequent) < len(each):
            found[frequent] = TENSOR
    return found


def _stages(job: Job) -> Ints:
    """The first transfer of a step comes from the stage before; who sends first is the first stage."""
    before = np.full(job.ranks, -1, np.int64)
    number = {one.rank: r for r, one in enumerate(job.digests)}
    pairs = [p2p_pair(text) for text in job.groups]
    in_pair = np.array([pair is not None for pair in pairs] + [False])  # the last for marks, whose group is -1
    rows = np.flatnonzero(in_pair[job.group])
    rows = rows[np.lexsort((job.source_row[rows], job.rank[rows]))]
    ranks, first = np.unique(job.rank[rows], return_index=True)
    for r, row in zip(ranks.tolist(), rows[first].tolist(), strict=True):
        sender, receiver = pairs[job.group[row]] or (-1, -1)
        if receiver == job.digests[r].rank:
            before[r] = number.get(sender, -1)
    stage = np.zeros(job.ranks, np.int64)
    for _ in range(job.ranks):
        nearer = np.where(before >= 0, stage[np.maximum(before, 0)] + 1, 0)
        if np.array_equal(nearer, stage) or nearer.max(initial=0) >= job.ranks:
            break
        stage = nearer
    return stage


def _hosts(job: Job) -> tuple[str, ...]:
    """By name; else launchers give each machine ranks in a row, one for each GPU that the recordings list."""
    names = []
    for one in job.digests:
        counted = one.gpus > 1 and one.rank is not None and (one.world_size or 0) > one.gpus
        names.append(one.host or (f"host {(one.rank or 0) // one.gpus}" if counted else ""))
    return tuple(names)
