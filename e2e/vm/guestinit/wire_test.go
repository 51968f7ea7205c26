package guestinit

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"pgregory.net/rapid"
)

func TestFramesComeBackAsTheyWereSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pipe bytes.Buffer
		wire := NewWire(&pipe)
		sent := rapid.SliceOf(rapid.SliceOf(rapid.Byte())).Draw(t, "payloads")
		for i, p := range sent {
			if err := wire.Send(byte(i), p); err != nil {
				t.Fatal(err)
			}
		}
		for i, p := range sent {
			kind, got, err := wire.Recv()
			if err != nil || kind != byte(i) || !bytes.Equal(got, p) {
				t.Fatalf("frame %d: kind %d, %x, %v, would be %x", i, kind, got, err, p)
			}
		}
		if _, _, err := wire.Recv(); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last: %v, would be EOF", err)
		}
	})
}

func TestStreamCutsWhatIsLong(t *testing.T) {
	var pipe bytes.Buffer
	wire := NewWire(&pipe)
	long := bytes.Repeat([]byte("0123456789"), 20_000)
	if n, err := (Stream{wire, FrameStderr}).Write(long); n != len(long) || err != nil {
		t.Fatalf("wrote %d, %v, would be %d", n, err, len(long))
	}
	var got []byte
	for len(got) < len(long) {
		kind, payload, err := wire.Recv()
		if err != nil || kind != FrameStderr {
			t.Fatalf("kind %q, %v", kind, err)
		}
		got = append(got, payload...)
	}
	if !bytes.Equal(got, long) {
		t.Error("the bytes differ")
	}
}

func TestTornAndHugeFrames(t *testing.T) {
	for name, c := range map[string]struct{ raw, want string }{
		"torn head":    {"O\x00\x00", "unexpected EOF"},
		"torn payload": {"O\x00\x00\x00\x05abc", "unexpected EOF"},
		"huge":         {"O\xff\xff\xff\xff", "control port: a frame of 4294967295 bytes, at most 1048576 are allowed"},
	} {
		_, _, err := NewWire(bytes.NewBufferString(c.raw)).Recv()
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, would be: %s", name, err, c.want)
		}
	}
}

func TestComplaintsAreTheKernelsAlarms(t *testing.T) {
	for line, want := range map[string]bool{
		"WARNING: CPU: 0 PID: 1 at net/core/dev.c:1": true,
		"BUG: kernel NULL pointer dereference":       true,
		"INFO: task vtepd:12 blocked for more than":  true,
		"unregister_netdevice: waiting for lo":       true,
		"bridge: filtering via arp/ip/ip6tables":     false,
		"vxlan: BUG-free":                            false,
	} {
		if got := complaint.MatchString(line); got != want {
			t.Errorf("%q: %v, would be %v", line, got, want)
		}
	}
}
