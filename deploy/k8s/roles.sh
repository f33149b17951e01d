#!/bin/sh
# Create the database and the roles of AgentRL. The image of Postgres runs this script once, as its
# superuser, on a new volume. `agentrl` owns its database and is no superuser. `agentrl_reader` may
# log in and read what `agentrl db upgrade` grants. psql reads the passwords itself, so that no command
# line shows them.
psql -v ON_ERROR_STOP=1 -q -U "$POSTGRES_USER" -d postgres <<SQL
\set owner \`cat "$SECRETS/POSTGRES_PASSWORD"\`
\set reader \`cat "$SECRETS/READER_PASSWORD"\`
CREATE ROLE agentrl LOGIN PASSWORD :'owner';
CREATE ROLE agentrl_reader LOGIN PASSWORD :'reader';
GRANT agentrl_reader TO agentrl;
CREATE DATABASE agentrl OWNER agentrl;
REVOKE ALL ON DATABASE agentrl FROM PUBLIC;
GRANT CONNECT ON DATABASE agentrl TO agentrl_reader;
SQL
