"""A decision transformer (6 layers, width 256, 32 moments of context) with transformers' Trainer on 400 episodes of
2000 moments of a simulated robot, 256 samples a batch, bf16 autocast.

The collator picks a random moment of a random episode for each sample, as the usual example does.
"""

from __future__ import annotations

import tempfile

import numpy
import torch
from torch.utils.data import Dataset
from transformers import DecisionTransformerConfig, DecisionTransformerModel, Trainer, TrainingArguments

from scenarios.support.run import Run, main

STATE, ACTION, SCALE = 17, 6, 1000.0


class Episodes(Dataset):
    """Numbers of episodes; the collator has the episodes themselves."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> int:
        return index % self.count


def discounted(rewards: numpy.ndarray, gamma: float) -> numpy.ndarray:
    """The sum of all later rewards, for each moment."""
    sums = numpy.zeros_like(rewards)
    sums[-1] = rewards[-1]
    for moment in reversed(range(len(rewards) - 1)):
        sums[moment] = rewards[moment] + gamma * sums[moment + 1]
    return sums


def padded(rows: numpy.ndarray, count: int, value: float) -> numpy.ndarray:
    """With `count` rows of the value before them."""
    return numpy.concatenate((numpy.full((count, *rows.shape[1:]), value, rows.dtype), rows))


class Windows:
    """The collator: for each episode a window at a random moment, padded on its left."""

    def __init__(self, count: int, moments: int, context: int, once: bool) -> None:
        self.rng = numpy.random.default_rng(0)
        self.context, self.moments = context, moments
        self.states = self.rng.standard_normal((count, moments, STATE))
        self.actions = self.rng.uniform(-1, 1, (count, moments, ACTION))
        self.rewards = self.rng.uniform(0, 4, (count, moments))
        self.mean, self.deviation = self.states.mean((0, 1)), self.states.std((0, 1))
        self.returns = [discounted(rewards, 1.0) for rewards in self.rewards] if once else None

    def window(self, episode: int) -> dict[str, numpy.ndarray]:
        start = int(self.rng.integers(0, self.moments - 1))
        stop = min(start + self.context, self.moments)
        if self.returns is not None:
            returns = self.returns[episode][start:stop]
        else:
            returns = discounted(self.rewards[episode][start:], 1.0)[: stop - start]
        padding = self.context - (stop - start)
        states = (self.states[episode][start:stop] - self.mean) / self.deviation
        return {
            "states": padded(states, padding, 0.0),
            "actions": padded(self.actions[episode][start:stop], padding, -10.0),
            "returns_to_go": padded(returns[:, None] / SCALE, padding, 0.0),
            "timesteps": padded(numpy.arange(start, stop), padding, 0),
            "attention_mask": padded(numpy.ones(stop - start), padding, 0.0),
        }

    def __call__(self, episodes: list[int]) -> dict[str, torch.Tensor]:
        windows = [self.window(episode) for episode in episodes]
        batch = {name: torch.from_numpy(numpy.stack([one[name] for one in windows])) for name in windows[0]}
        return {name: column.long() if name == "timesteps" else column.float() for name, column in batch.items()}


class WithLoss(DecisionTransformerModel):
    """Its loss is that of the actions it predicts."""

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        mask, wanted = inputs["attention_mask"], inputs["actions"]
        predicted = super().forward(**inputs).action_preds
        errors = (predicted - wanted).square().mean(-1)
        return {"loss": (errors * mask).sum() / mask.sum()}


def train(run: Run) -> None:
    torch.manual_seed(0)
    count, moments, context, batch = run.pick((400, 2000, 32, 256), (8, 40, 4, 4))
    width, layers, heads = run.pick((256, 6, 4), (32, 2, 2))
    config = DecisionTransformerConfig(
        state_dim=STATE, act_dim=ACTION, hidden_size=width, max_ep_len=moments, n_layer=layers, n_head=heads,
        n_positions=3 * context, use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    windows = Windows(count, moments, context, run.fix == "summed_once")
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=100_000, per_device_train_batch_size=batch, learning_rate=1e-4, weight_decay=1e-4,
            warmup_steps=100, max_grad_norm=0.25, bf16=True, logging_steps=100, save_strategy="no", report_to="none",
            disable_tqdm=True, dataloader_num_workers=run.pick(6, 1) if run.fix == "workers" else 0,
            remove_unused_columns=False, use_cpu=run.tiny,
        )  # fmt: skip
        clock, episodes = [run.callback()], Episodes(count)
        Trainer(WithLoss(config), arguments, train_dataset=episodes, data_collator=windows, callbacks=clock).train()


if __name__ == "__main__":
    main(train)
