"""BERT-base with a conditional random field for named entities: 32 sentences of 24 to 128 tokens, bf16 autocast, the
field in float32. The share of tags that the field finds is shown while it trains.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import BertConfig, BertModel

from scenarios.support.run import Run, main

TAGS, EVERY = 9, 50
IMPOSSIBLE = -1e4


class Field(nn.Module):
    """A linear-chain conditional random field over `TAGS` tags."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.end = (nn.Parameter(torch.empty(TAGS).uniform_(-0.1, 0.1)) for _ in range(2))
        self.change = nn.Parameter(torch.empty(TAGS, TAGS).uniform_(-0.1, 0.1))

    def score(self, scores: torch.Tensor, tags: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Score of the given tags of each sentence."""
        of_tags = scores.gather(2, tags[..., None]).squeeze(2)
        of_changes = self.change[tags[:, :-1], tags[:, 1:]]
        last = tags.gather(1, mask.sum(1, keepdim=True) - 1).squeeze(1)
        return (of_tags * mask).sum(1) + (of_changes * mask[:, 1:]).sum(1) + self.start[tags[:, 0]] + self.end[last]

    def normaliser(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Logarithm of the sum over all sequences of tags, one token after the other."""
        alpha = self.start + scores[:, 0]
        for at in range(1, scores.shape[1]):
            following = torch.logsumexp(alpha[:, :, None] + self.change + scores[:, at, None, :], dim=1)
            alpha = torch.where(mask[:, at, None], following, alpha)
        return torch.logsumexp(alpha + self.end, dim=1)

    def scanned(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The same by halves: neighbours are joined, all at once, until one matrix a sentence is left."""
        same = torch.full((TAGS, TAGS), IMPOSSIBLE, device=scores.device).fill_diagonal_(0.0)
        steps = torch.where(mask[:, 1:, None, None], self.change + scores[:, 1:, None, :], same)
        while (count := steps.shape[1]) > 1:
            left, right = steps[:, 0 : count - 1 : 2], steps[:, 1:count:2]
            joined = torch.logsumexp(left[..., :, :, None] + right[..., None, :, :], dim=3)
            steps = torch.cat([joined, steps[:, -1:]], dim=1) if count % 2 else joined
        alpha = torch.logsumexp((self.start + scores[:, 0])[:, :, None] + steps[:, 0], dim=1)
        return torch.logsumexp(alpha + self.end, dim=1)

    @torch.no_grad()
    def best(self, scores: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Score of the best way to each last tag, and the tag before each tag of each token on the best way to it."""
        alpha, origins = self.start + scores[:, 0], []
        for at in range(1, scores.shape[1]):
            best, origin = (alpha[:, :, None] + self.change + scores[:, at, None, :]).max(1)
            alpha = torch.where(mask[:, at, None], best, alpha)
            origins.append(origin)
        return alpha + self.end, origins

    def decode(self, scores: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
        """The best tags of each sentence, by Viterbi's algorithm."""
        alpha, origins = self.best(scores, mask)
        lengths = mask.sum(1)
        found = []
        for row in range(len(scores)):
            tag = int(alpha[row].argmax().item())
            tags = [tag]
            for origin in reversed(origins[: int(lengths[row]) - 1]):
                tag = int(origin[row][tag].item())
                tags.append(tag)
            found.append(tags[::-1])
        return found

    def decode_together(self, scores: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
        """The same for all sentences at once, read from the GPU once."""
        alpha, origins = self.best(scores, mask)
        tag = alpha.argmax(1)
        tags = [tag]
        for at in range(len(origins), 0, -1):
            before = origins[at - 1].gather(1, tag[:, None]).squeeze(1)
            tag = torch.where(mask[:, at], before, tag)
            tags.append(tag)
        rows = torch.stack(tags[::-1], dim=1).tolist()
        return [row[:length] for row, length in zip(rows, mask.sum(1).tolist(), strict=True)]


class Tagger(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer=False)
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(config.hidden_size, TAGS)
        self.field = Field()

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Scores of all tags of all tokens."""
        states = self.bert(input_ids=tokens, attention_mask=mask.long()).last_hidden_state
        return self.head(self.dropout(states)).float()


def sentences(count: int, words: int, longest: int, shortest: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and their tags."""
    lengths = torch.randint(shortest, longest + 1, (count,)).tolist()
    return [(torch.randint(1, words, (length,)), torch.randint(0, TAGS, (length,))) for length in lengths]


def share(found: list[list[int]], tags: list[torch.Tensor]) -> float:
    """Share of the tags that were found."""
    right = sum(
        sum(one == other for one, other in zip(row, true.tolist(), strict=True))
        for row, true in zip(found, tags, strict=True)
    )
    return right / sum(map(len, tags))


def train(run: Run) -> None:
    torch.manual_seed(0)
    words, batch, shortest, longest = run.pick((28_996, 32, 24, 128), (128, 3, 4, 9))
    tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = Tagger(BertConfig(vocab_size=words, **run.pick({}, tiny))).to(run.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, fused=not run.tiny)
    data = sentences(16 * batch, words, longest, shortest)
    normaliser = model.field.scanned if run.fix in ("scanned", "not_decoded_scanned") else model.field.normaliser
    decode = model.field.decode_together if run.fix == "decoded_together" else model.field.decode
    shown = run.fix not in ("not_decoded", "not_decoded_scanned")
    shares = []
    for step in run.steps():
        chosen = [data[(step * batch + i) % len(data)] for i in range(batch)]
        tokens = nn.utils.rnn.pad_sequence([tokens for tokens, _ in chosen], batch_first=True).to(run.device)
        tags = nn.utils.rnn.pad_sequence([tags for _, tags in chosen], batch_first=True).to(run.device)
        mask = tokens > 0
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            scores = model(tokens, mask)
        loss = (normaliser(scores, mask) - model.field.score(scores, tags, mask)).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if shown:
            shares.append(share(decode(scores.detach(), mask), [tags for _, tags in chosen]))
        if step % EVERY == EVERY - 1:
            print(f"step {step}: loss {loss.item():.3f}, found {sum(shares[-EVERY:]) / EVERY:.3f}")


if __name__ == "__main__":
    main(train)
