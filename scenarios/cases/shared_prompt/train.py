"""Policy update of a group of 8 responses to one prompt: each row holds the prompt again, which is computed 8 times."""

from __future__ import annotations

import torch
from transformers import DynamicCache

from scenarios.support import models
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16}
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, **shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=not run.tiny)
    group, prompt_length, length = run.pick((8, 1536, 256), (2, 8, 4))
    vocabulary = model.config.vocab_size
    prompt = torch.randint(1, vocabulary, (1, prompt_length), device=run.device)
    answers = torch.randint(1, vocabulary, (group, length), device=run.device)
    better = torch.randn(group, 1, device=run.device)
    rows = torch.cat((prompt.expand(group, -1), answers), 1)
    for _ in run.steps():
        if run.fix == "after":
            cache = DynamicCache(config=model.config)
            first = model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            cache.batch_repeat_interleave(group)
            rest = model(input_ids=answers, past_key_values=cache, use_cache=True).logits
            logits = torch.cat((first.expand(group, -1, -1), rest[:, :-1]), 1)
        elif run.fix == "needed":
            logits = model(input_ids=rows, logits_to_keep=length + 1).logits[:, :-1]
        else:
            logits = model(input_ids=rows).logits[:, prompt_length - 1 : -1]
        chosen = torch.log_softmax(logits.float(), -1).gather(-1, answers[..., None]).squeeze(-1)
        loss = -(better * chosen).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
