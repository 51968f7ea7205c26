package daemon

import (
	"fmt"
	"slices"
	"strings"

	"vtepd/alloc"
	"vtepd/daemon/config"
	"vtepd/daemon/desired"
	"vtepd/daemon/state"
	"vtepd/daemon/status"
	"vtepd/dataplane"
	"vtepd/frr"
)

// loopbacks are those of a config, each a unit of its own: what one waits for holds nobody up.
type loopbacks []*loopback

type loopback struct {
	config.Loopback
	reason string   // why it can't be made, or isn't wholly done, in a word
	why    []string // in words
	unmade bool     // its claims aren't all answered
	kept   bool     // it is there from before
	note   string   // what is left alone
}

func newLoopbacks(cfg *config.Config) loopbacks {
	var out loopbacks
	for _, l := range cfg.Loopbacks {
		out = append(out, &loopback{Loopback: l})
	}
	return out
}

func (ls loopbacks) wait(name, reason, why string) {
	for _, l := range ls {
		if l.Name == name {
			l.unmade, l.reason, l.why = true, reason, append(l.why, why)
		}
	}
}

func (ls loopbacks) waits(name string) bool {
	return slices.ContainsFunc(ls, func(l *loopback) bool { return l.Name == name && l.unmade })
}

// claims are what proposals give, less what is for a loopback that isn't made yet.
func (ls loopbacks) claims(proposals []alloc.Proposal) []state.Claim {
	var out []state.Claim
	for _, p := range proposals {
		if lo := desired.LoopbackOf(p.Claim.Name); lo == "" || !ls.waits(lo) {
			out = append(out, state.ClaimOf(p))
		}
	}
	return out
}

// keep leaves what a loopback that waits has from before as it is.
func (ls loopbacks) keep(b *state.State, a, last state.State, cfg *config.Config) {
	for _, l := range ls {
		if !l.unmade {
			continue
		}
		for _, have := range last.Links {
			if !state.IsLoopback(have) || have.Name != l.Name {
				continue
			}
			l.kept = true
			b.Links = append(b.Links, have)
			for _, p := range have.Addrs {
				if slices.Contains(last.Routes, p) {
					b.Routes = append(b.Routes, p)
				}
			}
			if l.Role == config.RoleRouterID {
				b.RouterID = a.RouterID
			}
		}
		for _, c := range a.Claims {
			if l.kept && desired.LoopbackOf(c.Name) == l.Name && desired.RouterOf(c.Name) == cfg.Node.Name {
				b.Claims = append(b.Claims, c)
			}
		}
	}
	*b = b.Normal()
}

// routerID gives FRR the router id only where the operator didn't, and not under running sessions.
func (ls loopbacks) routerID(b *state.State, a state.State, f frr.Observation, cfg *config.Config) {
	i := slices.IndexFunc(ls, func(l *loopback) bool { return l.Role == config.RoleRouterID })
	if i < 0 || !b.RouterID.IsValid() || b.RouterID == a.RouterID {
		return
	}
	l, want := ls[i], b.RouterID
	running := slices.ContainsFunc(f.Sessions, func(s frr.Session) bool { return s.Established })
	switch theirs := f.Instance.Configured; {
	case theirs.IsValid() && theirs != a.RouterID:
		b.RouterID = a.RouterID
		if theirs != want {
			l.note = fmt.Sprintf("FRR has `bgp router-id %s`, which vtepd didn't write: it is left as it is", theirs)
		}
	case running && f.Instance.RouterID != want && !cfg.Transaction.AllowDisruptive:
		b.RouterID = a.RouterID
		l.reason = "RouterIDInUse"
		l.why = append(l.why, cfg.Problem("loopbacks."+l.Name+".role", fmt.Sprintf(
			"FRR's sessions run with the router id %s, and would restart with %s; set transaction.allowDisruptive to true to change it, or give --allow-disruptive to `vtepd apply` or `vtepd rollback`", f.Instance.RouterID, want)).Error())
	}
}

// waiting is what the loopbacks that aren't wholly done wait for.
func (ls loopbacks) waiting() []string {
	var out []string
	for _, l := range ls {
		out = append(out, l.why...)
	}
	return out
}

// conditions says of each loopback whether it is bound, up and announced.
func (ls loopbacks) conditions(b state.State, k dataplane.Observation, f frr.Observation) []status.Loopback {
	var out []status.Loopback
	for _, l := range ls {
		c := status.Loopback{Name: l.Name, Role: string(l.Role), Reason: l.reason, Message: strings.Join(append(l.why, l.note), "\n")}
		c.Message = strings.TrimSpace(c.Message)
		want, planned := dataplane.Find(b.Links, l.Name)
		have, there := dataplane.Find(k.Links, l.Name)
		if there && have.Ours() {
			for _, p := range have.Addrs {
				c.Addresses = append(c.Addresses, p.Addr())
			}
		}
		if c.Reason == "" && planned {
			c.Reason, c.Message = unready(want, have, f, c.Message)
		}
		if c.Reason == "" {
			c.Ready, c.Reason = true, "Ready"
		}
		out = append(out, c)
	}
	return out
}

// unready says what a loopback still lacks.
func unready(want, have dataplane.Link, f frr.Observation, note string) (reason, msg string) {
	switch {
	case have.Name == "":
		return "NotMade", "the link is not there yet"
	case !have.Same(want):
		return "NotUp", strings.Join(want.Diff(have), ", ")
	}
	for _, p := range want.Addrs {
		announced := func(r frr.Route) bool { return r.Prefix == p && r.Local }
		if !slices.ContainsFunc(f.Routes, announced) {
			return "NotAnnounced", fmt.Sprintf("host route %s is not in BGP", p)
		}
	}
	return "", note
}
