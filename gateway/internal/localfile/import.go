package localfile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

// Assets is what an Importer needs of the farm.
type Assets interface {
	Upload(ctx context.Context, tenant render.Tenant, u farm.Upload) (*render.Asset, error)
	Asset(ctx context.Context, tenant render.Tenant, id render.AssetID) (*render.Asset, error)
	Assets(ctx context.Context, tenant render.Tenant, cursor string, limit int) (page []*render.Asset, next string, err error)
}

const (
	// importPatience is how long a call waits for a file to be taken in. Hosts
	// give a call a minute.
	importPatience = 45 * time.Second
	// importRetry is when to ask again after that.
	importRetry = 10 * time.Second
	// leastLife is what an asset must have left to be taken again.
	leastLife = time.Hour
	// Bounds of the search for an asset with the same bytes.
	searchPages, searchPage = 50, 100
)

// Importer takes files into the farm. A file with the bytes and the name of an
// asset is that asset, so that the same file gives the same request, in another
// process too.
type Importer struct {
	sources *Sources
	farm    Assets
	log     *slog.Logger
	most    int64 // bytes of a file
	now     func() time.Time

	ctx    context.Context //nolint:containedctx // the importer's own life
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	imports map[version]*oneImport
}

// version is a file as it is now.
type version struct {
	tenant   render.Tenant
	path     string
	size     int64
	modified time.Time
}

// oneImport is a file on its way in.
type oneImport struct {
	done chan struct{}
	id   render.AssetID
	err  error
}

// NewImporter makes an Importer, which takes over s. most bounds a file in bytes.
func NewImporter(s *Sources, f Assets, most int64, now func() time.Time, log *slog.Logger) *Importer {
	i := &Importer{sources: s, farm: f, log: log, most: most, now: now, imports: map[version]*oneImport{}}
	i.ctx, i.cancel = context.WithCancel(context.Background())
	return i
}

// Dir is the directory below which files may be named.
func (i *Importer) Dir() string { return i.sources.Dir() }

// Close gives up what is on its way in, and waits for it.
func (i *Importer) Close() error {
	i.cancel()
	i.wg.Wait()
	return i.sources.Close()
}

// Import returns the asset of the file that a URI names; field is the argument
// that held it. A file that takes long goes on to be taken in when ctx has ended:
// asset_not_ready until then, and the same call finds it.
func (i *Importer) Import(ctx context.Context, tenant render.Tenant, field, uri string) (render.AssetID, error) {
	src, err := i.sources.open(field, uri)
	if err != nil {
		return "", err
	}
	if src.info.Size() > i.most {
		e := render.Errorf(render.CodeSourceTooLarge, render.BlameCaller, "The file exceeds the limit of %d bytes; send a smaller file.", i.most)
		e.Details = &render.Details{Field: field, Reason: fmt.Sprintf("more than %d bytes", i.most), Extra: map[string]any{"limit_bytes": i.most}}
		i.close(src)
		return "", e
	}
	v := version{tenant, src.path, src.info.Size(), src.info.ModTime()}
	one := i.begin(ctx, v, src)
	timer := time.NewTimer(importPatience)
	defer timer.Stop()
	select {
	case <-one.done:
		if one.err != nil {
			return "", inField(one.err, field)
		}
		return one.id, nil
	case <-ctx.Done():
		return "", fmt.Errorf("take in a file: %w", ctx.Err())
	case <-timer.C:
	case <-i.ctx.Done():
	}
	e := render.Errorf(render.CodeAssetNotReady, render.BlameCaller, "The file is still being taken in; make the same call again.")
	e.Details, e.RetryAfter = &render.Details{Field: field, Reason: "being taken in"}, importRetry
	return "", e
}

// begin joins the import of a file, or starts one. It takes over src.
func (i *Importer) begin(ctx context.Context, v version, src *source) *oneImport {
	i.mu.Lock()
	defer i.mu.Unlock()
	if one, ok := i.imports[v]; ok && i.valid(ctx, v.tenant, one) {
		i.close(src)
		return one
	}
	one := &oneImport{done: make(chan struct{})}
	i.imports[v] = one
	i.wg.Go(func() {
		defer close(one.done)
		defer i.close(src)
		one.id, one.err = i.run(i.ctx, v, src)
		if one.err != nil { // the next call tries anew
			i.mu.Lock()
			defer i.mu.Unlock()
			if i.imports[v] == one {
				delete(i.imports, v)
			}
		}
	})
	return one
}

func (i *Importer) close(src *source) {
	if err := src.file.Close(); err != nil {
		i.log.Debug("close a source", "error", err)
	}
}

// valid reports whether an import is under way, or its asset still there.
func (i *Importer) valid(ctx context.Context, tenant render.Tenant, one *oneImport) bool {
	select {
	case <-one.done:
	default:
		return true
	}
	if one.err != nil {
		return false
	}
	a, err := i.farm.Asset(ctx, tenant, one.id)
	return err != nil && render.CodeOf(err) != render.CodeSourceNotFound || err == nil && i.usable(a)
}

func (i *Importer) usable(a *render.Asset) bool {
	return a.State != render.AssetPending && a.Expires.Sub(i.now()) > leastLife
}

// run takes a file in.
func (i *Importer) run(ctx context.Context, v version, src *source) (render.AssetID, error) {
	name := strings.ToValidUTF8(filepath.Base(v.path), "_")
	hash := sha256.New()
	if n, err := io.Copy(hash, reading{ctx, src.file}); err != nil {
		return "", broken("read the file", err)
	} else if n != v.size {
		return "", changed()
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	known, err := i.find(ctx, v, name, sum)
	if err != nil || known != "" {
		return known, err
	}
	if _, err := src.file.Seek(0, io.SeekStart); err != nil {
		return "", broken("read the file again", err)
	}
	a, err := i.farm.Upload(ctx, v.tenant, farm.Upload{
		Name: name, MIMEType: mime.TypeByExtension(filepath.Ext(name)), Size: v.size, SHA256: sum, Body: io.LimitReader(reading{ctx, src.file}, v.size),
	})
	if err != nil {
		return "", err
	}
	return a.ID, nil
}

// find looks for an asset with the same name and bytes.
func (i *Importer) find(ctx context.Context, v version, name, sum string) (render.AssetID, error) {
	cursor := ""
	for range searchPages {
		page, next, err := i.farm.Assets(ctx, v.tenant, cursor, searchPage)
		if err != nil {
			return "", err
		}
		for _, a := range page {
			if a.Object.SHA256 == sum && a.Object.Size == v.size && a.Name == name && i.usable(a) {
				return a.ID, nil
			}
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	return "", nil
}

// reading stops with its context.
type reading struct {
	ctx context.Context //nolint:containedctx // of one read
	r   io.Reader
}

func (r reading) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err //nolint:wrapcheck // wrapped by who reads
	}
	return r.r.Read(b) //nolint:wrapcheck // as above
}

func broken(doing string, err error) error {
	return render.InvalidField("", "", "The file could not be read to its end; try again, or upload it instead.").WithCause(fmt.Errorf("%s: %w", doing, err))
}

const changedText = "The file changed while it was read; try again when it is complete."

func changed() error { return render.InvalidField("", "", changedText) }

// inField names the argument in an error that knows of an upload only.
func inField(err error, field string) error {
	e := render.AsError(err)
	if e.Details == nil {
		return err
	}
	switch e.Details.Field {
	case "body", "":
		c, d := *e, *e.Details
		d.Field = field
		c.Details = &d
		if e.Code == render.CodeInvalidField && strings.Contains(e.Message, "body") {
			c.Message, d.Reason = changedText, changedText
		}
		return &c
	default:
		return err
	}
}
