#!/bin/sh
# As the official image does: a new volume gets a cluster, its superuser and what the scripts in
# /docker-entrypoint-initdb.d make; then the server.
set -e
chown postgres "$PGDATA"
as() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  as initdb -D "$PGDATA" -U "$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" -A scram-sha-256 \
    --auth-local=trust --no-sync -E UTF8 --locale=C.UTF-8
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
  echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
  as pg_ctl -D "$PGDATA" -w -o "-c listen_addresses=" start
  for script in /docker-entrypoint-initdb.d/*.sh; do . "$script"; done
  as pg_ctl -D "$PGDATA" -w -m fast stop
fi
exec setpriv --reuid=postgres --regid=postgres --init-groups "$@"
