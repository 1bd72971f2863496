package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/vidforge/vidforge/deploy/vidforge/internal/client"
)

// display shows how far work is: as a bar on a terminal, else as a line now and
// then. At most one bar is open.
type display struct {
	a *app

	container *mpb.Progress
	bar       *mpb.Bar
	label     *label

	lastLine string
	lastTime time.Time
	warned   bool
}

func (a *app) display() *display { return &display{a: a} }

// label is the text beside a bar, which mpb reads from its own goroutine.
type label struct {
	mu   sync.Mutex
	text string
}

func (l *label) set(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = s
}

func (l *label) get(decor.Statistics) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text
}

// open replaces the bar by a new one.
func (d *display) open(name string, total int64, after ...decor.Decorator) {
	d.end()
	if !d.a.Bars {
		return
	}
	d.container = mpb.New(mpb.WithOutput(d.a.Err), mpb.WithWidth(30), mpb.WithAutoRefresh())
	d.bar = d.container.New(total, mpb.BarStyle(), mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(name, decor.WC{W: 10, C: decor.DindentRight})),
		mpb.AppendDecorators(after...))
}

// end takes the bar away.
func (d *display) end() {
	if d.bar == nil {
		return
	}
	d.bar.Abort(true)
	d.container.Wait()
	d.bar, d.container, d.label = nil, nil, nil
}

// transfer opens a bar for bytes and returns what to call with each number of
// them.
func (d *display) transfer(name string, total int64) func(int) {
	d.open(name, total, decor.CountersKibiByte("% .1f of % .1f"), decor.AverageSpeed(decor.SizeB1024(0), "  % .1f"), decor.AverageETA(decor.ET_STYLE_GO, decor.WC{W: 8}))
	if d.bar == nil {
		return nil
	}
	return d.bar.IncrBy
}

// upload uploads a file under a bar.
func (d *display) upload(ctx context.Context, c *client.Client, path string) (*client.Asset, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("upload: %w", err)
	}
	if !d.a.Bars {
		d.a.sayf("Uploading %s (%s).", filepath.Base(path), bytesText(info.Size()))
	}
	progress := d.transfer("upload", info.Size())
	defer d.end()
	return c.Upload(ctx, path, progress)
}

// lineEvery is the least time between two lines where no bar can be drawn.
const lineEvery = 5 * time.Second

// rendering shows a render: the server's sentence, and the numbers if known.
func (d *display) rendering(message string, s *client.Status) {
	d.warned = false
	if !d.a.Bars {
		if message != d.lastLine && time.Since(d.lastTime) >= lineEvery {
			d.lastLine, d.lastTime = message, time.Now()
			d.a.sayf("%s", printable(message))
		}
		return
	}
	const whole = 1000
	if d.label == nil {
		text := &label{}
		d.open("render", whole, decor.Any(text.get))
		d.label = text
	}
	d.label.set("  " + renderLine(message, s))
	if s != nil && s.Progress != nil {
		d.bar.SetCurrent(min(int64(*s.Progress*whole), whole-1))
	}
}

// renderLine is stage, percent, frames, fps and time left, as far as they are
// known; else what the server says.
func renderLine(message string, s *client.Status) string {
	if s == nil || s.Progress == nil {
		return printable(message)
	}
	parts := []string{printable(s.Stage), fmt.Sprintf("%3.0f%%", *s.Progress*100)}
	if s.FramesDone != nil && s.FramesTotal != nil {
		parts = append(parts, fmt.Sprintf("frame %d/%d", *s.FramesDone, *s.FramesTotal))
	}
	if s.FPS != nil {
		parts = append(parts, fmt.Sprintf("%.0f fps", *s.FPS))
	}
	if s.ETASeconds != nil {
		parts = append(parts, (time.Duration(*s.ETASeconds)*time.Second).String()+" left")
	}
	return strings.Join(parts, "  ")
}

// retrying says once that the server is away.
func (d *display) retrying(err error, _ time.Duration) {
	if d.warned {
		return
	}
	d.warned = true
	d.end()
	d.a.sayf("No answer from the server, trying again: %s", printable(explain(err)))
}

// bytesText is a size for people.
func bytesText(n int64) string { return fmt.Sprintf("% .1f", decor.SizeB1024(n)) }
