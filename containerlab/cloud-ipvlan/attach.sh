#!/bin/sh
# How a leaf hangs on the cloud's network. As deployed its instance routes for it. The other way, "bridged", is how containers
# mostly do: a bridge of the instance's NIC and a port of the leaf's, so that the leaf's packets leave the instance with the
# leaf's own MAC. Only the way between the two endpoints is laid there; BGP stays where it was.
# usage, in an instance: attach.sh vm bridged|routed ADDRESS
#        in a leaf:      attach.sh leaf bridged|routed ADDRESS OTHER ENDPOINT
#        where OTHER is the other leaf's ADDRESS, and ENDPOINT the other leaf's VTEP
set -e
case "$1 $2" in
"vm bridged")
	ip link add br0 type bridge
	ip link set br0 address "$(cat /sys/class/net/eth1/address)"
	ip addr del "$3" dev eth1
	ip link set eth1 master br0
	ip link set eth3 master br0
	ip link set br0 up
	ip addr add "$3" dev br0
	ip route add default via 192.0.2.1
	;;
"vm routed")
	ip link del br0
	ip addr add "$3" dev eth1
	ip route add default via 192.0.2.1
	;;
"leaf bridged")
	ip addr add "$3/32" dev eth2
	ip route add "$4/32" dev eth2
	ip route add "$5/32" via "$4" dev eth2
	;;
"leaf routed")
	ip route del "$5/32" via "$4" dev eth2
	ip route del "$4/32" dev eth2
	ip addr del "$3/32" dev eth2
	;;
*)
	echo "usage: attach.sh vm|leaf bridged|routed ADDRESS [OTHER ENDPOINT]" >&2
	exit 2
	;;
esac
