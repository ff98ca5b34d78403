"""Pages of `gpuprof explain` on the phases of an iteration."""

from __future__ import annotations

from gpuprof.diagnosis.detect.declared.proposal import Page

_TRAINING = ("training",)

PAGES: tuple[Page, ...] = (
    Page(
        id="generation",
        applies=_TRAINING,
        title="Phase: completions are generated",
        means="""
The policy writes completions for the prompts: one pass over the prompt (prefill), then one pass for each token (decode)
until the longest completion has ended. In asynchronous jobs it is the time that the trainer waits for completions.
""",
        detected="""
`transformers.generate`, vLLM and the methods of TRL's trainers that call them; `gpuprof.phase("generation")`; in logs
`gen`, `generation`, `exposed_generation`, `train_wait`. In a recording without marks: series of one-token passes.
""",
        gain="""
See completion_tail (the longest completions), decode_cpu (CPU cost per token), cache_copies, ended_sequences,
serving_engine, rollout_batch and generation_ahead.
""",
        wrong="""
If another process generates, this phase is waiting: the GPU that waits is not the one that works.
""",
    ),
    Page(
        id="environment",
        applies=_TRAINING,
        title="Phase: tools and environments",
        means="""
Between generated turns tools are called and environments take steps, which usually means waiting for other programs.
""",
        detected="""
TRL's `_tool_call_loop`, and `gpuprof.phase("environment")`. In logs it is part of generation.
""",
        gain="""
generation_ahead overlaps it with the training.
""",
        wrong="""
The slowest environment of a batch holds up all others, which the mean does not show.
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
TRL's `_calculate_rewards`, with name, wall time and CPU time of each function; `gpuprof.phase("reward")`; in logs
`reward` and `reward_calculation`.
""",
        gain="""
See rewards_at_once (functions that wait one after another), rewards_in_processes (functions that compute),
rewards_beside and generation_ahead.
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
A forward pass over all completions for the old policy, another for the reference, and values of a critic.
""",
        detected="""
TRL's `_get_per_token_logps_and_entropies` without gradients (with gradients it is the forward pass of the training);
in logs `old_log_prob`, `ref`, `values`, `policy_and_reference_logprobs`, `log_probs`, `make_experience`.
""",
        gain="""
See reference_pass, one_pass, old_log_probabilities and padded_completions.
""",
        wrong="""
OpenRLHF's make_experience and SkyRL's forward phase also contain scoring by a reward model.
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
The part of TRL's `_generate_and_score_completions` and `_prepare_inputs` outside the other phases; in logs `adv`.
""",
        gain="""
Usually milliseconds. A long phase decodes or tokenizes text, or gathers over ranks.
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
One or more optimizer steps on the completions, as in supervised training. All findings for training apply to it.
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
After the update the generator gets the new weights. If both use the same GPUs, the engine goes to sleep before the
training and wakes up after it.
""",
        detected="""
TRL's `sync_weights`; in logs `update_weights`, `weight_sync`, `broadcast`, `sleep`, `wake_up`.
""",
        gain="""
See weight_sync.
""",
        wrong="""
Some frameworks start it before the training has ended, so the logged time overlaps with other phases.
""",
    ),
)
