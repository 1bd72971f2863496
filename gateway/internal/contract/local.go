package contract

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/gateway/internal/localfile"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

// Local is what the client of this process's standard streams gets beyond the
// clients that come over HTTP: it works with the files of this machine.
type Local struct {
	// Files takes in what is named by a file:/// URI. Nil: nothing may be.
	Files *localfile.Importer
	// Output takes finished videos and previews. Nil: nothing is written.
	Output *localfile.Output
	// Embed puts videos into results: as bytes, or the larger ones as a link to
	// this process's own HTTP API.
	Embed bool
}

// unlimitedSession is the session timeout of the only client: there is nowhere
// to tell it that its session is gone.
const unlimitedSession = 100 * 365 * 24 * time.Hour

func (s *Service) sessionTimeout() time.Duration {
	if s.cfg.Local != nil {
		return unlimitedSession
	}
	return sessionTimeout
}

func (s *Service) transport() string {
	if s.cfg.Local != nil {
		return "stdio"
	}
	return "streamable-http"
}

// dialect is the contract of this package as it is said on this machine.
func (l *Local) dialect() *Dialect {
	d := native()
	d.Instructions = strings.Replace(d.Instructions,
		"Upload the source with POST /v1/assets, then call "+ToolRender+" with the asset URI that the upload returned.",
		"Call "+ToolRender+" with the file:/// URI of a video below "+l.inputDir()+".", 1)
	words := strings.NewReplacer(
		"Upload the source to POST /v1/assets first.", "Name the source by its file:/// URI; "+ToolCapabilities+" tells below which directory.",
		"watermarks an uploaded video.", "watermarks a video file.",
		"made from a vidforge://assets/… source.", "made from a file.",
		"The uploaded video, vidforge://assets/…", "The video, file:///… or vidforge://assets/…",
		"An uploaded PNG, JPEG or WebP.", "A PNG, JPEG or WebP, file:///… or vidforge://assets/….",
		"Tells what the farm knows of an uploaded asset:", "Tells what the farm knows of a video file or an asset:",
		`"description":"vidforge://assets/…"`, `"description":"file:///… or vidforge://assets/…"`,
		exampleAsset, "file:///home/ann/clip.mov",
		downloadOutput, localOutput,
	)
	var input json.RawMessage
	for i, t := range toolSpecs() {
		t.description, t.input, t.output = words.Replace(t.description), words.Replace(t.input), words.Replace(t.output)
		d.Tools[i].Tool = t.tool()
		if t.name == ToolRender {
			input = Schema(t.input, t.required)
		}
	}
	for i, r := range d.Resources {
		switch r.URI {
		case uriGuide:
			d.Resources[i].Read = func(Capabilities) (string, error) { return l.guide(), nil }
		case uriSchema:
			d.Resources[i].Read = func(Capabilities) (string, error) { return string(input), nil }
		}
	}
	return d
}

// localOutput are the output fields in place of downloadOutput.
const localOutput = `
"file_path":{"type":"string","description":"Where the video was written."},
"preview_path":{"type":"string"},`

// inputDir is the directory below which files may be named, in words.
func (l *Local) inputDir() string {
	if l.Files == nil {
		return "the input directory"
	}
	return l.Files.Dir()
}

func (l *Local) guide() string {
	head, rest, _ := strings.Cut(guide, "\n\n")
	return head + "\n\nThis server runs on the user's machine: name sources and watermark pictures by their `file:///` URI below " + l.inputDir() +
		" instead of uploading them. Finished videos are files at `file_path`, or inside the result, as the server was started; there is no `download_url`.\n\n" + rest
}

func (s *Service) does() []string {
	d := does()
	if l := s.cfg.Local; l != nil {
		d = append(d, "Takes video files and watermark pictures below "+l.inputDir()+" by their file:/// URI.")
		if l.Output != nil {
			d = append(d, "Writes finished videos and previews to files, and tells where as file_path and preview_path.")
		}
	}
	return d
}

func (s *Service) doesNot() []string {
	d := doesNot()
	if l := s.cfg.Local; l != nil {
		d[0] = "It does not fetch URLs from the network, nor read files outside of " + l.inputDir() + "."
	}
	return d
}

// check is check for a call that may name files.
func (f failure) check(raw json.RawMessage) error {
	if !f.local {
		return check(f.tool, raw)
	}
	switch f.tool {
	case ToolRender, ToolValidate:
		r, err := renderRequest(raw)
		if err == nil {
			_, err = render.Normalize(withoutFiles(r))
		}
		return err
	case ToolProbe:
		uri, err := probeURI(raw)
		if err == nil && !localfile.IsURI(uri) {
			_, err = probedURI(uri)
		}
		return err
	default:
		return check(f.tool, raw)
	}
}

// withoutFiles is a request whose files are replaced by some asset.
func withoutFiles(r render.Request) render.Request {
	if localfile.IsURI(r.SourceAssetURI) {
		r.SourceAssetURI = exampleAsset
	}
	if w := r.Watermark; w != nil && w.ImageAssetURI != nil && localfile.IsURI(*w.ImageAssetURI) {
		c, uri := *w, exampleAsset
		c.ImageAssetURI = &uri
		r.Watermark = &c
	}
	return r
}

// renderRequest decodes a request and takes in the files that it names, once
// nothing else is wrong with it.
func (s *Service) renderRequest(ctx context.Context, in *call) (render.Request, error) {
	r, err := renderRequest(in.raw)
	if err != nil || s.cfg.Local == nil {
		return r, err
	}
	for _, named := range []struct {
		field string
		uri   *string
	}{{"source_asset_uri", &r.SourceAssetURI}, {"watermark.image_asset_uri", logoOf(r)}} {
		if err := s.mayName(named.field, named.uri); err != nil {
			return r, err
		}
	}
	if _, err := render.Normalize(withoutFiles(r)); err != nil {
		return r, err
	}
	if err := s.takeIn(ctx, in.Tenant, "source_asset_uri", &r.SourceAssetURI); err != nil {
		return r, err
	}
	return r, s.takeIn(ctx, in.Tenant, "watermark.image_asset_uri", logoOf(r))
}

func logoOf(r render.Request) *string {
	if r.Watermark == nil {
		return nil
	}
	return r.Watermark.ImageAssetURI
}

// probedAsset is the asset that a call asks about, of a file too.
func (s *Service) probedAsset(ctx context.Context, in *call) (render.AssetID, error) {
	uri, err := probeURI(in.raw)
	if err != nil {
		return "", err
	}
	if s.cfg.Local == nil {
		return probedURI(uri)
	}
	if err := s.mayName("asset_uri", &uri); err != nil {
		return "", err
	}
	if err := s.takeIn(ctx, in.Tenant, "asset_uri", &uri); err != nil {
		return "", err
	}
	return probedURI(uri)
}

// mayName refuses what is neither a file nor an asset. uri may be nil or empty.
func (s *Service) mayName(field string, uri *string) error {
	switch file := uri != nil && localfile.IsURI(*uri); {
	case uri == nil, *uri == "", strings.HasPrefix(*uri, "vidforge://assets/"), file && s.cfg.Local.Files != nil:
		return nil
	case file:
		return render.InvalidField(field, "", "No file may be named: start vidforge mcp with --input-dir, the directory whose files may be, or upload the file.")
	default:
		return render.InvalidField(field, "", fmt.Sprintf("%s must be a file:/// URI below %s, or a vidforge://assets/… URI; external URLs and bare paths are not fetched.", field, s.cfg.Local.inputDir()))
	}
}

// takeIn replaces a file URI by that of its asset.
func (s *Service) takeIn(ctx context.Context, tenant render.Tenant, field string, uri *string) error {
	if uri == nil || !localfile.IsURI(*uri) {
		return nil
	}
	id, err := s.cfg.Local.Files.Import(ctx, tenant, field, *uri)
	if err != nil {
		return err
	}
	*uri = id.URI()
	return nil
}

// videoPath writes the video and tells where, "" where it is not written.
func (s *Service) videoPath(ctx context.Context, rec *render.Record) string {
	return s.writeOutput(ctx, rec, videoName(rec), s.cfg.Farm.Video)
}

// previewPath writes the watermark preview, if there is one.
func (s *Service) previewPath(ctx context.Context, rec *render.Record) string {
	if rec.Preview == nil {
		return ""
	}
	name := videoName(rec)
	return s.writeOutput(ctx, rec, strings.TrimSuffix(name, path.Ext(name))+" watermark preview.png", s.cfg.Farm.Preview)
}

func (s *Service) writeOutput(ctx context.Context, rec *render.Record, name string, find func(context.Context, render.Tenant, render.ID) (*farm.Content, error)) string {
	if s.cfg.Local == nil || s.cfg.Local.Output == nil {
		return ""
	}
	c, err := find(ctx, rec.Tenant, rec.ID)
	var file string
	if err == nil {
		file, err = s.cfg.Local.Output.Write(ctx, name, c)
	}
	if err != nil {
		s.cfg.Logger.ErrorContext(ctx, "an output was not written; set another --output-dir", "render_id", rec.ID, "error", err)
		return ""
	}
	return file
}

// videoContent is the video in the content of a result: the link, and on stdio
// its bytes where they are asked for or could not be written to a file.
func (s *Service) videoContent(ctx context.Context, rec *render.Record, v video) []mcp.Content {
	link := videoLink(rec)
	local := s.cfg.Local
	if local == nil || !local.Embed && v.FilePath != "" {
		return []mcp.Content{link}
	}
	if v.SizeBytes > maxInlineVideo {
		link.URI = s.publicURL("/v1/renders/" + string(rec.ID) + "/video")
		return []mcp.Content{link}
	}
	c, err := s.cfg.Farm.Video(ctx, rec.Tenant, rec.ID)
	var b []byte
	if err == nil {
		b, err = readAll(ctx, c, maxInlineVideo)
	}
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "no video in the result", "render_id", rec.ID, "error", err)
		return []mcp.Content{link}
	}
	return []mcp.Content{link, &mcp.EmbeddedResource{
		Resource:    &mcp.ResourceContents{URI: link.URI, MIMEType: link.MIMEType, Blob: b},
		Annotations: link.Annotations,
	}}
}
