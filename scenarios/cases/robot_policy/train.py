"""A robot policy (action chunks from a transformer with a variational encoder), eager: some 1,000 small kernels a
step, two losses read in the forward pass.
"""

from __future__ import annotations

import torch

from scenarios.support.run import Run, main

BATCH = 160
"""Samples of a step: the kernels then take a little less than half as long as their launches."""


class Policy(torch.nn.Module):
    def __init__(self, width: int, layers: int, chunk: int) -> None:
        super().__init__()
        kind = {"d_model": width, "nhead": 8, "dim_feedforward": 4 * width, "batch_first": True, "dropout": 0.0}
        self.backbone = torch.nn.Sequential(
            *(
                part
                for i in range(4)
                for part in (torch.nn.Conv2d(3 if not i else width // 4, width // 4, 3, 2, 1), torch.nn.ReLU())
            )
        )
        self.flat = torch.nn.Conv2d(width // 4, width, 1)
        self.state, self.action = torch.nn.Linear(14, width), torch.nn.Linear(14, width)
        self.latent = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(**kind), layers)
        self.encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(**kind), layers)
        self.decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(**kind), layers)
        self.mean, self.spread = torch.nn.Linear(width, 32), torch.nn.Linear(width, 32)
        self.sample = torch.nn.Linear(32, width)
        self.asked = torch.nn.Parameter(torch.randn(1, chunk, width))
        self.head = torch.nn.Linear(width, 14)

    def forward(
        self, image: torch.Tensor, state: torch.Tensor, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self.flat(self.backbone(image)).flatten(2).transpose(1, 2)
        state = self.state(state)[:, None]
        first = self.latent(torch.cat((state, self.action(actions)), 1))[:, 0]
        mean, spread = self.mean(first), self.spread(first)
        latent = self.sample(mean + torch.randn_like(mean) * (0.5 * spread).exp())[:, None]
        memory = self.encoder(torch.cat((latent, state, seen), 1))
        chosen = self.head(self.decoder(self.asked.expand(len(image), -1, -1), memory))
        far = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(-1).mean()
        return (chosen - actions).abs().mean(), far


def train(run: Run) -> None:
    width, layers, chunk, size, batch = run.pick((512, 4, 100, 96, BATCH), (64, 1, 4, 32, 2))
    policy = Policy(width, layers, chunk).to(run.device).train()
    fused = run.fix in ("after", "fused") and not run.tiny
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5, fused=True if fused else None)
    forward = torch.compile(policy, mode="reduce-overhead") if run.fix == "after" else policy
    image = torch.rand(batch, 3, size, size, device=run.device)
    state, actions = torch.randn(batch, 14, device=run.device), torch.randn(batch, chunk, 14, device=run.device)
    log: list[dict[str, float]] = []
    for step in run.steps():
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            near, far = forward(image, state, actions)
        loss = near + 10.0 * far
        if run.fix not in ("after", "no_reads") or step % 100 == 0:
            log.append({"l1": near.item(), "kld": far.item()})
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
