package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"vtepd/alloc"
)

// raise makes etcd as full as it says when its quota is used up.
func raise(t *testing.T, e *embed.Etcd, id uint64) {
	t.Helper()
	_, err := e.Server.Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: id, Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// cluster is three members, each with a proxy before its clients.
type cluster struct {
	t       *testing.T
	cfg     [3]*embed.Config
	member  [3]*embed.Etcd
	proxies [3]*proxy
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t}
	var all []string
	for i := range c.cfg {
		c.cfg[i] = member(t, func(cfg *embed.Config) {
			cfg.Name = fmt.Sprintf("m%d", i)
			cfg.TickMs, cfg.ElectionMs = 50, 500
		})
		all = append(all, c.cfg[i].Name+"="+c.cfg[i].AdvertisePeerUrls[0].String())
	}
	for i, cfg := range c.cfg {
		cfg.InitialCluster = strings.Join(all, ",")
		c.launch(i)
	}
	for i, m := range c.member {
		c.ready(i)
		c.proxies[i] = newProxy(t, endpoints(m)[0])
	}
	t.Cleanup(func() {
		for i := range c.member {
			c.kill(i)
		}
	})
	return c
}

func (c *cluster) launch(i int) {
	c.t.Helper()
	m, err := embed.StartEtcd(c.cfg[i])
	if err != nil {
		c.t.Fatal(err)
	}
	c.member[i] = m
}

func (c *cluster) ready(i int) {
	c.t.Helper()
	select {
	case <-c.member[i].Server.ReadyNotify():
	case <-time.After(30 * time.Second):
		c.t.Fatalf("member %d isn't ready", i)
	}
}

// kill ends a member without a farewell to the others or to clients.
func (c *cluster) kill(i int) {
	if c.member[i] == nil {
		return
	}
	c.proxies[i].cut()
	c.member[i].Server.HardStop()
	c.member[i].Close()
	c.member[i] = nil
}

// restart brings a killed member back on its own data.
func (c *cluster) restart(i int) {
	c.t.Helper()
	c.launch(i)
	c.ready(i)
	c.proxies[i].mend()
}

func (c *cluster) peers(i int, f func(i, j int)) {
	for j := range c.member {
		if j != i && c.member[j] != nil {
			f(i, j)
			f(j, i)
		}
	}
}

// partition takes a member away from the others, and not from clients.
func (c *cluster) partition(i int) {
	c.peers(i, func(i, j int) { c.member[i].Server.CutPeer(c.id(j)) })
}

func (c *cluster) heal(i int) {
	c.peers(i, func(i, j int) { c.member[i].Server.MendPeer(c.id(j)) })
}

func (c *cluster) id(i int) types.ID { return c.member[i].Server.MemberID() }

func (c *cluster) leader() int {
	c.t.Helper()
	leader := -1
	eventually(c.t, "a leader", func() error {
		for i, m := range c.member {
			for _, n := range c.member {
				if m != nil && n != nil && n.Server.Leader() == m.Server.MemberID() {
					leader = i
					return nil
				}
			}
		}
		return errors.New("there is none")
	})
	return leader
}

func (c *cluster) urls(is ...int) []string {
	var out []string
	for _, i := range is {
		out = append(out, c.proxies[i].url())
	}
	return out
}

// One member killed, then one cut off from the others while clients still reach it, then both at once: with a majority claims go on, a
// member that is cut off gives no stale answer, without a majority nothing is claimed and nothing lost, and healed it goes on.
func TestCluster(t *testing.T) {
	c := newCluster(t)
	pools := mustPools(t, "10.0.0.0/24")
	s := open(t, Options{Endpoints: c.urls(0, 1, 2), Timeout: 3 * time.Second})
	other := open(t, Options{Endpoints: c.urls(2, 1, 0), Timeout: 3 * time.Second})
	claimer, others := alloc.NewClaimer(s, pools), alloc.NewClaimer(other, pools)
	hints, err := other.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	claim := func(what string) {
		t.Helper()
		drain(hints)
		name := fmt.Sprintf("leaf1/%d", n)
		eventually(t, what, func() error {
			a, _, err := claimer.Acquire(t.Context(), alloc.Claim{Name: name, Pool: "p"})
			if err == nil && a.Value != fmt.Sprintf("10.0.0.%d", n) {
				t.Fatalf("%s: %s", what, a.Value)
			}
			return err
		})
		await(t, hints, what)
		eventually(t, what, func() error {
			held, err := others.Held(t.Context(), "leaf1")
			if err == nil && len(held) != n+1 {
				t.Fatalf("%s: the other router knows of %d values, want %d", what, len(held), n+1)
			}
			return err
		})
		n++
	}
	claim("all well")

	leader := c.leader()
	c.kill(leader)
	claim("the leader killed")
	c.restart(leader)
	claim("the killed one back")

	away := c.leader()
	c.partition(away)
	claim("the leader cut off")
	// Who can only reach the one that is cut off learns nothing, and not something stale.
	lonely := open(t, Options{Endpoints: c.urls(away), Timeout: quick})
	_, gerr := lonely.Get(t.Context(), "p@10.0.0.0")
	_, cerr := lonely.Create(t.Context(), sample(200))
	_, rerr := lonely.Changes(t.Context(), 0)
	for what, err := range map[string]error{"get": gerr, "create": cerr, "changes": rerr} {
		if !errors.Is(err, alloc.ErrUnavailable) || !strings.Contains(err.Error(), c.urls(away)[0]) {
			t.Errorf("%s from a member that is cut off: %v", what, err)
		}
	}
	if stale := raw(t, c.urls(away), clientv3.WithSerializable()); stale >= n {
		t.Errorf("it isn't behind: %d", stale)
	}
	c.heal(away)
	claim("healed")

	dead := (c.leader() + 1) % 3
	cut := (dead + 1) % 3
	c.kill(dead)
	c.partition(cut)
	_, _, err = claimer.Acquire(t.Context(), alloc.Claim{Name: "leaf1/none", Pool: "p"})
	var k *alloc.Condition
	if !errors.As(err, &k) || k.Reason != alloc.LedgerUnavailable {
		t.Errorf("without a majority: %v", err)
	}
	c.heal(cut)
	// It may be there by now, or not: that is what unavailable means. Asked again, it is there once.
	eventually(t, "a majority again", func() error {
		a, _, err := claimer.Acquire(t.Context(), alloc.Claim{Name: "leaf1/none", Pool: "p"})
		if err == nil {
			err = claimer.Release(t.Context(), a.Name, "leaf1/none", "")
		}
		return err
	})
	c.restart(dead)
	claim("a majority again")
	if got := raw(t, c.urls(0, 1, 2)); got != n {
		t.Errorf("%d allocations at the end, want %d", got, n)
	}
}

// raw counts the allocations by the client itself.
func raw(t *testing.T, urls []string, opts ...clientv3.OpOption) int {
	t.Helper()
	cli, err := clientv3.New(clientv3.Config{Endpoints: urls, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	resp, err := cli.Get(ctx, "/vtepd/allocations/", append(opts, clientv3.WithPrefix(), clientv3.WithCountOnly())...)
	if err != nil {
		t.Fatal(err)
	}
	return int(resp.Count)
}
