"""A detector of one stage (ResNet-18, three levels, 16,128 anchors) on 16 pictures of 512 × 512, bf16 autocast,
channels_last. As in many SSDs, Python matches anchors with boxes picture by picture.
"""

from __future__ import annotations

import random
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot, smooth_l1_loss

from scenarios.support.run import Run, main

ABOVE, BELOW, CLASSES, SHAPES = 0.5, 0.4, 20, 3


class Block(nn.Module):
    """Two convolutions with batch norms and a residual, as in ResNet-18."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.short = nn.Identity()
        if stride > 1:
            self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(inner)) + self.short(x))


class Detector(nn.Module):
    """Pictures → logits of classes and four offsets for each anchor."""

    def __init__(self, width: int) -> None:
        super().__init__()
        first = nn.Conv2d(3, width // 2, 7, 2, 3, bias=False)
        start = (first, nn.BatchNorm2d(width // 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.stem = nn.Sequential(*start, Block(width // 2, width // 2, 1), Block(width // 2, width // 2, 1))
        widths = (width // 2, width, 2 * width, 4 * width)
        self.levels = nn.ModuleList(nn.Sequential(Block(a, b, 2), Block(b, b, 1)) for a, b in pairwise(widths))
        self.inner = nn.ModuleList(nn.Conv2d(inside, width, 1) for inside in widths[1:])
        self.tower = nn.Sequential(*(nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.ReLU()) for _ in range(2)))
        self.classes = nn.Conv2d(width, SHAPES * CLASSES, 3, padding=1)
        self.offsets = nn.Conv2d(width, SHAPES * 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, classes, offsets = self.stem(x), [], []
        for level, inner in zip(self.levels, self.inner, strict=True):
            x = level(x)
            seen = self.tower(inner(x))
            classes.append(self.classes(seen).permute(0, 2, 3, 1).reshape(len(x), -1, CLASSES))
            offsets.append(self.offsets(seen).permute(0, 2, 3, 1).reshape(len(x), -1, 4))
        return torch.cat(classes, 1).float(), torch.cat(offsets, 1).float()


def box_iou(boxes: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """Overlaps of all pairs, boxes × anchors: the common area over that of both."""
    begin = torch.maximum(boxes[:, None, :2], anchors[None, :, :2])
    common = (torch.minimum(boxes[:, None, 2:], anchors[None, :, 2:]) - begin).clamp(min=0).prod(2)
    areas = [(corners[:, 2:] - corners[:, :2]).prod(1) for corners in (boxes, anchors)]
    return common / (areas[0][:, None] + areas[1] - common)


def focal_loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each class, less for what is nearly right."""
    chances, loss = logits.sigmoid(), binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    wrong = chances * (1 - wanted) + (1 - chances) * wanted
    return (0.25 * wanted + 0.75 * (1 - wanted)) * loss * wrong.square()


def anchors_of(size: int) -> torch.Tensor:
    """Corners of three anchors at each place of three levels."""
    found = []
    for stride in (8, 16, 32):
        middle = (torch.arange(size // stride) + 0.5) * stride
        y, x = torch.meshgrid(middle, middle, indexing="ij")
        for ratio in (0.5, 1.0, 2.0):
            half = torch.tensor([2 * stride * ratio**0.5, 2 * stride / ratio**0.5])
            centre = torch.stack((x, y), -1).reshape(-1, 2)
            found.append(torch.cat((centre - half, centre + half), 1))
    return torch.cat(found)


def encoded(boxes: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """Offsets of boxes from their anchors, both as corners."""
    size, wanted = anchors[..., 2:] - anchors[..., :2], boxes[..., 2:] - boxes[..., :2]
    moved = ((boxes[..., :2] + boxes[..., 2:]) - (anchors[..., :2] + anchors[..., 2:])) / 2 / size
    return torch.cat((moved, torch.log(wanted / size)), -1)


def matched(anchors: torch.Tensor, boxes: torch.Tensor, at_once: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """For each anchor of a picture: the box, and their overlap. Each box has its best anchor, whatever the overlap."""
    overlaps = box_iou(boxes, anchors)
    best, of_anchor = overlaps.max(0)
    anchor_of = overlaps.argmax(1)
    if at_once:
        best[anchor_of] = 2.0
        of_anchor[anchor_of] = torch.arange(len(boxes), device=boxes.device)
        return of_anchor, best
    for j in range(len(boxes)):
        best[anchor_of[j]] = 2.0
        of_anchor[anchor_of[j]] = j
    return of_anchor, best


def loss_by_picture(classes, offsets, anchors, boxes, labels, fix: str) -> torch.Tensor:
    total = classes.new_zeros(())
    for i in range(len(boxes)):
        of_anchor, best = matched(anchors, boxes[i], fix == "indexed")
        positive, ignored = best >= ABOVE, (best < ABOVE) & (best >= BELOW)
        wanted = torch.zeros_like(classes[i])
        wanted[positive, labels[i][of_anchor[positive]]] = 1.0
        of_classes = focal_loss(classes[i][~ignored], wanted[~ignored]).sum()
        target = encoded(boxes[i][of_anchor[positive]], anchors[positive])
        of_offsets = smooth_l1_loss(offsets[i][positive], target, reduction="sum")
        total = total + (of_classes + of_offsets) / max(1, positive.sum().item())
    return total / len(boxes)


def loss_masked(classes, offsets, anchors, boxes, labels) -> torch.Tensor:
    """Picture by picture, with masks in place of selections and of a loop over boxes: nothing waits for the GPU."""
    total = classes.new_zeros(())
    for i in range(len(boxes)):
        of_anchor, best = matched(anchors, boxes[i], True)
        positive, ignored = (best >= ABOVE)[:, None], ((best < ABOVE) & (best >= BELOW))[:, None]
        wanted = one_hot(labels[i][of_anchor], CLASSES) * positive
        of_classes = (focal_loss(classes[i], wanted.float()) * ~ignored).sum()
        target = encoded(boxes[i][of_anchor], anchors)
        of_offsets = (smooth_l1_loss(offsets[i], target, reduction="none") * positive).sum()
        total = total + (of_classes + of_offsets) / positive.sum().clamp(min=1)
    return total / len(boxes)


def loss_of_batch(classes, offsets, anchors, boxes, labels, device: str) -> torch.Tensor:
    """All pictures at once; those with fewer boxes are filled with one far away that has no area."""
    most, counts = max(map(len, boxes)), torch.tensor([len(of_one) for of_one in boxes])
    filled = torch.nn.utils.rnn.pad_sequence(boxes, batch_first=True, padding_value=-1e4)
    named = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True)
    real = (torch.arange(most) < counts[:, None]).to(device, non_blocking=True)
    overlaps = box_iou(filled.flatten(0, 1), anchors).unflatten(0, (len(boxes), most))
    best, of_anchor = overlaps.max(1)
    anchor_of = overlaps.argmax(2)
    best.scatter_reduce_(1, anchor_of, torch.where(real, 2.0, 0.0), "amax")
    # What fills has no anchor: it is written to one place too many, which is cut off.
    places = torch.where(real, anchor_of, len(anchors))
    order = torch.arange(most, device=device).expand_as(places)
    of_anchor = torch.nn.functional.pad(of_anchor, (0, 1)).scatter(1, places, order)[:, :-1]
    positive, ignored = (best >= ABOVE)[..., None], ((best < ABOVE) & (best >= BELOW))[..., None]
    wanted = one_hot(named.gather(1, of_anchor), CLASSES) * positive
    of_classes = (focal_loss(classes, wanted.float()) * ~ignored).sum((1, 2))
    mine = filled.gather(1, of_anchor[..., None].expand(-1, -1, 4))
    target = torch.where(positive, encoded(torch.where(positive, mine, anchors), anchors), 0.0)
    of_offsets = (smooth_l1_loss(offsets, target, reduction="none") * positive).sum((1, 2))
    return ((of_classes + of_offsets) / positive.sum((1, 2)).clamp(min=1)).mean()


def random_boxes(size: int, device: str) -> torch.Tensor:
    """Corners of 4 to 24 boxes within a picture."""
    count = random.randint(4, 24)
    begin, extent = torch.rand(count, 2) * 0.7 * size, (0.05 + 0.25 * torch.rand(count, 2)) * size
    return torch.cat((begin, begin + extent), 1).to(device)


def train(run: Run) -> None:
    torch.manual_seed(0)
    random.seed(0)
    batch, size, width = run.pick((16, 512, 128), (2, 64, 16))
    model = Detector(width).to(run.device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=run.fix == "fused")
    anchors = anchors_of(size).to(run.device)
    pictures = torch.rand(batch, 3, size, size, device=run.device).contiguous(memory_format=torch.channels_last)
    boxes = [random_boxes(size, run.device) for _ in range(batch)]
    labels = [torch.randint(0, CLASSES, (len(of_one),), device=run.device) for of_one in boxes]
    for _ in run.steps():
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            classes, offsets = model(pictures)
        if run.fix == "batched":
            loss = loss_of_batch(classes, offsets, anchors, boxes, labels, run.device)
        elif run.fix == "masked":
            loss = loss_masked(classes, offsets, anchors, boxes, labels)
        else:
            loss = loss_by_picture(classes, offsets, anchors, boxes, labels, run.fix)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
