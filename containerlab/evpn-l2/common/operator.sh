#!/bin/sh
# What the operator of a leaf has beside vtepd's things, which vtepd must leave
# as it is: VNI 999 with its own endpoint address on lo, and a kernel route.
# usage: operator.sh ENDPOINT GATEWAY
set -e

# bgpd can crash when a VXLAN is there before its EVPN instance.
until vtysh -c 'show running-config' 2>/dev/null | grep -q advertise-all-vni; do
	sleep 1
done

ip link add br999 type bridge
ip link add vxlan999 type vxlan id 999 local "$1" dstport 4789 nolearning
ip link set vxlan999 master br999
ip link set vxlan999 up
ip link set br999 up
ip route add 198.51.100.0/24 via "$2" metric 77
