"""Run each `benchmarks/bench_*.py`, or those named on the command line; each prints its table from `main()`."""

import sys
from importlib import import_module
from pathlib import Path

PREFIX = "bench_"


def run(names: list[str]) -> None:
    found = sorted(path.stem.removeprefix(PREFIX) for path in Path(__file__).parent.glob(f"{PREFIX}*.py"))
    unknown = [name for name in names if name not in found]
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}: choose from {', '.join(found)}")
    for name in names or found:
        print(f"== {name}", flush=True)
        import_module(f"benchmarks.{PREFIX}{name}").main()


if __name__ == "__main__":
    run(sys.argv[1:])
