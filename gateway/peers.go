package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// peers is the listener for other gateways.
type peers struct {
	srv *http.Server
	l   net.Listener
}

// openPeers listens for other gateways and enters this one into their registry.
// It returns nil where there are none.
func (s *server) openPeers(ctx, base context.Context) (*peers, error) {
	if s.cfg.PeerListen == "" {
		return nil, nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.PeerListen)
	if err != nil {
		return nil, fmt.Errorf("listen for other gateways: %w", err)
	}
	reached, err := peerAddress(s.cfg.PeerAddress, l.Addr().String())
	if err == nil {
		err = s.sessions.Join(ctx, reached)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	p := &peers{httpServer(base, s.cfg.Logger, s.handler), l}
	s.sessions.Peers(p.srv)
	s.cfg.Logger.InfoContext(ctx, "other gateways reach this one", "listen", l.Addr().String(), "address", reached)
	return p, nil
}

func (p *peers) serve() error { return served("other gateways", p.srv.ServeTLS(p.l, "", "")) }

// peerAddress is where others reach what is bound.
func peerAddress(setting, bound string) (string, error) {
	host, port, err := net.SplitHostPort(bound)
	if err != nil {
		return "", fmt.Errorf("address for other gateways: %w", err)
	}
	if setting != "" {
		h, p, err := net.SplitHostPort(setting)
		switch {
		case strings.ContainsAny(setting, "/ @"), err == nil && (h == "" || p == ""):
			return "", fmt.Errorf("PeerAddress %q must be a host, or a host and a port", setting)
		case err == nil:
			return setting, nil
		}
		return net.JoinHostPort(strings.Trim(setting, "[]"), port), nil
	}
	if ip, err := netip.ParseAddr(host); err != nil || ip.IsUnspecified() {
		return "", fmt.Errorf("PeerListen %s is every address of this machine: set PeerAddress to the one at which other gateways reach it", bound)
	}
	return bound, nil
}
