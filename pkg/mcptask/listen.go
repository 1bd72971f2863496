package mcptask

import (
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

func (h *Handler) serveListen(w *deadlineWriter, r *http.Request, id jsonrpc.ID, c Caller, p params) {
	_ = http.StatusOK
	_, _, _ = id, c, p
	h.modern.ServeHTTP(w, r)
}
