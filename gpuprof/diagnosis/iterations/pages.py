"""What `gpuprof explain` says of the changes that would shorten an iteration."""

from __future__ import annotations

from gpuprof.diagnosis.detect.proposal import Page

_TRAINING = ("training",)

PAGES: tuple[Page, ...] = (
    Page(
        id="completion_tail",
        applies=_TRAINING,
        title="A few long completions keep generation going",
        means="""
A batch decodes until its last completion ends. Where most end much earlier, the last decode steps compute tokens of a
few sequences, and the ended ones are padding.
""",
        detected="""
The lengths of the completions of each iteration, as the trainer keeps them in host memory: the longest and the 95th
percentile, which is below 90 % of the longest.
""",
        gain="""
Decoding takes the time of its steps up to the 95th percentile, at the mean time of a step; ± 10 % of what is saved.
""",
        wrong="""
Longer completions are cut, and what a reward function says of those is another thing: compare the rewards. Decode
steps get slower as the cache grows, so cutting the last ones saves a little more than their share.
""",
    ),
    Page(
        id="rewards_at_once",
        applies=_TRAINING,
        title="Reward functions wait one after another",
        means="""
Functions that ask another program (a judge behind an API, a sandbox) wait for most of their time. TRL calls functions
one after another, and awaits coroutines together.
""",
        detected="""
Wall time and CPU time of each reward function, at TRL's own timers. A function waits if its thread uses less than 30
% of the time; at least two have to, and they must not overlap already.
""",
        gain="""
Together they take as long as the slowest of them; what they compute stays.
""",
        wrong="""
If the functions wait for the same service, and it answers one request at a time, nothing is gained.
""",
    ),
    Page(
        id="generation_ahead",
        applies=_TRAINING,
        title="Generation and training take turns",
        means="""
While completions are generated and scored nothing is trained, and the other way round. An asynchronous trainer
generates the next batch on other GPUs while this one trains.
""",
        detected="""
The budget of the mean iteration by phase.
""",
        gain="""
The shorter side (generation, environment and rewards, or all the rest) is hidden behind the longer one, less the copy
of the weights where that was measured; at least half of it.
""",
        wrong="""
It needs GPUs of its own for the generator, and completions come from the policy of an iteration before: rewards may
rise more slowly per iteration. What the copy of the weights takes is not known before it is tried.
""",
    ),
    Page(
        id="decode_cpu",
        applies=_TRAINING,
        title="Decoding waits for the CPU",
        means="""
A decode step launches each kernel of the model for one token of each sequence. For small models and few sequences the
CPU takes longer for that than the GPU. A serving engine, or a compiled decode step over a static cache, launches
once.
""",
        detected="""
The share of the recorded decode steps in which a GPU works.
""",
        gain="""
At best decoding takes only the GPU's own time; the interval is 30 to 100 % of that gain, which is assumed.
""",
        wrong="""
transformers compiles the decode step over a static cache on its own, but TRL's GRPO and RLOO forbid it: a static cache
alone is cache_copies there, until `trainer.generation_config.disable_compile = False`.

An engine in the same process needs memory of its own, and the weights have to be copied to it after each update.
Compiling takes a minute once, and again for other shapes.
""",
    ),
    Page(
        id="rollout_batch",
        applies=_TRAINING,
        title="More completions at once would take as long",
        means="""
Where the CPU limits decoding, a decode step of twice the sequences takes no longer.
""",
        detected="""
The share of the recorded decode steps in which a GPU works, which is below one half.
""",
        gain="""
Per completion: decoding costs half, or what the GPU needs for twice the sequences. The figure is the iteration of
half of them.
""",
        wrong="""
More prompts in an iteration are another training: fewer updates for the same completions. The cache and the logits of
the larger batch have to fit.
""",
    ),
    Page(
        id="old_log_probabilities",
        applies=_TRAINING,
        title="The old policy's log-probabilities are computed twice",
        means="""
The generator knows the log-probability of each token that it sampled. Many trainers compute them again with the
model that trains, one forward pass over all completions.
""",
        detected="""
The time of that pass, as the framework logs it.
""",
        gain="""
The time of the pass is saved; at least 90 % of it.
""",
        wrong="""
Generator and trainer round differently, so the ratio of the two policies is not exactly 1 in the first update. Watch
the framework's measure of that difference, and correct for it (importance sampling) if it grows.
""",
    ),
    Page(
        id="generator_gpus",
        applies=_TRAINING,
        title="The trainer waits for completions",
        means="""
In an asynchronous job generation and training run at the same time on GPUs of their own. If the trainer waits for
completions, more GPUs for the generator shorten the iteration, and more for the trainer do not.
""",
        detected="""
The trainer's waiting as the framework logs it, 10 % of the iteration or more.
""",
        gain="""
With twice the generator's GPUs completions come up to twice as fast, of which 60 to 100 % is assumed to be reached;
the iteration is at least what the trainer works.
""",
        wrong="""
If one long completion holds up the batch, more GPUs do not help: see completion_tail. The split may also be changed
at the same number of GPUs: what the trainer gives up lengthens its own part.
""",
    ),
    Page(
        id="cache_copies",
        applies=_TRAINING,
        title="The key-value cache is copied for each token",
        means="""
Each decode step concatenates one token to the cache of every layer, which copies the cache whole. A static cache has
its full length from the beginning, and the token is written into its place.
""",
        detected="""
Concatenations of a tensor of many positions and one of a single position within generation. Where decode steps were
left out of the recording, number and time are extrapolated from those that were recorded.
""",
        gain="""
The concatenations take 40 % of what they took, 20 to 70 % (assumed). Nothing where the CPU keeps a GPU waiting for most
of decoding: a step over a static cache that is not compiled took the CPU 1.1 to 1.25 times as long (measured).
""",
        wrong="""
Attention over a static cache reads its full length, filled or not. On a GPU transformers also compiles the decode step
over a static cache, where the trainer does not forbid it: that is decode_cpu.
""",
    ),
    Page(
        id="serving_engine",
        applies=_TRAINING,
        title="transformers.generate is slower than a serving engine",
        means="""
Serving engines such as vLLM keep the batch full, launch a decode step as one CUDA graph and hold the cache in pages.
""",
        detected="""
Generation by transformers.generate, and the share of it in which the GPU works.
""",
        gain="""
A range from published throughput, not from this run: 2 to 15 times the tokens per second, 5 as expected. It is not
more than the GPU's recorded work without ended sequences allows.
""",
        wrong="""
The engine needs memory next to the training, and the weights have to be copied to it after each update, which is not
in the figure. Its kernels round differently: the trainer corrects for that, or the training changes a little.
""",
    ),
    Page(
        id="ended_sequences",
        applies=_TRAINING,
        title="Ended sequences stay in the batch",
        means="""
A generate loop computes a token for every sequence of its batch until the longest has ended. With continuous batching
ended sequences leave.
""",
        detected="""
Tokens that the loops computed, less those of the completions.
""",
        gain="""
At most the GPU's time for tokens of ended sequences; half of it is expected (assumed). A decode step of generate_batch
costs the CPU 5.5 times what one of generate does, 2 to 8 (measured without flash attention: 57 ms instead of 10 next to
an H100, 100 and 135 instead of 19 next to an H200), and a call 0.5 s more, 0.2 to 3.
""",
        wrong="""
transformers' continuous batching schedules on the CPU, and has CUDA graphs with flash attention only: where the CPU
limits decoding it is several times slower.
""",
    ),
    Page(
        id="reference_pass",
        applies=_TRAINING,
        title="The reference policy is computed",
        means="""
With beta above 0 the loss has a penalty for leaving the reference policy, whose log-probabilities take one forward
pass over all completions.
""",
        detected="""
The trainer's beta, the time of log-probabilities without gradients, and how often they are computed.
""",
        gain="""
The time of one of these passes.
""",
        wrong="""
It is another training: many recipes use beta 0 since the clipped ratio keeps updates small, some need the penalty.
""",
    ),
    Page(
        id="one_pass",
        applies=_TRAINING,
        title="Old policy and reference are computed one after the other",
        means="""
Both need the same completions. With adapters both are the same model, with the adapters on and off, so one pass over
twice the rows can do both, and the CPU launches the kernels once.
""",
        detected="""
Two or more passes without gradients an iteration, and the share of them in which the GPU works.
""",
        gain="""
The CPU's share of the passes that are saved; 70 % of it is expected, and nothing at the low end (assumed).
""",
        wrong="""
Where the GPU limits the passes nothing is gained. Twice the rows need twice the activations and logits.
""",
    ),
    Page(
        id="padded_completions",
        applies=_TRAINING,
        title="Completions are padded to the longest",
        means="""
All micro-batches of an iteration are as long as its longest completion. Micro-batches by tokens are each as long as
their own.
""",
        detected="""
The lengths of the completions as the trainer keeps them: tokens, less the longest times their number.
""",
        gain="""
At most the GPU's time for padding in log-probabilities, forward and backward passes; 70 % of it is expected, 20 % at
the low end (assumed).
""",
        wrong="""
Prompts are padded too, and are not counted. Where the CPU limits these passes shorter rows gain nothing.
""",
    ),
    Page(
        id="weight_sync",
        applies=_TRAINING,
        title="The weights reach the generator slowly",
        means="""
After each update the generator gets the new weights. Parameter by parameter, or with adapters merged first, this takes
longer than their bytes need.
""",
        detected="""
The time of the phase, and the bytes of the model's parameters.
""",
        gain="""
The bytes at 20 GB/s, 5 to 100 (assumed); of a model with adapters only their bytes.
""",
        wrong="""
The phase contains other things too: the engine falls asleep and wakes up, adapters are merged. A faster link does not
shorten those.
""",
    ),
    Page(
        id="rewards_beside",
        applies=_TRAINING,
        title="Rewards wait while the model is idle",
        means="""
Scores and log-probabilities need the completions and not each other. Reward functions that wait for another program
can do so while the model computes log-probabilities.
""",
        detected="""
Reward functions whose thread uses less than 30 % of the time, and the time of log-probabilities without gradients.
""",
        gain="""
The shorter of the two is hidden behind the longer; at least half of it.
""",
        wrong="""
TRL has no argument for it: the functions have to start before the pass and be awaited after it.
""",
    ),
)
