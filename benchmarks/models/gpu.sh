#!/bin/sh
# Everything that benchmarks/models/gpu.py measures, one JSON line each, in two parts.
#
#   benchmarks/models/gpu.sh 1 [ARGUMENT]…   ceilings, updates, probe and mismatch (about 12 minutes on a GPU)
#   benchmarks/models/gpu.sh 2 [ARGUMENT]…   serving, exchange of weights, both at once (about 25 minutes)
#
# A rehearsal without a GPU: benchmarks/models/gpu.sh 1 --device cpu --model tiny --tokens 512 --length 128
# --episodes 4 --concurrent 4. PYTHON: the interpreter. MODEL_DIR: where the random model is kept.
set -u
part=$1
shift
folder=${MODEL_DIR:-runs/gpu-model}
status=0

measure() { # a failure is one line; the others go on
  "${PYTHON:-python3}" "$(dirname "$0")/gpu.py" "$@" --folder "$folder" || {
    status=1
    echo "{\"command\": \"$1\", \"failed\": true}"
  }
}

[ -e "$folder/config.json" ] || measure make "$@"
case $part in
  1)
    measure kernels "$@"
    measure train "$@"
    measure train "$@" --checkpointing
    measure train "$@" --rank 16
    measure probe "$@"
    measure mismatch "$@"
    ;;
  2)
    measure serve "$@"
    measure swap "$@"
    measure overlap "$@"
    measure overlap "$@" --rank 16
    ;;
  *)
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
exit $status
