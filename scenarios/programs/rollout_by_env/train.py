"""Advantage actor-critic: 16 environments of Python, 16 steps of each and then one update, a policy of three layers of
256, float32. The policy is asked for each environment by itself.
"""

from __future__ import annotations

import copy
import math
import random

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn.functional import mse_loss

from scenarios.support.run import Run, main

SEEN, ACTIONS, DISCOUNT = 24, 6, 0.99


class Walker:
    """An environment of a few numbers that a push moves; the further from the origin, the less the reward."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.reset()

    def reset(self) -> list[float]:
        self.place = [self.rng.uniform(-1, 1) for _ in range(SEEN // 3)]
        self.speed = [0.0] * (SEEN // 3)
        self.age = 0
        return self.seen()

    def seen(self) -> list[float]:
        return [*self.place, *self.speed, *(math.sin(3 * place) for place in self.place)]

    def step(self, action: int) -> tuple[list[float], float, bool]:
        pushed, force = action // 2, 0.1 if action % 2 else -0.1
        self.speed[pushed] += force
        self.speed = [
            0.95 * speed - 0.05 * math.sin(place) for place, speed in zip(self.place, self.speed, strict=True)
        ]
        self.place = [place + 0.1 * speed for place, speed in zip(self.place, self.speed, strict=True)]
        self.age += 1
        return self.seen(), 1.0 - sum(place * place for place in self.place), self.age >= 200


class Policy(nn.Module):
    """What is seen → logits of actions, and a value."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(SEEN, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.actor, self.critic = nn.Linear(width, ACTIONS), nn.Linear(width, 1)

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inner = self.body(seen)
        return self.actor(inner), self.critic(inner).squeeze(-1)


@torch.no_grad()
def act(policy: Policy, seen: list[list[float]], device: str, fix: str) -> tuple[list[int], list[float]]:
    """Actions and values of environments."""
    if fix == "batched":
        logits, values = policy(torch.tensor(seen).to(device))
        actions = Categorical(logits=logits).sample()
        return actions.tolist(), values.tolist()
    actions, values = [], []
    for of_one in seen:
        logits, value = policy(torch.tensor(of_one).to(device))
        action = Categorical(logits=logits, validate_args=False if fix == "one_read" else None).sample()
        if fix == "one_read":
            chosen, worth = torch.stack((action.float(), value)).tolist()
            actions.append(int(chosen))
            values.append(worth)
        else:
            actions.append(action.item())
            values.append(value.item())
    return actions, values


def returns_of(rewards: list[list[float]], ended: list[list[bool]], last: list[float]) -> list[list[float]]:
    """Discounted sums of rewards, steps × environments; `last`: values of where the environments are now."""
    found, after = [], last
    for of_step, over in zip(reversed(rewards), reversed(ended), strict=True):
        after = [reward + DISCOUNT * rest * (not end) for reward, rest, end in zip(of_step, after, over, strict=True)]
        found.append(after)
    return found[::-1]


def train(run: Run) -> None:
    torch.manual_seed(0)
    many, length, width = run.pick((16, 16, 256), (2, 3, 16))
    walkers = [Walker(i) for i in range(many)]
    policy = Policy(width).to(run.device).train()
    # A small policy answers for one environment sooner on the CPU; its weights are copied after each update.
    actor = copy.deepcopy(policy).cpu() if run.fix == "policy_on_cpu" else policy
    where = "cpu" if run.fix == "policy_on_cpu" else run.device
    optimizer = torch.optim.Adam(policy.parameters(), lr=7e-4, fused=True if run.fix == "fused" else None)
    seen = [walker.reset() for walker in walkers]
    for _ in run.steps():
        states, taken, rewards, ended = [], [], [], []
        for _ in range(length):
            actions, _ = act(actor, seen, where, run.fix)
            outcomes = [walker.step(action) for walker, action in zip(walkers, actions, strict=True)]
            states.append(seen)
            taken.append(actions)
            rewards.append([reward for _, reward, _ in outcomes])
            ended.append([over for _, _, over in outcomes])
            seen = [walker.reset() if over else new for walker, (new, _, over) in zip(walkers, outcomes, strict=True)]
        returns = returns_of(rewards, ended, act(actor, seen, where, run.fix)[1])
        wanted = torch.tensor(returns, device=run.device)
        logits, values = policy(torch.tensor(states, device=run.device))
        chosen = Categorical(logits=logits)
        gained = (wanted - values).detach()
        surprise = -(chosen.log_prob(torch.tensor(taken, device=run.device)) * gained).mean()
        loss = surprise + 0.5 * mse_loss(values, wanted) - 0.01 * chosen.entropy().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if actor is not policy:
            actor.load_state_dict(policy.state_dict())


if __name__ == "__main__":
    main(train)
