// Package kernel is the dataplane.Kernel of Linux, over netlink. It owns its sockets and the shadow namespace; the links are
// the kernel's own, read afresh by every call. It runs no other program, and writes nothing where nothing differs.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"

	mdl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vtepd/dataplane"
	"vtepd/dataplane/netns"
)

// Options are what a Kernel can be told; the zero value is what a daemon wants.
type Options struct {
	// Netns is the router's namespace; nil: the caller's. Open keeps no hold of it.
	Netns *netns.NS
}

// Kernel is a dataplane.Kernel. One goroutine at a time uses it.
type Kernel struct {
	router *view
	shadow *view // nil: nothing is staged
	ipv6   bool
	last   int32                   // the last interface index given away
	has    map[dataplane.Kind]bool // kinds that the kernel was seen to have
	counts dataplane.Counts
}

var _ dataplane.Kernel = (*Kernel)(nil)

// buffer is what the sockets' buffers are forced to, in bytes: a batch goes out in one write and its errors, each with
// the message that it is about, come back before the first is read.
const buffer = 64 << 20

// view is one namespace and the sockets in it.
type view struct {
	ns    *netns.NS
	h     *netlink.Handle // reads
	c     *mdl.Conn       // batches, and the dump of bridge ports
	table *table          // what was read, see parents; of the shadow: what Stage read back
}

// Open opens the sockets. It changes nothing.
func Open(o Options) (*Kernel, error) {
	router, err := openView(func() (*netns.NS, error) {
		if o.Netns == nil {
			return netns.Current()
		}
		return o.Netns.Dup()
	})
	if err != nil {
		return nil, err
	}
	k := &Kernel{router: router}
	err = router.ns.Do(func() error {
		_, err := os.Stat("/proc/thread-self/net/if_inet6")
		k.ipv6 = err == nil
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, router.close())
	}
	return k, nil
}

func openView(open func() (*netns.NS, error)) (*view, error) {
	ns, err := open()
	if err != nil {
		return nil, err
	}
	v := &view{ns: ns}
	err = ns.Do(func() error {
		v.h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err == nil {
		v.c, err = mdl.Dial(unix.NETLINK_ROUTE, &mdl.Config{NetNS: ns.Fd()})
	}
	// CAP_ACK stays off: mdlayher/netlink looks for the extended ack behind the whole message that an error is about.
	if err == nil {
		err = v.c.SetOption(mdl.ExtendedAcknowledge, true)
	}
	if err == nil {
		err = v.c.SetWriteBuffer(buffer)
	}
	if err == nil {
		err = v.c.SetReadBuffer(buffer)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("netlink socket: %w", err), v.close())
	}
	return v, nil
}

func (v *view) close() error {
	var err error
	if v.h != nil {
		v.h.Close()
	}
	if v.c != nil {
		err = v.c.Close()
	}
	return errors.Join(err, v.ns.Close())
}

// Counts implements dataplane.Kernel.
func (k *Kernel) Counts() dataplane.Counts { return k.counts }

// Close implements dataplane.Kernel.
func (k *Kernel) Close() error { return errors.Join(k.Unstage(), k.router.close()) }

// Unstage implements dataplane.Kernel. The kernel takes namespaces down in the background; links of the shadow that
// hold what lies outside it, the ipvlans, are deleted before Unstage returns.
func (k *Kernel) Unstage() error {
	if k.shadow == nil {
		return nil
	}
	err := k.empty(k.shadow)
	err = errors.Join(err, k.shadow.close())
	k.shadow = nil
	return err
}

// empty deletes the ipvlans of a namespace of this package's own, whole groups of links at a time.
func (k *Kernel) empty(v *view) error {
	ctx := context.Background()
	links, err := dump(ctx, k, v.h.LinkList)
	if err != nil {
		return fmt.Errorf("read the shadow: %w", err)
	}
	var batch []message
	groups := map[uint32]bool{}
	for _, l := range links {
		a := l.Attrs()
		if l.Type() != string(dataplane.IPVLAN) || groups[a.Group] {
			continue
		}
		index, attrs := int32(a.Index), none
		if a.Group != 0 {
			groups[a.Group] = true
			index, attrs = 0, func(e *mdl.AttributeEncoder) { e.Uint32(unix.IFLA_GROUP, a.Group) }
		}
		m, err := link(unix.RTM_DELLINK, 0, unix.AF_UNSPEC, index, nil, attrs)
		if err != nil {
			return err
		}
		batch = append(batch, message{Message: m, gone: true})
	}
	if err := k.send(ctx, v, batch); err != nil {
		return fmt.Errorf("empty the shadow: %w", err)
	}
	return nil
}

// parents are the views of the namespaces that ipvlans' parents are in, by the names that links give them; "" is the
// router's own. They are opened for one call of the interface, and what was read of them holds for that long.
type parents map[string]*view

// openParents opens the namespaces of those names, and says of the others why they can't be opened.
func (k *Kernel) openParents(names []string) (parents, map[string]error) {
	k.router.table = nil
	ps, failed := parents{"": k.router}, map[string]error{}
	for _, n := range names {
		if ps[n] != nil || failed[n] != nil {
			continue
		}
		v, err := openView(func() (*netns.NS, error) { return netns.Open(n) })
		if err != nil {
			failed[n] = err
			continue
		}
		ps[n] = v
	}
	return ps, failed
}

func (ps parents) close() error {
	var err error
	for n, v := range ps {
		v.table = nil
		if n != "" {
			err = errors.Join(err, v.close())
		}
	}
	return err
}

// Received implements dataplane.Kernel.
func (k *Kernel) Received(ctx context.Context, names []string) ([]uint64, error) {
	rx := make([]uint64, len(names))
	for i, n := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		l, err := k.router.h.LinkByName(n)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("counters of %s: %w", n, err)
		}
		if s := l.Attrs().Statistics; s != nil {
			rx[i] = s.RxPackets
		}
	}
	return rx, nil
}
