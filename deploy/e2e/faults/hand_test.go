package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/vidforge/vidforge/pkg/access"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/render"
)

// hand does the work of every stage in this process, without ffmpeg, for stories
// in which only gateways die. It ends with the test.
func (s *site) hand(name string) {
	f := farm.New(s.stores, farm.Config{Role: access.Worker, Tuning: tuning, Holder: name, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, class := range []render.Class{render.ClassPreview, render.ClassCPU} {
		wg.Go(func() {
			for ctx.Err() == nil {
				c, err := f.Claim(ctx, class, name, time.Second)
				switch {
				case err == nil:
					s.carryOut(c)
				case !errors.Is(err, jobs.ErrNone) && ctx.Err() == nil:
					s.t.Logf("%s: claim: %v", name, err)
				}
			}
		})
	}
	s.t.Cleanup(func() { cancel(); wg.Wait() })
}

func (s *site) carryOut(c *farm.Claim) {
	res, err := standIn(c)
	if err != nil {
		err = c.Fail(err)
	} else {
		_, err = c.Complete(res)
	}
	if err != nil {
		s.t.Logf("end %s: %v", c.Work.Stage, err)
	}
}

// standIn makes what a stage makes of the clip.
func standIn(c *farm.Claim) (*render.StageResult, error) {
	ctx := c.Context()
	store := func(name string) (render.Object, error) {
		return c.Store(ctx, name, "application/octet-stream", bytes.NewReader(built.clip), int64(len(built.clip)))
	}
	switch c.Work.Stage {
	case render.StageProbe:
		return &render.StageResult{Facts: &render.Facts{
			Kind: "video", Container: "mov", Duration: time.Second, Renderable: true, Video: 0, Audio: 1,
			Streams: []render.Stream{
				{Kind: "video", Codec: "h264", Width: 64, Height: 64, TimeBase: render.Rational{Num: 1, Den: 10240}},
				{Index: 1, Kind: "audio", Codec: "aac", Channels: 1, SampleRate: 44100},
			},
			GridRate: render.Rational{Num: clipFrames, Den: 1}, GridFrames: clipFrames,
		}}, nil
	case render.StagePreview:
		o, err := store("preview.png")
		return &render.StageResult{Object: o, Width: 64, Height: 64}, err
	case render.StagePlan:
		plan := render.MakePlan(c.Record.Source.Facts, c.Record.Spec, c.Work.Generation, render.Policy{})
		return &render.StageResult{Plan: &plan}, nil
	case render.StageSegment:
		o, err := store("video.mp4")
		return &render.StageResult{Object: o, Frames: clipFrames}, err
	case render.StageAudio:
		o, err := store("audio.m4a")
		return &render.StageResult{Object: o}, err
	case render.StageAssemble:
		o, err := store("final.mp4")
		return &render.StageResult{Object: o, Output: &render.Output{
			Object: o, Duration: time.Second, Width: 64, Height: 64, Frames: clipFrames, VideoCodec: "h264", AudioCodec: "aac",
			WatermarkApplied: c.Record.Spec.Watermark != nil, Encoder: "libx264", SegmentsTotal: 1,
		}}, err
	default:
		return nil, fmt.Errorf("unknown stage %q", c.Work.Stage)
	}
}
