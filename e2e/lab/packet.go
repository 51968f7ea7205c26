package lab

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/net/bpf"
)

// trafficPort is the UDP port of the hosts' packets.
const trafficPort = 47474

// payloadSize is of what the analysis needs; a packet may be longer.
const payloadSize = 8 + 2 + 4 + 8

const magic = "vtepd\x00tr"

// payload makes the content of a packet: which one it is, and when it was sent.
func payload(flow uint16, seq uint32, sent time.Time, size int) []byte {
	b := make([]byte, max(size, payloadSize))
	copy(b, magic)
	binary.BigEndian.PutUint16(b[8:], flow)
	binary.BigEndian.PutUint32(b[10:], seq)
	binary.BigEndian.PutUint64(b[14:], uint64(sent.UnixNano()))
	return b
}

// readPayload is the inverse of payload.
func readPayload(b []byte) (flow uint16, seq uint32, ok bool) {
	if len(b) < payloadSize || string(b[:8]) != magic {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(b[8:]), binary.BigEndian.Uint32(b[10:]), true
}

// frame is what a captured frame has to say: one packet of the hosts', bare or
// in VXLAN.
type frame struct {
	flow     uint16
	seq      uint32
	vxlan    bool
	vni      uint32
	src, dst netip.Addr // of the outermost header
}

// readFrame takes an Ethernet frame apart, through one VXLAN header at most.
func readFrame(b []byte) (f frame, ok bool) {
	src, dst, udp, ok := readUDP(b)
	if !ok {
		return f, false
	}
	f.src, f.dst = src, dst
	if f.flow, f.seq, ok = readPayload(udp); ok {
		return f, true
	}
	// RFC 7348: flags with the I bit, 24 reserved bits, the VNI, 8 reserved bits.
	if len(udp) < 8 || udp[0]&0x08 == 0 {
		return f, false
	}
	f.vxlan, f.vni = true, binary.BigEndian.Uint32(udp[4:])>>8
	if _, _, udp, ok = readUDP(udp[8:]); !ok {
		return f, false
	}
	f.flow, f.seq, ok = readPayload(udp)
	return f, ok
}

// readUDP returns the addresses and the payload of a UDP packet in an Ethernet
// frame, which may be cut off.
func readUDP(b []byte) (src, dst netip.Addr, payload []byte, ok bool) {
	if len(b) < 14 {
		return src, dst, nil, false
	}
	kind := binary.BigEndian.Uint16(b[12:])
	b = b[14:]
	for kind == 0x8100 || kind == 0x88a8 {
		if len(b) < 4 {
			return src, dst, nil, false
		}
		kind = binary.BigEndian.Uint16(b[2:])
		b = b[4:]
	}
	const udp = 17
	switch kind {
	case 0x0800:
		header := 0
		if len(b) >= 20 {
			header = int(b[0]&0xf) * 4
		}
		if header < 20 || len(b) < header || b[9] != udp || binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
			return src, dst, nil, false
		}
		src, dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		b = b[header:]
	case 0x86dd:
		if len(b) < 40 || b[6] != udp {
			return src, dst, nil, false
		}
		src, dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		b = b[40:]
	default:
		return src, dst, nil, false
	}
	if len(b) < 8 {
		return src, dst, nil, false
	}
	return src, dst, b[8:], true
}

// udpOnly is a socket filter that lets UDP over IPv4 and IPv6 pass.
var udpOnly = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 12, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0x0800, SkipFalse: 2},
	bpf.LoadAbsolute{Off: 14 + 9, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 17, SkipTrue: 3, SkipFalse: 4},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0x86dd, SkipFalse: 3},
	bpf.LoadAbsolute{Off: 14 + 6, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 17, SkipFalse: 1},
	bpf.RetConstant{Val: 1 << 18},
	bpf.RetConstant{Val: 0},
}

// everything is a socket filter that lets every frame pass.
var everything = []bpf.Instruction{bpf.RetConstant{Val: 1 << 18}}
