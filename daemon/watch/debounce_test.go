package watch

import (
	"testing"
	"testing/synctest"
	"time"
)

// series touches at each of the times after a start, and returns when fire
// delivered.
func series(quiet, longest time.Duration, touches ...time.Duration) (fires []time.Duration) {
	d := newDebouncer(quiet, longest)
	defer d.stop()
	start := time.Now()
	next := make(chan struct{})
	go func() {
		for _, at := range touches {
			<-time.After(time.Until(start.Add(at)))
			next <- struct{}{}
		}
	}()
	end := time.After(time.Hour)
	for {
		select {
		case <-next:
			d.touch()
		case <-d.fire():
			d.fired()
			fires = append(fires, time.Since(start))
		case <-end:
			return fires
		}
	}
}

func TestDebounce(t *testing.T) {
	const ms = time.Millisecond
	every := func(step, until time.Duration) (times []time.Duration) {
		for at := time.Duration(0); at <= until; at += step {
			times = append(times, at)
		}
		return times
	}
	for _, test := range []struct {
		name          string
		touches, want []time.Duration
	}{
		{"nothing", nil, nil},
		{"one", []time.Duration{5 * ms}, []time.Duration{105 * ms}},
		{"a burst", every(ms, 300*ms), []time.Duration{400 * ms}},
		{"two", []time.Duration{0, 100*ms + 1}, []time.Duration{100 * ms, 200*ms + 1}},
		{"just not quiet", []time.Duration{0, 99 * ms}, []time.Duration{199 * ms}},
		{
			"a writer that doesn't stop", every(30*ms, 2500*ms),
			// 1 s after each first touch: at 0, 1020 and 2040; the last is at 2490.
			[]time.Duration{1000 * ms, 2020 * ms, 2590 * ms},
		},
		{"long after", []time.Duration{0, 5000 * ms}, []time.Duration{100 * ms, 5100 * ms}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := series(Quiet, Longest, test.touches...)
				if len(got) != len(test.want) {
					t.Fatalf("fired at %v, want %v", got, test.want)
				}
				for i := range got {
					if got[i] != test.want[i] {
						t.Errorf("fired at %v, want %v", got, test.want)
						break
					}
				}
			})
		})
	}
}
