#!/bin/sh
# The first process of a router's container: FRR's own start-up, then wait.
set -e
install -d -m 0755 -o frr -g frr /var/run/frr
/usr/lib/frr/frrinit.sh start
exec sleep infinity
