"""Two BERT-bases for retrieval, bf16 autocast: 64 questions of up to 32 tokens a step, and for each of them a passage
that answers it and one that does not, of up to 192 tokens. Only the questions' encoder is trained; that of the passages
is in eval(), and the optimizer does not have its weights.
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertModel

from scenarios.support.data import endless
from scenarios.support.run import Run, main

TEMPERATURE = 0.05
Sample = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Questions(Dataset):
    """A question, a passage that answers it and one that does not; new ones in each epoch."""

    def __init__(self, words: int, question: int, passage: int) -> None:
        self.words, self.question, self.passage = words, question, passage

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Sample:
        rng = torch.Generator().manual_seed(index)

        def text(longest: int) -> torch.Tensor:
            length = int(torch.randint(longest // 3, longest + 1, (1,), generator=rng))
            return torch.randint(1, self.words, (length,), generator=rng)

        return text(self.question), text(self.passage), text(self.passage)


def collated(samples: list[Sample], width: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of questions and of passages, the latter padded to a width, or to the longest."""
    questions, positives, negatives = zip(*samples, strict=True)
    passages = pad_sequence([*positives, *negatives], batch_first=True)
    if width is not None:
        passages = functional.pad(passages, (0, width - passages.shape[1]))
    return pad_sequence(list(questions), batch_first=True), passages


def embedded(encoder: BertModel, tokens: torch.Tensor) -> torch.Tensor:
    """The first token's state of each text, of length 1."""
    states = encoder(input_ids=tokens, attention_mask=(tokens > 0).long()).last_hidden_state
    return functional.normalize(states[:, 0].float(), dim=-1)


def train(run: Run) -> None:
    torch.manual_seed(0)
    words, batch, question, passage, width = run.pick((30_522, 64, 32, 192, 256), (128, 3, 6, 12, 16))
    tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=words, **run.pick({}, tiny))
    asking, answering = (BertModel(config, add_pooling_layer=False).to(run.device) for _ in range(2))
    asking.train()
    answering.eval()
    if run.fix in ("frozen", "both"):
        answering.requires_grad_(False)
    padded = functools.partial(collated, width=None if run.fix in ("longest", "both") else width)
    loader = DataLoader(
        Questions(words, question, passage), batch, collate_fn=padded, num_workers=run.pick(6, 0),
        pin_memory=not run.tiny,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(asking.parameters(), lr=2e-5, fused=not run.tiny)
    batches = endless(loader)
    for step in run.steps():
        questions, passages = (tokens.to(run.device, non_blocking=True) for tokens in next(batches))
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            asked, answers = embedded(asking, questions), embedded(answering, passages)
        scores = asked @ answers.T / TEMPERATURE
        loss = functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(asking.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main(train)
