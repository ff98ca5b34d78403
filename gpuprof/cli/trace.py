"""`gpuprof trace`: runs a training command and records a few of its steps."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof.cli import trace_without_click
from gpuprof.cli.shared.option_types import WholeNumber
from gpuprof.errors import GpuprofError
from gpuprof.record.base.options import DEFAULTS, LARGEST_NUMBER, OPTIONS, Option

if TYPE_CHECKING:
    import click

    from gpuprof.record.launcher.supervise import Around


def run(request: trace_without_click.TraceRequest) -> int:
    """Runs the target and returns its exit code; if a signal ended the target, dies of the same signal. Raises
    GpuprofError if the target cannot be started."""
    if not hasattr(os, "posix_spawn") or not sys.platform.startswith("linux"):
        raise GpuprofError("gpuprof trace runs on Linux only; gpuprof diagnose reads recordings on any system")
    from gpuprof.record.launcher.command import CannotStart, resolve
    from gpuprof.record.launcher.supervise import end_as, supervise

    if request.ncu is not None:
        return _count(request.ncu, request)
    if request.on_demand or _is_on_demand():
        return _arm(request)
    around = _around(request.options)
    try:
        target = resolve(request.words, request.module, sys.executable, has_torch)
        status = supervise(target, request.options, request.out, closing_command, around)
    except CannotStart as error:
        raise GpuprofError(str(error)) from None
    return end_as(status)


def _is_on_demand() -> bool:
    """Whether the environment asks for --on-demand; false inside a target that is being recorded."""
    from gpuprof.record.entry.on_demand import VARIABLE, is_wanted

    return is_wanted(os.environ.get(VARIABLE))


def _count(recording: str, request: trace_without_click.TraceRequest) -> int:
    """Runs the target under Nsight Compute. Raises GpuprofError."""
    from gpuprof.cli.count_kernels import run as count
    from gpuprof.record.launcher.command import CannotStart, resolve

    given = [option.flag for option in OPTIONS if request.options[option.name] != option.default]
    given += [trace_without_click.ON_DEMAND] if request.on_demand else []
    if given:
        raise GpuprofError(f"with --ncu one step is counted and nothing else recorded: leave out {', '.join(given)}")
    try:
        target = resolve(request.words, request.module, sys.executable, has_torch)
    except CannotStart as error:
        raise GpuprofError(str(error)) from None
    return count(recording, request.out, target)


def _arm(request: trace_without_click.TraceRequest) -> int:
    """Becomes the target, whose processes are armed. Raises GpuprofError if that fails."""
    from gpuprof.record.entry.armed_target import become
    from gpuprof.record.launcher.command import CannotStart, resolve

    given = [option.flag for option in OPTIONS if request.options[option.name] != option.default]
    given += ["--out"] if request.out is not None else []
    if given:
        raise GpuprofError(f"with --on-demand nothing is recorded yet: give {', '.join(given)} to gpuprof attach")
    try:
        become(resolve(request.words, request.module, sys.executable, has_torch))
    except CannotStart as error:
        raise GpuprofError(str(error)) from None


def _around(options: dict[str, object]) -> Around | None:
    """The wrapper that runs the target under Nsight Systems, if requested. Raises GpuprofError."""
    if not options["nsys"]:
        if options["gpu_metrics"]:
            raise GpuprofError("--gpu-metrics needs --nsys: Nsight Systems samples them")
        return None
    for name in ("stacks", "memory"):
        if options[name]:
            raise GpuprofError(
                f"--{name} is recorded by torch.profiler and cannot be combined with --nsys: leave one of the two out"
            )
    from gpuprof.nsight.call import NsysError
    from gpuprof.nsight.find import find
    from gpuprof.nsight.profile import profile_command, profile_help, why_no_metrics
    from gpuprof.record.launcher.tell import tell

    try:
        nsys = find()
        help_text = profile_help(nsys)
        why = why_no_metrics(nsys, help_text) if options["gpu_metrics"] else None
        if why is not None:
            tell(f"GPU counters are not sampled: {why}")
            options["gpu_metrics"] = False
        metrics = bool(options["gpu_metrics"])
        profile_command(nsys, help_text, Path(), metrics)
    except NsysError as error:
        raise GpuprofError(f"{error}. Without --nsys, gpuprof trace records with torch.profiler") from None
    tell(f"Nsight Systems {nsys.version_text}: {nsys.path}")
    return lambda report, command: [*profile_command(nsys, help_text, report, metrics), *command]


def has_torch() -> bool:
    """Whether our own interpreter has torch, without importing it."""
    from importlib.util import find_spec

    try:
        spec = find_spec("torch")
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None  # a mere folder named torch does not count


def closing_command(folder: Path, running: str, diagnose: bool) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the process that reads and compresses a recording: our Python with our path, without
    the recording hooks. running: as for `after_recording.main`."""
    from gpuprof.record.job_nodes.nodes import shared_url
    from gpuprof.record.job_nodes.signed import TOKEN
    from gpuprof.record.launcher.target_environment import INJECT
    from gpuprof.runfile import RUN_VARIABLE

    root, here = str(Path(__file__).parents[2]), str(Path.cwd())
    # The working directory may hold anything, such as a random.py, so it is not on the path.
    path = [root, *(entry for entry in sys.path if entry not in ("", ".", here, root, str(INJECT)))]
    imported = "from gpuprof.cli.shared.after_recording import main"
    code = f"import sys; sys.path[:] = sys.argv[4:]; {imported}; main(*sys.argv[1:4])"
    what = [running, "diagnose" if diagnose else ""]
    left_out = (RUN_VARIABLE, "PYTHONPATH", *(() if shared_url() else (TOKEN,)))
    variables = {name: value for name, value in os.environ.items() if name not in left_out}
    threads = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    variables |= dict.fromkeys(threads, "1")
    return [sys.executable, "-I", "-c", code, str(folder), *what, *path], variables


def _command() -> click.Command:
    import click

    class Trace(click.Command):
        """Passes the target's words on unparsed."""

        def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
            ours, words = trace_without_click.split(args)
            return super().parse_args(ctx, [*ours, "--", *words] if words else ours)

    def ranks(_: click.Context, __: click.Parameter, text: str | None) -> list[int] | None:
        found = None if text is None else trace_without_click.ranks(text)
        if text is not None and found is None:
            raise click.BadParameter(f"{text!r} is not a list of ranks such as 0,1")
        return found

    def parameter(option: Option) -> click.Option:
        flags = f"{option.flag}/{option.opposite}" if option.opposite else option.flag
        if isinstance(option.default, bool):
            return click.Option([flags], is_flag=True, default=option.default, help=option.help)
        if option.least is None:
            return click.Option([flags], callback=ranks, metavar=option.metavar, help=option.help)
        return click.Option(
            [flags], type=WholeNumber(option.least, LARGEST_NUMBER), default=option.default, metavar=option.metavar,
            help=option.help,
        )  # fmt: skip

    @click.command(
        cls=Trace,
        params=[parameter(option) for option in OPTIONS],
        short_help="Run a training command, record a few steps, print the verdict.",
        context_settings={"allow_interspersed_args": False},
        options_metavar="[OPTIONS]",
    )
    @click.option("--out", metavar="DIR", help="Run folder, new or empty (default gpuprof-runs/DATE_NAME).")
    @click.option("--on-demand", is_flag=True, help="Record nothing yet: gpuprof attach does, while TARGET runs.")
    @click.option(
        "--ncu",
        metavar="RECORDING",
        help="Collect Nsight Compute counters of the ten largest kernels of this recording of TARGET.",
    )
    @click.option("-m", "module", metavar="MODULE", help="Run a module, like python -m.")
    @click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="TARGET…")
    def command(
        out: str | None,
        on_demand: bool,
        ncu: str | None,
        module: str | None,
        words: tuple[str, ...],
        **options: Any,
    ) -> int:
        """Run TARGET unchanged, record a few of its steps, and print why they take as long as they do.

        TARGET is your usual command: train.py --lr 1e-4, torchrun …, accelerate launch …, python …. Everything after
        it is passed on unchanged, and so are input, output, exit code and signals.
        """
        for flag, text in (("--out", out), ("-m", module), ("--ncu", ncu)):
            if text == "":
                raise click.UsageError(f"{flag} needs a name")
        asked = {name: options[name] for name in DEFAULTS}
        return run(trace_without_click.TraceRequest(asked, out, module, words, on_demand, ncu))

    return command


def __getattr__(name: str) -> Any:
    """`command`, created on demand: the fast path does not import click."""
    if name == "command":
        globals()["command"] = made = _command()
        return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
