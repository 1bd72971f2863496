// Command server runs the conformance fixture on a loopback port, for trying a
// client by hand.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/vidforge/vidforge/deploy/e2e/conformance/fixture"
)

func main() {
	port := flag.Int("port", 0, "loopback port; 0 takes a free one")
	flag.Parse()
	if err := run(*port); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

func run(port int) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	f, err := fixture.New()
	if err != nil {
		return fmt.Errorf("start fixture: %w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return errors.Join(fmt.Errorf("listen: %w", err), f.Close())
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", f)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	fmt.Printf("http://%s/mcp\n", l.Addr())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	return errors.Join(err, f.Close(), srv.Close())
}
