"""Logs and tracker files of RL post-training frameworks: what they say of their iterations."""
