#!/usr/bin/env bash
# Measures training steps on a machine with a GPU, JAX and PyTorch, and no network, in 6 minutes:
#   benchmarks/gpu.sh --output gpu.json
# What is missing of gpu_wheels.txt comes from the wheels in gpu_wheels/, 60 MB at most.
set -euo pipefail
shopt -s nullglob
here=$(cd "$(dirname "$0")" && pwd)
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
missing=$(python3 - "$here"/gpu_wheels/*.whl <<'PYTHON'
import importlib.metadata, pathlib, sys
for wheel in sys.argv[1:]:
    try:
        importlib.metadata.version(pathlib.Path(wheel).name.split("-")[0])
    except importlib.metadata.PackageNotFoundError:
        print(wheel)
PYTHON
)
[ -z "$missing" ] || xargs -d '\n' python3 -m pip install --quiet --no-index --no-deps --no-compile \
  --target "$site" <<<"$missing"
PYTHONPATH="$site:$here/..${PYTHONPATH:+:$PYTHONPATH}" python3 "$here/gpu.py" --minutes 5.5 \
  --sides jax jax_fused torch "$@"
