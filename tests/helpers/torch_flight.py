"""What torch's own tool for flight recorder dumps (`torchfrtrace`) finds in them: a second opinion."""

from __future__ import annotations

import json
import pickle
import subprocess
from collections.abc import Sequence
from pathlib import Path

from helpers.started import environment
from helpers.warm_torch import warm_python

SCRIPT = """
import json, logging, sys
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dir

logging.disable()
found = {}
for folder in sys.argv[1:]:
    args = JobConfig().parse_args([folder, "--allow-incomplete-ranks"])
    details, version = read_dir(args)
    collectives = build_db(details, args, version).collectives
    found[folder] = [
        {
            "group": one.group_id, "members": sorted(one.expected_ranks), "seq": one.collective_seq_id,
            "missing": sorted(one.missing_ranks or ()),
            "others": {rank: str(of.type_of_mismatch) for rank, of in (one.mismatch_collectives or {}).items()},
        }
        for one in collectives
        if one.missing_ranks or not one.pass_check
    ]
print(json.dumps(found))
"""


def torchs_answers(folders: Sequence[Path]) -> dict[Path, list[dict]]:
    """By folder, the collectives that ranks did not reach (`missing`) or called differently (`others`), in the order in
    which torch's tool looks at them."""
    script = folders[0].parent / "torch_flight.py"
    script.write_text(SCRIPT)
    words = [warm_python(), str(script), *map(str, folders)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=180)
    assert done.returncode == 0, done.stderr
    return {Path(folder): rows for folder, rows in json.loads(done.stdout.splitlines()[-1]).items()}


def as_nccl_dumps_it(dump: bytes, groups: dict[str, list[int]]) -> bytes:
    """A dump of gloo with what torch's tool needs and gloo leaves out: the members of groups, and what is completed."""
    document = pickle.loads(dump)
    described = {entry["process_group"][0]: entry["process_group"][1] for entry in document["entries"]}
    document["pg_config"] = {
        name: {"name": name, "desc": described.get(name, "undefined"), "ranks": str(ranks)}
        for name, ranks in groups.items()
    }
    for entry in document["entries"]:
        entry["state"] = "completed" if entry["retired"] else "started"
    return pickle.dumps(document, 2)
