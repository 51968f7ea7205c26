package fake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"syscall"

	"vtepd/dataplane"
)

// CNI is a dataplane.CNI whose plugins make links in a fake Kernel: like the real ones, an ADD that fails leaves its link
// behind, down. Its records and its cache outlive a Restart.
type CNI struct {
	kernel *Kernel

	mu       sync.Mutex
	files    map[string][]byte
	records  map[string]dataplane.Attached // by link; Whole: made
	cache    map[string]bool               // by link
	lacking  []string                      // plugins
	calls    int
	fail     map[int]error
	failVerb map[string]error
	drift    map[string]error
	hook     func(n int, when When, verb string, a dataplane.Attachment)
}

var _ dataplane.CNI = (*CNI)(nil)

// NewCNI returns plugins for a router; there is no file, and nothing is attached.
func NewCNI(k *Kernel) *CNI {
	return &CNI{
		kernel: k, files: map[string][]byte{}, records: map[string]dataplane.Attached{}, cache: map[string]bool{},
		fail: map[int]error{}, failVerb: map[string]error{}, drift: map[string]error{},
	}
}

func (c *CNI) locked(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

// SetFile makes a conflist.
func (c *CNI) SetFile(path, text string) { c.locked(func() { c.files[path] = []byte(text) }) }

// SetLacking says which plugins aren't there.
func (c *CNI) SetLacking(plugins ...string) { c.locked(func() { c.lacking = plugins }) }

// SetDrift has CHECK of a link's attachment fail with err; nil: no more.
func (c *CNI) SetDrift(link string, err error) { c.locked(func() { c.drift[link] = err }) }

// LoseCache takes a cache entry away behind vtepd's back.
func (c *CNI) LoseCache(link string) { c.locked(func() { delete(c.cache, link) }) }

// LoseRecord takes a record away, as when the state directory was lost.
func (c *CNI) LoseRecord(link string) { c.locked(func() { delete(c.records, link) }) }

// FailAt makes the n-th ADD or DEL since New or Restart, from 1, fail with err; a DEL before it has done anything.
func (c *CNI) FailAt(n int, err error) { c.locked(func() { c.fail[n] = err }) }

// FailVerb makes every call of a verb (ADD, DEL, CHECK) fail with err until it is called with nil.
func (c *CNI) FailVerb(verb string, err error) { c.locked(func() { c.failVerb[verb] = err }) }

// OnCall has fn called on both sides of every numbered call (see FailAt), not After a failed one. It may panic to stand for the
// process's death.
func (c *CNI) OnCall(fn func(n int, when When, verb string, a dataplane.Attachment)) {
	c.locked(func() { c.hook = fn })
}

// Calls is the number of the last ADD or DEL.
func (c *CNI) Calls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// Restart is what a new daemon does: hooks, failures and numbers start over.
func (c *CNI) Restart() {
	c.locked(func() { c.hook, c.calls, c.fail, c.failVerb = nil, 0, map[int]error{}, map[string]error{} })
}

// State is every record and cache entry, as text, sorted.
func (c *CNI) State() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, r := range c.records {
		out = append(out, fmt.Sprintf("record %+v made %t", r.Attachment, r.Whole))
	}
	for link := range c.cache {
		out = append(out, "cache "+link)
	}
	slices.Sort(out)
	return out
}

// Conflist implements dataplane.CNI.
func (c *CNI) Conflist(path string) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text, ok := c.files[path]; ok {
		return text, nil
	}
	return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.ENOENT}
}

// Validate implements dataplane.CNI.
func (c *CNI) Validate(_ context.Context, a dataplane.Attachment) []string {
	list, problems := dataplane.ParseConflist([]byte(a.Conflist))
	for _, p := range list.Plugins {
		if slices.Contains(c.lacking, p) {
			problems = append(problems, fmt.Sprintf("the plugin %s is not in %s; install it, or name its directory", p, a.Path))
		}
	}
	return problems
}

// call runs do as the next numbered call. The lock isn't held while a hook runs.
func (c *CNI) call(ctx context.Context, verb string, a dataplane.Attachment, do func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	c.calls++
	n, hook := c.calls, c.hook
	err := cmp.Or(c.fail[n], c.failVerb[verb])
	c.mu.Unlock()
	if hook != nil {
		hook(n, Before, verb, a)
	}
	if err != nil && verb == "ADD" {
		c.kernel.leave(a.AsLink())
	}
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	if hook != nil {
		hook(n, After, verb, a)
	}
	return nil
}

// leave is the link that a failed ADD leaves behind.
func (k *Kernel) leave(l dataplane.Link) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, there := k.router.Link(l.Name); !there {
		l.Owner, l.Up, l.Addrs, l.MTU = "", false, nil, k.defaultMTU(l)
		k.router.Put(l)
	}
}

// plug makes the link as plugins do: it is nobody's.
func (k *Kernel) plug(l dataplane.Link) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	l.Owner, l.MTU = "", k.defaultMTU(l)
	if _, there := k.router.Link(l.Name); there {
		return fmt.Errorf("failed to rename ipvlan to %q: %w", l.Name, syscall.EEXIST)
	}
	if err := k.refuse(k.router, dataplane.Change{After: l}); err != nil {
		return err
	}
	k.router.Put(l)
	return nil
}

func (k *Kernel) has(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, there := k.router.Link(name)
	return there
}

// Attach implements dataplane.CNI.
func (c *CNI) Attach(ctx context.Context, a dataplane.Attachment) error {
	fail := func(err error) error { return &dataplane.AttachError{Verb: "ADD", Attachment: a, Err: err} }
	there := c.kernel.has(a.Link)
	c.mu.Lock()
	rec, known := c.records[a.Link]
	whole := known && rec.Attachment == a && c.whole(rec, there)
	c.mu.Unlock()
	switch {
	case !known && there:
		return fail(fmt.Errorf("%w: there is a link %s already, which no attachment of vtepd's made", dataplane.ErrInTheWay, a.Link))
	case whole:
		return nil
	case known:
		if err := c.del(ctx, rec.Attachment); err != nil {
			return fail(fmt.Errorf("what is left of an earlier one: %w", err))
		}
	}
	c.locked(func() { c.records[a.Link] = dataplane.Attached{Attachment: a} })
	err := c.call(ctx, "ADD", a, func() error {
		if err := c.kernel.plug(a.AsLink()); err != nil {
			c.kernel.leave(a.AsLink())
			return err
		}
		c.locked(func() { c.cache[a.Link] = true })
		return nil
	})
	if err == nil {
		c.locked(func() { c.records[a.Link] = dataplane.Attached{Attachment: a, Whole: true} })
		return nil
	}
	if undone := c.del(context.WithoutCancel(ctx), a); undone != nil {
		err = fmt.Errorf("%w; taking it away again: %w", err, undone)
	}
	return fail(err)
}

func (c *CNI) del(ctx context.Context, a dataplane.Attachment) error {
	return c.call(ctx, "DEL", a, func() error {
		c.kernel.Remove(a.Link)
		c.locked(func() { delete(c.cache, a.Link); delete(c.records, a.Link) })
		return nil
	})
}

// Detach implements dataplane.CNI.
func (c *CNI) Detach(ctx context.Context, a dataplane.Attachment) error {
	c.mu.Lock()
	rec, known := c.records[a.Link]
	c.mu.Unlock()
	if !known {
		return nil
	}
	if err := c.del(ctx, rec.Attachment); err != nil {
		return &dataplane.AttachError{Verb: "DEL", Attachment: a, Err: err}
	}
	return nil
}

// Check implements dataplane.CNI.
func (c *CNI) Check(ctx context.Context, a dataplane.Attachment) error {
	c.mu.Lock()
	err := cmp.Or(ctx.Err(), c.failVerb["CHECK"], c.drift[a.Link])
	cached := c.cache[a.Link]
	c.mu.Unlock()
	l, there := dataplane.Find(c.kernel.Links(), a.Link)
	switch {
	case err != nil:
	case !cached:
		err = errors.New("no cached result")
	case !there || !slices.Contains(l.Addrs, a.Addr):
		err = fmt.Errorf("failed to find %s on %s", a.Addr, a.Link)
	default:
		return nil
	}
	return &dataplane.AttachError{Verb: "CHECK", Attachment: a, Err: err}
}

// whole is called under the lock.
func (c *CNI) whole(r dataplane.Attached, there bool) bool {
	return r.Whole && there && c.cache[r.Link]
}

// Attachments implements dataplane.CNI.
func (c *CNI) Attachments(ctx context.Context) ([]dataplane.Attached, error) {
	links := c.kernel.Links()
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []dataplane.Attached
	for _, name := range slices.Sorted(maps.Keys(c.records)) {
		r := c.records[name]
		_, there := dataplane.Find(links, name)
		r.Whole = c.whole(r, there)
		out = append(out, r)
	}
	return out, ctx.Err()
}
