package alloc

import (
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"
)

// u128 is an unsigned number as wide as an IPv6 address.
type u128 struct{ hi, lo uint64 }

func (x u128) cmp(y u128) int {
	switch {
	case x.hi != y.hi && x.hi < y.hi, x.hi == y.hi && x.lo < y.lo:
		return -1
	case x == y:
		return 0
	}
	return 1
}

func (x u128) less(y u128) bool { return x.cmp(y) < 0 }

func (x u128) add(y u128) u128 {
	lo, carry := bits.Add64(x.lo, y.lo, 0)
	hi, _ := bits.Add64(x.hi, y.hi, carry)
	return u128{hi, lo}
}

func (x u128) sub(y u128) u128 {
	lo, borrow := bits.Sub64(x.lo, y.lo, 0)
	hi, _ := bits.Sub64(x.hi, y.hi, borrow)
	return u128{hi, lo}
}

func (x u128) inc() u128 { return x.add(u128{0, 1}) }
func (x u128) dec() u128 { return x.sub(u128{0, 1}) }

func (x u128) shr(n int) u128 {
	switch {
	case n == 0:
		return x
	case n >= 64:
		return u128{0, x.hi >> (n - 64)}
	}
	return u128{x.hi >> n, x.lo>>n | x.hi<<(64-n)}
}

func (x u128) shl(n int) u128 {
	switch {
	case n == 0:
		return x
	case n >= 64:
		return u128{x.lo << (n - 64), 0}
	}
	return u128{x.hi<<n | x.lo>>(64-n), x.lo << n}
}

// uint64 is x, or the largest uint64 when it doesn't fit.
func (x u128) uint64() uint64 {
	if x.hi != 0 {
		return math.MaxUint64
	}
	return x.lo
}

// family is the space that a value lives in.
type family uint8

const (
	numbers family = iota
	ipv4
	ipv6
)

func (f family) bits() int {
	if f == ipv4 {
		return 32
	}
	return 128
}

func fromAddr(a netip.Addr) (family, u128) {
	if a.Is4() {
		b := a.As4()
		return ipv4, u128{0, uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return ipv6, u128{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func toAddr(f family, x u128) netip.Addr {
	if f == ipv4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(x.lo))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], x.hi)
	binary.BigEndian.PutUint64(b[8:], x.lo)
	return netip.AddrFrom16(b)
}
