#!/bin/sh
# The first process of a router's container: FRR's own start-up, then wait.
set -e
install -d -m 0755 -o frr -g frr /var/run/frr
# The daemons before watchfrr: where they take longer than its five seconds, it starts them again while they are being started, and
# staticd can end up without its configuration.
/usr/lib/frr/watchfrr.sh start all
/usr/lib/frr/frrinit.sh start
# As the first process it is the parent of every daemon. One that was killed and that nobody waited for would count as running, and
# watchfrr would not start it again.
sleep infinity &
wait
