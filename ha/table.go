package ha

import (
	"hash/maphash"
	"maps"
	"time"
)

// bucketsPerGroup bounds what one write after a freeze has to copy.
const bucketsPerGroup = 256

// recordOverhead is what a record is taken to cost beside key and value.
const recordOverhead = 128

// table holds records by group and key. A view of it costs nothing to take:
// its buckets are shared until the table next writes to them. The owner
// guards it.
type table struct {
	seed   maphash.Seed
	gen    uint64 // buckets of an older generation are shared with a view
	groups map[uint32]*[bucketsPerGroup]bucket
	count  int
	bytes  int64 // of all records, overhead included
}

type bucket struct {
	gen     uint64
	records map[string]Record
}

// view is the content of some groups at one moment; it never changes.
type view []map[string]Record

func newTable() *table {
	return &table{seed: maphash.MakeSeed(), groups: make(map[uint32]*[bucketsPerGroup]bucket)}
}

func cost(key string, value []byte) int64 {
	return int64(len(key)) + int64(len(value)) + recordOverhead
}

// bucket returns the bucket of a key, nil if the group is not there.
func (t *table) bucket(group uint32, key string) *bucket {
	g := t.groups[group]
	if g == nil {
		return nil
	}
	return &g[maphash.String(t.seed, key)%bucketsPerGroup]
}

// own makes the bucket's records safe to change.
func (t *table) own(b *bucket) {
	if b.gen != t.gen {
		b.records = maps.Clone(b.records)
		b.gen = t.gen
	}
	if b.records == nil {
		b.records = make(map[string]Record)
	}
}

func (t *table) record(group uint32, key string) (Record, bool) {
	b := t.bucket(group, key)
	if b == nil {
		return Record{}, false
	}
	r, ok := b.records[key]
	return r, ok
}

// growth returns by how much putting r changes bytes.
func (t *table) growth(r Record) int64 {
	n := cost(r.Key, r.Value)
	if old, ok := t.record(r.Group, r.Key); ok {
		n -= cost(old.Key, old.Value)
	}
	return n
}

func (t *table) put(r Record) {
	if t.groups[r.Group] == nil {
		t.groups[r.Group] = new([bucketsPerGroup]bucket)
	}
	b := t.bucket(r.Group, r.Key)
	t.own(b)
	t.bytes += t.growth(r)
	t.count -= len(b.records)
	b.records[r.Key] = r
	t.count += len(b.records)
}

func (t *table) remove(group uint32, key string) {
	b := t.bucket(group, key)
	if b == nil {
		return
	}
	old, ok := b.records[key]
	if !ok {
		return
	}
	t.own(b)
	delete(b.records, key)
	t.bytes -= cost(old.Key, old.Value)
	t.count--
}

// freeze returns the content of one group as it is now.
func (t *table) freeze(group uint32) view {
	g := t.groups[group]
	if g == nil {
		return nil
	}
	t.gen++
	return appendBuckets(nil, g)
}

// freezeAll returns the content of all groups as it is now.
func (t *table) freezeAll() view {
	t.gen++
	var v view
	for _, g := range t.groups {
		v = appendBuckets(v, g)
	}
	return v
}

func appendBuckets(v view, g *[bucketsPerGroup]bucket) view {
	for i := range g {
		if len(g[i].records) > 0 {
			v = append(v, g[i].records)
		}
	}
	return v
}

// each calls fn for every record until it returns false.
func (v view) each(fn func(Record) bool) {
	for _, m := range v {
		for _, r := range m {
			if !fn(r) {
				return
			}
		}
	}
}

// expired returns the records of the view that have ended at now.
func (v view) expired(now time.Time) []Record {
	var out []Record
	v.each(func(r Record) bool {
		if r.Expired(now) {
			out = append(out, r)
		}
		return true
	})
	return out
}
