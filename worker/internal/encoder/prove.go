package encoder

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// Prover finds out which hardware encoders really work.
type Prover struct {
	Tools *ffmpeg.Tools
	// Scratch is where it may write; it removes what it wrote.
	Scratch string
	// Cache is the file that remembers what worked; "" for none.
	Cache string
	// Limit is the longest that one try may take. Defaults to 10 s.
	Limit time.Duration
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
}

// Finding is what came of trying one encoder on one device.
type Finding struct {
	Offer
	// Err is why it is of no use; nil when it works.
	Err error
	// Cached tells that it worked some time ago, with all the same.
	Cached bool
}

const (
	proveLimit = 10 * time.Second
	// cacheFor is how long a device is believed to work as it did.
	cacheFor = 24 * time.Hour
	// maxCached bounds the cache's entries.
	maxCached = 64
)

// Prove tries every encoder that ffmpeg lists on every device of its kind:
// devices at once, the encoders of one in turn. A try that failed is not
// remembered, so that a driver that was repaired is found at the next start.
// The error is only ctx's.
func (p Prover) Prove(ctx context.Context, devices []Device) ([]Finding, error) {
	known := p.load()
	found := make([][]Finding, len(devices))
	var wait sync.WaitGroup
	for i, d := range devices {
		wait.Go(func() {
			for _, h := range table() {
				if h.kind == d.Kind && h.listed(p.Tools) && ctx.Err() == nil {
					found[i] = append(found[i], p.find(ctx, h, d, known))
				}
			}
		})
	}
	wait.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err() //nolint:wrapcheck // the caller's own
	}
	all := slices.Concat(found...)
	p.save(known, all)
	return all, nil
}

// Again tries an offer anew, whatever is remembered of it, for instance after it
// failed at work.
func (p Prover) Again(ctx context.Context, o Offer) error {
	attempt := tryDecode
	e, err := o.Decode(Encoding{}, tryWidth/2, tryHeight/2)
	if err != nil {
		attempt = try
		e, err = o.Video(tryPicture())
	}
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(p.Scratch, "prove-*")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	limit := p.Limit
	if limit == 0 {
		limit = proveLimit
	}
	return errors.Join(attempt(ctx, p.Tools, dir, e, limit), os.RemoveAll(dir))
}

func (p Prover) find(ctx context.Context, h hardware, d Device, known map[string]remembered) Finding {
	o := Offer{Encoder: h.name, Device: d}
	// The cache may lie where others write: its arguments must be the table's.
	if r, ok := known[p.identity(o)]; ok && (len(r.Extra) == 0 || slices.ContainsFunc(h.others, func(args []string) bool { return slices.Equal(args, r.Extra) })) {
		o.Extra = r.Extra
		return Finding{Offer: o, Cached: true}
	}
	f := Finding{Offer: o, Err: p.Again(ctx, o)}
	for _, extra := range h.others {
		if f.Err == nil || errors.Is(f.Err, errSlow) {
			break
		}
		o.Extra = extra
		if err := p.Again(ctx, o); err == nil {
			f = Finding{Offer: o}
		}
	}
	return f
}

// remembered is an entry of the cache.
type remembered struct {
	Extra []string  `json:"extra,omitempty"`
	At    time.Time `json:"at"`
}

func (p Prover) now() time.Time {
	if p.Now == nil {
		return time.Now()
	}
	return p.Now()
}

// load reads the cache. One that cannot be read remembers nothing: it only saves
// time.
func (p Prover) load() map[string]remembered {
	known := map[string]remembered{}
	if p.Cache == "" {
		return known
	}
	b, err := os.ReadFile(p.Cache)
	if err != nil || json.Unmarshal(b, &known) != nil {
		return map[string]remembered{}
	}
	now := p.now()
	maps.DeleteFunc(known, func(_ string, r remembered) bool { return r.At.After(now) || now.Sub(r.At) > cacheFor })
	return known
}

func (p Prover) save(known map[string]remembered, found []Finding) {
	if p.Cache == "" || len(found) == 0 {
		return
	}
	for _, f := range found {
		if f.Err == nil && !f.Cached {
			known[p.identity(Offer{Encoder: f.Encoder, Device: f.Device})] = remembered{Extra: f.Extra, At: p.now()}
		}
	}
	keys := slices.SortedFunc(maps.Keys(known), func(a, b string) int { return known[b].At.Compare(known[a].At) })
	for _, old := range keys[min(len(keys), maxCached):] {
		delete(known, old)
	}
	b, err := json.Marshal(known)
	if err != nil {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(p.Cache), filepath.Base(p.Cache)+"-*")
	if err != nil {
		return
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), p.Cache)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // it is only a cache
	}
}

// identity changes with everything that a proof depends on: the program, its
// arguments, the device and its driver.
func (p Prover) identity(o Offer) string {
	facts := []string{p.Tools.Version, fileFacts(p.Tools.FFmpeg), o.Device.String(), driver(o.Device)}
	for _, h := range table() {
		if h.name == o.Encoder {
			facts = append(facts, fmt.Sprintf("%+v", h))
		}
	}
	sum := sha256.Sum256([]byte(strings.Join(facts, "\x00")))
	return hex.EncodeToString(sum[:])
}

// fileFacts tell a program that was replaced from what it was.
func fileFacts(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return path
	}
	return fmt.Sprint(path, " ", info.Size(), " ", info.ModTime().UnixNano())
}

// driver is what can be told of a device's driver without asking the device:
// the kernel's version, the module's and the libraries'.
func driver(d Device) string {
	var facts []string
	for _, file := range []string{"/proc/sys/kernel/osrelease", "/proc/driver/nvidia/version"} {
		if b, err := os.ReadFile(file); err == nil {
			facts = append(facts, string(b))
		}
	}
	var libraries []string
	switch d.Kind {
	case KindNVIDIA, KindCUDA:
		libraries = []string{"libnvidia-encode.so*", "libnvcuvid.so*", "libcuda.so*"}
	case KindDRI:
		libraries = []string{"dri/*_drv_video.so", "libmfx*.so*", "libvpl.so*"}
		if module, err := os.Readlink(filepath.Join("/sys/class/drm", filepath.Base(d.Name), "device/driver")); err == nil {
			facts = append(facts, module)
		}
	case KindV4L2, KindVideoToolbox:
	}
	for _, dir := range []string{"/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/nvidia/lib64"} {
		for _, pattern := range libraries {
			files, _ := filepath.Glob(filepath.Join(dir, pattern)) // the patterns are well formed
			for _, file := range files {
				facts = append(facts, fileFacts(file))
			}
		}
	}
	return strings.Join(facts, "\x00")
}

// CacheFile is the cache of the workers that have their scratch directory there.
func CacheFile(scratch string) string {
	return filepath.Join(scratch, "vidforge-encoders-"+strconv.Itoa(os.Getuid())+".json")
}
