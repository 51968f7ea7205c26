package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"vtepd/dataplane"
	"vtepd/dataplane/netns"
)

// Stage implements dataplane.Kernel.
func (k *Kernel) Stage(ctx context.Context, staged, proofs []dataplane.Link) error {
	if len(staged)+len(proofs) == 0 {
		return k.Unstage()
	}
	first := dataplane.Op{Verb: dataplane.Create, Link: append(slices.Clone(staged), proofs...)[0]}
	if err := k.Unstage(); err != nil {
		return &dataplane.OpError{Op: first, Err: err}
	}
	shadow, err := openView(netns.New)
	if err != nil {
		return &dataplane.OpError{Op: first, Err: fmt.Errorf("shadow: %w", err)}
	}
	k.shadow = shadow
	var names []string
	for _, l := range staged {
		names = append(names, l.ParentNetns)
	}
	ps, failed := k.openParents(names)
	err = k.stage(ctx, staged, proofs, ps, failed)
	if err := errors.Join(err, ps.close()); err != nil {
		return errors.Join(err, k.Unstage())
	}
	return nil
}

func (k *Kernel) stage(ctx context.Context, staged, proofs []dataplane.Link, ps parents, failed map[string]error) error {
	w := &writer{k: k, ctx: ctx, v: k.shadow, ps: ps, failed: failed, model: dataplane.NewModel(nil), details: map[string]*detail{}}
	var all []dataplane.Link
	for _, l := range staged {
		l.Master = "" // that is for Expose
		all = append(all, l)
	}
	for _, l := range proofs {
		if _, ok := dataplane.Find(proofs, l.Master); !ok {
			l.Master, l.VLAN, l.NeighSuppress = "", 0, false
		}
		all = append(all, l)
	}
	// What others are enslaved to comes first.
	slices.SortStableFunc(all, func(a, b dataplane.Link) int { return cmp.Compare(len(a.Master), len(b.Master)) })
	for i := range all {
		// A parent hands all that comes for an address to the child that has it, whatever namespace that is in, once the child
		// is up: an address that is live elsewhere in the router would lose its packets to the shadow. Whether the address can
		// be had is found out on a child that is down too.
		all[i].Up, all[i].Addrs = all[i].Kind != dataplane.IPVLAN, dataplane.SortedAddrs(all[i].Addrs)
		l := all[i]
		w.op, w.number = dataplane.Op{Verb: dataplane.Create, Link: l}, w.number+1
		if !l.Ours() {
			return w.fail(fmt.Errorf("%w: a link without an owner is never made", dataplane.ErrNotOurs))
		}
		down := l
		down.Up = false
		if err := w.create(down); err != nil {
			return w.fail(err)
		}
		w.did([]dataplane.Change{{After: down}})
		if err := w.set(down, l); err != nil {
			return w.fail(err)
		}
		w.did([]dataplane.Change{{Before: down, After: l}})
	}
	if err := w.flush(); err != nil {
		return err
	}
	k.shadow.table = nil
	t, err := k.readWith(ctx, k.shadow, ps)
	if err != nil {
		return w.fail(err)
	}
	for _, want := range all {
		w.op = dataplane.Op{Verb: dataplane.Create, Link: want}
		have, ok := dataplane.Find(t.links, want.Name)
		if !ok {
			return w.fail(fmt.Errorf("made in the shadow, and %w", dataplane.ErrNotFound))
		}
		if d := want.Diff(have); len(d) > 0 {
			return w.fail(fmt.Errorf("reads back with %s", strings.Join(d, ", ")))
		}
		if have.Group != want.Group {
			return w.fail(fmt.Errorf("reads back in group %d, wanted %d", have.Group, want.Group))
		}
	}
	return nil
}
