package farm

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
)

// liveEvery is how often a watched render's live numbers are looked at.
const liveEvery = 2 * time.Second

// hub wakes the watchers of a render when its record changed.
type hub struct {
	mu   sync.Mutex
	subs map[render.ID]map[chan struct{}]struct{}
}

func newHub() *hub { return &hub{subs: map[render.ID]map[chan struct{}]struct{}{}} }

func (h *hub) subscribe(id render.ID) (wake <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs[id] == nil {
		h.subs[id] = map[chan struct{}]struct{}{}
	}
	h.subs[id][ch] = struct{}{}
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.subs[id], ch)
		if len(h.subs[id]) == 0 {
			delete(h.subs, id)
		}
	}
}

func (h *hub) wake(id render.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch := range h.subs[id] {
		select {
		case ch <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// Watch calls fn with the render as it is, and again after each change: of the
// record at once (while Run runs, else within 2 s), of the live numbers within
// 2 s. It returns nil after a terminal view, or what fn or ctx said.
func (f *Farm) Watch(ctx context.Context, tenant render.Tenant, id render.ID, fn func(*View) error) error {
	wake, stop := f.hub.subscribe(id)
	defer stop()
	ticker := time.NewTicker(liveEvery)
	defer ticker.Stop()
	var last *View
	for {
		v, err := f.Get(ctx, tenant, id)
		if err != nil {
			return err
		}
		if last == nil || !reflect.DeepEqual(last, v) {
			if err := fn(v); err != nil {
				return err
			}
		}
		if v.Record.State.Terminal() {
			return nil
		}
		last = v
		select {
		case <-wake:
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
