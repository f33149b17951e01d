# Stand-ins for the images postgres and rabbitmq where no registry can be reached: Debian's packages,
# started with the variables of the official images that docker-compose.yml sets.
ARG BASE
FROM ${BASE} AS postgres
RUN apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
    postgresql util-linux && rm -rf /var/lib/apt/lists/* && ln -s /usr/lib/postgresql/*/bin /opt/postgres
ENV PATH=/opt/postgres:$PATH PGDATA=/var/lib/postgresql/data
RUN rm -rf /var/lib/postgresql/* && install -d -o postgres $PGDATA
COPY postgres.sh /usr/local/bin/entrypoint
ENTRYPOINT ["/bin/sh", "/usr/local/bin/entrypoint"]
CMD ["postgres"]

FROM ${BASE} AS rabbitmq
RUN apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
    rabbitmq-server util-linux && rm -rf /var/lib/apt/lists/* /var/lib/rabbitmq/*
COPY rabbitmq.sh /usr/local/bin/entrypoint
ENTRYPOINT ["/bin/sh", "/usr/local/bin/entrypoint"]
