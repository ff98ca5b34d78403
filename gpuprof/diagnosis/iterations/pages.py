"""Pages of `gpuprof explain` on the changes that would shorten an iteration."""

from __future__ import annotations

from gpuprof.calibration import inference as inference_calibrated
from gpuprof.calibration import iterations as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.declared.proposal import Page
from gpuprof.diagnosis.iterations.changes import COMPUTES, MOST_BUSY_OF_FUNCTIONS, PROCESSES_SAVED

_TRAINING = ("training",)

PAGES: tuple[Page, ...] = (
    Page(
        id="completion_tail",
        applies=_TRAINING,
        title="A few long completions keep generation going",
        means="""
A batch decodes until its last completion ends. If most end much earlier, the last decode steps compute tokens for a
few sequences only, and the ended ones are padding.
""",
        detected="""
The lengths of each iteration's completions, which the trainer keeps in host memory: the 95th percentile is below 90 %
of the longest.
""",
        gain=f"""
Decoding takes the time of its steps up to the 95th percentile, at the mean time of a step; ±
{percent(calibrated.SPREAD.value)} % of what is saved.
""",
        wrong="""
Longer completions are cut, and their rewards may change: compare the rewards. Decode steps get slower as the cache
grows, so cutting the last ones saves a little more than their share.
""",
    ),
    Page(
        id="rewards_at_once",
        applies=_TRAINING,
        title="Reward functions wait one after another",
        means="""
Functions that call another program (a judge behind an API, a sandbox) wait most of the time. TRL calls functions one
after another; GRPO and RLOO await coroutines together.
""",
        detected=f"""
Wall time and CPU time of each reward function, from TRL's own timers, or from gpuprof's where it has none. A function
waits if its thread uses the CPU for less than {percent(calibrated.WAITS.value)} % of the time; at least two must wait,
each for 3 % of the rewards' time or more, and they must not overlap already.
""",
        gain="""
Together they take as long as the slowest of them; their results do not change.
""",
        wrong="""
If the functions call the same service and it answers one request at a time, nothing is gained.
""",
    ),
    Page(
        id="rewards_in_processes",
        applies=_TRAINING,
        title="Reward functions compute one completion after another",
        means="""
Comparing formulas (sympy, math_verify), parsing code or measuring an edit distance is work for the CPU, and Python does
it on one core, for one completion after another, while the GPU and the other cores wait. Each completion is scored by
itself, so processes can share them.
""",
        detected=f"""
Wall time and CPU time of each reward function: its thread uses the CPU for at least {percent(COMPUTES)} % of the time,
and a GPU works for at most {percent(MOST_BUSY_OF_FUNCTIONS)} % of the recorded rewards (a reward model keeps it busy).
""",
        gain=f"""
The time is divided by the number of cores, at most by that of completions; {percent(PROCESSES_SAVED[1])} % of what that
saves is expected, and {percent(PROCESSES_SAVED[0])} % of the whole time at the low end (assumed).
""",
        wrong="""
Functions have to be importable, and what they get and return must be plain data. If one completion takes nearly all of
the time (an endless comparison), a timeout for each helps more.
""",
    ),
    Page(
        id="generation_ahead",
        applies=_TRAINING,
        title="Generation and training take turns",
        means="""
While completions are generated and scored nothing is trained, and vice versa. An asynchronous trainer generates the
next batch on other GPUs while this one trains.
""",
        detected="""
The budget of the mean iteration by phase.
""",
        gain="""
The shorter side (generation, environment and rewards, or everything else) overlaps with the longer one, minus the copy
of the weights if that was measured; at least half of it.
""",
        wrong="""
The generator needs its own GPUs, and completions come from the policy of the previous iteration: rewards may rise more
slowly per iteration. The time to copy the weights is unknown until you try it.
""",
    ),
    Page(
        id="decode_cpu",
        applies=_TRAINING,
        title="Decoding waits for the CPU",
        means="""
A decode step launches each kernel of the model for one token of each sequence. For small models and few sequences the
CPU needs longer to launch them than the GPU to run them. A serving engine, or a compiled decode step over a static
cache, launches once.
""",
        detected="""
The share of the recorded decode steps in which a GPU works.
""",
        gain="""
At best decoding takes only the GPU's own time; the interval is 30 to 100 % of that gain (assumed).
""",
        wrong="""
transformers compiles the decode step over a static cache by itself, but TRL's GRPO and RLOO disable that: there a
static cache alone gives cache_copies, unless you set `trainer.generation_config.disable_compile = False`.

An engine in the same process needs its own memory, and the weights must be copied to it after each update.
Compiling takes a minute once, and again for new shapes.
""",
    ),
    Page(
        id="rollout_batch",
        applies=_TRAINING,
        title="More completions at once would take as long",
        means="""
If the CPU limits decoding, a decode step with twice the sequences takes no longer.
""",
        detected="""
The share of the recorded decode steps in which a GPU works, which is below one half.
""",
        gain="""
Per completion a decode step and a pass over the batch cost half, or as much as the GPU needs for twice the sequences;
rewards that wait cost half, at worst as much. The figure is the time for half of the larger iteration, as `gpuprof
project --set per_device_train_batch_size=…` computes it.
""",
        wrong="""
More prompts per iteration change the training: there are fewer updates for the same number of completions. The cache
and the logits of the larger batch must fit.
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
In an asynchronous job generation and training run at the same time, each on its own GPUs. If the trainer waits for
completions, more GPUs for the generator shorten the iteration, while more for the trainer do not.
""",
        detected=f"""
The trainer's waiting as the framework logs it, {percent(calibrated.BOUND.value)} % of the iteration or more.
""",
        gain=f"""
With twice the generator's GPUs completions come up to twice as fast; {percent(calibrated.SCALES.low)} to
{percent(calibrated.SCALES.high)} % of that is assumed to be reached. The iteration takes at least as long as the
trainer works.
""",
        wrong="""
If one long completion holds up the batch, more GPUs do not help: see completion_tail. You can also move GPUs from the
trainer to the generator, which lengthens the trainer's own part.
""",
    ),
    Page(
        id="cache_copies",
        applies=_TRAINING,
        title="The key-value cache is copied for each token",
        means="""
Each decode step concatenates one token to the cache of every layer, which copies the whole cache. A static cache has
its full length from the beginning, and each token is written into its place.
""",
        detected="""
Concatenations of a tensor with many positions and one with a single position during generation. If decode steps were
left out of the recording, number and time are extrapolated from the recorded ones.
""",
        gain=f"""
The concatenations take {percent(inference_calibrated.CACHE_LEFT.value)} % of their time,
{percent(inference_calibrated.CACHE_LEFT.low)} to {percent(inference_calibrated.CACHE_LEFT.high)} % (assumed). Nothing
if the GPU waits for the CPU during most of decoding: an uncompiled step over a static cache took the CPU 1.1 to 1.25
times as long (measured).
""",
        wrong="""
Attention over a static cache reads its full length, filled or not. On a GPU transformers also compiles the decode step
over a static cache unless the trainer disables that: see decode_cpu.
""",
    ),
    Page(
        id="serving_engine",
        applies=_TRAINING,
        title="transformers.generate is slower than a serving engine",
        means="""
Serving engines such as vLLM keep the batch full, launch a decode step as one CUDA graph and store the cache in pages.
""",
        detected="""
Generation by transformers.generate, and the share of it in which the GPU works.
""",
        gain=f"""
A range from published throughput, not from this run: {calibrated.ENGINE.low:g} to {calibrated.ENGINE.high:g} times the
tokens per second, {calibrated.ENGINE.value:g} expected. It is limited by the GPU's recorded work without ended
sequences.
""",
        wrong="""
The engine needs memory in addition to the training, and the weights must be copied to it after each update, which the
figure does not include. Its kernels round differently: the trainer corrects for that, or the training changes a little.
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
Tokens that the loops computed − tokens of the completions.
""",
        gain=f"""
At most the GPU's time for tokens of ended sequences; half of it is expected (assumed). A decode step of generate_batch
costs the CPU {calibrated.CONTINUOUS_STEP.value:g} times as much as one of generate, {calibrated.CONTINUOUS_STEP.low:g}
to {calibrated.CONTINUOUS_STEP.high:g} (measured without flash attention: 57 ms instead of 10 with an H100, 100 and 135
instead of 19 with an H200), and a call takes {calibrated.CONTINUOUS_S.value:g} s more, {calibrated.CONTINUOUS_S.low:g}
to {calibrated.CONTINUOUS_S.high:g}.
""",
        wrong="""
transformers' continuous batching schedules on the CPU, and uses CUDA graphs only with flash attention: if the CPU
limits decoding it is several times slower.
""",
    ),
    Page(
        id="reference_pass",
        applies=_TRAINING,
        title="The reference policy is computed",
        means="""
With beta above 0 the loss penalises the distance from the reference policy, whose log-probabilities take one forward
pass over all completions.
""",
        detected="""
The trainer's beta, the time of log-probabilities without gradients, and how often they are computed.
""",
        gain="""
The time of one of these passes.
""",
        wrong="""
It changes the training: many recipes use beta 0 because the clipped ratio keeps updates small; some need the penalty.
""",
    ),
    Page(
        id="one_pass",
        applies=_TRAINING,
        title="Old policy and reference are computed one after the other",
        means="""
Both use the same completions. With adapters both are the same model, with the adapters on and off, so one pass over
twice the rows computes both, and the CPU launches the kernels once.
""",
        detected="""
Two or more passes without gradients per iteration, and the share of their time in which the GPU works.
""",
        gain="""
The CPU's share of the passes that are saved; 70 % of it is expected, and nothing at the low end (assumed).
""",
        wrong="""
If the GPU limits the passes nothing is gained. Twice the rows need twice the activations and logits.
""",
    ),
    Page(
        id="padded_completions",
        applies=_TRAINING,
        title="Completions are padded to the longest",
        means="""
All micro-batches of an iteration are as long as its longest completion. Micro-batches formed by tokens are only as long
as their own longest.
""",
        detected="""
The lengths of the completions, which the trainer keeps: tokens / (the longest × the number of completions).
""",
        gain="""
At most the GPU's time for padding in log-probabilities, forward and backward passes; 70 % of it is expected, 20 % at
the low end (assumed).
""",
        wrong="""
Prompts are padded too but not counted. If the CPU limits these passes, shorter rows gain nothing.
""",
    ),
    Page(
        id="weight_sync",
        applies=_TRAINING,
        title="The weights reach the generator slowly",
        means="""
After each update the generator gets the new weights. Copied parameter by parameter, or with adapters merged first, they
take longer than their bytes need.
""",
        detected="""
The time of the phase, and the size of the model's parameters.
""",
        gain=f"""
The bytes at {calibrated.SYNC_RATE.value:g} GB/s, {calibrated.SYNC_RATE.low:g} to {calibrated.SYNC_RATE.high:g}
(assumed); for a model with adapters only the adapters' bytes.
""",
        wrong="""
The phase contains other work too: the engine goes to sleep and wakes up, adapters are merged. A faster link does not
shorten those.
""",
    ),
    Page(
        id="rewards_beside",
        applies=_TRAINING,
        title="Rewards wait while the model is idle",
        means="""
Scores and log-probabilities need the completions but not each other. Reward functions that wait for another program can
do so while the model computes log-probabilities.
""",
        detected=f"""
Reward functions that use the CPU for less than {percent(calibrated.WAITS.value)} % of their time, and the time of
log-probabilities without gradients.
""",
        gain="""
The shorter of the two overlaps with the longer; at least half of it.
""",
        wrong="""
TRL has no argument for this: the functions must start before the pass and be awaited after it.
""",
    ),
)
