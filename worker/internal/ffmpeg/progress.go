package ffmpeg

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"
)

// Progress is one block of `-progress`. What is unknown is nil.
type Progress struct {
	// Frame counts the frames that the encoder has given out.
	Frame *int64
	// FPS is output frames per second of wall time, smoothed.
	FPS *float64
	// Speed is seconds of media per second of wall time, from the start.
	Speed *float64
	// OutTime is the end of what was written; it stands still while the
	// encoder's lookahead fills.
	OutTime *time.Duration
	// TotalSize is the output's size in bytes.
	TotalSize *int64
	// End marks the last block. It says nothing about success.
	End bool
}

// maxProgressLine bounds a line of progress; longer ones are dropped.
const maxProgressLine = 512

// progressWriter parses what ffmpeg writes to its progress pipe.
type progressWriter struct {
	emit func(Progress)
	line []byte
	long bool // the present line is longer than allowed
	cur  Progress
}

func (w *progressWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		part := p
		if i >= 0 {
			part = p[:i]
		}
		if w.long = w.long || len(w.line)+len(part) > maxProgressLine; !w.long {
			w.line = append(w.line, part...)
		}
		if i < 0 {
			break
		}
		if !w.long {
			w.parse(string(w.line))
		}
		w.line, w.long = w.line[:0], false
		p = p[i+1:]
	}
	return n, nil
}

func (w *progressWriter) parse(line string) {
	key, value, ok := strings.Cut(line, "=")
	if !ok {
		return
	}
	value = strings.TrimSpace(value)
	switch key {
	case "frame":
		w.cur.Frame = count(value)
	case "total_size":
		w.cur.TotalSize = count(value)
	case "out_time_us", "out_time_ms": // both are microseconds (ffmpeg ticket 7345)
		if us := count(value); us != nil && *us <= math.MaxInt64/int64(time.Microsecond) {
			d := time.Duration(*us) * time.Microsecond
			w.cur.OutTime = &d
		}
	case "speed":
		if f, err := strconv.ParseFloat(strings.TrimSuffix(value, "x"), 64); err == nil && f >= 0 && !math.IsInf(f, 0) {
			w.cur.Speed = &f
		}
	case "progress":
		w.cur.End = value == "end"
		w.emit(w.cur)
		w.cur = Progress{}
	}
}

// count parses a number that is not negative; N/A and everything else is nil.
func count(s string) *int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return nil
	}
	return &n
}

// meter smooths a rate: an exponential mean with a time constant of a few
// seconds, since ffmpeg's own number is the mean from the start.
type meter struct {
	at    time.Time
	value int64
	rate  float64
	known bool
}

const meterTime = 5 * time.Second

// update takes a counter's value at a time and returns the smoothed rate per
// second, nil while there is none.
func (m *meter) update(at time.Time, value int64) *float64 {
	dt := at.Sub(m.at).Seconds()
	switch {
	case m.at.IsZero() || value < m.value:
		m.at, m.value, m.known = at, value, false
	case dt > 0:
		r := float64(value-m.value) / dt
		if m.known {
			k := 1 - math.Exp(-dt/meterTime.Seconds())
			r = m.rate + k*(r-m.rate)
		}
		m.at, m.value, m.rate, m.known = at, value, r, true
	}
	if !m.known {
		return nil
	}
	r := m.rate
	return &r
}
