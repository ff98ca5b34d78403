"""Every property has the budget of the profile that was asked for."""

import helpers.budgets  # noqa: F401
