package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// patientBody lets a request's body take as long as it needs while bytes flow,
// and breaks off one that stands still for longer than stall: read by a handler,
// or by the server, which empties what a handler left.
type patientBody struct {
	io.ReadCloser
	rc    *http.ResponseController
	stall time.Duration
}

// withPatience puts a request's body on the clock.
func withPatience(w http.ResponseWriter, r *http.Request, stall time.Duration) error {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	b := &patientBody{r.Body, http.NewResponseController(w), stall}
	r.Body = b
	return b.deadline(time.Now().Add(stall))
}

func (b *patientBody) Read(p []byte) (int, error) {
	if err := b.deadline(time.Now().Add(b.stall)); err != nil {
		return 0, err
	}
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		// What follows the body is not on this clock: the server goes on
		// reading the connection to notice that the client left.
		if err := b.deadline(time.Time{}); err != nil {
			return n, err
		}
	}
	return n, err //nolint:wrapcheck // this is the reader
}

func (b *patientBody) deadline(t time.Time) error {
	if err := b.rc.SetReadDeadline(t); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("set read deadline: %w", err)
	}
	return nil
}
