package vm

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ProbeNative says whether this host's kernel can take the guest's place, by
// making one link of each kind in a new network namespace. The error names what
// is missing.
func ProbeNative() error {
	if os.Geteuid() != 0 {
		return errors.New("native: needs root")
	}
	errs := make(chan error)
	go func() {
		// The thread has a namespace of its own afterwards: it ends with
		// this goroutine, as it stays locked.
		runtime.LockOSThread()
		errs <- probeLinks()
	}()
	return <-errs
}

func probeLinks() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("native: make a network namespace: %w", err)
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("native: %w", err)
	}
	defer h.Close()
	named := func(name string) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Name = name
		return a
	}
	var missing []string
	try := func(l netlink.Link) {
		if err := h.LinkAdd(l); err != nil {
			missing = append(missing, fmt.Sprintf("%s (%v)", l.Type(), err))
		}
	}
	try(&netlink.Dummy{LinkAttrs: named("probe-dummy")})
	try(&netlink.Vrf{LinkAttrs: named("probe-vrf"), Table: 4000})
	try(&netlink.Bridge{LinkAttrs: named("probe-br")})
	try(&netlink.Vxlan{LinkAttrs: named("probe-vx"), VxlanId: 1, Port: 4789})
	veth := &netlink.Veth{LinkAttrs: named("probe-veth"), PeerName: "probe-peer"}
	try(veth)
	attrs := named("probe-ipvl")
	if parent, err := h.LinkByName("probe-veth"); err == nil {
		attrs.ParentIndex = parent.Attrs().Index
	}
	try(&netlink.IPVlan{LinkAttrs: attrs, Mode: netlink.IPVLAN_MODE_L3})
	if missing != nil {
		return fmt.Errorf("native: this kernel lacks %s", strings.Join(missing, ", "))
	}
	return nil
}
