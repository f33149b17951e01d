"""Variables that the libraries of torch read when they are loaded."""

from collections.abc import Mapping

# oneDNN and ideep, which torch calls for bfloat16 on a CPU, each cache up to 1,024 kernels, one for
# each shape. Every length of a trajectory is a new shape, so full caches take gigabytes.
KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "64"}

# A thread of GNU OpenMP that waits for the others first spins, for milliseconds. If a policy server
# and the trainer compute on the same cores with several threads each, spinning threads take the
# time of those that have work (benchmarks/shared_cores.py).
THREAD_WAITS = {"GOMP_SPINCOUNT": "1000"}
WAIT_POLICY = "OMP_WAIT_POLICY"  # GNU OpenMP prefers the spin count to it

# CUDA numbers the fastest card first, nvidia-smi by the PCI bus. With one order, `cuda:1` is the
# card that nvidia-smi lists as 1 (ops/doctor/machine.py).
CARD_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def missing_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set: those that the user has not decided."""
    wanted = KERNEL_CACHES | CARD_ORDER | ({} if WAIT_POLICY in environ else THREAD_WAITS)
    return {name: value for name, value in wanted.items() if name not in environ}
