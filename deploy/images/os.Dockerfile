# What episodes of the os task run in: bash, the usual tools, python3 (3.11 or newer), and nothing of
# ours: programs are sent into the container. Its user is root, its root can be written to within a
# bound, its network is none.
#
#   docker build -t agentrl-os -f deploy/images/os.Dockerfile deploy/images
#
# INSTALL=0 leaves the package lists alone: for a base that holds all of it, without a network.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
ARG INSTALL=1
ARG PACKAGES="bash coreutils findutils grep gawk sed procps sudo util-linux passwd tar gzip bzip2 xz-utils diffutils file less bc cron"
RUN [ "$INSTALL" = 0 ] || { apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $PACKAGES \
 && rm -rf /var/lib/apt/lists/*; }
RUN for tool in bash find grep awk sed tar gzip head tail sort uniq cut tr wc stat useradd su setsid; \
    do command -v "$tool" >/dev/null || { echo "the base has no $tool" >&2; exit 1; }; done \
 && python3 -c 'import ctypes, json, os, signal, sys; assert sys.version_info >= (3, 11), sys.version'
WORKDIR /root
CMD ["bash"]
