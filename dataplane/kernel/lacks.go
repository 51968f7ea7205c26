package kernel

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	mdl "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"vtepd/dataplane"
	"vtepd/dataplane/netns"
)

// Lacks implements dataplane.Kernel. The kernel looks for the kind, and loads its module, before it looks at anything else
// (rtnl_newlink, "Unknown device type"): what it has against the rest of an incomplete message says that it knows the kind. What
// a kernel has been seen to have isn't asked again.
func (k *Kernel) Lacks(ctx context.Context, kind dataplane.Kind) (string, error) {
	if k.has[kind] {
		return "", nil
	}
	v, err := openView(netns.New)
	if err != nil {
		return "", fmt.Errorf("a namespace to try %s in: %w", kind, err)
	}
	m, err := link(unix.RTM_NEWLINK, mdl.Create|mdl.Excl, unix.AF_UNSPEC, 0, nil, func(e *mdl.AttributeEncoder) {
		e.String(unix.IFLA_IFNAME, "probe0")
		nested(e, unix.IFLA_LINKINFO, func(e *mdl.AttributeEncoder) { e.String(unix.IFLA_INFO_KIND, string(kind)) })
	})
	if err == nil {
		err = k.send(ctx, v, []message{{Message: m}})
	}
	closed := v.close()
	switch op, _ := errors.AsType[*dataplane.OpError](err); {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case errors.Is(err, syscall.EOPNOTSUPP) && op != nil:
		return op.Err.Error(), closed
	case errors.Is(err, syscall.EPERM):
		return "", fmt.Errorf("trying %s: %w", kind, errors.Join(err, closed))
	}
	if k.has == nil {
		k.has = map[dataplane.Kind]bool{}
	}
	k.has[kind] = true
	return "", closed
}
