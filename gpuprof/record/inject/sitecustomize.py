"""Loaded by every Python of a run before its own code: arms the recording, then steps aside.

Python imports the first `sitecustomize` on its path. This one takes its folder off the path again, installs an
import hook, and hands over to the `sitecustomize` that would have been loaded without it. It must be quick, must work
under any Python 3, and must never raise: it skips what it cannot do.
"""

import sys


def _arm(here, run, trial, on_demand):
    """Loads gpuprof's recording room under a private name: the environment's own packages stay as they are."""
    import os

    package = type(sys)("_gpuprof")
    package.__path__ = [os.path.dirname(os.path.dirname(here))]
    sys.modules["_gpuprof"] = package
    if trial:
        from _gpuprof.record.trials import trial_setup  # pyright: ignore[reportMissingImports]

        trial_setup.arm(trial, run)
    if run:
        from _gpuprof.record.entry import arm  # pyright: ignore[reportMissingImports]

        arm.arm(run, notes_writes=not trial)
    elif on_demand and not trial:
        from _gpuprof.record.entry import on_demand as arming  # pyright: ignore[reportMissingImports]

        arming.arm()


def _is_helper(name):
    """Whether this Python is a multiprocessing helper, which will never train."""
    return ("multiprocessing." + name) in " ".join(getattr(sys, "orig_argv", ()))


def _hand_over(here):
    """Runs the next sitecustomize on the path, as if this one were not there."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = type(sys)("sitecustomize")
    module.__spec__, module.__file__, module.__loader__ = spec, spec.origin, spec.loader
    module.__cached__ = spec.cached
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _begin():
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    run, trial = os.environ.get("GPUPROF_RUN"), os.environ.get("GPUPROF_TRIAL")
    if _is_helper("forkserver"):
        run = None  # it takes no steps; but in a trial its forks, the workers, must not write past the scratch folder
    on_demand = os.environ.get("GPUPROF_ON_DEMAND", "").strip().lower() not in ("", "0", "false", "no", "off")
    if (run or trial or on_demand) and sys.version_info >= (3, 10) and not _is_helper("resource_tracker"):
        try:
            _arm(here, run, trial, on_demand)
        except Exception as error:
            try:
                with open(os.path.join(trial or run or os.devnull, "gpuprof.log"), "a") as log:
                    log.write("not armed in process %d: %r\n" % (os.getpid(), error))
            except Exception:
                pass
    return here


_hand_over(_begin())
