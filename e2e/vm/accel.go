package vm

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// kvmDeadline is how long a guest under a working KVM may take to come up; it
// takes about a second.
const kvmDeadline = 20 * time.Second

// ProvenAccel is "kvm" where a guest was seen to boot with it since the host
// started, else "tcg": /dev/kvm can be there and its guests hang.
func ProvenAccel(ctx context.Context, m Machine) string {
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err != nil {
		return "tcg"
	} else if f.Close() != nil {
		return "tcg"
	}
	note := kvmNote()
	if said, err := os.ReadFile(note); note != "" && err == nil {
		return string(said)
	}
	accel := "tcg"
	m.Accel, m.Console, m.Shares, m.Timeout = "kvm", "", nil, kvmDeadline
	if g, err := Boot(ctx, m); err == nil {
		accel = "kvm"
		// A machine that was only a probe has nothing to lose.
		_ = g.Close()
	} else if ctx.Err() != nil {
		return accel
	}
	if note != "" {
		// Without the note the next start proves it again.
		_ = os.WriteFile(note, []byte(accel), 0o644)
	}
	return accel
}

// kvmNote is the file that remembers the answer until the host restarts.
func kvmNote() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	cache, err := Default.Cache()
	if err != nil {
		return ""
	}
	return filepath.Join(filepath.Dir(cache), "kvm-"+strings.TrimSpace(string(boot)))
}
