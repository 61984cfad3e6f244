"""The checks of `parlab doctor`: which parts work on this machine. Each one is tried, not only looked for."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from parlab.world.comm import Comm
from parlab.world.processes.machine import INSTALL_MPI, check
from parlab.world.run import run
from parlab.world.units import format_bytes

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Finding(NamedTuple):
    """One thing, whether it works, what was seen, and the command that adds it; `needed` by the notebooks."""

    name: str
    works: bool
    seen: str
    remedy: str = ""
    needed: bool = False


def _notebooks() -> str:
    code = "import ipykernel, ipywidgets, jupyterlab, matplotlib.pyplot as p; p.figure(); print(jupyterlab.__version__)"
    return f"JupyterLab {_said([sys.executable, '-W', 'ignore', '-c', code], MPLBACKEND='agg')}"


def _threads() -> str:
    return f"4 ranks add up to {_sum(4):g}"


def _cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{usable} usable"


def _blas() -> str:
    from threadpoolctl import threadpool_info

    x = np.arange(10000.0).reshape(100, 100)
    if (x @ x)[3, 4] != x[3] @ x[:, 4]:
        raise RuntimeError("a matrix product is wrong")
    found = [f"{lib['internal_api']} {lib['version']}, {lib['num_threads']} threads" for lib in threadpool_info()]
    return "; ".join(found) or "one that is not known, left as it is"


def _memory() -> str:
    np.ones(2**24).sum()  # 128 MiB
    if not hasattr(os, "sysconf") or "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return "128 MiB could be used"
    return f"{format_bytes(os.sysconf('SC_AVPHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))} free"


def _sum(ranks: int, xp: Any = np, engine: str = "threads") -> float:
    return float(run(Comm.all_reduce, ranks, xp.ones(3), engine=engine).results[0][0])


def _gpu() -> str:
    cupy = importlib.import_module("cupy")
    if float(cupy.ones(3).sum()) != 3:
        raise RuntimeError("a sum is wrong")
    return f"{cupy.cuda.runtime.getDeviceCount()} with CuPy {cupy.__version__}"


def _nccl() -> str:
    cupy = importlib.import_module("cupy")
    check("nccl", 1)
    ranks = min(2, cupy.cuda.runtime.getDeviceCount())
    total = _sum(ranks, cupy, "nccl")
    return f"version {cupy.cuda.nccl.get_version()}; processes on {ranks} GPUs add up to {total:g}"


def _chromium() -> str:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise RuntimeError("not on PATH")
    return _said([path, "--version"])


def _said(command: list[str], **variables: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **variables})
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it failed"])[-1])
    return done.stdout.strip()


CHECKS: list[tuple[str, Callable[[], str], str, bool]] = [
    ("Python", lambda: sys.version.split()[0], "", True),
    ("notebooks", _notebooks, "make lab, or python -m pip install -e '.[lab]'", True),
    ("threads", _threads, "python -m pip install -e .", True),
    ("cores", _cores, "", False),
    ("BLAS", _blas, "python -m pip install --force-reinstall numpy", True),
    ("memory", _memory, "close other programs: the notebooks need about 1 GiB", True),
    ("MPI", lambda: f"2 processes add up to {_sum(2, engine='mpi'):g}", INSTALL_MPI, False),
    ("GPU", _gpu, "python -m pip install 'cupy-cuda12x[ctk]'", False),
    ("NCCL", _nccl, "python -m pip install nvidia-nccl-cu12", False),
    ("Chromium", _chromium, "apt-get install chromium (only make test uses it)", False),
]


def findings() -> list[Finding]:
    """Try everything, in turn."""
    found = []
    for name, attempt, remedy, needed in CHECKS:
        try:
            found.append(Finding(name, True, attempt(), needed=needed))
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            found.append(Finding(name, False, f"{lines[0]:.100}", remedy, needed))
    return found


def table(found: list[Finding]) -> str:
    """The findings as lines of text, and what to do about what is missing."""
    lines = []
    for name, works, seen, remedy, needed in found:
        state = "ok" if works else "MISSING" if needed else "absent"
        lines.append(f"{name:<10} {state:<8} {seen}" + (f"\n{'':<19} {remedy}" if remedy else ""))
    broken = [finding.name for finding in found if finding.needed and not finding.works]
    lines.append(f"the notebooks cannot run: {', '.join(broken)}" if broken else "the notebooks can run")
    return "\n".join(lines)
