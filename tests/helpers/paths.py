"""Where the checkout is, and the recordings that do not come with it."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("GPUPROF_SHARED") or ROOT.parent / "shared")
"""Recordings too large, or not ours, to be in the repository."""
