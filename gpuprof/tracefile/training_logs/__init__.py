"""Logs and tracker files of RL post-training frameworks: the times of their iterations."""
