package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	mdl "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"vtepd/dataplane"
)

var native = binary.NativeEndian

// What golang.org/x/sys/unix lacks of linux/if_bridge.h and linux/rtnetlink.h.
const (
	filterBRVLAN   = 1 << 1 // RTEXT_FILTER_BRVLAN
	bridgeVLANInfo = 2      // IFLA_BRIDGE_VLAN_INFO
	vlanPVID       = 1 << 1
	vlanUntagged   = 1 << 2
)

// genModeNone is IN6_ADDR_GEN_MODE_NONE: no link-local address of the kernel's making.
const genModeNone = 1

// encode makes the body of a link message: struct ifinfomsg and attributes.
func encode(family uint8, index int32, flags, change uint32, attrs func(*mdl.AttributeEncoder)) ([]byte, error) {
	b := make([]byte, unix.SizeofIfInfomsg)
	b[0] = family
	native.PutUint32(b[4:], uint32(index))
	native.PutUint32(b[8:], flags)
	native.PutUint32(b[12:], change)
	e := mdl.NewAttributeEncoder()
	attrs(e)
	a, err := e.Encode()
	return append(b, a...), err
}

func link(typ mdl.HeaderType, more mdl.HeaderFlags, family uint8, index int32, up *bool, attrs func(*mdl.AttributeEncoder)) (mdl.Message, error) {
	var flags, change uint32
	if up != nil {
		change = unix.IFF_UP
		if *up {
			flags = unix.IFF_UP
		}
	}
	b, err := encode(family, index, flags, change, attrs)
	return mdl.Message{Header: mdl.Header{Type: typ, Flags: mdl.Request | more}, Data: b}, err
}

func none(*mdl.AttributeEncoder) {}

// nested runs fn for the attributes inside typ.
func nested(e *mdl.AttributeEncoder, typ uint16, fn func(*mdl.AttributeEncoder)) {
	e.Nested(typ, func(e *mdl.AttributeEncoder) error {
		fn(e)
		return nil
	})
}

func flag(on bool) uint8 {
	if on {
		return 1
	}
	return 0
}

// kindData writes what the kernel needs to make a link of l's kind.
func kindData(e *mdl.AttributeEncoder, l dataplane.Link) error {
	var err error
	nested(e, unix.IFLA_LINKINFO, func(e *mdl.AttributeEncoder) {
		e.String(unix.IFLA_INFO_KIND, string(l.Kind))
		nested(e, unix.IFLA_INFO_DATA, func(e *mdl.AttributeEncoder) {
			switch l.Kind {
			case dataplane.VXLAN:
				e.Uint32(unix.IFLA_VXLAN_ID, l.VNI)
				local(e, l.Local)
				e.Uint8(unix.IFLA_VXLAN_LEARNING, flag(l.Learning))
				e.Bytes(unix.IFLA_VXLAN_PORT, binary.BigEndian.AppendUint16(nil, l.Port))
			case dataplane.Bridge:
				e.Uint32(unix.IFLA_BR_STP_STATE, 0)
				if l.VLANAware {
					vlanAware(e, true)
				}
			case dataplane.IPVLAN:
				m := slices.Index(modes, l.Mode)
				if m < 0 {
					err = fmt.Errorf("%w: unknown ipvlan mode %q", dataplane.ErrInTheWay, l.Mode)
					return
				}
				e.Uint16(unix.IFLA_IPVLAN_MODE, uint16(m))
			}
		})
	})
	return err
}

func local(e *mdl.AttributeEncoder, a netip.Addr) {
	switch {
	case a.Is4():
		e.Bytes(unix.IFLA_VXLAN_LOCAL, a.AsSlice())
	case a.Is6():
		e.Bytes(unix.IFLA_VXLAN_LOCAL6, a.AsSlice())
	}
}

func vlanAware(e *mdl.AttributeEncoder, on bool) {
	e.Uint8(unix.IFLA_BR_VLAN_FILTERING, flag(on))
	pvid := uint16(1) // the kernel's default
	if on {
		pvid = 0
	}
	e.Uint16(unix.IFLA_BR_VLAN_DEFAULT_PVID, pvid)
}

// address makes an RTM_NEWADDR or RTM_DELADDR.
func address(typ mdl.HeaderType, index int32, p netip.Prefix) (mdl.Message, error) {
	family, flags := uint8(unix.AF_INET), uint8(0)
	if p.Addr().Is6() {
		family = unix.AF_INET6
		if typ == unix.RTM_NEWADDR {
			flags = unix.IFA_F_NODAD // FRR doesn't look at an address while it is tentative
		}
	}
	more := mdl.HeaderFlags(0)
	if typ == unix.RTM_NEWADDR {
		more = mdl.Create | mdl.Replace
	}
	b := make([]byte, unix.SizeofIfAddrmsg)
	b[0], b[1], b[2], b[3] = family, uint8(p.Bits()), flags, unix.RT_SCOPE_UNIVERSE
	native.PutUint32(b[4:], uint32(index))
	e := mdl.NewAttributeEncoder()
	e.Bytes(unix.IFA_LOCAL, p.Addr().AsSlice())
	e.Bytes(unix.IFA_ADDRESS, p.Addr().AsSlice())
	a, err := e.Encode()
	return mdl.Message{Header: mdl.Header{Type: typ, Flags: mdl.Request | more}, Data: append(b, a...)}, err
}
