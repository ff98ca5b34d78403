"""A sentence encoder (MiniLM: 6 layers, width 384) with the cached ranking loss of sentence-transformers, bf16
autocast, 256 pairs of 64 tokens.
"""

from __future__ import annotations

import torch
from sentence_transformers import SentenceTransformer, losses
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertModel

from scenarios.support.data import endless
from scenarios.support.run import Run, main


class Encoder(torch.nn.Module):
    """Tokens → the mean of their last states, as sentence_embedding."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, features: dict[str, torch.Tensor], **_: object) -> dict[str, torch.Tensor]:
        mask = features["attention_mask"]
        states = self.bert(input_ids=features["input_ids"], attention_mask=mask).last_hidden_state
        kept = mask[:, :, None].to(states.dtype)
        return features | {"sentence_embedding": (states * kept).sum(1) / kept.sum(1)}


def loss_of(model: SentenceTransformer, fix: str, rows: dict[str, int]) -> torch.nn.Module:
    if fix == "uncached":
        return losses.MultipleNegativesRankingLoss(model)
    return losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=rows.get(fix, rows[""]))


def train(run: Run) -> None:
    torch.manual_seed(0)
    words, pairs, length = run.pick((30_522, 256, 64), (128, 8, 8))
    shape = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12}
    tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    encoder = Encoder(BertConfig(vocab_size=words, **run.pick(shape, tiny)))
    model = SentenceTransformer(modules=[encoder], device=run.device).train()
    rows = run.pick({"": 32, "mini_64": 64, "mini_256": 256}, {"": 2, "mini_64": 4, "mini_256": 8})
    loss_function = loss_of(model, run.fix, rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=not run.tiny)
    texts = TensorDataset(*(torch.randint(1, words, (16 * pairs, length)) for _ in range(2)))
    batches = endless(DataLoader(texts, pairs, drop_last=True, pin_memory=not run.tiny))
    for step in run.steps():
        columns = [tokens.to(run.device, non_blocking=True) for tokens in next(batches)]
        features = [{"input_ids": tokens, "attention_mask": torch.ones_like(tokens)} for tokens in columns]
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            loss = loss_function(features, None)
            loss.backward()  # the cached loss runs the encoder again here
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main(train)
