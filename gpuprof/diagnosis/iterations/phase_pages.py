"""What `gpuprof explain` says of the phases of an iteration."""

from __future__ import annotations

from gpuprof.diagnosis.detect.proposal import Page

_TRAINING = ("training",)

PAGES: tuple[Page, ...] = (
    Page(
        id="generation",
        applies=_TRAINING,
        title="Phase: completions are generated",
        means="""
The policy writes completions for the prompts: one pass over the prompt (prefill), then one pass for each token (decode)
until the longest completion has ended. In asynchronous jobs it is what the trainer waits for completions.
""",
        detected="""
`transformers.generate`, vLLM and the methods of TRL's trainers that call them; `gpuprof.phase("generation")`; in logs
`gen`, `generation`, `exposed_generation`, `train_wait`. In a recording without marks series of passes of one token.
""",
        gain="""
See completion_tail (its longest completions), decode_cpu (the CPU's cost of a token), cache_copies, ended_sequences,
serving_engine, rollout_batch and generation_ahead.
""",
        wrong="""
Where another process generates, the phase is waiting: the GPU that waits is not the one that works.
""",
    ),
    Page(
        id="environment",
        applies=_TRAINING,
        title="Phase: tools and environments",
        means="""
Between generated turns tools are called and environments take steps, which is waiting for other programs as a rule.
""",
        detected="""
TRL's `_tool_call_loop`, and `gpuprof.phase("environment")`. In logs it is part of generation.
""",
        gain="""
generation_ahead hides it behind the training.
""",
        wrong="""
The slowest environment of a batch holds up all others: the mean says little of that.
""",
    ),
    Page(
        id="reward",
        applies=_TRAINING,
        title="Phase: completions are scored",
        means="""
Reward functions or a reward model score the completions.
""",
        detected="""
TRL's `_calculate_rewards`, with each function by its name, wall time and CPU time; `gpuprof.phase("reward")`; in logs
`reward` and `reward_calculation`.
""",
        gain="""
See rewards_at_once (functions that wait one after another), rewards_beside and generation_ahead.
""",
        wrong="""
Functions that compute gain nothing from running at the same time in one process: Python runs one of them at a time.
""",
    ),
    Page(
        id="log-probabilities",
        applies=_TRAINING,
        title="Phase: log-probabilities without gradients",
        means="""
A forward pass over all completions for the old policy, another one for the reference, and values of a critic.
""",
        detected="""
TRL's `_get_per_token_logps_and_entropies` without gradients (with gradients it is the forward pass of the training);
in logs `old_log_prob`, `ref`, `values`, `policy_and_reference_logprobs`, `log_probs`, `make_experience`.
""",
        gain="""
See reference_pass, one_pass, old_log_probabilities and padded_completions.
""",
        wrong="""
OpenRLHF's make_experience and SkyRL's forward phase contain scoring by a reward model too.
""",
    ),
    Page(
        id="advantage",
        applies=_TRAINING,
        title="Phase: advantages, and preparing the batch",
        means="""
Rewards become advantages; completions are padded, masked and put onto the GPU.
""",
        detected="""
What TRL's `_generate_and_score_completions` and `_prepare_inputs` do apart from the other phases; in logs `adv`.
""",
        gain="""
Milliseconds as a rule. A long phase decodes or tokenizes text, or gathers over ranks.
""",
        wrong="""
Waiting for the slowest rank in a gather counts here.
""",
    ),
    Page(
        id="training",
        applies=_TRAINING,
        title="Phase: forward, backward, optimizer",
        means="""
One or more optimizer steps on the completions: what a supervised training does all the time. All findings for
trainings apply to it.
""",
        detected="""
TRL's `training_step`, backward passes and optimizer steps; in logs `update_actor`, `policy_training`, `actor_train`.
""",
        gain="""
See the fixes of the diagnosis, and padded_completions.
""",
        wrong="""
It may be the smaller part of the iteration: halving it then gains little.
""",
    ),
    Page(
        id="weight-sync",
        applies=_TRAINING,
        title="Phase: the weights reach the generator",
        means="""
After the update the generator gets the new weights. Where both use the same GPUs, the engine falls asleep before the
training and wakes up after it.
""",
        detected="""
TRL's `sync_weights`; in logs `update_weights`, `weight_sync`, `broadcast`, `sleep`, `wake_up`.
""",
        gain="""
See weight_sync.
""",
        wrong="""
Some frameworks start it before the training has ended, and what they log overlaps with other phases.
""",
    ),
)
