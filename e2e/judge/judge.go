// Package judge says in which state a router is, with eyes of its own: it reads what ip, the files and FRR's JSON show, and
// knows vtepd's names and marks from the documentation alone. It owns nothing, changes nothing, and never imports the daemon.
package judge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"vtepd/e2e/lab"
)

// State is what a config with one endpoint means, as far as a router shows it.
type State struct {
	Node     string // in the config
	Endpoint string
	Parent   string // of an ipvlan
	Address  netip.Addr
	Pool     string // that the address comes from
	VNIs     []int  // each on a bridge of its own
}

func (s State) String() string {
	return fmt.Sprintf("%s on %s with VNIs %v", s.Address, s.Parent, s.VNIs)
}

// facts are the lines that Look gives for s, beside those of the operator's things.
func (s State) facts(peers []string) []string {
	host := netip.PrefixFrom(s.Address, s.Address.BitLen())
	out := []string{
		fmt.Sprintf("link of endpoint/%s: ipvlan l3 on %s, up, [%s]", s.Endpoint, s.Parent, host),
		fmt.Sprintf("FRR: router bgp: address-family ipv4 unicast: network %s route-map VTEPD", host),
		"FRR: route-map VTEPD permit 10",
		"FRR: route-map VTEPD permit 10: description vtepd marks its host routes with this map",
		fmt.Sprintf("BGP: %s is ours, sent to %v", host, peers),
		fmt.Sprintf("ledger: %s@%s of %s/endpoint/%s", s.Pool, s.Address, s.Node, s.Endpoint),
	}
	for _, v := range s.VNIs {
		out = append(
			out,
			fmt.Sprintf("link vxlan%d of vni/%d: vxlan id %d local %s port 4789 on br%d, up, []", v, v, v, s.Address, v),
			fmt.Sprintf("link br%d of bridge/br%d: bridge, up, []", v, v),
			fmt.Sprintf("zebra: VNI %d on vxlan%d, VTEP %s", v, v, s.Address),
			fmt.Sprintf("BGP: VNI %d with VTEP %s", v, s.Address),
		)
	}
	slices.Sort(out)
	return out
}

// Reader looks at one leaf and the vtepd beside it.
type Reader struct {
	Leaf, Sidecar *lab.Node
	// Dir is vtepd's state directory, as this program sees it.
	Dir string
	// Peers are those that a host route is to be sent to, sorted.
	Peers []string

	base []string
}

// Open reads what is there before vtepd's first start: the operator's things.
func (r *Reader) Open(ctx context.Context) (err error) {
	r.base, err = r.Look(ctx, 0)
	return err
}

// Look gives all that a transaction could change or leave, a line a fact, sorted. pid is vtepd's process, 0 when there is none.
func (r *Reader) Look(ctx context.Context, pid int) ([]string, error) {
	var facts []string
	for _, look := range []func(context.Context) ([]string, error){
		r.links, r.config, r.tables, r.namespaces, r.ledger,
		func(context.Context) ([]string, error) { return r.shadows(pid) },
	} {
		more, err := look(ctx)
		if err != nil {
			return nil, err
		}
		facts = append(facts, more...)
	}
	slices.Sort(facts)
	return slices.Compact(facts), nil
}

type link struct {
	Name   string   `json:"ifname"`
	Flags  []string `json:"flags"`
	MTU    int      `json:"mtu"`
	Parent string   `json:"link"`
	Master string   `json:"master"`
	Alias  string   `json:"ifalias"`
	Info   struct {
		Kind string `json:"info_kind"`
		Data struct {
			Mode  string `json:"mode"`
			ID    int    `json:"id"`
			Local string `json:"local"`
			Port  int    `json:"port"`
		} `json:"info_data"`
	} `json:"linkinfo"`
	Addrs []struct {
		Family string `json:"family"`
		Local  string `json:"local"`
		Len    int    `json:"prefixlen"`
		Scope  string `json:"scope"`
	} `json:"addr_info"`
}

func (r *Reader) links(ctx context.Context) ([]string, error) {
	var all []link
	if err := r.Leaf.JSON(ctx, &all, "ip", "-j", "-d", "addr"); err != nil {
		return nil, err
	}
	ours := map[string]bool{}
	for _, l := range all {
		ours[l.Name] = strings.HasPrefix(l.Alias, "vtepd:")
	}
	var out []string
	for _, l := range all {
		if l.Name == "" { // ip prints an empty object for what a filter leaves out
			continue
		}
		owner := strings.TrimPrefix(l.Alias, "vtepd:")
		name := fmt.Sprintf("link %s", l.Name)
		switch {
		case strings.HasPrefix(owner, "endpoint/"): // its name is made up of much that a config doesn't say
			name = "link of " + owner
		case ours[l.Name]:
			name += " of " + owner
		}
		what := l.Info.Kind
		switch what {
		case "ipvlan":
			what += " " + l.Info.Data.Mode
		case "vxlan":
			what += fmt.Sprintf(" id %d local %s port %d", l.Info.Data.ID, l.Info.Data.Local, l.Info.Data.Port)
		}
		if l.Parent != "" && what != "veth" {
			what += " on " + l.Parent
		}
		if l.Master != "" && (ours[l.Name] || !ours[l.Master]) { // a host's port in a bridge of vtepd's is the test's doing
			what += " on " + l.Master
		}
		up := "down"
		if slices.Contains(l.Flags, "UP") {
			up = "up"
		}
		var addrs []string
		for _, a := range l.Addrs {
			if a.Scope != "link" {
				addrs = append(addrs, fmt.Sprintf("%s/%d", a.Local, a.Len))
			}
		}
		slices.Sort(addrs)
		out = append(out, fmt.Sprintf("%s: %s, %s, %v", name, what, up, addrs))
	}
	return out, nil
}

// config is FRR's running configuration: each line with those that it stands below.
func (r *Reader) config(ctx context.Context) ([]string, error) {
	text, err := r.Leaf.RunningConfig(ctx)
	if err != nil {
		return nil, err
	}
	var out, above []string
	for line := range strings.Lines(text) {
		word := strings.TrimSpace(line)
		depth := len(line) - len(strings.TrimLeft(line, " "))
		switch {
		case word == "" || word == "!" || strings.HasPrefix(word, "exit") || word == "end" || strings.HasSuffix(word, "onfiguration..."),
			strings.HasSuffix(word, "onfiguration:"):
			continue
		case strings.HasPrefix(word, "router bgp "):
			word = "router bgp"
		}
		above = append(above[:min(depth, len(above))], word)
		out = append(out, "FRR: "+strings.Join(above, ": "))
	}
	return out, nil
}

// tables are what zebra and bgpd make of the VNIs and of the host routes.
func (r *Reader) tables(ctx context.Context) ([]string, error) {
	var zebra []struct {
		VNI    int    `json:"vni"`
		Device string `json:"vxlanInterface"`
		VTEP   string `json:"vtepIp"`
	}
	var vnis map[string]json.RawMessage
	var routes struct {
		Routes map[string][]struct {
			Path     string `json:"path"`
			Weight   int    `json:"weight"`
			NextHops []struct {
				IP string `json:"ip"`
			} `json:"nexthops"`
		} `json:"routes"`
	}
	text, err := r.Leaf.Vtysh(ctx, "show evpn vni detail json", "show bgp l2vpn evpn vni json", "show bgp ipv4 unicast json")
	if err != nil {
		return nil, err
	}
	answers := json.NewDecoder(strings.NewReader(text))
	for _, into := range []any{&zebra, &vnis, &routes} {
		if err := answers.Decode(into); err != nil {
			return nil, fmt.Errorf("%s: what vtysh says: %w: %s", r.Leaf.Name, err, text)
		}
	}
	var out []string
	for _, z := range zebra {
		out = append(out, fmt.Sprintf("zebra: VNI %d on %s, VTEP %s", z.VNI, z.Device, z.VTEP))
	}
	for key, raw := range vnis {
		var v struct {
			VTEP string `json:"originatorIp"`
		}
		if raw[0] == '{' && json.Unmarshal(raw, &v) == nil {
			out = append(out, fmt.Sprintf("BGP: VNI %s with VTEP %s", key, v.VTEP))
		}
	}
	var own []string
	for prefix, paths := range routes.Routes {
		for _, p := range paths {
			local := slices.ContainsFunc(p.NextHops, func(h struct {
				IP string `json:"ip"`
			},
			) bool {
				return h.IP == "0.0.0.0"
			})
			if p.Path == "" && p.Weight == 32768 && local {
				own = append(own, prefix)
			}
		}
	}
	slices.Sort(own)
	if len(own) == 0 {
		return out, nil
	}
	var ask []string
	for _, p := range own {
		ask = append(ask, "show bgp ipv4 unicast "+p+" json")
	}
	if text, err = r.Leaf.Vtysh(ctx, ask...); err != nil {
		return nil, err
	}
	answers = json.NewDecoder(strings.NewReader(text))
	for _, p := range own {
		var route struct {
			AdvertisedTo map[string]json.RawMessage `json:"advertisedTo"`
		}
		if err := answers.Decode(&route); err != nil {
			return nil, fmt.Errorf("%s: what vtysh says of %s: %w: %s", r.Leaf.Name, p, err, text)
		}
		sent := []string{}
		for peer := range route.AdvertisedTo {
			sent = append(sent, peer)
		}
		slices.Sort(sent)
		out = append(out, fmt.Sprintf("BGP: %s is ours, sent to %v", p, sent))
	}
	return out, nil
}

// namespaces are the named ones of the leaf and of the sidecar.
func (r *Reader) namespaces(context.Context) ([]string, error) {
	var out []string
	for _, n := range []*lab.Node{r.Leaf, r.Sidecar} {
		names, err := os.ReadDir(n.Path("/run/netns"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, e := range names {
			out = append(out, fmt.Sprintf("namespace %s at %s", e.Name(), n.Name))
		}
	}
	return out, nil
}

// ledger is the claims, and whatever lies in vtepd's state directory that a transaction at rest doesn't need.
func (r *Reader) ledger(context.Context) ([]string, error) {
	var out []string
	files, err := os.ReadDir(r.Dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if !slices.Contains([]string{"ledger", "store.json", "history", "committed.json"}, f.Name()) {
			out = append(out, "file "+f.Name())
		}
	}
	dir := filepath.Join(r.Dir, "ledger")
	files, err = os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, f := range files {
		switch f.Name() {
		case ".lock":
			continue
		case ".tmp":
			staged, err := os.ReadDir(filepath.Join(dir, ".tmp"))
			if err != nil {
				return nil, err
			}
			for _, s := range staged {
				out = append(out, "file ledger/.tmp/"+s.Name())
			}
			continue
		}
		raw, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, err
		}
		var a struct {
			Holders []struct {
				Claim string `json:"claim"`
			} `json:"holders"`
		}
		if err := json.Unmarshal(raw, &a); err != nil {
			return nil, fmt.Errorf("ledger file %s: %w", f.Name(), err)
		}
		var holders []string
		for _, h := range a.Holders {
			holders = append(holders, h.Claim)
		}
		out = append(out, fmt.Sprintf("ledger: %s of %s", f.Name(), strings.Join(holders, " and ")))
	}
	return out, nil
}

var netInode = regexp.MustCompile(`^net:\[\d+\]$`)

// shadows are the network namespaces that vtepd's descriptors hold beside the router's own.
func (r *Reader) shadows(pid int) ([]string, error) {
	if pid == 0 {
		return nil, nil
	}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // it has ended, and its descriptors with it
	}
	if err != nil {
		return nil, err
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && netInode.MatchString(to) && to != own {
			out = append(out, "namespace "+to+" held by vtepd")
		}
	}
	return out, nil
}

// Verdict is where a router is.
type Verdict struct {
	// In is 0 for the first of the states, 1 for the second, …; -1: between them.
	In int
	// Leftovers are what is there beside the state and the operator's things.
	Leftovers []string
	// Missing is, between the states, what each one lacks.
	Missing [][]string
}

func (v Verdict) String() string {
	if v.In < 0 {
		return fmt.Sprintf("between: missing %q; beside: %q", v.Missing, v.Leftovers)
	}
	return fmt.Sprintf("state %c, leftovers %q", 'a'+v.In, v.Leftovers)
}

// Clean reports whether a router is in one of the states, and has nothing beside.
func (v Verdict) Clean() bool { return v.In >= 0 && len(v.Leftovers) == 0 }

// judge holds facts against states, which stand on base.
func judge(base, facts []string, states [][]string) Verdict {
	out := Verdict{In: -1}
	for i, s := range states {
		whole := slices.Concat(base, s)
		missing, beside := without(whole, facts), without(facts, whole)
		if len(missing) == 0 && (out.In < 0 || len(beside) < len(out.Leftovers)) {
			out.In, out.Leftovers = i, beside
		}
		out.Missing = append(out.Missing, missing)
	}
	if out.In < 0 {
		out.Leftovers = without(facts, slices.Concat(append([][]string{base}, states...)...))
	} else {
		out.Missing = nil
	}
	return out
}

func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}

// settles is how long FRR has to follow the kernel after the last change.
const settles = 10 * time.Second

// Judge says in which of states the router is. FRR follows the kernel at its own pace: it is looked at until it is in one of
// them with nothing left over, or for a few seconds, and what it is then counts.
func (r *Reader) Judge(ctx context.Context, pid int, states ...State) (Verdict, error) {
	var want [][]string
	for _, s := range states {
		want = append(want, s.facts(r.Peers))
	}
	short, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	var last Verdict
	err := lab.Eventually(short, "a state", func(context.Context) error {
		facts, err := r.Look(ctx, pid)
		if err != nil {
			return err
		}
		if last = judge(r.base, facts, want); !last.Clean() {
			return errors.New(last.String())
		}
		return nil
	})
	if err != nil && (last.Missing != nil || last.In >= 0 || len(last.Leftovers) > 0) && ctx.Err() == nil {
		return last, nil // it was read, and this is how it is
	}
	return last, err
}
