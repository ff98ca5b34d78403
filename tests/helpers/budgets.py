"""How many examples a property is tried on: three tenths of what a test names by default, ten
times what it names with HYPOTHESIS_PROFILE=thorough."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
TIMES = {"quick": 0.3, "thorough": 10}
"""Examples of a profile, in multiples of what a test names."""
USUAL = 30
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}

for _name, _times in TIMES.items():
    settings.register_profile(
        _name,
        max_examples=round(USUAL * _times),
        deadline=None,
        derandomize=IN_CI,  # a change is not blamed for what another draw would have found before it
        suppress_health_check=[
            HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large,
        ],
    )  # fmt: skip
settings.load_profile(PROFILE)


def budget(examples: int) -> settings:
    """Settings of a property that is tried on three tenths as many examples by default."""
    return settings(max_examples=times(examples))


def times(count: int) -> int:
    """A number of seeds or examples, as the profile has it."""
    return max(round(count * TIMES[PROFILE]), 1)
