// Package cni is the dataplane.CNI over containernetworking's libcni. It owns a directory with one record for every attachment,
// written before the plugins run and removed after they have taken it away, and libcni's cache; the links are the plugins' and
// the kernel's. It runs no program but the plugins that a conflist names, without a shell, and never makes a link itself.
package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/renameio/v2"

	"vtepd/dataplane"
)

// Options are what a CNI is made of.
type Options struct {
	Dir string // of the records, and below it of libcni's cache where an attachment names no other; made when it is needed
	// Exec runs plugins; nil: as processes, see Processes.
	Exec invoke.Exec
	// Links are the names of the links in the router's namespace; nil: of those in that of this process.
	Links func() ([]string, error)
}

// CNI is a dataplane.CNI.
type CNI struct {
	dir   string
	exec  invoke.Exec
	links func() ([]string, error)
}

var _ dataplane.CNI = (*CNI)(nil)

// netns is the router's namespace as the plugins are told of it: they run in it.
const netns = "/proc/self/ns/net"

// undoTimeout bounds the DEL that follows a failed ADD.
const undoTimeout = 30 * time.Second

// New touches nothing yet.
func New(o Options) *CNI {
	c := &CNI{dir: o.Dir, exec: o.Exec, links: o.Links}
	if c.exec == nil {
		c.exec = Processes()
	}
	if c.links == nil {
		c.links = links
	}
	return c
}

func links() ([]string, error) {
	all, err := net.Interfaces()
	var names []string
	for _, l := range all {
		names = append(names, l.Name)
	}
	return names, err
}

func (c *CNI) there(name string) (bool, error) {
	all, err := c.links()
	return slices.Contains(all, name), err
}

// Conflist implements dataplane.CNI.
func (c *CNI) Conflist(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not wait for its writer
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: not a regular file", path)
	}
	const most = 1 << 20
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return data, nil
}

// Validate implements dataplane.CNI.
func (c *CNI) Validate(ctx context.Context, a dataplane.Attachment) []string {
	list, problems := dataplane.ParseConflist([]byte(a.Conflist))
	dirs := filepath.SplitList(a.Path)
	for _, p := range list.Plugins {
		path, err := c.exec.FindInPath(p, dirs)
		if err != nil {
			problems = append(problems, fmt.Sprintf("the plugin %s is not in %s; install it, or name its directory", p, strings.Join(dirs, ", ")))
			continue
		}
		info, err := invoke.GetVersionInfo(ctx, path, c.exec)
		if err != nil {
			problems = append(problems, fmt.Sprintf("the plugin %s doesn't say its version: %v", path, err))
		} else if v := info.SupportedVersions(); !slices.Contains(v, list.Version) {
			problems = append(problems, fmt.Sprintf("the plugin %s doesn't know cniVersion %s; it knows %s", path, list.Version, strings.Join(v, ", ")))
		}
	}
	return problems
}

// call is what libcni has to be told of an attachment.
type call struct {
	cni   *libcni.CNIConfig
	list  *libcni.NetworkConfigList
	rt    *libcni.RuntimeConf
	cache string // the file of its cache entry
}

func (c *CNI) call(a dataplane.Attachment) (call, error) {
	list, err := libcni.ConfListFromBytes([]byte(a.Conflist))
	if err != nil {
		return call{}, fmt.Errorf("conflist: %w", err)
	}
	cache := a.CacheDir
	if cache == "" {
		cache = filepath.Join(c.dir, "cache")
	}
	return call{
		cni:  libcni.NewCNIConfigWithCacheDir(filepath.SplitList(a.Path), cache, c.exec),
		list: list,
		rt: &libcni.RuntimeConf{
			ContainerID: a.ContainerID, NetNS: netns, IfName: a.Link,
			CapabilityArgs: map[string]any{"ips": []string{a.Addr.String()}},
		},
		cache: filepath.Join(cache, "results", fmt.Sprintf("%s-%s-%s", list.Name, a.ContainerID, a.Link)),
	}, nil
}

// Attach implements dataplane.CNI.
func (c *CNI) Attach(ctx context.Context, a dataplane.Attachment) error {
	fail := func(err error) error { return &dataplane.AttachError{Verb: "ADD", Attachment: a, Err: err} }
	rec, err := c.load(a.Link)
	if err != nil {
		return fail(err)
	}
	there, err := c.there(a.Link)
	switch {
	case err != nil:
		return fail(err)
	case rec == nil && there:
		return fail(fmt.Errorf("%w: there is a link %s already, which no attachment of vtepd's made", dataplane.ErrInTheWay, a.Link))
	case rec != nil && rec.Attachment == a && c.whole(*rec, there):
		return nil
	case rec != nil:
		if err := c.del(ctx, rec.Attachment); err != nil {
			return fail(fmt.Errorf("what is left of an earlier one: %w", err))
		}
	}
	x, err := c.call(a)
	if err != nil {
		return fail(err)
	}
	if err := c.save(record{Version: 1, Attachment: a}); err != nil {
		return fail(err)
	}
	result, err := x.cni.AddNetworkList(ctx, x.list, x.rt)
	if err == nil {
		var r *types.Result
		if r, err = types.NewResultFromResult(result); err == nil {
			err = reported(a, r)
		}
	}
	if err == nil {
		err = c.save(record{Version: 1, Attachment: a, Made: true})
	}
	if err == nil {
		return nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if undone := c.del(undo, a); undone != nil {
		err = fmt.Errorf("%w; taking it away again: %w", err, undone)
	}
	return fail(err)
}

// reported holds the plugins' own word on what they made against what they were told.
func reported(a dataplane.Attachment, r *types.Result) error {
	var have []string
	for _, ip := range r.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			ones, _ := ip.Address.Mask.Size()
			have = append(have, netip.PrefixFrom(addr.Unmap(), ones).String())
		}
	}
	if len(have) != 1 || have[0] != a.Addr.String() {
		return fmt.Errorf("the plugins report the addresses [%s], and were told %s", strings.Join(have, " "), a.Addr)
	}
	if !slices.ContainsFunc(r.Interfaces, func(i *types.Interface) bool { return i.Name == a.Link }) {
		return fmt.Errorf("the plugins report no interface %s", a.Link)
	}
	return nil
}

// Detach implements dataplane.CNI.
func (c *CNI) Detach(ctx context.Context, a dataplane.Attachment) error {
	rec, err := c.load(a.Link)
	if err == nil && rec != nil {
		err = c.del(ctx, rec.Attachment)
	}
	if err != nil {
		return &dataplane.AttachError{Verb: "DEL", Attachment: a, Err: err}
	}
	return nil
}

// del is DEL, seen to be done, and the end of the record. A plugin that is needed for a link that isn't there is not missed:
// ipvlan and static keep nothing beside it.
func (c *CNI) del(ctx context.Context, a dataplane.Attachment) error {
	x, err := c.call(a)
	if err != nil {
		return err
	}
	err = x.cni.DelNetworkList(ctx, x.list, x.rt)
	there, thereErr := c.there(a.Link)
	switch {
	case thereErr != nil:
		return errors.Join(err, thereErr)
	case err != nil && (there || len(x.list.Plugins) > 1):
		return err
	case there:
		return fmt.Errorf("the plugins say that it is done, and the link %s is still there", a.Link)
	}
	if err := os.Remove(x.cache); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cache entry: %w", err)
	}
	return c.forget(a.Link)
}

// Check implements dataplane.CNI.
func (c *CNI) Check(ctx context.Context, a dataplane.Attachment) error {
	x, err := c.call(a)
	if err == nil {
		err = x.cni.CheckNetworkList(ctx, x.list, x.rt)
	}
	if err != nil && noGateway(a, err) {
		rest := *x.list
		rest.Plugins = rest.Plugins[1:]
		err = x.cni.CheckNetworkList(ctx, &rest, x.rt)
	}
	if err != nil {
		return &dataplane.AttachError{Verb: "CHECK", Attachment: a, Err: err}
	}
	return nil
}

// noGateway reports whether all that ipvlan's CHECK has against an attachment is that the main table has no route to its own
// address. Of an IPv4 host address the kernel makes one in the local table alone, so CHECK never succeeds; it looks for that last,
// after the link, its mode and its address (plugins' pkg/ip, ValidateExpectedInterfaceIPs; seen with 1.1.1).
func noGateway(a dataplane.Attachment, err error) bool {
	return a.Addr.Addr().Is4() && strings.HasSuffix(err.Error(), "Failed to find Gateway <nil> for interface "+a.Link)
}

// Attachments implements dataplane.CNI.
func (c *CNI) Attachments(ctx context.Context) ([]dataplane.Attached, error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("records of CNI attachments: %w", err)
	}
	if len(entries) == 0 {
		return nil, nil
	}
	links, err := c.links() // once for all: it is a dump
	if err != nil {
		return nil, err
	}
	var out []dataplane.Attached
	for _, e := range entries { // sorted by name
		link, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok || strings.HasPrefix(link, ".") {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		rec, err := c.load(link)
		if err != nil {
			return nil, err
		}
		out = append(out, dataplane.Attached{Attachment: rec.Attachment, Whole: c.whole(*rec, slices.Contains(links, link))})
	}
	return out, nil
}

// whole reports whether an attachment was made, and has its cache entry and its link.
func (c *CNI) whole(r record, there bool) bool {
	if !r.Made || !there {
		return false
	}
	x, err := c.call(r.Attachment)
	if err != nil {
		return false
	}
	result, err := x.cni.GetNetworkListCachedResult(x.list, x.rt)
	return err == nil && result != nil
}

// record is what outlives the process of an attachment.
type record struct {
	Version    int                  `json:"version"`
	Attachment dataplane.Attachment `json:"attachment"`
	Made       bool                 `json:"made"` // false: ADD or DEL has begun, and there is no telling what is there
}

const suffix = ".json"

func (c *CNI) file(link string) string { return filepath.Join(c.dir, link+suffix) }

// load is the record of a link's attachment, nil where there is none.
func (c *CNI) load(link string) (*record, error) {
	raw, err := os.ReadFile(c.file(link))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("record %s: %w", c.file(link), err)
	}
	if r.Version != 1 || r.Attachment.Link != link {
		return nil, fmt.Errorf("record %s: version %d of %q is not of this vtepd; it is left as it is", c.file(link), r.Version, r.Attachment.Link)
	}
	return &r, nil
}

// save has the record on disk before it returns.
func (c *CNI) save(r record) error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	if err := renameio.WriteFile(c.file(r.Attachment.Link), append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return c.sync()
}

func (c *CNI) forget(link string) error {
	if err := os.Remove(c.file(link)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("record: %w", err)
	}
	return c.sync()
}

func (c *CNI) sync() error {
	d, err := os.Open(c.dir)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}
