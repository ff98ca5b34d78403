"""LoRA (rank 16, all attention projections) on Stable Diffusion's U-Net with diffusers, PEFT and accelerate, bf16, 2
latents of 96 × 96 (pictures of 768 × 768); latents and texts were encoded before. Attention slicing and gradient
checkpointing are on, as a guide for small GPUs recommends.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DConditionModel
from peft import LoraConfig
from torch.utils.data import DataLoader, Dataset

from scenarios.support.data import endless
from scenarios.support.loop import trained
from scenarios.support.run import Run, main


class Encoded(Dataset):
    """Latents of pictures and hidden states of their texts."""

    def __init__(self, size: int, texts: int, count: int) -> None:
        self.latents, self.texts = torch.randn(count, 4, size, size), torch.randn(count, 77, texts)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        index %= len(self.latents)
        return self.latents[index], self.texts[index]


def denoiser(run: Run, texts: int) -> UNet2DConditionModel:
    """That of Stable Diffusion 1.5 with random weights in bf16, and LoRA's in float32."""
    channels, groups, layers = run.pick(((320, 640, 1280, 1280), 32, 2), ((16, 16, 32, 32), 4, 1))
    with torch.device(run.device):
        unet = UNet2DConditionModel(
            block_out_channels=channels, layers_per_block=layers, cross_attention_dim=texts, norm_num_groups=groups,
            attention_head_dim=run.pick(8, 2),
        )  # fmt: skip
        unet.requires_grad_(False).to(torch.bfloat16)
        projections = ["to_q", "to_k", "to_v", "to_out.0"]
        unet.add_adapter(LoraConfig(r=run.pick(16, 2), lora_alpha=16, target_modules=projections))
    for weight in trained(unet):
        weight.data = weight.data.float()
    return unet.train()


def train(run: Run) -> None:
    torch.manual_seed(0)
    size, texts, batch = run.pick((96, 768, 2), (16, 16, 2))
    accelerator = Accelerator(mixed_precision="bf16", cpu=run.tiny)
    unet = denoiser(run, texts)
    if run.fix not in ("no_slicing", "neither"):
        unet.set_attention_slice("auto")
    if run.fix != "neither":
        unet.enable_gradient_checkpointing()
    scheduler = DDPMScheduler()
    optimizer = torch.optim.AdamW(trained(unet), lr=1e-4, fused=not run.tiny)
    loader = DataLoader(Encoded(size, texts, 16 * batch), batch, num_workers=run.pick(4, 0), pin_memory=not run.tiny)
    unet, optimizer, loader = accelerator.prepare(unet, optimizer, loader)
    batches = endless(loader)
    for _ in run.steps():
        latents, words = next(batches)
        noise = torch.randn_like(latents)
        times = torch.randint(0, scheduler.config.num_train_timesteps, (len(latents),), device=latents.device)
        noisy = scheduler.add_noise(latents, noise, times)
        predicted = unet(noisy.bfloat16(), times, words.bfloat16()).sample
        loss = torch.nn.functional.mse_loss(predicted.float(), noise)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(trained(unet), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(train)
