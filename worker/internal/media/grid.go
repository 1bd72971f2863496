package media

import (
	"bytes"
	"container/heap"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/vidforge/vidforge/pkg/render"
)

// packetIndex is what the packets of one stream tell without being decoded. It
// is fed in the file's order and keeps only sums, so that its size does not
// grow with the file.
type packetIndex struct {
	count       int64
	first, last int64 // smallest and largest timestamp
	end         int64 // largest end
	missing     bool  // a packet without a presentation timestamp
	lastLength  int64 // of the packet with the largest end, 0 unknown
	// order holds the newest timestamps, to put them in order of
	// presentation, and deltas counts the distances between neighbours.
	order  ticks
	prev   int64
	deltas map[int64]int64
	pairs  int64
}

const (
	// reorder is more than any codec's depth of reordering.
	reorder = 64
	// maxDeltas bounds the histogram; a stream with more kinds of distances
	// is irregular whatever the rest is.
	maxDeltas = 4096
)

type ticks []int64 //nolint:recvcheck // as container/heap wants it

func (t ticks) Len() int           { return len(t) }
func (t ticks) Less(i, j int) bool { return t[i] < t[j] }
func (t ticks) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *ticks) Push(x any)        { *t = append(*t, x.(int64)) } //nolint:forcetypeassert // only int64 is pushed
func (t *ticks) Pop() any {
	old := *t
	x := old[len(old)-1]
	*t = old[:len(old)-1]
	return x
}

// maxTick keeps sums of ticks and durations within an int64.
const maxTick = 1 << 52

func (x *packetIndex) add(pts, dts, length *int64) {
	if pts == nil {
		x.missing = true
		pts = dts
	}
	if pts == nil {
		return
	}
	if *pts > maxTick || *pts < -maxTick {
		return
	}
	var d int64
	if length != nil && *length > 0 && *length < maxTick {
		d = *length
	}
	if x.count == 0 {
		x.first, x.last, x.end, x.lastLength = *pts, *pts, *pts+d, d
	}
	x.count++
	x.first, x.last = min(x.first, *pts), max(x.last, *pts)
	if *pts+d > x.end {
		x.end, x.lastLength = *pts+d, d
	}
	heap.Push(&x.order, *pts)
	if len(x.order) > reorder {
		x.next()
	}
}

func (x *packetIndex) next() {
	t, ok := heap.Pop(&x.order).(int64)
	if !ok {
		return
	}
	if x.deltas == nil {
		x.deltas, x.prev = map[int64]int64{}, t
		return
	}
	d := t - x.prev
	x.prev = t
	if _, seen := x.deltas[d]; d > 0 && (seen || len(x.deltas) < maxDeltas) {
		x.deltas[d]++
		x.pairs++
	}
}

// close takes in what still waits for its order.
func (x *packetIndex) close() {
	for len(x.order) > 0 {
		x.next()
	}
}

// median distance between two neighbours in ticks, 0 when there are none.
func (x *packetIndex) median() int64 {
	keys := make([]int64, 0, len(x.deltas))
	for d := range x.deltas {
		keys = append(keys, d)
	}
	slices.Sort(keys)
	var below int64
	for _, d := range keys {
		if below += x.deltas[d]; 2*below >= x.pairs {
			return d
		}
	}
	return 0
}

// irregular reports whether more than one distance in fifty is off the frame
// length (in ticks) by more than a tenth and more than the rounding of ticks.
func (x *packetIndex) irregular(frame float64) bool {
	var off int64
	for d, n := range x.deltas {
		if math.Abs(float64(d)-frame) > max(1.5, frame/10) {
			off += n
		}
	}
	return 50*off > x.pairs
}

// packetParser reads lines of ffprobe's CSV: stream index, pts, dts, duration,
// flags.
type packetParser struct {
	streams map[int]*packetIndex
	line    []byte
	long    bool
}

const maxPacketLine = 256

func (p *packetParser) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		part := b
		if i >= 0 {
			part = b[:i]
		}
		if room := maxPacketLine - len(p.line); len(part) > room { // side data follows the fields that matter
			part, p.long = part[:room], true
		}
		p.line = append(p.line, part...)
		if i < 0 {
			break
		}
		p.parse(string(p.line))
		p.line, p.long = p.line[:0], false
		b = b[i+1:]
	}
	return n, nil
}

func (p *packetParser) parse(line string) {
	f := strings.SplitN(line, ",", 6)
	if len(f) < 5 {
		return
	}
	index, err := strconv.Atoi(f[0])
	if err != nil {
		return
	}
	x := p.streams[index]
	if x == nil || strings.Contains(f[4], "D") { // decoded, but outside the edit list
		return
	}
	x.add(tick(f[1]), tick(f[2]), tick(f[3]))
}

func tick(s string) *int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

// maxRate is the highest frame rate of an output in frames per second.
const maxRate = 120

// pickRate chooses the constant rate of the output. r is the container's
// r_frame_rate. A regular source keeps its rate; an irregular one gets its
// nominal rate, which is what its typical distance between frames says: a
// phone's 222 frames in 15 s that claim 250 a second are 15 a second with
// holes.
func pickRate(x *packetIndex, timeBase, r render.Rational) (rate render.Rational, variable bool) {
	median := x.median()
	if median == 0 || timeBase.IsZero() || x.last <= x.first {
		if rate := lower(r); !rate.IsZero() {
			return rate, false
		}
		return render.Rational{Num: 25, Den: 1}, false
	}
	tb := timeBase.Float()
	avg := float64(x.count-1) / (float64(x.last-x.first) * tb)
	nominal := 1 / (float64(median) * tb)
	if !r.IsZero() {
		frame := 1 / (r.Float() * tb) // ticks
		off := math.Abs(float64(median) - frame)
		if near(r.Float(), avg, 0.002) || off < 0.02*frame || off < 1 && frame > 8 {
			return lower(r), x.irregular(frame)
		}
	}
	// The container's own word is of no use: take what is usual near the
	// nominal rate, else its whole number.
	best := render.Rational{Num: int64(max(1, math.Round(min(nominal, 60)))), Den: 1}
	distance := 0.06
	for _, n := range []int64{12, 15, 24, 25, 30, 48, 50, 60, 120} {
		if d := math.Abs(float64(n)/nominal - 1); d < distance {
			best, distance = render.Rational{Num: n, Den: 1}, d
		}
	}
	return best, x.irregular(1 / (best.Float() * tb))
}

func near(a, b, part float64) bool { return math.Abs(a/b-1) < part }

// lower divides a rate by a whole number until it is at most maxRate.
func lower(r render.Rational) render.Rational {
	if r.IsZero() || r.Float() < 0.001 {
		return render.Rational{}
	}
	k := int64(math.Ceil(r.Float() / maxRate))
	q := big.NewRat(r.Num, r.Den*max(1, k))
	return render.Rational{Num: q.Num().Int64(), Den: q.Denom().Int64()}
}

// frameGrid computes where the grid starts, in ticks of the video, and how
// many frames it has. start is the source's start in seconds: the earlier of
// picture and sound.
//
// The grid is moved by less than half a frame against the start, so that the
// first picture falls on a frame exactly: pictures halfway between two frames
// would be rounded up and down in turn, which shows as judder.
func frameGrid(x *packetIndex, timeBase, rate, start render.Rational) (startTicks, frames int64) {
	tb, f := timeBase.Float(), rate.Float()
	var s float64
	if !start.IsZero() {
		s = start.Float()
	}
	lead := math.Round((float64(x.first)*tb - s) * f)
	startTicks = x.first - int64(math.Round(lead/f/tb))
	end := x.end
	if x.lastLength == 0 {
		end += int64(math.Round(1 / f / tb))
	}
	return startTicks, max(1, int64(math.Round(float64(end-startTicks)*tb*f)))
}
