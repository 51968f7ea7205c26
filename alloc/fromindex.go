package alloc

import (
	"fmt"
	"net/netip"
	"strings"
)

// FromIndex is the index-th address of cidr, 0 being its first (the network address), without any ledger: the same on every
// start. This is how OpenPERouter derives a node's VTEP address. exclude is as in a Pool; an excluded address is refused, and
// not skipped, so that excluding one never moves the others.
func FromIndex(cidr netip.Prefix, index int, exclude []string) (netip.Addr, error) {
	if !cidr.IsValid() || cidr != cidr.Masked() {
		return netip.Addr{}, fmt.Errorf("index %d: %s is not a CIDR", index, cidr)
	}
	f, first := fromAddr(cidr.Addr())
	host := f.bits() - cidr.Bits()
	if index < 0 || host < 63 && index>>host != 0 {
		return netip.Addr{}, fmt.Errorf("index %d is outside %s", index, sized(cidr))
	}
	n := first.add(u128{0, uint64(index)})
	addr := toAddr(f, n)
	for _, e := range exclude {
		s, err := parseExclude(KindAddress, e)
		if err != nil {
			return netip.Addr{}, fmt.Errorf("exclude: %w", err)
		}
		if s.f == f && !n.less(s.lo) && !s.hi.less(n) {
			return netip.Addr{}, fmt.Errorf("index %d of %s is %s, which %s excludes", index, sized(cidr), addr, strings.TrimSpace(e))
		}
	}
	return addr, nil
}

// NoIndex is the error for a node without an index whose address is to come from cidr.
func NoIndex(cidr netip.Prefix) error {
	return fmt.Errorf("no index given for %s", sized(cidr))
}

func sized(cidr netip.Prefix) string {
	f, _ := fromAddr(cidr.Addr())
	host := f.bits() - cidr.Bits()
	if host > 63 {
		return fmt.Sprintf("%s (2^%d addresses)", cidr, host)
	}
	if host == 0 {
		return fmt.Sprintf("%s (1 address, index 0)", cidr)
	}
	return fmt.Sprintf("%s (%d addresses, index 0 to %d)", cidr, uint64(1)<<host, uint64(1)<<host-1)
}
