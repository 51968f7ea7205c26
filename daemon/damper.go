package daemon

import "time"

// damper spaces out repairs of what somebody else keeps changing.
type damper struct {
	count int // in this fight
	last  time.Time
}

const (
	freeRepairs = 3 // at once, before it backs off
	repairFirst = time.Second
	repairMost  = time.Minute
	peaceAfter  = 5 * time.Minute // without a repair the fight is over
)

// wait is how long the next repair has to wait; 0: it counts as made now.
func (d *damper) wait(now time.Time) time.Duration {
	since := now.Sub(d.last)
	if since > peaceAfter {
		d.count = 0
	}
	if d.count >= freeRepairs {
		pause := min(repairFirst<<min(d.count-freeRepairs, 10), repairMost)
		if since < pause {
			return pause - since
		}
	}
	d.count++
	d.last = now
	return 0
}
