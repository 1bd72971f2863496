package cli

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/vidforge/vidforge/deploy/vidforge/internal/client"
	"github.com/vidforge/vidforge/deploy/vidforge/internal/local"
	"github.com/vidforge/vidforge/pkg/buildinfo"
	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
)

// renderOptions are the flags of 'vidforge render'. Paths are absolute once
// checked: an embedded farm changes the working directory.
type renderOptions struct {
	conn connection

	file, out, previewOut string
	to, resolution        string
	quality               string
	text, image, position string
	opacity               float64
	opacitySet            bool
	approve, noApproval   bool
	idempotencyKey        string
	force, json           bool
	giveUpAfter           time.Duration
	workers               int
}

func (a *app) render() *cobra.Command {
	var o renderOptions
	cmd := &cobra.Command{
		Use:   "render FILE -o OUT",
		Short: "Render a file",
		Long: `Render a file on a farm, as an AI agent would through MCP.

The file is uploaded, the render runs as a task, and the result is checked and
written to OUT. With a watermark the render pauses until its preview is
approved: you are asked here, unless --approve or --no-approval is given.

Without --server a farm of its own runs for the time of the command, in a
temporary directory or in --data-dir.

Ctrl-C cancels the render.

` + exitCodes,
		Example: `  vidforge render clip.mov -o clip.mp4
  vidforge render clip.mov -o clip.mp4 --resolution 720p --watermark-text '© Ann'
  vidforge render clip.mov -o clip.mp4 --watermark-image logo.png --approve --json
  vidforge render clip.mov -o clip.mp4 --server https://farm.example.com`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.file, o.opacitySet = args[0], cmd.Flags().Changed("opacity")
			if err := o.check(a.Interactive); err != nil {
				return err
			}
			a.running = true
			return a.renderFile(cmd.Context(), &o)
		},
	}
	o.conn.register(cmd)
	f := cmd.Flags()
	f.StringVarP(&o.out, "output", "o", "", "file to write")
	f.StringVar(&o.to, "to", "", "output format: mp4, webm or mov (default from OUT's name, else mp4)")
	f.StringVar(&o.resolution, "resolution", "1080p", "box the picture fits into: 720p, 1080p or 4k")
	f.StringVar(&o.quality, "quality", "", "draft, standard or high (default standard)")
	f.StringVar(&o.text, "watermark-text", "", "text to draw into the picture")
	f.StringVar(&o.image, "watermark-image", "", "image file to draw into the picture")
	f.StringVar(&o.position, "position", "", "of the watermark: top_left, top_right, bottom_left, bottom_right or center (default bottom_right)")
	f.Float64Var(&o.opacity, "opacity", 1, "of the watermark, 0 to 1")
	f.BoolVar(&o.approve, "approve", false, "approve the watermark without asking")
	f.BoolVar(&o.noApproval, "no-approval", false, "make no preview and render at once")
	f.StringVar(&o.previewOut, "preview-out", "", "write the watermark preview, a PNG, to this file")
	f.StringVar(&o.idempotencyKey, "idempotency-key", "", "the same key with the same arguments renders once (default a new one)")
	f.BoolVar(&o.force, "force", false, "overwrite OUT and the preview file")
	f.BoolVar(&o.json, "json", false, "print one JSON object about the outcome on standard output; all else is on standard error")
	f.DurationVar(&o.giveUpAfter, "give-up-after", 10*time.Minute, "how long the server may stay silent; the render goes on without us")
	f.IntVar(&o.workers, "workers", 0, "encoding stages that a farm of its own runs at once (default 1)")
	if err := cmd.MarkFlagRequired("output"); err != nil {
		panic(err) // defined above
	}
	cmd.MarkFlagsMutuallyExclusive("watermark-text", "watermark-image")
	cmd.MarkFlagsMutuallyExclusive("approve", "no-approval")
	cmd.MarkFlagsMutuallyExclusive("server", "workers")
	return cmd
}

// check finds what is wrong before any work is done, and makes paths absolute.
func (o *renderOptions) check(interactive bool) error {
	watermark := o.text != "" || o.image != ""
	switch {
	case o.out == "":
		return errors.New("--output is empty")
	case !watermark && (o.position != "" || o.opacitySet || o.previewOut != ""):
		return errors.New("--position, --opacity and --preview-out need --watermark-text or --watermark-image")
	case o.previewOut != "" && o.noApproval:
		return errors.New("--preview-out: with --no-approval no preview is made")
	case o.workers < 0:
		return errors.New("--workers is negative")
	case watermark && !o.approve && !o.noApproval && !interactive:
		return errUnapproved
	}
	for _, p := range []*string{&o.file, &o.out, &o.previewOut, &o.image, &o.conn.dataDir} {
		if *p == "" {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return fmt.Errorf("path %s: %w", *p, err)
		}
		*p = abs
	}
	for _, p := range []string{o.file, o.image} {
		if p == "" {
			continue
		}
		switch info, err := os.Stat(p); {
		case err != nil:
			return err //nolint:wrapcheck // names the file
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s is not a regular file", p)
		}
	}
	for _, p := range []string{o.out, o.previewOut} {
		if p == "" {
			continue
		}
		if err := writable(p, o.force); err != nil {
			return err
		}
	}
	if o.to == "" {
		ext := strings.TrimPrefix(strings.ToLower(filepath.Ext(o.out)), ".")
		o.to = string(render.FormatMP4)
		if slices.Contains([]render.Format{render.FormatMP4, render.FormatWebM, render.FormatMOV}, render.Format(ext)) {
			o.to = ext
		}
	}
	return nil
}

// phase is a part of a render's way, as timed.
type phase struct {
	name string
	took time.Duration
}

// job is one run of 'vidforge render'.
type job struct {
	a *app
	o *renderOptions
	d *display
	c *client.Client

	phases []phase
	since  time.Time

	taskID  string
	video   *client.Video
	preview string // where the preview was written
	lines   <-chan string
}

func (a *app) renderFile(ctx context.Context, o *renderOptions) error {
	j := &job{a: a, o: o, d: a.display(), since: time.Now()}
	err := j.run(ctx)
	j.d.end()
	if o.json {
		err = errors.Join(err, j.report(err))
	}
	return err
}

// lap ends a phase.
func (j *job) lap(name string) {
	now := time.Now()
	j.phases = append(j.phases, phase{name, now.Sub(j.since)})
	j.since = now
}

func (j *job) run(ctx context.Context) (err error) {
	stop, err := j.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	j.lap("start")

	request, err := j.upload(ctx)
	if err != nil {
		return err
	}
	j.lap("upload")

	// Submitting outlives Ctrl-C for as long as one answer takes, so that a
	// task that was made can be cancelled.
	task, err := j.submit(ctx, request)
	if err != nil {
		return err
	}
	j.taskID = task.TaskID
	j.a.sayf("Render %s.", j.taskID)
	j.video, err = j.c.Follow(ctx, task, j, client.FollowOptions{GiveUpAfter: j.o.giveUpAfter})
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.Join(err, j.cancel(ctx))
	case errors.Is(err, client.ErrUnreachable):
		return fmt.Errorf("%w; the render goes on: look at it with 'vidforge status %s'", err, j.taskID)
	case err != nil:
		return err
	}
	j.lap("encode")
	if err := j.download(ctx); err != nil {
		return err
	}
	j.lap("download")
	return j.summary()
}

// connect finds or starts the farm.
func (j *job) connect(ctx context.Context) (stop func() error, err error) {
	if j.o.conn.server != "" {
		if j.c, err = j.o.conn.dial(j.o.conn.server); err != nil {
			return nil, err
		}
		return func() error { j.a.close(j.c); return nil }, nil
	}
	log, err := j.a.logger(slog.LevelError)
	if err != nil {
		return nil, err
	}
	dir, remove := j.o.conn.dataDir, func() error { return nil }
	if dir == "" {
		if dir, err = os.MkdirTemp("", "vidforge-render-"); err != nil {
			return nil, fmt.Errorf("make a temporary data directory: %w", err)
		}
		remove = func() error { return os.RemoveAll(dir) }
	}
	farm, err := local.Start(ctx, local.Options{DataDir: dir, Listen: "127.0.0.1:0", OpsListen: "127.0.0.1:0", Slots: j.o.workers, Version: buildinfo.Version(), Logger: log})
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	j.c, err = j.o.conn.dial(farm.URL)
	stop = func() error {
		if j.c != nil {
			j.a.close(j.c)
		}
		return errors.Join(farm.Close(), remove())
	}
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

func (j *job) upload(ctx context.Context) (client.Request, error) {
	r := client.Request{
		OutputFormat: j.o.to, Resolution: j.o.resolution, Quality: j.o.quality,
		IdempotencyKey: cmp.Or(j.o.idempotencyKey, "cli-"+rand.Text()),
	}
	asset, err := j.d.upload(ctx, j.c, j.o.file)
	if err != nil {
		return r, err
	}
	r.SourceAssetURI = asset.URI
	if j.o.text == "" && j.o.image == "" {
		return r, nil
	}
	r.Watermark = &client.Watermark{Text: j.o.text, Position: j.o.position}
	if j.o.opacitySet {
		r.Watermark.Opacity = &j.o.opacity
	}
	if j.o.noApproval {
		r.RequireApproval = new(bool)
	}
	if j.o.image != "" {
		logo, err := j.d.upload(ctx, j.c, j.o.image)
		if err != nil {
			return r, err
		}
		r.Watermark.ImageAssetURI = logo.URI
	}
	return r, nil
}

func (j *job) submit(ctx context.Context, r client.Request) (*client.Task, error) {
	settled, done := context.WithCancel(context.WithoutCancel(ctx))
	defer done()
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-settled.Done():
		case <-time.After(settleTimeout):
			done()
		}
	})
	defer stop()
	t, err := j.c.Submit(settled, r, j.d.retrying, client.FollowOptions{GiveUpAfter: min(j.o.giveUpAfter, time.Minute)})
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("submit: %w", ctx.Err())
	}
	return t, err
}

// settleTimeout bounds what is still said to the server after Ctrl-C.
const settleTimeout = 10 * time.Second

// cancel tells the server, once, that the render is not wanted any more.
func (j *job) cancel(ctx context.Context) error {
	j.d.end()
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer done()
	if err := j.c.CancelTask(ctx, j.taskID); err != nil {
		return fmt.Errorf("the render may go on, cancel it with 'vidforge cancel %s': %w", j.taskID, err)
	}
	j.a.sayf("The render is cancelled.")
	return nil
}

// Changed implements client.Watcher.
func (j *job) Changed(t *client.Task, s *client.Status) {
	switch t.Status {
	case mcptask.StatusInputRequired:
		if !j.timed("preview") {
			j.lap("preview")
		}
		j.d.end()
		if len(t.InputRequests) == 0 {
			j.d.rendering(t.StatusMessage, nil) // somebody else decides; it says where
		}
	case mcptask.StatusWorking:
		if j.timed("preview") && !j.timed("approval") {
			j.lap("approval")
		}
		j.d.rendering(t.StatusMessage, s)
	default:
		j.d.end()
	}
}

func (j *job) timed(name string) bool {
	return slices.ContainsFunc(j.phases, func(p phase) bool { return p.name == name })
}

// Retrying implements client.Watcher.
func (j *job) Retrying(err error, wait time.Duration) { j.d.retrying(err, wait) }

// Ask implements client.Watcher: it shows the preview and takes the decision.
func (j *job) Ask(ctx context.Context, taskID string, q client.InputRequest) (*mcp.ElicitResult, error) {
	if q.Method != "elicitation/create" || q.Params.Mode == "url" {
		return &mcp.ElicitResult{Action: "decline"}, nil // not declared by us
	}
	where, forget, err := j.savePreview(ctx, render.ID(taskID))
	if err != nil {
		return nil, err
	}
	defer forget()
	approved := j.o.approve
	if !approved {
		if !j.a.Interactive {
			return nil, errUnapproved
		}
		j.a.sayf("%s\nPreview: %s", printable(q.Params.Message), where)
		if approved, err = j.confirm(ctx); err != nil {
			return nil, err
		}
	}
	return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"approved": approved}}, nil
}

// savePreview writes the preview where it was asked for, else to a temporary
// file that forget removes.
func (j *job) savePreview(ctx context.Context, id render.ID) (path string, forget func(), err error) {
	forget = func() {}
	if j.o.approve && j.o.previewOut == "" {
		return "", forget, nil
	}
	png, err := j.c.ReadResource(ctx, id.PreviewURI())
	if err != nil {
		return "", forget, fmt.Errorf("get the watermark preview: %w", err)
	}
	if j.o.previewOut != "" {
		j.preview = j.o.previewOut
		return j.preview, forget, writeFile(j.o.previewOut, j.o.force, func(w io.Writer) error {
			_, err := w.Write(png)
			return err //nolint:wrapcheck // writeFile does
		})
	}
	f, err := os.CreateTemp("", "vidforge-preview-*.png")
	if err != nil {
		return "", forget, fmt.Errorf("write the watermark preview: %w", err)
	}
	forget = func() { _ = os.Remove(f.Name()) } // a leftover in the temporary folder harms nobody
	_, err = f.Write(png)
	if err = errors.Join(err, f.Close()); err != nil {
		forget()
		return "", func() {}, fmt.Errorf("write the watermark preview: %w", err)
	}
	return f.Name(), forget, nil
}

// confirm asks until there is a clear answer.
func (j *job) confirm(ctx context.Context) (bool, error) {
	if j.lines == nil {
		j.lines = readLines(j.a.In)
	}
	for {
		_, _ = fmt.Fprint(j.a.Err, "Approve the watermark? [y]es or [n]o, which ends the render: ")
		select {
		case <-ctx.Done():
			j.a.sayf("")
			return false, fmt.Errorf("ask for the approval: %w", ctx.Err())
		case line, ok := <-j.lines:
			if !ok {
				return false, errUnapproved
			}
			switch strings.ToLower(strings.TrimSpace(line)) {
			case "y", "yes":
				return true, nil
			case "n", "no":
				return false, nil
			}
		}
	}
}

// readLines reads lines for ever: nothing can interrupt a read of a terminal,
// so its goroutine ends with the input or the process.
func readLines(r io.Reader) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return lines
}

func (j *job) download(ctx context.Context) error {
	progress := j.d.transfer("download", j.video.SizeBytes)
	defer j.d.end()
	return writeFile(j.o.out, j.o.force, func(w io.Writer) error {
		return j.c.Download(ctx, j.video, w, progress)
	})
}

func (j *job) summary() error {
	var times []string
	for _, p := range j.phases {
		times = append(times, fmt.Sprintf("%s %.1f s", p.name, p.took.Seconds()))
	}
	v := j.video
	j.a.sayf("%d×%d, %.1f s, %d frames, %s. Time: %s.", v.Width, v.Height, v.DurationSeconds, v.FrameCount,
		bytesText(v.SizeBytes), strings.Join(times, ", "))
	if j.o.json {
		return nil
	}
	return j.a.printf("%s", j.o.out)
}

// report is the JSON object of --json.
func (j *job) report(err error) error {
	type failure struct {
		Code      render.Code     `json:"code,omitempty"`
		Message   string          `json:"message"`
		Temporary bool            `json:"temporary"`
		Details   *render.Details `json:"details,omitempty"`
	}
	out := struct {
		RenderID string           `json:"render_id,omitempty"`
		ExitCode int              `json:"exit_code"`
		Output   string           `json:"output,omitempty"`
		Preview  string           `json:"preview,omitempty"`
		Video    map[string]any   `json:"video,omitempty"`
		Phases   map[string]int64 `json:"phases_ms"`
		Error    *failure         `json:"error,omitempty"`
	}{RenderID: j.taskID, ExitCode: ExitCode(err), Preview: j.preview, Phases: map[string]int64{}}
	for _, p := range j.phases {
		out.Phases[p.name] = p.took.Milliseconds()
	}
	if j.video != nil {
		out.Video = maps.Clone(j.video.All)
		// Whoever has this URL has the video: it belongs into no log.
		delete(out.Video, "download_url")
		delete(out.Video, "download_expires_at")
	}
	if err == nil {
		out.Output = j.o.out
	} else {
		out.Error = &failure{Message: explain(err), Temporary: client.Temporary(err)}
		if farm, ok := errors.AsType[*render.Error](err); ok {
			out.Error.Code, out.Error.Message, out.Error.Details = farm.Code, farm.Message, farm.Details
		}
	}
	return j.a.printJSON(out)
}
