package lab

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/net/bpf"
)

// The headers of a frame, from the inside out.
func udp(port uint16, b []byte) []byte {
	h := make([]byte, 8)
	binary.BigEndian.PutUint16(h[2:], port)
	binary.BigEndian.PutUint16(h[4:], uint16(8+len(b)))
	return append(h, b...)
}

func ipv4(src, dst string, b []byte) []byte {
	h := make([]byte, 20)
	h[0], h[8], h[9] = 0x45, 64, 17
	copy(h[12:], netip.MustParseAddr(src).AsSlice())
	copy(h[16:], netip.MustParseAddr(dst).AsSlice())
	return append(h, b...)
}

func ipv6(src, dst string, b []byte) []byte {
	h := make([]byte, 40)
	h[0], h[6], h[7] = 0x60, 17, 64
	copy(h[8:], netip.MustParseAddr(src).AsSlice())
	copy(h[24:], netip.MustParseAddr(dst).AsSlice())
	return append(h, b...)
}

func ethernet(kind uint16, b []byte) []byte {
	return append(binary.BigEndian.AppendUint16(make([]byte, 12), kind), b...)
}

func vlan(b []byte) []byte {
	return append(append(append([]byte{}, b[:12]...), 0x81, 0, 0, 100), b[12:]...)
}

func vxlan(vni uint32, b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, vni<<8), b...)
}

func TestReadFrame(t *testing.T) {
	ours := payload(3, 70000, time.Unix(1, 0), 64)
	bare := ethernet(0x0800, ipv4("172.16.100.1", "172.16.100.2", udp(trafficPort, ours)))
	bare6 := ethernet(0x86dd, ipv6("fd00:100::1", "fd00:100::2", udp(trafficPort, ours)))
	in4 := ethernet(0x0800, ipv4("10.255.0.11", "10.255.0.12", udp(4789, vxlan(16777215, bare))))
	in6 := ethernet(0x86dd, ipv6("fd00:ff::11", "fd00:ff::12", udp(4789, vxlan(100, bare6))))
	ip := netip.MustParseAddr
	tests := []struct {
		name string
		b    []byte
		want frame
		ok   bool
	}{
		{"bare", bare, frame{flow: 3, seq: 70000, src: ip("172.16.100.1"), dst: ip("172.16.100.2")}, true},
		{"bare IPv6", bare6, frame{flow: 3, seq: 70000, src: ip("fd00:100::1"), dst: ip("fd00:100::2")}, true},
		{"VLAN", vlan(bare), frame{flow: 3, seq: 70000, src: ip("172.16.100.1"), dst: ip("172.16.100.2")}, true},
		{"VXLAN", in4, frame{flow: 3, seq: 70000, vxlan: true, vni: 16777215, src: ip("10.255.0.11"), dst: ip("10.255.0.12")}, true},
		{"VXLAN over IPv6", in6, frame{flow: 3, seq: 70000, vxlan: true, vni: 100, src: ip("fd00:ff::11"), dst: ip("fd00:ff::12")}, true},
		{"cut off by the capture", in6[:snapLen-6], frame{flow: 3, seq: 70000, vxlan: true, vni: 100, src: ip("fd00:ff::11"), dst: ip("fd00:ff::12")}, true},
		{name: "other UDP", b: ethernet(0x0800, ipv4("10.0.0.1", "10.0.0.2", udp(53, make([]byte, 64))))},
		{name: "other VXLAN", b: ethernet(0x0800, ipv4("10.0.0.1", "10.0.0.2", udp(4789, vxlan(1, make([]byte, 64)))))},
		{name: "VXLAN in VXLAN", b: ethernet(0x0800, ipv4("10.0.0.1", "10.0.0.2", udp(4789, vxlan(1, in4))))},
		{name: "ARP", b: ethernet(0x0806, make([]byte, 64))},
		{name: "empty"},
	}
	for _, tt := range tests {
		got, ok := readFrame(tt.b)
		if ok != tt.ok || ok && got != tt.want {
			t.Errorf("%s: %+v, %v; want %+v, %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
	if snapLen < len(in6)-len(ours)+payloadSize {
		t.Errorf("a capture of %d bytes cuts off what is needed of a VXLAN packet over IPv6", snapLen)
	}

	vm, err := bpf.NewVM(udpOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		b    []byte
		pass bool
	}{
		{"bare", bare, true},
		{"bare IPv6", bare6, true},
		{"VXLAN", in4, true},
		{"VXLAN over IPv6", in6, true},
		{"ARP", ethernet(0x0806, make([]byte, 64)), false},
		{"TCP", bytes.Replace(bare, []byte{64, 17}, []byte{64, 6}, 1), false},
		{"ICMPv6", bytes.Replace(bare6, []byte{17, 64}, []byte{58, 64}, 1), false},
	} {
		n, err := vm.Run(tt.b)
		if err != nil || (n > 0) != tt.pass {
			t.Errorf("filter: %s: %d, %v; want %v", tt.name, n, err, tt.pass)
		}
	}
}

// FuzzReadFrame: no frame makes the reader read what isn't there.
func FuzzReadFrame(f *testing.F) {
	bare := ethernet(0x0800, ipv4("172.16.100.1", "172.16.100.2", udp(trafficPort, payload(3, 70000, time.Unix(1, 0), 64))))
	f.Add(bare)
	f.Add(ethernet(0x86dd, ipv6("fd00::1", "fd00::2", udp(4789, vxlan(100, vlan(bare))))))
	f.Fuzz(func(t *testing.T, b []byte) {
		if fr, ok := readFrame(b); ok && !bytes.Contains(b, payload(fr.flow, fr.seq, time.Time{}, 0)[:14]) {
			t.Fatalf("%+v", fr)
		}
	})
}

func TestPcap(t *testing.T) {
	c := capture{frames: []captured{{time: time.Unix(7, 9), data: []byte{1, 2, 3, 4}, total: 60}}}
	path := filepath.Join(t.TempDir(), "x.pcap")
	if err := c.write(path); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []byte{
		0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, snapLen, 0, 0, 0, 1, 0, 0, 0,
		7, 0, 0, 0, 9, 0, 0, 0, 4, 0, 0, 0, 60, 0, 0, 0, 1, 2, 3, 4,
	}
	if !bytes.Equal(got, want) {
		t.Errorf("% x, want\n% x", got, want)
	}
}
