package daemon

import (
	"context"
	"fmt"
	"slices"

	"vtepd/daemon/config"
	"vtepd/daemon/plan"
	"vtepd/daemon/state"
	"vtepd/dataplane"
)

// conflists are those of cfg's endpoints on CNI attachments, by name, or all that is wrong with them.
func conflists(cni dataplane.CNI, cfg *config.Config) (map[string]dataplane.Conflist, []config.Problem) {
	lists := map[string]dataplane.Conflist{}
	var problems []config.Problem
	for _, e := range cfg.Endpoints {
		if e.Placement != config.PlacementCNI {
			continue
		}
		field := "endpoints." + e.Name + ".cni.conflist"
		if cni == nil {
			problems = append(problems, cfg.Problem(field, "there is nothing here that runs CNI plugins; use ipvlan or loopback"))
			continue
		}
		data, err := cni.Conflist(e.CNI.Conflist)
		if err != nil {
			problems = append(problems, cfg.Problem(field, fmt.Sprintf("can't be read: %v", err)))
			continue
		}
		list, wrong := dataplane.ParseConflist(data)
		for _, w := range wrong {
			problems = append(problems, cfg.Problem(field, fmt.Sprintf("%s: %s", e.CNI.Conflist, w)))
		}
		lists[e.Name] = list
	}
	return lists, problems
}

// unable fills in what the kernel and the plugins can't do of what is new in b. Nothing of the router's is touched.
func unable(ctx context.Context, p Ports, a, b state.State, look *plan.Look) error {
	look.Lacks, look.Invalid = map[dataplane.Kind]string{}, map[string][]string{}
	kinds := map[dataplane.Kind]bool{}
	for _, l := range b.Links {
		if _, ok := dataplane.Find(a.Links, l.Name); !ok {
			kinds[l.Kind] = true
		}
	}
	for _, x := range b.Attachments {
		if !slices.Contains(a.Attachments, x) {
			kinds[dataplane.Dummy] = true // it may have to hold the address meanwhile
			if why := p.CNI.Validate(ctx, x); len(why) > 0 {
				look.Invalid[x.Link] = why
			}
		}
	}
	for kind := range kinds {
		why, err := p.Kernel.Lacks(ctx, kind)
		if err != nil {
			return err
		}
		if why != "" {
			look.Lacks[kind] = why
		}
	}
	return nil
}

// drifted are the attachments that stay, and whose CHECK fails, with the plugins' words.
func drifted(ctx context.Context, cni dataplane.CNI, a, b state.State) (drifted []dataplane.Attachment, words []string, err error) {
	for _, x := range a.Attachments {
		if !slices.Contains(b.Attachments, x) {
			continue
		}
		if err := cni.Check(ctx, x); err != nil {
			if ctx.Err() != nil {
				return nil, nil, ctx.Err()
			}
			drifted = append(drifted, x)
			words = append(words, fmt.Sprintf("%v; it is made anew", err))
		}
	}
	return drifted, words, nil
}

// stale are the attachments that have a record, and aren't part of a.
func stale(k dataplane.Observation, a state.State) []dataplane.Attachment {
	var out []dataplane.Attachment
	for _, x := range k.Attached {
		if !slices.Contains(a.Attachments, x.Attachment) {
			out = append(out, x.Attachment)
		}
	}
	return out
}
