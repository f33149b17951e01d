#!/bin/sh
# As the official image does: one node with the user and password that the environment names.
set -e
chown rabbitmq /var/lib/rabbitmq
cat >/etc/rabbitmq/rabbitmq.conf <<END
listeners.tcp.default = 5672
loopback_users = none
default_user = $RABBITMQ_DEFAULT_USER
default_pass = $RABBITMQ_DEFAULT_PASS
END
echo '[].' >/etc/rabbitmq/enabled_plugins
export HOME=/var/lib/rabbitmq LANG=C.UTF-8
exec setpriv --reuid=rabbitmq --regid=rabbitmq --clear-groups \
  /usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server
