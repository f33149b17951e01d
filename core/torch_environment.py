"""Variables that the libraries of torch read when they are loaded."""

# oneDNN and ideep, which torch calls for bfloat16 on a CPU, each cache up to 1,024 kernels, one for
# each shape. Every length of a trajectory is a new shape, so full caches take gigabytes.
KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "64"}

# A thread of GNU OpenMP that waits for the others first turns in a loop, for milliseconds. If a
# policy server and the trainer compute on the same cores, such threads take the time of those that
# have work, and half of the machine is lost (benchmarks/shared_cores.py).
THREAD_WAITS = {"GOMP_SPINCOUNT": "1000"}

TORCH_ENVIRONMENT = KERNEL_CACHES | THREAD_WAITS
