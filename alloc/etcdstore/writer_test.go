package etcdstore

import (
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vtepd/alloc"
	"vtepd/alloc/storetest"
)

// The connection goes at every piece of every request, before it comes to etcd, and at every piece of every answer: each call ends as
// if nothing had happened, which an update that was done twice, or a create that had lost its answer, would not.
func TestAnswersLost(t *testing.T) {
	e := server(t, nil)
	for _, answers := range []bool{false, true} {
		for k := 1; ; k++ {
			prefix := fmt.Sprintf("/lost/%t/%d", answers, k)
			p := newProxy(t, endpoints(e)[0])
			n, cut := 0, false
			at := func() bool {
				n++
				cut = cut || n == k
				return n != k
			}
			if answers {
				p.onAnswer = at
			} else {
				p.onRequest = at
			}
			s := open(t, Options{Endpoints: []string{p.url()}, Prefix: prefix})
			one, err := s.Create(t.Context(), sample(1))
			if err != nil {
				t.Fatalf("create, cut at %d: %v", k, err)
			}
			for range 2 {
				one.AllowBinding = !one.AllowBinding
				if one, err = s.Update(t.Context(), one); err != nil {
					t.Fatalf("update, cut at %d: %v", k, err)
				}
			}
			if err := s.Delete(t.Context(), one.Name, one.Version); err != nil {
				t.Fatalf("delete, cut at %d: %v", k, err)
			}
			two, err := s.Create(t.Context(), sample(2))
			if err != nil {
				t.Fatalf("create, cut at %d: %v", k, err)
			}
			if _, err := s.Create(t.Context(), sample(2)); !errors.Is(err, alloc.ErrExists) {
				t.Errorf("again, cut at %d: %v", k, err)
			}
			ch, err := open(t, Options{Endpoints: endpoints(e), Prefix: prefix}).Changes(t.Context(), 0)
			if err != nil || len(ch.Set) != 1 || ch.Set[0].Version != two.Version {
				t.Errorf("cut at %d: %+v %v", k, ch, err)
			}
			p.mu.Lock()
			done := !cut
			p.mu.Unlock()
			if done {
				if k < 10 {
					t.Errorf("only %d cuts", k)
				}
				break
			}
		}
	}
}

// A write that arrives after its Store has given it up, or has been killed and is replaced, changes nothing any more.
func TestLateWrite(t *testing.T) {
	e := server(t, nil)
	s := open(t, Options{Endpoints: endpoints(e)})
	one, err := s.Create(t.Context(), sample(1))
	if err != nil {
		t.Fatal(err)
	}
	cli, err := s.client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// As write sends it.
	data, err := alloc.Marshal(sample(2))
	if err != nil {
		t.Fatal(err)
	}
	key := s.keys.allocations + "p@10.0.0.2"
	w := s.writer
	late := cli.Txn(t.Context()).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0), w.is()).Then(clientv3.OpPut(key, string(data)), clientv3.OpPut(w.key, markWrite))
	s.writer.open = true
	if err := s.Delete(t.Context(), one.Name, one.Version); err != nil {
		t.Fatal(err)
	}
	resp, err := late.Commit()
	if err != nil || resp.Succeeded {
		t.Errorf("it was done: %v %v", resp.Succeeded, err)
	}
	if ch, err := s.Changes(t.Context(), 0); err != nil || len(ch.Set) != 0 {
		t.Errorf("changes: %+v %v", ch, err)
	}
}

// No allocation hangs on a lease: when every lease goes, and with them every mark, nothing is lost, and writing goes on.
func TestLeasesFreeNothing(t *testing.T) {
	e := server(t, nil)
	s := open(t, Options{Endpoints: endpoints(e)})
	c := alloc.NewClaimer(s, storetest.LifePools())
	claim := func(n int) (string, error) {
		a, _, err := c.Acquire(t.Context(), alloc.Claim{Name: fmt.Sprintf("leaf1/%d", n), UID: "u", Pool: "p"})
		return a.Value, err
	}
	for i := range 3 {
		if _, err := claim(i); err != nil {
			t.Fatal(err)
		}
	}
	cli, err := s.client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	kept, err := cli.Get(t.Context(), "/vtepd/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	leased := 0
	for _, kv := range kept.Kvs {
		if kv.Lease != 0 {
			leased++
			if string(kv.Key) != s.writer.key {
				t.Errorf("%s has a lease", kv.Key)
			}
		}
	}
	if leased != 1 || len(kept.Kvs) != 5 {
		t.Errorf("%d keys, %d with a lease", len(kept.Kvs), leased)
	}
	revoke := func() {
		t.Helper()
		all, err := cli.Leases(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all.Leases {
			if _, err := cli.Revoke(t.Context(), l.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	revoke()
	if v, err := claim(3); err != nil || v != "10.0.0.3" {
		t.Errorf("after the leases: %s %v", v, err)
	}
	revoke()
	if err := s.Health(t.Context()); err != nil {
		t.Errorf("health: %v", err)
	}
	for i := range 4 {
		if err := c.Release(t.Context(), fmt.Sprintf("p@10.0.0.%d", i), fmt.Sprintf("leaf1/%d", i), "u"); err != nil {
			t.Errorf("release: %v", err)
		}
	}
	// A closed Store leaves no mark.
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	other := open(t, Options{Endpoints: endpoints(e)})
	if cli, err = other.client(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept, err = cli.Get(t.Context(), "/vtepd/", clientv3.WithPrefix())
	if err != nil || len(kept.Kvs) != 1 || string(kept.Kvs[0].Key) != "/vtepd/head" {
		t.Errorf("left: %+v %v", kept.Kvs, err)
	}
}

// What other hands put under the prefix is reported by name, counts as taken, and stays as it is.
func TestDamage(t *testing.T) {
	e := server(t, nil)
	s := open(t, Options{Endpoints: endpoints(e)})
	cli, err := s.client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	whole, err := alloc.Marshal(sample(0))
	if err != nil {
		t.Fatal(err)
	}
	before, err := s.Changes(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"README": "x", "p@10.0.0.1": "", "p@10.0.0.2": string(whole[:40]), "p@10.0.0.3": `{"version": 2}`, "p@10.0.0.4": string(whole),
	} {
		if _, err := cli.Put(t.Context(), "/vtepd/allocations/"+name, data); err != nil {
			t.Fatal(err)
		}
	}
	want := []alloc.Damage{
		{Name: "README", Why: "foreign: not the name of an allocation"},
		{Name: "p@10.0.0.1", Pool: "p", Value: "10.0.0.1", Why: "empty"},
		{Name: "p@10.0.0.2", Pool: "p", Value: "10.0.0.2", Why: "torn or foreign: unexpected end of JSON input"},
		{Name: "p@10.0.0.3", Pool: "p", Value: "10.0.0.3", Why: "format version 2 is newer than 1, the newest known here"},
		{Name: "p@10.0.0.4", Pool: "p", Value: "10.0.0.4", Why: `foreign: it says that it is "p@10.0.0.0"`},
	}
	fresh, err := open(t, Options{Endpoints: endpoints(e)}).Changes(t.Context(), 0)
	if err != nil || fmt.Sprint(fresh.Damaged) != fmt.Sprint(want) || len(fresh.Set) != 0 {
		t.Errorf("damage: %v %v\nwant %v", fresh.Damaged, err, want)
	}
	// By the watch it may take a moment: those hands don't touch the head.
	eventually(t, "the watch", func() error {
		ch, err := s.Changes(t.Context(), before.Next)
		if err == nil && fmt.Sprint(ch.Damaged) != fmt.Sprint(want) {
			return fmt.Errorf("damage: %v", ch.Damaged)
		}
		return err
	})
	for _, d := range want[1:] {
		a := sample(0)
		a.Name, a.Value = d.Name, d.Value
		_, gerr := s.Get(t.Context(), d.Name)
		_, cerr := s.Create(t.Context(), a)
		_, uerr := s.Update(t.Context(), a)
		derr := s.Delete(t.Context(), d.Name, "")
		if !errors.Is(gerr, alloc.ErrDamaged) || !errors.Is(cerr, alloc.ErrExists) || !errors.Is(uerr, alloc.ErrDamaged) || !errors.Is(derr, alloc.ErrDamaged) {
			t.Errorf("%s: get %v, create %v, update %v, delete %v", d.Name, gerr, cerr, uerr, derr)
		}
	}
	if _, err := s.Get(t.Context(), "../head"); err == nil || errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("a path: %v", err)
	}
	c := alloc.NewClaimer(s, mustPools(t, "10.0.0.0/24"))
	_, _, err = c.Acquire(t.Context(), alloc.Claim{Name: "leaf1/x", Pool: "p"})
	var k *alloc.Condition
	if !errors.As(err, &k) || k.Reason != alloc.LedgerDamaged {
		t.Errorf("acquire: %v", err)
	}
}

func TestReadOnly(t *testing.T) {
	e := server(t, nil)
	if _, err := open(t, Options{Endpoints: endpoints(e)}).Create(t.Context(), sample(1)); err != nil {
		t.Fatal(err)
	}
	r := open(t, Options{Endpoints: endpoints(e), ReadOnly: true})
	if ch, err := r.Changes(t.Context(), 0); err != nil || len(ch.Set) != 1 {
		t.Errorf("changes: %+v %v", ch, err)
	}
	_, cerr := r.Create(t.Context(), sample(2))
	_, uerr := r.Update(t.Context(), sample(1))
	for what, err := range map[string]error{"create": cerr, "update": uerr, "delete": r.Delete(t.Context(), "p@10.0.0.1", "1"), "health": r.Health(t.Context())} {
		if !errors.Is(err, alloc.ErrReadOnly) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A full etcd refuses, says so, and loses nothing; once there is room it goes on.
func TestFull(t *testing.T) {
	e := server(t, nil)
	s := open(t, Options{Endpoints: endpoints(e)})
	one, err := s.Create(t.Context(), sample(1))
	if err != nil {
		t.Fatal(err)
	}
	cli, err := s.client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id := uint64(e.Server.MemberID())
	raise(t, e, id)
	_, err = s.Create(t.Context(), sample(2))
	want := "ledger unavailable: etcd " + endpoints(e)[0] + ": etcdserver: mvcc: database space exceeded"
	if text(err) != "create p@10.0.0.2: "+want {
		t.Errorf("create: %v", err)
	}
	if err := s.Health(t.Context()); text(err) != "health: "+want {
		t.Errorf("health: %v", err)
	}
	if got, err := s.Get(t.Context(), one.Name); err != nil || got.Version != one.Version {
		t.Errorf("get: %+v %v", got, err)
	}
	if _, err := cli.AlarmDisarm(t.Context(), &clientv3.AlarmMember{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "create", func() error { _, err := s.Create(t.Context(), sample(2)); return err })
}

// The prefix keeps ledgers apart, and a call's context ends it.
func TestPrefix(t *testing.T) {
	e := server(t, nil)
	a, b := open(t, Options{Endpoints: endpoints(e), Prefix: "/a"}), open(t, Options{Endpoints: endpoints(e), Prefix: "/a/b"})
	for _, s := range []*Store{a, b} {
		if _, err := s.Create(t.Context(), sample(1)); err != nil {
			t.Fatal(err)
		}
		if ch, err := s.Changes(t.Context(), 0); err != nil || len(ch.Set) != 1 || len(ch.Damaged) != 0 {
			t.Errorf("changes: %+v %v", ch, err)
		}
	}
	if d := time.Duration(0); a.opts.Timeout == d {
		t.Error("no timeout by default")
	}
}
