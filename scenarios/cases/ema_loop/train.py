"""A convolutional net with an average of its weights by torch.optim.swa_utils: one function call for each tensor."""

from __future__ import annotations

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from scenarios.support.run import Run, main


def net(width: int, depth: int) -> torch.nn.Module:
    layers: list[torch.nn.Module] = [torch.nn.Conv2d(3, width, 3, 2, 1)]
    for _ in range(depth):
        layers += [torch.nn.Conv2d(width, width, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(width), torch.nn.SiLU()]
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(width, 10))


def train(run: Run) -> None:
    width, depth, size, images = run.pick((96, 80, 32, 64), (8, 3, 8, 2))
    model = net(width, depth).to(run.device).train()
    how = {"multi_avg_fn": get_ema_multi_avg_fn(0.999)} if run.fix == "after" else {"avg_fn": get_ema_avg_fn(0.999)}
    average = AveragedModel(model, use_buffers=True, **how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    forward = torch.compile(model) if run.fix == "compile" else model
    pixels = torch.randn(images, 3, size, size, device=run.device)
    labels = torch.randint(0, 10, (images,), device=run.device)
    for _ in run.steps():
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(forward(pixels).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        average.update_parameters(model)


if __name__ == "__main__":
    main(train)
