package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"vtepd/alloc"
	"vtepd/daemon"
	"vtepd/daemon/claims"
	"vtepd/daemon/config"
	"vtepd/daemon/status"
)

// access is how to be let into an etcd that a command line names.
type access struct {
	ca, cert, key, username, passwordFile string
}

func (a *access) flags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVar(&a.ca, "ca", "", "etcd: a PEM file with the CAs to trust")
	f.StringVar(&a.cert, "cert", "", "etcd: a PEM file with the certificate to show, with --key")
	f.StringVar(&a.key, "key", "", "etcd: a PEM file with its key")
	f.StringVar(&a.username, "username", "", "etcd: the user, with --password-file")
	f.StringVar(&a.passwordFile, "password-file", "", "etcd: a file that holds the user's password alone")
}

// parse reads a store as it is written on a command line. What it takes to be let in comes from the flags, or without any from the
// config, if that names the same etcd.
func (a *access) parse(text string, cfg *config.Config) (config.Store, error) {
	scheme := "http"
	if a.ca != "" || a.cert != "" {
		scheme = "https"
	}
	s, err := config.ParseStore(text, scheme)
	if err != nil {
		return s, usageError{err}
	}
	switch {
	case !s.IsEtcd():
	case *a != access{}:
		s.Etcd.CA, s.Etcd.Cert, s.Etcd.Key, s.Etcd.Username, s.Etcd.PasswordFile = a.ca, a.cert, a.key, a.username, a.passwordFile
	case cfg != nil && cfg.Store.String() == s.String():
		s = cfg.Store
	}
	return s, nil
}

// desk is what the commands on claims work with.
type desk struct {
	*places
	access
	named string // --store
	yes   bool
}

func (d *desk) flags(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&d.named, "store", "", "the store: dir:PATH or etcd:ENDPOINT[,ENDPOINT...][/PREFIX]; default: the one that the config names")
	d.access.flags(cmd)
}

// opened is a store with the claimer on it.
type opened struct {
	name    string // for people
	store   alloc.Store
	claimer *alloc.Claimer
	cfg     *config.Config // nil: it can't be read, and the pools aren't known
}

// open opens the store that is named, or the one of the config. needsPools: without a config that can be read nothing is done.
func (d *desk) open(cmd *cobra.Command, readOnly, needsPools bool) (*opened, error) {
	cfg, err := config.Load(d.config)
	if err != nil && (d.named == "" || needsPools) {
		return nil, err
	}
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "vtepd: without a config the pools aren't known: %v\n", err)
	}
	var s config.Store
	if cfg != nil {
		s = cfg.Store
	}
	if d.named != "" {
		if s, err = d.parse(d.named, cfg); err != nil {
			return nil, err
		}
		if err := isThere(s); err != nil {
			return nil, err
		}
	}
	o := &opened{cfg: cfg, name: d.nameOf(s)}
	if o.store, err = d.store(s, "", "", readOnly); err != nil {
		return nil, err
	}
	var list []alloc.Pool
	if cfg != nil {
		list = daemon.Pools(cfg)
	}
	pools, err := alloc.NewPools(list...)
	if err != nil {
		return nil, errors.Join(err, o.store.Close())
	}
	o.claimer = alloc.NewClaimer(o.store, pools)
	return o, nil
}

// nameOf is a store as the command line has it.
func (p *places) nameOf(s config.Store) string {
	if !s.IsEtcd() && s.Directory == "" {
		s.Directory = p.ledger()
	}
	return s.String()
}

// isThere: a directory that somebody names and that isn't there is a slip, not an empty ledger.
func isThere(s config.Store) error {
	if s.IsEtcd() {
		return nil
	}
	info, err := os.Stat(s.Directory)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: there is no such directory", s)
	}
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s: not a directory", s)
	}
	return err
}

// with runs f on the store, and closes it.
func (d *desk) with(cmd *cobra.Command, readOnly, needsPools bool, f func(context.Context, *opened) error) (err error) {
	o, err := d.open(cmd, readOnly, needsPools)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.store.Close()) }()
	return f(cmd.Context(), o)
}

// ask tells what is about to be done, and asks whether to go on.
func (d *desk) ask(cmd *cobra.Command, what ...string) error {
	for _, w := range what {
		fmt.Fprintln(cmd.ErrOrStderr(), w)
	}
	if d.yes {
		return nil
	}
	in := cmd.InOrStdin()
	if !terminal(in) {
		return errors.New("nothing was done: there is no terminal to ask on; --yes goes on without being asked")
	}
	fmt.Fprint(cmd.ErrOrStderr(), "go on? [y/N] ")
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was done")
}

// each finds what name means, asks with verb before each of it and, where that harms, with what is known of whether it is used, and
// then does it, saying what has become of it.
func (d *desk) each(cmd *cobra.Command, o *opened, name, verb string, harms bool, do func(claims.Held) (string, error)) error {
	ctx := cmd.Context()
	found, err := claims.Find(ctx, o.claimer, name)
	if err != nil {
		return err
	}
	var what []string
	for _, h := range found {
		what = append(what, verb+h.String())
		if harms {
			what = append(what, d.inUse(ctx, h.Routers(), h.Allocation.Value)...)
		}
	}
	if err := d.ask(cmd, what...); err != nil {
		return err
	}
	for _, h := range found {
		done, err := do(h)
		if err != nil {
			return err
		}
		fmt.Fprintln(cmd.OutOrStdout(), done)
	}
	return nil
}

func terminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// inUse says what is known of whether a router uses what it would lose.
func (d *desk) inUse(ctx context.Context, routers []string, value string) []string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s, err := status.Fetch(ctx, d.socket)
	var on []string
	for _, e := range s.Endpoints {
		if e.Address.String() == value {
			on = append(on, "endpoint "+e.Name)
		}
	}
	for _, l := range s.Loopbacks {
		if slices.ContainsFunc(l.Addresses, func(a netip.Addr) bool { return a.String() == value }) {
			on = append(on, "loopback "+l.Name)
		}
	}
	var out []string
	for _, r := range routers {
		switch {
		case err != nil || s.Node != r:
			out = append(out, fmt.Sprintf("whether %s still runs can't be seen from here; if it does, it goes on using %s while another can get it", r, value))
		case len(on) > 0:
			out = append(out, fmt.Sprintf("%s is live: vtepd runs here and has %s on %s, and another can get it", r, value, strings.Join(on, " and ")))
		default:
			out = append(out, fmt.Sprintf("%s is live: vtepd runs here, and %s is on none of its endpoints and loopbacks now", r, value))
		}
	}
	return out
}

func format(output string) (asJSON bool, err error) {
	switch output {
	case "json":
		return true, nil
	case "text":
		return false, nil
	}
	return false, usageError{fmt.Errorf("-o %q: text or json", output)}
}

func claimsCommand(p *places) *cobra.Command {
	d := &desk{places: p}
	var output string
	var only claims.Filter
	cmd := &cobra.Command{
		Use:   "claims",
		Short: "list what is claimed, by whom, and what waits for a value",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := format(output)
			if err != nil {
				return err
			}
			return d.with(cmd, true, false, func(ctx context.Context, o *opened) error {
				var wanted []alloc.Claim
				if o.cfg != nil {
					wanted, _ = daemon.Claimed(o.cfg)
				}
				l, err := claims.Of(ctx, o.claimer, wanted, o.cfg != nil)
				if err != nil {
					return err
				}
				l.Store = o.name
				if l = l.Only(only); asJSON {
					return l.JSON(cmd.OutOrStdout())
				}
				return l.Text(cmd.OutOrStdout(), time.Now())
			})
		},
	}
	d.flags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.Flags().StringVar(&only.Router, "router", "", "only what this router claims, or is kept for it")
	cmd.Flags().StringVar(&only.Pool, "pool", "", "only this pool")
	for _, sub := range []*cobra.Command{releaseCommand(d), provisionCommand(d), allowBindingCommand(d)} {
		sub.Flags().BoolVarP(&d.yes, "yes", "y", false, "go on without being asked")
		cmd.AddCommand(sub)
	}
	return cmd
}

func releaseCommand(d *desk) *cobra.Command {
	return &cobra.Command{
		Use:   "release CLAIM|ALLOCATION",
		Short: "let go of what a claim holds, or of an allocation (POOL@VALUE) whoever holds it",
		Long: "Let go of what a claim (router/endpoint/name) holds, or of an allocation (POOL@VALUE) whoever holds it.\n" +
			"A pool that retains keeps the value taken; releasing the allocation once more frees it.",
		Args: usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.with(cmd, false, false, func(ctx context.Context, o *opened) error {
				return d.each(cmd, o, args[0], "release ", true, func(h claims.Held) (string, error) {
					return claims.Release(ctx, o.claimer, h)
				})
			})
		},
	}
}

func provisionCommand(d *desk) *cobra.Command {
	var claim, group string
	cmd := &cobra.Command{
		Use:   "provision POOL VALUE",
		Short: "take a value by hand, for a claim or a group to come or for nobody",
		Args:  usage(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if claim != "" && group != "" {
				return usageError{errors.New("--for and --group: one of the two; a group's value is for each of its claims")}
			}
			return d.with(cmd, false, true, func(ctx context.Context, o *opened) error {
				what := fmt.Sprintf("take %s of pool %s for nobody: no claim gets it", args[1], args[0])
				switch {
				case group != "":
					what = fmt.Sprintf("take %s of pool %s for group %s: no claim without it gets it", args[1], args[0], group)
				case claim != "":
					what = fmt.Sprintf("take %s of pool %s for %s: no other claim gets it", args[1], args[0], claim)
				}
				if err := d.ask(cmd, what); err != nil {
					return err
				}
				a, err := claims.Provision(ctx, o.claimer, args[0], args[1], claim, group)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s is taken\n", a.Name)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&claim, "for", "", "the claim that gets it, such as leaf1/endpoint/vtep0")
	cmd.Flags().StringVar(&group, "group", "", "the group whose claims share it, such as anycast-rp")
	return cmd
}

func allowBindingCommand(d *desk) *cobra.Command {
	var off bool
	cmd := &cobra.Command{
		Use:   "allow-binding CLAIM|ALLOCATION",
		Short: "let a claim that was made again under the same name have the value of the earlier one",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.with(cmd, false, false, func(ctx context.Context, o *opened) error {
				ask, word := "allow binding: ", "allows binding"
				if off {
					ask, word = "allow no binding any more: ", "allows no binding"
				}
				return d.each(cmd, o, args[0], ask, !off, func(h claims.Held) (string, error) {
					return h.Allocation.Name + " " + word, claims.AllowBinding(ctx, o.claimer, h, !off)
				})
			})
		},
	}
	cmd.Flags().BoolVar(&off, "off", false, "take that back")
	return cmd
}

func poolsCommand(p *places) *cobra.Command {
	d := &desk{places: p}
	var output string
	cmd := &cobra.Command{
		Use:   "pools",
		Short: "list the pools of the config: how large, how full, and what comes next",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := format(output)
			if err != nil {
				return err
			}
			return d.with(cmd, true, true, func(ctx context.Context, o *opened) error {
				l, err := claims.PoolsOf(ctx, o.claimer)
				if err != nil {
					return err
				}
				if l.Store = o.name; asJSON {
					return l.JSON(cmd.OutOrStdout())
				}
				return l.Text(cmd.OutOrStdout())
			})
		},
	}
	d.flags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func storeCommand(p *places) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "work on the stores of claims",
		Args:  usage(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(copyCommand(p))
	return cmd
}

func copyCommand(p *places) *cobra.Command {
	var a access
	var from, to string
	cmd := &cobra.Command{
		Use:   "copy --from STORE --to STORE",
		Short: "copy all claims and values into another store, renumbering nothing",
		Long: "Copy all claims and values into another store: dir:PATH or etcd:ENDPOINT[,ENDPOINT...][/PREFIX].\n" +
			"What is there already stays; nothing is written where the two don't agree, and all is read back.\n" +
			"Twice is once, and a copy that was cut off is completed by another.",
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(p.config)
			if err != nil {
				cfg = nil // only the way into an etcd would come from it
			}
			var stores [2]config.Store
			for i, text := range []string{from, to} {
				if text == "" {
					return usageError{errors.New("both --from and --to are needed")}
				}
				if stores[i], err = a.parse(text, cfg); err != nil {
					return err
				}
			}
			if stores[0].String() == stores[1].String() {
				return usageError{errors.New("--from and --to are the same store")}
			}
			if err := isThere(stores[0]); err != nil {
				return err
			}
			return copyStore(cmd, p, stores[0], stores[1])
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "the store to read")
	cmd.Flags().StringVar(&to, "to", "", "the store to write; a directory is made")
	a.flags(cmd)
	return cmd
}

func copyStore(cmd *cobra.Command, p *places, from, to config.Store) (err error) {
	source, err := p.store(from, "", "", true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	target, err := p.store(to, "", "", false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	n, err := alloc.Copy(cmd.Context(), source, target)
	if clashes, ok := errors.AsType[alloc.Clashes](err); ok {
		return fmt.Errorf("not copied from %s to %s:\n%w", from, to, clashes)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "copied from %s to %s and read back: %d made, %d joined, %d there already\n", from, to, n.Made, n.Joined, n.Present)
	return nil
}
