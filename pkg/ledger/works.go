package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/wire"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
)

const (
	resultPrefix   = "result."
	attemptsPrefix = "attempts."
)

func workKey(prefix string, w render.Work) (string, error) {
	key, ok := w.Key()
	if !ok {
		return "", malformed("work")
	}
	return prefix + key, nil
}

func decodeResult(e entry) (*render.StageResult, error) {
	p := &vidforgev1.StageResult{}
	if err := proto.Unmarshal(e.data, p); err != nil {
		return nil, fmt.Errorf("decode %s: %w", e.key, err)
	}
	res, err := wire.ToResult(p)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", e.key, err)
	}
	return res, nil
}

// PutResult implements Ledger.
func (l *JetStream) PutResult(ctx context.Context, res *render.StageResult) (*render.StageResult, bool, error) {
	key, err := workKey(resultPrefix, res.Work)
	if err != nil {
		return nil, false, fmt.Errorf("put result: %w", err)
	}
	data, err := wire.Marshal(wire.FromResult(res))
	if err != nil {
		return nil, false, fmt.Errorf("put result: %w", err)
	}
	_, err = shard(l.works, res.Work.Owner()).create(ctx, key, data, keep)
	if err == nil {
		return res, true, nil
	}
	if !errors.Is(err, ErrExists) {
		return nil, false, fmt.Errorf("put result: %w", err)
	}
	counts, err := l.GetResult(ctx, res.Work)
	return counts, false, err
}

// GetResult implements Ledger.
func (l *JetStream) GetResult(ctx context.Context, w render.Work) (*render.StageResult, error) {
	key, err := workKey(resultPrefix, w)
	if err != nil {
		return nil, fmt.Errorf("get result: %w", err)
	}
	e, err := shard(l.works, w.Owner()).get(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("get result: %w", err)
	}
	return decodeResult(e)
}

// resultKeys lists the results of a generation by one question to the leader.
func (l *JetStream) resultKeys(ctx context.Context, tenant render.Tenant, task render.ID, generation uint32) ([]string, error) {
	if _, ok := render.ParseID(string(task)); !ok {
		return nil, malformed("render id")
	}
	prefix := resultPrefix + tenant.Key() + "." + string(task) + "." + strconv.FormatUint(uint64(generation), 10) + "."
	return shard(l.works, string(task)).keys(ctx, prefix)
}

// stageOf returns the stage in a result's key.
func stageOf(key string) render.Stage {
	parts := strings.Split(key, ".")
	if len(parts) < 2 {
		return ""
	}
	return render.Stage(parts[len(parts)-2])
}

// CountResults implements Ledger.
func (l *JetStream) CountResults(ctx context.Context, tenant render.Tenant, task render.ID, generation uint32) (int, error) {
	keys, err := l.resultKeys(ctx, tenant, task, generation)
	if err != nil {
		return 0, fmt.Errorf("count results: %w", err)
	}
	n := 0
	for _, key := range keys {
		if s := stageOf(key); s == render.StageSegment || s == render.StageAudio {
			n++
		}
	}
	return n, nil
}

// Results implements Ledger.
func (l *JetStream) Results(ctx context.Context, tenant render.Tenant, task render.ID, generation uint32) ([]*render.StageResult, error) {
	keys, err := l.resultKeys(ctx, tenant, task, generation)
	if err != nil {
		return nil, fmt.Errorf("list results: %w", err)
	}
	results := make([]*render.StageResult, 0, len(keys))
	for _, key := range keys {
		e, err := shard(l.works, string(task)).get(ctx, key)
		if errors.Is(err, ErrNotFound) {
			continue // expired meanwhile
		}
		var res *render.StageResult
		if err == nil {
			res, err = decodeResult(e)
		}
		if err != nil {
			return nil, fmt.Errorf("read results: %w", err)
		}
		results = append(results, res)
	}
	order := []render.Stage{render.StagePreview, render.StagePlan, render.StageSegment, render.StageAudio, render.StageAssemble}
	slices.SortFunc(results, func(a, b *render.StageResult) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Work.Stage), slices.Index(order, b.Work.Stage)), cmp.Compare(a.Work.Index, b.Work.Index))
	})
	return results, nil
}

// maxAttempts bounds a history, which a worker that hands back for hours would
// grow past what a message may hold.
const maxAttempts = 200

// OpenAttempt implements Ledger.
func (l *JetStream) OpenAttempt(ctx context.Context, w render.Work, a Attempt) (History, error) {
	return l.changeHistory(ctx, w, "open attempt", func(h *History) error {
		if n := len(h.Attempts); n > 0 && h.Attempts[n-1].ID == a.ID {
			return errUnchanged // a repeated call
		}
		for i := range h.Attempts {
			if h.Attempts[i].Outcome == OutcomeOpen {
				h.Attempts[i].Outcome = OutcomeLost
			}
		}
		a.Outcome = OutcomeOpen
		h.Attempts = append(h.Attempts, a)
		for len(h.Attempts) > maxAttempts {
			at := expendable(h.Attempts)
			h.Attempts = slices.Delete(h.Attempts, at, at+1)
		}
		return nil
	})
}

// expendable finds the oldest attempt whose loss changes no count of distinct
// workers.
func expendable(list []Attempt) int {
	for i, a := range list {
		if a.Outcome == OutcomeHandback || slices.ContainsFunc(list[i+1:], func(later Attempt) bool {
			return later.Worker == a.Worker && later.Outcome == a.Outcome
		}) {
			return i
		}
	}
	return 0
}

// CloseAttempt implements Ledger.
func (l *JetStream) CloseAttempt(ctx context.Context, w render.Work, id string, o Outcome, reason string) (History, error) {
	return l.changeHistory(ctx, w, "close attempt", func(h *History) error {
		for i, a := range h.Attempts {
			if a.ID != id {
				continue
			}
			if a.Outcome != OutcomeOpen {
				return errUnchanged
			}
			h.Attempts[i].Outcome, h.Attempts[i].Reason = o, reason
			return nil
		}
		return fmt.Errorf("attempt %s: %w", id, ErrNotFound)
	})
}

// AttemptHistory implements Ledger.
func (l *JetStream) AttemptHistory(ctx context.Context, w render.Work) (History, error) {
	key, err := workKey(attemptsPrefix, w)
	if err != nil {
		return History{}, fmt.Errorf("attempt history: %w", err)
	}
	_, h, err := l.history(ctx, w, key)
	if err != nil {
		return History{}, fmt.Errorf("attempt history: %w", err)
	}
	return h, nil
}

var errUnchanged = errors.New("nothing to write")

func (l *JetStream) history(ctx context.Context, w render.Work, key string) (entry, History, error) {
	e, err := shard(l.works, w.Owner()).look(ctx, key)
	if err != nil || !e.live() {
		return e, History{}, err
	}
	p := &vidforgev1.AttemptHistory{}
	if err := proto.Unmarshal(e.data, p); err != nil {
		return e, History{}, fmt.Errorf("decode %s: %w", e.key, err)
	}
	h, err := wire.ToHistory(p)
	if err != nil {
		return e, History{}, fmt.Errorf("decode %s: %w", e.key, err)
	}
	return e, h, nil
}

// changeHistory applies change until it is the next revision.
func (l *JetStream) changeHistory(ctx context.Context, w render.Work, what string, change func(*History) error) (History, error) {
	key, err := workKey(attemptsPrefix, w)
	if err != nil {
		return History{}, fmt.Errorf("%s: %w", what, err)
	}
	for {
		e, h, err := l.history(ctx, w, key)
		if err != nil {
			return History{}, fmt.Errorf("%s: %w", what, err)
		}
		if err := change(&h); errors.Is(err, errUnchanged) {
			return h, nil
		} else if err != nil {
			return History{}, fmt.Errorf("%s: %w", what, err)
		}
		data, err := wire.Marshal(wire.FromHistory(h))
		if err != nil {
			return History{}, fmt.Errorf("%s: %w", what, err)
		}
		_, err = shard(l.works, w.Owner()).put(ctx, key, data, e.revision, keep)
		if err == nil {
			return h, nil
		}
		if !errors.Is(err, ErrConflict) {
			return History{}, fmt.Errorf("%s: %w", what, err)
		}
	}
}
