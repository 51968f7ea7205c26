package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"vtepd/daemon/config"
	"vtepd/daemon/history"
	"vtepd/daemon/state"
	"vtepd/dataplane"
	"vtepd/frr"
)

// A look at everything costs a dump of the kernel's links and several questions to FRR, two of which have long answers. While
// nothing is waited for, a glance comes before it: a dump and one question say whether a look would find anything that the
// last one didn't. A flood of news about other people's links is answered with glances alone.
const (
	// glanceEvery is how often bgpd's lines are compared with what they were. FRR tells nobody when a `network` line goes
	// (there is no route of it in zebra, and the vty has no news), so this is the one thing that is asked for again and
	// again: one round trip. It is less than a second so that a line that was taken away is missed within one. A bgpd whose
	// configuration is so long that the answer takes more than 1/linesShare of that time is asked less often.
	glanceEvery = 800 * time.Millisecond
	linesShare  = 20
	// Looking may take a tenth of the time at most, but what happens is seen within glanceMost of the look before.
	glanceShare = 9
	glanceMost  = 500 * time.Millisecond
)

// glance is what was seen, as fingerprints.
type glance struct {
	files  string
	kernel string
	lines  string // of FRR; "" when it can't be reached
}

// seen is what the last look saw, and how to compare with it.
type seen struct {
	glance
	names []string // the namespaces that were looked at
	blind bool     // it didn't come to FRR: its lines are nothing to go by
	calm  bool     // nothing is waited for: of other people's links the parents matter, and nothing else
}

// filesSeen is the fingerprint of the dropped files as they were read, with the error if they can't be.
func filesSeen(srcs []config.Source, err error) string {
	if err != nil {
		return err.Error()
	}
	return history.Fingerprint(srcs)
}

// kernelSeen is the fingerprint of vtepd's own links and their parents.
func kernelSeen(k dataplane.Observation) string {
	h := sha256.New()
	type fields dataplane.Link // a Link prints its name alone
	write := func(netns string, l dataplane.Link) {
		l.Group = 0
		fmt.Fprintf(h, "%s %+v\n", netns, fields(l))
	}
	for _, l := range k.Links {
		if l.Ours() {
			write("", l)
		}
	}
	for _, n := range append(slices.Clone(k.Netns), dataplane.Netns{Links: k.Links}) {
		fmt.Fprintln(h, n.Name, n.Err)
		for _, l := range n.Links {
			parent := func(o dataplane.Link) bool {
				return o.Ours() && o.Kind == dataplane.IPVLAN && o.Parent == l.Name && o.ParentNetns == n.Name
			}
			if slices.ContainsFunc(k.Links, parent) {
				write(n.Name, l)
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// changed reports whether there is anything to look at: in FRR's lines, and unless only they are asked for, anywhere. What
// can't be read is for the look to say.
func (d *Daemon) changed(ctx context.Context, all bool) bool {
	if all && !d.seen.calm || d.seen.blind {
		return all
	}
	began := time.Now()
	defer func() { d.rested(time.Since(began)) }()
	f, err := d.FRR.Observe(ctx, frr.Query{Lines: true})
	if ctx.Err() != nil || f.Fingerprint != d.seen.lines || err != nil && d.seen.lines != "" {
		return true
	}
	if !all {
		return false
	}
	if filesSeen(config.Read(d.Config)) != d.seen.files {
		return true
	}
	k, err := d.Kernel.Observe(ctx, d.seen.names)
	return err != nil || kernelSeen(k) != d.seen.kernel
}

// rested says how long it took to look, and so until when the next hint waits.
func (d *Daemon) rested(took time.Duration) {
	d.due = time.Now().Add(min(glanceShare*took, glanceMost))
}

// saw keeps what a look saw, for the glances after it.
func (d *Daemon) saw(p Prepared, files string) {
	d.seen = seen{glance: glance{files: files, kernel: kernelSeen(p.Kernel), lines: p.FRR.Fingerprint}}
	for _, n := range p.Kernel.Netns {
		d.seen.names = append(d.seen.names, n.Name)
	}
}

// patience is how long an FRR that has come back may take to load its configuration.
const patience = 30 * time.Second

// ready says what an FRR that was away, or is seen for the first time, still lacks of what it had: nil when it is to be taken
// at its word. A daemon that has restarted is empty until its configuration is loaded, line by line; what is written to it
// meanwhile could be taken for the operator's, or the operator's for ours.
func (d *Daemon) ready(f frr.Observation) []string {
	now := time.Now()
	var lacks []string
	if f.Instance.ASN == 0 {
		lacks = append(lacks, "has no `router bgp` in the default VRF")
	} else if d.instance.ASN != 0 && f.Instance.ASN != d.instance.ASN {
		lacks = append(lacks, fmt.Sprintf("runs router bgp %d, and ran %d", f.Instance.ASN, d.instance.ASN))
	}
	for _, p := range d.peers {
		if !slices.ContainsFunc(f.Sessions, func(s frr.Session) bool { return s.Peer == p }) {
			lacks = append(lacks, "has no neighbor "+p)
		}
	}
	if !d.away {
		if f.Instance.ASN != 0 || d.instance.ASN == 0 {
			return nil // nobody restarted: an operator's change is an operator's change
		}
		d.away = true
	}
	if d.back.IsZero() {
		d.back = now
	}
	steady := f.Fingerprint == d.lastLines
	d.lastLines = f.Fingerprint
	switch {
	case now.Sub(d.back) > patience:
	case len(lacks) > 0:
		return lacks
	case !steady:
		return []string{"is read once more, for it may still be loading its configuration"}
	}
	d.away, d.back = false, time.Time{}
	return nil
}

// remember keeps what a ready FRR has.
func (d *Daemon) remember(f frr.Observation) {
	d.instance, d.peers = f.Instance, nil
	for _, s := range f.Sessions {
		d.peers = append(d.peers, s.Peer)
	}
}

// objects are what a repair from a to b is about.
func objects(a, b state.State) (names, words []string) {
	for _, d := range state.Differences(a, b) {
		names, words = append(names, d.Object), append(words, d.String())
	}
	return names, words
}
