"""GRPO with a Llama of 16 layers and width 1024, bf16 autocast: 32 completions of 256 tokens a step (4 prompts of 256
tokens, 8 completions each), which a server wrote; one update for each batch of completions, and no KL penalty (β = 0).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from scenarios.support import models
from scenarios.support.run import Run, main

BETA, CLIP, GROUP = 0.0, 0.2, 8


class Rollout(NamedTuple):
    """Completions with their prompts, which of their tokens were written, and a reward for each."""

    tokens: torch.Tensor
    written: torch.Tensor
    rewards: torch.Tensor


def rollouts(prompts: int, words: int, length: int, device: str) -> Iterator[Rollout]:
    """What the server sends: half of each row is the prompt, and completions end earlier or later."""
    while True:
        rows = prompts * GROUP
        tokens = torch.randint(3, words, (rows, 2 * length))
        tokens[:, :length] = tokens[::GROUP, :length].repeat_interleave(GROUP, 0)
        ends = torch.randint(length // 2, length + 1, (rows, 1))
        written = torch.arange(length)[None] < ends
        yield Rollout(tokens.to(device), written.to(device), torch.rand(rows).to(device))


def log_probs(model: PreTrainedModel, tokens: torch.Tensor, length: int) -> torch.Tensor:
    """Log-probability of each token of the completions."""
    with torch.autocast(tokens.device.type, torch.bfloat16):
        logits = model(input_ids=tokens, logits_to_keep=length + 1).logits[:, :-1]
    return logits.float().log_softmax(-1).gather(2, tokens[:, -length:, None]).squeeze(2)


def advantages(rewards: torch.Tensor) -> torch.Tensor:
    """Rewards, standardised within the group of a prompt."""
    groups = rewards.view(-1, GROUP)
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1)


def train(run: Run) -> None:
    shape = {
        "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 4,
    }  # fmt: skip
    policy = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, dtype=torch.float32, **shape)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    words, prompts, length = run.pick((32_000, 4, 256), (512, 1, 8))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, fused=not run.tiny)
    batches = rollouts(prompts, words, length, run.device)
    detached, alone = run.fix in ("old_detached", "both"), run.fix in ("no_reference", "both")
    for _ in run.steps():
        tokens, written, rewards = next(batches)
        if not detached:
            with torch.no_grad():
                old_log_probs = log_probs(policy, tokens, length)
        if not alone:
            with torch.no_grad():
                reference_log_probs = log_probs(reference, tokens, length)
        new = log_probs(policy, tokens, length)
        ratio = torch.exp(new - (new.detach() if detached else old_log_probs))
        gain = advantages(rewards)[:, None]
        losses = -torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
        if not alone:
            difference = reference_log_probs - new
            losses = losses + BETA * (difference.exp() - difference - 1)
        loss = (losses * written).sum() / written.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
