"""Advantage actor-critic for 4096 quadrotors that are simulated on the GPU: 24 steps of control, each of two
Runge-Kutta steps of their motion, and then one update of a policy of three layers of 256, float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributions import Normal
from torch.nn.functional import mse_loss

from scenarios.support.run import Run, main

DISCOUNT, LONGEST, SUBSTEPS, SECONDS = 0.99, 300, 2, 0.01
MASS, ARM, LAG, GRAVITY, DRAG, LIFT, TWIST, INERTIA = 0.5, 0.15, 0.03, 9.81, 0.1, 1.5, 0.02, 0.004
"""Kilograms, metres, seconds, m/s², 1/s, newtons at full speed of a rotor, metres, kg m²."""
SEEN, ROTORS = 17, 4
"""Numbers of a quadrotor: place 3, speed 3, quaternion 4, rates of turning 3, speeds of rotors 4."""
Motion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def turned(quaternion: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Vectors of the body → vectors of the world."""
    w, axis = quaternion[:, :1], quaternion[:, 1:]
    twice = 2.0 * torch.linalg.cross(axis, vectors)
    return vectors + w * twice + torch.linalg.cross(axis, twice)


def derivative(state: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """How fast each number of the state changes, given the speeds that the rotors shall have."""
    speed, quaternion, turning, rotors = state[:, 3:6], state[:, 6:10], state[:, 10:13], state[:, 13:]
    lifts = LIFT * rotors.square()
    up = torch.zeros_like(speed)
    up[:, 2] = lifts.sum(1) / MASS
    acceleration = turned(quaternion, up) - DRAG * speed
    acceleration[:, 2] -= GRAVITY
    first, second, third, fourth = lifts.unbind(1)
    roll, pitch = ARM * (second - fourth), ARM * (third - first)
    yaw = TWIST * (first - second + third - fourth)
    torques = torch.stack((roll, pitch, yaw), 1) - 0.001 * turning
    w, x, y, z = quaternion.unbind(1)
    p, q, r = turning.unbind(1)
    spins = 0.5 * torch.stack(
        (-x * p - y * q - z * r, w * p + y * r - z * q, w * q - x * r + z * p, w * r + x * q - y * p), 1
    )
    return torch.cat((speed, acceleration, spins, torques / INERTIA, (wanted - rotors) / LAG), 1)


def moved(state: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The state after SECONDS, by the classic Runge-Kutta method."""
    k1 = derivative(state, wanted)
    k2 = derivative(state + 0.5 * SECONDS * k1, wanted)
    k3 = derivative(state + 0.5 * SECONDS * k2, wanted)
    k4 = derivative(state + SECONDS * k3, wanted)
    state = state + SECONDS / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
    quaternion = nn.functional.normalize(state[:, 6:10], dim=1)
    return torch.cat((state[:, :6], quaternion, state[:, 10:]), 1)


class Graphed:
    """`moved` as a CUDA graph."""

    def __init__(self, state: torch.Tensor, wanted: torch.Tensor) -> None:
        self.state, self.wanted, self.graph = state.clone(), wanted.clone(), torch.cuda.CUDAGraph()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside), torch.no_grad():
            moved(self.state, self.wanted)
        torch.cuda.current_stream().wait_stream(aside)
        with torch.no_grad(), torch.cuda.graph(self.graph):
            self.after = moved(self.state, self.wanted)

    def __call__(self, state: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        self.state.copy_(state)
        self.wanted.copy_(wanted)
        self.graph.replay()
        return self.after.clone()


class Quadrotors:
    """Quadrotors that shall hover at the origin."""

    def __init__(self, many: int, device: str) -> None:
        self.many, self.device = many, device
        self.state, self.age = self.fresh(), torch.randint(0, LONGEST, (many,), device=device)

    def fresh(self) -> torch.Tensor:
        state = torch.zeros(self.many, SEEN, device=self.device)
        state[:, :3] = 2.0 * torch.rand(self.many, 3, device=self.device) - 1.0
        state[:, 6], state[:, 13:] = 1.0, 0.9
        return state

    def step(self, actions: torch.Tensor, motion: Motion) -> tuple[torch.Tensor, torch.Tensor]:
        """Rewards, and whether each episode is over; those that are begin again."""
        wanted = (0.9 + 0.1 * actions).clamp(0.0, 1.2)
        for _ in range(SUBSTEPS):
            self.state = motion(self.state, wanted)
        self.age += 1
        far = self.state[:, :3].norm(dim=1)
        rewards = 1.0 - far - 0.05 * self.state[:, 10:13].square().sum(1).clamp(max=20.0)
        over = (far > 3.0) | (self.age >= LONGEST)
        self.state = torch.where(over[:, None], self.fresh(), self.state)
        self.age.masked_fill_(over, 0)
        return rewards, over


class Policy(nn.Module):
    """What is seen → means of actions, and a value."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(SEEN, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, width), nn.ELU()
        )
        self.actor, self.critic = nn.Linear(width, ROTORS), nn.Linear(width, 1)
        self.spread = nn.Parameter(torch.full((ROTORS,), -0.5))

    def forward(self, seen: torch.Tensor, validated: bool | None) -> tuple[Normal, torch.Tensor]:
        inner = self.body(seen)
        means = self.actor(inner)
        return Normal(means, self.spread.exp().expand_as(means), validate_args=validated), self.critic(inner).squeeze(
            -1
        )


def motion_of(run: Run, quadrotors: Quadrotors) -> Motion:
    if run.fix in ("compiled", "compiled_unvalidated"):
        return torch.compile(moved, backend=run.pick("inductor", "eager"))
    if run.fix == "graphed" and not run.tiny:
        return Graphed(quadrotors.state, torch.zeros(quadrotors.many, ROTORS, device=run.device))
    return moved


def train(run: Run) -> None:
    torch.manual_seed(0)
    many, length, width = run.pick((4096, 24, 256), (8, 3, 16))
    quadrotors = Quadrotors(many, run.device)
    policy = Policy(width).to(run.device).train()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, fused=not run.tiny)
    motion = motion_of(run, quadrotors)
    validated = False if run.fix == "compiled_unvalidated" else None
    for _ in run.steps():
        states, taken, rewards, ended = [], [], [], []
        with torch.no_grad():
            for _ in range(length):
                states.append(quadrotors.state)
                taken.append(policy(quadrotors.state, validated)[0].sample())
                reward, over = quadrotors.step(taken[-1], motion)
                rewards.append(reward)
                ended.append(over)
            after = policy(quadrotors.state, validated)[1]
            returns = []
            for reward, over in zip(reversed(rewards), reversed(ended), strict=True):
                after = reward + DISCOUNT * after * ~over
                returns.append(after)
        wanted = torch.stack(returns[::-1])
        chosen, values = policy(torch.stack(states), validated)
        gained = (wanted - values).detach()
        gained = (gained - gained.mean()) / (gained.std() + 1e-6)
        surprise = -(chosen.log_prob(torch.stack(taken)).sum(-1) * gained).mean()
        loss = surprise + 0.5 * mse_loss(values, wanted) - 0.001 * chosen.entropy().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
