"""An interatomic potential: a small message-passing net whose loss reads values of each system and each term."""

from __future__ import annotations

import torch

from scenarios.support.run import Run, main


class Net(torch.nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(100, width)
        self.edges = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(2 * width + 1, width), torch.nn.SiLU(), torch.nn.Linear(width, width))
            for _ in range(layers)
        )
        self.energy = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.SiLU(), torch.nn.Linear(width, 1))

    def forward(self, kinds: torch.Tensor, places: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        x = self.embed(kinds)
        source, target = pairs
        apart = (places[source] - places[target]).pow(2).sum(-1, keepdim=True).add(1e-6).sqrt()
        for layer in self.edges:
            x = x.index_add(0, target, layer(torch.cat((x[source], x[target], apart), -1)))
            x = x / x.norm(dim=-1, keepdim=True).clamp(min=1.0)
        return self.energy(x).squeeze(-1)


def loss_of(run: Run, energies: torch.Tensor, forces: torch.Tensor, owner: torch.Tensor, systems: int) -> torch.Tensor:
    """The error of energies and forces, every system with a weight of its own. As it was, values are read in a loop."""
    if run.fix == "after":
        sums = torch.zeros(systems, device=energies.device).index_add(0, owner, energies)
        counts = torch.zeros(systems, device=energies.device).index_add(0, owner, torch.ones_like(energies))
        return (sums / counts.clamp(min=1)).pow(2).mean() + torch.nan_to_num(forces).pow(2).mean()
    total = energies.new_zeros(())
    for system in range(systems):
        mine = owner == system
        if not mine.any():
            continue
        total = total + (energies[mine].sum() / mine.sum().item()).pow(2)
    if torch.isnan(forces).any():
        forces = torch.nan_to_num(forces)
    return total / systems + forces.pow(2).mean()


def train(run: Run) -> None:
    width, layers, systems, atoms = run.pick((128, 8, 16, 64), (16, 2, 3, 4))
    model = Net(width, layers).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    count = systems * atoms
    owner = torch.arange(count, device=run.device) // atoms
    near = torch.arange(count, device=run.device).repeat_interleave(24)
    pairs = torch.stack((near, (near // atoms) * atoms + torch.randint(0, atoms, near.shape, device=run.device)))
    kinds = torch.randint(0, 100, (count,), device=run.device)
    for _ in run.steps():
        places = torch.randn(count, 3, device=run.device, requires_grad=True)
        energies = model(kinds, places, pairs)
        (forces,) = torch.autograd.grad(-energies.sum(), places, create_graph=True)
        loss = loss_of(run, energies, forces, owner, systems)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
