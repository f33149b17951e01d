#!/bin/sh
# Everything that benchmarks/gpu.py measures, one JSON line each, in two parts.
#
#   benchmarks/gpu.sh 1 [ARGUMENT]…   ceilings, updates, probe and mismatch (about 12 minutes on a GPU)
#   benchmarks/gpu.sh 2 [ARGUMENT]…   serving, exchange of weights, both at once (about 25 minutes)
#
# PYTHON: the interpreter. MODEL_DIR: where the random model is kept. A rehearsal without a GPU:
#
#   benchmarks/gpu.sh 1 --device cpu --model tiny --tokens 512 --length 128 --episodes 4 --concurrent 4
#   benchmarks/gpu.sh 2 --device cpu --model tiny --tokens 512 --length 128 --episodes 4 --concurrent 4
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

prepare() {
  [ -e "$folder/config.json" ] || measure make "$@"
}

case $part in
  1)
    prepare "$@"
    measure kernels "$@"
    measure train "$@"
    measure train "$@" --checkpointing
    measure train "$@" --rank 16
    measure probe "$@"
    measure mismatch "$@"
    ;;
  2)
    prepare "$@"
    measure serve "$@"
    measure swap "$@"
    measure overlap "$@"
    measure overlap "$@" --rank 16
    ;;
  *)
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
exit $status
