#!/bin/sh
# As the official image does: one node with the login that a file of conf.d names.
set -e
chown rabbitmq /var/lib/rabbitmq
cat >/etc/rabbitmq/rabbitmq.conf <<END
listeners.tcp.default = 5672
loopback_users = none
END
cat /etc/rabbitmq/conf.d/*.conf >>/etc/rabbitmq/rabbitmq.conf
echo '[].' >/etc/rabbitmq/enabled_plugins
export HOME=/var/lib/rabbitmq LANG=C.UTF-8
exec setpriv --reuid=rabbitmq --regid=rabbitmq --clear-groups \
  /usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server
