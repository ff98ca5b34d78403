"""The roles of runs whose processes marked phases, with checks of their sums."""

from __future__ import annotations

import json

from jsonschema import Draft202012Validator

from gpuprof.diagnosis.roles.model import DOCUMENT as ROLES
from gpuprof.diagnosis.roles.model import Roles
from gpuprof.diagnosis.roles.sources import diagnose_roles
from gpuprof.tracefile.recording import resolve

VALIDATOR = Draft202012Validator(ROLES.schema())


def diagnosed(*paths: str) -> Roles:
    """The roles, once their JSON was found to be valid and their times to sum exactly."""
    found = diagnose_roles(resolve(paths))
    VALIDATOR.validate(json.loads(json.dumps(ROLES.to_json(found))))
    for one in found.roles:
        assert sum(phase.ns for phase in one.phases) + one.wait_ns == found.window_ns
        assert one.busy_ns + one.wait_ns == found.window_ns
        assert sum(span.ns for span in one.lane) == found.window_ns
        assert one.bubble_ns <= one.wait_ns
    assert sum(one.ns for one in found.waits) == sum(one.wait_ns for one in found.roles)
    return found
