"""Deep Q-learning from pictures: a residual network (15 convolutions) learns from 512 transitions a step, drawn from a
replay buffer of 4 frames of 84 × 84 each, bf16 autocast; the target network is copied every 500 steps.

The buffer is a list of transitions, as in most tutorials.
"""

from __future__ import annotations

import random

import numpy
import torch
from torch import nn
from torch.nn import functional

from scenarios.support.run import Run, main

ACTIONS, FRAMES, GAMMA, COPIED_EVERY = 18, 4, 0.99, 500
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class Replay:
    """Transitions as (state, action, reward, next state, whether it ended)."""

    def __init__(self, count: int, size: int) -> None:
        rng = numpy.random.default_rng(0)
        frames = rng.integers(0, 256, (count + 1, FRAMES, size, size), dtype=numpy.uint8)
        self.transitions = [
            (frames[i], int(rng.integers(ACTIONS)), float(rng.normal()), frames[i + 1], float(i % 200 == 199))
            for i in range(count)
        ]

    def sampled(self, batch: int, device: str, as_bytes: bool) -> Batch:
        """A random batch on the device, states as float32 from 0 to 1."""
        states, actions, rewards, following, ends = zip(*random.sample(self.transitions, batch), strict=True)
        before, after = torch.from_numpy(numpy.stack(states)), torch.from_numpy(numpy.stack(following))
        if as_bytes:
            before, after = before.to(device).float() / 255, after.to(device).float() / 255
        else:
            before, after = (before.float() / 255).to(device), (after.float() / 255).to(device)
        chosen = torch.tensor(actions).to(device)
        return before, chosen, torch.tensor(rewards).to(device), after, torch.tensor(ends).to(device)


class ReplayOnGpu:
    """The same in tensors on the device."""

    def __init__(self, replay: Replay, device: str) -> None:
        states, actions, rewards, following, ends = zip(*replay.transitions, strict=True)
        self.states = torch.from_numpy(numpy.stack(states)).to(device)
        self.following = torch.from_numpy(numpy.stack(following)).to(device)
        self.actions = torch.tensor(actions, device=device)
        self.rewards, self.ends = torch.tensor(rewards, device=device), torch.tensor(ends, device=device)

    def sampled(self, batch: int, device: str, as_bytes: bool) -> Batch:
        at = torch.randint(len(self.states), (batch,), device=device)
        before, after = self.states[at].float() / 255, self.following[at].float() / 255
        return before, self.actions[at], self.rewards[at], after, self.ends[at]


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(functional.relu(self.first(functional.relu(x))))


def network(widths: tuple[int, ...], size: int) -> nn.Sequential:
    """Three stages of a convolution, a pooling and two residual blocks, then the values of all actions."""
    layers: list[nn.Module] = []
    before = FRAMES
    for width in widths:
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.MaxPool2d(3, 2, 1), Residual(width), Residual(width)]
        before, size = width, (size + 1) // 2
    return nn.Sequential(
        *layers, nn.ReLU(), nn.Flatten(), nn.Linear(before * size * size, 256), nn.ReLU(), nn.Linear(256, ACTIONS)
    )


def train(run: Run) -> None:
    torch.manual_seed(0)
    random.seed(0)
    count, size, batch, widths = run.pick((20_000, 84, 512, (16, 32, 32)), (64, 12, 4, (4, 4, 4)))
    replay: Replay | ReplayOnGpu = Replay(count, size)
    if run.fix == "on_gpu":
        replay = ReplayOnGpu(replay, run.device)
    learner, target = network(widths, size).to(run.device), network(widths, size).to(run.device)
    optimizer = torch.optim.Adam(learner.parameters(), lr=1e-4)
    for step in run.steps():
        states, actions, rewards, following, ends = replay.sampled(batch, run.device, run.fix == "bytes_copied")
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            with torch.no_grad():
                best = target(following).max(1).values.float()
            values = learner(states).float().gather(1, actions[:, None]).squeeze(1)
        loss = functional.smooth_l1_loss(values, rewards + GAMMA * best * (1 - ends))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % COPIED_EVERY == 0:
            target.load_state_dict(learner.state_dict())


if __name__ == "__main__":
    main(train)
