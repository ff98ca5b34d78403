"""Trainings on their own generations (GRPO, RLOO, online DPO): the budget of an iteration by phase."""
