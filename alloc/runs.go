package alloc

import (
	"slices"
	"sort"
)

// run is a stretch of taken positions, both ends included.
type run struct{ lo, hi u128 }

// runs is a set of positions kept as maximal runs in order, in chunks, so that the lowest position that is not in it is the end
// of the first run, and a change moves at most one chunk's worth of memory.
type runs struct {
	chunks [][]run // none empty
	count  uint64
}

const chunkMax = 256

// find is the place of the last run that starts at or before x, or -1, -1.
func (r *runs) find(x u128) (c, i int) {
	c = sort.Search(len(r.chunks), func(k int) bool { return x.less(r.chunks[k][0].lo) }) - 1
	if c < 0 {
		return -1, -1
	}
	ch := r.chunks[c]
	return c, sort.Search(len(ch), func(k int) bool { return x.less(ch[k].lo) }) - 1
}

// next is the place after c, i in order; ok is false at the end.
func (r *runs) next(c, i int) (int, int, bool) {
	if c < 0 {
		return 0, 0, len(r.chunks) > 0
	}
	if i+1 < len(r.chunks[c]) {
		return c, i + 1, true
	}
	return c + 1, 0, c+1 < len(r.chunks)
}

func (r *runs) has(x u128) bool {
	c, i := r.find(x)
	return c >= 0 && !r.chunks[c][i].hi.less(x)
}

// lowest is the lowest position that is not in the set.
func (r *runs) lowest() u128 {
	if len(r.chunks) == 0 || r.chunks[0][0].lo != (u128{}) {
		return u128{}
	}
	return r.chunks[0][0].hi.inc()
}

func (r *runs) insert(x u128) bool {
	c, i := r.find(x)
	if c >= 0 && !r.chunks[c][i].hi.less(x) {
		return false
	}
	r.count++
	nc, ni, ok := r.next(c, i)
	joinsNext := ok && r.chunks[nc][ni].lo == x.inc()
	switch joinsPrev := c >= 0 && r.chunks[c][i].hi.inc() == x; {
	case joinsPrev && joinsNext:
		r.chunks[c][i].hi = r.chunks[nc][ni].hi
		r.drop(nc, ni)
	case joinsPrev:
		r.chunks[c][i].hi = x
	case joinsNext:
		r.chunks[nc][ni].lo = x
	default:
		r.put(c, i, run{x, x})
	}
	return true
}

func (r *runs) remove(x u128) bool {
	c, i := r.find(x)
	if c < 0 || r.chunks[c][i].hi.less(x) {
		return false
	}
	r.count--
	switch p := &r.chunks[c][i]; {
	case p.lo == x && p.hi == x:
		r.drop(c, i)
	case p.lo == x:
		p.lo = x.inc()
	case p.hi == x:
		p.hi = x.dec()
	default:
		tail := run{x.inc(), p.hi}
		p.hi = x.dec()
		r.put(c, i, tail)
	}
	return true
}

// put adds a run right after c, i.
func (r *runs) put(c, i int, n run) {
	if c < 0 {
		if len(r.chunks) == 0 {
			r.chunks = [][]run{{n}}
			return
		}
		c = 0
	}
	ch := slices.Insert(r.chunks[c], i+1, n)
	r.chunks[c] = ch
	if len(ch) > chunkMax {
		half := len(ch) / 2
		r.chunks[c] = ch[:half:half]
		r.chunks = slices.Insert(r.chunks, c+1, slices.Clone(ch[half:]))
	}
}

func (r *runs) drop(c, i int) {
	r.chunks[c] = slices.Delete(r.chunks[c], i, i+1)
	if len(r.chunks[c]) == 0 {
		r.chunks = slices.Delete(r.chunks, c, c+1)
	}
}
