"""Reads what Nsight Systems exports as SQLite (schemas 2.9 to 3.25, its versions 2022.1 to 2026.2)."""
