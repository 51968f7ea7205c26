package lab

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

var epoch = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// packet is one that was seen at all stages up to one, a millisecond apart.
func packet(seq uint32, last Stage) Packet {
	p := Packet{Seq: seq}
	for s := range last + 1 {
		p.At[s] = epoch.Add(time.Duration(seq)*20*time.Millisecond + time.Duration(s)*time.Millisecond)
	}
	if last == Received {
		p.Copies = 1
	}
	return p
}

func TestAnalyse(t *testing.T) {
	// One packet of each fate, in each direction between our leaf and the other.
	trace := func(name, first, second string, packets ...Packet) Trace {
		return Trace{Flow: Flow{Name: name}, First: first, Second: second, Packets: packets}
	}
	out := func(packets ...Packet) Trace { return trace("out", "leaf1", "leaf2", packets...) }
	back := func(packets ...Packet) Trace { return trace("back", "leaf2", "leaf1", packets...) }
	at := func(seq uint32, s Stage) time.Time { return packet(seq, s).At[s] }
	refused := packet(3, Sent)
	refused.Error = "no route to host"
	twice := packet(1, Received)
	twice.Copies = 3
	unseen := packet(0, Received)
	unseen.At[OnWire] = time.Time{}
	late := packet(0, Received)
	late.At[Received] = at(2, Received).Add(time.Millisecond)
	gone := packet(0, OffWire)
	gone.At[Taken] = time.Time{}

	tests := []struct {
		name   string
		traces []Trace
		fdb    []FDBEvent
		want   Report
	}{
		{name: "nothing"},
		{
			name: "all received", traces: []Trace{out(packet(0, Received), packet(1, Received)), back(packet(0, Received))},
			want: Report{Sent: 3, Received: 3, Slowest: 5 * time.Millisecond},
		},
		{
			name: "our leaf didn't send what it took", traces: []Trace{out(packet(0, Taken))},
			want: Report{Sent: 1, LostHere: 1, Losses: []Loss{{Class: LostByUs, Flow: "out", Leaf: "leaf1", Last: Taken, Time: at(0, Taken)}}},
		},
		{
			name: "our leaf didn't deliver what it received", traces: []Trace{back(packet(7, OffWire))},
			want: Report{Sent: 1, LostHere: 1, Losses: []Loss{{Class: LostByUs, Flow: "back", Seq: 7, Leaf: "leaf1", Last: OffWire, Time: at(7, OffWire)}}},
		},
		{
			name: "the other leaf didn't send what it took", traces: []Trace{back(packet(0, Taken))},
			want: Report{Sent: 1, LostRemote: 1, Losses: []Loss{{Class: LostByRemote, Flow: "back", Leaf: "leaf2", Last: Taken, Time: at(0, Taken)}}},
		},
		{
			name: "the other leaf didn't deliver what it received", traces: []Trace{out(packet(0, OffWire))},
			want: Report{Sent: 1, LostRemote: 1, Losses: []Loss{{Class: LostByRemote, Flow: "out", Leaf: "leaf2", Last: OffWire, Time: at(0, OffWire)}}},
		},
		{
			name: "between the leaves", traces: []Trace{out(packet(0, OnWire)), back(packet(0, OnWire))},
			want: Report{Sent: 2, LostHere: 2, LostUnderlay: 2, Losses: []Loss{
				{Class: LostByUnderlay, Flow: "out", Last: OnWire, Time: at(0, OnWire)},
				{Class: LostByUnderlay, Flow: "back", Last: OnWire, Time: at(0, OnWire)},
			}},
		},
		{
			name: "at the hosts", traces: []Trace{out(packet(0, Given), refused)},
			want: Report{Sent: 2, LostHere: 2, LostHost: 2, Losses: []Loss{
				{Class: LostByHost, Flow: "out", Last: Given, Time: at(0, Given)},
				{Class: LostByHost, Flow: "out", Seq: 3, Last: Sent, Time: at(3, Sent), Error: "no route to host"},
			}},
		},
		{
			name: "duplicates", traces: []Trace{out(packet(0, Received), twice)},
			want: Report{Sent: 2, Received: 2, Dup: 2, Slowest: 5 * time.Millisecond},
		},
		{
			name: "a capture without a record says nothing", traces: []Trace{out(unseen), back(gone)},
			want: Report{Sent: 2, Received: 1, LostHere: 1, Slowest: 5 * time.Millisecond, Losses: []Loss{
				{Class: LostByUs, Flow: "back", Leaf: "leaf1", Last: OffWire, Time: at(0, OffWire)},
			}},
		},
		{
			name: "overtaken", traces: []Trace{out(late, packet(1, Received), packet(2, Received))},
			want: Report{Sent: 3, Received: 3, Reordered: 1, Slowest: 46 * time.Millisecond},
		},
		{
			name:   "losses are in the order of time, with the nearest change of the losing leaf's table",
			traces: []Trace{out(packet(5, OffWire)), back(packet(1, Taken))},
			fdb: []FDBEvent{
				{Time: at(1, Taken).Add(time.Second), Node: "leaf2", MAC: "far"},
				{Time: at(1, Taken).Add(2 * time.Millisecond), Node: "leaf2", MAC: "near", Deleted: true},
				{Time: at(1, Taken), Node: "leaf1", MAC: "another leaf's"},
			},
			want: Report{Sent: 2, LostRemote: 2, Losses: []Loss{
				{
					Class: LostByRemote, Flow: "back", Seq: 1, Leaf: "leaf2", Last: Taken, Time: at(1, Taken),
					FDB: &FDBEvent{Time: at(1, Taken).Add(2 * time.Millisecond), Node: "leaf2", MAC: "near", Deleted: true}, After: -2 * time.Millisecond,
				},
				{
					Class: LostByRemote, Flow: "out", Seq: 5, Leaf: "leaf2", Last: OffWire, Time: at(5, OffWire),
					FDB: &FDBEvent{Time: at(1, Taken).Add(2 * time.Millisecond), Node: "leaf2", MAC: "near", Deleted: true}, After: 80 * time.Millisecond,
				},
			}},
		},
	}
	for _, tt := range tests {
		got := Analyse("leaf1", tt.traces, tt.fdb)
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}

// Whatever was seen: every packet is received or lost, and each loss is counted once.
func TestAccount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var traces []Trace
		for i := range rapid.IntRange(0, 4).Draw(t, "flows") {
			tr := Trace{Flow: Flow{Name: fmt.Sprint(i)}, First: "leaf1", Second: "leaf2"}
			if rapid.Bool().Draw(t, "back") {
				tr.First, tr.Second = tr.Second, tr.First
			}
			for seq := range rapid.IntRange(0, 20).Draw(t, "packets") {
				p := packet(uint32(seq), Stage(rapid.IntRange(0, int(Received)).Draw(t, "last")))
				for s := Taken; s < Received; s++ {
					if rapid.IntRange(0, 9).Draw(t, "unseen") == 0 {
						p.At[s] = time.Time{}
					}
				}
				tr.Packets = append(tr.Packets, p)
			}
			traces = append(traces, tr)
		}
		r := Analyse("leaf1", traces, nil)
		if r.Sent != r.Received+len(r.Losses) || len(r.Losses) != r.LostHere+r.LostRemote || r.LostHere < r.LostUnderlay+r.LostHost || r.Dup != 0 {
			t.Fatalf("%v with %d losses", r, len(r.Losses))
		}
		mirror := Analyse("leaf2", traces, nil)
		if blame := r.LostUnderlay + r.LostHost; mirror.LostRemote != r.LostHere-blame || mirror.LostHere != r.LostRemote+blame {
			t.Fatalf("for leaf1 %v, for leaf2 %v", r, mirror)
		}
	})
}

func TestReport(t *testing.T) {
	r := Report{Sent: 5, Received: 2, LostHere: 2, LostRemote: 1, LostUnderlay: 1, Slowest: 1234567, Losses: []Loss{{Seq: 1}}}
	r.Add(Report{Sent: 1, LostHere: 1, LostHost: 1, Dup: 4, Reordered: 5, Slowest: 1, Losses: []Loss{{Seq: 2}}})
	const want = "sent=6 received=2 lost_here=3 lost_remote=1 lost_underlay=1 lost_host=1 dup=4 reordered=5 slowest=1ms"
	if got := r.String(); got != want || len(r.Losses) != 2 {
		t.Errorf("%s\nwith %d losses, want\n%s", got, len(r.Losses), want)
	}
	losses := []struct {
		l    Loss
		want string
	}{
		{Loss{Class: LostByUnderlay, Flow: "f", Seq: 1, Last: OnWire, Time: epoch}, "f #1 lost (underlay): on the uplink at 03:04:05.000000, then no more"},
		{
			Loss{
				Class: LostByUs, Flow: "f", Seq: 1, Leaf: "leaf1", Last: Taken, Time: epoch, After: time.Millisecond,
				FDB: &FDBEvent{Node: "leaf1", Deleted: true, MAC: "02:00:00:00:00:01", Link: "vxlan100", Dst: "10.0.0.1"},
			},
			"f #1 lost (here, by leaf1): taken from the host port at 03:04:05.000000, then no more; 1ms after leaf1: deleted 02:00:00:00:00:01 on vxlan100 10.0.0.1",
		},
		{Loss{Class: LostByHost, Flow: "f", Last: Sent, Time: epoch, Error: "no route"}, "f #0 lost (host): sent by the host at 03:04:05.000000, then no more; no route"},
	}
	for _, tt := range losses {
		if got := tt.l.String(); got != tt.want {
			t.Errorf("%s\nwant\n%s", got, tt.want)
		}
	}
}

func TestBetween(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	want := []Flow{{From: "x", To: "y", Src: a, Dst: b}, {From: "y", To: "x", Src: b, Dst: a}}
	if d := cmp.Diff(want, Between("x", "10.0.0.1", "y", "10.0.0.2"), cmpopts.EquateComparable(netip.Addr{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
