// Package fake is a dataplane.Kernel in memory: it refuses what the kernel refuses, in the kernel's words, fails where a
// test wants it to, and lets a test stop the world before or after any op. It owns its state and touches no real link.
package fake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"

	"vtepd/dataplane"
)

// When says on which side of an op a hook runs.
type When int

// The two sides of an op.
const (
	Before When = iota
	After
)

// Kernel is a dataplane.Kernel without a kernel. Its methods can be called from several goroutines.
type Kernel struct {
	mu       sync.Mutex
	router   *dataplane.Model
	staged   *dataplane.Model // the shadow; nil: none
	netns    map[string]*dataplane.Model
	children []dataplane.Link // ipvlans of others in namespaces that nobody looks at
	ownMTU   map[string]bool  // bridges whose MTU was set, so that it doesn't follow their ports
	received map[string]uint64
	answers  func(from, to netip.Addr) bool
	hook     func(k int, when When, op dataplane.Op)
	fail     map[int]error
	failObs  map[int]error
	lacks    map[dataplane.Kind]string
	ops, obs int
	counts   dataplane.Counts
	closed   bool
}

var _ dataplane.Kernel = (*Kernel)(nil)

// New returns a router with nothing but its loopback.
func New() *Kernel {
	return &Kernel{
		router:   dataplane.NewModel([]dataplane.Link{{Name: "lo", Up: true, MTU: 65536}}),
		netns:    map[string]*dataplane.Model{},
		ownMTU:   map[string]bool{},
		received: map[string]uint64{},
		fail:     map[int]error{},
		failObs:  map[int]error{},
		lacks:    map[dataplane.Kind]string{},
	}
}

// SetLacks says why the kernel can't make links of a kind; "": it can.
func (k *Kernel) SetLacks(kind dataplane.Kind, why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lacks[kind] = why
}

// Lacks implements dataplane.Kernel.
func (k *Kernel) Lacks(ctx context.Context, kind dataplane.Kind) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lacks[kind], k.usable(ctx)
}

// Add puts links into the router's namespace as they are, with no check: foreign ones, or what an earlier daemon left.
func (k *Kernel) Add(links ...dataplane.Link) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range links {
		if l.MTU == 0 {
			l.MTU = k.defaultMTU(l)
		} else if l.Kind == dataplane.Bridge {
			k.ownMTU[l.Name] = true
		}
		k.router.Put(l)
	}
	k.follow()
}

// Remove takes links away behind vtepd's back, wherever they are in the router's namespace, with their ipvlan children.
func (k *Kernel) Remove(names ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range names {
		k.router.Remove(n)
		k.orphan(n)
	}
	k.follow()
}

// orphan takes away what the kernel deletes with a parent of the router's, in other namespaces.
func (k *Kernel) orphan(parent string) {
	child := func(l dataplane.Link) bool {
		return l.Kind == dataplane.IPVLAN && l.ParentNetns == "" && l.Parent == parent
	}
	k.children = slices.DeleteFunc(k.children, child)
	if k.staged == nil {
		return
	}
	for _, l := range k.staged.Links() {
		if child(l) {
			k.staged.Remove(l.Name)
		}
	}
}

// AddNetns makes a namespace called name with links in it, in place of an earlier one.
func (k *Kernel) AddNetns(name string, links ...dataplane.Link) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.netns[name] = dataplane.NewModel(links)
}

// AddChild adds a foreign ipvlan that lives in a namespace of its own: its addresses are taken on its parent.
func (k *Kernel) AddChild(l dataplane.Link) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l.Kind = dataplane.IPVLAN
	k.children = append(k.children, l)
}

// Links returns every link of the router's namespace, with parents as they are, sorted by name.
func (k *Kernel) Links() []dataplane.Link {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.router.Links()
}

// Staged returns what is in the shadow, sorted by name; nil without one.
func (k *Kernel) Staged() []dataplane.Link {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.staged == nil {
		return nil
	}
	return k.staged.Links()
}

// FailAt makes the op of number n fail with err, before it has done anything. Ops are numbered from 1 since New or Restart:
// each link that a Stage makes, and each op of an Apply that changes something, undos as well. Like the kernel with a
// batch, Apply goes on with the ops behind a failed one and returns the first error. It can be called for several n.
func (k *Kernel) FailAt(n int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail[n] = err
}

// FailObserve makes the n-th Observe since New or Restart, from 1, fail with err.
func (k *Kernel) FailObserve(n int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failObs[n] = err
}

// OnOp has fn called on both sides of every numbered op (see FailAt), not After a failed one; a link that a Stage makes is
// a Create. fn may look at and change the fake; if it panics or ends its goroutine the state is exactly as at that moment.
func (k *Kernel) OnOp(fn func(n int, when When, op dataplane.Op)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hook = fn
}

// Ops is the number of the last op, see FailAt.
func (k *Kernel) Ops() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ops
}

// Restart is what a kill and a new daemon do: the shadow is gone, the router's links stay; hook, failures, numbers and
// counts start over.
func (k *Kernel) Restart() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.staged, k.hook, k.closed = nil, nil, false
	k.fail, k.failObs = map[int]error{}, map[int]error{}
	k.ops, k.obs, k.counts = 0, 0, dataplane.Counts{}
}

// SetReceived sets what Received says of a link.
func (k *Kernel) SetReceived(name string, packets uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.received[name] = packets
}

// OnPing sets who answers; without it nobody does.
func (k *Kernel) OnPing(answers func(from, to netip.Addr) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.answers = answers
}

// Observe implements dataplane.Kernel.
func (k *Kernel) Observe(ctx context.Context, netns []string) (dataplane.Observation, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.usable(ctx); err != nil {
		return dataplane.Observation{}, err
	}
	k.obs++
	k.counts.Dumps++
	if err := k.failObs[k.obs]; err != nil {
		return dataplane.Observation{}, err
	}
	o := dataplane.Observation{Links: k.router.Links()}
	for i, l := range o.Links {
		if l.ParentNetns != "" && !slices.Contains(netns, l.ParentNetns) {
			o.Links[i].Parent, o.Links[i].ParentNetns = "?", ""
		}
	}
	for _, n := range netns {
		m, ok := k.netns[n]
		if !ok {
			o.Netns = append(o.Netns, dataplane.Netns{Name: n, Err: noNetns(n).Error()})
			continue
		}
		k.counts.Dumps++
		o.Netns = append(o.Netns, dataplane.Netns{Name: n, Links: m.Links()})
	}
	return o, nil
}

// Stage implements dataplane.Kernel.
func (k *Kernel) Stage(ctx context.Context, staged, proofs []dataplane.Link) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.usable(ctx); err != nil {
		return err
	}
	k.staged = dataplane.NewModel(nil)
	shadow := dataplane.NewModel(nil) // the proofs; they go when the read-back is done
	put := func(l dataplane.Link, m *dataplane.Model) error {
		op := dataplane.Op{Verb: dataplane.Create, Link: l}
		err := k.numbered(op, func() error {
			if !l.Ours() {
				return fmt.Errorf("%w: a link without an owner is never made", dataplane.ErrNotOurs)
			}
			c := dataplane.Change{After: l}
			if c.After.MTU == 0 {
				c.After.MTU = k.defaultMTU(l)
			}
			if err := k.refuse(m, c); err != nil {
				return err
			}
			k.counts.Messages++
			m.Put(c.After)
			return nil
		})
		if err != nil {
			k.staged = nil
			return &dataplane.OpError{Op: op, Err: err}
		}
		return nil
	}
	for _, l := range staged {
		l.Up = true
		if err := put(l, k.staged); err != nil {
			return err
		}
	}
	for _, l := range proofs {
		l.Up, l.Master, l.VLAN, l.NeighSuppress = true, "", 0, false
		if err := put(l, shadow); err != nil {
			return err
		}
	}
	k.counts.Batches++
	k.counts.Dumps++
	return nil
}

// Unstage implements dataplane.Kernel.
func (k *Kernel) Unstage() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.staged = nil
	return nil
}

// Apply implements dataplane.Kernel.
func (k *Kernel) Apply(ctx context.Context, ops []dataplane.Op) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.usable(ctx); err != nil {
		return err
	}
	k.counts.Dumps++
	// As the real one: every check is made before the first write, as if nothing would fail.
	if err := k.check(ops); err != nil {
		return err
	}
	var first error
	batch := false
	for _, op := range ops {
		changes, err := k.router.Plan(op)
		if err == nil && len(changes) == 0 {
			continue
		}
		move := op.Verb == dataplane.Expose && err == nil && changes[0].Before.Name == ""
		if move && first != nil {
			break // a move waits for the batch before it
		}
		if err == nil {
			err = k.numbered(op, func() error { return k.do(op) })
		}
		if move || !batch {
			k.counts.Batches++
			batch = !move
		}
		if err != nil && first == nil {
			first = &dataplane.OpError{Op: op, Err: err}
			if move {
				break
			}
		}
	}
	return first
}

// check returns the refusal of the first op that can't even be tried.
func (k *Kernel) check(ops []dataplane.Op) error {
	m := k.router.Clone()
	for _, op := range ops {
		changes, err := m.Plan(op)
		if err == nil && len(changes) > 0 && changes[0].Before.Name == "" {
			switch {
			case op.Verb == dataplane.Expose:
				err = k.isStaged(op.Link)
			case op.Link.Kind == dataplane.IPVLAN:
				if _, _, err = k.parent(m, op.Link); err == nil {
					err = k.oneMode(m, op.Link)
				}
			}
		}
		if err != nil {
			return &dataplane.OpError{Op: op, Err: err}
		}
		m.Do(changes)
	}
	return nil
}

func (k *Kernel) isStaged(l dataplane.Link) error {
	if k.staged != nil {
		if s, ok := k.staged.Link(l.Name); ok {
			return dataplane.FitsStaged(l, s)
		}
	}
	return fmt.Errorf("staged link %s is %w", l.Name, dataplane.ErrNotFound)
}

// numbered runs do as an op of the next number, with the hooks around it and the failure that a test asked for. The lock
// is held, but not while a hook runs.
func (k *Kernel) numbered(op dataplane.Op, do func() error) error {
	k.ops++
	n, hook := k.ops, k.hook
	call := func(when When) {
		if hook == nil {
			return
		}
		k.mu.Unlock()
		defer k.mu.Lock()
		hook(n, when, op)
	}
	call(Before)
	if err := k.fail[n]; err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	call(After)
	return nil
}

func (k *Kernel) do(op dataplane.Op) error {
	changes, err := k.router.Plan(op)
	if err != nil {
		return err
	}
	for i, c := range changes {
		moved := op.Verb == dataplane.Expose && c.Before.Name == ""
		if moved {
			if err := k.isStaged(op.Link); err != nil {
				return err
			}
			s, _ := k.staged.Link(op.Link.Name)
			c.After.Group = s.Group
			if c.After.MTU == 0 {
				c.After.MTU = s.MTU
			}
			k.staged.Remove(op.Link.Name)
		}
		if err := k.refuse(k.router, c); err != nil {
			return err
		}
		if c.After.Name != "" && c.After.Kind == dataplane.Bridge && op.Link.MTU != 0 {
			k.ownMTU[c.After.Name] = true
		}
		if c.After.Name == "" {
			delete(k.ownMTU, c.Before.Name)
		} else if c.After.MTU == 0 {
			c.After.MTU = k.defaultMTU(c.After)
		}
		changes[i] = c
	}
	k.counts.Messages++
	k.router.Do(changes)
	ports := false
	for _, c := range changes {
		if c.After.Name == "" {
			k.orphan(c.Before.Name)
		}
		ports = ports || c.After.Kind == dataplane.Bridge || c.Before.Master+c.After.Master != ""
	}
	if ports {
		k.follow()
	}
	return nil
}

// ack is a refusal in the kernel's words: the errno and its extended ack.
func ack(errno syscall.Errno, text string) error {
	if text == "" {
		return errno
	}
	return fmt.Errorf("%w (%s)", errno, text)
}

// refuse says what the kernel has against a change in namespace m.
func (k *Kernel) refuse(m *dataplane.Model, c dataplane.Change) error {
	l := c.After
	if l.Name == "" {
		return nil
	}
	made := c.Before.Name == ""
	if l.Master != "" && l.Master != c.Before.Master {
		if master, ok := m.Link(l.Master); ok && master.Kind != dataplane.Bridge && master.Kind != "vrf" {
			return ack(syscall.EOPNOTSUPP, "")
		}
	}
	switch {
	case l.Kind == dataplane.VXLAN && made:
		for o := range m.All() {
			if o.Kind == dataplane.VXLAN && o.VNI == l.VNI && o.Port == l.Port && o.Local.Is6() == l.Local.Is6() {
				return ack(syscall.EEXIST, "A VXLAN device with the specified VNI already exists")
			}
		}
	case l.Kind == dataplane.VXLAN && l.Local.Is6() != c.Before.Local.Is6():
		return ack(syscall.EOPNOTSUPP, "New local address family does not match old")
	case l.Kind == dataplane.IPVLAN:
		return k.refuseChild(m, l, c.Before, made)
	}
	return nil
}

func (k *Kernel) refuseChild(m *dataplane.Model, l, before dataplane.Link, made bool) error {
	at, parent, err := k.parent(k.router, l)
	if err != nil {
		return err
	}
	if made {
		if master, ok := at.Link(parent.Master); ok && master.Kind == dataplane.Bridge {
			return ack(syscall.EBUSY, "")
		}
		if parent.Name == "lo" {
			return ack(syscall.EINVAL, "")
		}
	}
	if made {
		if err := k.oneMode(k.router, l); err != nil {
			return err
		}
		for i, o := range k.children {
			if o.Parent == l.Parent && o.ParentNetns == l.ParentNetns {
				k.children[i].Mode = l.Mode // which nobody sees
			}
		}
	}
	for _, o := range k.siblings(m, l) {
		for _, a := range l.Addrs {
			if !slices.Contains(before.Addrs, a) && slices.ContainsFunc(o.Addrs, func(b netip.Prefix) bool { return a.Addr() == b.Addr() }) {
				return ack(syscall.EADDRINUSE, "Address already assigned to an ipvlan device")
			}
		}
	}
	return nil
}

// parent finds an ipvlan's parent, and the namespace that it is in; router stands for the router's.
func (k *Kernel) parent(router *dataplane.Model, l dataplane.Link) (*dataplane.Model, dataplane.Link, error) {
	at := router
	if l.ParentNetns != "" {
		var ok bool
		if at, ok = k.netns[l.ParentNetns]; !ok {
			return nil, dataplane.Link{}, noNetns(l.ParentNetns)
		}
	}
	parent, ok := at.Link(l.Parent)
	if !ok {
		return nil, dataplane.Link{}, fmt.Errorf("parent %s is %w", l.Parent, dataplane.ErrNotFound)
	}
	return at, parent, nil
}

// oneMode refuses an ipvlan that would change the mode of others that can be seen.
func (k *Kernel) oneMode(router *dataplane.Model, l dataplane.Link) error {
	for o := range router.All() {
		if o.Kind == dataplane.IPVLAN && o.Parent == l.Parent && o.ParentNetns == l.ParentNetns && o.Mode != l.Mode {
			return dataplane.OtherMode(l, o, "")
		}
	}
	return nil
}

func noNetns(name string) error {
	path := name
	if !strings.HasPrefix(name, "/") {
		path = "/run/netns/" + name
	}
	return &fs.PathError{Op: "open", Path: path, Err: syscall.ENOENT}
}

// siblings are all other ipvlans on the parent of l, a link of namespace m, in all namespaces.
func (k *Kernel) siblings(m *dataplane.Model, l dataplane.Link) []dataplane.Link {
	var all []dataplane.Link
	for _, at := range []*dataplane.Model{k.router, k.staged} {
		if at == nil {
			continue
		}
		for o := range at.All() {
			if at != m || o.Name != l.Name {
				all = append(all, o)
			}
		}
	}
	all = append(all, k.children...)
	return slices.DeleteFunc(all, func(o dataplane.Link) bool {
		return o.Kind != dataplane.IPVLAN || o.Parent != l.Parent || o.ParentNetns != l.ParentNetns
	})
}

func (k *Kernel) defaultMTU(l dataplane.Link) int {
	if l.Kind != dataplane.IPVLAN {
		return 1500
	}
	at := k.router
	if l.ParentNetns != "" {
		at = k.netns[l.ParentNetns]
	}
	if at != nil {
		if p, ok := at.Link(l.Parent); ok && p.MTU != 0 {
			return p.MTU
		}
	}
	return 1500
}

// follow gives each bridge whose MTU nobody set the least MTU of its ports (br_mtu_auto_adjust).
func (k *Kernel) follow() {
	links := k.router.Links()
	for _, b := range links {
		if b.Kind != dataplane.Bridge || k.ownMTU[b.Name] {
			continue
		}
		b.MTU = 0
		for _, p := range links {
			if p.Master == b.Name && (b.MTU == 0 || p.MTU < b.MTU) {
				b.MTU = p.MTU
			}
		}
		if b.MTU == 0 {
			b.MTU = 1500
		}
		k.router.Put(b)
	}
}

// Received implements dataplane.Kernel.
func (k *Kernel) Received(ctx context.Context, names []string) ([]uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.usable(ctx); err != nil {
		return nil, err
	}
	rx := make([]uint64, len(names))
	for i, n := range names {
		if _, ok := k.router.Link(n); ok {
			rx[i] = k.received[n]
		}
	}
	return rx, nil
}

// Ping implements dataplane.Kernel. It doesn't wait for those that are silent.
func (k *Kernel) Ping(ctx context.Context, from netip.Addr, to []netip.Addr) ([]netip.Addr, error) {
	k.mu.Lock()
	err := k.usable(ctx)
	local := slices.ContainsFunc(k.router.Links(), func(l dataplane.Link) bool {
		return l.Up && slices.ContainsFunc(l.Addrs, func(a netip.Prefix) bool { return a.Addr() == from })
	})
	answers := k.answers
	k.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if !local {
		return nil, fmt.Errorf("ping from %s: %w", from, syscall.EADDRNOTAVAIL)
	}
	var alive []netip.Addr
	for _, a := range to {
		if a.Is4() == from.Is4() && answers != nil && answers(from, a) {
			alive = append(alive, a)
		}
	}
	slices.SortFunc(alive, netip.Addr.Compare)
	return slices.Compact(alive), nil
}

// Counts implements dataplane.Kernel.
func (k *Kernel) Counts() dataplane.Counts {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.counts
}

// Close implements dataplane.Kernel: it drops the shadow; every call after it is an error until a Restart.
func (k *Kernel) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.staged, k.closed = nil, true
	return nil
}

func (k *Kernel) usable(ctx context.Context) error {
	if k.closed {
		return errors.New("kernel is closed")
	}
	return ctx.Err()
}
