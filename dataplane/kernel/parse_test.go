package kernel

import (
	"testing"

	mdl "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

func portMessage(t testing.TB, attrs func(*mdl.AttributeEncoder)) []byte {
	t.Helper()
	b, err := encode(unix.AF_BRIDGE, 42, 0, 0, attrs)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParsePort(t *testing.T) {
	full := portMessage(t, func(e *mdl.AttributeEncoder) {
		nested(e, unix.IFLA_PROTINFO, func(e *mdl.AttributeEncoder) {
			e.Uint8(unix.IFLA_BRPORT_LEARNING, 1)
			e.Uint8(unix.IFLA_BRPORT_NEIGH_SUPPRESS, 1)
		})
		nested(e, unix.IFLA_AF_SPEC, func(e *mdl.AttributeEncoder) {
			e.Bytes(bridgeVLANInfo, native.AppendUint16(native.AppendUint16(nil, vlanUntagged), 7))
			e.Bytes(bridgeVLANInfo, native.AppendUint16(native.AppendUint16(nil, vlanPVID|vlanUntagged), 10))
		})
	})
	index, p, err := parsePort(full)
	if want := (port{learning: true, neighSuppress: true, pvid: 10, untagged: true}); err != nil || index != 42 || p != want {
		t.Errorf("%d, %+v, %v", index, p, err)
	}
	for _, c := range []struct {
		b    []byte
		want string
	}{
		{nil, "bridge port message of 0 bytes"},
		{full[:15], "bridge port message of 15 bytes"},
		{portMessage(t, func(e *mdl.AttributeEncoder) {
			nested(e, unix.IFLA_AF_SPEC, func(e *mdl.AttributeEncoder) { e.Bytes(bridgeVLANInfo, []byte{1, 2}) })
		}), "bridge port message: VLAN of 2 bytes"},
	} {
		if _, _, err := parsePort(c.b); err == nil || err.Error() != c.want {
			t.Errorf("%v, wanted %q", err, c.want)
		}
	}
}

func FuzzParsePort(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(portMessage(f, func(e *mdl.AttributeEncoder) {
		nested(e, unix.IFLA_PROTINFO, func(e *mdl.AttributeEncoder) { e.Uint8(unix.IFLA_BRPORT_LEARNING, 1) })
		vlan(e, 10, vlanPVID)
	}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if index, p, err := parsePort(b); err != nil && (index != 0 || p != port{}) {
			t.Errorf("an error and a value: %d, %+v, %v", index, p, err)
		}
	})
}

func TestCutKeepsAnOpTogether(t *testing.T) {
	m := func(op, size int) message {
		return message{Message: mdl.Message{Data: make([]byte, size-unix.NLMSG_HDRLEN)}, number: op}
	}
	for _, c := range []struct {
		batch []message
		size  int
		want  int
	}{
		{[]message{m(1, 100)}, 50, 1},
		{[]message{m(1, 100), m(2, 100)}, 200, 2},
		{[]message{m(1, 100), m(2, 100)}, 199, 1},
		{[]message{m(1, 100), m(2, 100), m(2, 100), m(3, 100)}, 299, 1},
		{[]message{m(1, 100), m(2, 100), m(2, 100), m(3, 100)}, 300, 3},
		{[]message{m(1, 100), m(1, 100), m(2, 100)}, 50, 2},
	} {
		if got := cut(c.batch, c.size); got != c.want {
			t.Errorf("cut into %d: %d, wanted %d", c.size, got, c.want)
		}
	}
}

func TestIndexesAreFreeAndWrap(t *testing.T) {
	k := &Kernel{last: lastIndex - 1}
	w := &writer{k: k, details: map[string]*detail{"a": {index: firstIndex}, "b": {index: 3}}}
	for _, want := range []int32{lastIndex, firstIndex + 1, firstIndex + 2} {
		if got := w.index(); got != want {
			t.Errorf("index %d, wanted %d", got, want)
		}
	}
}
