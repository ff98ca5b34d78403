"""DETR (ResNet-50, 6 and 6 layers of width 256, 300 queries) on 12 images of 512 × 512 with 40 boxes each, float32
with TF32, auxiliary losses at each layer of the decoder. All losses are kept in a list for the log.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig
from transformers.loss import loss_for_object_detection as detection

from scenarios.support.run import Run, main

CLASSES, EVERY = 91, 50


class MatchedOnce(detection.HungarianMatcher):
    """Matches the output of the last layer, and takes its matches for the other layers. One is made per step."""

    found: list[Any] | None = None

    def forward(self, outputs: dict[str, torch.Tensor], targets: list[dict[str, torch.Tensor]]) -> list[Any]:
        if self.found is None:
            self.found = super().forward(outputs, targets)
        return self.found


class Scenes(Dataset):
    """Pictures that were loaded before, with boxes (centre and size, as shares of the picture) and classes."""

    def __init__(self, size: int, boxes: int, count: int) -> None:
        self.pictures = torch.rand(count, 3, size, size)
        self.boxes = torch.cat((torch.rand(count, boxes, 2) * 0.6 + 0.2, torch.rand(count, boxes, 2) * 0.2 + 0.1), 2)
        self.classes = torch.randint(0, CLASSES, (count, boxes))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        index %= len(self.pictures)
        return self.pictures[index], {"class_labels": self.classes[index], "boxes": self.boxes[index]}


def collate(scenes: list[tuple[torch.Tensor, dict[str, torch.Tensor]]]) -> tuple[torch.Tensor, list[dict]]:
    return torch.stack([picture for picture, _ in scenes]), [labels for _, labels in scenes]


def config(run: Run) -> DetrConfig:
    usual = {"num_queries": 300, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
    tiny = {"d_model": 32, "num_queries": 20, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64, "encoder_attention_heads": 2, "decoder_attention_heads": 2}  # fmt: skip
    small = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
    backbone = ResNetConfig(out_features=["stage4"], **run.pick({}, small))
    return DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone,
        num_labels=CLASSES, auxiliary_loss=run.fix != "last_layer", **run.pick(usual, tiny),
    )  # fmt: skip


def train(run: Run) -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    size, boxes, batch = run.pick((512, 40, 12), (64, 4, 2))
    if run.fix in ("matched_once", "both"):
        detection.HungarianMatcher = MatchedOnce
    model = DetrForObjectDetection(config(run)).to(run.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4, fused=not run.tiny)
    batches = iter(DataLoader(Scenes(size, boxes, 4 * batch), batch, collate_fn=collate, num_workers=run.pick(4, 0),
                              pin_memory=not run.tiny))  # fmt: skip
    history: list[dict[str, float]] = []
    for step in run.steps():
        pictures, labels = next(batches)
        pictures = pictures.to(run.device, non_blocking=True)
        labels = [{name: value.to(run.device, non_blocking=True) for name, value in each.items()} for each in labels]
        out = model(pixel_values=pictures, labels=labels)
        if run.fix not in ("log_seldom", "both") or step % EVERY == 0:
            history.append({name: value.item() for name, value in out.loss_dict.items()})
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
