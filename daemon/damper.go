package daemon

import "time"

// damper spaces out repairs of what somebody else keeps changing: of each object by itself, so that a fight about one keeps
// nobody from the others, and of all together.
type damper struct {
	objects map[string]fight
	tired   bool // a repair had to wait: somebody is at it
}

// fight is what was repaired of one object.
type fight struct {
	count int
	last  time.Time
}

const (
	freeRepairs = 3  // of one object at once, before it backs off
	freeAll     = 30 // of all
	repairFirst = time.Second
	repairMost  = time.Minute
	peaceAfter  = 5 * time.Minute // without a repair the fight is over
)

// wait is how long the next repair, which is about these objects, has to wait, and how often the one that it waits for was
// repaired; 0: it counts as made now.
func (d *damper) wait(now time.Time, objects []string) (wait time.Duration, times int) {
	for name, f := range d.objects {
		if now.Sub(f.last) > peaceAfter {
			delete(d.objects, name)
		}
	}
	const all = ""
	check := func(name string, free int) {
		f := d.objects[name]
		if f.count < free {
			return
		}
		pause := min(repairFirst<<min(f.count-free, 10), repairMost)
		if left := pause - now.Sub(f.last); left > wait {
			wait, times = left, f.count
		}
	}
	check(all, freeAll)
	for _, o := range objects {
		check(o, freeRepairs)
	}
	if d.tired = wait > 0; d.tired {
		return wait, times
	}
	if d.objects == nil {
		d.objects = map[string]fight{}
	}
	for _, o := range append([]string{all}, objects...) {
		d.objects[o] = fight{d.objects[o].count + 1, now}
	}
	return 0, 0
}
