package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/gateway/internal/contract"
	"github.com/vidforge/vidforge/gateway/internal/localfile"
	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

// Stdio serves one more client: the one on the standard streams of this process,
// which is the user whom the process belongs to.
type Stdio struct {
	// InputDir is the directory below which the client may name files. Absolute;
	// empty: it may name none.
	InputDir string
	// OutputDir takes finished videos and watermark previews. Absolute; empty:
	// nothing is written.
	OutputDir string
	// Embed puts videos of up to 8 MiB into results, and links to larger ones.
	Embed bool
}

// stdioServer is what serves the client of the standard streams.
type stdioServer struct {
	contract *contract.Service
	files    *localfile.Importer
	output   *localfile.Output
}

// newStdio makes the handler of the client of the standard streams: the same
// contract, with files of this machine.
func (s *server) newStdio(settings contract.Config, f facade) (_ *stdioServer, err error) {
	o := &stdioServer{}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.close())
		}
	}()
	if dir := s.cfg.Stdio.InputDir; dir != "" {
		sources, err := localfile.OpenSources(dir)
		if err != nil {
			return nil, fmt.Errorf("open the input directory: %w", err)
		}
		o.files = localfile.NewImporter(sources, f, f.Limits().MaxAssetBytes, time.Now, s.cfg.Logger)
	}
	if dir := s.cfg.Stdio.OutputDir; dir != "" {
		if o.output, err = localfile.NewOutput(dir); err != nil {
			return nil, fmt.Errorf("open the output directory: %w", err)
		}
	}
	settings.Local = &contract.Local{Files: o.files, Output: o.output, Embed: s.cfg.Stdio.Embed}
	o.contract, err = contract.New(settings)
	if err != nil {
		return nil, fmt.Errorf("make the MCP contract: %w", err)
	}
	return o, nil
}

func (o *stdioServer) close() error {
	var errs []error
	if o.contract != nil {
		errs = append(errs, o.contract.Close())
	}
	if o.files != nil {
		errs = append(errs, o.files.Close())
	}
	if o.output != nil {
		o.output.Close()
	}
	return errors.Join(errs...)
}

// handler serves requests that never left this process.
func (o *stdioServer) handler(s *server) http.Handler {
	next := o.contract.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		ctx, span := telemetry.Tracer().Start(r.Context(), "stdio", trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("network.transport", "pipe")))
		defer span.End()
		req := auth.Request{Principal: auth.Local(), ID: "req_" + render.NewAttemptID(), Span: span.SpanContext()}
		req.Subject = "stdio"
		ctx = mcptask.WithPrincipal(auth.WithRequest(ctx, req), req)
		rec := &recorder{ResponseWriter: w}
		next.ServeHTTP(rec, r.WithContext(ctx))
		s.cfg.Logger.InfoContext(context.WithoutCancel(ctx), "request", "request_id", req.ID, "mcp_method", mcpMethod(r), "bytes", rec.bytes, "ms", time.Since(began).Milliseconds())
	})
}
