"""A latent diffusion model with diffusers: a U-Net of three levels (256, 512, 768 channels) learns from 8 images of
512 × 512, whose latents the autoencoder of Stable Diffusion gives; bf16 autocast, texts embedded before.
"""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from torch.utils.data import DataLoader, Dataset

from scenarios.support.data import endless
from scenarios.support.run import Run, main

SCALE = 0.18215
"""Of Stable Diffusion's latents."""


class Images(Dataset):
    """Numbers of images, the images (values from -1 to 1) and their embedded texts, all read before."""

    def __init__(self, size: int, texts: int, count: int) -> None:
        self.images = torch.rand(count, 3, size, size) * 2 - 1
        self.texts = torch.randn(count, 77, texts)

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        index %= len(self.images)
        return index, self.images[index], self.texts[index]


def autoencoder(run: Run) -> AutoencoderKL:
    """That of Stable Diffusion, with random weights; its latents have an eighth of the size of images."""
    channels, layers, groups = run.pick(((128, 256, 512, 512), 2, 32), ((8, 8, 8, 8), 1, 4))
    with torch.device(run.device):
        vae = AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=channels, layers_per_block=layers, latent_channels=4, norm_num_groups=groups,
        )  # fmt: skip
    return vae.eval().requires_grad_(False)


def denoiser(run: Run, texts: int) -> UNet2DConditionModel:
    channels, groups, heads = run.pick(((256, 512, 768), 32, 8), ((8, 8, 8), 4, 2))
    with torch.device(run.device):
        unet = UNet2DConditionModel(
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), block_out_channels=channels,
            layers_per_block=1, cross_attention_dim=texts, attention_head_dim=heads, norm_num_groups=groups,
        )  # fmt: skip
    return unet.train()


def cached(vae: AutoencoderKL, images: torch.Tensor, device: str) -> torch.Tensor:
    """Means and deviations of the latents of all images."""
    with torch.no_grad():
        return torch.cat([vae.encode(image.unsqueeze(0).to(device)).latent_dist.parameters for image in images])


def train(run: Run) -> None:
    torch.manual_seed(0)
    size, texts, batch = run.pick((512, 512, 8), (32, 16, 2))
    images, vae, unet = Images(size, texts, 4 * batch), autoencoder(run), denoiser(run, texts)
    if run.fix == "encoder_bf16":
        vae = vae.to(torch.bfloat16)
    kept = cached(vae, images.images, run.device) if run.fix == "cached" else None
    loader = DataLoader(images, batch, shuffle=True, num_workers=run.pick(4, 0), pin_memory=not run.tiny)
    scheduler = DDPMScheduler()
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-5, fused=not run.tiny)
    batches = endless(loader)
    for _ in run.steps():
        numbers, pictures, words = (tensor.to(run.device, non_blocking=True) for tensor in next(batches))
        with torch.no_grad():
            if kept is not None:
                latents = DiagonalGaussianDistribution(kept[numbers]).sample().float() * SCALE
            else:
                latents = vae.encode(pictures.to(vae.dtype)).latent_dist.sample().float() * SCALE
        noise = torch.randn_like(latents)
        times = torch.randint(0, scheduler.config.num_train_timesteps, (len(latents),), device=run.device)
        noisy = scheduler.add_noise(latents, noise, times)
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            predicted = unet(noisy, times, words).sample
        torch.nn.functional.mse_loss(predicted.float(), noise).backward()
        torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
