"""The roles of ranks and groups: pipeline stages, hosts, and tensor, data and world groups."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gpuprof.ranks.digest_data import Ints
from gpuprof.ranks.job import JobRows
from gpuprof.timeline.collectives.collectives import described_as
from gpuprof.timeline.collectives.point_to_point import is_exchange, p2p_pair
from gpuprof.tracefile.trace import ABSENT
from gpuprof.units import Assumed, Times

ROLES = ("world", "pipeline", "tensor", "data", "expert", "context")
WORLD, PIPELINE, TENSOR, DATA, EXPERT, CONTEXT = range(len(ROLES))
_WORDS = {
    PIPELINE: {"pp", "pipe", "pipeline"},
    TENSOR: {"tp", "tensor"},
    DATA: {"dp", "ddp", "fsdp", "hsdp", "data", "replicate", "shard"},
    EXPERT: {"ep", "expert"},
    CONTEXT: {"cp", "context"},
}
"""Words of the descriptions that DeviceMesh (`mesh_tp`, `mesh_dp_shard`), torchtitan and Megatron-LM
(`TENSOR_MODEL_PARALLEL_GROUP`) give their process groups."""
TENSOR_COLLECTIVES: Assumed[Times] = 4
"""Tensor groups have at least this many times as many collectives as data groups: a layer has two in each direction."""


@dataclass(frozen=True, slots=True)
class GroupRoles:
    """The role of each group, and the place of each rank."""

    of_group: Ints
    """Index into ROLES."""
    stage: Ints
    """[ranks] Pipeline stage, from 0; all 0 without a pipeline."""
    host: tuple[str, ...]
    """[ranks] The machine: its name, or `host N` by counting GPUs; all equal where unknown or one."""
    members: tuple[Ints, ...]
    """For each group the indices of its present ranks."""


def roles_of(job: JobRows) -> GroupRoles:
    """From the descriptions of groups; without one, from the pattern of exchanges."""
    shared = np.flatnonzero(job.group >= 0)
    pairs = np.unique(job.group[shared].astype(np.int64) * job.ranks + job.rank[shared])
    bounds = np.searchsorted(pairs, np.arange(len(job.groups) + 1) * job.ranks)
    members = tuple(pairs[bounds[g] : bounds[g + 1]] % job.ranks for g in range(len(job.groups)))
    return GroupRoles(_roles(job, members), _stages(job), _hosts(job), members)


def _roles(job: JobRows, members: tuple[Ints, ...]) -> Ints:
    """Groups with sends and receives are the pipeline; others follow their description. Without one, a group of all
    ranks is the world; of the rest, those with the most collectives per rank are tensor groups if others have
    TENSOR_COLLECTIVES times fewer: activations are exchanged in every layer, gradients once a step.
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
        elif (described := described_role(described_as(text))) is not None:
            found[g] = described
        elif size[g] >= world:
            found[g] = WORLD
        else:
            each[g] = rows[g] / max(len(members[g]), 1)
    if each:
        most = max(each.values())
        frequent = [g for g, count in each.items() if count * TENSOR_COLLECTIVES > most]
        if len(frequent) < len(each):
            found[frequent] = TENSOR
    return found


def described_role(described: str) -> int | None:
    """The role named by a description such as `mesh_dp_shard`, as index into ROLES; None for none or several.
    Groups that reduce the gradients of experts or of parts of a sequence count as data parallel."""
    words = set(re.split(r"[^a-z]+", described.lower()))
    roles = {role for role, known in _WORDS.items() if words & known}
    if DATA in roles:
        roles -= {EXPERT, CONTEXT}
    return roles.pop() if len(roles) == 1 else None


def _stages(job: JobRows) -> Ints:
    """Stages from the first transfer of a step: it comes from the previous stage; the first sender is the first
    stage."""
    before = np.full(job.ranks, -1, np.int64)
    number = {one.rank: r for r, one in enumerate(job.digests)}
    pairs = [p2p_pair(text) for text in job.groups]
    one_way = [pair is not None and not is_exchange(text) for pair, text in zip(pairs, job.groups, strict=True)]
    in_pair = np.array([*one_way, False])  # the last entry is for marks, whose group is -1
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


def _hosts(job: JobRows) -> tuple[str, ...]:
    """By name; else by consecutive ranks, as launchers give each machine one rank per GPU."""
    names = []
    for one in job.digests:
        counted = one.gpus > 1 and one.rank is not None and (one.world_size or 0) > one.gpus
        names.append(one.host or (f"host {(one.rank or 0) // one.gpus}" if counted else ""))
    return tuple(names)
