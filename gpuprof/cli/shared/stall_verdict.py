"""The verdict on a run that stalls, for `gpuprof trace`: a line or two on stderr, and hang.json in the run's folder."""

from __future__ import annotations

from pathlib import Path

from gpuprof import runfile
from gpuprof.errors import GpuprofError
from gpuprof.hang.judge import judge
from gpuprof.hang.load_states import states_of
from gpuprof.record.launcher.tell import tell

KEPT = "hang.json"


def main(folder: str) -> None:
    """Judges the run, prints the answer and writes it. Never raises for the ranks' files."""
    from gpuprof.hang.hang_json import to_json
    from gpuprof.report.words import hang_words as words

    try:
        states, now_ns = states_of([folder])
    except GpuprofError as error:
        runfile.log(Path(folder), f"why it stalls is not known: {error}")
        return
    found = judge(states, now_ns)
    tell(f"{words.headline(found)}: {' '.join(words.sentences(found))}")
    tell(f"gpuprof hang {folder} shows all ranks")
    runfile.write_json(Path(folder) / runfile.HANG / KEPT, to_json(found, states))
